/* chat_commands.c: the slash commands of `segue chat`, in one table.
 * SPDX-License-Identifier: MIT */
#include "commands/chat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "task/sessions.h"

struct verb {
    const char *name, *operand, *help;
    segue_status (*run)(struct chat *c, const char *operand, bool *go_on, segue_error *err);
};
static const struct verb verbs[12];

static segue_status do_help(struct chat *c, const char *operand, bool *go_on, segue_error *err)
{
    (void)c, (void)operand, (void)go_on, (void)err;
    for (const struct verb *v = verbs; v->name; v++)
        fprintf(stderr, "  /%s%s%s\t%s\n", v->name, *v->operand ? " " : "", v->operand, v->help);
    fprintf(stderr, "  a backslash at the end of a line continues it; ^C stops an answer\n");
    return SEGUE_OK;
}

static segue_status do_exit(struct chat *c, const char *operand, bool *go_on, segue_error *err)
{
    (void)c, (void)operand, (void)err;
    *go_on = false;
    return SEGUE_OK;
}

static const char *role_at(const struct chat *c, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(c->messages, i), "role"));
    return role ? role : "";
}

/* The session is emptied too: what it holds is of a conversation that is over. */
static segue_status do_clear(struct chat *c, const char *operand, bool *go_on, segue_error *err)
{
    (void)operand, (void)go_on;
    size_t keep = json_array_size(c->messages) && !strcmp(role_at(c, 0), "system") ? 1 : 0;
    while (json_array_size(c->messages) > keep)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    return segue_session_rewind(c->session, 0, err);
}

/* Drop the newest messages up to and with the last one of a role; false: there is none. */
static bool drop_back_to(struct chat *c, const char *role)
{
    size_t n = json_array_size(c->messages), at = n;
    while (at > 0 && strcmp(role_at(c, at - 1), role) != 0) at--;
    if (at == 0) return false;
    while (json_array_size(c->messages) >= at)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    return true;
}

/* The session keeps its tokens; the next turn finds the common part by itself. */
static segue_status do_undo(struct chat *c, const char *operand, bool *go_on, segue_error *err)
{
    (void)operand, (void)go_on;
    return drop_back_to(c, "user") ? SEGUE_OK
                                   : out_fail(err, SEGUE_EARG, "chat: /undo: no turn to take back");
}

/* The same seed would give the same answer, so another one is taken, unless the user fixed it. */
static segue_status do_retry(struct chat *c, const char *operand, bool *go_on, segue_error *err)
{
    (void)operand, (void)go_on;
    size_t n = json_array_size(c->messages);
    if (n && !strcmp(role_at(c, n - 1), "assistant")) json_array_remove(c->messages, n - 1);
    n = json_array_size(c->messages);
    if (n == 0 || strcmp(role_at(c, n - 1), "user") != 0)
        return out_fail(err, SEGUE_EARG, "chat: /retry: no turn to answer again");
    if (!args_has(&c->args, "seed")) { /* another answer, unless the user fixed the seed */
        c->seed++;
        char seed[24];
        snprintf(seed, sizeof seed, "%llu", (unsigned long long)c->seed);
        segue_status st = args_set(&c->args, "seed", seed, err);
        if (!st) st = chat_sampling(c, err);
        for (size_t i = 0; i < c->args.values_n; i++)
            if (!strcmp(c->args.values[i].def->name, "seed")) {
                free(c->args.values[i].text);
                c->args.values[i] = c->args.values[--c->args.values_n];
            }
        if (st) return st;
    }
    return chat_answer(c, err);
}

static segue_status do_system(struct chat *c, const char *operand, bool *go_on, segue_error *err)
{
    (void)go_on;
    if (!c->place.info.has_template)
        return out_fail(err, SEGUE_EARG, "chat: /system: this model has no chat template");
    chat_set_system(c, operand);
    return SEGUE_OK;
}

/* Aside and renamed: a full disk leaves the older conversation. Mode 0600, as states have. */
segue_status chat_save_messages(const struct chat *c, const char *path, segue_error *err)
{
    char *aside = out_printf("%s.tmp-%ld", path, (long)getpid());
    mode_t before = umask(077);
    errno = 0;
    bool written = json_dump_file(c->messages, aside, JSON_INDENT(2)) == 0 && rename(aside, path) == 0;
    segue_status st = written ? SEGUE_OK : out_fail_errno(err, "saving the conversation", path, NULL);
    if (!written) unlink(aside);
    umask(before);
    free(aside);
    return st;
}

/* The old conversation stays when the file is refused. */
segue_status chat_load_messages(struct chat *c, const char *path, segue_error *err)
{
    json_t *request = NULL;
    segue_status st = prompt_messages(path, &request, err);
    if (st) return st;
    json_decref(c->messages);
    c->messages = json_incref(json_object_get(request, "messages"));
    json_decref(request);
    return SEGUE_OK;
}

/* The choice of tokens is the user's, not the file's: it is set again. */
segue_status chat_load_state(struct chat *c, const char *path, segue_error *err)
{
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    segue_session *loaded = NULL;
    opts.context = (size_t)args_number(&c->args, "context", 0);
    opts.plan = place_plan(&c->place);
    opts.adapters = c->place.adapters;
    opts.adapters_n = c->place.adapters_n;
    opts.checkpoint_bytes = sessions_checkpoints(&c->args);
    opts.spans = trace_spans(&c->trace);
    segue_status st =
        sessions_load(&loaded, c->place.engine, &opts, &c->args, path, true, &c->reuse_reason, err);
    if (st) return st;
    ahead_forget(c->ahead);
    chat_leave(c, c->session);
    c->session = loaded;
    return chat_sampling(c, err);
}

/* NAME.json is the conversation; any other name is the state, with the conversation in NAME.json beside it.
 */
static char *messages_path(const char *operand)
{
    size_t n = strlen(operand);
    return n > 5 && !strcmp(operand + n - 5, ".json") ? out_strdup(operand) : out_printf("%s.json", operand);
}

static segue_status do_save(struct chat *c, const char *operand, bool *go_on, segue_error *err)
{
    (void)go_on;
    if (!*operand)
        return out_fail(err, SEGUE_EARG, "chat: /save: name missing; give FILE.json or FILE.state");
    char *path = messages_path(operand);
    segue_status st = chat_save_messages(c, path, err);
    if (!st && strcmp(path, operand) != 0) st = sessions_save_to(c->session, operand, err);
    free(path);
    return st;
}

/* The conversation is read first: without it the state would belong to nothing. */
static segue_status do_load(struct chat *c, const char *operand, bool *go_on, segue_error *err)
{
    (void)go_on;
    if (!*operand)
        return out_fail(err, SEGUE_EARG, "chat: /load: name missing; give FILE.json or FILE.state");
    char *path = messages_path(operand);
    segue_status st = chat_load_messages(c, path, err);
    if (!st && strcmp(path, operand) != 0) st = chat_load_state(c, operand, err);
    free(path);
    return st;
}

/* /set NAME [VALUE]: any flag of generation and prompt. */
static segue_status do_set(struct chat *c, const char *operand, bool *go_on, segue_error *err)
{
    (void)go_on;
    static const char *const fixed[] = {"model", "unit",     "prefill", "decode",  "threads", "kv",
                                        "chunk", "context",  "lora",    "session", "save",    "load",
                                        "json",  "messages", "prompt",  "help",
                                        "store", "store-memory", "store-disk", "checkpoints"};
    if (!*operand) {
        for (size_t i = 0; i < c->args.values_n; i++)
            fprintf(stderr, "  %s %s\n", c->args.values[i].def->name, c->args.values[i].text);
        return SEGUE_OK;
    }
    char *name = out_strdup(operand + strspn(operand, "-")), *value = name + strcspn(name, " =");
    if (*value) *value++ = 0;
    value += strspn(value, " ");
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (!strcmp(name, fixed[i]))
            st = out_fail(err, SEGUE_EARG,
                          "chat: /set: %s cannot change while it runs; start again with --%s", name, name);
    if (!st) st = args_set(&c->args, name, value, err);
    if (!st) st = chat_sampling(c, err);
    free(name);
    return st;
}

/* A changed adapter changes what was computed: a fresh session, and the adapters stay open until the old one
 * is gone. */
static segue_status do_lora(struct chat *c, const char *operand, bool *go_on, segue_error *err)
{
    (void)go_on;
    if (!*operand) return out_fail(err, SEGUE_EARG, "chat: /lora: name missing; give PATH[=SCALE], or none");
    size_t before = c->place.adapters_n;
    segue_status st = SEGUE_OK;
    if (!strcmp(operand, "none"))
        c->place.adapters_n = 0;
    else
        st = place_adapter(&c->place, operand, err);
    if (!st) st = chat_open_session(c, err); /* what was computed without it does not hold */
    if (!st) c->reuse_reason = "model-changed";
    if (!strcmp(operand, "none")) {
        for (size_t i = 0; i < before && !st; i++) segue_adapter_close(c->place.adapters[i]);
        if (st) c->place.adapters_n = before;
    } else if (st && c->place.adapters_n > before)
        segue_adapter_close(c->place.adapters[--c->place.adapters_n]);
    return st;
}

static segue_status do_stats(struct chat *c, const char *operand, bool *go_on, segue_error *err)
{
    (void)operand, (void)go_on;
    if (!c->last) return out_fail(err, SEGUE_EARG, "chat: /stats: no answer yet");
    static const char *const names[] = {"prompt_tokens", "reused_tokens", "reuse_reason", "output_tokens",
                                        "ttft_ms",       "prefill_tok_s", "decode_tok_s", "gb_s",
                                        "roof_share",    "state_bytes",   "peak_bytes",   "seed"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *v = json_dumps(json_object_get(c->last, names[i]), JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        fprintf(stderr, "  %-14s %s\n", names[i], v ? v : "-");
        free(v);
    }
    return SEGUE_OK;
}

static const struct verb verbs[12] = {
    {"help", "", "this list", do_help},
    {"exit", "", "end; ^D does the same", do_exit},
    {"clear", "", "forget the conversation, keep the system message", do_clear},
    {"undo", "", "take back the last turn and its answer", do_undo},
    {"retry", "", "answer the last turn again", do_retry},
    {"system", "TEXT", "set the system message; without TEXT: none", do_system},
    {"save", "FILE", "write the conversation (FILE.json), or the state and FILE.json", do_save},
    {"load", "FILE", "read what /save wrote", do_load},
    {"set", "FLAG VALUE", "change a flag, such as temp 0.5; without: list them", do_set},
    {"lora", "PATH[=SCALE]", "add an adapter; none: take all away", do_lora},
    {"stats", "", "figures of the last answer", do_stats},
    {NULL, NULL, NULL, NULL}};

/* The operand is the rest of the line. */
segue_status chat_command(struct chat *c, const char *line, bool *go_on, segue_error *err)
{
    size_t n = strcspn(line, " ");
    const char *operand = line + n + strspn(line + n, " ");
    for (const struct verb *v = verbs; v->name; v++)
        if (strlen(v->name) == n && !strncmp(v->name, line, n)) return v->run(c, operand, go_on, err);
    return out_fail(err, SEGUE_EARG, "chat: /%.*s: no such command; see /help", (int)(n < 40 ? n : 40), line);
}
