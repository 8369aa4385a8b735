/* issue_attend.c: launches of attention. With one row per sequence and up to 8 chunks of 64 positions, one kernel does all of
 * it (k_single.cu). Up to 16 rows at any depth: the KV length is divided over the multiprocessors and the parts are joined
 * (k_split.cu for K and V in 16 bits and heads of 64, 128 or 256, else k_attend.cu). More than 32 rows with K and V in 16 bits
 * and such heads: flash attention, with wgmma on Hopper (k_wgflash.cu, k_flash.cu). All else: k_attend.cu row by row. Where the
 * kernel does not do it, K and V are stored first (prepare or append). SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* Arguments of norm, rope and the K and V store. s NULL: norm and rope are separate steps, and only the store is left. */
static struct ck_prepare prepare_of(const struct cu_pass *p, const struct cu_step *s, const struct sg_op *attend)
{
    const struct sg_attend *a = &attend->u.attend;
    const struct sg_op *raw_q = s ? s->q_norm ? s->q_norm : s->q_rope : NULL,
                       *raw_k = s ? s->k_norm ? s->k_norm : s->k_rope : NULL;
    struct ck_prepare args = {.pass = cu_kernel_pass(p),
                              .q = cu_view_of(p, raw_q ? &raw_q->in[0] : &attend->in[0]),
                              .k = cu_view_of(p, raw_k ? &raw_k->in[0] : &attend->in[1]),
                              .v = cu_view_of(p, &attend->in[2]),
                              .q_norm = cu_norm_of(p, s ? s->q_norm : NULL),
                              .k_norm = cu_norm_of(p, s ? s->k_norm : NULL),
                              .heads = a->heads,
                              .kv_heads = a->kv_heads,
                              .d = a->d,
                              .dv = a->dv,
                              .slot_k = (uint32_t)a->slot_k,
                              .slot_v = (uint32_t)a->slot_v,
                              .storage = cu_storage_of(p->kv),
                              .rows = p->rows_n[0]};
    if (!s) return args;
    const struct sg_rope *r = &s->q_rope->u.rope;
    const struct sg_rope_table *t = &p->program->base.graph->ropes[r->table];
    args.q_out = cu_output_view(p, s->q_rope);
    args.inverse = cu_floats(p->program->inverse[r->table]);
    args.pairs = t->pairs;
    args.mscale = t->mscale;
    args.q_norm.present = s->q_norm != NULL;
    args.k_norm.present = s->k_norm != NULL;
    return args;
}

/* Stores K and V of the new rows, without norm or rope. */
static segue_status issue_append(struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_attend *a = &op->u.attend;
    struct ck_append args = {.pass = cu_kernel_pass(p),
                             .k = cu_view_of(p, &op->in[1]),
                             .v = cu_view_of(p, &op->in[2]),
                             .heads = a->kv_heads,
                             .d = a->d,
                             .dv = a->dv,
                             .slot_k = (uint32_t)a->slot_k,
                             .slot_v = (uint32_t)a->slot_v,
                             .storage = cu_storage_of(p->kv),
                             .rows = p->rows_n[0]};
    return cu_launch(p, p->program->base.unit->k.append, args.rows, a->kv_heads, 1, 64, 0, &args);
}

/* Norm and rope of q and k, and the K and V store. prepare_many reads four numbers at once. */
static segue_status issue_prepare(struct cu_pass *p, const struct ck_prepare *a)
{
    const struct cu_kernels *k = &p->program->base.unit->k;
    uint32_t each = a->heads + a->kv_heads;
    if (a->rows > CU_GEMV_ROWS && a->d % 4 == 0 && cu_is_float4(&a->q) && cu_is_float4(&a->k) && cu_is_float4(&a->q_out))
        return cu_launch(p, k->prepare_many, cu_pieces(a->rows * each, 8), 1, 1, 256, 0, a);
    return cu_launch(p, k->prepare, a->rows, each, 1, 128, 0, a);
}

/* Arguments that all attention kernels share. */
static struct ck_attend attend_of(const struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_attend *a = &op->u.attend;
    return (struct ck_attend){.pass = cu_kernel_pass(p),
                              .q = cu_view_of(p, &op->in[0]),
                              .gate = cu_view_of(p, &op->in[3]),
                              .y = cu_output_view(p, op),
                              .sinks = cu_vector_of(p, &a->sinks),
                              .heads = a->heads,
                              .kv_heads = a->kv_heads,
                              .d = a->d,
                              .dv = a->dv,
                              .window = a->window,
                              .slot_k = (uint32_t)a->slot_k,
                              .slot_v = (uint32_t)a->slot_v,
                              .storage = cu_storage_of(p->kv),
                              .rows = p->rows_n[0],
                              .chunks = p->chunks,
                              .scale = a->scale,
                              .softcap = a->softcap};
}

/* Index of a head width among the template instances; -1: none. */
static int head_width_index(uint32_t d) { return d == 64 ? 0 : d == 128 ? 1 : d == 256 ? 2 : -1; }

/* Index of the tensor-core kernels' instance for K and V in 16 bits; -1: none. */
static int tensor_width(const struct ck_attend *a)
{
    int is_16 = a->storage == CK_KV_F16 || a->storage == CK_KV_BF16;
    return a->d == a->dv && is_16 ? head_width_index(a->d) : -1;
}

/* 1: kernels of one row can rotate by themselves (k_head.cuh). */
static int rope_fits(const struct ck_prepare *b)
{
    return b->pairs % 32 == 0 && b->pairs <= b->d / 2 && !(b->pairs & (b->pairs - 1));
}

/* The kernel that does all of it in one launch (k_single.cu), or NULL: every row is another sequence, few positions that the
 * window covers, K and V in 16 bits, no soft cap. Not with "invariant=1": its additions depend on the number of positions. */
static cu_fn single_kernel_of(const struct cu_pass *p, const struct ck_prepare *b, const struct ck_attend *a)
{
    int width = tensor_width(a);
    if (p->program->base.unit->invariant || a->rows > CU_DECODE_ROWS || a->rows != p->spans_n || a->chunks > CK_SINGLE_CHUNKS ||
        width < 0 || a->softcap > 0 || (a->window && a->window < a->chunks * CK_CHUNK) || !rope_fits(b))
        return NULL;
    return p->program->base.unit->k.single[a->storage == CK_KV_BF16][width];
}

/* One block per head and row. Several rows over few positions use half of the threads, so that more blocks fit. */
static segue_status attend_single(struct cu_pass *p, cu_fn fn, const struct ck_prepare *b, const struct ck_attend *a)
{
    struct ck_single args = {.prepare = *b, .attend = *a};
    uint32_t threads = a->rows > 1 && a->chunks <= CK_SINGLE_CHUNKS / 2 ? CK_SINGLE_THREADS / 2 : CK_SINGLE_THREADS;
    return cu_launch(p, fn, a->heads, a->rows, 1, threads, 0, &args);
}

/* Query heads that share a K and V head, in groups of at most CK_GROUP_HEADS per block. */
static uint32_t groups_of(const struct ck_attend *a) { return a->kv_heads * cu_pieces(a->heads / a->kv_heads, CK_GROUP_HEADS); }

/* Parts of the KV length of all rows together. One row, or every row by itself: about `blocks` per multiprocessor and row. Rows
 * of unequal depth: more and smaller parts, which the multiprocessors take in turn. */
static uint32_t splits_of(const struct cu_pass *p, const struct ck_attend *a, uint32_t rows, uint32_t blocks)
{
    const struct sg_unit *u = p->program->base.unit;
    uint32_t groups = groups_of(a), sms = u->invariant ? u->sms : p->sms, each = blocks * sms / groups;
    if (each * groups * 8 < blocks * sms * 7) each = 2 * blocks * sms / groups;
    if (rows > 1 && !u->invariant) return rows + 4 * sms / groups;
    return rows * (each ? each : 1);
}

/* Blocks per multiprocessor: a block of k_split.cu has enough copies in flight alone, one of split_any has not. */
enum { SPLIT_BLOCKS = 1, SPLIT_ANY_BLOCKS = 4 };

/* Arguments of the split kernels, with scratch for the parts of up to CU_DECODE_ROWS rows. */
static segue_status split_of(struct cu_pass *p, const struct ck_prepare *b, const struct ck_attend *a, uint32_t blocks,
                             struct ck_split *out)
{
    uint32_t pitch = (a->dv + 3) / 4 * 4, one = splits_of(p, a, 1, blocks), all = splits_of(p, a, CU_DECODE_ROWS, blocks),
             largest = one > all ? one : all;
    size_t sums = (size_t)largest * a->heads * pitch;
    SG_TRY(cu_lane_grow(p, &p->lane->attn_parts, &p->lane->attn_parts_bytes,
                        (sums + (size_t)largest * a->heads * 2) * sizeof(float)));
    *out = (struct ck_split){.prepare = *b,
                             .attend = *a,
                             .ends = cu_floats(p->lane->attn_parts) + sums,
                             .splits = splits_of(p, a, a->rows, blocks),
                             .pitch = pitch,
                             .alone = p->program->base.unit->invariant};
    out->attend.parts = cu_floats(p->lane->attn_parts);
    return SEGUE_OK;
}

static segue_status join_parts(struct cu_pass *p, const struct ck_split *s)
{
    return cu_launch(p, p->program->base.unit->k.split_join, s->attend.heads, cu_pieces(s->attend.dv, 64), s->attend.rows, 256, 0,
                     s);
}

/* Up to CU_DECODE_ROWS rows. The kernel prepares q, K and V itself if every row is another sequence: else a row also attends to
 * positions of the same pass, which another launch must have stored. With "invariant=1" that launch is always separate. */
static segue_status attend_split(struct cu_pass *p, const struct cu_step *s, const struct sg_op *op, const struct ck_prepare *b,
                                 const struct ck_attend *a)
{
    const struct sg_unit *u = p->program->base.unit;
    struct ck_split args;
    int width = a->d == a->dv ? head_width_index(a->d) : -1;
    cu_fn fn = width >= 0 && a->storage != CK_KV_F32 ? u->k.split[a->storage - CK_KV_F16][width] : NULL;
    size_t bytes = a->storage == CK_KV_Q8 ? CK_SPLIT_Q8_BYTES(a->d) : CK_SPLIT_RING_BYTES(a->d);
    SG_TRY(split_of(p, b, a, fn ? SPLIT_BLOCKS : SPLIT_ANY_BLOCKS, &args));
    args.fused = fn && !u->invariant && a->rows == p->spans_n && rope_fits(b);
    if (!args.fused) SG_TRY(s ? issue_prepare(p, b) : issue_append(p, op));
    if (fn)
        SG_TRY(cu_launch(p, fn, args.splits, groups_of(a), 1, CK_SPLIT_THREADS(a->d), bytes, &args));
    else
        SG_TRY(cu_launch(p, u->k.split_any[a->storage], args.splits, groups_of(a), 1, 256,
                         (size_t)CK_GROUP_HEADS * (a->d + a->dv) * sizeof(float), &args));
    return join_parts(p, &args);
}

enum { KEY_SPLITS_MAX = 16 };

/* Pairs of tiles of 64 rows that share a K/V head, of all such heads. */
static uint32_t row_pairs_of(const struct ck_attend *a, uint32_t rows)
{
    return cu_pieces(cu_pieces(rows, CK_WGFLASH_PAIR / 2) * (a->heads / a->kv_heads), 2) * a->kv_heads;
}

/* Tensor map of K or V with boxes of a tile of keys and 64 columns, which blocks copy with the address of their slot. `any` is an
 * address that the driver accepts. 0: no such function. */
static int map_of_keys(struct sg_unit *u, const struct ck_attend *a, cu_ptr any, struct ck_tensor_map *map)
{
    const uint64_t dims[3] = {a->d / 2, a->kv_heads, 1}, strides[2] = {2ull * a->d, 2ull * a->d * a->kv_heads};
    const uint32_t box[3] = {32, 1, CK_WGFLASH_KEYS(a->d)}, steps[3] = {1, 1, 1};
    if (!u->d.tensor_map) return 0;
    cu_enter(u);
    cu_result r = u->d.tensor_map(map, CU_TENSOR_INT32, 3, (void *)(uintptr_t)any, dims, strides, box, steps, 0,
                                  CU_TENSOR_SWIZZLE_128, CU_TENSOR_L2_256, 0);
    cu_leave(u);
    return !r;
}

/* Flash attention with wgmma. With few earlier keys a block computes 64 rows of a head, or 128 when there are more blocks of 64
 * than multiprocessors; with many, a pair of tiles of 64 rows, and their keys are divided while multiprocessors are left (two
 * blocks of heads of 64 share one). The split does not depend on a division of the GPU, so that results do not either. */
static segue_status attend_wgmma(struct cu_pass *p, cu_fn fn, const struct ck_attend *a)
{
    struct sg_unit *u = p->program->base.unit;
    uint32_t tiles = cu_pieces(a->rows, CK_WGFLASH_PAIR / 2), pairs = row_pairs_of(a, a->rows);
    uint32_t all = u->sms * (a->d == 64 ? 2 : 1), splits = all / pairs;
    struct ck_wgflash args = {.attend = *a, .arrivals = (uint32_t *)(uintptr_t)p->lane->arrivals};
    args.splits = splits < 1 ? 1 : splits > KEY_SPLITS_MAX ? KEY_SPLITS_MAX : splits;
    args.columns = tiles * a->heads > p->sms ? cu_pieces(tiles, 2) : tiles;
    /* Allocated for any number of rows: graphs have the address, and prepare.c begins with the longest prompt that is padded. */
    size_t rows = (size_t)all * CK_WGFLASH_PAIR, sums = rows * (a->d + 2) * sizeof(float),
           largest = row_pairs_of(a, CU_PASS_ROWS);
    SG_TRY(cu_lane_grow(p, &p->lane->attn_parts, &p->lane->attn_parts_bytes,
                        sums + (largest > all ? largest : all) * 2 * sizeof *args.maps));
    args.attend.parts = cu_floats(p->lane->attn_parts);
    args.ends = args.attend.parts + rows * a->d;
    if (map_of_keys(u, a, p->lane->attn_parts, &args.map))
        args.maps = (struct ck_tensor_map *)(uintptr_t)(p->lane->attn_parts + sums);
    uint32_t near = args.columns * a->heads, deep = pairs * args.splits;
    return cu_launch(p, fn, near > deep ? near : deep, 1, 1, CK_WGFLASH_THREADS, CK_WGFLASH_BYTES(a->d), &args);
}

/* More than CU_DECODE_ROWS rows; K and V are stored. */
static segue_status attend_many(struct cu_pass *p, const struct ck_attend *a)
{
    const struct cu_kernels *k = &p->program->base.unit->k;
    uint32_t tiles = cu_pieces(a->rows, 64);
    int width = tensor_width(a), is_flash = a->rows > CU_GEMV_ROWS && width >= 0;
    if (is_flash && k->wgflash[0][width] && cu_is_float4(&a->q) && cu_is_float4(&a->gate) && cu_is_float4(&a->y))
        return attend_wgmma(p, k->wgflash[a->storage == CK_KV_BF16][width], a);
    if (is_flash)
        return cu_launch(p, k->flash[a->storage == CK_KV_BF16][width], tiles, a->heads, 1, 128, (size_t)128 * (a->d + 8) * 2, a);
    return cu_launch(p, k->attend_many[a->storage], a->rows, groups_of(a), 1, 256,
                     (size_t)CK_GROUP_HEADS * (a->d + a->dv) * sizeof(float), a);
}

/* K and V are stored before attention reads them; both are launches in one stream. */
segue_status cu_issue_attention(struct cu_pass *p, const struct cu_step *s, const struct sg_op *op)
{
    struct ck_prepare before = prepare_of(p, s, op);
    struct ck_attend args = attend_of(p, op);
    cu_fn single = single_kernel_of(p, &before, &args);
    if (single) return attend_single(p, single, &before, &args);
    if (args.rows <= CU_DECODE_ROWS) return attend_split(p, s, op, &before, &args);
    SG_TRY(s ? issue_prepare(p, &before) : issue_append(p, op));
    return attend_many(p, &args);
}
