/* keep.c: entries of the ane unit's cache folder: an entry is found with the bytes that were written, refused when anything
 * differs, written by one process at a time; the least recently used entries are evicted.
 * SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/store.h"
#include "unit/ane/anecache.h"

static char folder[64], inner[80];

static struct sg_ane_cache *open_cache(uint64_t bytes_max)
{
    struct sg_ane_cache *k = NULL;
    segue_error err;
    assert_int_equal(sg_ane_cache_open(&k, folder, bytes_max, &err), SEGUE_OK);
    return k;
}

static struct sg_hash key_of(uint64_t n) { return (struct sg_hash){n, ~n}; }

static void path_of(uint64_t n, char out[160])
{
    char hex[33];
    sg_hash_hex(key_of(n), hex);
    snprintf(out, 160, "%s/%s.program", inner, hex);
}

static void put(struct sg_ane_cache *k, uint64_t n, size_t bytes)
{
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    for (size_t i = 0; i < bytes; i++) text[i] = (char)(n + i * 7);
    sg_ane_cache_write(k, key_of(n), "program", (struct sg_ane_piece[]){{text, bytes / 3}, {text + bytes / 3, bytes - bytes / 3}},
                      2);
    free(text);
}

static int has(struct sg_ane_cache *k, uint64_t n, size_t bytes)
{
    struct sg_ane_cache_entry e;
    int found = sg_ane_cache_find(k, key_of(n), "program", &e);
    if (found) {
        assert_int_equal(e.bytes, bytes);
        assert_int_equal((uintptr_t)e.data % 64, 0);
        for (size_t i = 0; i < bytes; i++) assert_int_equal(e.data[i], (uint8_t)(n + i * 7));
    }
    sg_ane_cache_entry_close(&e);
    return found;
}

static void hits_and_misses(void **state)
{
    (void)state;
    struct sg_ane_cache *k = open_cache(1 << 20);
    assert_false(has(k, 1, 1000));
    put(k, 1, 1000);
    put(k, 2, 0);
    assert_true(has(k, 1, 1000));
    assert_true(has(k, 2, 0));
    assert_false(has(k, 3, 1));
    assert_int_equal(k->hits, 2);
    assert_int_equal(k->misses, 2);
    assert_int_equal(k->written, 2);
    assert_int_equal(k->refused, 0);
    assert_false(k->has_problem);
    sg_ane_cache_close(k);
    assert_false(sg_ane_cache_find(NULL, key_of(1), "program", &(struct sg_ane_cache_entry){0}));
    sg_ane_cache_write(NULL, key_of(1), "program", NULL, 0);
}

/* Writes byte c at an offset of a file. */
static void damage_byte(const char *path, long at, int c)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int was = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(was ^ c, f);
    fclose(f);
}

static void damage(void **state)
{
    (void)state;
    char path[160], other[160];
    path_of(10, path);
    path_of(11, other);
    for (long at = 0; at < 128 + 500; at += at < 72 ? 1 : 37) {
        struct sg_ane_cache *k = open_cache(1 << 20);
        put(k, 10, 500);
        damage_byte(path, at, 0x41);
        if (at < 72 || at >= 128) { /* the bytes between are padding of the header */
            assert_false(has(k, 10, 500));
            assert_true(k->has_problem && strstr(k->why, "it is written again"));
            assert_int_equal(k->refused, 1);
        }
        put(k, 10, 500);
        assert_true(has(k, 10, 500));
        sg_ane_cache_close(k);
    }
    struct sg_ane_cache *k = open_cache(1 << 20);
    const long cuts[] = {0, 1, 127, 128, 300, 627};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        put(k, 10, 500);
        assert_int_equal(truncate(path, cuts[i]), 0);
        assert_false(has(k, 10, 500));
    }
    put(k, 10, 500);
    FILE *f = fopen(path, "ab");
    fputc('x', f);
    fclose(f);
    assert_false(has(k, 10, 500));
    put(k, 10, 500);
    put(k, 11, 500);
    assert_int_equal(rename(path, other), 0); /* the entry of another key */
    assert_false(has(k, 11, 500));
    unlink(other);
    mkdir(path, 0700); /* a folder with the name of an entry: not found, not written */
    assert_false(has(k, 10, 500));
    uint64_t written = k->written;
    put(k, 10, 500);
    assert_int_equal(k->written, written);
    rmdir(path);
    sg_ane_cache_close(k);
}

static void one_writer(void **state)
{
    (void)state;
    struct sg_ane_cache *k = open_cache(1 << 20);
    segue_error err;
    int lock;
    assert_int_equal(sg_store_lock(inner, &lock, &err), SEGUE_OK);
    put(k, 20, 100);
    assert_true(k->has_problem && strstr(k->why, "another process"));
    assert_false(has(k, 20, 100));
    sg_store_unlock(lock);
    put(k, 20, 100);
    assert_true(has(k, 20, 100));
    sg_ane_cache_close(k);
}

/* Wait until a file gets a later date: Linux dates files by the coarse clock, which moves every few ms. */
static void next_date(void)
{
#ifdef CLOCK_REALTIME_COARSE
    const clockid_t clock = CLOCK_REALTIME_COARSE;
#else
    const clockid_t clock = CLOCK_REALTIME;
#endif
    struct timespec before, now;
    clock_gettime(clock, &before);
    do clock_gettime(clock, &now);
    while (now.tv_sec == before.tv_sec && now.tv_nsec == before.tv_nsec);
}

static void oldest_evicted(void **state)
{
    (void)state;
    enum { BYTES_MAX = 10 * (1000 + 128) };
    struct sg_ane_cache *k = open_cache(BYTES_MAX);
    uint64_t there = 0;
    for (uint64_t n = 100; n < 140; n++) {
        put(k, n, 1000);
        if (n > 100) assert_true(has(k, 100, 1000)); /* used after every write */
        next_date();
    }
    for (uint64_t n = 100; n < 140; n++) there += (uint64_t)has(k, n, 1000);
    assert_int_equal(there, 10);
    assert_true(has(k, 139, 1000));
    assert_false(has(k, 101, 1000));
    assert_false(k->has_problem);
    put(k, 200, BYTES_MAX); /* larger than the limit with its header: not written, nothing is evicted */
    assert_true(k->has_problem);
    assert_false(has(k, 200, BYTES_MAX));
    assert_true(has(k, 139, 1000));
    sg_ane_cache_close(k);
}

/* A verified entry is not hashed again while the identity of its file is unchanged; every change of the file changes that. */
static void stamps(void **state)
{
    (void)state;
    char path[160], stamp[168];
    path_of(300, path);
    snprintf(stamp, sizeof stamp, "%s.seal", path);
    struct sg_ane_cache *k = open_cache(1 << 20);
    put(k, 300, 700);
    assert_true(has(k, 300, 700));
    if (access(stamp, F_OK)) assert_int_equal(k->verified, 0); /* too young: a later change could have the same date */
    k->verify_young = 1;
    assert_true(has(k, 300, 700));
    assert_int_equal(access(stamp, F_OK), 0);
    assert_int_equal(k->verified, 0);
    assert_true(has(k, 300, 700));
    assert_true(has(k, 300, 700));
    assert_int_equal(k->verified, 2);
    damage_byte(path, 128 + 5, 0x41);
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[2]){{1, 0}, {1, 0}}, 0), 0); /* dates change with clock ticks */
    assert_false(has(k, 300, 700));
    assert_int_equal(k->refused, 1);
    put(k, 300, 700); /* another file of the same name: the old stamp does not match */
    assert_true(has(k, 300, 700));
    assert_int_equal(k->verified, 2);
    assert_true(has(k, 300, 700));
    assert_int_equal(k->verified, 3);
    damage_byte(stamp, 3, 0x41);
    assert_true(has(k, 300, 700));
    assert_int_equal(k->verified, 3);
    assert_true(has(k, 300, 700));
    assert_int_equal(k->verified, 4);
    assert_int_equal(k->refused, 1);
    sg_ane_cache_close(k);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/segue_keep_XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(inner, sizeof inner, "%s/ane", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    char path[400];
    DIR *d = opendir(inner);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", inner, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(inner);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(hits_and_misses), cmocka_unit_test(damage),
                                       cmocka_unit_test(one_writer), cmocka_unit_test(oldest_evicted), cmocka_unit_test(stamps)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
