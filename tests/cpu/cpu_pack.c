/* cpu_pack.c: packed weights and their cache, below the command line: layouts against their version,
 * verification of every weight byte, stamps, the size limit of the folder, its lock, non-finite
 * weights, failing allocations.
 * SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/store.h"
#include "unit/cpu/packfile.h"
#include "unit/spec.h"

extern const struct sg_unit_ops sg_unit_cpu;

enum { ROWS = 1024, COLS = 512 };

static uint32_t seed = 7;
static uint8_t noise(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (uint8_t)(seed >> 24) & 0x3f;     /* no exponent has all bits set: all numbers are finite */
}

/* Opens a unit; unit_close closes it. */
static struct sg_cpu_unit *unit_open(const char *text)
{
    struct sg_unit_spec spec;
    struct sg_unit *u = NULL;
    segue_error err = {0};
    assert_int_equal(sg_spec_parse(&spec, text, NULL), SEGUE_OK);
    if (sg_unit_cpu.open(&u, &spec, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return (struct sg_cpu_unit *)(void *)u;
}
static void unit_close(struct sg_cpu_unit *u) { sg_unit_cpu.close((struct sg_unit *)(void *)u); }

/* A tensor of random bytes; the caller frees the data. */
static uint8_t *tensor_make(struct sg_tensor *t, enum sg_storage storage, uint64_t rows, uint64_t cols)
{
    uint64_t bytes;
    assert_int_equal(sg_storage_row_bytes(storage, cols, &bytes, NULL), SEGUE_OK);
    uint8_t *data = malloc(rows * bytes);
    for (uint64_t i = 0; i < rows * bytes; i++) data[i] = noise();
    *t = (struct sg_tensor){.name = sg_storage_info(storage)->name, .storage = storage, .rank = 2, .shape = {rows, cols},
                            .rows = rows, .cols = cols, .data = data, .bytes = rows * bytes};
    return data;
}

/* Packs the tensors completely. The caller owns the set, also on failure. */
static segue_status pack(struct sg_cpu_unit *u, const struct sg_tensor **tensors, uint32_t n, const struct sg_weight_cache *cache,
                         struct sg_pack_set **out, segue_error *err)
{
    struct sg_graph g = {.tensors = tensors, .tensors_n = n};
    const struct sg_graph *graphs[1] = {&g};
    struct sg_pack_set *set = sg_alloc(sizeof *set);
    *out = set;
    if (!set) return SEGUE_EMEMORY;
    atomic_init(&set->refs, 1u);
    for (uint32_t i = 0; i < n; i++)
        if (!sg_pack_request(set, tensors[i], 0, (uint32_t)tensors[i]->rows)) return SEGUE_EMEMORY;
    return sg_pack_fill(set, u, graphs, 1, cache, err);
}

/* Hashes of the packed layouts of fixed weights, by version. */
static const struct { uint32_t layout; const char *hash; } known[] = {
    {1, "4a4a27abd7972e9dd917ae8d94f325c5"},
    {2, "56248bcf7691fda5345bc6be91bd8125"},
    {3, "56248bcf7691fda5345bc6be91bd8125"},
};

/* Packs one tensor of each storage and compares the hash of all layouts with the one recorded for this
 * version. */
static void layouts_have_a_version(void **state)
{
    static const enum sg_storage storages[] = {SG_F32,  SG_F16,  SG_BF16, SG_Q4_0, SG_Q4_1, SG_Q5_0, SG_Q5_1,   SG_Q8_0,
                                               SG_Q2_K, SG_Q3_K, SG_Q4_K, SG_Q5_K, SG_Q6_K, SG_IQ4_NL, SG_MXFP4};
    struct sg_cpu_unit *u = unit_open("cpu:isa=generic,threads=2");
    struct sg_hash h = {0, 0};
    char hex[33];
    (void)state;
    seed = 11;
    for (size_t i = 0; i < sizeof storages / sizeof storages[0]; i++) {
        struct sg_tensor t;
        const struct sg_tensor *list[1] = {&t};
        struct sg_pack_set *set;
        segue_error err = {0};
        uint8_t *data = tensor_make(&t, storages[i], 40, 256);
        if (pack(u, list, 1, NULL, &set, &err) != SEGUE_OK) fail_msg("%s", err.text);
        const struct sg_packed_weight *w = set->items[0];
        h = sg_hash_join(h, sg_hash_bytes(w->data, w->groups * w->group_bytes, (uint64_t)w->kind));
        sg_pack_unref(set);
        free(data);
    }
    sg_hash_hex(h, hex);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].layout == SG_PACK_LAYOUT && strcmp(known[i].hash, hex) != 0)
            fail_msg("packed bytes have changed: raise SG_PACK_LAYOUT in kernels.h, and add {%u, \"%s\"} here",
                     SG_PACK_LAYOUT + 1, hex);
    assert_int_equal(known[sizeof known / sizeof known[0] - 1].layout, SG_PACK_LAYOUT);
    unit_close(u);
}

/* Two tensors and a cache folder of their own process. */
struct cache_case {
    char folder[64];
    struct sg_cpu_unit *u;
    struct sg_tensor t[2];
    const struct sg_tensor *list[2];
    uint8_t *data[2];
    struct sg_weight_cache cache;
};

/* Deletes a folder with its content. */
static void folder_remove(const char *folder)
{
    char path[512];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (unlink(path)) folder_remove(path);
    }
    if (d) closedir(d);
    rmdir(folder);
}

static void cache_case_begin(struct cache_case *k)
{
    snprintf(k->folder, sizeof k->folder, "/tmp/segue-pack-%ld", (long)getpid());
    folder_remove(k->folder);
    k->u = unit_open("cpu:threads=2");
    seed = 3;
    k->data[0] = tensor_make(&k->t[0], SG_F16, ROWS, COLS);
    k->data[1] = tensor_make(&k->t[1], SG_Q8_0, ROWS, COLS);
    k->list[0] = &k->t[0];
    k->list[1] = &k->t[1];
    k->cache = (struct sg_weight_cache){.folder = k->folder,
                                        .bytes_max = 1u << 30,
                                        .weights = {1, 2},
                                        .stamp = {3, 4},
                                        .exact = 1};
}

static void cache_case_end(struct cache_case *k)
{
    folder_remove(k->folder);
    free(k->data[0]);
    free(k->data[1]);
    unit_close(k->u);
}

/* Packs with the cache, compares with a pack without it (compare), and returns what became of the
 * entry. */
static const char *pack_result(struct cache_case *k, int compare)
{
    struct sg_pack_set *set, *fresh;
    segue_error err = {0};
    if (pack(k->u, k->list, 2, &k->cache, &set, &err) != SEGUE_OK) fail_msg("%s", err.text);
    assert_int_equal(pack(k->u, k->list, 2, NULL, &fresh, NULL), SEGUE_OK);
    for (uint32_t i = 0; compare && i < 2; i++) {
        const struct sg_packed_weight *a = set->items[i], *b = fresh->items[i];
        assert_memory_equal(a->data, b->data, a->groups * a->group_bytes);
    }
    const char *cache_case = set->cache_result;
    sg_pack_unref(fresh);
    sg_pack_unref(set);
    return cache_case;
}

/* Flips single bytes of the weights: each must lead to a new pack. */
static void every_weight_byte_is_verified(void **state)
{
    struct cache_case k;
    (void)state;
    cache_case_begin(&k);
    assert_string_equal(pack_result(&k, 1), "written");
    assert_string_equal(pack_result(&k, 1), "mapped");
    k.cache.exact = 0;                         /* the file ids prove nothing: the bytes are hashed */
    assert_string_equal(pack_result(&k, 1), "mapped");
    for (int i = 0; i < 40; i++) {
        uint32_t which = (uint32_t)i % 2;
        uint64_t n = k.t[which].bytes, at = i == 0 ? 0 : i == 1 ? n - 1 : (uint64_t)i * 2654435761u % n;
        k.data[which][at] ^= 1;
        assert_string_equal(pack_result(&k, 1), "written");
        if (i % 4 == 0) assert_string_equal(pack_result(&k, 1), "mapped");
    }
    cache_case_end(&k);
}

/* A stamp makes hashing unnecessary for exactly the files that it names: bytes that change without a
 * new file id go unnoticed. */
static void stamps_identify_files(void **state)
{
    struct cache_case k;
    (void)state;
    cache_case_begin(&k);
    assert_string_equal(pack_result(&k, 1), "written");
    k.data[0][77] ^= 1;
    assert_string_equal(pack_result(&k, 0), "mapped");
    k.cache.stamp.lo++;                       /* another file id: hashed, found changed */
    assert_string_equal(pack_result(&k, 1), "written");
    k.cache.stamp.lo++;                       /* another file id, same bytes: stamped again */
    assert_string_equal(pack_result(&k, 1), "mapped");
    k.data[0][77] ^= 1;
    assert_string_equal(pack_result(&k, 0), "mapped");
    k.cache.exact = 0;
    assert_string_equal(pack_result(&k, 1), "written");
    k.data[0][77] ^= 1;                      /* without an exact file id no stamp is written */
    k.cache.exact = 1;
    k.cache.stamp.lo++;
    assert_string_equal(pack_result(&k, 1), "written");
    cache_case_end(&k);
}

/* Identity, tensor name and permutation are part of the key. */
static void other_weights_have_other_keys(void **state)
{
    struct cache_case k;
    (void)state;
    cache_case_begin(&k);
    assert_string_equal(pack_result(&k, 1), "written");
    k.cache.weights.hi++;
    assert_string_equal(pack_result(&k, 1), "written");
    k.t[0].name = "other";
    assert_string_equal(pack_result(&k, 1), "written");
    k.t[0].row_perm = (struct sg_perm){2, ROWS / 2, 1, 0};
    assert_string_equal(pack_result(&k, 1), "written");
    assert_string_equal(pack_result(&k, 1), "mapped");
    k.t[0].row_perm = (struct sg_perm){0};
    assert_string_equal(pack_result(&k, 1), "mapped");
    cache_case_end(&k);
}

/* Size of all files of the cache. */
static uint64_t folder_bytes(const struct cache_case *k)
{
    char path[512];
    struct stat st;
    uint64_t sum = 0;
    snprintf(path, sizeof path, "%s/cpu", k->folder);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/cpu/%s", k->folder, e->d_name);
        if (!stat(path, &st) && S_ISREG(st.st_mode)) sum += (uint64_t)st.st_size;
    }
    if (d) closedir(d);
    return sum;
}

/* Old entries are evicted, recently used ones stay. */
static void folder_size_is_limited(void **state)
{
    struct cache_case k;
    (void)state;
    cache_case_begin(&k);
    assert_string_equal(pack_result(&k, 1), "written");
    uint64_t one = folder_bytes(&k);
    k.cache.bytes_max = 3 * one;
    for (int i = 0; i < 7; i++) {
        k.cache.weights.lo = 10 + (uint64_t)i;
        assert_string_equal(pack_result(&k, 1), "written");
        assert_true(folder_bytes(&k) <= k.cache.bytes_max);
        k.cache.weights.lo = 1;               /* used in every round, so it is not evicted */
        assert_string_equal(pack_result(&k, 1), "mapped");
    }
    k.cache.bytes_max = one / 2;                   /* smaller than one entry: nothing is cached */
    k.cache.weights.lo = 99;
    assert_null(pack_result(&k, 1));
    cache_case_end(&k);
}

/* A held lock prevents writing, not reading. */
static void one_writer_at_a_time(void **state)
{
    struct cache_case k;
    char path[128];
    int lock, second;
    segue_error err;
    (void)state;
    cache_case_begin(&k);
    snprintf(path, sizeof path, "%s/cpu", k.folder);
    assert_int_equal(sg_store_lock(path, &lock, &err), SEGUE_OK);
    assert_int_equal(sg_store_lock(path, &second, &err), SEGUE_EIO);
    assert_non_null(strstr(err.text, "another process"));
    assert_null(pack_result(&k, 1));
    sg_store_unlock(lock);
    assert_string_equal(pack_result(&k, 1), "written");
    assert_int_equal(sg_store_lock(path, &lock, &err), SEGUE_OK);
    assert_string_equal(pack_result(&k, 1), "mapped");   /* readers need no lock */
    sg_store_unlock(lock);
    cache_case_end(&k);
}

/* The lowest row with NaN is reported, and nothing is cached. */
static void weights_are_finite(void **state)
{
    struct cache_case k;
    struct sg_pack_set *set;
    segue_error err = {0};
    (void)state;
    cache_case_begin(&k);
    k.data[0][2 * (700 * COLS + 5) + 1] = 0x7e;
    k.data[0][2 * (900 * COLS + 5) + 1] = 0x7e;
    assert_int_equal(pack(k.u, k.list, 2, &k.cache, &set, &err), SEGUE_EFORMAT);
    assert_non_null(strstr(err.text, "f16: row 700 "));
    sg_pack_unref(set);
    assert_int_equal(folder_bytes(&k), 0);
    cache_case_end(&k);
}

/* Fails the first, second, ... allocation, without and with an entry in the folder. */
static void allocations_may_fail(void **state)
{
    (void)state;
#ifdef SEGUE_FAULTS
    struct cache_case k;
    cache_case_begin(&k);
    for (int warm = 0; warm < 2; warm++) {
        uint64_t n = 1;
        for (; n < 1000; n++) {
            struct sg_pack_set *set;
            segue_error err = {0};
            if (!warm) folder_remove(k.folder);
            k.cache.exact = n % 2;
            sg_fault_alloc(n);
            segue_status s = pack(k.u, k.list, 2, &k.cache, &set, &err);
            void *probe = sg_alloc(1);
            sg_fault_alloc(0);
            if (s != SEGUE_OK && s != SEGUE_EMEMORY) fail_msg("allocation %llu: %s", (unsigned long long)n, err.text);
            if (set) sg_pack_unref(set);
            sg_free(probe);
            if (s == SEGUE_OK && probe) break;
        }
        assert_true(n > 10 && n < 1000);
    }
    cache_case_end(&k);
#else
    skip();
#endif
}

/* A file id is exact for files that were not written within the last minute, on file systems that date
 * all writes. */
static void file_ids_of_old_files_are_exact(void **state)
{
    const uint64_t s = 1000000000u, now = 2000000 * s, ext = 0xEF53;
    (void)state;
    assert_true(sg_file_id_is_exact(ext, now - 61 * s, now));
    assert_false(sg_file_id_is_exact(ext, now - 59 * s, now));
    assert_false(sg_file_id_is_exact(ext, now, now));
    assert_false(sg_file_id_is_exact(ext, now + 100 * s, now));        /* in the future: the clock was changed */
    assert_false(sg_file_id_is_exact(0x01021994, now - 100 * s, now)); /* tmpfs does not date writes through a mapping */
    assert_false(sg_file_id_is_exact(0x6969, now - 100 * s, now));     /* nfs */
    assert_false(sg_file_id_is_exact(0x4d44, now - 100 * s, now));     /* fat */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_have_a_version),   cmocka_unit_test(every_weight_byte_is_verified),
        cmocka_unit_test(stamps_identify_files),         cmocka_unit_test(other_weights_have_other_keys),
        cmocka_unit_test(folder_size_is_limited),    cmocka_unit_test(one_writer_at_a_time),
        cmocka_unit_test(weights_are_finite),       cmocka_unit_test(allocations_may_fail),
        cmocka_unit_test(file_ids_of_old_files_are_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
