/* issue_join.c: sums and concatenations between the GPUs of a group (k_join.cu). Each lane of each program has memory that the
 * peers write; the addresses are exchanged when all programs are compiled. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

enum { FEW_NUMBERS = 131072 }; /* numbers of a rank up to which join_few is faster */

/* Bytes that one peer writes: numbers of join_few and of join_many, flags of join_many; and what only this rank uses. */
static const size_t few_bytes = (size_t)2 * CK_JOIN_BLOCKS * CK_JOIN_THREADS * 16,
                    wide_bytes = (size_t)CK_JOIN_TURNS * CK_JOIN_BLOCKS * CK_JOIN_FOURS * 16,
                    flag_bytes = (size_t)CK_JOIN_TURNS * CK_JOIN_BLOCKS * 4,
                    turn_bytes = (size_t)(2 * CK_JOIN_BLOCKS + 4) * 4; /* turns of each block, then the flag `lost` */

/* Also for a lane that is not part of a group. */
void cu_join_close(struct sg_unit *u, struct cu_lane *l)
{
    if (l->join.lost_flag) {
        cu_enter(u);
        u->d.host_free(l->join.lost_flag);
        cu_leave(u);
    }
    cu_mem_free(u, &l->join.memory);
    l->join = (struct cu_join){0};
}

/* Allocates a lane's memory for joins and clears it before a peer can write. Layout: few_bytes per rank, wide_bytes per rank,
 * flag_bytes per rank, turns. The kernel sets lost_flag in pinned memory when a peer does not answer. */
static segue_status join_open(struct sg_unit *u, struct cu_lane *l, uint32_t rank, uint32_t ranks, segue_error *err)
{
    struct cu_join *j = &l->join;
    size_t all = ranks * (few_bytes + wide_bytes + flag_bytes) + turn_bytes;
    void *lost_flag = NULL;
    cu_ptr lost_flag_gpu = 0;
    j->rank = rank;
    j->ranks = ranks;
    SG_TRY(cu_mem_alloc(u, all, "buffers of a run", &j->memory, err));
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    cu_result r = cu_pending_copy_start(u);
    if (!r) r = u->d.memset_d8(j->memory, 0, all, u->copies);
    if (!r) r = u->d.stream_sync(u->copies);
    if (!r) r = u->d.host_alloc(&lost_flag, 64, CU_HOST_MAPPED);
    j->lost_flag = lost_flag;
    if (!r) *j->lost_flag = 0;
    if (!r) r = u->d.host_ptr(&lost_flag_gpu, lost_flag, 0);
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    SG_TRY(cu_check(&u->d, r, "compile: several GPUs", err));
    cu_ptr flags = j->memory + ranks * (few_bytes + wide_bytes), turns = flags + ranks * flag_bytes;
    j->a.turns = (void *)(uintptr_t)turns;
    j->a.lost = (void *)(uintptr_t)(turns + turn_bytes - 16);
    j->a.lost_host = (void *)(uintptr_t)lost_flag_gpu;
    return SEGUE_OK;
}

/* Puts the addresses of rank r's memory into this rank's arguments. Addresses are valid on all GPUs (unified addressing). */
static void join_link(struct cu_join *to, uint32_t r, const struct cu_join *from)
{
    to->a.peer_slots[r] = (void *)(uintptr_t)from->memory;
    to->a.wide[r] = (void *)(uintptr_t)(from->memory + from->ranks * few_bytes);
    to->a.flags[r] = (void *)(uintptr_t)(from->memory + from->ranks * (few_bytes + wide_bytes));
}

/* Two units on one GPU cannot form a group: each waits for the other inside a kernel. */
segue_status cu_peer_enable(struct sg_unit *from, struct sg_unit *to, segue_error *err)
{
    int can = 0;
    cu_result r = from->device == to->device;
    if (!r) r = from->d.can_access_peer(&can, from->device, to->device);
    if (r || !can)
        return sg_fail(err, SEGUE_EUNIT,
                       "open unit: several GPUs as one: %s cannot access the memory of %s; use GPUs with NVLink or peer "
                       "access (nvidia-smi topo -p2p r), or a single GPU",
                       from->desc.info.spec, to->desc.info.spec);
    cu_enter(from);
    r = from->d.peer_enable(to->ctx, 0);
    cu_leave(from);
    return r == CU_PEER_ALREADY_ENABLED ? SEGUE_OK : cu_check(&from->d, r, "open unit: several GPUs as one", err);
}

/* First all memory exists, then every lane gets the addresses of the same lane of each rank. Runs of a group use the same lane on
 * all ranks. */
segue_status cu_link_ranks(struct sg_program *const *programs, uint32_t n, segue_error *err)
{
    for (uint32_t r = 0; r < n; r++)
        for (int k = 0; k < CU_LANES; k++) SG_TRY(join_open(programs[r]->base.unit, &programs[r]->lanes[k], r, n, err));
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++)
            for (int k = 0; k < CU_LANES; k++) join_link(&programs[a]->lanes[k].join, b, &programs[b]->lanes[k].join);
    return SEGUE_OK;
}

/* Few numbers: each is sent with its turn in one 8-byte word. Many: pieces of 16 bytes and a flag per block, half of the bytes,
 * but rows must be multiples of 16 bytes. All ranks add in the same order. The number of blocks must be equal on all ranks, so it
 * depends on the shape alone. */
segue_status cu_issue_join(struct cu_pass *p, const struct sg_op *op)
{
    const struct cu_kernels *k = &p->program->base.unit->k;
    const struct cu_join *j = &p->lane->join;
    struct sg_operand whole = {.value = op->out, .width = p->program->base.graph->values[op->out].width};
    struct ck_join a = j->a;
    if (!j->ranks)
        return sg_fail(p->err, SEGUE_EUNSUPPORTED,
                       "run: cuda: join: this graph is one rank of a group; run it together with the other ranks");
    a.x = cu_view_of(p, &op->in[0]);
    a.y = cu_view_of(p, &whole);
    a.rows = p->rows_n[p->program->base.graph->values[op->out].wanted];
    a.ranks = j->ranks;
    a.rank = j->rank;
    a.sum = op->u.join.sum;
    uint64_t numbers = (uint64_t)a.rows * a.x.width, pairs = (uint64_t)a.rows * ((a.x.width + 1) / 2);
    int wide = numbers > FEW_NUMBERS && a.x.width % 4 == 0 && cu_is_float4(&a.x) && cu_is_float4(&a.y);
    uint64_t blocks = wide ? (numbers / 4 + CK_JOIN_FOURS - 1) / CK_JOIN_FOURS : (pairs + CK_JOIN_THREADS - 1) / CK_JOIN_THREADS;
    if (blocks > CK_JOIN_BLOCKS) blocks = CK_JOIN_BLOCKS;
    return cu_launch(p, wide ? k->join_many : k->join_few, (uint32_t)blocks, 1, 1, wide ? CK_JOIN_WIDE_THREADS : CK_JOIN_THREADS,
                     0, &a);
}

/* The kernel stops waiting after 10 s, sets the flag and returns, so that the GPU stays usable. */
segue_status cu_join_check(const struct cu_lane *l, segue_error *err)
{
    const volatile uint32_t *lost = l->join.lost_flag;
    if (!lost || !*lost) return SEGUE_OK;
    return sg_fail(err, SEGUE_ELOST,
                   "run: cuda: another GPU of this unit did not answer within 10 s; reopen the unit, or use another one");
}
