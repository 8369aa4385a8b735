/* cuda_program.c: compiling: weights, steps, and the lane: the memory, stream and pinned pieces that runs of a
 * program use. It issues nothing. SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/cu.h"
#include "unit/cuda/compile/fits.h"
#include "unit/finite.h"

static uint64_t weight_bytes(const struct sg_program *p, const struct sg_weight *w)
{
    if (w->tensor < 0) return 0;
    const struct cu_tensor *t = cu_weight_of(p->weights, p->base.graph->tensors[w->tensor]);
    return t->bytes / t->source->rows * w->rows;
}

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
            bytes += (weight_bytes(p, &e->gate) + weight_bytes(p, &e->up) + weight_bytes(p, &e->down)) /
                     e->experts * e->k;
    }
    return bytes;
}

/* --- the lane --- */

static void lane_close(struct sg_unit *u, struct cu_lane *l)
{
    cu_ptr *const rooms[] = {&l->split,
                             &l->sums,
                             &l->few[0].memory[0],
                             &l->few[0].memory[1],
                             &l->few[1].memory[1],
                             &l->many.memory[0],
                             &l->many.memory[1],
                             &l->headings[0].head,
                             &l->headings[1].head,
                             &l->scratch,
                             &l->narrow,
                             &l->wide,
                             &l->parts,
                             &l->workspace,
                             &l->best_value,
                             &l->best_index,
                             &l->draws,
                             &l->stops};
    cu_kept_leave(u, l);
    cu_enter(u);
    if (l->whole) u->d.stream_wait(l->whole);
    if (l->part) u->d.stream_wait(l->part);
    if (l->gives) u->d.stream_wait(l->gives);
    cu_captured_forget(u, l);
    for (int i = 0; i < 2; i++) {
        if (l->headings[i].pinned) u->d.host_free(l->headings[i].pinned);
        if (l->done[i]) u->d.event_free(l->done[i]);
        if (l->given[i]) u->d.event_free(l->given[i]);
    }
    if (l->turn) u->d.event_free(l->turn);
    if (l->ring) u->d.host_free(l->ring);
    if (l->host_chosen) u->d.host_free(l->host_chosen);
    if (l->host_logits) u->d.host_free(l->host_logits);
    if (l->gives) u->d.stream_free(l->gives);
    if (l->part) u->d.stream_free(l->part);
    if (l->whole) u->d.stream_free(l->whole);
    cu_leave(u);
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) cu_room_free(u, rooms[i]);
    for (uint32_t i = 0; i < l->loras_n; i++) cu_room_free(u, &l->loras[i].room);
    sg_free(l->loras);
    cu_join_close(u, l);
}

static segue_status pinned(struct sg_unit *u, size_t bytes, void *out, segue_error *err)
{
    void *p = NULL;
    cu_enter(u);
    cu_result r = u->d.host_alloc(&p, bytes ? bytes : 16, CU_HOST_MAPPED);
    cu_leave(u);
    SG_TRY(cu_check(&u->d, r, "compile: pinned memory", err));
    memset(p, 0, bytes);
    memcpy(out, &p, sizeof p);
    return SEGUE_OK;
}

static segue_status lane_heading(struct sg_unit *u, struct sg_program *p, struct cu_lane *l, struct cu_pass_args *h,
                                 segue_error *err)
{
    size_t array = CU_MANY * sizeof(uint32_t), at = (sizeof(struct ck_head) + 255) / 256 * 256;
    size_t slots = ((size_t)CK_SPANS * p->base.graph->slots_n * sizeof(void *) + 15) / 16 * 16;
    l->head_bytes = at + 2 * slots + 4 * array;
    SG_TRY(cu_room(u, l->head_bytes, "room of a run", &h->head, err));
    h->slots = h->head + at;
    h->slots_out = h->slots + slots;
    h->tokens = h->slots_out + slots;
    h->place = h->tokens + array;
    h->span = h->place + array;
    h->wanted = h->span + array;
    return pinned(u, l->head_bytes, &h->pinned, err);
}

/* Long runs come last where both want a multiprocessor. */
static segue_status lane_open(struct sg_unit *u, struct sg_program *p, int many, segue_error *err)
{
    struct cu_lane *l = &p->lanes[many];
    l->kind = many ? CU_LANE_MANY : CU_LANE_FEW;
    int least = 0, greatest = 0;
    cu_enter(u);
    cu_result r = u->d.priorities(&least, &greatest);
    if (!r) r = u->d.stream_new(&l->whole, CU_STREAM_NON_BLOCKING, many ? least : greatest);
    if (!r) r = cu_share_stream(u, l->kind, &l->part, many == (u->rest + u->part > u->sms) ? greatest : least);
    if (!r) r = u->d.event_new(&l->turn, CU_EVENT_UNTIMED);
    l->stream = l->whole;
    if (!r) r = u->d.stream_new(&l->gives, CU_STREAM_NON_BLOCKING, greatest);
    for (int i = 0; i < 2 && !r; i++) r = u->d.event_new(&l->done[i], CU_EVENT_UNTIMED);
    for (int i = 0; i < 2 && !r; i++) r = u->d.event_new(&l->given[i], CU_EVENT_UNTIMED);
    cu_leave(u);
    SG_TRY(cu_check(&u->d, r, "compile", err));
    for (int i = 0; i < 2; i++) {
        l->few[0].rows[i] = l->few[1].rows[i] = CU_EXACT;
        SG_TRY(lane_heading(u, p, l, &l->headings[i], err));
        SG_TRY(cu_room(u, (size_t)p->columns[i] * CU_EXACT * sizeof(float), "room of a run",
                       &l->few[0].memory[i], err));
    }
    l->few[1].memory[0] = l->few[0].memory[0];
    SG_TRY(cu_room(u, (size_t)p->columns[1] * CU_EXACT * sizeof(float), "room of a run", &l->few[1].memory[1],
                   err));
    SG_TRY(cu_room(u, (size_t)CU_FEW * CU_BLOCKS * sizeof(float), "room of a run", &l->best_value, err));
    SG_TRY(cu_room(u, (size_t)CU_FEW * CU_BLOCKS * sizeof(uint32_t), "room of a run", &l->best_index, err));
    SG_TRY(cu_room(u, sizeof(uint32_t), "room of a run", &l->draws, err));
    cu_enter(u);
    r = u->d.fill(l->draws, 0, sizeof(uint32_t), l->whole);
    cu_leave(u);
    SG_TRY(cu_check(&u->d, r, "compile", err));
    SG_TRY(cu_room(u, CU_STOPS * sizeof(int32_t), "room of a run", &l->stops, err));
    SG_TRY(pinned(u, CU_RING * sizeof(int32_t) + 64, &l->ring, err));
    l->written = (volatile uint32_t *)(void *)(l->ring + CU_RING);
    SG_TRY(cu_room(u, cu_batch_room(p), "room of a run", &l->split, err));
    if (p->windows_n) SG_TRY(cu_room(u, cu_rank_room(p), "room of a run", &l->sums, err));
    return pinned(u, 2 * CU_FEW * sizeof(int32_t), &l->host_chosen, err);
}

/* --- a program --- */

static segue_status send_ropes(struct sg_unit *u, struct sg_program *p, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    p->inverse = sg_alloc(g->ropes_n * sizeof *p->inverse);
    if (!p->inverse) return sg_no_memory("program of cuda", g->ropes_n * sizeof *p->inverse, err);
    for (uint32_t i = 0; i < g->ropes_n; i++) {
        SG_TRY(cu_room(u, g->ropes[i].pairs * sizeof(float), "weights", &p->inverse[i], err));
        SG_TRY(cu_send(u, p->inverse[i], g->ropes[i].inverse, g->ropes[i].pairs * sizeof(float), err));
    }
    return SEGUE_OK;
}

void cu_discard(struct sg_program *p)
{
    if (!p) return;
    struct sg_unit *u = p->base.unit;
    for (int i = 0; i < CU_LANES; i++) {
        lane_close(u, &p->lanes[i]);
        pthread_mutex_destroy(&p->lanes[i].lock);
    }
    for (uint32_t i = 0; p->inverse && i < p->base.graph->ropes_n; i++) cu_room_free(u, &p->inverse[i]);
    cu_room_free(u, &p->screen.memory);
    cu_weights_free(p->weights);
    sg_free(p->inverse);
    sg_free(p->places);
    sg_free(p->plain);
    sg_free(p->fused);
    sg_free(p->windows);
    sg_free(p);
}

static segue_status program_fill(struct sg_unit *u, struct sg_program *p, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    p->places = sg_alloc(g->values_n * sizeof *p->places);
    p->plain = sg_alloc(g->ops_n * sizeof *p->plain);
    p->fused = sg_alloc(g->ops_n * sizeof *p->fused);
    if (!p->places || !p->plain || !p->fused)
        return sg_no_memory("program of cuda", g->ops_n * sizeof *p->plain, err);
    SG_TRY(cu_fuse(p, err));
    SG_TRY(cu_rank_find(u, p, err));
    SG_TRY(send_ropes(u, p, err));
    p->read_per_token = read_per_token(p);
    p->may_lead = g->vocab != 0 && g->inputs_n == 1 && g->values[g->inputs[0].value].kind == SG_VALUE_TOKENS;
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_CONV && g->ops[i].u.conv.taps > CU_STEP_TAPS) p->may_lead = 0;
    SG_TRY(cu_screen_open(u, p, err));
    SG_TRY(lane_open(u, p, 0, err));
    return lane_open(u, p, 1, err);
}

static segue_status compile_one(struct sg_unit *u, const struct sg_graph *g, struct cu_weights *w,
                                struct sg_program **out, segue_error *err)
{
    struct sg_program *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("program of cuda", sizeof *p, err);
    p->base = (struct sg_program_base){u->base.ops, u, g};
    p->weights = w;
    w->references++;
    for (int k = 0; k < CU_LANES; k++) pthread_mutex_init(&p->lanes[k].lock, NULL);
    segue_status status = program_fill(u, p, err);
    if (status != SEGUE_OK) {
        cu_discard(p);
        return status;
    }
    *out = p;
    return SEGUE_OK;
}

segue_status cu_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n,
                        const struct sg_weight_cache *keep, struct sg_program **programs, segue_error *err)
{
    struct cu_weights *w = NULL;
    (void)keep; /* weights are laid out on the card as they are copied there */
    for (uint32_t i = 0; i < n; i++) SG_TRY(sg_graph_check(graphs[i], err));
    for (uint32_t i = 0; i < n; i++) SG_TRY(sg_weights_finite(graphs[i], err));
    SG_TRY(cu_weights_fit(u, graphs, n, 0, err));
    segue_status status = cu_weights_new(u, graphs, n, &w, err);
    if (status == SEGUE_EMEMORY) return cu_weights_fit(u, graphs, n, 1, err);
    if (status != SEGUE_OK) return status;
    uint32_t i = 0;
    for (; i < n && status == SEGUE_OK; i++) status = compile_one(u, graphs[i], w, &programs[i], err);
    if (status != SEGUE_OK)
        for (i--; i > 0;) cu_discard(programs[--i]);
    cu_weights_free(w);
    return status == SEGUE_EMEMORY ? cu_weights_fit(u, graphs, n, 1, err) : status;
}
