/* checkpoints.c: going back in long sessions of a hybrid model, whose memory cannot be run backwards: after an edit of the last
 * turn of 4,000 tokens at most a chunk and the new words are computed, on one unit and after a hand-off; the way is the straight
 * one, bit for bit; budgets hold; a few first rows cost nothing; forks share memory and points. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "segue.h"
#include "tiny.h"

enum { TURNS = 8, TURN = 500, LENGTH = TURNS * TURN, CHUNK = 128, NEW = 9, UNITS_MAX = 8, HYBRID = 2 };
#define OK(expr)                                          \
    do {                                                  \
        if ((expr) != SEGUE_OK) fail_msg("%s", err.text); \
    } while (0)

static segue_error err;
static segue_unit *units[UNITS_MAX];
static uint32_t units_n;
static segue_model *model;
static int32_t text[LENGTH], words[NEW];

static int begin(void **state)
{
    (void)state;
    segue_unit_info info[UNITS_MAX];
    char folder[512];
    size_t n = 0;
    info[0] = SEGUE_INIT(segue_unit_info);
    if (segue_unit_list(info, UNITS_MAX, &n, &err) != SEGUE_OK) return -1;
    for (size_t i = 0; i < n && i < UNITS_MAX; i++)
        if (info[i].present && !info[i].simulated && units_n < 3 &&
            segue_unit_open(&units[units_n], info[i].spec, &err) == SEGUE_OK)
            units_n++;
    for (int i = 0; i < LENGTH; i++) text[i] = (i * 31 + i / 7) % 93 + 3;
    for (int i = 0; i < NEW; i++) words[i] = (i * 5 + 40) % 93 + 3;
    tiny_folder(folder, sizeof folder, "checkpoints", tiny_models[HYBRID].name);
    if (!tiny_write(&tiny_models[HYBRID], folder, 5)) return -1;
    return segue_model_open(&model, folder, NULL, &err) == SEGUE_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < units_n; i++) segue_unit_close(units[i]);
    segue_model_close(model);
    tiny_remove("checkpoints");
    return 0;
}

static segue_engine *engine(uint32_t reader, uint32_t writer)
{
    segue_engine *e = NULL;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    segue_unit *const list[2] = {units[reader], units[writer]};
    o.chunk_tokens = CHUNK;
    o.kv = SEGUE_KV_F32;
    OK(segue_engine_open(&e, model, list, reader == writer ? 1 : 2, &o, &err));
    return e;
}

static segue_session *session(segue_engine *e, uint64_t budget)
{
    segue_session *s = NULL;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_sampling p = SEGUE_INIT(segue_sampling);
    p.ignore_stops = 1;
    o.sampling = &p;
    o.context = LENGTH + 200;
    o.checkpoint_bytes = budget;
    OK(segue_session_open(&s, e, &o, &err));
    return s;
}

static segue_stats stats(const segue_session *s)
{
    segue_stats st = SEGUE_INIT(segue_stats);
    OK(segue_session_stats_get(s, &st, &err));
    return st;
}

static void read_text(segue_session *s, const int32_t *tokens, size_t n)
{
    OK(segue_session_append(s, tokens, n, &err));
    OK(segue_session_prefill(s, 0, NULL, &err));
}

static void read_turns(segue_session *s, int turns)
{
    for (int i = 0; i < turns; i++) read_text(s, text + i * TURN, TURN);
}

static void same_logits(segue_session *a, segue_session *b)
{
    float x[TINY_VOCAB], y[TINY_VOCAB];
    size_t n = 0;
    OK(segue_session_logits(a, x, TINY_VOCAB, &n, &err));
    OK(segue_session_logits(b, y, TINY_VOCAB, &n, &err));
    assert_memory_equal(x, y, n * sizeof *x);
}

/* The last turn is edited at its tenth word; the straight way is a session that never read the old words. */
static void the_last_turn_is_edited(void **state)
{
    (void)state;
    for (uint32_t a = 0; a < units_n; a++)
        for (uint32_t k = 0; k < 2; k++) { /* alone, and with the next one */
            uint32_t b = (a + k) % units_n;
            segue_engine *e = engine(a, b);
            segue_session *s = session(e, 0), *straight = session(e, 0);
            int32_t token;
            read_turns(s, TURNS);
            if (a != b) OK(segue_session_next(s, &token, &err)); /* hands off */
            size_t kept = (TURNS - 1) * TURN + 10;
            OK(segue_session_rewind(s, kept, &err));
            segue_stats before = stats(s);
            read_text(s, words, NEW);
            segue_stats after = stats(s);
            assert_string_equal(after.reuse_reason, "no-checkpoint");
            assert_true(kept + NEW - after.tokens_reused <= CHUNK + NEW);
            assert_int_equal(after.tokens_in - before.tokens_in, kept + NEW - after.tokens_reused);
            read_turns(straight, TURNS - 1);
            OK(segue_session_append(straight, text + (TURNS - 1) * TURN, 10, &err));
            read_text(straight, words, NEW);
            same_logits(s, straight);
            segue_session_close(s);
            segue_session_close(straight);
            segue_engine_close(e);
        }
}

/* One long prompt: the nearest chunk's end serves, and an answer is tried again without any new row. */
static void a_long_prompt_is_edited_and_retried(void **state)
{
    (void)state;
    for (uint32_t a = 0; a < units_n; a++) {
        segue_engine *e = engine(a, (a + 1) % units_n);
        segue_session *s = session(e, 0);
        int32_t first[5], again[5];
        OK(segue_session_append(s, text, LENGTH, &err));
        for (int i = 0; i < 5; i++) OK(segue_session_next(s, &first[i], &err));
        OK(segue_session_rewind(s, LENGTH, &err));
        assert_int_equal(stats(s).tokens_reused, LENGTH);
        size_t before = stats(s).tokens_in;
        for (int i = 0; i < 5; i++) OK(segue_session_next(s, &again[i], &err));
        assert_int_equal(stats(s).tokens_in - before, 4);
        assert_memory_equal(first, again, sizeof first);
        for (size_t cut = 100; cut < 1200; cut += 177) {
            OK(segue_session_rewind(s, LENGTH - cut, &err));
            OK(segue_session_append(s, words, NEW, &err));
            if (cut < 400) assert_true(LENGTH - cut - stats(s).tokens_reused <= CHUNK);
            OK(segue_session_prefill(s, 0, NULL, &err));
            OK(segue_session_rewind(s, LENGTH - cut, &err));
            read_text(s, text + LENGTH - cut, cut);
        }
        segue_session_close(s);
        segue_engine_close(e);
    }
}

static void budgets_hold(void **state)
{
    (void)state;
    segue_engine *e = engine(0, 0);
    segue_session *s = session(e, SEGUE_NO_CHECKPOINTS);
    read_turns(s, 2);
    uint64_t plain = stats(s).state_bytes;
    OK(segue_session_rewind(s, 2 * TURN - 1, &err));
    assert_int_equal(stats(s).tokens_reused, 0);
    assert_string_equal(stats(s).reuse_reason, "no-checkpoint");
    segue_session_close(s);
    const uint64_t budget = 64 << 10;
    s = session(e, budget);
    for (int i = 0; i < TURNS; i++) {
        read_text(s, text + i * TURN, TURN);
        assert_true(stats(s).state_bytes < budget + plain * (uint64_t)(i + 2));
    }
    OK(segue_session_rewind(s, LENGTH - TURN + 1, &err)); /* the last turn's beginning stays */
    assert_int_equal(stats(s).tokens_reused, LENGTH - TURN);
    read_text(s, text + LENGTH - TURN, TURN);
    OK(segue_session_rewind(s, TURN + 1, &err));
    assert_true(stats(s).tokens_reused < TURN);
    assert_string_equal(stats(s).reuse_reason, "evicted");
    segue_session_close(s);
    segue_engine_close(e);
}

/* Rows [0, 5) are sooner computed again than kept: a session of a few words costs its states alone, and goes back to its
 * start. */
static void few_first_rows_are_not_kept(void **state)
{
    (void)state;
    segue_engine *e = engine(0, 0);
    segue_session *s = session(e, 0), *bare = session(e, SEGUE_NO_CHECKPOINTS);
    segue_session *const both[] = {s, bare};
    for (int i = 0; i < 2; i++) {
        read_text(both[i], text, 5);
        read_text(both[i], words, 1);
    }
    assert_int_equal(stats(s).state_bytes, stats(bare).state_bytes);
    OK(segue_session_rewind(s, 4, &err));
    assert_int_equal(stats(s).tokens_reused, 0);
    read_text(s, text + 4, 1);
    read_text(s, words, 1);
    same_logits(s, bare);
    read_text(s, text, TURN);
    read_text(s, words, NEW);
    assert_true(stats(s).state_bytes > stats(bare).state_bytes); /* longer ones are */
    segue_session_close(s);
    segue_session_close(bare);
    segue_engine_close(e);
}

/* Forks of a long session cost little until they diverge, go back by the same points, and stay apart. */
static void forks_share(void **state)
{
    (void)state;
    enum { FORKS = 4 };
    for (uint32_t u = 0; u < units_n; u++) {
        segue_engine *e = engine(u, u);
        segue_session *s = session(e, 0), *forks[FORKS], *straight = session(e, 0);
        read_turns(s, TURNS);
        uint64_t alone = stats(s).state_bytes, all = 0;
        for (int i = 0; i < FORKS; i++) OK(segue_session_fork(&forks[i], s, &err));
        for (int i = 0; i < FORKS; i++) all += stats(forks[i]).state_bytes;
        segue_unit_info info = SEGUE_INIT(segue_unit_info);
        OK(segue_unit_info_get(units[u], &info, &err));
        if (strncmp(info.kind, "cuda", 4) != 0) /* copies on the device */
            assert_true(all + stats(s).state_bytes < alone + alone / 2);
        for (int i = 0; i < FORKS; i++) {
            OK(segue_session_rewind(forks[i], LENGTH - TURN + 3, &err));
            assert_int_equal(stats(forks[i]).tokens_reused, LENGTH - TURN);
            read_text(forks[i], words, NEW);
        }
        read_turns(straight, TURNS - 1);
        OK(segue_session_append(straight, text + LENGTH - TURN, 3, &err));
        read_text(straight, words, NEW);
        for (int i = 0; i < FORKS; i++) same_logits(forks[i], straight);
        segue_session_close(straight);
        straight = session(e, 0);
        read_turns(straight, TURNS);
        same_logits(s, straight); /* the forks left it alone */
        for (int i = 0; i < FORKS; i++) segue_session_close(forks[i]);
        segue_session_close(s);
        segue_session_close(straight);
        segue_engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_turn_is_edited),
        cmocka_unit_test(a_long_prompt_is_edited_and_retried),
        cmocka_unit_test(budgets_hold),
        cmocka_unit_test(few_first_rows_are_not_kept),
        cmocka_unit_test(forks_share),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
