/* chat_commands.c: the slash commands of `segue chat`, in one table that also produces /help. Each command gets the
 * rest of the line as its operand, which may be empty.
 * Messages for the user go to stderr, because stdout contains the answers only.
 * SPDX-License-Identifier: MIT */
#include "chat/chat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "run/conversation.h"
#include "run/sessions.h"

/* One command. run returns the status of the command; *running becomes false to end the conversation. */
struct slash_command {
    const char *name, *operand, *help; /* operand: as /help shows it; "": none */
    segue_status (*run)(struct chat *c, const char *operand, bool *running, segue_error *err);
};
static const struct slash_command slash_commands[15]; /* forward declaration for /help */

/* /help: list the commands on stderr. */
static segue_status do_help(struct chat *c, const char *operand, bool *running, segue_error *err)
{
    (void)c, (void)operand, (void)running, (void)err;
    for (const struct slash_command *v = slash_commands; v->help; v++)
        fprintf(stderr, "  /%s%s%s\t%s\n", v->name, *v->operand ? " " : "", v->operand, v->help);
    fprintf(stderr, "  several lines: ^J or a backslash at the end of a line, or \"\"\" before and after them\n"
                    "  ^C stops an answer\n");
    return SEGUE_OK;
}

/* /exit: end the conversation. The caller saves and reports. */
static segue_status do_exit(struct chat *c, const char *operand, bool *running, segue_error *err)
{
    (void)c, (void)operand, (void)err;
    *running = false;
    return SEGUE_OK;
}

/* Role of the i-th message, or an empty string. */
static const char *role_at(const struct chat *c, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(c->messages, i), "role"));
    return role ? role : "";
}

/* /clear: drop all messages but the system message, and rewind the session to the start. */
static segue_status do_clear(struct chat *c, const char *operand, bool *running, segue_error *err)
{
    (void)operand, (void)running;
    /* 1 if the first message is the system message. */
    size_t keep = json_array_size(c->messages) && !strcmp(role_at(c, 0), "system") ? 1 : 0;
    while (json_array_size(c->messages) > keep)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    return segue_session_rewind(c->session, 0, err);
}

/* Remove the newest messages up to and including the last one of a role. Returns false if there is none. */
static bool remove_back_to(struct chat *c, const char *role)
{
    size_t n = json_array_size(c->messages), at = n;
    /* Search backwards; `at` becomes the index after the message. */
    while (at > 0 && strcmp(role_at(c, at - 1), role) != 0) at--;
    if (at == 0) return false;
    while (json_array_size(c->messages) >= at)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    return true;
}

/* /undo: the session keeps its tokens; the next turn finds the common prefix. */
static segue_status do_undo(struct chat *c, const char *operand, bool *running, segue_error *err)
{
    (void)operand, (void)running;
    return remove_back_to(c, "user") ? SEGUE_OK
                                   : out_fail(err, SEGUE_EARG, "chat: /undo: there is no message to remove");
}

/* True if answers do not depend on random numbers. */
static bool is_greedy(const struct chat *c)
{
    double temp = args_number(&c->args, "temp", c->placement.info.temperature >= 0 ? c->placement.info.temperature : 1);
    return args_has(&c->args, "greedy") || temp == 0;
}

/* /retry: answer the last user message again. The seed is incremented for this answer, unless --seed or /set fixed
 * it, because the same seed would give the same answer; then a note explains that. */
static segue_status do_retry(struct chat *c, const char *operand, bool *running, segue_error *err)
{
    (void)operand, (void)running;
    size_t n = json_array_size(c->messages);
    /* The last message is the answer, unless an earlier /retry failed. */
    if (n && !strcmp(role_at(c, n - 1), "assistant")) json_array_remove(c->messages, n - 1);
    n = json_array_size(c->messages);
    if (n == 0 || strcmp(role_at(c, n - 1), "user") != 0)
        return out_fail(err, SEGUE_EARG, "chat: /retry: there is no user message to answer");
    if (is_greedy(c))
        out_note("chat: /retry: greedy decoding gives the same answer again; for another one, /set temp 0.8");
    else if (args_number(&c->args, "top-k", c->placement.info.top_k) == 1)
        out_note("chat: /retry: top-k 1 gives the same answer again; for another one, /set top-k 40");
    else if (args_has(&c->args, "seed"))
        out_note("chat: /retry: the seed is fixed, which gives the same answer again; for another one, /set seed N");
    if (!args_has(&c->args, "seed")) {
        c->seed++;
        char seed[24];
        snprintf(seed, sizeof seed, "%llu", (unsigned long long)c->seed);
        segue_status st = args_set(&c->args, "seed", seed, err);
        if (!st) st = chat_apply_sampling(c, err);
        args_unset(&c->args, "seed"); /* the next answer chooses its seed as before */
        if (st) return st;
    }
    return chat_answer(c, err);
}

/* /system [TEXT]: replace or remove the system message. */
static segue_status do_system(struct chat *c, const char *operand, bool *running, segue_error *err)
{
    (void)running;
    if (!c->placement.info.has_template)
        return out_fail(err, SEGUE_EARG, "chat: /system: the model has no chat template; restart with another model");
    prompt_set_system(c->messages, operand);
    return SEGUE_OK;
}

/* Path of the conversation for /save and /load: NAME.json is the conversation itself; for any other name, a state, it
 * is NAME.json next to it. */
static char *messages_path(const char *operand)
{
    size_t n = strlen(operand);
    return n > 5 && !strcmp(operand + n - 5, ".json") ? out_strdup(operand) : out_printf("%s.json", operand);
}

/* /save FILE: the conversation is written first. */
static segue_status do_save(struct chat *c, const char *operand, bool *running, segue_error *err)
{
    (void)running;
    if (!*operand)
        return out_fail(err, SEGUE_EARG, "chat: /save: file name missing; expected FILE.json or FILE.state");
    char *path = messages_path(operand);
    segue_status st = conversation_save(c->messages, path, err);
    /* The operand names a state: save it next to the conversation. */
    if (!st && strcmp(path, operand) != 0) st = sessions_save_to(c->session, operand, err);
    free(path);
    return st;
}

/* /load FILE: the conversation is read first, because a state without its conversation is useless. If the state cannot be
 * loaded, the current conversation stays. */
static segue_status do_load(struct chat *c, const char *operand, bool *running, segue_error *err)
{
    (void)running;
    if (!*operand)
        return out_fail(err, SEGUE_EARG, "chat: /load: file name missing; expected FILE.json or FILE.state");
    char *path = messages_path(operand);
    json_t *before = json_incref(c->messages);
    segue_status st = conversation_load(&c->messages, path, err);
    if (!st && strcmp(path, operand) != 0) st = chat_load_state(c, operand, err);
    if (st) {
        json_decref(c->messages);
        c->messages = json_incref(before);
    }
    json_decref(before);
    free(path);
    return st;
}

/* /set NAME [VALUE]: change a flag of generation for the following answers; without NAME list the
 * flags that are set. Flags in startup_only need a new engine or session and are rejected. */
static segue_status do_set(struct chat *c, const char *operand, bool *running, segue_error *err)
{
    (void)running;
    static const char *const startup_only[] = {"model", "unit",     "prefill", "decode",  "threads", "kv",
                                        "chunk", "context",  "lora",    "session", "save",    "load",
                                        "json",  "messages", "prompt",  "help",
                                        "store", "store-memory", "store-disk", "checkpoints", "yes"};
    if (!*operand) {
        for (size_t i = 0; i < c->args.values_n; i++)
            fprintf(stderr, "  %s %s\n", c->args.values[i].def->name, c->args.values[i].text);
        return SEGUE_OK;
    }
    /* Accepts "temp 0.5", "--temp 0.5" and "temp=0.5". */
    char *name = out_strdup(operand + strspn(operand, "-")), *value = name + strcspn(name, " =");
    if (*value) *value++ = 0;
    value += strspn(value, " ");
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < sizeof startup_only / sizeof *startup_only; i++)
        if (!strcmp(name, startup_only[i]))
            st = out_fail(err, SEGUE_EARG,
                          "chat: /set: %s cannot be changed during a chat; restart with --%s", name, name);
    if (!st) st = args_set(&c->args, name, value, err);
    /* --greedy would override the temperature. */
    if (!st && !strcmp(name, "temp") && args_has(&c->args, "greedy") && args_number(&c->args, "temp", 0) != 0) {
        args_unset(&c->args, "greedy");
        if (!args_has(&c->args, "quiet")) out_note("chat: /set temp: greedy decoding is off");
    }
    if (!st) st = chat_apply_sampling(c, err);
    free(name);
    return st;
}

/* /lora PATH[=SCALE] adds an adapter, /lora none removes all. An adapter invalidates the computed
 * state, so a new session is opened. Adapters are closed after the session that uses them. */
static segue_status do_lora(struct chat *c, const char *operand, bool *running, segue_error *err)
{
    (void)running;
    if (args_has(&c->args, "record"))
        return out_fail(err, SEGUE_EARG, "chat: /lora: a record holds the adapters of --lora only; use that flag");
    if (!*operand) return out_fail(err, SEGUE_EARG, "chat: /lora: name missing; expected PATH[=SCALE] or none");
    /* To restore the list if the new session cannot be opened. */
    size_t before = c->placement.adapters_n;
    segue_status st = SEGUE_OK;
    if (!strcmp(operand, "none"))
        c->placement.adapters_n = 0;
    else
        st = placement_add_adapter(&c->placement, operand, err);
    if (!st) st = chat_open_session(c, err);
    if (!st) c->reuse_reason = "model-changed";
    if (!strcmp(operand, "none")) {
        for (size_t i = 0; i < before && !st; i++) segue_adapter_close(c->placement.adapters[i]);
        if (st) c->placement.adapters_n = before;
    } else if (st && c->placement.adapters_n > before)
        segue_adapter_close(c->placement.adapters[--c->placement.adapters_n]);
    return st;
}

/* /stats: selected fields from the report of the last answer; null is printed as null. */
static segue_status do_stats(struct chat *c, const char *operand, bool *running, segue_error *err)
{
    (void)operand, (void)running;
    if (!c->last) return out_fail(err, SEGUE_EARG, "chat: /stats: there is no answer yet");
    static const char *const names[] = {"prompt_tokens", "reused_tokens", "reuse_reason", "output_tokens",
                                        "ttft_ms",       "prefill_tok_s", "decode_tok_s", "weight_read_gb_s",
                                        "bandwidth_utilization",    "state_bytes",   "peak_bytes",   "seed"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        /* A missing field prints as "-". */
        char *v = json_dumps(json_object_get(c->last, names[i]), JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        fprintf(stderr, "  %-21s %s\n", names[i], v ? v : "-");
        free(v);
    }
    return SEGUE_OK;
}

static const struct slash_command slash_commands[15] = {
    {"help", "", "show this list", do_help},
    {"exit", "", "quit; same as ^D, /bye and /quit", do_exit},
    {"clear", "", "delete the conversation, keep the system message", do_clear},
    {"undo", "", "remove the last message and its answer", do_undo},
    {"retry", "", "answer the last message again", do_retry},
    {"system", "TEXT", "set the system message; without TEXT: remove it", do_system},
    {"save", "FILE", "save the conversation (FILE.json), or the state FILE and FILE.json", do_save},
    {"load", "FILE", "load what /save wrote", do_load},
    {"set", "FLAG VALUE", "change a flag, for example temp 0.5; without FLAG: list them", do_set},
    {"lora", "PATH[=SCALE]", "add a LoRA adapter; none: remove all", do_lora},
    {"stats", "", "statistics of the last answer", do_stats},
    {"?", "", NULL, do_help}, /* other names, not listed */
    {"bye", "", NULL, do_exit},
    {"quit", "", NULL, do_exit},
    {NULL, NULL, NULL, NULL}};

const char *chat_command_name(size_t i, const char **operand)
{
    if (i >= sizeof slash_commands / sizeof *slash_commands || !slash_commands[i].name) return NULL;
    *operand = slash_commands[i].operand;
    return slash_commands[i].name;
}

/* The name ends at the first space; the rest without leading spaces is the operand. */
segue_status chat_command(struct chat *c, const char *line, bool *running, segue_error *err)
{
    /* The line is "NAME OPERAND". */
    size_t n = strcspn(line, " ");
    const char *operand = line + n + strspn(line + n, " ");
    for (const struct slash_command *v = slash_commands; v->name; v++)
        if (strlen(v->name) == n && !strncmp(v->name, line, n)) return v->run(c, operand, running, err);
    const char *names[16], *similar;
    char typed[41];
    size_t names_n = 0;
    for (const struct slash_command *v = slash_commands; v->help; v++) names[names_n++] = v->name;
    snprintf(typed, sizeof typed, "%.*s", (int)(n < 40 ? n : 40), line);
    if ((similar = args_suggest(typed, names, names_n)))
        return out_fail(err, SEGUE_EARG, "chat: /%s: no such command; did you mean /%s?", typed, similar);
    return out_fail(err, SEGUE_EARG, "chat: /%s: no such command; see /help", typed);
}
