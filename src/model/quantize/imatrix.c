/* imatrix.c: files with importance matrices; see imatrix.h.
 * SPDX-License-Identifier: MIT */
#include "model/quantize/imatrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/num.h"
#include "tensor/archive.h"
#include "tensor/ggufout.h"

enum { ENTRIES_MAX = 65536, NAME_BYTES = 256, COLS_MAX = 1 << 24 };

/* One matrix; its numbers are in the arena. */
struct imatrix_entry {
    char *name;
    const float *values;
    uint64_t n;
};

struct sg_imatrix {
    struct imatrix_entry *entries;     /* [n] sorted by name */
    uint32_t n, cap;
    struct sg_arena arena;
};

static segue_status damaged(const char *path, const char *why, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT, "read importance matrix: %s: %s; use a file of segue imatrix or llama-imatrix", path, why);
}

/* Append a matrix; its values [n] are to be written by the caller. */
static segue_status add_entry(struct sg_imatrix *im, const char *name, size_t len, uint64_t n, float **values, segue_error *err)
{
    if (im->n == im->cap) {
        uint32_t cap = im->cap ? 2 * im->cap : 256;
        struct imatrix_entry *wider = sg_realloc(im->entries, cap * sizeof *wider);
        if (!wider) return sg_no_memory("importance matrix", cap * sizeof *wider, err);
        im->entries = wider;
        im->cap = cap;
    }
    struct imatrix_entry *e = &im->entries[im->n];
    *values = sg_arena_alloc(&im->arena, n * sizeof **values);
    e->name = sg_arena_strndup(&im->arena, name, len);
    if (!*values || !e->name) return sg_no_memory("importance matrix", n * sizeof **values, err);
    e->values = *values;
    e->n = n;
    im->n++;
    return SEGUE_OK;
}

/* Divide by the count; every number must be a mean of squares. */
static segue_status finish_entry(const char *path, float *values, uint64_t n, double count, segue_error *err)
{
    for (uint64_t i = 0; i < n; i++) {
        values[i] = (float)((double)values[i] / count);
        if (!(values[i] >= 0) || !isfinite(values[i])) return damaged(path, "a number is negative or not finite", err);
    }
    return SEGUE_OK;
}

/* --- .dat: int32 number of matrices; each: int32 length of the name, name, int32 calls, int32 numbers, fp32 sums --- */

/* Take n bytes; NULL: fewer are left. */
static const uint8_t *take(const uint8_t **at, size_t *left, size_t n)
{
    const uint8_t *p = *at;
    if (n > *left) return NULL;
    *at += n;
    *left -= n;
    return p;
}

static segue_status read_dat_entry(struct sg_imatrix *im, const char *path, const uint8_t **at, size_t *left, segue_error *err)
{
    const uint8_t *p = take(at, left, 4), *name, *sums;
    uint32_t len = p ? sg_le32(p) : 0;
    float *values;
    if (!len || len >= NAME_BYTES || !(name = take(at, left, len)) || memchr(name, 0, len) || !(p = take(at, left, 8)))
        return damaged(path, "it is truncated or not an importance matrix", err);
    int32_t calls = (int32_t)sg_le32(p), n = (int32_t)sg_le32(p + 4);
    if (calls < 0 || n < 1 || n > COLS_MAX || !(sums = take(at, left, (size_t)n * 4)))
        return damaged(path, "it is truncated or not an importance matrix", err);
    SG_TRY(add_entry(im, (const char *)name, len, (uint64_t)n, &values, err));
    for (int32_t i = 0; i < n; i++) values[i] = sg_f32_of_bits(sg_le32(sums + 4 * (size_t)i));
    return finish_entry(path, values, (uint64_t)n, calls ? calls : 1, err);
}

static segue_status read_dat(struct sg_imatrix *im, const char *path, const uint8_t *bytes, size_t left, segue_error *err)
{
    const uint8_t *at = bytes, *p;
    uint32_t n = (p = take(&at, &left, 4)) ? sg_le32(p) : 0;
    if (!n || n > ENTRIES_MAX) return damaged(path, "it is not an importance matrix", err);
    for (uint32_t i = 0; i < n; i++) SG_TRY(read_dat_entry(im, path, &at, &left, err));
    return SEGUE_OK;
}

/* --- GGUF --- */

static segue_status read_gguf(struct sg_imatrix *im, const char *path, const struct sg_archive *a, segue_error *err)
{
    static const char ending[] = ".in_sum2";
    const size_t k = sizeof ending - 1;
    for (uint32_t i = 0; i < a->tensors_n; i++) {
        const struct sg_tensor *t = &a->tensors[i], *counts;
        size_t len = strlen(t->name);
        char name[NAME_BYTES + 16];
        float count, *values;
        if (len <= k || len - k >= NAME_BYTES || strcmp(t->name + len - k, ending)) continue;
        memcpy(name, t->name, len - k);
        strcpy(name + len - k, ".counts");
        counts = sg_archive_find(a, name);
        if (!counts || counts->storage != SG_F32 || t->storage != SG_F32 || t->cols < 1 || t->cols > COLS_MAX)
            return damaged(path, "a matrix has no counts or another type than f32", err);
        if (t->rows != 1 || counts->rows * counts->cols != 1) continue; /* experts */
        sg_tensor_read(counts, &count);
        if (!(count >= 0) || !isfinite(count)) return damaged(path, "a number is negative or not finite", err);
        if (count == 0) continue;
        SG_TRY(add_entry(im, t->name, len - k, t->cols, &values, err));
        sg_tensor_read(t, values);
        SG_TRY(finish_entry(path, values, t->cols, count, err));
    }
    return SEGUE_OK;
}

/* --- opening and looking up --- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct imatrix_entry *)a)->name, ((const struct imatrix_entry *)b)->name);
}

segue_status sg_imatrix_read(struct sg_imatrix **out, const uint8_t *bytes, size_t n, const char *path, segue_error *err)
{
    struct sg_imatrix *im = sg_alloc(sizeof *im);
    struct sg_archive *a;
    if (!im) return sg_no_memory("importance matrix", sizeof *im, err);
    segue_status s;
    if (n >= 4 && !memcmp(bytes, "GGUF", 4)) {
        s = sg_archive_open_memory(&a, bytes, n, path, err);
        if (s == SEGUE_OK) {
            s = read_gguf(im, path, a, err);
            sg_archive_close(a);
        }
    } else
        s = read_dat(im, path, bytes, n, err);
    if (s == SEGUE_OK && !im->n) s = damaged(path, "it has no matrix", err);
    if (s != SEGUE_OK) {
        sg_imatrix_close(im);
        return s;
    }
    qsort(im->entries, im->n, sizeof *im->entries, by_name);
    *out = im;
    return SEGUE_OK;
}

segue_status sg_imatrix_open(struct sg_imatrix **out, const char *path, segue_error *err)
{
    struct sg_map map;
    SG_TRY(sg_map_open(&map, path, err));
    segue_status s = sg_imatrix_read(out, map.data, map.size, path, err);
    sg_map_close(&map);
    return s;
}

void sg_imatrix_close(struct sg_imatrix *im)
{
    if (!im) return;
    sg_free(im->entries);
    sg_arena_free(&im->arena);
    sg_free(im);
}

const float *sg_imatrix_find(const struct sg_imatrix *im, const char *name, uint64_t *n)
{
    for (uint32_t low = 0, high = im->n; low < high;) {
        uint32_t middle = low + (high - low) / 2;
        const struct imatrix_entry *e = &im->entries[middle];
        int c = strcmp(name, e->name);
        if (!c) {
            *n = e->n;
            return e->values;
        }
        if (c < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* --- writing --- */

static segue_status write_items(struct sg_gguf_out *out, const char *path, const struct sg_imatrix_sums *list, uint32_t n,
                                struct sg_gguf_item *items, struct sg_arena *names, segue_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        items[2 * i] = (struct sg_gguf_item){.name = sg_arena_printf(names, "%s.in_sum2", list[i].name), .storage = SG_F32,
                                             .rank = 2, .shape = {1, list[i].cols}};
        items[2 * i + 1] = (struct sg_gguf_item){.name = sg_arena_printf(names, "%s.counts", list[i].name), .storage = SG_F32,
                                                 .rank = 2, .shape = {1, 1}};
        if (!items[2 * i].name || !items[2 * i + 1].name) return sg_no_memory("names", 256, err);
    }
    SG_TRY(sg_gguf_out_begin(out, path, items, 2 * n, err));
    for (uint32_t i = 0; i < n; i++) {
        const float count = (float)list[i].count;
        SG_TRY(sg_gguf_out_data(out, 2 * i, 0, list[i].sums, (size_t)list[i].cols * sizeof(float), err));
        SG_TRY(sg_gguf_out_data(out, 2 * i + 1, 0, &count, sizeof count, err));
    }
    return sg_gguf_out_commit(out, err);
}

segue_status sg_imatrix_write(const char *path, const struct sg_imatrix_sums *list, uint32_t n, const char *dataset,
                              uint32_t chunks, uint32_t chunk, segue_error *err)
{
    struct sg_gguf_out out = {.file.fd = -1};
    struct sg_gguf_item *items = sg_alloc(2 * (size_t)n * sizeof *items);
    struct sg_arena names = {0};
    if (!items) return sg_no_memory("importance matrix", 2 * (size_t)n * sizeof *items, err);
    sg_gguf_key_string(&out, "general.type", "imatrix", 7);
    sg_gguf_key_string_array(&out, "imatrix.datasets", 1);
    sg_gguf_put_string(&out, dataset, strlen(dataset));
    sg_gguf_key_u32(&out, "imatrix.chunk_count", chunks);
    sg_gguf_key_u32(&out, "imatrix.chunk_size", chunk);
    segue_status s = write_items(&out, path, list, n, items, &names, err);
    sg_gguf_out_close(&out);
    sg_arena_free(&names);
    sg_free(items);
    return s;
}
