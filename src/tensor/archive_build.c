/* archive_build.c: see archive_build.h. All limits on names, counts and offsets are checked here,
 * so that every format is validated by the same rules and with the same messages.
 * SPDX-License-Identifier: MIT */
#include "tensor/archive_build.h"

#include <stdlib.h>
#include <string.h>

int sg_mul64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b && a > UINT64_MAX / b) return 0;
    *out = a * b;
    return 1;
}

/* Both lists grow before the file is mapped, so that running out of memory cannot leave a mapping
 * without an owner. */
segue_status sg_build_file(struct sg_build *b, const char *path, uint32_t *file, segue_error *err)
{
    struct sg_archive *a = b->a;
    if (a->files_n == SG_FILES_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "open model: %s: more than %d parts; merge them first", a->path,
                       SG_FILES_MAX);
    struct sg_map *maps = sg_realloc(a->maps, (a->files_n + 1) * sizeof *maps);
    if (!maps) return sg_no_memory(path, sizeof *maps, err);
    a->maps = maps;
    char **files = sg_realloc(a->files, (a->files_n + 1) * sizeof *files);
    if (!files) return sg_no_memory(path, sizeof *files, err);
    a->files = files;
    char *name = sg_strndup(path, strlen(path));
    if (!name) return sg_no_memory(path, strlen(path), err);
    struct sg_map map;
    segue_status s = sg_map_open(&map, path, err);
    if (s != SEGUE_OK) {
        sg_free(name);
        return s;
    }
    *file = a->files_n++;
    a->maps[*file] = map;
    a->files[*file] = name;
    return SEGUE_OK;
}

/* Grow a list of n items of `size` bytes to hold `need`, zeroing the new ones. A single append
 * doubles the capacity, a larger request allocates exactly what it needs. */
static segue_status grow(void **list, uint32_t n, uint32_t need, uint32_t *cap, size_t size, const char *what,
                         segue_error *err)
{
    if (need <= *cap) return SEGUE_OK;
    size_t want = need > n + 1 ? need : *cap * (size_t)2 > 64 ? *cap * (size_t)2 : 64;
    char *p = sg_realloc(*list, want * size);
    if (!p) return sg_no_memory(what, want * size, err);
    memset(p + n * size, 0, (want - n) * size);
    *list = p;
    *cap = (uint32_t)want;
    return SEGUE_OK;
}

/* The limits are checked before memory is allocated. */
segue_status sg_build_reserve(struct sg_build *b, uint32_t tensors, uint32_t meta, segue_error *err)
{
    struct sg_archive *a = b->a;
    void *list = a->tensors;
    if (tensors > SG_TENSORS_MAX - a->tensors_n)
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: more than %d tensors; the file is damaged",
                       a->path, SG_TENSORS_MAX);
    if (meta > SG_META_MAX - a->meta_n)
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: more than %d keys; the file is damaged", a->path,
                       SG_META_MAX);
    segue_status s =
        grow(&list, a->tensors_n, a->tensors_n + tensors, &b->tensors_cap, sizeof *a->tensors, a->path, err);
    a->tensors = list;
    if (s != SEGUE_OK) return s;
    list = a->meta;
    s = grow(&list, a->meta_n, a->meta_n + meta, &b->meta_cap, sizeof *a->meta, a->path, err);
    a->meta = list;
    return s;
}

/* Length in bytes of the UTF-8 character at s, of n >= 1 bytes; 0 when it is invalid, overlong or a
 * surrogate. */
static size_t utf8_size(const uint8_t *s, size_t n)
{
    static const uint32_t min_code[5] = {0, 0, 0x80, 0x800, 0x10000};   /* smallest code point of each length */
    size_t size = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (!size || size > n) return 0;
    uint32_t c = size == 1 ? s[0] : s[0] & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if (s[i] >> 6 != 2) return 0;
        c = c << 6 | (s[i] & 63u);
    }
    return c < min_code[size] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : size;
}

/* Names are printed to terminals, JSON and error messages, and compared with strcmp: characters
 * that would break any of these are refused once, here. A NUL inside a name would make two
 * different names compare equal. */
segue_status sg_build_name(struct sg_build *b, uint32_t file, const char *what, const char *s, size_t n,
                           const char **out, segue_error *err)
{
    const char *path = b->a->files[file];
    if (!n || n > SG_NAME_MAX)
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: a %s name of %zu bytes, allowed are 1 to %d; the file is damaged", path,
                       what, n, SG_NAME_MAX);
    for (size_t i = 0, k; i < n; i += k) {
        k = utf8_size((const uint8_t *)s + i, n - i);
        if (!k || (unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return sg_fail(err, SEGUE_EFORMAT,
                           "open model: %s: %s \"%.*s\": byte %zu of the name is %s; the file is damaged",
                           path, what, (int)(n < 80 ? n : 80), s, i, k ? "a control character" : "not UTF-8");
    }
    b->names += n + 1;
    if (b->names > SG_NAMES_MAX)
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: more than %d bytes of names; the file is damaged",
                       path, SG_NAMES_MAX);
    *out = sg_arena_strndup(&b->a->arena, s, n);
    return *out ? SEGUE_OK : sg_no_memory(path, n, err);
}

segue_status sg_build_tensor(struct sg_build *b, uint32_t file, const char *name, struct sg_tensor **out,
                             segue_error *err)
{
    SG_TRY(sg_build_reserve(b, 1, 0, err));
    *out = &b->a->tensors[b->a->tensors_n++];
    **out = (struct sg_tensor){.name = name, .file = file};
    return SEGUE_OK;
}

segue_status sg_build_meta(struct sg_build *b, const char *key, struct sg_meta **out, segue_error *err)
{
    SG_TRY(sg_build_reserve(b, 0, 1, err));
    *out = &b->a->meta[b->a->meta_n++];
    **out = (struct sg_meta){.key = key};
    return SEGUE_OK;
}

/* Also bounds the number of elements to INT64_MAX, so that later code can multiply rows and cols
 * without checks. */
segue_status sg_build_shape(struct sg_build *b, struct sg_tensor *t, segue_error *err)
{
    const char *path = b->a->files[t->file];
    uint64_t row = 0, total;
    t->cols = t->rank ? t->shape[t->rank - 1] : 1;
    t->rows = 1;
    int fits = 1;
    for (uint32_t i = 0; i + 1 < t->rank; i++) fits = fits && sg_mul64(t->rows, t->shape[i], &t->rows);
    if (!fits || !sg_mul64(t->rows, t->cols, &total) || total > INT64_MAX)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: tensor %s: the product of its %u dimensions overflows (last %llu); the file is damaged", path,
            t->name, t->rank, (unsigned long long)t->cols);
    if (t->storage == SG_OTHER) return SEGUE_OK;
    segue_error why;
    if (sg_storage_row_bytes(t->storage, t->cols, &row, &why) || !sg_mul64(row, t->rows, &t->bytes))
        return sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: tensor %s: %llu columns of type %s (blocks of %u) are not whole blocks, or exceed 2^64 "
            "bytes; the file is damaged",
            path, t->name, (unsigned long long)t->cols, t->stored_as, sg_storage_info(t->storage)->block);
    return SEGUE_OK;
}

/* Two comparisons without a sum, because offset + bytes may wrap around. */
segue_status sg_build_set_data(struct sg_build *b, struct sg_tensor *t, segue_error *err)
{
    const struct sg_map *map = &b->a->maps[t->file];
    if (t->offset > map->size || t->bytes > map->size - t->offset)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: tensor %s: bytes %llu to %llu+%llu, but the file has %zu; it is truncated or "
            "damaged, download it again",
            b->a->files[t->file], t->name, (unsigned long long)t->offset, (unsigned long long)t->offset,
            (unsigned long long)t->bytes, map->size);
    t->data = map->data + t->offset;
    t->mapped = map->id.size != 0;
    return SEGUE_OK;
}

/* --- sorting --- */

/* qsort passes no context to the comparison, so records with keys and indices are sorted
 * instead of indices. */
struct by_offset {
    uint64_t offset, bytes;
    uint32_t index;
};

/* At the same offset, empty tensors sort before others: they overlap nothing. Comparing the index
 * makes the order total. */
static int compare_offsets(const void *x, const void *y)
{
    const struct by_offset *a = x, *b = y;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

segue_status sg_build_by_offset(struct sg_build *b, uint32_t from, uint32_t to, uint32_t **out,
                                segue_error *err)
{
    uint32_t n = to - from, *list = sg_alloc(n * sizeof *list);
    struct by_offset *keys = sg_alloc(n * sizeof *keys);
    if (!keys || !list) {
        sg_free(keys);
        sg_free(list);
        return sg_no_memory(b->a->path, n * sizeof *keys, err);
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_tensor *t = &b->a->tensors[from + i];
        keys[i] = (struct by_offset){t->offset, t->bytes, from + i};
    }
    qsort(keys, n, sizeof *keys, compare_offsets);
    for (uint32_t i = 0; i < n; i++) list[i] = keys[i].index;
    sg_free(keys);
    *out = list;
    return SEGUE_OK;
}

/* Sort record of a tensor or key name. */
struct by_name {
    const char *name;
    uint32_t index;
};

static int compare_names(const void *x, const void *y)
{
    const struct by_name *a = x, *b = y;
    int c = strcmp(a->name, b->name);
    return c ? c : a->index < b->index ? -1 : 1;
}

/* Sort keys[n] and write their indices to out. EFORMAT for duplicates. */
static segue_status sort_names(struct by_name *keys, uint32_t n, uint32_t *out, const char *what,
                               const char *path, segue_error *err)
{
    qsort(keys, n, sizeof *keys, compare_names);
    for (uint32_t i = 0; i < n; i++) {
        if (i && !strcmp(keys[i - 1].name, keys[i].name))
            return sg_fail(
                err, SEGUE_EFORMAT,
                "open model: %s: duplicate %s %s (entries %u and %u); the file is damaged", path,
                what, keys[i].name, keys[i - 1].index, keys[i].index);
        out[i] = keys[i].index;
    }
    return SEGUE_OK;
}

/* May be called again after the lists changed (mlx.c): both indices are rebuilt. */
segue_status sg_build_finish(struct sg_build *b, segue_error *err)
{
    struct sg_archive *a = b->a;
    uint32_t keys_n = a->tensors_n > a->meta_n ? a->tensors_n : a->meta_n;
    struct by_name *keys = sg_alloc(keys_n * sizeof *keys);
    a->by_name = sg_realloc(a->by_name, a->tensors_n * sizeof *a->by_name);
    a->meta_by_key = sg_realloc(a->meta_by_key, a->meta_n * sizeof *a->meta_by_key);
    if (!keys || !a->by_name || !a->meta_by_key) {
        sg_free(keys);
        return sg_no_memory(a->path, keys_n * sizeof *keys, err);
    }
    for (uint32_t i = 0; i < a->tensors_n; i++) {
        keys[i] = (struct by_name){a->tensors[i].name, i};
        a->tensors[i].maps = a->maps;
        a->tensors[i].maps_n = a->files_n;
    }
    segue_status s = sort_names(keys, a->tensors_n, a->by_name, "tensor", a->path, err);
    for (uint32_t i = 0; i < a->meta_n; i++) keys[i] = (struct by_name){a->meta[i].key, i};
    if (s == SEGUE_OK) s = sort_names(keys, a->meta_n, a->meta_by_key, "key", a->path, err);
    sg_free(keys);
    return s;
}
