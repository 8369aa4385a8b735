/* conversation.c: files of conversations, see conversation.h.
 * SPDX-License-Identifier: MIT */
#include "run/conversation.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include "host/folders.h"
#include "run/prompt.h"
#include "run/sessions.h"

/* Written to a temporary file and renamed, so that a full disk keeps the old conversation. Mode 0600, as for states. */
segue_status conversation_save(const json_t *messages, const char *path, segue_error *err)
{
    char *tmp_path;
    errno = 0;
    FILE *f = out_temporary(path, 0600, &tmp_path);
    bool written = f && json_dumpf(messages, f, JSON_INDENT(2)) == 0;
    written = f && fclose(f) == 0 && written && rename(tmp_path, path) == 0;
    segue_status st = written ? SEGUE_OK : out_fail_errno(err, "saving the conversation", path, NULL);
    if (f && !written) unlink(tmp_path);
    free(tmp_path);
    return st;
}

segue_status conversation_load(json_t **messages, const char *path, segue_error *err)
{
    json_t *request = NULL;
    segue_status st = prompt_messages(path, &request, err);
    if (st) return st;
    json_decref(*messages);
    *messages = json_incref(json_object_get(request, "messages"));
    json_decref(request);
    return SEGUE_OK;
}

segue_status conversation_of_session(const struct args *args, json_t **messages, segue_error *err)
{
    *messages = json_array();
    if (!args_has(args, "session")) return SEGUE_OK;
    char *path = sessions_file(args_text(args, "session"), "json");
    segue_status st = folders_is_file(path) ? folders_check_owner(path, err) : SEGUE_OK;
    if (!st && folders_is_file(path)) st = conversation_load(messages, path, err);
    free(path);
    return st;
}

segue_status conversation_save_session(const struct args *args, const json_t *messages, segue_error *err)
{
    if (!args_has(args, "session")) return SEGUE_OK;
    char *path = sessions_file(args_text(args, "session"), "json");
    segue_status st = conversation_save(messages, path, err);
    free(path);
    return st;
}
