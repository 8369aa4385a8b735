/* rows.c: K and V rows in memory of a unit that takes them over (unit/kv/kv_rows.h): how much is taken, that they follow each
 * other however the sequence grew, and that nothing is lost to a fork or changed under the other unit.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "unit/kv/kv_rows.h"

enum { BLOCK = 4, PIECES = 8 };

/* Memory of the other unit: its pieces that are in use. */
struct lender {
    void *at[PIECES];
    size_t bytes[PIECES];
    int refuses;
};

static void *take(void *owner, size_t bytes)
{
    struct lender *l = owner;
    int i = 0;
    while (i < PIECES && l->at[i]) i++;
    if (l->refuses || i == PIECES) return NULL;
    l->bytes[i] = bytes;
    return l->at[i] = sg_alloc_aligned(bytes);
}

static void leave(void *owner, void *p)
{
    struct lender *l = owner;
    int i = 0;
    while (i < PIECES && l->at[i] != p) i++;
    assert_true(i < PIECES);
    sg_free_aligned(p);
    l->at[i] = NULL;
    l->bytes[i] = 0;
}

static size_t taken(const struct lender *l)
{
    size_t bytes = 0;
    for (int i = 0; i < PIECES; i++) bytes += l->bytes[i];
    return bytes;
}

static struct sg_host_memory host_of(struct lender *l)
{
    return (struct sg_host_memory){.owner = l, .take = take, .leave = leave, .attachable = 1};
}

/* A row is one number, the position plus `base`. */
static void write_rows(struct sg_rows *r, uint64_t from, uint64_t to, uint64_t base)
{
    segue_error err;
    assert_int_equal(sg_rows_own(r, from, to, NULL, &err), SEGUE_OK);
    for (uint64_t i = from; i < to; i++) memcpy(sg_rows_at(r, i), &(uint64_t){base + i}, sizeof base);
}

static uint64_t row(const struct sg_rows *r, uint64_t pos)
{
    uint64_t x;
    memcpy(&x, sg_rows_at(r, pos), sizeof x);
    return x;
}

static void memory_is_that_of_the_expected_rows(void **state)
{
    (void)state;
    struct lender l = {0};
    struct sg_host_memory host = host_of(&l);
    struct sg_rows known = {0}, unknown = {0}, windowed = {0};
    sg_rows_init(&known, BLOCK, 8, 0, &host, 10);
    assert_int_equal(taken(&l), 0);
    write_rows(&known, 0, 1, 0);
    assert_int_equal(taken(&l), 12 * 8);
    write_rows(&known, 1, 10, 0);
    assert_int_equal(taken(&l), 12 * 8);
    sg_rows_free(&known);
    sg_rows_init(&unknown, BLOCK, 8, 0, &host, 0);
    write_rows(&unknown, 0, 5, 0);
    assert_int_equal(taken(&l), 8 * 8);
    sg_rows_free(&unknown);
    sg_rows_init(&windowed, BLOCK, 8, 6, &host, 10);
    write_rows(&windowed, 0, 10, 0);
    assert_int_equal(taken(&l), 0);
    assert_int_equal(row(&windowed, 9), 9);
    sg_rows_free(&windowed);
}

static void rows_follow_each_other_after_growing(void **state)
{
    (void)state;
    struct lender l = {0};
    struct sg_host_memory host = host_of(&l);
    struct sg_rows r = {0};
    sg_rows_init(&r, BLOCK, 8, 0, &host, 8);
    for (uint64_t i = 0; i < 21; i++) write_rows(&r, i, i + 1, 100);
    assert_int_equal(taken(&l), 32 * 8);       /* 8, 16, 32 rows: one piece is left */
    const uint64_t *all = sg_rows_export(&r, 0, 21);
    assert_non_null(all);
    for (uint64_t i = 0; i < 21; i++) assert_int_equal(all[i], 100 + i);
    sg_rows_free(&r);
    assert_int_equal(taken(&l), 0);
}

static void fork_keeps_its_rows(void **state)
{
    (void)state;
    struct lender l = {0};
    struct sg_host_memory host = host_of(&l);
    struct sg_rows r = {0}, fork = {0};
    segue_error err;
    sg_rows_init(&r, BLOCK, 8, 0, &host, 8);
    sg_rows_init(&fork, BLOCK, 8, 0, &host, 8);
    write_rows(&r, 0, 8, 0);
    assert_int_equal(sg_rows_share(&fork, &r, &err), SEGUE_OK);
    write_rows(&r, 7, 12, 50);                 /* a larger piece; the fork keeps the first */
    assert_int_equal(taken(&l), (8 + 16) * 8);
    assert_non_null(sg_rows_export(&r, 0, 12));
    for (uint64_t i = 0; i < 8; i++) assert_int_equal(row(&fork, i), i);
    write_rows(&fork, 7, 9, 70);               /* no memory of the other unit for it */
    assert_int_equal(taken(&l), (8 + 16) * 8);
    assert_null(sg_rows_export(&fork, 0, 9));
    assert_int_equal(row(&fork, 6), 6);
    assert_int_equal(row(&r, 7), 57);
    sg_rows_free(&r);
    assert_int_equal(row(&fork, 0), 0);
    sg_rows_free(&fork);
    assert_int_equal(taken(&l), 0);
}

static void passed_rows_do_not_change(void **state)
{
    (void)state;
    struct lender l = {0};
    struct sg_host_memory host = host_of(&l);
    struct sg_rows r = {0};
    segue_error err;
    const void *at = NULL;
    sg_rows_init(&r, BLOCK, 8, 0, &host, 8);
    write_rows(&r, 0, 6, 0);
    const unsigned char *before = sg_rows_at(&r, 0);
    assert_int_equal(sg_rows_pass(&r, 0, 6, SG_F32, SG_F32, "ref", 3, NULL, &err), SEGUE_OK);     /* asks only */
    write_rows(&r, 0, 1, 20);
    assert_ptr_equal(sg_rows_at(&r, 0), before);
    assert_int_equal(sg_rows_pass(&r, 0, 6, SG_F32, SG_F32, "ref", 3, &at, &err), SEGUE_OK);
    assert_ptr_equal(at, before);
    write_rows(&r, 0, 1, 30);
    assert_int_equal(*(const uint64_t *)at, 20);
    assert_int_equal(row(&r, 0), 30);
    assert_int_equal(sg_rows_pass(&r, 0, 6, SG_F32, SG_F32, "ref", 3, NULL, &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "ref: slot 3"));
    assert_int_equal(sg_rows_pass(&r, 4, 6, SG_F16, SG_F32, "ref", 3, NULL, &err), SEGUE_EUNSUPPORTED);
    sg_rows_free(&r);
}

static void without_memory_of_the_unit_rows_are_ordinary(void **state)
{
    (void)state;
    struct lender l = {.refuses = 1};
    struct sg_host_memory host = host_of(&l);
    struct sg_rows r = {0};
    segue_error err;
    sg_rows_init(&r, BLOCK, 8, 0, &host, 8);
    write_rows(&r, 0, 20, 0);
    assert_int_equal(row(&r, 19), 19);
    assert_int_equal(sg_rows_pass(&r, 0, 20, SG_F32, SG_F32, "ref", 0, NULL, &err), SEGUE_EUNSUPPORTED);
    sg_rows_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_that_of_the_expected_rows), cmocka_unit_test(rows_follow_each_other_after_growing),
        cmocka_unit_test(fork_keeps_its_rows),                 cmocka_unit_test(passed_rows_do_not_change),
        cmocka_unit_test(without_memory_of_the_unit_rows_are_ordinary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
