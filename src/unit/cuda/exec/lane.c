/* lane.c: opens and closes the lanes of a program: streams, events, pass arguments, value buffers and pinned memory.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/exec/lane_open.h"

#include <string.h>

#include "unit/cuda/exec/exec_pass.h"

/* Streams are drained before memory is freed: a lookahead step may still run. */
void cu_lane_close(struct sg_unit *u, struct cu_lane *l)
{
    cu_ptr *const buffers[] = {&l->x_split,
                               &l->slices,
                               &l->partial_sums,
                               &l->values_few[0].memory[0],
                               &l->values_few[0].memory[1],
                               &l->values_few[1].memory[1],
                               &l->values_many.memory[0],
                               &l->values_many.memory[1],
                               &l->pass_args[0].head,
                               &l->pass_args[1].head,
                               &l->scratch,
                               &l->narrow,
                               &l->wide,
                               &l->attn_parts,
                               &l->workspace,
                               &l->best_value,
                               &l->best_index,
                               &l->draws,
                               &l->arrivals,
                               &l->stops,
                               &l->sampling.samplers,
                               &l->sampling.work,
                               &l->sampling.counts,
                               &l->sampling.jobs,
                               &l->sampling.lists};
    cu_logits_detach_lane(u, l);
    cu_enter(u);
    if (l->stream_all) u->d.stream_sync(l->stream_all);
    if (l->stream_part) u->d.stream_sync(l->stream_part);
    if (l->logits_stream) u->d.stream_sync(l->logits_stream);
    cu_captured_forget(u, l);
    l->graphs_max = 0;
    cu_graphs_reserve(u, l);
    for (int i = 0; i < 2; i++) {
        if (l->pass_args[i].pinned) u->d.host_free(l->pass_args[i].pinned);
        if (l->done[i]) u->d.event_free(l->done[i]);
        if (l->logits_copied[i]) u->d.event_free(l->logits_copied[i]);
    }
    if (l->stream_event) u->d.event_free(l->stream_event);
    if (l->ring) u->d.host_free(l->ring);
    if (l->host_chosen) u->d.host_free(l->host_chosen);
    if (l->host_logits) u->d.host_free(l->host_logits);
    if (l->sampling.pinned) u->d.host_free(l->sampling.pinned);
    if (l->sampling.out) u->d.host_free(l->sampling.out);
    for (int i = 0; i < CK_SPANS; i++) sg_free(l->sampling.seen[i].lists);
    if (l->logits_stream) u->d.stream_free(l->logits_stream);
    if (l->stream_part) u->d.stream_free(l->stream_part);
    if (l->stream_all) u->d.stream_free(l->stream_all);
    cu_leave(u);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) cu_mem_free(u, buffers[i]);
    for (uint32_t i = 0; i < l->loras_n; i++) cu_mem_free(u, &l->loras[i].memory);
    sg_free(l->loras);
    cu_join_close(u, l);
}

/* Zeroed pinned memory that the GPU can access; *out (a pointer of any type) is its address. */
static segue_status alloc_pinned(struct sg_unit *u, size_t bytes, void *out, segue_error *err)
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

/* Zeroed GPU memory. */
static segue_status alloc_zeroed(struct sg_unit *u, struct cu_lane *l, size_t bytes, cu_ptr *out, segue_error *err)
{
    SG_TRY(cu_mem_alloc(u, bytes, "buffers of a run", out, err));
    cu_enter(u);
    cu_result r = u->d.memset_d8(*out, 0, bytes, l->stream_all);
    cu_leave(u);
    return cu_check(&u->d, r, "compile", err);
}

/* One args block: the head, slot addresses of all spans to read and to write, then four arrays of CU_PASS_ROWS entries. */
static segue_status alloc_pass_args(struct sg_unit *u, struct sg_program *p, struct cu_lane *l, struct cu_pass_args *h,
                                    segue_error *err)
{
    size_t array = CU_PASS_ROWS * sizeof(uint32_t), at = (sizeof(struct ck_head) + 255) / 256 * 256;
    size_t slots = ((size_t)CK_SPANS * p->base.graph->slots_n * sizeof(void *) + 15) / 16 * 16;
    l->head_bytes = at + 2 * slots + 4 * array;
    SG_TRY(cu_mem_alloc(u, l->head_bytes, "buffers of a run", &h->head, err));
    h->slots = h->head + at;
    h->slots_out = h->slots + slots;
    h->tokens = h->slots_out + slots;
    h->pos = h->tokens + array;
    h->span = h->pos + array;
    h->wanted = h->span + array;
    return alloc_pinned(u, l->head_bytes, &h->pinned, err);
}

/* Without partitions the decode lane has the higher stream priority. In overlapping partitions (see sm_partition.c) prefill has
 * it, in its set. The buffers for few rows exist from the start; values_few[1] shares everything but the wanted rows, which are
 * the logits that a lookahead step must not overwrite. */
segue_status cu_lane_open(struct sg_unit *u, struct sg_program *p, int many, segue_error *err)
{
    struct cu_lane *l = &p->lanes[many];
    l->kind = many ? CU_LANE_PREFILL : CU_LANE_DECODE;
    int least = 0, greatest = 0;
    cu_enter(u);
    cu_result r = u->d.priorities(&least, &greatest);
    if (!r) r = u->d.stream_new(&l->stream_all, CU_STREAM_NON_BLOCKING, many ? least : greatest);
    if (!r) r = cu_partition_stream(u, l->kind, &l->stream_part, many == (u->rest_sms + u->part_sms > u->sms) ? greatest : least);
    if (!r) r = u->d.event_new(&l->stream_event, CU_EVENT_UNTIMED);
    l->stream = l->stream_all;
    if (!r) r = u->d.stream_new(&l->logits_stream, CU_STREAM_NON_BLOCKING, greatest);
    for (int i = 0; i < 2 && !r; i++) r = u->d.event_new(&l->done[i], CU_EVENT_UNTIMED);
    for (int i = 0; i < 2 && !r; i++) r = u->d.event_new(&l->logits_copied[i], CU_EVENT_UNTIMED);
    cu_leave(u);
    SG_TRY(cu_check(&u->d, r, "compile", err));
    /* Buffers of both args blocks: a step and its lookahead step. */
    for (int i = 0; i < 2; i++) {
        l->values_few[0].rows[i] = l->values_few[1].rows[i] = CU_GEMV_ROWS;
        SG_TRY(alloc_pass_args(u, p, l, &l->pass_args[i], err));
        SG_TRY(cu_mem_alloc(u, (size_t)p->columns[i] * CU_GEMV_ROWS * sizeof(float), "buffers of a run",
                            &l->values_few[0].memory[i], err));
    }
    l->values_few[1].memory[0] = l->values_few[0].memory[0];
    SG_TRY(cu_mem_alloc(u, (size_t)p->columns[1] * CU_GEMV_ROWS * sizeof(float), "buffers of a run", &l->values_few[1].memory[1],
                        err));
    SG_TRY(cu_mem_alloc(u, (size_t)CU_DECODE_ROWS * CU_CHOICE_BLOCKS * sizeof(float), "buffers of a run", &l->best_value, err));
    SG_TRY(
        cu_mem_alloc(u, (size_t)CU_DECODE_ROWS * CU_CHOICE_BLOCKS * sizeof(uint32_t), "buffers of a run", &l->best_index, err));
    SG_TRY(alloc_zeroed(u, l, sizeof(uint32_t), &l->draws, err));
    SG_TRY(alloc_zeroed(u, l, u->sms * sizeof(uint32_t), &l->arrivals, err));
    SG_TRY(cu_mem_alloc(u, CU_STOPS * sizeof(int32_t), "buffers of a run", &l->stops, err));
    /* The count of tokens follows the ring, in another cache line. */
    SG_TRY(alloc_pinned(u, CU_RING_TOKENS * sizeof(int32_t) + 64, &l->ring, err));
    l->ring_written = (volatile uint32_t *)(void *)(l->ring + CU_RING_TOKENS);
    size_t split = cu_batch_split_bytes(p), packed = cu_packed_split_bytes(p), slices = cu_packed_slices_bytes(p);
    SG_TRY(cu_mem_alloc(u, split > packed ? split : packed, "buffers of a run", &l->x_split, err));
    if (slices) SG_TRY(alloc_zeroed(u, l, slices, &l->slices, err));
    if (p->fusions_n) SG_TRY(cu_mem_alloc(u, cu_cluster_sums_bytes(p), "buffers of a run", &l->partial_sums, err));
    l->graphs_max = u->graphs ? cu_graphs_bytes_max(p->fused_n) : 0;
    cu_graphs_reserve(u, l);
    return alloc_pinned(u, 2 * CU_DECODE_ROWS * sizeof(int32_t), &l->host_chosen, err);
}
