/* expected_task.c: see expected_task.h. Includes an internal header of the library, because the tokens of a state file are read
 * without a session. SPDX-License-Identifier: MIT */
#include "plan/expected_task.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "engine/planner/unitcost.h"
#include "engine/statefile/statefile.h"
#include "host/folders.h"
#include "run/prompt.h"
#include "run/sessions.h"

/* A task where nothing is known; longer texts are not tokenized twice; the context without a flag. */
enum { MEDIUM_PROMPT = 256, MEDIUM_ANSWER = 128, TEXT_BYTES = 1 << 16, TOKEN_BYTES = 4, CONTEXT = 4096 };
enum { CHUNK = 512 };
/* A conversation is planned for so many turns, if its context holds them; a served request for these parts of its context. */
enum { CHAT_TURNS = 4, PROMPT_PART = 4, ANSWER_PART = 8 };

static const char *text_flag(const struct args *args, const char *name)
{
    return args_find(args->command, name, strlen(name)) ? args_text(args, name) : NULL;
}

static double number_flag(const struct args *args, const char *name, double missing)
{
    return args_find(args->command, name, strlen(name)) && args_has(args, name) ? (double)args_number(args, name, 0) : missing;
}

/* What the chat template adds to a message, the system message included. */
static double template_tokens(const struct args *args, const segue_model *model, const segue_model_info *info)
{
    const char *system = text_flag(args, "system");
    bool raw = args_find(args->command, "raw", 3) && args_has(args, "raw");
    struct prompt rendered = {0};
    segue_error ignored;
    if (raw || !info->has_template || !info->has_tokenizer) return 0;
    json_t *messages = json_array(), *request = json_pack("{s:o}", "messages", messages);
    if (system) prompt_set_system(messages, system);
    json_array_append_new(messages, prompt_message("user", "", 0));
    if (prompt_chat(model, request, TEXT_BYTES, &rendered, &ignored)) rendered.n = 0;
    json_decref(request);
    double n = (double)rendered.n;
    prompt_free(&rendered);
    return n;
}

/* Bytes of a file in tokens; what is no file, as standard input, is not known. */
static double file_tokens(const char *path)
{
    struct stat s;
    return stat(path, &s) || !S_ISREG(s.st_mode) ? MEDIUM_PROMPT : (double)s.st_size / TOKEN_BYTES;
}

/* Tokens of a text without those of its template. */
static double text_tokens(const segue_model *model, const segue_model_info *info, const char *text)
{
    size_t n = 1;
    segue_error err;
    if (!info->has_tokenizer || strlen(text) > TEXT_BYTES) return (double)strlen(text) / TOKEN_BYTES;
    segue_tokenize(model, text, strlen(text), 0, NULL, 0, &n, &err); /* ELIMIT, with the number */
    return (double)n;
}

/* --ids 1,2,3; a file of ids is not read. */
static double id_tokens(const char *ids)
{
    double n = 1;
    for (; *ids; ids++) n += *ids == ',';
    return n;
}

static double prompt_tokens(const struct args *args, const segue_model *model, const segue_model_info *info, const char *message)
{
    const char *ids = text_flag(args, "ids"), *file = text_flag(args, "file"), *messages = text_flag(args, "messages");
    const char *text = message ? message : text_flag(args, "prompt");
    if (ids && *ids != '@') return id_tokens(ids);
    if (messages) return file_tokens(messages);
    if (!file && (!text || !info->has_tokenizer)) return MEDIUM_PROMPT;
    return (text ? text_tokens(model, info, text) : 0) + (file ? file_tokens(file) : 0) + template_tokens(args, model, info);
}

/* Tokens whose states the file of --load or --session holds; 0: there is none, or it cannot be read, which is reported later. */
static double restored_tokens(const struct args *args)
{
    struct sg_statefile file;
    segue_error ignored;
    char *path = args_find(args->command, "load", 4) && args_find(args->command, "session", 7) ? sessions_path(args) : NULL;
    double n = 0;
    if (path && folders_is_file(path) && !sg_statefile_peek(&file, path, &ignored)) {
        n = (double)file.head.rows;
        sg_statefile_close(&file);
    }
    free(path);
    return n;
}

static double context_of(const struct args *args, const segue_model_info *info, const char *flag)
{
    double trained = info->context ? info->context : CONTEXT;
    return number_flag(args, flag, trained < CONTEXT ? trained : CONTEXT);
}

/* Requests of a server use a part of their context; --plan-prompt and --plan-answer say more. */
static void served(struct expected_task *t, const struct args *args, const segue_model_info *info)
{
    double context = context_of(args, info, "ctx");
    t->prompt = number_flag(args, "plan-prompt", context >= PROMPT_PART ? context / PROMPT_PART : 1);
    t->output = number_flag(args, "plan-answer", context >= ANSWER_PART ? context / ANSWER_PART : 1);
    t->sessions = number_flag(args, "parallel", 8);
}

void expected_task_of(struct expected_task *out, const struct args *args, const segue_model *model, const segue_model_info *info,
                      const char *message)
{
    const char *name = args->command->name;
    const char *kv = text_flag(args, "kv");
    int form = kv ? sg_kv_form_of(kv) : SG_KV_FORM_F16;
    *out = (struct expected_task){.turns = 1, .sessions = 1, .chunk = number_flag(args, "chunk", CHUNK)};
    out->kv = form >= 0 ? form : SG_KV_FORM_F16;
    if (!strcmp(name, "serve")) {
        served(out, args, info);
        return;
    }
    double tokens = number_flag(args, "tokens", 0), context = context_of(args, info, "context");
    out->prompt = prompt_tokens(args, model, info, message);
    out->output = tokens > 0 ? tokens : MEDIUM_ANSWER;
    out->depth = restored_tokens(args);
    if (strcmp(name, "chat") != 0) return;
    double turns = (context - out->depth) / (out->prompt + out->output);
    out->turns = turns < 1 ? 1 : turns > CHAT_TURNS ? CHAT_TURNS : (double)(int)turns;
}
