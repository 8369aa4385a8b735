/* base.c: errors, arenas, checked products, buffers, number formats, files.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/num.h"

static void fail_keeps_one_line(void **state)
{
    (void)state;
    segue_error err;
    assert_int_equal(sg_fail(&err, SEGUE_EIO, "open: %s: gone; look", "a\nb\x1b[0m"), SEGUE_EIO);
    assert_string_equal(err.text, "open: a?b?[0m: gone; look");
    assert_int_equal(sg_fail(NULL, SEGUE_EARG, "x"), SEGUE_EARG);
}

static void products_are_checked(void **state)
{
    (void)state;
    size_t out = 7;
    assert_int_equal(sg_mul(SIZE_MAX, 2, &out, "x", NULL), SEGUE_EFORMAT);
    assert_int_equal(out, 7);
    assert_int_equal(sg_mul(0, SIZE_MAX, &out, "x", NULL), SEGUE_OK);
    assert_int_equal(out, 0);
}

/* Every half, and fp32 values on both sides of every rounding border between neighbouring halves. */
static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float a = sg_f32_of_f16((uint16_t)h), b = sg_f32_of_f16((uint16_t)(h + 1));
        assert_int_equal(sg_f16_of_f32(a), h);
        if (h + 1 == 0x7c00) break;
        float middle = a + (b - a) / 2;
        assert_int_equal(sg_f16_of_f32(middle), h & 1 ? h + 1 : h);
        assert_int_equal(sg_f16_of_f32(nextafterf(middle, 0)), h);
        assert_int_equal(sg_f16_of_f32(nextafterf(middle, 1e9f)), h + 1);
        assert_int_equal(sg_f16_of_f32(-a), h | 0x8000);
    }
    assert_int_equal(sg_f16_of_f32(65519.f), 0x7bff);
    assert_int_equal(sg_f16_of_f32(65520.f), 0x7c00);
    assert_true(isnan(sg_f32_of_f16(sg_f16_of_f32(NAN))));
    assert_int_equal(sg_bf16_of_f32(1.00390625f), 0x3f80); /* tie goes to even */
    assert_true(isnan(sg_f32_of_bf16(sg_bf16_of_f32(sg_f32_of_bits(0x7f800001u)))));
}

static void buffers_keep_their_bound(void **state)
{
    (void)state;
    struct sg_buf b = {.limit = 5};
    assert_int_equal(sg_buf_puts(&b, "hello"), SEGUE_OK);
    assert_int_equal(sg_buf_puts(&b, "!"), SEGUE_ELIMIT);
    assert_string_equal(b.data, "hello");
    assert_int_equal(b.failed, SEGUE_ELIMIT);
    sg_buf_free(&b);
}

static void files_are_replaced_whole(void **state)
{
    (void)state;
    char folder[] = "/tmp/segue-base-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char *path = sg_path_join(folder, "f");
    struct sg_file_out out;
    struct sg_map map;
    for (int round = 0; round < 2; round++) {
        assert_int_equal(sg_file_begin(&out, path, 0600, NULL), SEGUE_OK);
        assert_int_equal(sg_file_put(&out, round ? "new" : "old", 3, NULL), SEGUE_OK);
        if (!round) assert_int_equal(sg_file_commit(&out, NULL), SEGUE_OK);
        sg_file_close(&out); /* the second round is given up: the old bytes stay */
    }
    assert_int_equal(sg_map_open(&map, path, NULL), SEGUE_OK);
    assert_int_equal(map.size, 3);
    assert_memory_equal(map.data, "old", 3);
    sg_map_close(&map);
    unlink(path);
    assert_int_equal(rmdir(folder), 0);
    sg_free(path);
}

static void hashes_are_the_known_ones(void **state)
{
    (void)state;
    struct sg_sha256 s;
    char hex[65];
    sg_sha256_begin(&s);
    sg_sha256_add(&s, "ab", 2);
    sg_sha256_add(&s, "c", 1);
    sg_sha256_end(&s, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_keeps_one_line),      cmocka_unit_test(products_are_checked),
        cmocka_unit_test(halves_round_to_nearest_even), cmocka_unit_test(buffers_keep_their_bound),
        cmocka_unit_test(files_are_replaced_whole), cmocka_unit_test(hashes_are_the_known_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
