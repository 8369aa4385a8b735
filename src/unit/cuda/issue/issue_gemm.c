/* issue_gemm.c: products with more than 32 rows. x is converted to 16 bits, with its norm; quantised weights are dequantised
 * to 16 bits in scratch. The product is done by k_glu.cu (gate and up, Hopper), cuBLASLt, or k_gemm.cu where cuBLASLt is
 * missing or refuses the shape. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* 1: the kernel can read x, norm and gate as float4; then it supports only whole rows without gate and groups of 128. */
static uint32_t can_narrow_float4(const struct ck_narrow *a)
{
    const struct ck_norm *n = &a->norm;
    if (a->k % 4 || n->layer || n->bias || a->low || (n->groups > 1 && a->k / n->groups != 128)) return 0;
    return cu_is_float4(&a->x) && cu_is_float4(&a->x2) && cu_is_float4(&n->gate) && (n->groups > 1 || !n->gate.p);
}

/* Converts rows of x to 16 bits, with norm or gated activation. */
static segue_status launch_narrow(struct cu_pass *p, struct ck_narrow *a, uint32_t rows)
{
    a->fours = can_narrow_float4(a);
    return cu_launch(p, p->program->base.unit->k.narrow, rows, 1, 1, 256, 0, a);
}

/* 1: an earlier product has stored this value in bf16. */
static int is_bf16_part(const struct cu_pass *p, int32_t value)
{
    for (uint32_t i = 0; p->parts_bf16 && i < p->parts_bf16->parts_n; i++)
        if (p->parts_bf16->parts[i]->out == value) return 1;
    return 0;
}

/* Makes the 16-bit copy of x, unless the pass has it already: products of one input follow each other. The norm is included,
 * except one of whole rows with a gate, which is issued as an op. The copy is then in lane->narrow and described by
 * p->narrowed*. */
static segue_status narrow_x(struct cu_pass *p, const struct cu_step *s, uint32_t rows, uint32_t bf16)
{
    const struct sg_op *norm = s->norm && (s->norm->u.norm.groups > 1 || s->norm->in[1].value < 0) ? s->norm : NULL;
    if (s->norm && !norm) SG_TRY(cu_issue_small(p, s->norm));
    struct ck_narrow a = {.x = cu_view_of(p, norm ? &norm->in[0] : &s->op->in[0]),
                          .rows = rows,
                          .bf16 = bf16,
                          .norm = cu_norm_of(p, norm)};
    a.k = a.x.width;
    if (norm && is_bf16_part(p, norm->in[1].value)) {
        a.norm.gate = cu_bf16_view_of(p, &norm->in[1]);
        a.gate_halves = 1;
    }
    /* The address alone is not enough: another value may be at the same columns. */
    if (p->narrowed == a.x.p && p->narrowed_norm == norm && p->narrowed_bf16 == bf16 && p->narrowed_by == s->op->in[0].value)
        return SEGUE_OK;
    SG_TRY(cu_lane_grow(p, &p->lane->narrow, &p->lane->narrow_bytes, (size_t)rows * a.k * 2 + 256));
    a.y = (void *)(uintptr_t)p->lane->narrow;
    p->narrowed = a.x.p;
    p->narrowed_at = p->lane->narrow;
    p->narrowed_norm = norm;
    p->narrowed_bf16 = bf16;
    p->narrowed_by = s->op->in[0].value;
    return launch_narrow(p, &a, rows);
}

/* Dequantises rows [at, at + n) of a weight to 16 bits, to row `before` of the lane's buffer `wide`. */
static segue_status widen_rows(struct cu_pass *p, const struct cu_tensor *t, uint32_t at, uint32_t n, uint32_t before,
                               uint32_t bf16)
{
    struct sg_unit *u = p->program->base.unit;
    uint16_t *to = (uint16_t *)(uintptr_t)p->lane->wide + (size_t)before * t->w.cols;
    struct ck_widen a = {.w = t->w, .at = at, .rows = n, .y = to, .bf16 = bf16};
    if (t->w.kind >= CK_PACKED)
        return cu_launch(p, u->k.unpack_rows, (uint32_t)(((uint64_t)n * (t->w.cols / 64) + 255) / 256), 1, 1, 256, 0, &a);
    /* widen_pieces converts pieces of 16 bytes, which must not cross groups of scales. */
    uint32_t numbers = t->w.kind == CK_Q8 || t->w.kind == CK_G8 || t->w.kind == CK_F8 ? 16 : 32;
    uint64_t many = (uint64_t)n * (t->w.cols / numbers);
    if (t->w.kind >= CK_Q8 && t->w.cols % numbers == 0 && t->w.group % numbers == 0 && many < UINT32_MAX)
        return cu_launch(p, u->k.widen_pieces, (uint32_t)((many + 255) / 256), 1, 1, 256, 0, &a);
    return cu_launch(p, u->k.widen, n, (t->w.cols + 255) / 256, 1, 256, 0, &a);
}

/* 1: the weight needs no conversion. */
static int is_16bit(const struct cu_tensor *t) { return t->w.kind == CK_F16 || t->w.kind == CK_BF16; }

/* The number of parts from part i on that one GEMM can compute: their results are side by side (fuse.c) and their weights follow
 * each other in one block of memory (upload.c; blocks of their own may do so by chance, which must change nothing). Quantised
 * weights do so after they were dequantised. Without cuBLASLt: 1. */
static uint32_t parts_per_gemm(const struct cu_pass *p, const struct cu_step *s, uint32_t i)
{
    struct ck_segment a = cu_segment_of(p, s->parts[i]);
    const struct cu_tensor *t = cu_linear_tensor(p, s->parts[i]), *before = t;
    uint32_t n = 1;
    if (!p->lane->workspace || a.bias || a.residual.p) return 1;
    /* What is added must be the same for all, so nothing may be. */
    for (; i + n < s->parts_n; n++) {
        struct ck_segment b = cu_segment_of(p, s->parts[i + n]);
        if (b.bias || b.residual.p || b.y.p != a.y.p + a.n || b.y.stride != a.y.stride) break;
        const struct cu_tensor *next = cu_linear_tensor(p, s->parts[i + n]);
        if (is_16bit(t) &&
            ((next != before && !next->joined) ||
             (const char *)b.data + (size_t)b.at * t->w.pitch != (const char *)a.data + (size_t)(a.at + a.n) * t->w.pitch))
            break;
        a = b;
        before = next;
    }
    return n;
}

/* The 16-bit weights of parts [from, from + n) as one matrix: *segment with n rows of *pitch bytes. Quantised weights are
 * dequantised into the lane's buffer first. */
static segue_status gemm_weights(struct cu_pass *p, const struct cu_step *s, uint32_t from, uint32_t n, uint32_t bf16,
                                 struct ck_segment *segment, uint32_t *pitch)
{
    const struct cu_tensor *t = cu_linear_tensor(p, s->parts[from]);
    uint32_t all = 0;
    *segment = cu_segment_of(p, s->parts[from]);
    *pitch = t->w.pitch;
    for (uint32_t i = 0; i < n; i++) all += s->parts[from + i]->u.linear.weight.rows;
    segment->n = all;
    if (is_16bit(t)) return SEGUE_OK;
    SG_TRY(cu_lane_grow(p, &p->lane->wide, &p->lane->wide_bytes, (size_t)all * t->w.cols * 2));
    for (uint32_t i = 0, before = 0; i < n; i++) {
        const struct sg_weight *w = &s->parts[from + i]->u.linear.weight;
        SG_TRY(widen_rows(p, cu_linear_tensor(p, s->parts[from + i]), w->at, w->rows, before, bf16));
        before += w->rows;
    }
    segment->data = (const void *)(uintptr_t)p->lane->wide;
    segment->at = 0;
    *pitch = t->w.cols * 2;
    return SEGUE_OK;
}

/* One GEMM for parts [from, from + n), with the 16-bit x. *half 1: y is requested in bf16, at the address of the fp32 result; set
 * to 0 when cuBLASLt does not support that, and y is fp32. Then k_gemm.cu. CK_F16_MANY undoes the scaling of x in fp16. */
static segue_status gemm(struct cu_pass *p, const struct cu_step *s, uint32_t from, uint32_t n, uint32_t rows, uint32_t bf16,
                         uint32_t *half)
{
    struct sg_unit *u = p->program->base.unit;
    const struct cu_tensor *t = cu_linear_tensor(p, s->parts[from]);
    struct ck_segment segment;
    uint32_t pitch;
    SG_TRY(gemm_weights(p, s, from, n, bf16, &segment, &pitch));
    struct cu_blas_product b = {.t = rows,
                                .n = segment.n,
                                .k = t->w.cols,
                                .pitch = pitch / 2,
                                .out_stride = segment.y.stride,
                                .residual_stride = segment.residual.stride,
                                .bf16 = bf16,
                                .out16 = *half,
                                .times = bf16 ? 1 : CK_F16_MANY,
                                .x = p->narrowed_at,
                                .w = (uint64_t)(uintptr_t)segment.data + (uint64_t)segment.at * pitch,
                                .y = (uint64_t)(uintptr_t)segment.y.p,
                                .residual = (uint64_t)(uintptr_t)segment.residual.p,
                                .bias = (uint64_t)(uintptr_t)segment.bias,
                                .workspace = p->lane->workspace,
                                .stream = p->lane->stream};
    p->launches++;
    /* First as requested, then with an fp32 result, then without cuBLASLt. */
    if (p->lane->workspace && cu_blas_multiply(&u->blas, &b)) return SEGUE_OK;
    b.out16 = *half = 0;
    if (p->lane->workspace && cu_blas_multiply(&u->blas, &b)) return SEGUE_OK;
    struct ck_gemm g = {.x = (const void *)(uintptr_t)p->narrowed_at,
                        .segment = segment,
                        .rows = rows,
                        .k = t->w.cols,
                        .bf16 = bf16,
                        .pitch = pitch};
    return cu_launch(p, bf16 ? u->k.gemm_bf16 : u->k.gemm_f16, (segment.n + 63) / 64, (rows + 63) / 64, 1, 128, 0, &g);
}

/* act(gate) * up in 16 bits, as the x of the next product. half: gate and up are in bf16, side by side. */
static segue_status narrow_gated(struct cu_pass *p, const struct cu_step *s, uint32_t rows, uint32_t bf16, uint32_t half)
{
    struct sg_unit *u = p->program->base.unit;
    struct ck_narrow a = {.x = cu_view_of(p, &s->glu->in[0]),
                          .x2 = cu_view_of(p, &s->glu->in[1]),
                          .act = s->glu->u.glu.act,
                          .rows = rows,
                          .bf16 = bf16,
                          .norm = {.groups = 1}};
    a.k = a.x.width;
    SG_TRY(cu_lane_grow(p, &p->lane->narrow, &p->lane->narrow_bytes, (size_t)rows * a.k * 2 + 256));
    a.y = (void *)(uintptr_t)p->lane->narrow;
    p->narrowed = cu_output_view(p, s->glu).p;
    p->narrowed_at = p->lane->narrow;
    p->narrowed_norm = NULL;
    p->narrowed_bf16 = bf16;
    p->narrowed_by = s->glu->out;
    if (half) return cu_launch(p, u->k.narrow_halves, (uint32_t)(((uint64_t)rows * a.k / 8 + 255) / 256), 1, 1, 256, 0, &a);
    return launch_narrow(p, &a, rows);
}

/* 1: the results of the product may be stored in bf16. Gate and up, when only their activation reads them, which is rounded to
 * bf16 anyway; inputs of the chunked delta rule and gates of norms (cu_step.parts_bf16). All parts must be one GEMM. */
static uint32_t can_leave_bf16(const struct cu_pass *p, const struct cu_step *s, uint32_t bf16)
{
    if (s->parts_bf16) return bf16 && parts_per_gemm(p, s, 0) == s->parts_n && cu_delta_halves(p, s->delta, s->after);
    if (!s->feeds_next || !bf16 || parts_per_gemm(p, s, 0) != 2) return 0;
    struct ck_view gate = cu_view_of(p, &s->glu->in[0]), up = cu_view_of(p, &s->glu->in[1]);
    return gate.width % 8 == 0 && gate.stride == 2 * gate.width && up.p == gate.p + gate.width;
}

/* Gate, up and activation in one launch (k_glu.cu); *done 0: not supported. */
static segue_status try_glu_kernel(struct cu_pass *p, const struct cu_step *s, uint32_t rows, uint32_t bf16, int *done)
{
    struct ck_segment segment;
    uint32_t pitch;
    *done = 0;
    if (!s->glu || !s->feeds_next || parts_per_gemm(p, s, 0) != 2 || !cu_glu_fits(p, s, rows)) return SEGUE_OK;
    SG_TRY(gemm_weights(p, s, 0, 2, bf16, &segment, &pitch));
    return cu_issue_glu(p, s, (const char *)segment.data + (size_t)segment.at * pitch, pitch, rows, bf16, done);
}

/* After the products: notes whether they are in bf16, and the activation of gate and up. */
static segue_status finish_gemm(struct cu_pass *p, const struct cu_step *s, uint32_t rows, uint32_t bf16, uint32_t half)
{
    if (s->parts_bf16) p->parts_bf16 = half ? s : NULL;
    if (!s->glu) return SEGUE_OK;
    if (s->feeds_next) return narrow_gated(p, s, rows, bf16, half);
    return cu_issue_small(p, s->glu);
}

/* bf16 is the type of x, weights and products for all weights but F16. The activation follows as part of narrow_gated when only
 * the next product reads it. */
segue_status cu_issue_gemm(struct cu_pass *p, const struct cu_step *s, uint32_t rows)
{
    /* half becomes 0 when the first GEMM could not store bf16; then no part is in bf16. */
    uint32_t bf16 = cu_linear_tensor(p, s->parts[0])->w.kind != CK_F16, half = can_leave_bf16(p, s, bf16);
    int done;
    SG_TRY(narrow_x(p, s, rows, bf16));
    if (cu_packed_gemm_fits(p, s, rows)) {
        SG_TRY(cu_issue_packed_gemm(p, s, rows, half));
        return finish_gemm(p, s, rows, bf16, half);
    }
    SG_TRY(try_glu_kernel(p, s, rows, bf16, &done));
    if (done) return SEGUE_OK;
    for (uint32_t i = 0, n; i < s->parts_n; i += n) {
        n = parts_per_gemm(p, s, i);
        SG_TRY(gemm(p, s, i, n, rows, bf16, &half));
    }
    return finish_gemm(p, s, rows, bf16, half);
}
