/* cmd_chat.c: `segue chat`: flags, the input loop and the final report. The conversation itself is in chat.c, slash
 * commands are in chat_commands.c.
 * On a terminal lines are edited and errors do not end the conversation; on a pipe every line is a
 * message and the first error ends it.
 * SPDX-License-Identifier: MIT */
#include "chat/chat.h"
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "host/folders.h"
#include "term/interrupt.h"
#include "host/machine.h"
#include "run/conversation.h"
#include "replay/recording.h"
#include "run/report.h"
#include "run/sessions.h"

/* --session NAME: save the state, and the conversation next to it as NAME.json. */
static segue_status save_session(struct chat *c, segue_error *err)
{
    if (!args_has(&c->args, "session")) return SEGUE_OK;
    segue_status st = sessions_save(&c->args, c->session, err);
    /* The state first: a conversation without a state can be computed again. */
    return st ? st : conversation_save_session(&c->args, c->messages, err);
}

/* Load the conversation and the state of --session or --load. A new session name starts with both empty. */
static segue_status resume(struct chat *c, segue_error *err)
{
    char *state = sessions_path(&c->args);
    json_decref(c->messages);
    segue_status st = conversation_of_session(&c->args, &c->messages, err);
    if (!st && state && (args_has(&c->args, "load") || folders_is_file(state)))
        st = chat_load_state(c, state, err);
    free(state);
    return st;
}

/* Process one input line: a slash command or a user message. Returns false if the conversation
 * ends. The messages of a failed answer are removed. *code: set to the exit code of the first
 * failure on a pipe. */
static bool handle_line(struct chat *c, const char *line, int *code)
{
    segue_error err;
    const char *word = line + strspn(line, " \t");
    if (word[0] == '/') {
        bool running = true;
        segue_status st = chat_command(c, word + 1, &running, &err);
        /* A failed command does not end the conversation, but it decides the exit code on a pipe. */
        if (st && !c->interactive && !*code) *code = out_exit_code(st, EXIT_UNAVAILABLE);
        if (st) out_note("%s", err.text);
        return running;
    }
    if (!*word) return true;
    /* To remove the messages of a failed turn. */
    size_t before = json_array_size(c->messages);
    chat_add_message(c, "user", line);
    segue_status st = chat_answer(c, &err);
    if (!st) st = save_session(c, &err);
    if (!st) return true;
    while (json_array_size(c->messages) > before)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    int failure = out_exit_code(st, EXIT_UNAVAILABLE);
    out_note("%s", err.text);
    /* A lost unit or a closed stdout ends the conversation even on a terminal. */
    if (c->interactive && st != SEGUE_EIO && st != SEGUE_ELOST) return true;
    *code = failure;
    c->failure = err;
    c->failure.status = st;
    return false;
}

/* Close everything in c. The read-ahead thread is stopped first, because it uses the engine. */
static void close_chat(struct chat *c)
{
    read_ahead_close(c->read_ahead);
    segue_session_close(c->session);
    meter_close(&c->meter);
    placement_close(&c->placement);
    json_decref(c->messages);
    json_decref(c->turns);
    json_decref(c->last);
    line_edit_close(c->line_edit);
    free(c->first);
    args_free(&c->args);
}

/* Check the flags, open the session, and load the conversation of --session, --load or --messages. */
static segue_status apply_flags(struct chat *c, segue_error *err)
{
    if (!c->placement.info.has_tokenizer)
        return out_fail(err, SEGUE_EUNSUPPORTED,
                        "chat: %.200s: the model has no tokenizer; use segue run --ids", c->placement.path);
    const char *system = args_text(&c->args, "system"), *session = args_text(&c->args, "session");
    if (system && (!c->placement.info.has_template || args_has(&c->args, "raw")))
        return out_fail(err, SEGUE_EARG, "flag --system: requires a chat template; remove it");
    if (session && !folders_plain_name(session))
        return out_fail(err, SEGUE_EARG,
                        "flag --session: \"%.80s\": not a plain name; remove slashes and leading dots",
                        session);
    segue_status st = chat_open_session(c, err);
    if (!st) st = resume(c, err);
    /* The file replaces the conversation of a session, and the flag --system replaces its system
     * message. */
    if (!st && args_has(&c->args, "messages"))
        st = conversation_load(&c->messages, args_text(&c->args, "messages"), err);
    if (!st && system) prompt_set_system(c->messages, system);
    return st;
}

/* Show the messages of a resumed conversation, without what a terminal would obey. */
static void print_history(const struct chat *c)
{
    size_t i;
    json_t *m;
    json_array_foreach(c->messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        struct out_text text = {0};
        prompt_add_content(&text, m);
        if (text.len) text.data[out_clean(text.data, text.len, false)] = 0;
        bool user = role && !strcmp(role, "user"), assistant = role && !strcmp(role, "assistant");
        fprintf(stderr, "%s%s%s\n", user ? "> " : assistant ? "" : role ? role : "", user || assistant ? "" : ": ",
                text.data ? text.data : "");
        free(text.data);
    }
}

/* Without a writable data folder the chat works without a history file. */
static void open_line_edit(struct chat *c)
{
    segue_error err;
    char *data = folders_home("data"), *history = out_printf("%s/chat_history", data);
    if (folders_make(data, &err) == SEGUE_OK) c->line_edit = line_edit_open(history);
    if (!c->line_edit) c->line_edit = line_edit_open(NULL);
    free(history);
    free(data);
    line_edit_set_commands(c->line_edit, chat_command_name);
    c->interactive = line_edit_interactive(c->line_edit);
}

/* first_message: on a pipe the plan is made for the first line. A slash command is no message. */
static const char *read_first(void *arg)
{
    struct chat *c = arg;
    const char *line = line_edit_read(c->line_edit, "> ");
    c->first = line ? out_strdup(line) : NULL;
    return c->first && *c->first != '/' ? c->first : NULL;
}

/* The JSON object of --json. After a failure it contains the error and the turns before it. Returns the exit code. */
static int print_json(const struct chat *c)
{
    json_t *o = c->failure.status ? out_error_json(&c->failure, EXIT_UNAVAILABLE) : json_object();
    json_object_set(o, "messages", c->messages);
    json_object_set(o, "turns", c->turns);
    return out_json_exit(o);
}

/* On a terminal signals are deferred, so that ^C stops an answer and not the program. On a pipe a signal or a failed
 * turn ends the conversation. */
static int run(struct args *args)
{
    struct chat c = {.args = args_copy(args), .messages = json_array(), .turns = json_array()};
    segue_error err;
    if (args_has(args, "record")) {
        segue_status st = record_check_flags(args, &err);
        if (!st) st = record_create(args_text(args, "record"), &err);
        if (st) {
            close_chat(&c);
            return out_error(&err, EXIT_UNAVAILABLE);
        }
    }
    bool recorded = args_has(args, "record");
    const char *prompt = args_text(args, "prompt");
    open_line_edit(&c);
    const struct first_message first = {read_first, &c};
    unsigned flags = recorded ? record_placement_flags(args) : 0;
    int code = placement_open_for(&c.placement, args, flags, c.interactive || prompt ? NULL : &first);
    if (!code) code = meter_open(&c.meter, args, &c.placement);
    if (code) {
        close_chat(&c);
        return code;
    }
    trace_begin(&c.trace, &c.args);
    /* During an answer only another unit can read ahead, while the user types the same one can, too. */
    bool one_unit = report_phase_unit(&c.placement, 0) == report_phase_unit(&c.placement, 1);
    if (!recorded && (!one_unit || c.interactive)) c.read_ahead = read_ahead_open(one_unit);
    segue_status st = apply_flags(&c, &err);
    if (st) {
        code = out_error(&err, EXIT_BAD_INPUT);
        close_chat(&c);
        return code;
    }
    line_edit_set_typed(c.line_edit, chat_typed, &c);
    interrupt_defer(c.interactive); /* ^C stops the answer, not the program */
    if (c.interactive)
        out_note("%s on %s; /help: list of commands, /exit or ^D: quit", c.placement.path, c.placement.unit_info[0].spec);
    if (c.interactive) print_history(&c);
    /* The prompt of -p is the first turn. */
    if (!prompt && c.interactive && c.read_ahead) chat_expect_message(&c);
    bool running = true;
    if (prompt || c.first) running = handle_line(&c, prompt ? prompt : c.first, &code);
    while (running && (c.interactive || !interrupt_pending())) {
        char *line = line_edit_read(c.line_edit, "> ");
        if (!line) break;
        running = handle_line(&c, line, &code);
    }
    if (!c.interactive && interrupt_pending()) code = EXIT_INTERRUPTED;
    if (args_has(args, "save") && !code && sessions_save_to(c.session, args_text(args, "save"), &err))
        code = out_error(&err, EXIT_UNAVAILABLE);
    trace_append(&c.trace, &c.placement, c.session, json_array_size(c.turns));
    if (trace_end(&c.trace, &c.placement, &err) && !code) code = out_error(&err, EXIT_UNAVAILABLE);
    if (args_has(args, "json")) {
        int printed = print_json(&c);
        if (!code) code = printed;
    }
    close_chat(&c);
    return code;
}

/* Flags of chat only. */
static const struct arg_def flag_defs[] = {
    {"prompt", 'p', ARG_TEXT, 0, "TEXT", NULL, 0, 0, "first user message"},
    {"messages", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "continue a conversation in OpenAI's JSON format"},
    {"system", 0, ARG_TEXT, 0, "TEXT", NULL, 0, 0, "system message"},
    {"think", 0, ARG_CHOICE, 0, "on|off", "set by the template", 0, 0,
     "turn the model's thinking mode on or off in the chat template"},
    {"raw", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0,
     "do not apply the chat template"},
    {"keep", 0, ARG_COUNT, 0, "N", NULL, 0, 2147483647.0,
     "when the context is full, drop the oldest turns, except the first N tokens and the system message"},
    ARG_END};
static const struct arg_group command_flags = {"Conversation", flag_defs};
static const struct arg_group *const groups[] = {&command_flags,           &flags_generation, &flags_model,
                                                 &flags_units,   &flags_engine,     &flags_state,
                                                 &flags_reports, &flags_output,     NULL};
const struct command cmd_chat = {.name = "chat",
                                 .summary = "chat with a model",
                                 .groups = groups,
                                 .example = "printf 'Hi!\\nAnd in French?\\n' | segue chat --seed 1 -n 40",
                                 .run = run,
                                 .about = "Interactive conversation with line editing and a history on a terminal. On a "
                                          "pipe every input line is one user message. Commands: /help "
                                          "/exit /clear /undo /retry /system /save /load /set /lora /stats. "
                                          "^C stops the answer, not the program. Each turn "
                                          "reuses the tokens that the session already holds. "
                                          "--session NAME saves the conversation as NAME.json next to the state."};
