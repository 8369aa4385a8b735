/* values.c: values and gradients of a pass. Memory is taken from a list of blocks that the next pass uses again.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "train/train.h"

/* --- memory --- */

/* Blocks of a resident unit are kept for micro-batches of any size, because its allocations wait for all work. */
static int block_fits(const struct segue_trainer *t, const struct sg_train_block *b, size_t n)
{
    return b->n >= n && (t->resident || b->n <= n + n / 4 + 1024);
}

/* Takes the smallest free block that fits from its list; NULL: there is none. The last one freed comes first: sizes repeat, so
 * that it is often the one. */
static struct sg_train_block *take_free(struct segue_trainer *t, size_t n)
{
    struct sg_train_block **best = NULL;
    for (struct sg_train_block **b = &t->free_blocks; *b && !(best && (*best)->n == n); b = &(*b)->next)
        if (block_fits(t, *b, n) && (!best || (*b)->n < (*best)->n)) best = b;
    if (!best) return NULL;
    struct sg_train_block *found = *best;
    *best = found->next;
    return found;
}

float *sg_train_take(struct sg_train_pass *p, size_t n)
{
    struct segue_trainer *t = p->t;
    struct sg_train_block *b = take_free(t, n);
    if (!b) {
        float *data;
        b = sg_alloc(sizeof *b);
        if (!b) (void)sg_no_memory("a value of training", sizeof *b, p->err);
        if (!b || sg_train_new(t, n, "a value of training", &data, p->err) != SEGUE_OK) {
            sg_free(b);
            return NULL;
        }
        *b = (struct sg_train_block){.data = data, .n = n};
    }
    b->next = t->used_blocks;
    t->used_blocks = b;
    return b->data;
}

/* What was taken last is first in its list, and is put back first. */
void sg_train_put(struct sg_train_pass *p, float *data)
{
    struct sg_train_block **b = &p->t->used_blocks;
    while (*b && (*b)->data != data) b = &(*b)->next;
    struct sg_train_block *found = *b;
    if (!found) return;
    *b = found->next;
    found->next = p->t->free_blocks;
    p->t->free_blocks = found;
}

void sg_train_put_all(struct segue_trainer *t)
{
    while (t->used_blocks) {
        struct sg_train_block *b = t->used_blocks;
        t->used_blocks = b->next;
        b->next = t->free_blocks;
        t->free_blocks = b;
    }
}

void sg_train_free_blocks(struct segue_trainer *t)
{
    sg_train_put_all(t);
    while (t->free_blocks) {
        struct sg_train_block *next = t->free_blocks->next;
        sg_train_delete(t, t->free_blocks->data);
        sg_free(t->free_blocks);
        t->free_blocks = next;
    }
}

size_t sg_train_numbers(const struct sg_train_pass *p, int32_t v)
{
    return sg_train_words(p->t, p->rows[p->g->values[v].wanted], p->g->values[v].width);
}

static uint32_t value_bytes(const struct segue_trainer *t) { return t->resident ? sg_resident_value_bytes(t->resident) : 4; }

size_t sg_train_stride(const struct segue_trainer *t, uint32_t width) { return sg_resident_stride(value_bytes(t), width); }

size_t sg_train_words(const struct segue_trainer *t, size_t rows, uint32_t width)
{
    return (rows * sg_train_stride(t, width) * value_bytes(t) + 3) / 4;
}

float *sg_train_take_live(struct sg_train_pass *p, int32_t v)
{
    float *data = sg_train_take(p, sg_train_numbers(p, v));
    if (!data) return NULL;
    p->t->live_bytes += sg_train_numbers(p, v) * sizeof *data;
    if (p->t->live_bytes > p->t->info.activation_used) p->t->info.activation_used = p->t->live_bytes;
    return data;
}

void sg_train_put_live(struct sg_train_pass *p, float **data, int32_t v)
{
    if (!*data) return;
    sg_train_put(p, *data);
    *data = NULL;
    p->t->live_bytes -= sg_train_numbers(p, v) * sizeof(float);
}

void sg_train_free_value(struct sg_train_pass *p, int32_t value)
{
    sg_train_put_live(p, &p->values[value], value);
}

/* --- operands --- */

/* The address of column `at` of the first row. */
static float *column_of(const struct sg_train_pass *p, float *data, uint32_t at)
{
    return (float *)(void *)((char *)data + (size_t)at * value_bytes(p->t));
}

struct sg_train_view sg_train_in(const struct sg_train_pass *p, const struct sg_operand *x)
{
    if (x->value < 0) return (struct sg_train_view){0};
    return (struct sg_train_view){column_of(p, p->values[x->value], x->at), sg_train_stride(p->t, p->g->values[x->value].width),
                                  x->width};
}

segue_status sg_train_grad_of(struct sg_train_pass *p, const struct sg_operand *x, struct sg_train_grad *out)
{
    *out = (struct sg_train_grad){0};
    if (x->value < 0 || !p->t->needs[x->value]) return SEGUE_OK;
    float **grad = &p->grads[x->value];
    if (!*grad) {
        *grad = sg_train_take_live(p, x->value);
        if (!*grad) return SEGUE_EMEMORY;
        SG_TRY(sg_train_zero(p->t, *grad, sg_train_numbers(p, x->value), p->err));
    }
    *out = (struct sg_train_grad){column_of(p, *grad, x->at), sg_train_stride(p->t, p->g->values[x->value].width), x->width, 0};
    return SEGUE_OK;
}

/* 1: the operands of the op that are columns of value v are all its columns, each once. */
static int covers(const struct sg_train_pass *p, const struct sg_op *op, int32_t v)
{
    uint32_t width = 0;
    for (int i = 0; i < SG_OP_INPUTS; i++) {
        const struct sg_operand *a = &op->in[i];
        if (a->value != v) continue;
        width += a->width;
        for (int k = 0; k < i; k++)
            if (op->in[k].value == v && a->at < op->in[k].at + op->in[k].width && op->in[k].at < a->at + a->width) return 0;
    }
    return width == sg_train_stride(p->t, p->g->values[v].width);
}

/* 1: operand i is the residual of a linear op, whose gradient is that of the result: its memory is handed on, not copied. */
static int passes_on(const struct sg_train_pass *p, const struct sg_op *op, int i)
{
    return op->code == SG_OP_LINEAR && i == 1 && op->in[0].value != op->in[1].value && p->grads[op->out] &&
           sg_train_numbers(p, op->out) == sg_train_numbers(p, op->in[1].value) && p->t->needs[op->out];
}

segue_status sg_train_grads_of(struct sg_train_pass *p, const struct sg_op *op, struct sg_train_grad *out)
{
    uint32_t fresh[SG_OP_INPUTS] = {0};
    for (int i = 0; i < SG_OP_INPUTS && value_bytes(p->t) == 2; i++) {
        int32_t v = op->in[i].value;
        if (v < 0 || !p->t->needs[v] || p->grads[v] || !covers(p, op, v)) continue;
        if (passes_on(p, op, i)) {
            p->grads[v] = p->grads[op->out];
            p->grads[op->out] = NULL;
            continue;
        }
        for (int k = i; k < SG_OP_INPUTS; k++) fresh[k] |= op->in[k].value == v;
        p->grads[v] = sg_train_take_live(p, v);
        if (!p->grads[v]) return SEGUE_EMEMORY;
    }
    for (int i = 0; i < SG_OP_INPUTS; i++) {
        SG_TRY(sg_train_grad_of(p, &op->in[i], &out[i]));
        out[i].fresh = out[i].data ? fresh[i] : 0;
    }
    return SEGUE_OK;
}

const float *sg_train_vector(const struct sg_train_pass *p, const struct sg_weight *w)
{
    if (w->tensor < 0) return NULL;
    const struct sg_train_tensor *t = &p->t->tensors[w->tensor];
    return t->param >= 0 ? p->t->params[t->param].field[SEGUE_PARAM_VALUE] : t->frozen;
}

float *sg_train_vector_grad(const struct sg_train_pass *p, const struct sg_weight *w)
{
    if (w->tensor < 0 || p->t->tensors[w->tensor].param < 0) return NULL;
    return p->t->params[p->t->tensors[w->tensor].param].field[SEGUE_PARAM_GRADIENT];
}

/* --- to and from the host --- */

static float of_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* To the nearest, ties to even; a NaN stays one. */
static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

segue_status sg_train_write_value(struct segue_trainer *t, float *to, const float *host, size_t rows, uint32_t width,
                                  segue_error *err)
{
    if (!t->resident || sg_resident_value_bytes(t->resident) == 4) return sg_train_write(t, to, host, rows * width, err);
    size_t stride = sg_train_stride(t, width), n = 2 * sg_train_words(t, rows, width);
    uint16_t *kept = sg_alloc(n * sizeof *kept);
    if (!kept) return sg_no_memory("a value", n * sizeof *kept, err);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < width; c++) kept[r * stride + c] = to_bf16(host[r * width + c]);
    segue_status status = sg_resident_ops(t->resident)->write(t->resident, to, kept, n * sizeof *kept, err);
    sg_free(kept);
    return status;
}

segue_status sg_train_read_value(const struct segue_trainer *t, float *host, const float *from, size_t rows, uint32_t width,
                                 segue_error *err)
{
    if (!t->resident || sg_resident_value_bytes(t->resident) == 4) return sg_train_read(t, host, from, rows * width, err);
    size_t stride = sg_train_stride(t, width), n = 2 * sg_train_words(t, rows, width);
    uint16_t *kept = sg_alloc(n * sizeof *kept);
    if (!kept) return sg_no_memory("a value", n * sizeof *kept, err);
    segue_status status = sg_resident_ops(t->resident)->read(t->resident, kept, from, n * sizeof *kept, err);
    for (size_t r = 0; r < rows && status == SEGUE_OK; r++)
        for (size_t c = 0; c < width; c++) host[r * width + c] = of_bf16(kept[r * stride + c]);
    sg_free(kept);
    return status;
}
