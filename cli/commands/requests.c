/* requests.c: many prompts in one process. Each line of the file is a request: a JSON object whose keys are flag
 * names. Up to --parallel requests are live in the library's scheduler, driven by this thread: one run computes a token
 * for each running answer, and chunks of prompts. If prefill and decode run on different units, a thread of the library
 * computes the prompts, so that both units work at the same time. Replies are printed in the order of the lines. An
 * invalid line gets an error reply and does not affect the others.
 * SPDX-License-Identifier: MIT */
#include "commands/requests.h"

#include <stdlib.h>
#include <string.h>
#include "term/interrupt.h"
#include "run/report.h"
#include "run/sessions.h"

enum {
    MAX_ADAPTERS = 256, /* different adapters in one file */
    WAIT_NS = 100000000 /* interval of the checks for an interrupt */
};

/* One line of the input. Owned by the queue of struct batch until its reply is printed. */
struct batch_request {
    json_t *id;       /* value of "id"; NULL: none */
    struct args args; /* flags of the command line, overridden by the keys of the line */
    struct sampler sampler;
    struct prompt prompt;
    struct answer answer;
    segue_session *session;
    segue_adapter *adapters[PLACEMENT_ADAPTERS]; /* replace the adapters of the command line if has_adapters */
    size_t adapters_n;
    bool has_adapters; /* the line has the key "lora" */
    size_t number;     /* line number, from 0 */
    bool live;         /* started and still generating */
    json_t *reply;     /* NULL until finished */
    segue_request *request; /* while live; it uses the session */
};

/* An adapter named by at least one line. Stays open until the batch ends, so that lines can share it. */
struct shared_adapter {
    char *text; /* PATH[=SCALE] as written; the key */
    segue_adapter *adapter;
};

/* The whole file while it is processed. */
struct batch {
    const struct args *args;
    struct placement *placement;
    struct trace *trace;
    segue_scheduler *scheduler;
    uint64_t seen; /* of segue_scheduler_wait */
    struct shared_adapter *adapters; /* [adapters_n] */
    size_t adapters_n;
    struct out_text text;   /* the whole input file */
    char *next_line;        /* first unread byte of text; NULL: all lines were read */
    size_t line;            /* lines read so far */
    struct batch_request **queue; /* [n] started and not yet printed, in input order */
    size_t n;
    size_t verified, recomputed; /* hand-offs that --verify compared, and those that differed by more than the bound */
    int code; /* exit code of the first failure; 0: none */
};

/* Set a flag from a JSON value. Lists repeat the flag; false and null leave it unset; true sets a switch. */
static segue_status set_flag(struct args *args, const char *key, const json_t *v, segue_error *err)
{
    /* A list of ids is one value. */
    if (json_is_array(v) && strcmp(key, "ids") != 0) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            segue_status st = set_flag(args, key, json_array_get(v, i), err);
            if (st) return st;
        }
        return SEGUE_OK;
    }
    if (json_is_false(v) || json_is_null(v)) return SEGUE_OK;
    /* A switch takes no value; args_set checks that. */
    if (json_is_true(v) || json_is_string(v))
        return args_set(args, key, json_is_true(v) ? "" : json_string_value(v), err);
    /* Numbers and lists of ids are passed as text, as on the command line. */
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    segue_status st = args_set(args, key, text ? text : "", err);
    free(text);
    return st;
}

/* True for flags that apply to the whole process. They are not allowed in a line. */
static bool is_process_flag(const char *key)
{
    static const char *const names[] = {"model",    "unit",  "prefill", "decode",  "threads", "kv",
                                        "chunk",    "json",  "save",    "load",    "session", "quiet",
                                        "requests", "m",     "t",       "q",       "parallel", "store",
                                        "store-memory", "store-disk", "verify-every", "yes", "y"};
    /* Longer keys cannot be in the list. */
    char name[32];
    snprintf(name, sizeof name, "%s", key);
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-'; /* both forms are accepted, see args_find */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

/* Add an adapter, PATH[=SCALE], to a request. It is loaded once and shared by all lines with the
 * same text. */
static segue_status add_adapter(struct batch *b, struct batch_request *q, const char *text, segue_error *err)
{
    size_t i = 0;
    if (!text || !*text || q->adapters_n == PLACEMENT_ADAPTERS)
        return out_fail(err, SEGUE_EARG, "requests: line %zu: lora: expected at most %d adapters as PATH[=SCALE]", b->line,
                        PLACEMENT_ADAPTERS);
    /* The text is the key: the same file with another scale is another adapter. */
    while (i < b->adapters_n && strcmp(b->adapters[i].text, text) != 0) i++;
    if (i == MAX_ADAPTERS)
        return out_fail(err, SEGUE_ELIMIT, "requests: line %zu: more than %d different adapters; split the file", b->line,
                        MAX_ADAPTERS);
    if (i == b->adapters_n) {
        segue_adapter *opened = NULL;
        segue_status st = placement_load_adapter(&opened, b->placement->model, text, err);
        if (st) return st;
        b->adapters = out_realloc(b->adapters, (i + 1) * sizeof *b->adapters);
        b->adapters[b->adapters_n++] = (struct shared_adapter){out_strdup(text), opened};
    }
    q->adapters[q->adapters_n++] = b->adapters[i].adapter;
    return SEGUE_OK;
}

/* The key "lora": one PATH[=SCALE], a list of them, or null or false for none. */
static segue_status add_adapters(struct batch *b, struct batch_request *q, const json_t *v, segue_error *err)
{
    segue_status st = SEGUE_OK;
    q->has_adapters = true;
    if (json_is_null(v) || json_is_false(v)) return SEGUE_OK;
    if (!json_is_array(v)) return add_adapter(b, q, json_string_value(v), err);
    for (size_t i = 0; i < json_array_size(v) && !st; i++)
        st = add_adapter(b, q, json_string_value(json_array_get(v, i)), err);
    return st;
}

/* Parse line[len] into q: id, flags, adapters and messages. messages and tools are JSON values
 * here, not file names as on the command line. */
static segue_status parse_request(struct batch *b, struct batch_request *q, const char *line, size_t len,
                              segue_error *err)
{
    json_error_t json_err;
    json_t *o = out_json_load(line, len, JSON_REJECT_DUPLICATES, &json_err), *v;
    if (!json_is_object(o)) {
        json_decref(o);
        return out_fail(err, SEGUE_EFORMAT, "requests: line %zu: not a JSON object; expected one request per line",
                        b->line);
    }
    /* Copied to the reply as it is, also for an invalid request. */
    q->id = json_incref(json_object_get(o, "id"));
    /* The flags of the command line are the defaults of every request. */
    q->args = args_copy(b->args);
    segue_status st = SEGUE_OK;
    const char *key;
    json_object_foreach(o, key, v)
    {
        if (st || !strcmp(key, "id")) continue;
        if (is_process_flag(key))
            st = out_fail(err, SEGUE_EARG,
                          "requests: line %zu: \"%.40s\" applies to the whole process; give it on the command "
                          "line",
                          b->line, key);
        else if (!strcmp(key, "lora"))
            st = add_adapters(b, q, v, err);
        else if (!strcmp(key, "messages") && json_is_array(v)) {
            json_t *request = json_object(), *copy = json_deep_copy(v);
            json_object_set_new(request, "messages", copy);
            if (json_is_object(json_object_get(o, "tools")) || json_is_array(json_object_get(o, "tools")))
                json_object_set(request, "tools", json_object_get(o, "tools"));
            /* In a request "messages" is rendered here, so "think" must be read here, too. */
            const char *think = json_string_value(json_object_get(o, "think"));
            if (think) json_object_set_new(request, "enable_thinking", json_boolean(!strcmp(think, "on")));
            st = prompt_chat(b->placement->model, request, SIZE_MAX, &q->prompt, err);
            json_decref(request);
        } else if (strcmp(key, "tools") != 0)
            st = set_flag(&q->args, key, v, err);
    }
    json_decref(o);
    return st;
}

/* Tokenize the prompt, open the session and start the answer. Called when a slot is free, so the
 * time to first token does not include waiting for one. */
static segue_status start_request(struct batch *b, struct batch_request *q, segue_error *err)
{
    uint64_t start_ns = out_now_ns();
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    segue_status st = SEGUE_OK;
    if (!q->prompt.given) st = prompt_read(&q->prompt, &q->args, b->placement, NULL, SIZE_MAX / 64, err);
    if (!st && q->prompt.n == 0)
        st =
            out_fail(err, SEGUE_EARG, "requests: line %zu: no prompt; expected the key prompt, ids or messages", b->line);
    if (!st) st = sampler_read(&q->sampler, &q->args, &b->placement->info, err);
    if (!st) st = sampler_constrain(&q->sampler, &q->args, b->placement->model, err);
    opts.context = (size_t)args_number(&q->args, "context", 0);
    opts.plan = placement_plan(b->placement);
    opts.sampling = &q->sampler.sampling;
    opts.adapters = q->has_adapters ? q->adapters : b->placement->adapters;
    opts.adapters_n = q->has_adapters ? q->adapters_n : b->placement->adapters_n;
    opts.intervals = trace_capacity(b->trace);
    opts.checkpoint_bytes = sessions_checkpoint_bytes(&q->args);
    if (q->number % (size_t)args_number(b->args, "verify-every", 1) == 0)
        opts.verify_tokens = (size_t)args_number(&q->args, "verify", 0);
    if (!st) st = segue_session_open(&q->session, b->placement->engine, &opts, err);
    if (!st) st = segue_session_append(q->session, q->prompt.ids, q->prompt.n, err);
    if (st) return st;
    interrupt_watch(q->session);
    answer_begin(&q->answer, b->placement, &q->args, q->session, start_ns, false);
    /* A limit of 0 needs no decode step: compute the prompt and finish. */
    q->live = q->answer.limit > 0;
    if (!q->live)
        answer_run(&q->answer);
    if (!q->live) return SEGUE_OK;
    segue_request_opts request = SEGUE_INIT(segue_request_opts);
    request.session = q->session;
    request.max_tokens = q->answer.limit;
    return segue_request_submit(&q->request, b->scheduler, &request, err);
}

/* Build the reply of a request and free everything but the reply. failed: the error of a request
 * that could not be started; NULL otherwise. */
static void finish_request(struct batch *b, struct batch_request *q, const segue_error *failed)
{
    segue_error err;
    segue_request_close(q->request); /* from here on the session is ours */
    q->request = NULL;
    if (failed) {
        q->reply = out_error_json(failed, EXIT_BAD_INPUT);
        if (!b->code) b->code = out_exit_code(failed->status, EXIT_BAD_INPUT);
    } else {
        struct report r = {.placement = b->placement,
                           .answer = &q->answer,
                           .prompt_ids = q->prompt.ids,
                           .prompt_n = q->prompt.n,
                           .reuse_reason = sessions_reuse_reason(&q->args),
                           .seed = q->sampler.sampling.seed,
                           .measure_bandwidth = !interrupt_pending()};
        q->reply = report_json(&r);
        b->verified += q->answer.at_end.verify.tokens > 0;
        b->recomputed += q->answer.at_end.verify.tokens && !q->answer.at_end.verify.ok;
        if (!q->answer.finish) {
            err = q->answer.err;
            err.status = q->answer.status;
            /* The reply contains the text so far and the error. */
            json_t *failure = out_error_json(&err, EXIT_UNAVAILABLE);
            json_object_update(q->reply, failure);
            json_decref(failure);
            if (!b->code) b->code = out_exit_code(err.status, EXIT_UNAVAILABLE);
        }
    }
    /* null if the request has none. */
    json_object_set(q->reply, "id", q->id ? q->id : json_null());
    q->live = false;
    if (q->session) interrupt_unwatch(q->session);
    trace_append(b->trace, b->placement, q->session, q->number);
    segue_session_close(q->session);
    q->session = NULL;
    answer_free(&q->answer);
    prompt_free(&q->prompt);
    sampler_free(&q->sampler);
    args_free(&q->args);
}

/* Start requests until `parallel` are live or no line is left. */
static void admit(struct batch *b, size_t parallel)
{
    size_t live = 0;
    for (size_t i = 0; i < b->n; i++) live += b->queue[i]->live;
    while (live < parallel && b->next_line && b->next_line < b->text.data + b->text.len && !interrupt_pending()) {
        char *line = b->next_line, *end = memchr(line, '\n', (size_t)(b->text.data + b->text.len - line));
        size_t len = end ? (size_t)(end - line) : (size_t)(b->text.data + b->text.len - line);
        b->next_line = end ? end + 1 : NULL;
        b->line++;
        /* Empty lines have no reply. */
        if (strspn(line, " \t\r") >= len) continue;
        segue_error err;
        struct batch_request *q = out_alloc(sizeof *q);
        q->number = b->line - 1;
        b->queue = out_realloc(b->queue, (b->n + 1) * sizeof *b->queue);
        b->queue[b->n++] = q;
        segue_status st = parse_request(b, q, line, len, &err);
        if (!st) st = start_request(b, q, &err);
        if (st || !q->live) finish_request(b, q, st ? &err : NULL);
        live += q->live;
    }
}

/* Collect the result of the last run for a request: at most one token. Between runs no thread uses the session of a running
 * answer, so its counters may be read. */
static void take_result(struct batch *b, struct batch_request *q)
{
    int32_t token = -1;
    size_t n = 0;
    segue_error err = {0};
    segue_request_info info = SEGUE_INIT(segue_request_info);
    segue_status st = segue_request_read(q->request, &token, NULL, 1, &n, 0, &err);
    if (!st && !n) return;
    /* The run gave no token although the answer is not complete: the context is full, which the next step reports. */
    if (st == SEGUE_END) st = segue_session_next(q->session, &token, &err);
    else if (!st && !segue_request_info_get(q->request, &info, NULL) && info.finish == SEGUE_FINISH_STOP) st = SEGUE_END;
    if (answer_push(&q->answer, st, token, &err)) finish_request(b, q, NULL);
}

/* One run, and its results. While the library computes prompts only, wait for them. */
static segue_status step_all(struct batch *b, segue_error *err)
{
    segue_status st = segue_scheduler_run(b->scheduler, err);
    if (st == SEGUE_END) st = segue_scheduler_wait(b->scheduler, &b->seen, WAIT_NS, err);
    if (st < 0) return st;
    for (size_t i = 0; i < b->n; i++)
        if (b->queue[i]->live) take_result(b, b->queue[i]);
    return SEGUE_OK;
}

/* Print the replies at the head of the queue, up to the first request that is not finished, so that
 * replies keep the order of the lines. */
static segue_status print_finished(struct batch *b, segue_error *err)
{
    size_t done = 0;
    segue_status st = SEGUE_OK;
    while (done < b->n && b->queue[done]->reply && !st) {
        st = out_json(b->queue[done]->reply, 0, err);
        json_decref(b->queue[done]->id);
        free(b->queue[done++]);
    }
    /* Remove the printed requests from the queue. */
    if (done) memmove(b->queue, b->queue + done, (b->n -= done) * sizeof *b->queue);
    return st;
}

/* With --verify: how many hand-offs were compared. Without the line, a run that compared none looks like a correct one. */
static void note_verified(const struct batch *b)
{
    bool two = report_phase_unit(b->placement, 0) != report_phase_unit(b->placement, 1);
    if (args_has(b->args, "quiet") || (!b->verified && !args_number(b->args, "verify", 0))) return;
    out_note("requests: %zu hand-off%s verified, %zu recomputed on the decode unit%s", b->verified, b->verified == 1 ? "" : "s",
             b->recomputed, two ? "" : "; prefill and decode run on one unit");
}

int requests_run(const struct args *args, struct placement *placement, struct trace *trace)
{
    struct batch b = {.args = args, .placement = placement, .trace = trace};
    /* Also the largest number of sequences in a batch. */
    size_t parallel = (size_t)args_number(args, "parallel", 4);
    segue_error err;
    segue_status st = prompt_file(args_text(args, "requests"), &b.text, &err);
    b.next_line = b.text.data;
    segue_scheduler_opts opts = SEGUE_INIT(segue_scheduler_opts);
    /* 2: a thread of the library for the prompts */
    opts.manual = report_phase_unit(placement, 0) != report_phase_unit(placement, 1) ? 2 : 1;
    opts.running = opts.waiting = parallel;
    opts.plan = placement_plan(placement);
    opts.target_ns = UINT64_MAX / 2; /* replies are printed when complete: throughput matters more than latency */
    if (!st) st = segue_scheduler_open(&b.scheduler, placement->engine, &opts, &err);
    while (!st) {
        admit(&b, parallel);
        if (b.n == 0) break;
        st = step_all(&b, &err);
        if (!st) st = print_finished(&b, &err);
    }
    int code = st ? out_error(&err, EXIT_UNAVAILABLE) : interrupt_pending() ? EXIT_INTERRUPTED : b.code;
    for (size_t i = 0; i < b.n; i++) {
        /* Requests are still live only if the loop ended with an error. */
        if (b.queue[i]->live) finish_request(&b, b.queue[i], &err);
        json_decref(b.queue[i]->reply);
        json_decref(b.queue[i]->id);
        free(b.queue[i]);
    }
    note_verified(&b);
    segue_scheduler_close(b.scheduler);
    for (size_t i = 0; i < b.adapters_n; i++) {
        segue_adapter_close(b.adapters[i].adapter);
        free(b.adapters[i].text);
    }
    free(b.adapters);
    free(b.queue);
    free(b.text.data);
    return code;
}
