/* train_pass.c: one micro-batch: the ops of the layers forward, the head with the loss, the layers backward. Memory of values and
 * gradients is taken from a list of blocks that the next pass uses again.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "train/train.h"

/* --- memory --- */

float *sg_train_take(struct sg_train_pass *p, size_t n)
{
    struct segue_trainer *t = p->t;
    struct sg_train_block *best = NULL;
    for (struct sg_train_block *b = t->blocks; b; b = b->next)
        if (!b->used && b->n >= n && b->n <= n + n / 4 + 1024 && (!best || b->n < best->n)) best = b;
    if (!best) {
        best = sg_alloc(sizeof *best);
        float *data = best && n <= SIZE_MAX / 8 ? sg_alloc_unset(n * sizeof *data) : NULL;
        if (!data) {
            sg_free(best);
            (void)sg_no_memory("a value of training", n * sizeof *data, p->err);
            return NULL;
        }
        *best = (struct sg_train_block){.next = t->blocks, .data = data, .n = n};
        t->blocks = best;
    }
    best->used = 1;
    return best->data;
}

void sg_train_put(struct sg_train_pass *p, float *data)
{
    for (struct sg_train_block *b = p->t->blocks; b && data; b = b->next)
        if (b->data == data) b->used = 0;
}

void sg_train_free_blocks(struct segue_trainer *t)
{
    while (t->blocks) {
        struct sg_train_block *next = t->blocks->next;
        sg_free_aligned(t->blocks->data);
        sg_free(t->blocks);
        t->blocks = next;
    }
}

static size_t value_numbers(const struct sg_train_pass *p, int32_t v)
{
    return (size_t)p->rows[p->g->values[v].wanted] * p->g->values[v].width;
}

static float *take_live(struct sg_train_pass *p, int32_t v)
{
    float *data = sg_train_take(p, value_numbers(p, v));
    if (!data) return NULL;
    p->t->live_bytes += value_numbers(p, v) * sizeof *data;
    if (p->t->live_bytes > p->t->live_max) p->t->live_max = p->t->live_bytes;
    return data;
}

static void put_live(struct sg_train_pass *p, float **data, int32_t v)
{
    if (!*data) return;
    sg_train_put(p, *data);
    *data = NULL;
    p->t->live_bytes -= value_numbers(p, v) * sizeof(float);
}

void sg_train_free_value(struct sg_train_pass *p, int32_t value)
{
    put_live(p, &p->values[value], value);
}

/* --- operands --- */

struct sg_train_view sg_train_in(const struct sg_train_pass *p, const struct sg_operand *x)
{
    if (x->value < 0) return (struct sg_train_view){0};
    return (struct sg_train_view){p->values[x->value] + x->at, p->g->values[x->value].width, x->width};
}

segue_status sg_train_grad_of(struct sg_train_pass *p, const struct sg_operand *x, struct sg_train_grad *out)
{
    *out = (struct sg_train_grad){0};
    if (x->value < 0 || !p->t->needs[x->value]) return SEGUE_OK;
    float **grad = &p->grads[x->value];
    if (!*grad) {
        *grad = take_live(p, x->value);
        if (!*grad) return SEGUE_EMEMORY;
        memset(*grad, 0, value_numbers(p, x->value) * sizeof **grad);
    }
    *out = (struct sg_train_grad){*grad + x->at, p->g->values[x->value].width, x->width};
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

/* --- products --- */

enum { TILE_ROWS = 192, TILE_COLS = 384 };

struct gemm_work {
    const struct sg_train_math *m;
    const struct sg_gemm *g;
    uint32_t across;
};

static void gemm_tile(void *arg, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct gemm_work *w = arg;
    struct sg_gemm g = *w->g;
    uint32_t r = item / w->across * TILE_ROWS, c = item % w->across * TILE_COLS;
    g.a += g.kind == SG_GEMM_TN ? r : r * g.lda;
    g.b += g.kind == SG_GEMM_NT ? c * g.ldb : c;
    g.c += r * g.ldc + c;
    g.rows = g.rows - r < TILE_ROWS ? g.rows - r : TILE_ROWS;
    g.cols = g.cols - c < TILE_COLS ? g.cols - c : TILE_COLS;
    w->m->gemm(w->m, &g);
}

void sg_train_gemm(const struct sg_train_math *m, const struct sg_gemm *g)
{
    struct gemm_work w = {m, g, (g->cols + TILE_COLS - 1) / TILE_COLS};
    uint32_t items = (g->rows + TILE_ROWS - 1) / TILE_ROWS * w.across;
    if (items) m->each(m, items, gemm_tile, &w);
}

/* --- ops --- */

static const struct {
    sg_train_forward *forward;
    sg_train_backward *backward;
} table[SG_OP_N] = {
    [SG_OP_EMBED] = {sg_train_embed, sg_train_embed_back},
    [SG_OP_NORM] = {sg_train_norm, sg_train_norm_back},
    [SG_OP_LINEAR] = {sg_train_linear, sg_train_linear_back},
    [SG_OP_ROPE] = {sg_train_rope, sg_train_rope_back},
    [SG_OP_ATTEND] = {sg_train_attend, sg_train_attend_back},
    [SG_OP_CONV] = {sg_train_conv, sg_train_conv_back},
    [SG_OP_DELTA] = {sg_train_delta, sg_train_delta_back},
    [SG_OP_GLU] = {sg_train_glu, sg_train_glu_back},
    [SG_OP_ACT] = {sg_train_act, sg_train_act_back},
    [SG_OP_ADD] = {sg_train_add, sg_train_add_back},
    [SG_OP_SCALE] = {sg_train_scale, sg_train_scale_back},
};

static segue_status check_finite(struct sg_train_pass *p, const struct sg_op *op)
{
    const float *x = p->values[op->out];
    for (size_t i = 0, n = value_numbers(p, op->out); i < n; i++)
        if (!isfinite(x[i]))
            return sg_fail(p->err, SEGUE_EFORMAT,
                           "micro-batch not run: the loss is not finite: first in %s of layer %d; lower the learning rate, or go "
                           "back to an earlier checkpoint", sg_op_name(op->code), (int)op->layer);
    return SEGUE_OK;
}

segue_status sg_train_op(struct sg_train_pass *p, uint32_t i)
{
    const struct sg_op *op = &p->g->ops[i];
    if (p->values[op->out]) return SEGUE_OK;
    p->values[op->out] = take_live(p, op->out);
    if (!p->values[op->out]) return SEGUE_EMEMORY;
    if (sg_train_rows(p, op)) SG_TRY(table[op->code].forward(p, op, p->values[op->out]));
    return p->check ? check_finite(p, op) : SEGUE_OK;
}

segue_status sg_train_op_back(struct sg_train_pass *p, uint32_t i)
{
    const struct sg_op *op = &p->g->ops[i];
    segue_status status = SEGUE_OK;
    if (p->grads[op->out]) status = table[op->code].backward(p, op, p->grads[op->out]);
    put_live(p, &p->grads[op->out], op->out);
    put_live(p, &p->values[op->out], op->out);
    return status;
}

/* --- layers --- */

/* The end of the run of ops that belong to the layer of op `from`. */
static uint32_t segment_end(const struct sg_train_pass *p, uint32_t from)
{
    uint32_t i = from + 1;
    while (i < p->t->rows_op && p->g->ops[i].layer == p->g->ops[from].layer) i++;
    return i;
}

/* Frees the results of ops [from, to) that no later op reads. */
static void free_inner(struct sg_train_pass *p, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        if (p->t->last_segment[p->g->ops[i].out] < to) put_live(p, &p->values[p->g->ops[i].out], p->g->ops[i].out);
}

static segue_status layers_forward(struct sg_train_pass *p)
{
    int few = p->t->info.recompute || p->loss_only;
    for (uint32_t from = 0, to; from < p->t->rows_op; from = to) {
        to = segment_end(p, from);
        for (uint32_t i = from; i < to; i++) SG_TRY(sg_train_op(p, i));
        if (few) free_inner(p, from, to);
        for (uint32_t v = 0; p->loss_only && v < p->g->values_n; v++)
            if (p->values[v] && p->t->last_segment[v] < to) put_live(p, &p->values[v], (int32_t)v);
    }
    return SEGUE_OK;
}

static segue_status layers_backward(struct sg_train_pass *p)
{
    uint32_t to = p->t->rows_op;
    while (to) {
        uint32_t from = to - 1;
        while (from && p->g->ops[from - 1].layer == p->g->ops[to - 1].layer) from--;
        for (uint32_t i = from; p->t->info.recompute && i < to; i++) SG_TRY(sg_train_op(p, i));
        for (uint32_t i = to; i-- > from;) SG_TRY(sg_train_op_back(p, i));
        to = from;
    }
    return SEGUE_OK;
}

/* --- the whole pass --- */

static segue_status check_batch(const struct segue_trainer *t, const segue_train_batch *b, size_t *total, segue_error *err)
{
    *total = 0;
    if (!b->tokens || !b->lengths || !b->sequences_n)
        return sg_fail(err, SEGUE_EARG, "micro-batch not run: no tokens; pass at least one sequence");
    for (size_t s = 0; s < b->sequences_n; s++) {
        if (!b->lengths[s]) return sg_fail(err, SEGUE_EARG, "micro-batch not run: sequence %zu is empty; leave it out", s);
        if (b->lengths[s] > t->info.sequence_tokens)
            return sg_fail(err, SEGUE_ELIMIT,
                    "micro-batch not run: sequence %zu has %zu tokens, at most %zu; cut it, or open the "
                           "trainer with a larger sequence_tokens", s, b->lengths[s], t->info.sequence_tokens);
        *total += b->lengths[s];
        if (*total > t->info.batch_tokens)
            return sg_fail(err, SEGUE_ELIMIT, "micro-batch not run: more than %zu tokens; use smaller micro-batches",
                           t->info.batch_tokens);
    }
    for (size_t i = 0; i < *total; i++) {
        if (b->tokens[i] < 0 || (uint32_t)b->tokens[i] >= t->info.vocab)
            return sg_fail(err, SEGUE_EARG, "micro-batch not run: token %d at %zu: the vocabulary has %u", (int)b->tokens[i], i,
                           t->info.vocab);
        if (b->labels && (b->labels[i] < -1 || b->labels[i] >= (int64_t)t->info.vocab))
            return sg_fail(err, SEGUE_EARG, "micro-batch not run: label %d at %zu: use -1 or a token below %u",
                    (int)b->labels[i], i,
                           t->info.vocab);
    }
    return SEGUE_OK;
}

/* Rows, positions and labels of the batch, in the arena of the pass. */
static segue_status set_rows(struct sg_train_pass *p, const segue_train_batch *b, size_t total, struct sg_arena *arena)
{
    int32_t *labels = sg_arena_alloc(arena, total * sizeof *labels);
    p->from = sg_arena_alloc(arena, (b->sequences_n + 1) * sizeof *p->from);
    p->position = sg_arena_alloc(arena, total * sizeof *p->position);
    p->labelled = sg_arena_alloc(arena, total * sizeof *p->labelled);
    p->values = sg_arena_alloc(arena, p->g->values_n * sizeof *p->values);
    p->grads = sg_arena_alloc(arena, p->g->values_n * sizeof *p->grads);
    if (!labels || !p->from || !p->position || !p->labelled || !p->values || !p->grads)
        return sg_no_memory("rows of a micro-batch", total * 16, p->err);
    p->tokens = b->tokens;
    p->labels = labels;
    p->sequences = (uint32_t)b->sequences_n;
    p->rows[0] = (uint32_t)total;
    for (size_t s = 0, at = 0; s < b->sequences_n; s++) {
        if (b->lengths[s] > p->longest) p->longest = b->lengths[s];
        for (size_t i = 0; i < b->lengths[s]; i++, at++) {
            p->position[at] = (uint32_t)i;
            labels[at] = b->labels ? b->labels[at] : i + 1 < b->lengths[s] ? b->tokens[at + 1] : -1;
            if (labels[at] >= 0) p->labelled[p->labelled_n++] = (uint32_t)at;
        }
        p->from[s + 1] = at;
    }
    return SEGUE_OK;
}

static void free_all(struct sg_train_pass *p)
{
    for (struct sg_train_block *b = p->t->blocks; b; b = b->next) b->used = 0;
    memset(p->values, 0, p->g->values_n * sizeof *p->values);
    memset(p->grads, 0, p->g->values_n * sizeof *p->grads);
    p->t->live_bytes = 0;
}

static segue_status pass_compute(struct sg_train_pass *p)
{
    p->loss = 0;
    SG_TRY(layers_forward(p));
    SG_TRY(sg_train_head(p));
    if (p->loss_only || !p->labelled_n) return SEGUE_OK;
    if (isfinite(p->loss)) return layers_backward(p);
    return SEGUE_OK;
}

segue_status sg_train_run(struct segue_trainer *t, const segue_train_batch *b, segue_train_result *out, segue_error *err)
{
    struct sg_train_pass p = {.t = t, .g = t->graph, .m = &t->math, .loss_only = b->loss_only, .err = err};
    struct sg_arena arena = {0};
    size_t total;
    uint64_t start = sg_now_ns();
    SG_TRY(check_batch(t, b, &total, err));
    if (t->block_tokens != total) sg_train_free_blocks(t);
    t->block_tokens = total;
    segue_status status = set_rows(&p, b, total, &arena);
    if (status == SEGUE_OK) status = pass_compute(&p);
    if (p.values && p.grads) free_all(&p);
    if (status == SEGUE_OK && !isfinite(p.loss)) {
        /* Once more, to find the op. Without a bad value in it, the loss itself overflowed. */
        p.check = p.loss_only = 1;
        status = pass_compute(&p);
        free_all(&p);
        if (status == SEGUE_OK) status = sg_fail(err, SEGUE_EFORMAT,
                "micro-batch not run: the loss is not finite; lower the learning rate");
        if (!b->loss_only) sg_train_drop(t);
    } else if (status != SEGUE_OK && !b->loss_only)
        sg_train_drop(t);
    sg_arena_free(&arena);
    SG_TRY(status);
    if (!b->loss_only) t->labelled += p.labelled_n;
    *out = (segue_train_result){.size = sizeof *out, .loss = p.loss, .labelled = p.labelled_n, .tokens = total,
                                .ns = sg_now_ns() - start};
    return SEGUE_OK;
}
