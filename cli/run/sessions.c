/* sessions.c: saved states and reuse of sessions, see sessions.h.
 * SPDX-License-Identifier: MIT */
#include "run/sessions.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "host/folders.h"

char *sessions_file(const char *name, const char *ending)
{
    char *folder = folders_path("data", "sessions"), *path = out_printf("%s/%s.%s", folder, name, ending);
    free(folder);
    return path;
}

/* --load takes precedence over --session. */
char *sessions_path(const struct args *args)
{
    if (args_has(args, "load")) return out_strdup(args_text(args, "load"));
    return args_has(args, "session") ? sessions_file(args_text(args, "session"), "state") : NULL;
}

segue_status sessions_save_to(const segue_session *session, const char *path, segue_error *err)
{
    mode_t before = umask(077); /* a state contains the tokens of the conversation */
    segue_status st = segue_session_save(session, path, err);
    umask(before);
    return st;
}

/* --save and --session may both be given. */
segue_status sessions_save(const struct args *args, const segue_session *session, segue_error *err)
{
    segue_status st = SEGUE_OK;
    if (args_has(args, "save")) st = sessions_save_to(session, args_text(args, "save"), err);
    if (st || !args_has(args, "session")) return st;
    char *folder = folders_path("data", "sessions"),
         *path = sessions_file(args_text(args, "session"), "state");
    st = folders_make(folder, err);
    if (!st) st = sessions_save_to(session, path, err);
    free(path);
    free(folder);
    return st;
}

/* A recurrent state can be rewound only to a checkpoint; segue_session_rewind then recomputes the tokens in between. */
segue_status sessions_sync(segue_session *session, const int32_t *ids, size_t n, segue_error *err)
{
    const int32_t *held;
    size_t held_n = segue_session_tokens(session, &held), same = 0;
    while (same < held_n && same < n && held[same] == ids[same]) same++;
    segue_status st = segue_session_rewind(session, same, err);
    return st ? st : segue_session_append(session, ids + same, n - same, err);
}

/* Tokens found in a loaded state or in the prefix store are already computed. */
size_t sessions_pending(const segue_session *session)
{
    segue_stats stats = SEGUE_INIT(segue_stats);
    segue_error ignored;
    size_t n = segue_session_tokens(session, NULL);
    return segue_session_stats_get(session, &stats, &ignored) || stats.tokens_reused > n
               ? n
               : n - stats.tokens_reused;
}

/* The library takes 0 as its default, so --checkpoints 0 needs a separate value. */
uint64_t sessions_checkpoint_bytes(const struct args *args)
{
    if (!args_has(args, "checkpoints")) return 0;
    uint64_t mb = (uint64_t)args_number(args, "checkpoints", 0);
    return mb ? mb << 20 : SEGUE_NO_CHECKPOINTS;
}

/* With --repair, SEGUE_EFORMAT and SEGUE_EUNSUPPORTED mean that even the tokens of the file are unusable. */
segue_status sessions_load(segue_session **out, segue_engine *engine, segue_session_opts *opts,
                           const struct args *args, const char *path, bool may_be_new, const char **reason,
                           segue_error *err)
{
    opts->repair = args_has(args, "repair");
    segue_status st = segue_session_load(out, engine, opts, path, err);
    if (!opts->repair || !may_be_new || (st != SEGUE_EFORMAT && st != SEGUE_EUNSUPPORTED)) return st;
    *reason = st == SEGUE_EUNSUPPORTED ? "version" : "model-changed";
    out_note("%s", err->text);
    return segue_session_open(out, engine, opts, err);
}

/* NULL leaves the reason to the session. */
const char *sessions_reuse_reason(const struct args *args)
{
    const char *store = args_text(args, "store");
    return store && !strcmp(store, "off") ? "off" : NULL;
}
