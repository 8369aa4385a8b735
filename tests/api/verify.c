/* verify.c: hand-offs that are checked: a sound one is said to be and changes no token; one that brings other numbers is
 * found, in what is handed over in front of the compared rows and behind them, and the decoder answers as if it had read
 * the prompt itself. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/transfer/bridge.h"
#include "engine/placement/units.h"
#include "segue.h"
#include "tiny.h"

enum { PROMPT = 30, TOKENS = 12, ROWS = 4 };

static segue_model *models[TINY_MODELS];
static int32_t prompt[PROMPT];

static int begin(void **state)
{
    (void)state;
    for (int i = 0; i < PROMPT; i++) prompt[i] = (i * 23 + 5) % 93 + 3;
    for (int i = 0; i < TINY_MODELS; i++) {
        char folder[512];
        segue_error err;
        tiny_folder(folder, sizeof folder, "verify", tiny_models[i].name);
        if (!tiny_write(&tiny_models[i], folder, 21)) return -1;
        if (segue_model_open(&models[i], folder, NULL, &err) != SEGUE_OK) return -1;
    }
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_MODELS; i++) segue_model_close(models[i]);
    tiny_remove("verify");
    return 0;
}

/* --- a decoder that is given other numbers than it was sent --- */

static struct sg_unit_ops spoiled;
static const struct sg_unit_ops *sound;
static int puts_left;                /* states that still arrive as they were sent; -1: all */

static segue_status spoiled_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t n, const struct sg_state_opts *o,
                                struct sg_state **out, segue_error *err)
{
    segue_status s = sound->state_new(u, slots, n, o, out, err);
    if (s == SEGUE_OK) ((struct sg_state_base *)(void *)*out)->ops = &spoiled;
    return s;
}

static segue_status spoiled_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                                const void *in, segue_error *err)
{
    if (slot == UINT32_MAX && puts_left > 0) puts_left--;
    else if (slot == 0 && storage == SG_F32 && puts_left == 0) { /* the first numbers of the first slot, other ones */
        static float other[4096];
        for (int i = 0; i < 4096; i++) other[i] = (float)(i % 7) - 3;
        if (to > from && to - from <= 64) return sound->state_put(s, slot, from, to, storage, other, err);
        if (to == from) return sound->state_put(s, slot, from, to, storage, in, err);
        return sound->state_put(s, slot, from, to, storage, other, err);
    }
    return sound->state_put(s, slot, from, to, storage, in, err);
}

static void spoil(segue_unit *u, int after)
{
    struct sg_unit_base *base = (struct sg_unit_base *)(void *)u->unit;
    sound = base->ops;
    spoiled = *sound;
    spoiled.state_new = spoiled_new;
    spoiled.state_put = spoiled_put;
    spoiled.state_transfer = NULL;
    base->ops = &spoiled;
    puts_left = after;
}

/* --- answers --- */

static size_t reused; /* by a second session with the same prompt, from the prefix store */

static void answer(int m, const char *reader, const char *decoder, size_t rows, int spoil_after, int32_t *ids, segue_verify *v)
{
    segue_unit *units[2] = {0};
    segue_engine *engine = NULL;
    segue_session *session = NULL;
    segue_error err;
    segue_engine_opts eo = SEGUE_INIT(segue_engine_opts);
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_stats stats = SEGUE_INIT(segue_stats);
    eo.chunk_tokens = 8;
    eo.kv = SEGUE_KV_F32;
    eo.store = "";
    o.verify_tokens = rows;
    segue_status s = segue_unit_open(&units[0], reader, &err);
    if (s == SEGUE_OK && decoder) s = segue_unit_open(&units[1], decoder, &err);
    if (s == SEGUE_OK && spoil_after >= 0) spoil(units[1], spoil_after);
    if (s == SEGUE_OK) s = segue_engine_open(&engine, models[m], units, decoder ? 2 : 1, &eo, &err);
    if (s == SEGUE_OK) s = segue_session_open(&session, engine, &o, &err);
    if (s == SEGUE_OK) s = segue_session_append(session, prompt, PROMPT, &err);
    for (int i = 0; i < TOKENS && s == SEGUE_OK; i++) {
        s = segue_session_next(session, &ids[i], &err);
        if (s == SEGUE_END) s = SEGUE_OK;
    }
    if (s == SEGUE_OK) s = segue_session_stats_get(session, &stats, &err);
    if (s != SEGUE_OK) fail_msg("%s to %s: %s", reader, decoder ? decoder : "-", err.text);
    *v = stats.verify;
    segue_session_close(session);
    session = NULL;
    if (s == SEGUE_OK) s = segue_session_open(&session, engine, &o, &err);
    if (s == SEGUE_OK) s = segue_session_append(session, prompt, PROMPT, &err);
    if (s == SEGUE_OK) s = segue_session_prefill(session, 0, NULL, &err);
    if (s == SEGUE_OK) s = segue_session_stats_get(session, &stats, &err);
    if (s != SEGUE_OK) fail_msg("%s to %s, again: %s", reader, decoder ? decoder : "-", err.text);
    reused = stats.tokens_reused;
    segue_session_close(session);
    segue_engine_close(engine);
    for (int i = 0; i < 2; i++) segue_unit_close(units[i]);
}

static void sound_ones(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        int32_t want[TOKENS], ids[TOKENS];
        segue_verify v;
        answer(m, "cpu:threads=1", "ref", 0, -1, want, &v);
        assert_int_equal(v.tokens, 0);
        for (size_t rows = 1; rows <= 64; rows *= 4) {
            answer(m, "cpu:threads=1", "ref", rows, -1, ids, &v);
            if (!v.ok)
                fail_msg("%s: %zu rows: %g of %g, states %g of %g", tiny_models[m].name, rows, v.max_abs, v.bound,
                         v.state_error, v.state_bound);
            assert_int_equal(v.tokens, rows < 8 ? rows : 8);
            assert_true(v.max_abs > 0 && v.max_abs < v.bound && v.state_error > 0);
            assert_string_equal(v.action, "none");
            assert_true(reused >= PROMPT - 8); /* a verified one is */
        }
        answer(m, "ref", NULL, 4, -1, ids, &v); /* one unit: nothing is handed over */
        assert_int_equal(v.tokens, 0);
    }
}

static void broken_ones(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        for (int after = 0; after < 2; after++) {
            int32_t want[TOKENS], ids[TOKENS];
            segue_verify v;
            answer(m, "ref", NULL, 0, -1, want, &v);
            answer(m, "cpu:threads=1", "ref", ROWS, after, ids, &v);
            assert_int_equal(v.tokens, ROWS);
            assert_int_equal(v.ok, 0);
            assert_string_equal(v.action, "recomputed");
            assert_int_equal(reused, 0); /* a state that failed the check is not in the store */
            if (after) assert_true(v.max_abs <= v.bound && v.state_error > v.state_bound);
            assert_memory_equal(ids, want, sizeof want);
        }
}

/* The same kernels on both sides, in one process and in two: bit-equal is what is asked for, and one changed bit is found. */
static void equal_kernels(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"cpu:isa=generic,threads=1", "cpu:isa=generic,threads=2"},
                                           {"cpu:threads=1", "proc:cpu:threads=2"},
                                           {"proc:ref", "ref"}};
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
        for (int m = 0; m < TINY_MODELS; m++) {
            int32_t want[TOKENS], ids[TOKENS];
            segue_verify v;
            answer(m, pairs[p][1], NULL, 0, -1, want, &v);
            answer(m, pairs[p][0], pairs[p][1], ROWS, -1, ids, &v);
            if (!v.ok || v.bound != 0 || v.max_abs != 0 || v.state_error != 0 || v.state_bound != 0)
                fail_msg("%s to %s: %g, states %g", pairs[p][0], pairs[p][1], v.max_abs, v.state_error);
            assert_int_equal(v.tokens, ROWS);
            assert_memory_equal(ids, want, sizeof want);
#ifdef SEGUE_FAULTS
            for (uint32_t layer = 0; layer < 3; layer++) {
                sg_fault_ulp(layer);
                answer(m, pairs[p][0], pairs[p][1], ROWS, -1, ids, &v);
                sg_fault_ulp(UINT32_MAX);
                if (v.ok || !(v.state_error > 0)) fail_msg("%s: a changed bit of layer %u was missed", pairs[p][1], layer);
                assert_string_equal(v.action, "recomputed");
                assert_memory_equal(ids, want, sizeof want);
            }
#endif
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_ones),
        cmocka_unit_test(broken_ones),
        cmocka_unit_test(equal_kernels),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
