/* cuda_forks.c: K and V shared by forks, over the stub driver: a fork takes no memory until it writes, no write shows in another
 * state, and shared memory is counted once. A random sequence of forks, runs, puts, cuts, marks, transfers and frees is compared
 * with arrays on the host. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "stub.h"
#include "unit/cuda/state/state.h"

/* ROW numbers per position and slot: 2 KB. */
enum { ROW = 512, POSITIONS = 6000, STATES = 6, SLOTS = 2 };

static const struct sg_slot slots[SLOTS] = {{.kind = SG_SLOT_K, .heads = 8, .width = 64},
                                            {.kind = SG_SLOT_V, .heads = 8, .width = 64}};

/* A state and what it should hold: one value per position and slot, equal in all numbers of the row. */
struct shadow {
    struct sg_state *s;
    uint64_t tokens;
    float *value[SLOTS];
};

static float *rows_of(const float *value, uint64_t n)
{
    float *rows = malloc(n * ROW * sizeof *rows);
    assert_non_null(rows);
    for (uint64_t i = 0; i < n; i++)
        for (int k = 0; k < ROW; k++) rows[i * ROW + (uint64_t)k] = value[i];
    return rows;
}

static struct shadow shadow_new(struct sg_unit *u, uint64_t rows)
{
    struct sg_state_opts o = {.kv = SG_F32, .rows = rows, .undo = 4};
    struct shadow x = {0};
    segue_error err = {0};
    assert_int_equal(sg_unit_cuda.state_new(u, slots, SLOTS, &o, &x.s, &err), SEGUE_OK);
    for (int i = 0; i < SLOTS; i++) assert_non_null(x.value[i] = calloc(POSITIONS, sizeof(float)));
    return x;
}

static void shadow_free(struct shadow *x)
{
    sg_unit_cuda.state_free(x->s);
    for (int i = 0; i < SLOTS; i++) free(x->value[i]);
    *x = (struct shadow){0};
}

static struct shadow shadow_fork(const struct shadow *from)
{
    struct shadow x = {.tokens = from->tokens};
    segue_error err = {0};
    assert_int_equal(sg_unit_cuda.state_fork(from->s, &x.s, &err), SEGUE_OK);
    for (int i = 0; i < SLOTS; i++) {
        assert_non_null(x.value[i] = malloc(POSITIONS * sizeof(float)));
        memcpy(x.value[i], from->value[i], POSITIONS * sizeof(float));
    }
    return x;
}

/* Replaces or adds positions [from, to), as a hand-off does; the state then has max(tokens, to) tokens. */
static void put(struct shadow *x, uint64_t from, uint64_t to, float first)
{
    segue_error err = {0};
    for (uint32_t i = 0; i < SLOTS; i++) {
        for (uint64_t p = from; p < to; p++) x->value[i][p] = first + (float)(p - from) + (float)i / 2;
        float *rows = rows_of(x->value[i] + from, to - from);
        assert_int_equal(sg_unit_cuda.state_put(x->s, i, from, to, SG_F32, rows, &err), SEGUE_OK);
        free(rows);
    }
    if (to > x->tokens) x->tokens = to;
    assert_int_equal(sg_unit_cuda.state_put(x->s, UINT32_MAX, x->tokens, x->tokens, SG_F32, NULL, &err), SEGUE_OK);
}

/* Adds n positions as kernels do. The device memory of the stub is host memory. */
static void run(struct shadow *x, uint64_t n, float first)
{
    segue_error err = {0};
    assert_int_equal(cu_state_reserve(x->s, n, &err), SEGUE_OK);
    for (uint32_t i = 0; i < SLOTS; i++) {
        for (uint64_t p = 0; p < n; p++) x->value[i][x->tokens + p] = first + (float)p + (float)i / 2;
        float *rows = rows_of(x->value[i] + x->tokens, n);
        assert_true(cu_slot_at(x->s, i)->capacity >= x->tokens + n);
        memcpy((void *)(uintptr_t)(cu_slot_at(x->s, i)->memory + x->tokens * ROW * sizeof(float)), rows, n * ROW * sizeof(float));
        free(rows);
    }
    cu_state_advance(x->s, n);
    x->tokens += n;
}

/* Every 61st row that the state holds, and the last ones. */
static void check(const struct shadow *x)
{
    segue_error err = {0};
    uint64_t first, tokens;
    float row[ROW];
    sg_unit_cuda.state_held(x->s, 0, &first, &tokens);
    assert_int_equal(tokens, x->tokens);
    for (uint32_t i = 0; i < SLOTS; i++)
        for (uint64_t p = 0; p < tokens; p += p + 70 < tokens ? 61 : 1) {
            assert_int_equal(sg_unit_cuda.state_get(x->s, i, p, p + 1, SG_F32, row, &err), SEGUE_OK);
            if (memcmp(&row[0], &x->value[i][p], sizeof(float)) || memcmp(&row[ROW - 1], &x->value[i][p], sizeof(float)))
                fail_msg("slot %u, position %u: %g instead of %g", i, (unsigned)p, (double)row[0], (double)x->value[i][p]);
        }
}

static uint64_t bytes_of(const struct shadow *list, int n)
{
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++)
        if (list[i].s) bytes += sg_unit_cuda.state_bytes(list[i].s);
    return bytes;
}

/* Eight forks of 4,096 positions, 16 MB: no memory when they are made, and a copy each when they add positions. */
static void forks_share_memory(void **state)
{
    struct sg_unit *u = NULL;
    struct shadow all[9];
    segue_error err = {0};
    (void)state;
    stub("");
    assert_int_equal(open_unit(&u, "cuda:0", &err), SEGUE_OK);
    all[0] = shadow_new(u, 4600); /* 18 MB */
    put(&all[0], 0, 4096, 1);
    int before = stub_count("stub_used_mb");
    uint64_t bytes = bytes_of(all, 1);
    for (int i = 1; i < 9; i++) all[i] = shadow_fork(&all[0]);
    assert_int_equal(stub_count("stub_used_mb"), before);
    assert_in_range(bytes - bytes_of(all, 9), 0, 64); /* shares are rounded down */
    for (int i = 1; i < 9; i++) run(&all[i], 5, 10000.0f * (float)i);
    assert_in_range(stub_count("stub_used_mb"), before + 8 * 16, before + 8 * 18);
    run(&all[0], 3, 7);
    for (int i = 0; i < 9; i++) check(&all[i]);
    /* The original goes back and writes what forks read. */
    assert_int_equal(sg_unit_cuda.state_cut(all[0].s, 1000, &err), SEGUE_OK);
    all[0].tokens = 1000;
    run(&all[0], 2000, 3);
    for (int i = 0; i < 9; i++) check(&all[i]);
    shadow_free(&all[0]);
    for (int i = 1; i < 9; i++) run(&all[i], 1500, 20000.0f * (float)i);
    for (int i = 1; i < 9; i++) check(&all[i]);
    for (int i = 1; i < 9; i++) shadow_free(&all[i]);
    sg_unit_cuda.close(u);
    assert_int_equal(alive(), 0);
}

/* Memory that is full at any allocation is an error that leaves all states as they were. */
static void full_memory(void **state)
{
    (void)state;
    for (int n = 1; n < 4; n++) {
        struct sg_unit *u = NULL;
        struct shadow all[2];
        char mode[16];
        segue_error err = {0};
        stub("");
        assert_int_equal(open_unit(&u, "cuda:0", &err), SEGUE_OK);
        all[0] = shadow_new(u, 3000);
        run(&all[0], 3000, 1);
        all[1] = shadow_fork(&all[0]);
        snprintf(mode, sizeof mode, "alloc:%d", n);
        stub(mode);
        segue_status status = cu_state_reserve(all[1].s, 5000, &err);
        stub("");
        assert_true(status == SEGUE_OK || status == SEGUE_EMEMORY);
        assert_true(n > 1 || status == SEGUE_EMEMORY);
        for (int i = 0; i < 2; i++) check(&all[i]);
        run(&all[1], 10, 50);
        run(&all[0], 10, 60);
        for (int i = 0; i < 2; i++) check(&all[i]);
        for (int i = 0; i < 2; i++) shadow_free(&all[i]);
        sg_unit_cuda.close(u);
        assert_int_equal(alive(), 0);
    }
}

static uint32_t next_random(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*x >> 33);
}

/* To the same GPU: the other state takes over the memory. */
static void transfer(struct sg_unit *u, struct shadow *x)
{
    struct sg_state_opts o = {.kv = SG_F32, .bare = 1, .undo = 4};
    struct sg_state *to = NULL;
    segue_error err = {0};
    assert_int_equal(sg_unit_cuda.state_new(u, slots, SLOTS, &o, &to, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_transfer(to, x->s, &err), SEGUE_OK);
    sg_unit_cuda.state_free(x->s);
    x->s = to;
}

/* Back to a mark, over positions that a fork of that time reads. */
static void back(struct shadow *x, float value)
{
    uint32_t mark;
    uint64_t tokens = x->tokens;
    segue_error err = {0};
    assert_int_equal(sg_unit_cuda.state_mark(x->s, &mark, &err), SEGUE_OK);
    struct shadow fork = shadow_fork(x);
    run(x, 40, value);
    struct shadow later = shadow_fork(x);
    assert_int_equal(sg_unit_cuda.state_back(x->s, mark, &err), SEGUE_OK);
    x->tokens = tokens;
    run(x, 20, value + 100);
    sg_unit_cuda.state_drop(x->s, mark);
    check(&fork);
    check(&later);
    shadow_free(&fork);
    shadow_free(&later);
}

static void step(struct sg_unit *u, struct shadow *all, uint64_t *random, float value)
{
    struct shadow *x = &all[next_random(random) % STATES], *y = &all[next_random(random) % STATES];
    uint32_t what = next_random(random) % 12;
    segue_error err = {0};
    if (!x->s && y->s && what < 6) {
        *x = shadow_fork(y);
    } else if (!x->s) {
        *x = shadow_new(u, next_random(random) % 3 * 1500);
    } else if (what == 0) {
        shadow_free(x);
    } else if (what == 1) {
        x->tokens = next_random(random) % (x->tokens + 1);
        assert_int_equal(sg_unit_cuda.state_cut(x->s, x->tokens, &err), SEGUE_OK);
    } else if (what == 2) {
        transfer(u, x);
    } else if (what == 3 && x->tokens < POSITIONS - 100) {
        back(x, value);
    } else if (what < 6) {
        uint64_t from = next_random(random) % (x->tokens + 1), n = 1 + next_random(random) % 900;
        if (from + n <= POSITIONS) put(x, from, from + n, value);
    } else {
        uint64_t n = 1 + next_random(random) % (what < 9 ? 4 : 900);
        if (x->tokens + n <= POSITIONS) run(x, n, value);
    }
}

static void random_steps(uint64_t seed)
{
    struct sg_unit *u = NULL;
    struct shadow all[STATES] = {0};
    segue_error err = {0};
    stub("");
    assert_int_equal(open_unit(&u, "cuda:0", &err), SEGUE_OK);
    for (int i = 0; i < 120; i++) {
        step(u, all, &seed, (float)i * 2000);
        for (int k = 0; k < STATES; k++)
            if (all[k].s && (i % 8 == 7 || k == i % STATES)) check(&all[k]);
    }
    for (int k = 0; k < STATES; k++)
        if (all[k].s) shadow_free(&all[k]);
    sg_unit_cuda.close(u);
    stub("");
    assert_int_equal(alive(), 0);
}

static void random_forks(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 3; seed++) random_steps(seed);
}

/* Between two GPUs the rows are copied, from shared memory too. */
static void transfer_between_gpus(void **state)
{
    struct sg_unit *u[2] = {NULL, NULL};
    struct sg_state_opts bare = {.kv = SG_F32, .bare = 1};
    struct shadow a, b;
    struct sg_state *to = NULL;
    segue_error err = {0};
    (void)state;
    stub("");
    for (int i = 0; i < 2; i++) assert_int_equal(open_unit(&u[i], i ? "cuda:1" : "cuda:0", &err), SEGUE_OK);
    a = shadow_new(u[0], 3000);
    run(&a, 3000, 1);
    b = shadow_fork(&a);
    run(&b, 100, 9);
    assert_int_equal(sg_unit_cuda.state_new(u[1], slots, SLOTS, &bare, &to, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_transfer(to, b.s, &err), SEGUE_OK);
    sg_unit_cuda.state_free(b.s);
    b.s = to;
    run(&a, 50, 70);
    run(&b, 50, 80);
    check(&a);
    check(&b);
    shadow_free(&a);
    shadow_free(&b);
    for (int i = 0; i < 2; i++) sg_unit_cuda.close(u[i]);
    assert_int_equal(alive(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forks_share_memory),
                                       cmocka_unit_test(full_memory),
                                       cmocka_unit_test(random_forks),
                                       cmocka_unit_test(transfer_between_gpus)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
