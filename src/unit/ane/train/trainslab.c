/* trainslab.c: surfaces of products with their weights, and the conversion of operands and results between fp32 rows of tokens
 * and fp16 rows of channels. See anetrain.h.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "base/clock.h"
#include "base/num.h"
#include "unit/ane/train/anetrain.h"

enum { LINES = 16, COLUMNS = 64 };   /* tokens or rows of a matrix, and columns, of an item of work */

static uint32_t blocks(uint32_t n, uint32_t of) { return (n + of - 1) / of; }
static uint32_t pad(const struct sg_train_device *d, uint32_t n) { return blocks(n, d->unit->columns) * d->unit->columns; }

static uint32_t all_rows(const struct sg_train_product *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->parts_n; i++) n += p->w[i].rows;
    return n;
}

uint32_t ane_train_inner(const struct sg_train_product *p) { return p->back ? all_rows(p) : p->w[0].cols; }
uint32_t ane_train_outer(const struct sg_train_product *p) { return p->back ? p->w[0].cols : all_rows(p); }

/* --- work on the threads of the host --- */

struct work {
    const struct sg_train_device *d;
    const struct sg_train_product *p;
    struct ane_train_slab *s;
    uint8_t *bytes;                  /* of the surface */
    float *max;                     /* [items] a maximum of each item */
    uint64_t *clamped;               /* [items] */
    void (*item)(const struct work *w, uint32_t item);
};

static void call_item(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    const struct work *w = arg;
    (void)stage;
    (void)thread;
    w->item(w, item);
}

static void each(struct work *w, uint32_t items, void (*item)(const struct work *w, uint32_t item))
{
    w->item = item;
    sg_pool_run(w->d->unit->pool, &(struct sg_job){.items = &items, .stages = 1, .work = call_item, .arg = w});
}

/* The same, where each item writes a maximum and a count; *max and *clamped become their maximum and sum. */
static segue_status each_counted(struct work *w, uint32_t items, void (*item)(const struct work *w, uint32_t item), float *max,
                                 uint64_t *clamped, segue_error *err)
{
    w->max = sg_alloc(items * sizeof *w->max);
    w->clamped = sg_alloc(items * sizeof *w->clamped);
    segue_status status = w->max && w->clamped ? SEGUE_OK : sg_no_memory("counts of a surface", items * 12, err);
    if (status == SEGUE_OK) each(w, items, item);
    *max = 0;
    for (uint32_t i = 0; status == SEGUE_OK && i < items; i++) {
        if (w->max[i] > *max) *max = w->max[i];
        *clamped += w->clamped[i];
    }
    sg_free(w->max);
    sg_free(w->clamped);
    return status;
}

/* --- weights --- */

/* n rows from `row` on of all matrices, one after the other, as fp32 [n, cols]. A row of a matrix in memory is not copied. */
static const float *row_of(const struct sg_train_product *p, uint32_t row, float *buffer)
{
    uint32_t i = 0;
    while (row >= p->w[i].rows) row -= p->w[i++].rows;
    const struct sg_train_matrix *m = &p->w[i];
    if (m->data) return m->data + (size_t)row * m->cols;
    sg_tensor_row(m->tensor, (uint64_t)m->at + row, 0, m->cols, buffer);
    return buffer;
}

static uint16_t weight16(float x, uint64_t *clamped)
{
    if (x > ANE_TRAIN_WEIGHT || x < -ANE_TRAIN_WEIGHT) {
        ++*clamped;
        x = x > 0 ? ANE_TRAIN_WEIGHT : -ANE_TRAIN_WEIGHT;
    }
    return sg_f16_of_f32(x);
}

/* LINES rows of W, of which row n is a column (forward) or a row (back) of the weights in the surface. */
static void put_rows(const struct work *w, uint32_t item)
{
    const struct ane_train_slab *s = w->s;
    const uint32_t cols = w->p->w[0].cols, rows = s->back ? ane_train_inner(w->p) : s->n;
    const size_t stride = s->program->in_row / sizeof(uint16_t);
    uint16_t *to = (uint16_t *)(void *)w->bytes + w->d->tokens;
    float *buffer = sg_alloc_unset(cols * sizeof *buffer);
    w->clamped[item] = 0;
    w->max[item] = buffer ? 0 : INFINITY; /* infinity: no memory */
    for (uint32_t r = item * LINES; buffer && r < (item + 1) * LINES && r < rows; r++) {
        const float *x = row_of(w->p, s->back ? r : s->at + r, buffer);
        if (s->back)
            for (uint32_t c = 0; c < s->n; c++) to[r * stride + c] = weight16(x[s->at + c], &w->clamped[item]);
        else
            for (uint32_t c = 0; c < cols; c++) to[c * stride + r] = weight16(x[c], &w->clamped[item]);
    }
    sg_free_aligned(buffer);
}

/* The largest sum of magnitudes of a column of weights. */
static void sum_columns(const struct work *w, uint32_t item)
{
    const struct ane_train_slab *s = w->s;
    const size_t stride = s->program->in_row / sizeof(uint16_t);
    const uint32_t inner = ane_train_inner(w->p), from = item * COLUMNS, n = s->n - from < COLUMNS ? s->n - from : COLUMNS;
    const uint16_t *at = (const uint16_t *)(const void *)w->bytes + w->d->tokens + from;
    float sums[COLUMNS] = {0}, max = 0;
    for (uint32_t k = 0; k < inner; k++)
        for (uint32_t c = 0; c < n; c++) sums[c] += fabsf(sg_f32_of_f16(at[k * stride + c]));
    for (uint32_t c = 0; c < n; c++) max = sums[c] <= max ? max : sums[c] >= 0 ? sums[c] : INFINITY; /* NaN: not finite */
    w->max[item] = max;
}

static segue_status put_weights(struct sg_train_device *d, const struct sg_train_product *p, struct ane_train_slab *s,
                                segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d->unit->device);
    const uint32_t rows = p->back ? ane_train_inner(p) : s->n;
    struct work w = {.d = d, .p = p, .s = s};
    uint64_t start = sg_now_ns();
    void *bytes;
    float max;
    SG_TRY(ops->lock(s->in, 1, &bytes, NULL, err));
    w.bytes = bytes;
    segue_status status = each_counted(&w, blocks(rows, LINES), put_rows, &max, &d->counts.overflows, err);
    if (status == SEGUE_OK && isinf(max)) status = sg_no_memory("a row of weights", p->w[0].cols * sizeof(float), err);
    if (status == SEGUE_OK) status = each_counted(&w, blocks(s->n, COLUMNS), sum_columns, &s->sum, &d->counts.overflows, err);
    ops->unlock(s->in);
    d->counts.weight_bytes += (uint64_t)ane_train_inner(p) * s->n * sizeof(uint16_t);
    d->counts.weight_ns += sg_now_ns() - start;
    if (status == SEGUE_OK) s->version = p->version + 1;
    return status;
}

static segue_status slab_new(struct sg_train_device *d, const struct sg_train_product *p, uint32_t at, uint32_t n,
                             struct ane_train_slab **out, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d->unit->device);
    struct ane_train_program *program;
    SG_TRY(ane_train_program_of(d, pad(d, ane_train_inner(p)), pad(d, n), &program, err));
    struct ane_train_slab *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("a surface", sizeof *s, err);
    *s = (struct ane_train_slab){.next = d->slabs, .id = p->id, .at = at, .n = n, .back = p->back, .program = program};
    *out = d->slabs = s;
    SG_TRY(ops->surface_new(d->unit->device, program->in_bytes, &s->in, err));
    return ops->surface_new(d->unit->device, program->out_bytes, &s->out, err);
}

segue_status ane_train_slab_of(struct sg_train_device *d, const struct sg_train_product *p, uint32_t at,
                               struct ane_train_slab **out, segue_error *err)
{
    const uint32_t max = ANE_TRAIN_WIDTH - d->tokens, left = ane_train_outer(p) - at, n = left < max ? left : max;
    struct ane_train_slab *s = d->slabs;
    while (s && (s->id != p->id || s->back != p->back || s->at != at)) s = s->next;
    if (!s) SG_TRY(slab_new(d, p, at, n, &s, err));
    *out = s;
    return s->version == p->version + 1 ? SEGUE_OK : put_weights(d, p, s, err);
}

void ane_train_slabs_free(struct sg_train_device *d)
{
    while (d->slabs) {
        struct ane_train_slab *s = d->slabs, *next = s->next;
        if (s->in) sg_ane_ops_of(s->in)->surface_free(s->in);
        if (s->out) sg_ane_ops_of(s->out)->surface_free(s->out);
        sg_free(s);
        d->slabs = next;
    }
}

/* --- operands --- */

float ane_train_largest(const struct sg_train_device *d, const struct sg_train_product *p)
{
    float max = 0;
    (void)d;
    for (uint32_t i = 0; i < (p->back ? p->parts_n : 1); i++)
        for (uint32_t t = 0; p->in[i] && t < p->tokens; t++) {
            const float *x = p->in[i] + t * p->in_stride[i];
            for (uint32_t c = 0, n = p->back ? p->w[i].rows : p->w[0].cols; c < n; c++) {
                float size = fabsf(x[c]);
                if (!(size <= 3e38f)) return INFINITY;
                max = size > max ? size : max;
            }
        }
    return max;
}

/* LINES tokens of the operands; zeros after the last token. */
static void put_tokens(const struct work *w, uint32_t item)
{
    const struct sg_train_product *p = w->p;
    const size_t stride = w->s->program->in_row / sizeof(uint16_t);
    uint16_t *to = (uint16_t *)(void *)w->bytes + (size_t)item * LINES;
    const uint32_t first = item * LINES, n = first >= p->tokens ? 0 : p->tokens - first < LINES ? p->tokens - first : LINES;
    for (uint32_t i = 0; i < (p->back ? p->parts_n : 1); i++) {
        const uint32_t channels = p->back ? p->w[i].rows : p->w[0].cols;
        const float *x = p->in[i] ? p->in[i] + first * p->in_stride[i] : NULL;
        for (uint32_t c = 0; c < channels; c++, to += stride)
            for (uint32_t t = 0; t < LINES; t++)
                to[t] = x && t < n ? sg_f16_of_f32(x[t * p->in_stride[i] + c] * w->d->scale) : 0;
    }
}

segue_status ane_train_put(struct sg_train_device *d, const struct sg_train_product *p, struct ane_train_slab *s,
                           segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d->unit->device);
    struct work w = {.d = d, .p = p, .s = s};
    void *bytes;
    SG_TRY(ops->lock(s->in, 1, &bytes, NULL, err));
    w.bytes = bytes;
    each(&w, blocks(d->tokens, LINES), put_tokens);
    ops->unlock(s->in);
    return SEGUE_OK;
}

/* --- results --- */

/* An infinite result of the engine becomes the largest fp16 number of its sign. */
static float result(uint16_t h, uint64_t *clamped)
{
    float x = sg_f32_of_f16(h);
    if (!isinf(x)) return x;
    ++*clamped;
    return x > 0 ? 65504.0f : -65504.0f;
}

/* LINES tokens of the results of a tile. */
static void get_tokens(const struct work *w, uint32_t item)
{
    const struct sg_train_product *p = w->p;
    const struct ane_train_slab *s = w->s;
    const size_t stride = s->program->out_row / sizeof(uint16_t);
    const uint32_t first = item * LINES, n = p->tokens - first < LINES ? p->tokens - first : LINES;
    const uint16_t *from = (const uint16_t *)(const void *)w->bytes + first;
    const float inverse = 1 / w->d->scale;
    w->clamped[item] = 0;
    for (uint32_t c = 0, part = 0, before = 0; c < s->n; c++, from += stride) {
        uint32_t col = s->at + c - before; /* of matrix `part` */
        while (!p->back && col >= p->w[part].rows) col -= p->w[part].rows, before += p->w[part++].rows;
        if (!p->out[part]) continue;
        float *out = p->out[part] + first * p->out_stride[part] + col;
        for (uint32_t t = 0; t < n; t++) {
            float y = w->d->finite ? result(from[t], &w->clamped[item]) * inverse : NAN;
            if (p->back) out[t * p->out_stride[0]] += y;
            else out[t * p->out_stride[part]] = y;
        }
    }
}

segue_status ane_train_get(struct sg_train_device *d, const struct sg_train_product *p, struct ane_train_slab *s,
                           segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d->unit->device);
    struct work w = {.d = d, .p = p, .s = s};
    void *bytes;
    float unused;
    SG_TRY(ops->lock(s->out, 0, &bytes, NULL, err));
    w.bytes = bytes;
    segue_status status = each_counted(&w, blocks(p->tokens, LINES), get_tokens, &unused, &d->counts.overflows, err);
    ops->unlock(s->out);
    return status;
}
