/* chat.c: a conversation, see chat.h. Every turn renders the whole conversation and reuses the common prefix of the
 * session, so an edited history needs no special case.
 * SPDX-License-Identifier: MIT */
#include "chat/chat.h"

#include <stdlib.h>
#include <string.h>
#include "replay/recording.h"
#include "run/report.h"
#include "run/sessions.h"
#include "term/interrupt.h"

/* The number of turns so far labels the session in the trace. */
void chat_close_session(struct chat *c, segue_session *session)
{
    trace_append(&c->trace, &c->placement, session, json_array_size(c->turns));
    segue_session_close(session);
}

/* The flags of c->args apply. The seed is chosen here if the user gave none. The read-ahead belongs
 * to the old session, so it is dropped first. */
segue_status chat_open_session(struct chat *c, segue_error *err)
{
    struct sampler sampler;
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    segue_status st = sampler_read(&sampler, &c->args, &c->placement.info, err);
    if (!st) st = sampler_constrain(&sampler, &c->args, c->placement.model, err);
    opts.context = (size_t)args_number(&c->args, "context", 0);
    opts.plan = placement_plan(&c->placement);
    opts.sampling = &sampler.sampling;
    opts.adapters = c->placement.adapters;
    opts.adapters_n = c->placement.adapters_n;
    opts.checkpoint_bytes = sessions_checkpoint_bytes(&c->args);
    opts.intervals = trace_capacity(&c->trace);
    opts.verify_tokens = (size_t)args_number(&c->args, "verify", 0);
    opts.no_store = args_has(&c->args, "record");
    opts.drafts = 1;
    segue_session *fresh = NULL;
    read_ahead_reset(c->read_ahead);
    if (!st) st = segue_session_open(&fresh, c->placement.engine, &opts, err);
    if (!st) {
        c->seed = sampler.sampling.seed;
        c->sampling = sampler.sampling;
        chat_close_session(c, c->session);
        c->session = fresh;
    }
    sampler_free(&sampler);
    return st;
}

/* A random seed is kept, so that /set of another flag does not change the random sequence. */
segue_status chat_apply_sampling(struct chat *c, segue_error *err)
{
    struct sampler sampler;
    segue_status st = sampler_read(&sampler, &c->args, &c->placement.info, err);
    if (!st) st = sampler_constrain(&sampler, &c->args, c->placement.model, err);
    /* sampler_read has chosen a new random seed; keep the old one. */
    if (!st && !args_has(&c->args, "seed")) sampler.sampling.seed = c->seed;
    if (!st) st = segue_session_sampling(c->session, &sampler.sampling, err);
    if (!st) c->seed = sampler.sampling.seed;
    sampler_free(&sampler);
    return st;
}

/* Bytes that are not valid UTF-8 become U+FFFD. */
void chat_add_message(struct chat *c, const char *role, const char *text)
{
    json_array_append_new(c->messages, prompt_message(role, text, strlen(text)));
}

/* Tokens of the prompt whose last message is typed[n] and `more`. */
static segue_status expected_prompt(struct chat *c, const char *typed, size_t n, const char *more, struct prompt *out)
{
    segue_error ignored;
    char *text = out_printf("%.*s%s", (int)n, typed, more);
    chat_add_message(c, "user", text);
    free(text);
    json_t *window = chat_window(c);
    segue_status st =
        prompt_conversation(&c->placement, &c->args, window, args_has(&c->args, "raw"), SIZE_MAX / 64, out, &ignored);
    json_decref(window);
    json_array_remove(c->messages, json_array_size(c->messages) - 1);
    return st;
}

/* Tokens with which the next prompt begins, if its message begins with typed[n]: render the conversation with that text and
 * two different continuations, and take what both have in common. A third text could differ in the last token of it; then
 * the read-ahead was for nothing. */
static size_t known_tokens(struct chat *c, const char *typed, size_t n, struct prompt *out)
{
    struct prompt other = {0};
    segue_status st = expected_prompt(c, typed, n, "a", out);
    if (!st) st = expected_prompt(c, typed, n, "I", &other);
    size_t same = 0;
    while (!st && same < out->n && same < other.n && out->ids[same] == other.ids[same]) same++;
    prompt_free(&other);
    return same;
}

/* Without the last token: a newline at the end of the template's text may merge with one of the message. */
void chat_expect_message(struct chat *c)
{
    struct prompt known = {0};
    size_t n = known_tokens(c, "", 0, &known);
    if (n > 1) read_ahead_finish(c->read_ahead, c->session, known.ids, n - 1);
    prompt_free(&known);
    c->typed_ns = 0;
}

/* A long conversation that takes long to tokenize is not read ahead, because the terminal would lag. After a space, the words
 * are certain; after another key, the message may be complete. */
void chat_typed(void *arg, const char *text, size_t n)
{
    enum { LAG_NS = 10000000 };
    struct chat *c = arg;
    struct prompt known = {0};
    if (!c->read_ahead || c->typed_ns > LAG_NS || !n || n > 1 << 20) return;
    uint64_t start_ns = out_now_ns();
    if (text[n - 1] == ' ') {
        size_t same = known_tokens(c, text, n, &known);
        if (same) read_ahead_words(c->read_ahead, known.ids, same);
    } else if (!expected_prompt(c, text, n, "", &known)) {
        read_ahead_whole(c->read_ahead, known.ids, known.n);
    }
    prompt_free(&known);
    c->typed_ns = out_now_ns() - start_ns;
}

/* Set read_ahead in the last report: tokens prefilled ahead for this turn, the time that took during
 * the previous answer, and the time that this turn waited for it. */
static void put_read_ahead(struct chat *c, uint64_t waited_ns)
{
    uint64_t ns;
    size_t n = read_ahead_stats(c->read_ahead, &ns);
    json_t *o = json_object();
    json_object_set_new(o, "tokens", json_integer((json_int_t)n));
    json_object_set_new(o, "ms", out_real((double)ns / 1e6));
    json_object_set_new(o, "waited_ms", out_real((double)waited_ns / 1e6));
    json_object_set_new(c->last, "read_ahead", o);
}

/* Build the report of an answer, append it to the turns, and print its summary line on a terminal. */
static void record_stats(struct chat *c, const struct answer *a, const struct prompt *prompt, uint64_t waited_ns)
{
    struct report r = {.placement = &c->placement,
                       .answer = a,
                       .prompt_ids = prompt->ids,
                       .prompt_n = prompt->n,
                       .reuse_reason = c->reuse_reason ? c->reuse_reason : sessions_reuse_reason(&c->args),
                       .seed = c->seed,
                       .measure_bandwidth = a->finish && strcmp(a->finish, "cancel") != 0,
                       .context = chat_context(c)};
    json_decref(c->last);
    c->last = report_json(&r);
    json_object_set_new(c->last, "dropped_turns", json_integer((json_int_t)c->dropped_turns));
    if (c->read_ahead) put_read_ahead(c, waited_ns);
    json_array_append(c->turns, c->last);
    c->reuse_reason = NULL;
    if (c->interactive && !args_has(&c->args, "quiet")) report_print_line(&r);
}

/* Continue with the session that read ahead, if it holds more of the prompt than the current one,
 * which is then closed. *waited_ns: time spent waiting for the thread. */
static segue_status take_read_ahead(struct chat *c, const struct prompt *prompt, uint64_t *waited_ns, segue_error *err)
{
    segue_session *old = c->session;
    read_ahead_begin_turn(c->read_ahead, &c->session, prompt->ids, prompt->n, waited_ns);
    /* The read-ahead holds less of the prompt than the current session, which stays in use. */
    if (c->session == old) return SEGUE_OK;
    chat_close_session(c, old);
    return chat_apply_sampling(c, err);
}

/* With --record every turn has a separate session, so that its record can be repeated without those of earlier turns. */
static segue_status begin_recorded(struct chat *c, segue_error *err)
{
    if (!args_has(&c->args, "record")) return SEGUE_OK;
    segue_status st = chat_open_session(c, err);
    return st ? st : record_begin(c->session, err);
}

static segue_status end_recorded(struct chat *c, const struct answer *a, const struct prompt *prompt, segue_error *err)
{
    if (!args_has(&c->args, "record")) return SEGUE_OK;
    struct record_source source = {.args = &c->args, .placement = &c->placement, .session = c->session,
                                   .sampling = &c->sampling, .prompt = {prompt->ids, prompt->n},
                                   .answer = {a->ids, a->ids_n}};
    return record_append(args_text(&c->args, "record"), &source, err);
}

/* An interrupt ends the answer but keeps its text in the conversation. */
segue_status chat_answer(struct chat *c, segue_error *err)
{
    struct prompt prompt = {0};
    struct answer a = {0};
    /* The time to first token includes rendering, tokenizing and waiting for the read-ahead. */
    uint64_t start_ns = out_now_ns(), waited_ns = 0;
    segue_status st = chat_render(c, &prompt, err);
    if (!st && prompt.n == 0) st = out_fail(err, SEGUE_EARG, "chat: the prompt is empty; enter a message");
    if (!st) st = take_read_ahead(c, &prompt, &waited_ns, err);
    if (!st) st = begin_recorded(c, err);
    if (!st) st = sessions_sync(c->session, prompt.ids, prompt.n, err);
    if (!st) {
        interrupt_clear();
        interrupt_watch(c->session);
        answer_begin(&a, &c->placement, &c->args, c->session, start_ns, !args_has(&c->args, "json"));
        a.prompt_pending = sessions_pending(c->session);
        a.read_ahead = c->read_ahead;
        a.ends_when_full = true;
        answer_set_meter(&a, &c->meter);
        answer_run(&a);
        interrupt_unwatch(c->session);
        /* An answer that failed before its first text leaves no message. */
        if (a.text.len || a.finish)
            json_array_append_new(c->messages, prompt_message("assistant", a.text.data, a.text.len));
        /* An interrupted answer has a finish reason and is not an error. */
        st = a.finish ? SEGUE_OK : a.status;
        if (st) *err = a.err;
        if (st) err->status = st;
        segue_error write_err;
        if (st != SEGUE_EIO && !args_has(&c->args, "json") && out_write("\n", 1, &write_err)) {
            *err = write_err;
            st = write_err.status;
        }
        if (!st) st = end_recorded(c, &a, &prompt, err);
        record_stats(c, &a, &prompt, waited_ns); /* first: it may measure the machine */
        /* The thread prefills the rest of the answer while the user types. */
        if (c->read_ahead && !st) chat_expect_message(c);
    }
    answer_free(&a);
    prompt_free(&prompt);
    return st;
}

/* A state file contains sampling parameters; those of the flags are applied instead. */
segue_status chat_load_state(struct chat *c, const char *path, segue_error *err)
{
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    segue_session *loaded = NULL;
    opts.context = (size_t)args_number(&c->args, "context", 0);
    opts.plan = placement_plan(&c->placement);
    opts.adapters = c->placement.adapters;
    opts.adapters_n = c->placement.adapters_n;
    opts.checkpoint_bytes = sessions_checkpoint_bytes(&c->args);
    opts.intervals = trace_capacity(&c->trace);
    opts.drafts = 1;
    segue_status st =
        sessions_load(&loaded, c->placement.engine, &opts, &c->args, path, true, &c->reuse_reason, err);
    if (st) return st;
    read_ahead_reset(c->read_ahead);
    chat_close_session(c, c->session);
    c->session = loaded;
    return chat_apply_sampling(c, err);
}
