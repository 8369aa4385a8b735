/* npu_product.c: handlers of matrix products: matmul, linear and convolution as blocked products;
 * grouped convolution, einsum and attention by direct loops.
 *
 * A product C = A B packs B into panels of nr columns once. Then each thread packs a block of mr rows
 * of A and multiplies it with all panels. fp16 operands are widened while they are packed. Sums are
 * fp32 in ascending order of k, so results do not depend on the number of threads. See npu_plan.h.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/npu/npu_plan.h"

enum { PACK_MAX = 1 << 26 };     /* floats of packed panels, unless one matrix needs more */

/* A view of a value. Element (i, j) is at index i * row + j * col of f (fp32) or h (fp16 bits). */
struct matrix {
    const float *f;
    const uint16_t *h;
    int64_t row, col;
    const uint16_t *packed;      /* [blocks][k][mr] fp16 bits instead of f and h: already in the order of pack_rows */
};

/* C[i] = A[i] B[i] for all matrices i; A is [m][k], B [k][n], C dense [m][n]. */
struct product {
    struct sg_npu_run *r;
    struct matrix a, b;
    float *c; /* [matrices][m][n] */
    uint64_t m, n, k;
    uint64_t matrices;
    const int64_t *a_at, *b_at; /* [matrices] offsets in elements; NULL: one matrix */
    uint64_t panels, blocks;    /* of a matrix */
    float *packed, *rows;       /* [matrices][panels][k][nr], [threads][k][mr] */
    uint32_t value;
};

/* The view of a value in the form that its slot has. */
static struct matrix matrix_of(const struct sg_npu_run *r, uint32_t value, int64_t row, int64_t col)
{
    const struct sg_npu_slot *s = &r->plan->slots[value];
    return (struct matrix){s->half || s->packed ? NULL : sg_npu_data(r, value), s->half, row, col, s->packed};
}

static inline float element(const struct matrix *m, int64_t at)
{
    return m->h ? sg_f32_of_f16(m->h[at]) : m->f[at];
}

/* With flush_products, subnormal fp16 operands of products count as 0, as on an M1. The bound is 2^-14, the smallest normal fp16
 * number. Both sums of a block of at most 256 numbers are exact enough in fp32. counts: of products with weights; in those of
 * computed operands, as of the delta rule, a whole operand may be next to nothing, and its product too. */
static void flush_subnormals(struct sg_npu_run *r, int operand, int counts, float *p, size_t n)
{
    if (!r->profile->flush_products) return;
    double flushed = 0, all = 0;
    for (size_t at = 0; at < n; at += 256) {
        float lost = 0, sum = 0;
        for (size_t i = at; i < n && i < at + 256; i++) {
            float size = fabsf(p[i]), small = size < 6.103515625e-5f ? size : 0;
            lost += small;
            sum += size;
            p[i] = small > 0 ? 0 : p[i];
        }
        flushed += (double)lost;
        all += (double)sum;
    }
    if (counts) sg_npu_count_flushed(r, operand, (float)flushed, (float)all);
}

/* Packs columns [panel * nr, + nr) of b, whose first element is at index `at`, to out[k][nr]. Columns
 * after n are zero. */
static void pack_panel(const struct product *p, int64_t at, uint64_t panel, float *out)
{
    uint32_t nr = p->r->k->nr;
    uint64_t from = panel * nr, n = p->n - from < nr ? p->n - from : nr;
    const struct matrix *b = &p->b;
    for (uint64_t k = 0; k < p->k; k++, out += nr) {
        int64_t index = at + (int64_t)k * b->row + (int64_t)from * b->col;
        if (b->col == 1 && b->f)
            memcpy(out, b->f + index, n * sizeof *out);
        else if (b->col == 1)
            p->r->k->widen(b->h + index, out, n);
        else
            for (uint64_t j = 0; j < n; j++) out[j] = element(b, index + (int64_t)j * b->col);
        for (uint64_t j = n; j < nr; j++) out[j] = 0;
    }
}

/* Packs rows [block * mr, + mr) of a to out[k][mr]. Rows after m are zero. 256 columns are converted at
 * a time, so that the strided writes read a buffer in the cache. Packed weights are only widened. */
static void pack_rows(const struct product *p, int64_t at, uint64_t block, float *out)
{
    uint32_t mr = p->r->k->mr;
    uint64_t from = block * mr, m = p->m - from < mr ? p->m - from : mr;
    const struct matrix *a = &p->a;
    float row[256];
    if (a->packed) {
        p->r->k->widen(a->packed + block * p->k * mr, out, p->k * mr);
        return;
    }
    for (uint64_t i = 0; i < mr; i++) {
        int64_t index = at + (int64_t)(from + i) * a->row;
        for (uint64_t k = 0; k < p->k; k += 256) {
            uint64_t n = p->k - k < 256 ? p->k - k : 256;
            if (i >= m)
                memset(row, 0, n * sizeof *row);
            else if (a->col == 1 && a->h)
                p->r->k->widen(a->h + index + (int64_t)k, row, n);
            else
                for (uint64_t j = 0; j < n; j++) row[j] = element(a, index + (int64_t)(k + j) * a->col);
            for (uint64_t j = 0; j < n; j++) out[(k + j) * mr + i] = row[j];
        }
    }
}

/* Constraint 30: on an M1 a product of magnitude mac_limit (32768) or more becomes infinite. The
 * comparison is with the result rounded to fp16. Without a limit the values stay fp32 here; they are
 * rounded later. */
static void limit_products(struct sg_npu_run *r, float *p, size_t n)
{
    float limit = (float)r->profile->mac_limit;
    if (!r->profile->mac_limit) return;
    sg_npu_round16(r, p, n);
    for (size_t i = 0; i < n; i++)
        if (fabsf(p[i]) >= limit) {
            if (!isinf(p[i])) atomic_fetch_add_explicit(&r->overflows, 1, memory_order_relaxed); /* else counted already */
            p[i] = copysignf(INFINITY, p[i]);
            atomic_fetch_or_explicit(&r->flags, SG_NPU_MAC_LIMIT, memory_order_relaxed);
        }
}

/* A work item of a product. Stage 0: packs one panel of b. Stage 1: packs one block of rows of a into
 * the buffer of this thread and multiplies it with all panels of its matrix. The pool finishes stage 0
 * before it starts stage 1. */
static void product_part(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    const struct product *p = arg;
    const struct sg_npu_kernels *k = p->r->k;
    uint64_t per = stage ? p->blocks : p->panels, matrix = item / per, part = item % per;
    if (!stage) {
        float *out = p->packed + (matrix * p->panels + part) * p->k * k->nr;
        pack_panel(p, p->b_at ? p->b_at[matrix] : 0, part, out);
        flush_subnormals(p->r, 1, p->a.packed != NULL, out, p->k * k->nr);
        return;
    }
    float *rows = p->rows + (size_t)thread * p->k * k->mr;
    uint64_t from = part * k->mr, m = p->m - from < k->mr ? p->m - from : k->mr;
    float *c = p->c + (matrix * p->m + from) * p->n;
    pack_rows(p, p->a_at ? p->a_at[matrix] : 0, part, rows);
    flush_subnormals(p->r, 0, p->a.packed != NULL, rows, p->k * k->mr);
    for (uint64_t panel = 0; panel < p->panels; panel++) {
        uint64_t at = panel * k->nr, n = p->n - at < k->nr ? p->n - at : k->nr;
        const float *b = p->packed + (matrix * p->panels + panel) * p->k * k->nr;
        if (p->r->profile->product_step)
            k->tile_stepped(rows, b, p->k, c + at, p->n, (uint32_t)m, (uint32_t)n, p->r->profile->product_step);
        else
            (p->r->profile->fp16_tiles ? k->tile_rounded : k->tile)(rows, b, p->k, c + at, p->n, (uint32_t)m, (uint32_t)n);
    }
    limit_products(p->r, c, m * p->n);
    sg_npu_round_result(p->r, p->value, c, m * p->n);
}

/* Computes all matrices of a product, at_once of them at a time: their panels fit PACK_MAX floats, and
 * the number of work items fits 32 bits. The scratch has the panels, then one block of rows per thread. */
static segue_status multiply(struct product *p)
{
    struct sg_npu_run *r = p->r;
    uint32_t threads = sg_pool_threads(r->pool);
    p->panels = (p->n + r->k->nr - 1) / r->k->nr;
    p->blocks = (p->m + r->k->mr - 1) / r->k->mr;
    uint64_t panel_floats = p->panels * p->k * r->k->nr,
             at_once = PACK_MAX / (panel_floats ? panel_floats : 1), all = p->matrices;
    /* The pool counts work items in 32 bits. */
    uint64_t items_max = UINT32_MAX / (p->panels > p->blocks ? p->panels : p->blocks);
    if (at_once > items_max) at_once = items_max;
    if (at_once < 1) at_once = 1;
    if (at_once > all) at_once = all;
    size_t row_floats = (size_t)threads * p->k * r->k->mr;
    float *work = sg_npu_scratch(r, at_once * panel_floats + row_floats + 16);
    if (!work) return sg_no_memory("a product", (size_t)(at_once * panel_floats) * 4, r->err);
    p->packed = work;
    p->rows = work + at_once * panel_floats;
    /* A group is the same product from matrix `done` on. */
    for (uint64_t done = 0; done < all; done += at_once) {
        struct product part = *p;
        part.matrices = all - done < at_once ? all - done : at_once;
        part.c += done * p->m * p->n;
        if (part.a_at) part.a_at += done;
        if (part.b_at) part.b_at += done;
        uint32_t items[2] = {(uint32_t)(part.matrices * p->panels), (uint32_t)(part.matrices * p->blocks)};
        sg_pool_run(r->pool, &(struct sg_job){.items = items, .stages = 2, .work = product_part, .arg = &part});
    }
    return SEGUE_OK;
}

/* --- matmul and linear --- */

/* matmul with broadcast batch dimensions. A transposed operand is a view with row and column strides
 * exchanged. at[]: index of the first element of each matrix, of x in the first half and of y in the
 * second; a batch dimension of size 1 adds nothing. */
segue_status sg_npu_matmul(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x"), y = sg_npu_operand(r, op, "y");
    const struct sg_mil_type *tx = sg_npu_type(r, x), *ty = sg_npu_type(r, y), *t = sg_npu_type(r, op->first);
    int tr_x = sg_mil_const_int(r->plan->f, op, "transpose_x", 0) != 0,
        tr_y = sg_mil_const_int(r->plan->f, op, "transpose_y", 0) != 0;
    int64_t wx = tx->dim[tx->rank - 1], wy = ty->dim[ty->rank - 1];
    struct product p = {.r = r, .c = sg_npu_data(r, op->first), .value = op->first, .matrices = 1};
    p.m = (uint64_t)t->dim[t->rank - 2];
    p.n = (uint64_t)t->dim[t->rank - 1];
    p.k = (uint64_t)(tr_x ? tx->dim[tx->rank - 2] : wx);
    p.a = matrix_of(r, x, tr_x ? 1 : wx, tr_x ? wx : 1);
    p.b = matrix_of(r, y, tr_y ? 1 : wy, tr_y ? wy : 1);
    for (uint32_t i = 0; i + 2 < t->rank; i++) p.matrices *= (uint64_t)t->dim[i];
    int64_t *at = sg_alloc((size_t)p.matrices * 2 * sizeof *at);
    if (!at) return sg_no_memory("a product", (size_t)p.matrices * 16, r->err);
    for (uint64_t i = 0; i < p.matrices; i++) {
        const struct sg_mil_type *in[2] = {tx, ty};
        /* i in the batch dimensions of the result, the last one fastest; step: stride in the operand. */
        for (int o = 0; o < 2; o++) {
            uint64_t rest = i;
            int64_t step = (int64_t)in[o]->dim[in[o]->rank - 1] * in[o]->dim[in[o]->rank - 2], index = 0;
            for (uint32_t d = t->rank - 2; d-- > 0; rest /= (uint64_t)t->dim[d]) {
                if (d + in[o]->rank < t->rank) continue;
                int32_t dim = in[o]->dim[d + in[o]->rank - t->rank];
                if (dim > 1) index += (int64_t)(rest % (uint64_t)t->dim[d]) * step;
                step *= dim;
            }
            at[(uint64_t)o * p.matrices + i] = index;
        }
    }
    p.a_at = at;
    p.b_at = at + p.matrices;
    segue_status status = multiply(&p);
    sg_free(at);
    return status;
}

/* y = x W^T + bias; W is [out, in], x a matrix of n / in rows. The result is rounded to fp16 before the
 * bias is added and again after it. */
segue_status sg_npu_linear(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x"), w = sg_npu_operand(r, op, "weight"),
             bias = sg_npu_operand(r, op, "bias");
    const struct sg_mil_type *tw = sg_npu_type(r, w);
    struct product p = {.r = r, .c = sg_npu_data(r, op->first), .value = op->first, .matrices = 1};
    p.k = (uint64_t)tw->dim[1];
    p.n = (uint64_t)tw->dim[0];
    p.m = r->plan->slots[x].n / p.k;
    p.a = matrix_of(r, x, tw->dim[1], 1);
    p.b = matrix_of(r, w, 1, tw->dim[1]);
    SG_TRY(multiply(&p));
    if (bias == SG_MIL_NONE) return SEGUE_OK;
    const float *add = sg_npu_data(r, bias);
    for (uint64_t i = 0; i < p.m * p.n; i++) p.c[i] += add[i % p.n];
    sg_npu_round_result(r, op->first, p.c, (size_t)(p.m * p.n));
    return SEGUE_OK;
}

/* --- convolution --- */

/* x is [N][in_c][in_h][in_w], the weight [out_c][per_group][kernel], the result [N][out_c][out]. c:
 * geometry. */
struct conv_job {
    struct sg_npu_run *r;
    struct sg_mil_conv c;
    const float *x;
    struct matrix w;
    float *out;
    int64_t in_c, in_h, in_w, out_c, per_group; /* per_group: input channels of a group */
    uint32_t value;
};

/* One output channel of one image of a grouped convolution. The outer loops are over input channels and
 * taps, the inner ones over output positions; input positions in the padding are skipped. tap: index in
 * the kernel; dy, dx: its offset in the input. */
static void conv_channel(void *arg, uint32_t item, uint32_t thread)
{
    const struct conv_job *j = arg;
    int64_t o = item % j->out_c, batch = item / j->out_c, plane = j->c.out[0] * j->c.out[1];
    int64_t group = o / (j->out_c / j->c.groups), taps = j->c.kernel[0] * j->c.kernel[1];
    float *out = j->out + (batch * j->out_c + o) * plane;
    (void)thread;
    memset(out, 0, (size_t)plane * sizeof *out);
    for (int64_t i = 0; i < j->per_group; i++)
        for (int64_t tap = 0; tap < taps; tap++) {
            const float *in = j->x + ((batch * j->in_c) + group * j->per_group + i) * j->in_h * j->in_w;
            float w = element(&j->w, (o * j->per_group + i) * taps + tap);
            int64_t dy = tap / j->c.kernel[1] * j->c.dilation[0] - j->c.before[0],
                    dx = tap % j->c.kernel[1] * j->c.dilation[1] - j->c.before[1];
            for (int64_t y = 0; y < j->c.out[0]; y++) {
                int64_t from = y * j->c.stride[0] + dy;
                if (from < 0 || from >= j->in_h) continue;
                for (int64_t x = 0; x < j->c.out[1]; x++) {
                    int64_t at = x * j->c.stride[1] + dx;
                    if (at >= 0 && at < j->in_w) out[y * j->c.out[1] + x] += w * in[from * j->in_w + at];
                }
            }
        }
    limit_products(j->r, out, (size_t)plane);
    sg_npu_round_result(j->r, j->value, out, (size_t)plane);
}

/* im2col of one image: columns[channel * taps + tap][output position], zero in the padding. */
static void unfold(const struct conv_job *j, const float *x, float *columns)
{
    int64_t plane = j->c.out[0] * j->c.out[1];
    for (int64_t row = 0; row < j->in_c * j->c.kernel[0] * j->c.kernel[1]; row++) {
        int64_t tap = row % (j->c.kernel[0] * j->c.kernel[1]),
                channel = row / (j->c.kernel[0] * j->c.kernel[1]);
        int64_t dy = tap / j->c.kernel[1] * j->c.dilation[0] - j->c.before[0],
                dx = tap % j->c.kernel[1] * j->c.dilation[1] - j->c.before[1];
        for (int64_t index = 0; index < plane; index++) {
            int64_t y = index / j->c.out[1] * j->c.stride[0] + dy,
                    at = index % j->c.out[1] * j->c.stride[1] + dx;
            int inside = y >= 0 && y < j->in_h && at >= 0 && at < j->in_w;
            columns[row * plane + index] = inside ? x[(channel * j->in_h + y) * j->in_w + at] : 0;
        }
    }
}

/* A convolution without groups is the product of the weight [out_c][in_c * taps] with the columns of
 * each image. With a kernel of 1 x 1, stride 1 and no padding the image already has that layout. Linear
 * layers are lowered to such convolutions. */
static segue_status conv_product(struct conv_job *j, int64_t batches)
{
    int64_t plane = j->c.out[0] * j->c.out[1], taps = j->c.kernel[0] * j->c.kernel[1],
            image = j->in_c * j->in_h * j->in_w;
    /* plain: the output has the shape of the input, so there is no padding either. */
    int plain = taps == 1 && j->c.stride[0] == 1 && j->c.stride[1] == 1 && plane == j->in_h * j->in_w;
    size_t floats;
    float *columns = NULL;
    struct product p = {.r = j->r,
                        .m = (uint64_t)j->out_c,
                        .n = (uint64_t)plane,
                        .k = (uint64_t)(j->in_c * taps),
                        .matrices = 1,
                        .value = j->value,
                        .a = j->w};
    p.a.row = (int64_t)p.k;
    p.a.col = 1;
    if (!plain) {
        SG_TRY(sg_mul((size_t)p.k, (size_t)plane * sizeof *columns, &floats, "columns of a convolution",
                      j->r->err));
        if (!(columns = sg_alloc(floats))) return sg_no_memory("columns of a convolution", floats, j->r->err);
    }
    segue_status status = SEGUE_OK;
    for (int64_t b = 0; b < batches && status == SEGUE_OK; b++) {
        if (!plain) unfold(j, j->x + b * image, columns);
        p.b = (struct matrix){plain ? j->x + b * image : columns, NULL, plane, 1, NULL};
        p.c = j->out + b * j->out_c * plane;
        status = multiply(&p);
    }
    sg_free(columns);
    return status;
}

/* bias[out_c] is added to the rounded result, which is rounded again, as in linear. */
static void add_bias(const struct conv_job *j, const float *bias, int64_t batches)
{
    int64_t plane = j->c.out[0] * j->c.out[1];
    for (int64_t i = 0; i < batches * j->out_c; i++) {
        float *out = j->out + i * plane;
        for (int64_t k = 0; k < plane; k++) out[k] += bias[i % j->out_c];
        sg_npu_round_result(j->r, j->value, out, (size_t)plane);
    }
}

static int is_constant(const struct sg_npu_run *r, uint32_t value)
{
    const struct sg_npu_slot *s = &r->plan->slots[value];
    return s->data || s->half || s->packed;
}

/* With several groups each output channel reads few input channels, so a product would be mostly
 * padding. */
segue_status sg_npu_conv(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t x = sg_npu_operand(r, op, "x"), w = sg_npu_operand(r, op, "weight");
    const struct sg_mil_type *t = sg_npu_type(r, x), *tw = sg_npu_type(r, w);
    struct conv_job j = {.r = r,
                         .x = sg_npu_data(r, x),
                         .w = matrix_of(r, w, 0, 1),
                         .out = sg_npu_data(r, op->first),
                         .value = op->first,
                         .in_c = t->dim[1],
                         .in_h = t->dim[2],
                         .in_w = t->dim[3],
                         .out_c = tw->dim[0],
                         .per_group = tw->dim[1]};
    SG_TRY(sg_mil_conv_geometry(r->plan->f, op, &j.c, r->err));
    if (r->faithful && r->profile->weights_ignored && !is_constant(r, w))      /* constraint 55 */
        memset(j.out, 0, (size_t)r->plan->slots[op->first].n * sizeof *j.out);
    else if (j.c.groups == 1)
        SG_TRY(conv_product(&j, t->dim[0]));
    else
        sg_npu_parallel(r, (uint64_t)(t->dim[0] * j.out_c), conv_channel, &j);
    uint32_t bias = sg_npu_operand(r, op, "bias");
    if (bias != SG_MIL_NONE) add_bias(&j, sg_npu_data(r, bias), t->dim[0]);
    return SEGUE_OK;
}

/* --- direct loops --- */

/* einsum of two operands by direct summation. step[o][letter]: stride of a letter in operand o (2: the
 * result), 0 where it does not occur. Letters that the result lacks are summed over, in the order of
 * inner[], the last one fastest. */
segue_status sg_npu_einsum(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    struct sg_mil_einsum e;
    const struct sg_mil_arg *values = sg_mil_arg_find(op, "values");
    int64_t size[26] = {0}, step[3][26] = {{0}};
    char inner[2 * SG_MIL_DIMS + 1] = "";
    uint32_t inner_n = 0;
    sg_mil_einsum_parse(r->plan->f, op, &e);
    const char *letters[3] = {e.in[0], e.in[1], e.out};
    for (int o = 0; o < 3; o++) {
        const struct sg_mil_type *t = sg_npu_type(r, o < 2 ? values->v.refs[o] : op->first);
        int64_t stride[SG_MIL_DIMS];
        sg_npu_strides(t, stride);
        for (uint32_t d = 0; d < t->rank; d++) {
            size[letters[o][d] - 'a'] = t->dim[d];
            step[o][letters[o][d] - 'a'] = stride[d];
            if (o < 2 && !strchr(e.out, letters[o][d]) && !strchr(inner, letters[o][d]))
                inner[inner_n++] = letters[o][d];
        }
    }
    const float *a = sg_npu_data(r, values->v.refs[0]), *b = sg_npu_data(r, values->v.refs[1]);
    float *out = sg_npu_data(r, op->first);
    int64_t sums = 1;
    for (uint32_t i = 0; i < inner_n; i++) sums *= size[inner[i] - 'a'];
    /* i: element of the result; at: where its letters begin in both operands. */
    for (uint64_t i = 0; i < r->plan->slots[op->first].n; i++) {
        int64_t at[2] = {0, 0};
        uint64_t rest = i;
        for (size_t d = strlen(e.out); d-- > 0;) {
            int l = e.out[d] - 'a';
            int64_t index = (int64_t)(rest % (uint64_t)size[l]);
            rest /= (uint64_t)size[l];
            at[0] += index * step[0][l];
            at[1] += index * step[1][l];
        }
        float sum = 0;
        for (int64_t s = 0; s < sums; s++) {
            int64_t left = s, x = at[0], y = at[1];
            for (uint32_t d = inner_n; d-- > 0;) {
                int l = inner[d] - 'a';
                x += left % size[l] * step[0][l];
                y += left % size[l] * step[1][l];
                left /= size[l];
            }
            sum += a[x] * b[y];
        }
        out[i] = sum;
    }
    limit_products(r, out, (size_t)r->plan->slots[op->first].n);
    sg_npu_round_result(r, op->first, out, (size_t)r->plan->slots[op->first].n);
    return SEGUE_OK;
}

/* softmax(q k^T / sqrt(width)) v, one query row at a time, in fp32 with the maximum subtracted. A mask
 * operand is not read: the engine ignores it (constraint 14). */
segue_status sg_npu_attention(struct sg_npu_run *r, const struct sg_mil_op *op)
{
    uint32_t vq = sg_npu_operand(r, op, "query"), vk = sg_npu_operand(r, op, "key"),
             vv = sg_npu_operand(r, op, "value");
    const struct sg_mil_type *q = sg_npu_type(r, vq), *v = sg_npu_type(r, vv);
    uint64_t rows = (uint64_t)q->dim[q->rank - 2], width = (uint64_t)q->dim[q->rank - 1];
    uint64_t keys = (uint64_t)v->dim[v->rank - 2], wide = (uint64_t)v->dim[v->rank - 1],
             heads = r->plan->slots[vq].n / rows / width;
    float *score = sg_npu_scratch(r, keys), scale = 1 / sqrtf((float)width), *out = sg_npu_data(r, op->first);
    if (!score) return sg_no_memory("attention", keys * sizeof *score, r->err);
    for (uint64_t i = 0; i < heads * rows; i++, out += wide) {
        const float *query = sg_npu_data(r, vq) + i * width,
                    *key = sg_npu_data(r, vk) + i / rows * keys * width;
        const float *value = sg_npu_data(r, vv) + i / rows * keys * wide;
        float items_max = -INFINITY, sum = 0;
        for (uint64_t k = 0; k < keys; k++) {
            float dot = 0;
            for (uint64_t d = 0; d < width; d++) dot += query[d] * key[k * width + d];
            score[k] = dot * scale;
            if (score[k] > items_max) items_max = score[k];
        }
        for (uint64_t k = 0; k < keys; k++) score[k] -= items_max;
        sg_npu_exp(r, score, score, (size_t)keys);
        for (uint64_t k = 0; k < keys; k++) sum += score[k];
        for (uint64_t d = 0; d < wide; d++) {
            float dot = 0;
            for (uint64_t k = 0; k < keys; k++) dot += score[k] * value[k * wide + d];
            out[d] = dot / sum;
        }
        sg_npu_round_result(r, op->first, out, (size_t)wide);
    }
    return SEGUE_OK;
}
