/* requests.c: many prompts in one process. A line of the file is the command line in JSON; up to N of them
 * are sessions that take one token each per round (segue_session_step). Where one unit reads and another one
 * writes, a thread of its own reads the prompts, so that both units work at once. Replies leave in the order
 * of the lines. Must never do: let one bad line end the others. SPDX-License-Identifier: MIT */
#include "commands/requests.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "term/interrupt.h"
#include "task/report.h"
#include "task/sessions.h"

enum { ADAPTERS_MOST = 256 };

struct request {
    json_t *id;
    struct args args;
    struct choice choice;
    struct prompt prompt;
    struct answer answer;
    segue_session *session;
    segue_adapter *adapters[PLACE_ADAPTERS]; /* instead of the process's, where the line has "lora" */
    size_t adapters_n;
    bool own_adapters;
    size_t number; /* of its line, from 0 */
    bool live;
    json_t *reply; /* set when it is done */
    bool reading;  /* the reader's, under its lock */
    segue_status read;
    segue_error read_err;
};

/* Reads prompts one after the other, on the unit that reads. */
struct reader {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct request *queue[256]; /* as many as --parallel allows */
    size_t n;
    bool on, stop;
};

/* An adapter that some line named; open until the last one is answered, so that lines share it. */
struct named {
    char *text;
    segue_adapter *adapter;
};

struct batch {
    const struct args *args;
    struct place *place;
    struct trace *trace;
    struct reader reader;
    struct named *adapters; /* [adapters_n] */
    size_t adapters_n;
    struct out_text text;
    char *at; /* the next line */
    size_t line;
    struct request **queue; /* [n] started and not yet printed, in order */
    size_t n;
    int code; /* the first failure's exit code */
};

/* --- the reader --- */

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        if (!r->n) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        struct request *q = r->queue[0];
        memmove(r->queue, r->queue + 1, --r->n * sizeof(struct request *));
        pthread_mutex_unlock(&r->lock);
        q->read = segue_session_prefill(q->session, 0, NULL, &q->read_err);
        pthread_mutex_lock(&r->lock);
        q->reading = false;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void reader_open(struct reader *r)
{
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->on = pthread_create(&r->thread, NULL, reader_main, r) == 0;
}

static void reader_take(struct reader *r, struct request *q)
{
    pthread_mutex_lock(&r->lock);
    q->reading = true;
    r->queue[r->n++] = q;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static void reader_close(struct reader *r)
{
    if (!r->on) return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
}

/* --- requests --- */

/* Lists are repeated flags; false and null are flags that are not given. */
static segue_status set_value(struct args *args, const char *key, const json_t *v, segue_error *err)
{
    if (json_is_array(v) && strcmp(key, "ids") != 0) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            segue_status st = set_value(args, key, json_array_get(v, i), err);
            if (st) return st;
        }
        return SEGUE_OK;
    }
    if (json_is_false(v) || json_is_null(v)) return SEGUE_OK;
    if (json_is_true(v) || json_is_string(v))
        return args_set(args, key, json_is_true(v) ? "" : json_string_value(v), err);
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    segue_status st = args_set(args, key, text ? text : "", err);
    free(text);
    return st;
}

/* Flags that make sense for the whole process only. */
static bool of_process(const char *key)
{
    static const char *const names[] = {"model", "unit",    "prefill",  "decode",   "threads", "kv",
                                        "chunk", "requests", "parallel", "json",    "save",
                                        "load",  "session", "quiet",    "m",        "t",       "q",
                                        "store", "store-memory", "store_memory", "store-disk", "store_disk"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(key, names[i])) return true;
    return false;
}

static segue_status take_adapter(struct batch *b, struct request *q, const char *text, segue_error *err)
{
    size_t i = 0;
    if (!text || !*text || q->adapters_n == PLACE_ADAPTERS)
        return out_fail(err, SEGUE_EARG, "requests: line %zu: lora: give at most %d of PATH[=SCALE]", b->line, PLACE_ADAPTERS);
    while (i < b->adapters_n && strcmp(b->adapters[i].text, text) != 0) i++;
    if (i == ADAPTERS_MOST)
        return out_fail(err, SEGUE_ELIMIT, "requests: line %zu: more than %d different adapters; use several files", b->line,
                        ADAPTERS_MOST);
    if (i == b->adapters_n) {
        segue_adapter *opened = NULL;
        segue_status st = place_adapter_open(&opened, b->place->model, text, err);
        if (st) return st;
        b->adapters = out_realloc(b->adapters, (i + 1) * sizeof *b->adapters);
        b->adapters[b->adapters_n++] = (struct named){out_strdup(text), opened};
    }
    q->adapters[q->adapters_n++] = b->adapters[i].adapter;
    return SEGUE_OK;
}

/* A path, or several; null and false: none. */
static segue_status take_adapters(struct batch *b, struct request *q, const json_t *v, segue_error *err)
{
    segue_status st = SEGUE_OK;
    q->own_adapters = true;
    if (json_is_null(v) || json_is_false(v)) return SEGUE_OK;
    if (!json_is_array(v)) return take_adapter(b, q, json_string_value(v), err);
    for (size_t i = 0; i < json_array_size(v) && !st; i++)
        st = take_adapter(b, q, json_string_value(json_array_get(v, i)), err);
    return st;
}

/* A conversation and its tools are values here, files on the command line. */
static segue_status read_line(struct batch *b, struct request *q, const char *line, size_t len,
                              segue_error *err)
{
    json_error_t why;
    json_t *o = json_loadb(line, len, JSON_REJECT_DUPLICATES, &why), *v;
    if (!json_is_object(o)) {
        json_decref(o);
        return out_fail(err, SEGUE_EFORMAT, "requests: line %zu: not a JSON object; give one request a line",
                        b->line);
    }
    q->id = json_incref(json_object_get(o, "id"));
    q->args = args_copy(b->args);
    segue_status st = SEGUE_OK;
    const char *key;
    json_object_foreach(o, key, v)
    {
        if (st || !strcmp(key, "id")) continue;
        if (of_process(key))
            st = out_fail(err, SEGUE_EARG,
                          "requests: line %zu: \"%.40s\" holds for the whole process; put it on the command "
                          "line",
                          b->line, key);
        else if (!strcmp(key, "lora"))
            st = take_adapters(b, q, v, err);
        else if (!strcmp(key, "messages") && json_is_array(v)) {
            json_t *request = json_object(), *copy = json_deep_copy(v);
            json_object_set_new(request, "messages", copy);
            if (json_is_object(json_object_get(o, "tools")) || json_is_array(json_object_get(o, "tools")))
                json_object_set(request, "tools", json_object_get(o, "tools"));
            const char *think = json_string_value(json_object_get(o, "think"));
            if (think) json_object_set_new(request, "enable_thinking", json_boolean(!strcmp(think, "on")));
            st = prompt_chat(b->place->model, request, SIZE_MAX, &q->prompt, err);
            json_decref(request);
        } else if (strcmp(key, "tools") != 0)
            st = set_value(&q->args, key, v, err);
    }
    json_decref(o);
    return st;
}

/* A request comes in when a place is free for it: until then its line is not read. */
static segue_status start(struct batch *b, struct request *q, segue_error *err)
{
    uint64_t begun = out_now_ns();
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    segue_status st = SEGUE_OK;
    if (!q->prompt.given) st = prompt_read(&q->prompt, &q->args, b->place, SIZE_MAX / 64, err);
    if (!st && q->prompt.n == 0)
        st =
            out_fail(err, SEGUE_EARG, "requests: line %zu: no prompt: give prompt, ids or messages", b->line);
    if (!st) st = choice_read(&q->choice, &q->args, &b->place->info, err);
    opts.context = (size_t)args_number(&q->args, "context", 0);
    opts.plan = place_plan(b->place);
    opts.sampling = &q->choice.sampling;
    opts.adapters = q->own_adapters ? q->adapters : b->place->adapters;
    opts.adapters_n = q->own_adapters ? q->adapters_n : b->place->adapters_n;
    opts.spans = trace_spans(b->trace);
    opts.checkpoint_bytes = sessions_checkpoints(&q->args);
    opts.verify_rows = (size_t)args_number(&q->args, "verify", 0);
    if (!st) st = segue_session_open(&q->session, b->place->engine, &opts, err);
    if (!st) st = segue_session_append(q->session, q->prompt.ids, q->prompt.n, err);
    if (st) return st;
    interrupt_watch(q->session);
    answer_begin(&q->answer, b->place, &q->args, q->session, begun, false);
    q->live = q->answer.limit > 0;
    if (!q->live)
        answer_run(&q->answer);
    else if (b->reader.on)
        reader_take(&b->reader, q);
    return SEGUE_OK;
}

/* The reply of a request that ended, and its memory but for that. */
static void settle(struct batch *b, struct request *q, const segue_error *failed)
{
    segue_error err;
    if (failed) {
        q->reply = out_error_json(failed, EXIT_REFUSED);
        if (!b->code) b->code = out_exit_code(failed->status, EXIT_REFUSED);
    } else {
        struct report r = {.place = b->place,
                           .answer = &q->answer,
                           .prompt_ids = q->prompt.ids,
                           .prompt_n = q->prompt.n,
                           .reuse_reason = sessions_reason(&q->args),
                           .seed = q->choice.sampling.seed,
                           .measure_roof = !interrupt_seen()};
        q->reply = report_json(&r);
        if (!q->answer.finish) {
            err = q->answer.err;
            err.status = q->answer.status;
            json_t *failure = out_error_json(&err, EXIT_NOT_HERE);
            json_object_update(q->reply, failure);
            json_decref(failure);
            if (!b->code) b->code = out_exit_code(err.status, EXIT_NOT_HERE);
        }
    }
    json_object_set(q->reply, "id", q->id ? q->id : json_null());
    q->live = false;
    if (q->session) interrupt_unwatch(q->session);
    trace_take(b->trace, b->place, q->session, q->number);
    segue_session_close(q->session);
    q->session = NULL;
    answer_free(&q->answer);
    prompt_free(&q->prompt);
    choice_free(&q->choice);
    args_free(&q->args);
}

/* Take lines until `parallel` requests are live or none is left. */
static void fill(struct batch *b, size_t parallel)
{
    size_t live = 0;
    for (size_t i = 0; i < b->n; i++) live += b->queue[i]->live;
    while (live < parallel && b->at && b->at < b->text.data + b->text.len && !interrupt_seen()) {
        char *line = b->at, *end = memchr(line, '\n', (size_t)(b->text.data + b->text.len - line));
        size_t len = end ? (size_t)(end - line) : (size_t)(b->text.data + b->text.len - line);
        b->at = end ? end + 1 : NULL;
        b->line++;
        if (strspn(line, " \t\r") >= len) continue;
        segue_error err;
        struct request *q = out_alloc(sizeof *q);
        q->number = b->line - 1;
        b->queue = out_realloc(b->queue, (b->n + 1) * sizeof *b->queue);
        b->queue[b->n++] = q;
        segue_status st = read_line(b, q, line, len, &err);
        if (!st) st = start(b, q, &err);
        if (st || !q->live) settle(b, q, st ? &err : NULL);
        live += q->live;
    }
}

/* Requests whose prompt is read, at least one where any lives; those whose reading failed are settled here.
 */
static size_t ready(struct batch *b, struct request **live, size_t parallel)
{
    struct reader *r = &b->reader;
    size_t n = 0, lives = 0;
    do {
        if (r->on) pthread_mutex_lock(&r->lock);
        if (lives && !n) pthread_cond_wait(&r->changed, &r->lock);
        lives = n = 0;
        for (size_t i = 0; i < b->n && n < parallel; i++) {
            lives += b->queue[i]->live;
            if (b->queue[i]->live && !b->queue[i]->reading) live[n++] = b->queue[i];
        }
        if (r->on) pthread_mutex_unlock(&r->lock);
    } while (lives && !n);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (live[i]->read && answer_take(&live[i]->answer, live[i]->read, -1, &live[i]->read_err))
            settle(b, live[i], NULL);
        else
            live[kept++] = live[i];
    }
    return kept;
}

/* One token for every live request. */
static void step(struct batch *b, size_t parallel)
{
    segue_session **sessions = out_alloc(parallel * sizeof *sessions);
    struct request **live = out_alloc(parallel * sizeof *live);
    int32_t *tokens = out_alloc(parallel * sizeof *tokens);
    segue_status *each = out_alloc(parallel * sizeof *each);
    segue_error err = {0};
    size_t n = ready(b, live, parallel);
    for (size_t i = 0; i < n; i++) sessions[i] = live[i]->session;
    segue_status st = n ? segue_session_step(sessions, n, tokens, each, &err) : SEGUE_OK;
    for (size_t i = 0; i < n; i++) {
        segue_status own = st == SEGUE_EARG || st == SEGUE_EUNSUPPORTED ? st : each[i];
        if (answer_take(&live[i]->answer, own, tokens[i], &err)) settle(b, live[i], NULL);
    }
    free(each);
    free(tokens);
    free(live);
    free(sessions);
}

/* Print what is done at the head of the queue. */
static segue_status drain(struct batch *b, segue_error *err)
{
    size_t done = 0;
    segue_status st = SEGUE_OK;
    while (done < b->n && b->queue[done]->reply && !st) {
        st = out_json(b->queue[done]->reply, 0, err);
        json_decref(b->queue[done]->id);
        free(b->queue[done++]);
    }
    if (done) memmove(b->queue, b->queue + done, (b->n -= done) * sizeof *b->queue);
    return st;
}

int requests_run(const struct args *args, struct place *place, struct trace *trace)
{
    struct batch b = {.args = args, .place = place, .trace = trace};
    size_t parallel = (size_t)args_number(args, "parallel", 4);
    segue_error err;
    segue_status st = prompt_file(args_text(args, "requests"), &b.text, &err);
    b.at = b.text.data;
    if (!st && report_phase_unit(place, 0) != report_phase_unit(place, 1)) reader_open(&b.reader);
    while (!st) {
        fill(&b, parallel);
        if (b.n == 0) break;
        step(&b, parallel);
        st = drain(&b, &err);
    }
    interrupt_hold(true);
    reader_close(&b.reader);
    int code = st ? out_error(&err, EXIT_NOT_HERE) : interrupt_seen() ? EXIT_INTERRUPTED : b.code;
    for (size_t i = 0; i < b.n; i++) {
        if (b.queue[i]->live) settle(&b, b.queue[i], &err);
        json_decref(b.queue[i]->reply);
        json_decref(b.queue[i]->id);
        free(b.queue[i]);
    }
    for (size_t i = 0; i < b.adapters_n; i++) {
        segue_adapter_close(b.adapters[i].adapter);
        free(b.adapters[i].text);
    }
    free(b.adapters);
    free(b.queue);
    free(b.text.data);
    return code;
}
