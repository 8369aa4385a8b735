/* cuda_states.c: rows and memory of the unit cuda's states over the stub driver, whose cards are host memory: from card to card,
 * to and from pinned memory, in fusions. What came is what went. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "stub.h"

/* A state goes from one card to the other: what it held is there, bit for bit, and back again. */
static void passes(void **state)
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
    assert_int_equal(sg_unit_cuda.state_transfer(s[1], s[0], &err), SEGUE_OK); /* between cards */
    assert_int_equal(sg_unit_cuda.state_transfer(s[2], s[1], &err), SEGUE_OK); /* on one */
    assert_int_equal(sg_unit_cuda.state_get(s[2], 0, 0, 300, SG_F32, out, &err), SEGUE_OK);
    assert_memory_equal(in, out, 300 * 32 * sizeof *in);
    assert_int_equal(sg_unit_cuda.state_get(s[2], 2, 0, 300, SG_F32, out, &err), SEGUE_OK);
    assert_memory_equal(in + 9, out, 2 * 8 * 8 * sizeof *in);
    for (size_t i = 0; i < 3; i++) sg_unit_cuda.state_free(s[i]);
    sg_unit_cuda.close(u[1]);
    sg_unit_cuda.close(u[0]);
    assert_int_equal(alive(), 0);
}

/* Something crosses from card to card, nothing on one; without memory for it nothing does, and nobody is told. */
static void wakes_the_way(void **state)
{
    static const char *const specs[] = {"cuda:0", "cuda:1", "cuda:0"};
    struct sg_unit *u[3] = {NULL, NULL, NULL};
    segue_error err = {0};
    (void)state;
    stub("");
    for (size_t i = 0; i < 3; i++) assert_int_equal(open_unit(&u[i], specs[i], &err), SEGUE_OK);
    sg_unit_cuda.peer_prewarm(u[0], u[2]);
    assert_int_equal(ask("stub_crossings"), 0);
    sg_unit_cuda.peer_prewarm(u[0], u[1]);
    assert_int_equal(ask("stub_crossings"), 1);
    stub("memory");
    sg_unit_cuda.peer_prewarm(u[2], u[1]);
    assert_int_equal(ask("stub_crossings"), 0);
    stub("");
    for (size_t i = 0; i < 3; i++) sg_unit_cuda.close(u[i]);
    assert_int_equal(alive(), 0);
}

/* The rows of a window that come from elsewhere begin behind what a fresh state has room for. */
static void a_window_begins_far_on(void **state)
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

/* Rows and memory of states from and to pinned memory: copies_started only, over when the state is sealed or flushed, or when either
 * side is let go. */
static void copies_go_on(void **state)
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
    rows[0] = 3; /* under way still */
    assert_int_equal(sg_unit_cuda.state_put(s, UINT32_MAX, ROWS, ROWS, SG_F32, NULL, &err), SEGUE_OK);
    rows[1] = 4; /* over */
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
    assert_true(fixed[0] > 1); /* nobody else is written to pending on */
    assert_ptr_equal(host->take(host->owner, FIXED * sizeof *fixed), fixed);
    sg_unit_cuda.state_free(s);
    sg_unit_cuda.close(u);
    stub("");
    assert_int_equal(alive(), 0);
}

static segue_status all_rows(struct sg_state *s, uint32_t slots, uint32_t from, uint32_t rows, const size_t *at, float *memory,
                             int put)
{
    segue_error err;
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < slots && status == SEGUE_OK; i++)
        status = put ? sg_unit_cuda.state_put(s, i, from, from + rows, SG_F32, memory + at[i], &err)
                     : sg_unit_cuda.state_get(s, i, from, from + rows, SG_F32, memory + at[i], &err);
    return status;
}

/* Rows of several slots that lie behind one another in pinned memory and apart on the card, one narrower than the others; then
 * more of them than a slot has room for. */
static void lines_cross(void **state)
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
    assert_int_equal(all_rows(s, 5, 0, ROWS, at, in, 1), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_put(s, UINT32_MAX, ROWS, ROWS, SG_F32, NULL, &err), SEGUE_OK);
    assert_int_equal(all_rows(s, 5, 0, ROWS, at, out, 0), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_flush(s, &err), SEGUE_OK);
    assert_memory_equal(in, out, n * sizeof *in);
    assert_int_equal(all_rows(s, 5, ROWS, MORE, after, in, 1), SEGUE_OK); /* slots leave the piece that they had shared_block */
    assert_int_equal(sg_unit_cuda.state_put(s, UINT32_MAX, ROWS + MORE, ROWS + MORE, SG_F32, NULL, &err), SEGUE_OK);
    memset(out, 0, ALL * sizeof *out);
    assert_int_equal(all_rows(s, 5, ROWS, MORE, after, out, 0), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_flush(s, &err), SEGUE_OK);
    assert_memory_equal(in, out, m * sizeof *in);
    assert_int_equal(all_rows(s, 5, 0, ROWS, at, out, 0), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_flush(s, &err), SEGUE_OK);
    assert_memory_equal(in, out, n * sizeof *in);
    sg_unit_cuda.state_free(s);
    sg_unit_cuda.close(u);
    stub("");
    assert_int_equal(alive(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes),
                                       cmocka_unit_test(wakes_the_way),
                                       cmocka_unit_test(a_window_begins_far_on),
                                       cmocka_unit_test(copies_go_on),
                                       cmocka_unit_test(lines_cross)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
