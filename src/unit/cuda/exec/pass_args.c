/* pass_args.c: prepares a pass on the host: rows, positions, spans and slot addresses (struct ck_pass), padding, value
 * buffers, and their copies to the GPU. SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/exec/exec_pass.h"

/* Tokens, positions, span numbers, wanted rows and slot addresses of one part. A lookahead step must not
 * overwrite the recurrent slots of the state: it reads one of their two copies and writes the other, `memory` to `alt` with
 * argument block 0, `alt` to `memory` with block 1. */
static void fill_part(const struct sg_run *run, struct cu_pass_plan *plan, struct cu_pass *p, uint32_t i)
{
    const struct cu_pass_args *l = &p->lane->pass_args[p->args_index];
    const struct cu_span_part *part = &plan->parts[i];
    const struct sg_span *s = &run->base.spans[part->span];
    struct ck_head *h = cu_args_pinned(l, l->head);
    int32_t *tokens = cu_args_pinned(l, l->tokens);
    uint32_t *pos = cu_args_pinned(l, l->pos), *span = cu_args_pinned(l, l->span), *wanted = cu_args_pinned(l, l->wanted);
    cu_ptr *slots = cu_args_pinned(l, l->slots), *slots_out = cu_args_pinned(l, l->slots_out);
    uint32_t t = p->from[0][i], r = p->from[1][i];
    h->first[i] = (uint32_t)s->first + part->from;
    h->from[i] = t;
    h->from[i + 1] = t + part->rows;
    for (uint32_t k = 0; k < part->rows; k++) {
        if (s->tokens) tokens[t + k] = s->tokens[part->from + k];
        pos[t + k] = h->first[i] + k;
        span[t + k] = i;
    }
    for (uint32_t k = 0; k < p->from[1][i + 1] - r; k++) wanted[r + k] = t + s->wanted[plan->wanted_from[i] + k] - part->from;
    uint32_t slots_n = s->state->core.slots_n;
    for (uint32_t k = 0; k < slots_n; k++) {
        const struct cu_slot *slot = cu_slot_at(s->state, k);
        cu_ptr in = plan->advance == 2 && slot->alt && p->args_index ? slot->alt : slot->memory;
        slots[i * slots_n + k] = in;
        slots_out[i * slots_n + k] = plan->advance == 2 && slot->alt ? (p->args_index ? slot->memory : slot->alt) : in;
    }
}

/* `wanted` is ascending, so the part's rows are consecutive. */
uint32_t cu_part_wanted(const struct sg_span *s, const struct cu_span_part *part, uint32_t *first)
{
    uint32_t a = 0, b;
    while (a < s->wanted_n && s->wanted[a] < part->from) a++;
    for (b = a; b < s->wanted_n && s->wanted[b] < part->from + part->rows; b++) {}
    *first = a;
    return b - a;
}

/* First the row numbers of all parts, then their contents. chunks covers the furthest position of the pass. */
segue_status cu_pass_fill_head(const struct sg_run *run, struct cu_pass_plan *plan, struct cu_pass *p)
{
    struct ck_head *h = cu_args_pinned(&p->lane->pass_args[p->args_index], p->lane->pass_args[p->args_index].head);
    uint64_t furthest = 0;
    p->spans_n = plan->parts_n;
    for (uint32_t i = 0; i < plan->parts_n; i++) {
        const struct cu_span_part *part = &plan->parts[i];
        const struct sg_span *s = &run->base.spans[part->span];
        p->from[0][i + 1] = p->from[0][i] + part->rows;
        p->from[1][i + 1] = p->from[1][i] + cu_part_wanted(s, part, &plan->wanted_from[i]);
        if (s->first + part->from + part->rows > furthest) furthest = s->first + part->from + part->rows;
    }
    p->rows_n[0] = p->from[0][p->spans_n];
    p->rows_n[1] = p->from[1][p->spans_n];
    p->chunks = cu_chunks_for(furthest);
    /* Also clears the counters of generation on the GPU. */
    memset(h, 0, sizeof *h);
    h->spans = p->spans_n;
    h->rows = p->rows_n[0];
    h->wanted = p->rows_n[1];
    for (uint32_t i = 0; i < plan->parts_n; i++) fill_part(run, plan, p, i);
    return SEGUE_OK;
}

void cu_pass_one_row_counts(struct cu_pass *p, uint32_t n)
{
    p->spans_n = p->rows_n[0] = p->rows_n[1] = n;
    for (uint32_t i = 0; i < n; i++) p->from[0][i + 1] = p->from[1][i + 1] = i + 1;
}

/* Few rows use fixed buffers, whose addresses captured graphs contain. The buffer of many rows grows in steps of 256 rows. */
segue_status cu_pass_alloc(struct sg_run *run, struct cu_pass *p)
{
    struct cu_lane *l = p->lane;
    p->values = &l->values_few[p->args_index];
    if (p->rows_n[0] <= CU_GEMV_ROWS) return SEGUE_OK;
    p->values = &l->values_many;
    for (int k = 0; k < 2; k++) {
        uint32_t rows = (p->rows_n[k] + 255) / 256 * 256;
        if (rows <= l->values_many.rows[k] && l->values_many.memory[k]) continue;
        cu_mem_free(p->program->base.unit, &l->values_many.memory[k]);
        l->values_many.rows[k] = 0;
        SG_TRY(cu_mem_alloc(p->program->base.unit, (size_t)(rows ? rows : 1) * p->program->columns[k] * sizeof(float),
                            "buffers of a run", &l->values_many.memory[k], &run->base.error));
        l->values_many.rows[k] = rows ? rows : 1;
    }
    /* cuBLASLt is used by passes of many rows only. */
    if (l->workspace || !p->program->base.unit->blas.handle) return SEGUE_OK;
    return cu_mem_alloc(p->program->base.unit, CU_BLAS_WORKSPACE, "buffers of a run", &l->workspace, &run->base.error);
}

int cu_run_has_loras(const struct sg_run *run)
{
    for (uint32_t s = 0; s < run->base.batch.spans_n; s++)
        if (run->base.spans[s].loras_n) return 1;
    return 0;
}

/* Outputs other than the logits, and the op that a test alters, may be intermediate results that fused steps do not store. */
int cu_pass_is_unfused(const struct sg_run *run, const struct cu_pass *p)
{
    return p->spans != NULL || run->base.batch.outputs_n || p->program->fault;
}

/* Pads a prompt of up to CU_PAD_ROWS_MAX rows to a multiple of CU_PAD_ROWS, so that prompts of similar length replay the same
 * captured pass: issuing the steps takes the host longer than the GPU needs to execute them. Kernels that write states use the
 * true number of rows, from the head. */
void cu_pass_pad(const struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p)
{
    const struct sg_graph *g = p->program->base.graph;
    const struct cu_pass_args *l = &p->lane->pass_args[p->args_index];
    uint32_t rows = p->rows_n[0], all = (rows + CU_PAD_ROWS - 1) / CU_PAD_ROWS * CU_PAD_ROWS;
    if (rows <= CU_GEMV_ROWS || rows > CU_PAD_ROWS_MAX || plan->parts_n > 1 || !p->program->base.unit->graphs ||
        cu_pass_is_unfused(run, p) || !g->vocab || g->inputs_n != 1 || g->values[g->inputs[0].value].kind != SG_VALUE_TOKENS)
        return;
    for (uint32_t t = rows; t < all; t++) {
        ((int32_t *)cu_args_pinned(l, l->tokens))[t] = 0;
        ((uint32_t *)cu_args_pinned(l, l->pos))[t] = 0;
        ((uint32_t *)cu_args_pinned(l, l->span))[t] = 0;
    }
    p->rows_n[0] = all;
    p->padded = 1;
}

/* Asynchronous from pinned memory: the host must not change it before the pass is complete. */
segue_status cu_pass_send_head(struct sg_run *run, const struct cu_pass *p)
{
    const struct cu_pass_args *h = &p->lane->pass_args[p->args_index];
    p->lane->embedded = 0;
    return cu_run_check(run, run->program->base.unit->d.copy_htod(h->head, h->pinned, p->lane->head_bytes, p->lane->stream));
}

/* Only graphs whose inputs are rows of numbers (layer ranges, embeddings). */
segue_status cu_pass_send_inputs(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p)
{
    const struct sg_graph *g = p->program->base.graph;
    struct sg_unit *u = p->program->base.unit;
    for (uint32_t i = 0; i < g->inputs_n; i++) {
        const struct sg_value *v = &g->values[g->inputs[i].value];
        if (v->kind == SG_VALUE_TOKENS) continue;
        struct sg_operand whole = {.value = g->inputs[i].value, .width = v->width};
        struct ck_view x = cu_view_of(p, &whole);
        for (uint32_t k = 0; k < plan->parts_n; k++) {
            const struct cu_span_part *part = &plan->parts[k];
            const float *from = run->base.spans[part->span].values + (size_t)part->from * v->width;
            SG_TRY(cu_run_check(run, u->d.copy_htod((cu_ptr)(uintptr_t)(x.p + (size_t)p->from[0][k] * v->width), from,
                                                    (size_t)part->rows * v->width * sizeof(float), p->lane->stream)));
        }
    }
    return SEGUE_OK;
}
