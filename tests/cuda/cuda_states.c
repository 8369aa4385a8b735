/* cuda_states.c: states of the unit cuda over the stub driver, whose device memory is host memory: transfers between GPUs, copies
 * from and to pinned memory, forks, marks and cuts. The contents are compared bit for bit.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "stub.h"

/* A transfer between two GPUs, then one between two units on the same GPU. */
static void transfers(void **state)
{
    const struct sg_slot slots[] = {{.kind = SG_SLOT_K, .heads = 2, .width = 16},
                                    {.kind = SG_SLOT_V, .heads = 2, .width = 16},
                                    {.kind = SG_SLOT_DELTA, .heads = 2, .width = 8, .depth = 8}};
    struct sg_state_opts full = {.kv = SG_F32, .rows = 300}, bare = {.kv = SG_F32, .bare = 1};
    struct sg_unit *u[2] = {NULL, NULL};
    struct sg_state *s[3] = {NULL, NULL, NULL};
    float in[301 * 32], out[301 * 32];
    segue_error err = {0};
    (void)state;
    stub("");
    for (size_t i = 0; i < 301 * 32; i++) in[i] = (float)i;
    assert_int_equal(open_unit(&u[0], "cuda:0", &err), SEGUE_OK);
    assert_int_equal(open_unit(&u[1], "cuda:1", &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_new(u[0], slots, 3, &full, &s[0], &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_new(u[1], slots, 3, &bare, &s[1], &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_new(u[1], slots, 3, &bare, &s[2], &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s[0], 0, 0, 300, SG_F32, in, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s[0], 1, 0, 300, SG_F32, in + 7, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s[0], 2, 0, 300, SG_F32, in + 9, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s[0], UINT32_MAX, 300, 300, SG_F32, NULL, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_transfer(s[1], s[0], &err), SEGUE_OK); /* between GPUs */
    assert_int_equal(sg_unit_cuda.state_transfer(s[2], s[1], &err), SEGUE_OK); /* on one GPU */
    assert_int_equal(sg_unit_cuda.state_get(s[2], 0, 0, 300, SG_F32, out, &err), SEGUE_OK);
    assert_memory_equal(in, out, 300 * 32 * sizeof *in);
    assert_int_equal(sg_unit_cuda.state_get(s[2], 2, 0, 300, SG_F32, out, &err), SEGUE_OK);
    assert_memory_equal(in + 9, out, 2 * 8 * 8 * sizeof *in);
    for (size_t i = 0; i < 3; i++) sg_unit_cuda.state_free(s[i]);
    sg_unit_cuda.close(u[1]);
    sg_unit_cuda.close(u[0]);
    assert_int_equal(alive(), 0);
}

/* Prewarming copies between two GPUs, but not on one GPU; without memory for the probe buffer it does nothing and reports no
 * error. */
static void prewarms_the_link(void **state)
{
    static const char *const specs[] = {"cuda:0", "cuda:1", "cuda:0"};
    struct sg_unit *u[3] = {NULL, NULL, NULL};
    segue_error err = {0};
    (void)state;
    stub("");
    for (size_t i = 0; i < 3; i++) assert_int_equal(open_unit(&u[i], specs[i], &err), SEGUE_OK);
    sg_unit_cuda.peer_prewarm(u[0], u[2]);
    assert_int_equal(stub_count("stub_crossings"), 0);
    sg_unit_cuda.peer_prewarm(u[0], u[1]);
    assert_int_equal(stub_count("stub_crossings"), 1);
    stub("memory");
    sg_unit_cuda.peer_prewarm(u[2], u[1]);
    assert_int_equal(stub_count("stub_crossings"), 0);
    stub("");
    for (size_t i = 0; i < 3; i++) sg_unit_cuda.close(u[i]);
    assert_int_equal(alive(), 0);
}

/* The rows of a window are put at positions beyond the capacity of a new state. */
static void window_starts_after_capacity(void **state)
{
    const struct sg_slot slots[] = {{.kind = SG_SLOT_K, .heads = 2, .width = 16, .window = 70}};
    struct sg_state_opts o = {.kv = SG_F32, .rows = 32};
    struct sg_unit *u = NULL;
    struct sg_state *s = NULL;
    static float in[70 * 32], out[70 * 32];
    segue_error err = {0};
    (void)state;
    stub("");
    for (size_t i = 0; i < 70 * 32; i++) in[i] = (float)i;
    assert_int_equal(open_unit(&u, "cuda:0", &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_new(u, slots, 1, &o, &s, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s, 0, 5000, 5035, SG_F32, in, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s, 0, 5035, 5070, SG_F32, in + 35 * 32, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s, UINT32_MAX, 5070, 5070, SG_F32, NULL, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_get(s, 0, 5000, 5070, SG_F32, out, &err), SEGUE_OK);
    assert_memory_equal(in, out, sizeof in);
    sg_unit_cuda.state_free(s);
    sg_unit_cuda.close(u);
    assert_int_equal(alive(), 0);
}

/* Copies from and to pinned memory may be pending after put and get; validation, flush, and freeing the memory complete them. */
static void pinned_copies_are_deferred(void **state)
{
    enum { ROW = 2 * 16, ROWS = 300, FIXED = 2 * 8 * 8 };
    const struct sg_slot slots[] = {{.kind = SG_SLOT_K, .heads = 2, .width = 16},
                                    {.kind = SG_SLOT_DELTA, .heads = 2, .width = 8, .depth = 8}};
    struct sg_state_opts o = {.kv = SG_F32, .rows = ROWS, .filled = 1};
    struct sg_unit *u = NULL;
    struct sg_state *s = NULL;
    float out[ROWS * ROW];
    segue_error err = {0};
    (void)state;
    stub("late");
    assert_int_equal(open_unit(&u, "cuda:0", &err), SEGUE_OK);
    const struct sg_host_memory *host = sg_unit_cuda.host(u);
    float *rows = host->take(host->owner, ROWS * ROW * sizeof *rows), *fixed = host->take(host->owner, FIXED * sizeof *fixed);
    assert_non_null(rows);
    assert_non_null(fixed);
    assert_int_equal((uintptr_t)rows % 64, 0);
    assert_int_equal(sg_unit_cuda.state_new(u, slots, 2, &o, &s, &err), SEGUE_OK);
    for (int i = 0; i < ROWS * ROW; i++) rows[i] = 1;
    for (int i = 0; i < FIXED; i++) fixed[i] = 2;
    assert_int_equal(sg_unit_cuda.state_put(s, 0, 0, ROWS, SG_F32, rows, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s, 1, 0, ROWS, SG_F32, fixed, &err), SEGUE_OK);
    rows[0] = 3; /* still pending: the copy has the new value */
    assert_int_equal(sg_unit_cuda.state_put(s, UINT32_MAX, ROWS, ROWS, SG_F32, NULL, &err), SEGUE_OK);
    rows[1] = 4; /* complete: the copy has the old value */
    assert_int_equal(sg_unit_cuda.state_get(s, 0, 0, ROWS, SG_F32, out, &err), SEGUE_OK);
    assert_true(out[0] > 2 && out[1] < 2 && out[ROWS * ROW - 1] > 0);
    fixed[0] = rows[0] = 0;
    assert_int_equal(sg_unit_cuda.state_get(s, 0, 0, ROWS, SG_F32, rows, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_get(s, 1, 0, ROWS, SG_F32, fixed, &err), SEGUE_OK);
    assert_true(rows[0] < 1 && fixed[0] < 1);
    assert_int_equal(sg_unit_cuda.state_flush(s, &err), SEGUE_OK);
    assert_true(rows[0] > 2 && fixed[0] > 1);
    fixed[0] = 0;
    assert_int_equal(sg_unit_cuda.state_get(s, 1, 0, ROWS, SG_F32, fixed, &err), SEGUE_OK);
    host->leave(host->owner, fixed);
    assert_true(fixed[0] > 1); /* freeing the buffer has waited */
    assert_ptr_equal(host->take(host->owner, FIXED * sizeof *fixed), fixed);
    sg_unit_cuda.state_free(s);
    sg_unit_cuda.close(u);
    stub("");
    assert_int_equal(alive(), 0);
}

static segue_status copy_slots(struct sg_state *s, uint32_t slots, uint32_t from, uint32_t rows, const size_t *at, float *memory,
                             int put)
{
    segue_error err;
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < slots && status == SEGUE_OK; i++)
        status = put ? sg_unit_cuda.state_put(s, i, from, from + rows, SG_F32, memory + at[i], &err)
                     : sg_unit_cuda.state_get(s, i, from, from + rows, SG_F32, memory + at[i], &err);
    return status;
}

/* Rows of several slots, contiguous in pinned memory and at a distance on the GPU, so that they are merged into 2D copies; one
 * slot has narrower rows. Then more rows than the capacity, so that slots leave the shared block. */
static void copies_of_several_slots(void **state)
{
    enum { ROWS = 300, MORE = 40, ALL = 5 * ROWS * 32 };
    static const uint32_t widths[] = {32, 32, 32, 16, 32};
    struct sg_slot slots[5];
    struct sg_state_opts o = {.kv = SG_F32, .rows = ROWS, .filled = 1};
    struct sg_unit *u = NULL;
    struct sg_state *s = NULL;
    size_t at[5], after[5], n = 0, m = 0;
    segue_error err = {0};
    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        slots[i] = (struct sg_slot){.kind = i % 2 ? SG_SLOT_V : SG_SLOT_K, .layer = i / 2, .heads = 1, .width = widths[i]};
        at[i] = n;
        after[i] = m;
        n += ROWS * widths[i];
        m += MORE * widths[i];
    }
    stub("late");
    assert_int_equal(open_unit(&u, "cuda:0", &err), SEGUE_OK);
    const struct sg_host_memory *host = sg_unit_cuda.host(u);
    float *in = host->take(host->owner, ALL * sizeof *in), *out = host->take(host->owner, ALL * sizeof *out);
    assert_int_equal(sg_unit_cuda.state_new(u, slots, 5, &o, &s, &err), SEGUE_OK);
    for (size_t i = 0; i < n; i++) in[i] = (float)i;
    memset(out, 0, ALL * sizeof *out);
    assert_int_equal(copy_slots(s, 5, 0, ROWS, at, in, 1), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s, UINT32_MAX, ROWS, ROWS, SG_F32, NULL, &err), SEGUE_OK);
    assert_int_equal(copy_slots(s, 5, 0, ROWS, at, out, 0), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_flush(s, &err), SEGUE_OK);
    assert_memory_equal(in, out, n * sizeof *in);
    assert_int_equal(copy_slots(s, 5, ROWS, MORE, after, in, 1), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s, UINT32_MAX, ROWS + MORE, ROWS + MORE, SG_F32, NULL, &err), SEGUE_OK);
    memset(out, 0, ALL * sizeof *out);
    assert_int_equal(copy_slots(s, 5, ROWS, MORE, after, out, 0), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_flush(s, &err), SEGUE_OK);
    assert_memory_equal(in, out, m * sizeof *in);
    assert_int_equal(copy_slots(s, 5, 0, ROWS, at, out, 0), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_flush(s, &err), SEGUE_OK);
    assert_memory_equal(in, out, n * sizeof *in);
    sg_unit_cuda.state_free(s);
    sg_unit_cuda.close(u);
    stub("");
    assert_int_equal(alive(), 0);
}

/* Puts `value` into every number of K (slot 0) and of the recurrent memory (slot 1), and validates the state at `rows` tokens. */
static void fill(struct sg_state *s, uint64_t rows, float value)
{
    float numbers[40 * 32], fixed[2 * 8 * 8];
    segue_error err = {0};
    for (size_t i = 0; i < 40 * 32; i++) numbers[i] = value;
    for (size_t i = 0; i < 2 * 8 * 8; i++) fixed[i] = value;
    assert_int_equal(sg_unit_cuda.state_put(s, 0, 0, rows, SG_F32, numbers, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s, 1, 0, rows, SG_F32, fixed, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s, UINT32_MAX, rows, rows, SG_F32, NULL, &err), SEGUE_OK);
}

/* The state holds `rows` tokens; K has `row_value` in the last of them, the recurrent memory `fixed_value`. */
static void expect(struct sg_state *s, uint64_t rows, float row_value, float fixed_value)
{
    float row[32], fixed[2 * 8 * 8];
    uint64_t first = 9, held = 9;
    segue_error err = {0};
    sg_unit_cuda.state_held(s, 0, &first, &held);
    assert_int_equal(first, 0);
    assert_int_equal(held, rows);
    if (rows) {
        assert_int_equal(sg_unit_cuda.state_get(s, 0, rows - 1, rows, SG_F32, row, &err), SEGUE_OK);
        assert_memory_equal(&row[31], &row_value, sizeof row_value);
    }
    assert_int_equal(sg_unit_cuda.state_get(s, 0, rows, rows + 1, SG_F32, row, &err), SEGUE_EARG);
    assert_int_equal(sg_unit_cuda.state_get(s, 1, 0, 0, SG_F32, fixed, &err), SEGUE_OK);
    assert_memory_equal(&fixed[127], &fixed_value, sizeof fixed_value);
}

/* Forks are independent of the original; marks restore recurrent memory and length; a cut to 0 clears. With copies that are only
 * executed when something waits for them. */
static void forks_marks_and_cuts(void **state)
{
    const struct sg_slot slots[] = {{.kind = SG_SLOT_K, .heads = 2, .width = 16},
                                    {.kind = SG_SLOT_DELTA, .heads = 2, .width = 8, .depth = 8}};
    struct sg_state_opts o = {.kv = SG_F32, .undo = 2};
    struct sg_unit *u = NULL;
    struct sg_state *s = NULL, *fork = NULL;
    uint32_t marks[3];
    segue_error err = {0};
    (void)state;
    stub("late");
    assert_int_equal(open_unit(&u, "cuda:0", &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_new(u, slots, 2, &o, &s, &err), SEGUE_OK);
    expect(s, 0, 0, 0);
    fill(s, 10, 1);
    assert_int_equal(sg_unit_cuda.state_mark(s, &marks[0], &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_fork(s, &fork, &err), SEGUE_OK);
    fill(fork, 20, 2); /* validating forgets the marks of this state only */
    expect(s, 10, 1, 1);
    expect(fork, 20, 2, 2);
    assert_int_equal(sg_unit_cuda.state_mark(fork, &marks[1], &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_mark(fork, &marks[2], &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_mark(fork, &marks[2], &err), SEGUE_ELIMIT);
    sg_unit_cuda.state_drop(fork, marks[1]);
    assert_int_equal(sg_unit_cuda.state_back(fork, marks[1], &err), SEGUE_EARG);
    uint64_t bytes = sg_unit_cuda.state_bytes(fork);
    sg_unit_cuda.state_drop(fork, marks[2]);
    assert_true(sg_unit_cuda.state_bytes(fork) < bytes);
    float changed[2 * 8 * 8] = {0};
    assert_int_equal(sg_unit_cuda.state_put(s, 1, 0, 0, SG_F32, changed, &err), SEGUE_OK);
    expect(s, 10, 1, 0);
    assert_int_equal(sg_unit_cuda.state_back(s, marks[0], &err), SEGUE_OK);
    expect(s, 10, 1, 1);
    assert_int_equal(sg_unit_cuda.state_cut(s, 5, &err), SEGUE_EUNSUPPORTED);
    assert_int_equal(sg_unit_cuda.state_cut(s, 11, &err), SEGUE_EARG);
    assert_int_equal(sg_unit_cuda.state_cut(s, 10, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_cut(s, 0, &err), SEGUE_OK);
    expect(s, 0, 0, 0);
    expect(fork, 20, 2, 2);
    sg_unit_cuda.state_free(s);
    expect(fork, 20, 2, 2);
    sg_unit_cuda.state_free(fork);
    sg_unit_cuda.close(u);
    stub("");
    assert_int_equal(alive(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(transfers),
                                       cmocka_unit_test(prewarms_the_link),
                                       cmocka_unit_test(window_starts_after_capacity),
                                       cmocka_unit_test(pinned_copies_are_deferred),
                                       cmocka_unit_test(copies_of_several_slots),
                                       cmocka_unit_test(forks_marks_and_cuts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
