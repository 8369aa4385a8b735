/* scheduling.h: what the tests of the scheduler share: engines over tiny models, prompts, the tokens of single sessions, and
 * readers. SPDX-License-Identifier: MIT */
#ifndef SG_TESTS_SCHEDULING_H
#define SG_TESTS_SCHEDULING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "segue.h"
#include "tiny.h"

enum { PROMPTS = 6, ANSWER = 24, LENGTH_MAX = 120 };
static const uint64_t forever = UINT64_MAX;

struct fixture {
    segue_model *model;
    segue_unit *units[2];
    segue_engine *engine;
};

static inline void open_fixture(struct fixture *f, const char *model, const char *first, const char *second,
                                const segue_engine_opts *o)
{
    char folder[512];
    segue_error err;
    memset(f, 0, sizeof *f);
    tiny_folder(folder, sizeof folder, "scheduler", model);
    assert_int_equal(segue_model_open(&f->model, folder, NULL, &err), SEGUE_OK);
    assert_int_equal(segue_unit_open(&f->units[0], first, &err), SEGUE_OK);
    if (second) assert_int_equal(segue_unit_open(&f->units[1], second, &err), SEGUE_OK);
    if (segue_engine_open(&f->engine, f->model, f->units, second ? 2 : 1, o, &err) != SEGUE_OK) fail_msg("%s", err.text);
}

static inline void close_fixture(struct fixture *f)
{
    segue_engine_close(f->engine);
    segue_unit_close(f->units[0]);
    segue_unit_close(f->units[1]);
    segue_model_close(f->model);
}

/* Prompt i: its own length and tokens; the first tokens of all are equal. */
static inline size_t make_prompt(int i, int32_t *out)
{
    size_t n = 5 + (size_t)i * 19 % LENGTH_MAX;
    uint32_t random = (uint32_t)i * 7919u + 1;
    for (size_t k = 0; k < n; k++) {
        random = random * 1664525u + 1013904223u;
        out[k] = k < 4 ? (int32_t)(10 + k) : (int32_t)(3 + (random >> 16) % (TINY_VOCAB - 3));
    }
    return n;
}

static inline segue_sampling sampling_of(int i)
{
    segue_sampling s = SEGUE_INIT(segue_sampling);
    s.ignore_stops = 1;
    if (i % 3 == 1) {
        s.temperature = 0.9f;
        s.top_k = 20;
        s.seed = (uint64_t)i;
    }
    return s;
}

/* The tokens of one session alone. */
static inline void alone(struct fixture *f, const segue_plan *plan, int i, int32_t *out)
{
    int32_t prompt[LENGTH_MAX + 8];
    segue_sampling sampling = sampling_of(i);
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_session *s;
    segue_error err;
    size_t n = make_prompt(i, prompt);
    o.sampling = &sampling;
    o.plan = plan;
    o.no_store = 1;
    assert_int_equal(segue_session_open(&s, f->engine, &o, &err), SEGUE_OK);
    assert_int_equal(segue_session_append(s, prompt, n, &err), SEGUE_OK);
    for (int k = 0; k < ANSWER; k++) assert_int_equal(segue_session_next(s, &out[k], &err), SEGUE_OK);
    segue_session_close(s);
}

static inline segue_request *submit(segue_scheduler *s, int i, size_t max_tokens)
{
    int32_t prompt[LENGTH_MAX + 8];
    segue_sampling sampling = sampling_of(i);
    segue_request_opts o = SEGUE_INIT(segue_request_opts);
    segue_request *q = NULL;
    segue_error err;
    o.tokens_n = make_prompt(i, prompt);
    o.tokens = prompt;
    o.sampling = &sampling;
    o.max_tokens = max_tokens;
    if (segue_request_submit(&q, s, &o, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return q;
}

/* Reads a request to its end; returns the number of tokens. */
static inline size_t read_all(segue_request *q, int32_t *out, size_t cap, segue_status *status)
{
    size_t n = 0, got;
    segue_error err;
    while ((*status = segue_request_read(q, out + n, NULL, cap - n, &got, forever, &err)) == SEGUE_OK) n += got;
    return n;
}

static inline void expect_answer(segue_request *q, const int32_t *want)
{
    int32_t got[ANSWER + 1];
    segue_status status;
    segue_request_info info = SEGUE_INIT(segue_request_info);
    assert_int_equal(read_all(q, got, ANSWER + 1, &status), ANSWER);
    assert_int_equal(status, SEGUE_END);
    assert_memory_equal(got, want, ANSWER * sizeof *got);
    assert_int_equal(segue_request_info_get(q, &info, NULL), SEGUE_OK);
    assert_int_equal(info.finish, SEGUE_FINISH_LENGTH);
    assert_int_equal(info.tokens_out, ANSWER);
}

static inline int write_models(void **state)
{
    char folder[512];
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        if (!tiny_write(&tiny_models[m], tiny_folder(folder, sizeof folder, "scheduler", tiny_models[m].name), (uint32_t)m + 1))
            return 1;
    return 0;
}

static inline int remove_models(void **state)
{
    (void)state;
    tiny_remove("scheduler");
    return 0;
}

#endif
