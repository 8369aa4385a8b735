/* cmd_chat.c: `segue chat`: a conversation, one line a turn. Each turn renders the whole conversation again
 * and keeps of the session what did not change; the rest is computed. Commands are in chat_commands.c.
 * SPDX-License-Identifier: MIT */
#include "commands/chat.h"
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "task/folders.h"
#include "term/interrupt.h"
#include "task/machine.h"
#include "task/report.h"
#include "task/sessions.h"

void chat_leave(struct chat *c, segue_session *session)
{
    trace_take(&c->trace, &c->place, session, json_array_size(c->turns));
    segue_session_close(session);
}

/* The old session stays when the new one cannot be opened. */
segue_status chat_open_session(struct chat *c, segue_error *err)
{
    struct choice choice;
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    segue_status st = choice_read(&choice, &c->args, &c->place.info, err);
    opts.context = (size_t)args_number(&c->args, "context", 0);
    opts.plan = place_plan(&c->place);
    opts.sampling = &choice.sampling;
    opts.adapters = c->place.adapters;
    opts.adapters_n = c->place.adapters_n;
    opts.checkpoint_bytes = sessions_checkpoints(&c->args);
    opts.spans = trace_spans(&c->trace);
    opts.verify_rows = (size_t)args_number(&c->args, "verify", 0);
    segue_session *fresh = NULL;
    ahead_forget(c->ahead);
    if (!st) st = segue_session_open(&fresh, c->place.engine, &opts, err);
    if (!st) {
        c->seed = choice.sampling.seed;
        chat_leave(c, c->session);
        c->session = fresh;
    }
    choice_free(&choice);
    return st;
}

/* A seed that nobody named stays, so that /set of something else does not change the stream of choices. */
segue_status chat_sampling(struct chat *c, segue_error *err)
{
    struct choice choice;
    segue_status st = choice_read(&choice, &c->args, &c->place.info, err);
    if (!st && !args_has(&c->args, "seed")) choice.sampling.seed = c->seed;
    if (!st) st = segue_session_sampling(c->session, &choice.sampling, err);
    if (!st) c->seed = choice.sampling.seed;
    choice_free(&choice);
    return st;
}

/* The tokens of the conversation so far, ready for the next answer. */
static segue_status render(struct chat *c, struct prompt *out, segue_error *err)
{
    if (c->place.info.has_template && !args_has(&c->args, "raw")) {
        json_t *request = json_object();
        json_object_set(request, "messages", c->messages);
        prompt_think(request, &c->args);
        segue_status st = prompt_chat(c->place.model, request, SIZE_MAX / 64, out, err);
        json_decref(request);
        return st;
    }
    /* Without a template the turns stand one after the other, as they are. */
    struct out_text text = {0};
    size_t i;
    json_t *m;
    json_array_foreach(c->messages, i, m)
        out_addf(&text, "%s", json_string_value(json_object_get(m, "content")));
    segue_status st =
        prompt_tokenize(c->place.model, text.data ? text.data : "", text.len, 0, SIZE_MAX / 64, out, err);
    free(text.data);
    return st;
}

/* What will stand before the next words, whatever they are: two next turns are rendered, and what they share is known.
 * The last token may yet melt into the words. */
static void tell_known(struct chat *c)
{
    struct prompt two[2] = {{0}};
    segue_error ignored;
    segue_status st = SEGUE_OK;
    for (int i = 0; i < 2 && !st; i++) {
        chat_add(c, "user", i ? "a" : "I");
        st = render(c, &two[i], &ignored);
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
    size_t same = 0;
    while (!st && same < two[0].n && same < two[1].n && two[0].ids[same] == two[1].ids[same]) same++;
    if (same > 1) ahead_known(c->ahead, two[0].ids, same - 1);
    prompt_free(&two[0]);
    prompt_free(&two[1]);
}

/* What was read before the turn came, and how long that took beside the last answer. */
static void put_ahead(struct chat *c, uint64_t waited_ns)
{
    uint64_t ns;
    size_t n = ahead_tokens(c->ahead, &ns);
    json_t *o = json_object();
    json_object_set_new(o, "tokens", json_integer((json_int_t)n));
    json_object_set_new(o, "ms", out_real((double)ns / 1e6));
    json_object_set_new(o, "waited_ms", out_real((double)waited_ns / 1e6));
    json_object_set_new(c->last, "ahead", o);
}

/* On a pipe only --json asks for them. */
static void keep_figures(struct chat *c, const struct answer *a, const struct prompt *prompt, uint64_t waited_ns)
{
    struct report r = {.place = &c->place,
                       .answer = a,
                       .prompt_ids = prompt->ids,
                       .prompt_n = prompt->n,
                       .reuse_reason = c->reuse_reason ? c->reuse_reason : sessions_reason(&c->args),
                       .seed = c->seed,
                       .measure_roof = a->finish && strcmp(a->finish, "cancel") != 0};
    json_decref(c->last);
    c->last = report_json(&r);
    if (c->ahead) put_ahead(c, waited_ns);
    json_array_append(c->turns, c->last);
    c->reuse_reason = NULL;
    if (c->edited && !args_has(&c->args, "quiet")) report_line(&r);
}

/* The session that read ahead goes on in place of the old one. */
static segue_status take_up(struct chat *c, const struct prompt *prompt, uint64_t *waited_ns, segue_error *err)
{
    segue_session *old = c->session;
    ahead_turn(c->ahead, &c->session, prompt->ids, prompt->n, waited_ns);
    if (c->session == old) return SEGUE_OK;
    chat_leave(c, old);
    return chat_sampling(c, err);
}

/* An interrupt ends the answer, not the turn: what was said stays in the conversation. */
segue_status chat_answer(struct chat *c, segue_error *err)
{
    struct prompt prompt = {0};
    struct answer a = {0};
    uint64_t begun = out_now_ns(), waited_ns = 0;
    segue_status st = render(c, &prompt, err);
    if (!st && prompt.n == 0) st = out_fail(err, SEGUE_EARG, "chat: the prompt is empty; write something");
    if (!st) st = take_up(c, &prompt, &waited_ns, err);
    if (!st) st = sessions_follow(c->session, prompt.ids, prompt.n, err);
    if (!st) {
        interrupt_forget();
        interrupt_watch(c->session);
        answer_begin(&a, &c->place, &c->args, c->session, begun, !args_has(&c->args, "json"));
        a.waiting = sessions_waiting(c->session);
        a.ahead = c->ahead;
        answer_meter(&a, &c->meter);
        answer_run(&a);
        interrupt_unwatch(c->session);
        if (a.text.len || a.finish)
            json_array_append_new(c->messages, prompt_message("assistant", a.text.data, a.text.len));
        st = a.finish ? SEGUE_OK : a.status;
        if (st) *err = a.err;
        if (st) err->status = st;
        segue_error lost;
        if (st != SEGUE_EIO && !args_has(&c->args, "json") && out_write("\n", 1, &lost)) {
            *err = lost;
            st = lost.status;
        }
        if (c->ahead && !st) tell_known(c);
        keep_figures(c, &a, &prompt, waited_ns);
    }
    answer_free(&a);
    prompt_free(&prompt);
    return st;
}

/* --session NAME: the state, and beside it the conversation it belongs to. */
static segue_status keep_session(struct chat *c, segue_error *err)
{
    if (!args_has(&c->args, "session")) return SEGUE_OK;
    segue_status st = sessions_save(&c->args, c->session, err);
    char *path = sessions_file(args_text(&c->args, "session"), "json");
    if (!st) st = chat_save_messages(c, path, err);
    free(path);
    return st;
}

/* The conversation comes back with the state; a session without one starts with both empty. */
static segue_status resume(struct chat *c, segue_error *err)
{
    char *state = sessions_path(&c->args), *messages = NULL;
    segue_status st = SEGUE_OK;
    if (args_has(&c->args, "session")) {
        messages = sessions_file(args_text(&c->args, "session"), "json");
        if (folders_is_file(messages)) st = chat_load_messages(c, messages, err);
    }
    if (!st && state && (args_has(&c->args, "load") || folders_is_file(state)))
        st = chat_load_state(c, state, err);
    free(messages);
    free(state);
    return st;
}

void chat_add(struct chat *c, const char *role, const char *text)
{
    json_array_append_new(c->messages, prompt_message(role, text, strlen(text)));
}

/* The system message is the first one, or there is none. */
void chat_set_system(struct chat *c, const char *text)
{
    json_t *first = json_array_get(c->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    if (role && !strcmp(role, "system")) json_array_remove(c->messages, 0);
    if (text && *text) json_array_insert_new(c->messages, 0, prompt_message("system", text, strlen(text)));
}

/* One line; false: the conversation ends. A failure that only concerns this turn leaves the rest alone. */
static bool turn(struct chat *c, const char *line, int *code)
{
    segue_error err;
    if (line[0] == '/' && line[1]) {
        bool go_on = true;
        segue_status st = chat_command(c, line + 1, &go_on, &err);
        if (st && !c->edited && !*code) *code = out_exit_code(st, EXIT_NOT_HERE);
        if (st) fprintf(stderr, "segue: %s\n", err.text);
        return go_on && st != SEGUE_EIO;
    }
    if (!*line) return true;
    size_t before = json_array_size(c->messages);
    chat_add(c, "user", line);
    segue_status st = chat_answer(c, &err);
    if (!st) st = keep_session(c, &err);
    if (!st) return true;
    while (json_array_size(c->messages) > before)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    int failure = out_exit_code(st, EXIT_NOT_HERE);
    fprintf(stderr, "segue: %s\n", err.text);
    if (c->edited && st != SEGUE_EIO && st != SEGUE_ELOST) return true;
    *code = failure;
    c->failure = err;
    c->failure.status = st;
    return false;
}

static void close_all(struct chat *c)
{
    ahead_close(c->ahead);
    segue_session_close(c->session);
    place_close(&c->place);
    json_decref(c->messages);
    json_decref(c->turns);
    json_decref(c->last);
    lines_close(c->lines);
    args_free(&c->args);
}

/* What the flags ask for, before the first turn. The unit stands ready by now. */
static segue_status begin(struct chat *c, segue_error *err)
{
    if (!c->place.info.has_tokenizer)
        return out_fail(err, SEGUE_EUNSUPPORTED,
                        "chat: %.200s: the model has no tokenizer; use segue run --ids", c->place.path);
    const char *system = args_text(&c->args, "system"), *session = args_text(&c->args, "session");
    if (system && (!c->place.info.has_template || args_has(&c->args, "raw")))
        return out_fail(err, SEGUE_EARG, "flag --system: needs a chat template; leave it out");
    if (session && !folders_plain_name(session))
        return out_fail(err, SEGUE_EARG,
                        "flag --session: \"%.80s\": no plain name; leave out slashes and leading dots",
                        session);
    segue_status st = chat_open_session(c, err);
    if (!st) st = resume(c, err);
    if (!st && args_has(&c->args, "messages"))
        st = chat_load_messages(c, args_text(&c->args, "messages"), err);
    if (!st && system) chat_set_system(c, system);
    return st;
}

static int run(struct args *args)
{
    struct chat c = {.args = args_copy(args), .messages = json_array(), .turns = json_array()};
    segue_error err;
    int code = place_open(&c.place, args, 0);
    if (!code) code = meter_open(&c.meter, args, &c.place);
    if (code) {
        close_all(&c);
        return code;
    }
    trace_begin(&c.trace, &c.args);
    if (report_phase_unit(&c.place, 0) != report_phase_unit(&c.place, 1)) c.ahead = ahead_open();
    segue_status st = begin(&c, &err);
    if (st) {
        code = out_error(&err, EXIT_REFUSED);
        close_all(&c);
        return code;
    }
    char *data = folders_home("data"), *history = out_printf("%s/chat_history", data);
    if (folders_make(data, &err) == SEGUE_OK) c.lines = lines_open(history);
    if (!c.lines) c.lines = lines_open(NULL);
    free(history);
    free(data);
    c.edited = lines_edited(c.lines);
    interrupt_hold(c.edited); /* ^C stops the answer, not the program */
    if (c.edited)
        out_note("%s on %s; /help lists commands, /exit or ^D ends", c.place.path, c.place.unit_info[0].spec);
    const char *prompt = args_text(args, "prompt");
    bool go_on = !prompt || turn(&c, prompt, &code);
    while (go_on && (c.edited || !interrupt_seen())) {
        char *line = lines_next(c.lines, "> ");
        if (!line) break;
        go_on = turn(&c, line, &code);
    }
    if (!c.edited && interrupt_seen()) code = EXIT_INTERRUPTED;
    if (args_has(args, "save") && !code && sessions_save_to(c.session, args_text(args, "save"), &err))
        code = out_error(&err, EXIT_NOT_HERE);
    trace_take(&c.trace, &c.place, c.session, json_array_size(c.turns));
    if (trace_end(&c.trace, &c.place, &err) && !code) code = out_error(&err, EXIT_NOT_HERE);
    if (args_has(args, "json")) {
        json_t *o = c.failure.status ? out_error_json(&c.failure, EXIT_NOT_HERE) : json_object();
        json_object_set(o, "messages", c.messages);
        json_object_set(o, "turns", c.turns);
        int printed = out_json_exit(o);
        if (!code) code = printed;
    }
    close_all(&c);
    return code;
}

static const struct arg_def own_defs[] = {
    {"prompt", 'p', ARG_TEXT, 0, "TEXT", NULL, 0, 0, "the first turn"},
    {"messages", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "go on from a conversation in OpenAI's JSON form"},
    {"system", 0, ARG_TEXT, 0, "TEXT", NULL, 0, 0, "the system message"},
    {"think", 0, ARG_CHOICE, 0, "on|off", "the template's", 0, 0,
     "ask the template for thinking, or for none"},
    {"raw", 0, ARG_SWITCH, ARG_MINOR, NULL, NULL, 0, 0,
     "take the turns as they are, without the chat template"},
    ARG_END};
static const struct arg_group own = {"Conversation", own_defs};
static const struct arg_group *const groups[] = {&own,           &flags_generation, &flags_model,
                                                 &flags_units,   &flags_engine,     &flags_state,
                                                 &flags_reports, &flags_output,     NULL};
const struct command cmd_chat = {.name = "chat",
                                 .summary = "talk with a model",
                                 .groups = groups,
                                 .example = "printf 'Hi!\\nAnd in French?\\n' | segue chat --seed 1 -n 40",
                                 .run = run,
                                 .about = "A conversation on the terminal, with line editing and history; on "
                                          "a pipe one line is one turn. Commands: /help "
                                          "/exit /clear /undo /retry /system /save /load /set /lora /stats. "
                                          "^C stops the answer, not the program. Each turn "
                                          "keeps what the session already holds of the conversation. "
                                          "--session NAME also keeps the conversation in "
                                          "NAME.json beside the state."};
