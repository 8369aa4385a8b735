/* issue_screen.c: the greedy choice without reading the whole output head (k_screen.cu), with "screen=1" and when no logits
 * are requested. An 8-bit copy of the head, made at compile, gives an estimate and an error bound for each row. Only rows
 * whose bound reaches the best estimate (the candidates) are computed exactly. The token is the one that the full head gives,
 * except for ties that a different order of fp32 additions breaks differently. SPDX-License-Identifier: MIT */
#include <math.h>

#include "unit/cuda/issue/issue.h"

/* BLOCKS_EACH: blocks per multiprocessor. COLUMNS_MAX: columns of x that fit into shared memory in two 8-bit parts. */
enum { THREADS = 256, WARPS = THREADS / 32, BLOCKS_EACH = 3, COLUMNS_MAX = 16384 };

static void *address(cu_ptr p) { return (void *)(uintptr_t)p; }

/* The product that computes the logits, if it can be filtered: 16 or 32 bits per weight, all rows of one tensor, nothing added.
 * NULL: it cannot. */
static const struct sg_op *head_of(const struct sg_program *p)
{
    const struct sg_graph *g = p->base.graph;
    int32_t logits = g->vocab ? sg_graph_output(g, "logits") : -1;
    for (uint32_t i = 0; logits >= 0 && i < g->ops_n; i++) {
        const struct sg_linear *l = &g->ops[i].u.linear;
        if (g->ops[i].code != SG_OP_LINEAR || g->ops[i].out != g->outputs[logits].value) continue;
        const struct cu_tensor *t = cu_weight_of(p->weights, g->tensors[l->weight.tensor]);
        int whole = !l->weight.at && l->weight.rows == t->w.rows && l->weight.rows == g->vocab;
        return whole && l->bias.tensor < 0 && t->w.kind <= CK_BF16 && t->w.cols <= COLUMNS_MAX && g->ops[i].in[1].value < 0
                   ? &g->ops[i]
                   : NULL;
    }
    return NULL;
}

/* One allocation: 8-bit rows, then scale, bound and estimate of each row, then the best lower bound of each block and x's length.
 * The copy is made on the GPU and complete on return. */
segue_status cu_screen_open(struct sg_unit *u, struct sg_program *p, segue_error *err)
{
    const struct sg_op *head = u->screen ? head_of(p) : NULL;
    struct cu_screen *s = &p->screen;
    if (!head) return SEGUE_OK;
    const struct cu_tensor *t = cu_weight_of(p->weights, p->base.graph->tensors[head->u.linear.weight.tensor]);
    /* Rows of the 8-bit copy are multiples of 16 bytes. */
    uint32_t pitch = (t->w.cols + 15) / 16 * 16, rows = t->w.rows;
    size_t quick = (size_t)rows * pitch, all = quick + ((size_t)rows * 3 + CU_CHOICE_BLOCKS + 4) * sizeof(float);
    SG_TRY(cu_mem_alloc(u, all, "weights", &s->memory, err));
    cu_ptr scale = s->memory + quick, each = (cu_ptr)rows * sizeof(float);
    s->a = (struct ck_screen){.w = t->w,
                              .q = address(s->memory),
                              .scale = address(scale),
                              .bound = address(scale + each),
                              .near = address(scale + 2 * each),
                              .low = address(scale + 3 * each),
                              .length = address(scale + 3 * each + CU_CHOICE_BLOCKS * sizeof(float)),
                              .pitch = pitch};
    /* A warp converts one row. */
    struct cu_launch l = {(rows + WARPS - 1) / WARPS, 1, 1, THREADS, 1, 1, 0, u->copies, NULL, 0};
    void *list[] = {&s->a};
    cu_fn make = t->w.kind == CK_F32 ? u->k.screen_make_f32 : t->w.kind == CK_F16 ? u->k.screen_make_f16 : u->k.screen_make_bf16;
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    cu_result r = cu_pending_copy_start(u);
    if (!r) r = u->d.launch(&l, make, list, NULL);
    if (!r) r = u->d.stream_sync(u->copies);
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    SG_TRY(cu_check(&u->d, r, "compile: screening", err));
    s->head = head;
    return SEGUE_OK;
}

/* screen_rows estimates all rows; screen_best computes the candidates and reports the best one of each block. */
segue_status cu_issue_screen(struct cu_pass *p, const struct cu_step *s)
{
    struct sg_unit *u = p->program->base.unit;
    struct ck_screen a = p->program->screen.a;
    if (s->norm) SG_TRY(cu_issue_small(p, s->norm));
    a.x = cu_view_of(p, &s->op->in[0]);
    a.banned = p->banned;
    a.blocks = p->sms * BLOCKS_EACH < CU_CHOICE_BLOCKS ? p->sms * BLOCKS_EACH : CU_CHOICE_BLOCKS;
    a.best_value = address(p->lane->best_value);
    a.best_index = address(p->lane->best_index);
    p->best_blocks = p->sms < CU_CHOICE_BLOCKS ? p->sms : CU_CHOICE_BLOCKS;
    p->best_done = 1;
    cu_fn best = a.w.kind == CK_F32 ? u->k.screen_best_f32 : a.w.kind == CK_F16 ? u->k.screen_best_f16 : u->k.screen_best_bf16;
    SG_TRY(cu_launch(p, u->k.screen_rows, a.blocks, 1, 1, THREADS, 2 * (size_t)a.pitch, &a));
    return cu_launch(p, best, p->best_blocks, 1, 1, THREADS, 0, &a);
}
