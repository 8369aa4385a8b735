/* lowerblob.c: see lowerblob.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/lower/lowerblob.h"

#include <math.h>
#include <string.h>

#include "unit/ane/analysis/weight_exponent.h"
#include "unit/ane/blob/blob.h"

/* Applies the form to n values in place, then multiplies them by 2^exponent. */
static void apply_form(enum sg_ane_form form, int exponent, float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] = form == SG_ANE_PLUS_ONE ? 1.0f + x[i] : form == SG_ANE_NEG_EXP ? -expf(x[i]) : x[i];
    for (uint64_t i = 0; exponent && i < n; i++) x[i] = ldexpf(x[i], exponent);
}

/* Refuses a weight that fp16 cannot hold: `r` counts its numbers alone. A number that is too large would be
 * replaced, and in a matrix of mostly subnormal numbers the errors are too large, in particular where an engine reads these as 0
 * (flush). A bias may be that small. */
static segue_status check_range(const struct sg_tensor *t, const struct sg_range_report *r, int flush, segue_error *err)
{
    const double error = r->error + (flush ? r->flushed : 0);
    if (r->nans)
        return sg_fail(err, SEGUE_EFORMAT, "compile: ane: %s: %llu values are not numbers; check the file", t->name,
                       (unsigned long long)r->nans);
    if (r->clamped)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "compile: ane: %s: %llu values exceed the fp16 range of the engine, the largest is %g; use another unit",
                       t->name, (unsigned long long)r->clamped, (double)r->largest);
    if (t->rows > 1 && r->largest > 0 && r->largest < 0x1p-14f)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "compile: ane: %s: all values are below the fp16 range of the engine, the largest is %g; use another unit",
                       t->name, (double)r->largest);
    if (t->rows > 1 && error > SG_ANE_ERROR_MAX / 32 * r->size)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "compile: ane: %s: %llu of its values are below the fp16 range, an error of %.2g %%; use another unit",
                       t->name, (unsigned long long)(r->subnormal + r->lost), 100 * error / r->size);
    return SEGUE_OK;
}

/* Adds the counts of one weight to those of a file. */
static void add_counts(struct sg_range_report *sum, const struct sg_range_report *r)
{
    if (r->largest > sum->largest) sum->largest = r->largest;
    sum->clamped += r->clamped;
    sum->nans += r->nans;
    sum->subnormal += r->subnormal;
    sum->lost += r->lost;
    sum->error += r->error;
    sum->size += r->size;
    sum->flushed += r->flushed;
}

/* Converts the rows of a weight to fp16, one row at a time, so that no matrix is held in fp32. row: scratch
 * of one row. */
static segue_status convert(struct sg_ane_blobs *b, const struct sg_graph *g, const struct sg_weight *w, enum sg_ane_form form,
                            float *row, uint16_t *out, segue_error *err)
{
    const struct sg_tensor *t = g->tensors[w->tensor];
    struct sg_range_report range = {0};
    int exponent;
    SG_TRY(sg_ane_weight_exponent(g, (uint32_t)w->tensor, &exponent, err));
    for (uint32_t r = 0; r < w->rows; r++) {
        sg_tensor_row(t, (uint64_t)w->at + r, 0, t->cols, row);
        apply_form(form, exponent, row, t->cols);
        sg_compress_fp16(row, t->cols, out + (size_t)r * t->cols, &range);
    }
    add_counts(&b->range, &range);
    return check_range(t, &range, b->flush, err);
}

/* The weight of a blob that row *r of the concatenated weights belongs to; *r becomes its row there. */
static uint32_t weight_at(const struct sg_ane_weight_blob *s, uint64_t *r)
{
    uint32_t k = 0;
    while (*r >= s->weights[k].rows) *r -= s->weights[k++].rows;
    return k;
}

/* Row r of the concatenated weights of a blob, scaled as it is stored. Its fp16 form, half[cols], is only counted, in the report
 * of its weight. */
static segue_status read_row(struct sg_ane_blobs *b, const struct sg_graph *g, const struct sg_ane_weight_blob *s, uint64_t r,
                             float *row, uint16_t *half, struct sg_range_report *of, segue_error *err)
{
    uint32_t k = weight_at(s, &r);
    int exponent;
    const struct sg_tensor *t = g->tensors[s->weights[k].tensor];
    struct sg_range_report range = {0};
    SG_TRY(sg_ane_weight_exponent(g, (uint32_t)s->weights[k].tensor, &exponent, err));
    sg_tensor_row(t, (uint64_t)s->weights[k].at + r, 0, t->cols, row);
    apply_form(s->form, exponent, row, t->cols);
    sg_compress_fp16(row, t->cols, half, &range);
    add_counts(&b->range, &range);
    add_counts(&of[k], &range);
    range.error = range.largest = 0; /* a row alone may have small numbers only */
    return check_range(t, &range, 0, err);
}

/* A compressed matrix whose numbers fp16 holds may have scales that it does not. error: what they cause, of each weight. */
static segue_status check_scales(const struct sg_graph *g, const struct sg_ane_weight_blob *s, const struct sg_range_report *of,
                                 const double *error, int flush, segue_error *err)
{
    for (uint32_t k = 0; k < s->weights_n; k++) {
        const struct sg_tensor *t = g->tensors[s->weights[k].tensor];
        SG_TRY(check_range(t, &of[k], flush, err));
        if (error[k] > SG_ANE_ERROR_MAX / 32 * of[k].size)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "compile: ane: %s: its scales as %s are below the fp16 range, an error of %.2g %%; use storage=fp16",
                           t->name, sg_ane_storage_name(s->quant.storage), 100 * error[k] / of[k].size);
    }
    return SEGUE_OK;
}

/* Appends both records of a compressed matrix. */
static segue_status add_compressed(struct sg_ane_blobs *b, const struct sg_graph *g, struct sg_ane_weight_blob *out,
                                   segue_error *err)
{
    const struct sg_ane_quant *q = &out->quant;
    uint64_t rows = sg_ane_quant_rows(q);
    uint8_t *data = sg_alloc((size_t)q->data_bytes);
    uint16_t *aux = sg_alloc((size_t)q->aux_bytes), *half = sg_alloc((size_t)q->cols * sizeof *half);
    float *group = sg_alloc((size_t)(rows * q->cols) * sizeof *group);
    struct sg_range_report of[SG_ANE_STORED_MAX] = {{0}};
    double error[SG_ANE_STORED_MAX] = {0};
    segue_status status = data && aux && half && group ? SEGUE_OK : sg_no_memory("a weight", (size_t)q->data_bytes, err);
    for (uint64_t i = 0; i < q->groups && status == SEGUE_OK; i++) {
        for (uint64_t r = 0; r < rows && status == SEGUE_OK; r++)
            status = read_row(b, g, out, i * rows + r, group + r * q->cols, half, of, err);
        /* Several rows have a common palette, which has no scale. */
        uint64_t row = i * rows;
        if (status == SEGUE_OK) status = sg_ane_quant_put(q, i, group, data, aux, &error[weight_at(out, &row)], err);
    }
    if (status == SEGUE_OK) status = check_scales(g, out, of, error, b->flush, err);
    if (status == SEGUE_OK && !b->file.len) status = sg_blob_begin(&b->file, err);
    if (status == SEGUE_OK) status = sg_blob_add(&b->file, sg_ane_quant_type(q), data, q->data_bytes, 0, &out->record, err);
    if (status == SEGUE_OK) status = sg_blob_add(&b->file, SG_MIL_FP16, aux, q->aux_bytes, 0, &out->aux, err);
    sg_free(data);
    sg_free(aux);
    sg_free(half);
    sg_free(group);
    return status;
}

/* Appends the data of a blob to the file and sets its record and size; with sizes_only it only computes
 * them. */
static segue_status add_blob(struct sg_ane_blobs *b, const struct sg_graph *g, struct sg_ane_weight_blob *out, segue_error *err)
{
    const struct sg_tensor *t = g->tensors[out->weights[0].tensor];
    size_t n, bytes, rows = 0, at = 0;
    for (uint32_t i = 0; i < out->weights_n; i++) rows += out->weights[i].rows;
    SG_TRY(sg_mul(rows, (size_t)t->cols, &n, "a weight", err));
    SG_TRY(sg_mul(n, sizeof(uint16_t), &bytes, "a weight", err));
    out->numbers = n;
    if (out->form == SG_ANE_MATRIX && sg_ane_quant_of(&out->quant, b->storage, rows, t->cols, t->storage)) {
        if (!b->sizes_only) return add_compressed(b, g, out, err);
        sg_blob_measure(&b->length, out->quant.data_bytes, &out->record);
        sg_blob_measure(&b->length, out->quant.aux_bytes, &out->aux);
        return SEGUE_OK;
    }
    out->quant = (struct sg_ane_quant){0};
    if (b->sizes_only) {
        sg_blob_measure(&b->length, bytes, &out->record);
        return SEGUE_OK;
    }
    float *row = sg_alloc((size_t)t->cols * sizeof *row);
    uint16_t *half = sg_alloc(bytes);
    segue_status status = row && half ? SEGUE_OK : sg_no_memory("a weight in fp16", bytes, err);
    if (status == SEGUE_OK && !b->file.len) status = sg_blob_begin(&b->file, err);
    if (status == SEGUE_OK) {
        for (uint32_t i = 0; i < out->weights_n && status == SEGUE_OK; at += (size_t)t->cols * out->weights[i++].rows)
            status = convert(b, g, &out->weights[i], out->form, row, half + at, err);
    }
    if (status == SEGUE_OK) {
        status = sg_blob_add(&b->file, SG_MIL_FP16, half, bytes, 0, &out->record, err);
    }
    sg_free(row);
    sg_free(half);
    return status;
}

/* Call before the file changes: discards its hash and copies borrowed contents. */
static segue_status make_private(struct sg_ane_blobs *b, segue_error *err)
{
    struct sg_buf copy = {0};
    b->hashed = 0;
    if (!b->borrowed) return SEGUE_OK;
    if (sg_buf_add(&copy, b->file.data, b->file.len) != SEGUE_OK) return sg_no_memory("weights of a program", b->file.len, err);
    b->file = copy;
    b->borrowed = 0;
    return SEGUE_OK;
}

/* 1: the blob has exactly these weights in this form. */
static int holds_weights(const struct sg_ane_weight_blob *s, const struct sg_weight *w, uint32_t n, enum sg_ane_form form)
{
    int same = s->form == form && s->weights_n == n;
    for (uint32_t i = 0; same && i < n; i++)
        same = s->weights[i].tensor == w[i].tensor && s->weights[i].at == w[i].at && s->weights[i].rows == w[i].rows;
    return same;
}

segue_status sg_ane_blob_of(struct sg_ane_blobs *b, const struct sg_graph *g, const struct sg_weight *w, uint32_t n,
                            enum sg_ane_form form, struct sg_ane_weight_blob **out, segue_error *err)
{
    for (uint32_t i = 0; i < b->n; i++) {
        if (!holds_weights(&b->list[i], w, n, form)) continue;
        *out = &b->list[i];
        return SEGUE_OK;
    }
    if (b->n == b->cap) {
        uint32_t cap = b->cap ? b->cap * 2 : 32;
        struct sg_ane_weight_blob *more = sg_realloc(b->list, cap * sizeof *more);
        if (!more) return sg_no_memory("weights of a program", cap * sizeof *more, err);
        b->list = more;
        b->cap = cap;
    }
    SG_TRY(make_private(b, err));
    struct sg_ane_weight_blob *s = &b->list[b->n];
    *s = (struct sg_ane_weight_blob){.weights_n = n, .form = form, .program = UINT32_MAX};
    memcpy(s->weights, w, n * sizeof *w);
    SG_TRY(add_blob(b, g, s, err));
    b->n++;
    *out = s;
    return SEGUE_OK;
}

/* Rewrites one weight of a blob in place; it begins at element `at` of the blob. in: the whole tensor. */
static segue_status patch_one(struct sg_ane_blobs *b, const struct sg_graph *g, const struct sg_ane_weight_blob *s,
                              const struct sg_weight *w, uint64_t at, const float *in, segue_error *err)
{
    struct sg_blob blob;
    SG_TRY(make_private(b, err));
    SG_TRY(sg_blob_at(&blob, (const uint8_t *)b->file.data, b->file.len, s->record, b->path, err));
    uint64_t cols = g->tensors[w->tensor]->cols;
    struct sg_range_report range = {0};
    int exponent;
    SG_TRY(sg_ane_weight_exponent(g, (uint32_t)w->tensor, &exponent, err));
    float *row = sg_alloc((size_t)cols * sizeof *row);
    if (!row) return sg_no_memory("a row of a weight", (size_t)cols * sizeof *row, err);
    uint16_t *out = (uint16_t *)(void *)(b->file.data + blob.offset) + at;
    for (uint32_t r = 0; r < w->rows; r++) {
        memcpy(row, in + ((size_t)w->at + r) * cols, (size_t)cols * sizeof *row);
        apply_form(s->form, exponent, row, cols);
        sg_compress_fp16(row, cols, out + (size_t)r * cols, &range);
    }
    sg_free(row);
    add_counts(&b->range, &range);
    return check_range(g->tensors[w->tensor], &range, b->flush, err);
}

segue_status sg_ane_blob_patch(struct sg_ane_blobs *b, const struct sg_graph *g, uint32_t tensor, const float *in, uint32_t *n,
                               segue_error *err)
{
    *n = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        const struct sg_ane_weight_blob *s = &b->list[i];
        uint64_t at = 0;
        for (uint32_t k = 0; k < s->weights_n; at += s->weights[k].rows * g->tensors[s->weights[k].tensor]->cols, k++) {
            if (s->weights[k].tensor != (int32_t)tensor) continue;
            if (s->quant.storage)
                return sg_fail(err, SEGUE_EUNSUPPORTED, "weights: ane: %s is compressed and cannot change; use storage=fp16",
                               g->tensors[tensor]->name);
            SG_TRY(patch_one(b, g, s, &s->weights[k], at, in, err));
            ++*n;
        }
    }
    return SEGUE_OK;
}

void sg_ane_blobs_free(struct sg_ane_blobs *b)
{
    if (!b->borrowed) sg_buf_free(&b->file);
    sg_free(b->list);
    *b = (struct sg_ane_blobs){0};
}
