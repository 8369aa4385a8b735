/* op_linear.c: linear, with LoRA pairs. y = x W^T (+ b) (+ r) (+ s (x A^T) B^T), so dx = dy W (+ s (dy B) A), dW = dy^T x, db =
 * sum dy,
 * dr = dy, dB = s dy^T (x A^T), dA = s (dy B)^T x. A frozen W is converted some rows at a time.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "base/clones.h"
#include "train/train.h"

enum { COLUMN_BLOCK = 64, ROW_BLOCK = 16 };

/* out [T, n] = x W^T (back 0), or dx [T, k] += dy W (back 1); `more`, of an adapter or NULL, is added. */
static segue_status weight_product(struct sg_train_pass *p, const struct sg_weight *w, struct sg_gemm g, int back,
                                   const struct sg_gemm *more)
{
    const struct sg_train_tensor *s = &p->t->tensors[w->tensor];
    const struct sg_tensor *t = p->g->tensors[w->tensor];
    g.kind = back ? SG_GEMM_NN : SG_GEMM_NT;
    if (s->param < 0) return sg_train_gemm_frozen(p, &g, t, w->at, more);
    g.ldb = t->cols;
    g.b = p->t->params[s->param].field[SEGUE_PARAM_VALUE] + (size_t)w->at * t->cols;
    return sg_train_gemm(p, &g);
}

struct add_work { float *out; const float *bias; struct sg_train_view residual; uint32_t rows, n; };

static void add_rows(void *arg, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct add_work *w = arg;
    for (uint32_t t = item * ROW_BLOCK; t < (item + 1) * ROW_BLOCK && t < w->rows; t++) {
        float *y = w->out + (size_t)t * w->n;
        for (uint32_t c = 0; w->bias && c < w->n; c++) y[c] += w->bias[c];
        for (uint32_t c = 0; w->residual.data && c < w->n; c++) y[c] += w->residual.data[t * w->residual.stride + c];
    }
}

/* out [cols, rows] (+)= by x^T, x [rows, cols]. */
static void turn(const float *x, size_t rows, size_t cols, float by, int add, float *out)
{
    for (size_t c = 0; c < cols; c++)
        for (size_t r = 0; r < rows; r++) out[c * rows + r] = (add ? out[c * rows + r] : 0) + by * x[r * cols + c];
}

/* The ranks of an adapter are rows of its products, not columns: a block of C then has no columns that are not needed. */

/* out [rows, rank] = s x m^T, m [rank, width]. */
static segue_status lower(struct sg_train_pass *p, const float *m, uint32_t rank, struct sg_train_view x, uint32_t rows,
                          float *out)
{
    float *turned = sg_train_take(p, (size_t)rows * rank);
    if (!turned) return SEGUE_EMEMORY;
    SG_TRY(sg_train_gemm(p, &(struct sg_gemm){SG_GEMM_NT, rank, rows, x.width, m, x.data, x.width, x.stride, rows, turned, 0}));
    turn(turned, rank, rows, p->t->info.lora_scale, 0, out);
    sg_train_put(p, turned);
    return SEGUE_OK;
}

/* NULL: the weight has no pair, or the pass leaves it out. */
static const struct sg_param *pair_of(const struct sg_train_pass *p, const struct sg_weight *w)
{
    int32_t pair = p->t->tensors[w->tensor].pair;
    return pair >= 0 && !p->base ? &p->t->params[pair] : NULL;
}

segue_status sg_train_linear(struct sg_train_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_weight *w = &op->u.linear.weight;
    const struct sg_param *a = pair_of(p, w);
    struct sg_train_view x = sg_train_in(p, &op->in[0]);
    uint32_t rows = sg_train_rows(p, op), n = w->rows, rank = a ? (uint32_t)a->info.rows : 0;
    struct sg_gemm g = {.rows = rows, .cols = n, .inner = x.width, .a = x.data, .lda = x.stride, .c = out, .ldc = n}, more;
    float *low = a ? sg_train_take(p, (size_t)rows * rank) : NULL;
    if (a) {
        if (!low) return SEGUE_EMEMORY;
        SG_TRY(lower(p, a->field[0], rank, x, rows, low));
        more = (struct sg_gemm){SG_GEMM_NT, rows, n, rank, low, a[1].field[0] + (size_t)w->at * rank, rank, rank, n, out, 1};
    }
    if (sg_train_group_of(p, op)) {
        SG_TRY(sg_train_device_forward(p, op));
        if (a) SG_TRY(sg_train_gemm(p, &more));
    } else
        SG_TRY(weight_product(p, w, g, 0, a ? &more : NULL));
    sg_train_put(p, low);
    struct add_work add = {out, sg_train_vector(p, &op->u.linear.bias), sg_train_in(p, &op->in[1]), rows, n};
    if (add.bias || add.residual.data) sg_train_each(p, (rows + ROW_BLOCK - 1) / ROW_BLOCK, add_rows, &add);
    return SEGUE_OK;
}

struct sum_work { float *out; const float *dy; uint32_t rows, n; };

SG_CLONES static void sum_columns(void *arg, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct sum_work *w = arg;
    uint32_t at = item * COLUMN_BLOCK, n = w->n - at < COLUMN_BLOCK ? w->n - at : COLUMN_BLOCK;
    for (uint32_t t = 0; t < w->rows; t++) {
        const float *dy = w->dy + (size_t)t * w->n + at;
        float *restrict out = w->out + at;
        for (uint32_t c = 0; c < n; c++) out[c] += dy[c];
    }
}

/* dB += dout^T low; dlow = s dout B. B and its gradient are [n, rank]. */
static segue_status upper_back(struct sg_train_pass *p, const float *dout, uint32_t rows, uint32_t n, const float *b, float *db,
                               uint32_t rank, const float *low, float *dlow)
{
    float *turned = sg_train_take(p, (size_t)n * rank);
    if (!turned) return SEGUE_EMEMORY;
    turn(b, n, rank, 1, 0, turned);
    SG_TRY(lower(p, turned, rank, (struct sg_train_view){dout, n, n}, rows, dlow));
    SG_TRY(sg_train_gemm(p, &(struct sg_gemm){SG_GEMM_TN, rank, n, rows, low, dout, rank, n, n, turned, 0}));
    turn(turned, rank, n, 1, 1, db);
    sg_train_put(p, turned);
    return SEGUE_OK;
}

/* The gradients of the pair; *more: dx += dlow A, to be computed, with dlow, which the caller puts back. */
static segue_status pair_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout, struct sg_train_grad dx,
                              struct sg_gemm *more)
{
    const struct sg_weight *w = &op->u.linear.weight;
    const struct sg_param *a = &p->t->params[p->t->tensors[w->tensor].pair], *b = a + 1;
    struct sg_train_view x = sg_train_in(p, &op->in[0]);
    uint32_t rows = sg_train_rows(p, op), n = w->rows, rank = (uint32_t)a->info.rows;
    size_t part = (size_t)w->at * rank;
    float *dlow = sg_train_take(p, (size_t)rows * rank), *low = sg_train_take(p, (size_t)rows * rank);
    if (!low || !dlow) return SEGUE_EMEMORY;
    SG_TRY(lower(p, a->field[0], rank, x, rows, low));
    SG_TRY(upper_back(p, dout, rows, n, b->field[0] + part, b->field[1] + part, rank, low, dlow));
    SG_TRY(sg_train_gemm(p, &(struct sg_gemm){SG_GEMM_TN, rank, x.width, rows, dlow, x.data, rank, x.stride, x.width, a->field[1],
                                              1}));
    sg_train_put(p, low);
    *more = (struct sg_gemm){SG_GEMM_NN, rows, x.width, rank, dlow, a->field[0], rank, x.width, dx.stride, dx.data, 1};
    return SEGUE_OK;
}

struct residual_work { struct sg_train_grad dr; const float *dy; uint32_t rows, n; };

static void residual_rows(void *arg, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct residual_work *w = arg;
    for (uint32_t t = item * ROW_BLOCK; t < (item + 1) * ROW_BLOCK && t < w->rows; t++)
        for (uint32_t c = 0; c < w->n; c++) w->dr.data[t * w->dr.stride + c] += w->dy[(size_t)t * w->n + c];
}

/* dr, db, dW. */
static segue_status rest_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    const struct sg_weight *w = &op->u.linear.weight;
    const struct sg_train_tensor *s = &p->t->tensors[w->tensor];
    struct sg_train_view x = sg_train_in(p, &op->in[0]);
    struct sg_train_grad dr;
    uint32_t rows = sg_train_rows(p, op), n = w->rows;
    SG_TRY(sg_train_grad_of(p, &op->in[1], &dr));
    struct residual_work r = {dr, dout, rows, n};
    if (dr.data) sg_train_each(p, (rows + ROW_BLOCK - 1) / ROW_BLOCK, residual_rows, &r);
    struct sum_work sum = {sg_train_vector_grad(p, &op->u.linear.bias), dout, rows, n};
    if (sum.out) sg_train_each(p, (n + COLUMN_BLOCK - 1) / COLUMN_BLOCK, sum_columns, &sum);
    if (s->param >= 0)
        SG_TRY(sg_train_gemm(p, &(struct sg_gemm){SG_GEMM_TN, n, x.width, rows, dout, x.data, n, x.stride, x.width,
                                                  p->t->params[s->param].field[1] + (size_t)w->at * x.width, 1}));
    return SEGUE_OK;
}

/* What the host computes of an op of a group. */
static segue_status host_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout, struct sg_train_grad dx)
{
    struct sg_gemm more;
    SG_TRY(rest_back(p, op, dout));
    if (p->t->tensors[op->u.linear.weight.tensor].pair < 0) return SEGUE_OK;
    SG_TRY(pair_back(p, op, dout, dx, &more));
    if (dx.data) SG_TRY(sg_train_gemm(p, &more));
    sg_train_put(p, (float *)(uintptr_t)more.a);
    return SEGUE_OK;
}

/* All ops of a group: the device computes dx while this thread computes the gradients of weights. */
static segue_status group_back(struct sg_train_pass *p, const struct sg_train_group *group)
{
    const struct sg_op *first = &p->g->ops[group->ops[0]];
    struct sg_train_grad dx;
    SG_TRY(sg_train_grad_of(p, &first->in[0], &dx));
    if (dx.data) SG_TRY(sg_train_device_back(p, group, dx));
    segue_status status = SEGUE_OK;
    uint64_t begin = sg_now_ns();
    for (uint32_t i = 0; i < group->n; i++) {
        const struct sg_op *op = &p->g->ops[group->ops[i]];
        if (!p->grads[op->out]) continue;
        if (status == SEGUE_OK) status = host_back(p, op, p->grads[op->out], dx);
    }
    sg_train_interval(p->t, SEGUE_TRAIN_WEIGHT_GRADIENT, first->layer, begin, sg_now_ns());
    segue_status waited = dx.data ? sg_train_device_wait(p) : SEGUE_OK;
    for (uint32_t i = 1; i < group->n; i++) {
        int32_t v = p->g->ops[group->ops[i]].out;
        sg_train_put_live(p, &p->grads[v], v);
    }
    return status != SEGUE_OK ? status : waited;
}

segue_status sg_train_linear_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    const struct sg_train_group *group = sg_train_group_of(p, op);
    struct sg_train_grad dx;
    if (group) return group_back(p, group);
    const struct sg_weight *w = &op->u.linear.weight;
    int pair = p->t->tensors[w->tensor].pair >= 0;
    struct sg_gemm more = {.a = NULL};
    SG_TRY(sg_train_grad_of(p, &op->in[0], &dx));
    if (pair) SG_TRY(pair_back(p, op, dout, dx, &more));
    if (dx.data) {
        struct sg_gemm g = {.rows = sg_train_rows(p, op), .cols = dx.width, .inner = w->rows, .a = dout, .lda = w->rows,
                            .c = dx.data, .ldc = dx.stride, .add = 1};
        SG_TRY(weight_product(p, w, g, 1, pair ? &more : NULL));
    }
    sg_train_put(p, (float *)(uintptr_t)more.a);
    return rest_back(p, op, dout);
}
