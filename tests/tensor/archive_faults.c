/* archive_faults.c: every allocation and every write that can fail while weights are opened, joined or
 * written is made to fail once: the status says so, nothing leaks (the address sanitizer watches), nothing
 * half-written stays. Needs a build with SEGUE_FAULTS.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef SEGUE_FAULTS

#include "base/file.h"
#include "base/mem.h"
#include "tensor/archive.h"
#include "tensor/json.h"

#define GOLDEN SEGUE_SOURCE_DIR "/tests/golden/archives/"

enum { ATTEMPTS = 2000 };

static void opening_survives_every_allocation(void **state)
{
    (void)state;
    const char *const paths[] = {GOLDEN "kinds.gguf", GOLDEN "split-00001-of-00003.gguf",
                                 GOLDEN "sharded",    GOLDEN "sharded/model-00001-of-00003.safetensors",
                                 GOLDEN "mlx",        GOLDEN "legacy.bin",
                                 GOLDEN "v2.bin"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        uint64_t n = 1;
        for (;; n++) {
            struct sg_archive *a = NULL;
            segue_error err;
            assert_true(n < ATTEMPTS);
            sg_fault_alloc(n);
            segue_status s = sg_archive_open(&a, paths[i], &err);
            sg_fault_alloc(0);
            sg_archive_close(a);
            if (s == SEGUE_OK) break;
            if (s != SEGUE_EMEMORY)
                fail_msg("%s, allocation %llu: %s", paths[i], (unsigned long long)n, err.text);
            assert_null(a);
        }
        assert_true(n > 5);
    }
}

static void joining_survives_every_allocation(void **state)
{
    (void)state;
    struct sg_archive *a = NULL;
    json_t *config = NULL;
    assert_int_equal(sg_archive_open(&a, GOLDEN "mlx", NULL), SEGUE_OK);
    assert_int_equal(sg_json_read(&config, GOLDEN "mlx/config.json", 1 << 20, NULL), SEGUE_OK);
    for (uint64_t n = 1;; n++) {
        assert_true(n < ATTEMPTS);
        sg_fault_alloc(n);
        segue_status s = sg_archive_join(a, config, NULL);
        sg_fault_alloc(0);
        if (s == SEGUE_OK) break;
        assert_int_equal(s, SEGUE_EMEMORY);
        assert_int_equal(a->tensors_n, 19);
        assert_int_equal(sg_archive_find(a, "model.a.weight")->storage, SG_U32);
    }
    assert_int_equal(a->tensors_n, 7);
    json_decref(config);
    sg_archive_close(a);
}

static void writing_survives_every_failure(void **state)
{
    (void)state;
    char folder[] = "/tmp/segue-faults-XXXXXX", path[64];
    float x[4] = {1, 2, 3, 4};
    const struct sg_st_item items[] =
        {{.name = "x", .storage = SG_F32, .rank = 1, .shape = {4}, .data = x},
         {.name = "y", .storage = SG_F32, .rank = 2, .shape = {2, 2}, .data = x}};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/out", folder);
    for (int writes = 0; writes < 2; writes++)
        for (uint64_t n = 1;; n++) {
            assert_true(n < ATTEMPTS);
            if (writes) sg_fault_write(n);
            else sg_fault_alloc(n);
            segue_status s = sg_safetensors_write(path, items, 2, NULL);
            sg_fault_alloc(0);
            sg_fault_write(0);
            if (s == SEGUE_OK) break;
            assert_int_equal(s, writes ? SEGUE_EIO : SEGUE_EMEMORY);
            if (writes == 0) assert_int_equal(sg_path_kind(path), SG_PATH_NONE);
        }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* fails when something was left aside */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_survives_every_allocation),
        cmocka_unit_test(joining_survives_every_allocation),
        cmocka_unit_test(writing_survives_every_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("SKIP tensor_faults: built without SEGUE_FAULTS; `make test` builds with it");
    return 77;
}

#endif
