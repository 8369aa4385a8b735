/* program.c: compiles graphs: uploads the weights that they share, then builds steps, fusions, rope tables and both lanes of
 * each program. SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/compile/fits.h"
#include "unit/cuda/cu.h"
#include "unit/cuda/exec/lane_open.h"
#include "unit/cuda/exec/prepare.h"
#include "unit/cuda/issue/issue.h"

/* Bytes of the rows of a tensor that a weight uses, as stored on the GPU. */
static uint64_t weight_bytes(const struct sg_program *p, const struct sg_weight *w)
{
    if (w->tensor < 0) return 0;
    const struct cu_tensor *t = cu_weight_of(p->weights, p->base.graph->tensors[w->tensor]);
    return t->bytes / t->source->rows * w->rows;
}

/* Weights that decoding one token reads: all linears, one row of each embedding, k of the experts. */
static uint64_t read_per_token(const struct sg_program *p)
{
    const struct sg_graph *g = p->base.graph;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        const struct sg_experts *e = &op->u.experts;
        if (op->code == SG_OP_LINEAR) bytes += weight_bytes(p, &op->u.linear.weight);
        if (op->code == SG_OP_EMBED) bytes += weight_bytes(p, &op->u.embed.table) / op->u.embed.table.rows;
        if (op->code == SG_OP_EXPERTS)
            bytes += (weight_bytes(p, &e->gate) + weight_bytes(p, &e->up) + weight_bytes(p, &e->down)) / e->experts * e->k;
    }
    return bytes;
}

/* The inverse frequencies of each rope table. */
static segue_status upload_ropes(struct sg_unit *u, struct sg_program *p, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    p->inverse = sg_alloc(g->ropes_n * sizeof *p->inverse);
    if (!p->inverse) return sg_no_memory("program of cuda", g->ropes_n * sizeof *p->inverse, err);
    for (uint32_t i = 0; i < g->ropes_n; i++) {
        SG_TRY(cu_mem_alloc(u, g->ropes[i].pairs * sizeof(float), "weights", &p->inverse[i], err));
        SG_TRY(cu_copy_to_gpu(u, p->inverse[i], g->ropes[i].inverse, g->ropes[i].pairs * sizeof(float), err));
    }
    return SEGUE_OK;
}

/* Also frees a program that was only partly compiled. No run of it is in progress. */
void cu_discard(struct sg_program *p)
{
    if (!p) return;
    struct sg_unit *u = p->base.unit;
    cu_prepare_stop(p);
    for (int i = 0; i < CU_LANES; i++) {
        cu_lane_close(u, &p->lanes[i]);
        pthread_mutex_destroy(&p->lanes[i].lock);
    }
    for (uint32_t i = 0; p->inverse && i < p->base.graph->ropes_n; i++) cu_mem_free(u, &p->inverse[i]);
    cu_mem_free(u, &p->screen.memory);
    cu_weights_free(p->weights);
    sg_free(p->inverse);
    sg_free(p->value_locs);
    sg_free(p->plain);
    sg_free(p->fused);
    sg_free(p->fusions);
    sg_free(p);
}

/* Lookahead needs tokens as the only input and logits as output. Its step reads one block of fixed slots and writes another one,
 * which only the kernels of short convolutions can. */
static segue_status fill_program(struct sg_unit *u, struct sg_program *p, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    p->value_locs = sg_alloc(g->values_n * sizeof *p->value_locs);
    p->plain = sg_alloc(g->ops_n * sizeof *p->plain);
    p->fused = sg_alloc(g->ops_n * sizeof *p->fused);
    if (!p->value_locs || !p->plain || !p->fused) return sg_no_memory("program of cuda", g->ops_n * sizeof *p->plain, err);
    SG_TRY(cu_fuse(p, err));
    SG_TRY(cu_cluster_match(u, p, err));
    SG_TRY(upload_ropes(u, p, err));
    p->read_per_token = read_per_token(p);
    uint32_t fault = sg_fault_op(&u->fault, g);
    if (fault < g->ops_n) p->fault = &g->ops[fault];
    p->lookahead_ok = g->vocab != 0 && g->inputs_n == 1 && g->values[g->inputs[0].value].kind == SG_VALUE_TOKENS && !p->fault;
    /* Longer convolutions use kernels that update the slot in place. */
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_CONV && g->ops[i].u.conv.taps > CU_CONV_STEP_TAPS) p->lookahead_ok = 0;
    /* Lanes last: their sizes depend on the steps and fusions. */
    SG_TRY(cu_screen_open(u, p, err));
    SG_TRY(cu_lane_open(u, p, 0, err));
    return cu_lane_open(u, p, 1, err);
}

/* Each program has a reference to the weights. */
static segue_status compile_one(struct sg_unit *u, const struct sg_graph *g, struct cu_weights *w, struct sg_program **out,
                                segue_error *err)
{
    struct sg_program *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("program of cuda", sizeof *p, err);
    p->base = (struct sg_program_base){u->base.ops, u, g};
    /* From here on cu_discard frees everything. */
    p->weights = w;
    w->references++;
    for (int k = 0; k < CU_LANES; k++) pthread_mutex_init(&p->lanes[k].lock, NULL);
    segue_status status = fill_program(u, p, err);
    if (status != SEGUE_OK) {
        cu_discard(p);
        return status;
    }
    *out = p;
    return SEGUE_OK;
}

/* Checks everything but the weights' numbers before the upload, which takes longest. There is no weight cache: weights are
 * converted while they are copied, which is as fast as reading them from a cache. On failure the programs compiled so far are
 * discarded. */
segue_status cu_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, const struct sg_weight_cache *cache,
                        struct sg_program **programs, segue_error *err)
{
    struct cu_weights *w = NULL;
    (void)cache;
    for (uint32_t i = 0; i < n; i++) SG_TRY(sg_graph_check(graphs[i], err));
    SG_TRY(cu_weights_fit(u, graphs, n, 0, err));
    /* The estimate may be too low: an allocation that fails gets the same advice. */
    segue_status status = cu_weights_new(u, graphs, n, &w, err);
    cu_blas_finish(u);
    if (status == SEGUE_EMEMORY) return cu_weights_fit(u, graphs, n, 1, err);
    if (status != SEGUE_OK) return status;
    uint32_t i = 0;
    for (; i < n && status == SEGUE_OK; i++) status = compile_one(u, graphs[i], w, &programs[i], err);
    if (status != SEGUE_OK)
        for (i--; i > 0;) cu_discard(programs[--i]); /* the one that failed has discarded itself */
    /* Drops the reference of this function; the programs have their own. */
    cu_weights_free(w);
    return status == SEGUE_EMEMORY ? cu_weights_fit(u, graphs, n, 1, err) : status;
}
