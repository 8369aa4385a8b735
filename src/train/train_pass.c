/* train_pass.c: one micro-batch: the ops of the layers forward, the head with the loss, the layers backward.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "train/train.h"

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
        if (p->t->last_segment[p->g->ops[i].out] < to) sg_train_put_live(p, &p->values[p->g->ops[i].out], p->g->ops[i].out);
}

static segue_status layers_forward(struct sg_train_pass *p)
{
    int few = p->t->info.recompute || p->loss_only;
    for (uint32_t from = 0, to; from < p->t->rows_op; from = to) {
        to = segment_end(p, from);
        for (uint32_t i = from; i < to; i++) SG_TRY(sg_train_op(p, i));
        if (few) free_inner(p, from, to);
        for (uint32_t v = 0; p->loss_only && v < p->g->values_n; v++)
            if (p->values[v] && p->t->last_segment[v] < to) sg_train_put_live(p, &p->values[v], (int32_t)v);
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

/* What is asked for beside the gradients of cross entropy. */
static segue_status check_extras(const struct segue_trainer *t, const segue_train_batch *b, segue_error *err)
{
    const segue_train_policy *y = b->policy;
    if (y && (!y->advantages || !y->weights || !y->old_logprobs || !(y->clip >= 0) || !(y->kl >= 0)))
        return sg_fail(err, SEGUE_EARG, "micro-batch not run: a policy without advantages, weights or old_logprobs, or with a "
                       "negative clip or kl; see segue_train.h");
    if (b->base && (!b->loss_only || t->info.kind != SEGUE_TRAIN_LORA))
        return sg_fail(err, SEGUE_EARG, "micro-batch not run: base is for loss_only and LoRA; leave it out");
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
    if (p->t->device) p->early = sg_arena_alloc(arena, p->g->ops_n);
    if (!labels || !p->from || (p->t->device && !p->early) || !p->position || !p->labelled || !p->values || !p->grads)
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
    sg_train_put_all(p->t);
    memset(p->values, 0, p->g->values_n * sizeof *p->values);
    memset(p->grads, 0, p->g->values_n * sizeof *p->grads);
    p->t->live_bytes = 0;
}

static segue_status pass_compute(struct sg_train_pass *p)
{
    p->loss = p->kl = 0;
    p->clipped = 0;
    if (p->t->resident) SG_TRY(sg_resident_tokens_put(p));
    SG_TRY(layers_forward(p));
    SG_TRY(sg_train_head(p));
    if (p->loss_only || !p->labelled_n) return SEGUE_OK;
    if (isfinite(p->loss)) return layers_backward(p);
    return SEGUE_OK;
}

/* What the device did since `from`. */
static void count_device(const struct segue_trainer *t, const struct sg_train_counts *from, segue_train_result *out)
{
    struct sg_train_counts now;
    sg_train_device_ops_of(t->device)->count(t->device, &now);
    out->dispatches = now.dispatches - from->dispatches;
    out->compiles = now.compiles - from->compiles;
    out->simulated_ns = now.simulated_ns - from->simulated_ns;
    out->device_ns = now.busy_ns - from->busy_ns;
    out->overlap_ns = now.overlap_ns - from->overlap_ns;
    out->weight_bytes = now.weight_bytes - from->weight_bytes;
    out->weight_ns = now.weight_ns - from->weight_ns;
    out->overflows = now.overflows - from->overflows;
    out->underflows = now.underflows - from->underflows;
}

segue_status sg_train_run(struct segue_trainer *t, const segue_train_batch *b, segue_train_result *out, segue_error *err)
{
    struct sg_train_pass p = {.t = t, .g = t->graph, .m = &t->math, .loss_only = b->loss_only, .err = err,
                              .policy = b->policy, .logprobs = b->logprobs, .base = b->base};
    struct sg_arena arena = {0};
    struct sg_train_counts before;
    size_t total;
    uint64_t start = sg_now_ns();
    if (t->device) sg_train_device_ops_of(t->device)->count(t->device, &before);
    t->intervals_n = 0;
    SG_TRY(check_batch(t, b, &total, err));
    SG_TRY(check_extras(t, b, err));
    if (b->logprobs) memset(b->logprobs, 0, total * sizeof *b->logprobs);
    if (t->resident ? total > t->block_tokens : total != t->block_tokens) {
        sg_train_free_blocks(t);
        t->block_tokens = total;
    }
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
                                .ns = sg_now_ns() - start, .clipped = p.clipped, .kl = p.kl};
    if (t->device) count_device(t, &before, out);
    return SEGUE_OK;
}
