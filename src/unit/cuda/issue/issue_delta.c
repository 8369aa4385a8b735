/* issue_delta.c: launches of the short convolution and the delta rule. A long pass with heads of 128 runs in chunks of 64 rows on
 * tensor cores (k_chunk.cu, k_chunk_state.cu; k_scan.cu on Hopper), which also compute the convolution; all else runs row by row
 * (k_delta.cu).
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

enum { HEAD = 128 }; /* head width of the chunked kernels and of delta_slabs */

/* Grows the lane's general scratch, which the next step may overwrite. */
static segue_status scratch(struct cu_pass *p, size_t bytes)
{
    return cu_lane_grow(p, &p->lane->scratch, &p->lane->scratch_bytes, bytes);
}

/* --- the convolution --- */

static struct ck_conv conv_of(const struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_conv *c = &op->u.conv;
    return (struct ck_conv){.pass = cu_kernel_pass(p),
                            .x = cu_view_of(p, &op->in[0]),
                            .y = cu_output_view(p, op),
                            .weight = cu_vector_of(p, &c->weight),
                            .bias = cu_vector_of(p, &c->bias),
                            .taps = c->taps,
                            .act = c->act,
                            .slot = (uint32_t)c->slot,
                            .rows = cu_out_rows(p, op)};
}

/* Few rows: one kernel computes and stores. Else all rows are computed first, and conv_store keeps the last ones of each span. */
segue_status cu_issue_conv(struct cu_pass *p, const struct sg_op *op)
{
    const struct cu_kernels *k = &p->program->base.unit->k;
    struct ck_conv a = conv_of(p, op);
    if (a.rows <= CU_DECODE_ROWS && a.taps <= CU_CONV_STEP_TAPS)
        return cu_launch(p, k->conv_step, cu_pieces(a.x.width, 128), p->spans_n, 1, 128, 0, &a);
    if (a.taps <= CU_CONV_STEP_TAPS && p->spans_n == 1)
        SG_TRY(cu_launch(p, k->conv_tiles, cu_pieces(a.rows, 16), cu_pieces(a.x.width, 128), 1, 128, 0, &a));
    else
        SG_TRY(cu_launch(p, k->conv_many, a.rows, cu_pieces(a.x.width, 256), 1, 256, 0, &a));
    return cu_launch(p, k->conv_store, cu_pieces(a.x.width, 128), p->spans_n, 1, 128, 0, &a);
}

/* --- the delta rule --- */

/* Inputs: q, k, v, and the values from which decay and beta are computed. */
static struct ck_delta delta_of(const struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_delta *d = &op->u.delta;
    struct ck_delta a = {.pass = cu_kernel_pass(p),
                         .y = cu_output_view(p, op),
                         .decay = cu_vector_of(p, &d->decay),
                         .dt = cu_vector_of(p, &d->dt),
                         .k_heads = d->k_heads,
                         .v_heads = d->v_heads,
                         .dk = d->dk,
                         .dv = d->dv,
                         .is_log = d->decay_is_log,
                         .slot = (uint32_t)d->slot,
                         .rows = cu_out_rows(p, op),
                         .l2_eps = d->l2_eps};
    for (int i = 0; i < 5; i++) a.in[i] = cu_view_of(p, &op->in[i]);
    return a;
}

/* 1: the chunked kernels support the pass: one long span, heads of 128, normalised keys, rows that are multiples of 16 bytes. */
static int chunks_fit(const struct cu_pass *p, const struct ck_delta *a)
{
    return p->program->base.unit->shared_max >= CK_CHUNK_STATE_BYTES && p->spans_n == 1 && a->rows > CU_GEMV_ROWS &&
           a->dk == HEAD && a->dv % CK_CHUNK_COLUMNS == 0 && a->l2_eps > 0 && cu_is_float4(&a->in[0]) &&
           cu_is_float4(&a->in[1]) && cu_is_float4(&a->in[2]) && cu_is_float4(&a->y);
}

/* A view of a product's result, which is in fp32 or in bf16. */
static struct ck_view part_view(const struct cu_pass *p, const struct ck_delta *a, const struct sg_operand *x)
{
    return a->halves ? cu_bf16_view_of(p, x) : cu_view_of(p, x);
}

/* Arguments of a kernel that computes the convolution itself: q, k and v are column ranges of its input. */
static void read_before_conv(const struct cu_pass *p, const struct sg_op *op, const struct sg_op *conv, struct ck_delta *a)
{
    const struct sg_conv *c = &conv->u.conv;
    for (int i = 0; i < 3; i++) {
        struct sg_operand raw = {.value = conv->in[0].value, .at = op->in[i].at, .width = op->in[i].width};
        a->in[i] = part_view(p, a, &raw);
        a->conv.at[i] = op->in[i].at;
    }
    a->conv.weight = cu_vector_of(p, &c->weight);
    a->conv.bias = cu_vector_of(p, &c->bias);
    a->conv.taps = c->taps;
    a->conv.raw = part_view(p, a, &conv->in[0]).p;
    for (int i = 3; i < 5; i++) a->in[i] = part_view(p, a, &op->in[i]);
    a->conv.slot = (uint32_t)c->slot;
    a->conv.width = conv->in[0].width;
}

static int is_hopper(const struct cu_pass *p) { return p->program->base.unit->major == 9; }

int cu_delta_halves(const struct cu_pass *p, const struct sg_op *op, const struct sg_op *conv)
{
    return is_hopper(p) && cu_delta_convolves(p, op, conv);
}

/* The chunked kernels compute a convolution with SiLU and few taps, on columns that are multiples of 4. */
int cu_delta_convolves(const struct cu_pass *p, const struct sg_op *op, const struct sg_op *conv)
{
    struct ck_delta a = delta_of(p, op);
    read_before_conv(p, op, conv, &a);
    return chunks_fit(p, &a) && a.dv == HEAD && conv->u.conv.act == SG_ACT_SILU && a.conv.taps <= CK_CHUNK_TAPS &&
           a.conv.width % 4 == 0 && a.conv.at[0] % 4 == 0 && a.conv.at[1] % 4 == 0 && a.conv.at[2] % 4 == 0;
}

/* Hopper: the factors of all chunks in parallel, then the scan of the state S through the chunks, by columns of S. */
static segue_status issue_chunk_factors(struct cu_pass *p, struct ck_delta *a)
{
    const struct cu_kernels *k = &p->program->base.unit->k;
    uint32_t chunks = cu_pieces(a->rows, CK_CHUNK_ROWS);
    SG_TRY(scratch(p, (size_t)chunks * a->v_heads * sizeof *a->factors));
    a->factors = (struct ck_factors *)(uintptr_t)p->lane->scratch;
    SG_TRY(cu_launch(p, a->halves ? k->chunk_factors_halves : k->chunk_factors, chunks, a->v_heads, 1,
                     a->halves ? CK_CHUNK_THREADS : CK_CHUNK_LOCAL_THREADS, CK_CHUNK_LOCAL_BYTES, a));
    /* A block scans CK_SCAN_COLUMNS columns of one head's S. */
    uint32_t sets = a->v_heads * (HEAD / CK_SCAN_COLUMNS);
    if (sets > p->sms) /* two column sets per block, so that all blocks run at the same time */
        return cu_launch(p, k->chunk_scan_pairs, sets / 2, 1, 1, CK_SCAN_PAIRS_THREADS, CK_SCAN_BYTES, a);
    return cu_launch(p, k->chunk_scan, sets, 1, 1, CK_SCAN_THREADS, CK_SCAN_BYTES, a);
}

/* Other GPUs: products inside the chunks (chunk_local), then the state through them. Layout of the scratch: QK and T as split
 * 16-bit matrices per chunk and head, scalars, convolved v. */
static segue_status issue_chunks(struct cu_pass *p, struct ck_delta *a)
{
    const struct cu_kernels *k = &p->program->base.unit->k;
    if (is_hopper(p) && a->dv == HEAD) return issue_chunk_factors(p, a);
    uint32_t chunks = cu_pieces(a->rows, CK_CHUNK_ROWS);
    size_t square = (size_t)CK_CHUNK_ROWS * CK_CHUNK_ROWS * 4, qk = (size_t)chunks * a->k_heads * 2 * square,
           tp = (size_t)chunks * a->v_heads * square, numbers = (size_t)chunks * a->v_heads * 3 * CK_CHUNK_ROWS,
           v = a->conv.weight ? (size_t)chunks * a->v_heads * CK_CHUNK_ROWS * HEAD : 0;
    SG_TRY(scratch(p, (qk + tp) * sizeof(uint16_t) + (numbers + v) * sizeof(float)));
    a->chunk_qk = (uint16_t *)(uintptr_t)p->lane->scratch;
    a->chunk_tp = a->chunk_qk + qk;
    a->chunk_scalars = (float *)(void *)(a->chunk_tp + tp);
    a->chunk_v = a->chunk_scalars + numbers;
    SG_TRY(cu_launch(p, k->chunk_local, chunks, a->v_heads, 1, CK_CHUNK_LOCAL_THREADS, CK_CHUNK_LOCAL_BYTES, a));
    /* Half the columns per block when there are multiprocessors for twice the blocks. */
    uint32_t blocks = a->v_heads * (a->dv / CK_CHUNK_COLUMNS), narrow = 2 * blocks <= p->program->base.unit->sms;
    return cu_launch(p, narrow ? k->chunk_state_16 : k->chunk_state_32, narrow ? 2 * blocks : blocks, 1, 1,
                     CK_CHUNK_STATE_THREADS, CK_CHUNK_STATE_BYTES, a);
}

/* 1: delta_slabs supports the pass: few rows, heads of 128. */
static int slabs_fit(const struct ck_delta *a)
{
    return a->rows <= CU_DECODE_ROWS && a->dk == HEAD && a->dv == HEAD && cu_is_float4(&a->in[0]) && cu_is_float4(&a->in[1]) &&
           cu_is_float4(&a->in[2]) && cu_is_float4(&a->y);
}

/* Many rows that are not chunked: q, k and scalars of all rows are prepared in parallel first. */
segue_status cu_issue_delta(struct cu_pass *p, const struct sg_op *op, const struct sg_op *conv)
{
    const struct cu_kernels *k = &p->program->base.unit->k;
    struct ck_delta a = delta_of(p, op);
    if (conv && cu_delta_convolves(p, op, conv)) {
        a.halves = p->parts_bf16 && p->parts_bf16->delta == op;
        read_before_conv(p, op, conv, &a);
        return issue_chunks(p, &a);
    }
    if (chunks_fit(p, &a)) return issue_chunks(p, &a);
    if (slabs_fit(&a)) return cu_launch(p, k->delta_slabs, a.v_heads * (HEAD / CK_DELTA_SLAB_COLUMNS), p->spans_n, 1, 128, 0, &a);
    /* Row by row: a warp has CK_DELTA_COLUMNS columns of one head's S. */
    uint32_t units = a.v_heads * cu_pieces(a.dv, CK_DELTA_COLUMNS);
    size_t ready = (size_t)a.rows * a.k_heads * 2 * a.dk;
    /* ready: q and k after norms of all rows, then the scalars of each head, aligned for float4. */
    if (a.rows > CU_DECODE_ROWS && ready % 4 == 0) {
        SG_TRY(scratch(p, (ready + (size_t)a.rows * a.v_heads * CK_DELTA_SCALARS) * sizeof(float)));
        a.ready = (float *)(uintptr_t)p->lane->scratch;
        SG_TRY(cu_launch(p, a.dk <= HEAD ? k->delta_prepare_4 : k->delta_prepare_8, a.rows, cu_pieces(a.v_heads, 4), 1, 128, 0,
                         &a));
        if (a.dk == HEAD && a.dv % CK_DELTA_TILE_COLUMNS == 0)
            return cu_launch(p, k->delta_tiles_4, a.v_heads * (a.dv / CK_DELTA_TILE_COLUMNS), p->spans_n, 1, 128, 0, &a);
    }
    return cu_launch(p, a.dk <= HEAD ? k->delta_4 : k->delta_8, cu_pieces(units, 4), p->spans_n, 1, 128, 0, &a);
}
