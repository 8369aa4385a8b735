/* walk_archive.h: touch everything that an open archive offers, within bounds: for hostile files and for
 * fuzzing, where only the sanitizers and the absence of a crash judge.
 * SPDX-License-Identifier: MIT */
#ifndef WALK_ARCHIVE_H
#define WALK_ARCHIVE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/archive.h"

/* Returns a sum so that no read is optimised away. */
static double walk_tensor(const struct sg_tensor *t)
{
    static float row[4096];
    double sum = (double)(t->rows ^ t->bytes);
    const uint64_t rows[] = {0, t->rows / 2, t->rows - 1};
    if (t->bytes) sum += t->data[0] + t->data[t->bytes - 1];
    if (!t->rows || !t->cols || sg_tensor_computable(t, NULL) != SEGUE_OK) return sum;
    uint64_t n = t->cols <= 4096 ? t->cols : 4096, from = t->cols <= 4096 ? 0 : (t->cols - 4096) / 32 * 32;
    for (int i = 0; i < 3; i++) {
        sg_tensor_row(t, rows[i], from, n, row);
        for (uint64_t k = 0; k < n; k++) sum += (double)row[k];
    }
    return sum + sg_tensor_finite(t, NULL);
}

static double walk_meta(const struct sg_meta *m)
{
    double sum = (double)strlen(m->key);
    size_t len;
    if (m->type == SG_META_STRING && m->v.s.len) sum += m->v.s.data[0] + m->v.s.data[m->v.s.len - 1];
    for (uint64_t i = 0; m->type == SG_META_ARRAY && i < m->v.a.n && i < 4096; i++) {
        uint64_t k = i % 2 ? m->v.a.n - 1 - i / 2 : i / 2;
        sum += (double)sg_meta_item_int(m, k) + sg_meta_item_float(m, k);
        if (m->item != SG_META_STRING) continue;
        const char *s = sg_meta_item_string(m, k, &len);
        if (len) sum += s[0] + s[len - 1];
    }
    return sum;
}

static double walk_archive(const struct sg_archive *a)
{
    double sum = (double)sg_archive_sample(a).lo;
    for (uint32_t i = 0; i < a->tensors_n; i++) {
        if (sg_archive_find(a, a->tensors[i].name) != &a->tensors[i]) abort();
        sum += walk_tensor(&a->tensors[i]);
    }
    for (uint32_t i = 0; i < a->meta_n; i++) {
        if (sg_meta_find(a, a->meta[i].key) != &a->meta[i]) abort();
        sum += walk_meta(&a->meta[i]);
    }
    return sum;
}

/* Open from an exact copy on the heap, walk, join, walk, close. *opened: 1 when it was sound enough. */
static inline segue_status open_and_walk(const uint8_t *bytes, size_t n, const char *name, segue_error *err,
                                         int *opened)
{
    struct sg_archive *a = NULL;
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy) return SEGUE_EMEMORY;
    if (n) memcpy(copy, bytes, n);
    segue_status s = sg_archive_open_memory(&a, copy, n, name, err);
    if (opened) *opened = s == SEGUE_OK;
    if (s == SEGUE_OK) {
        volatile double sum = walk_archive(a);
        json_t *config = json_pack("{s{sisi}}", "quantization", "bits", 4, "group_size", 64);
        segue_status joined = sg_archive_join(a, NULL, NULL);
        if (joined != SEGUE_OK) joined = sg_archive_join(a, config, NULL);
        if (joined == SEGUE_OK) sum = walk_archive(a);
        json_decref(config);
        (void)sum;
    }
    sg_archive_close(a);
    free(copy);
    return s;
}

#endif
