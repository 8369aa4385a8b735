/* train_open.c: the unit's train_resident: modules and stream of a trainer, its memory, and the table of operations.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "unit/cuda/driver/images.h"
#include "unit/cuda/train/cu_train.h"

/* --- memory --- */

static cu_ptr address(const void *p) { return (cu_ptr)(uintptr_t)p; }

static int r_bf16(const struct sg_train_resident *r) { return sg_resident_value_bytes(r) == 2; }

static segue_status take(struct sg_train_resident *r, size_t n, float **out, segue_error *err)
{
    cu_ptr p;
    *out = NULL;
    size_t all = n + (r_bf16(r) ? cu_train_slack(n) : 0);
    SG_TRY(cu_mem_alloc(cu_train_of(r)->u, all * sizeof **out, "numbers of training", &p, err));
    *out = (float *)(uintptr_t)p;
    segue_status status = r_bf16(r) ? cu_train_copies_add(cu_train_of(r), *out, n, err) : SEGUE_OK;
    if (status != SEGUE_OK) {
        cu_mem_free(cu_train_of(r)->u, &p);
        *out = NULL;
    }
    return status;
}

static void leave(struct sg_train_resident *r, float *p)
{
    cu_ptr at = address(p);
    cu_train_copies_remove(cu_train_of(r), p);
    cu_mem_free(cu_train_of(r)->u, &at);
}

static segue_status zero(struct sg_train_resident *r, float *p, size_t n, segue_error *err)
{
    struct cu_train *t = cu_train_of(r);
    cu_enter(t->u);
    cu_result e = n ? t->u->d.memset_d8(address(p), 0, n * sizeof *p, t->stream) : 0;
    cu_leave(t->u);
    return cu_check(&t->u->d, e, "train", err);
}

/* The stream is waited for before and after, because the copy is in another one. */
static segue_status wait_stream(struct cu_train *t, segue_error *err)
{
    cu_enter(t->u);
    cu_result e = t->u->d.stream_sync(t->stream);
    cu_leave(t->u);
    return cu_check(&t->u->d, e, "train", err);
}

static segue_status write_numbers(struct sg_train_resident *r, void *to, const void *host, size_t bytes, segue_error *err)
{
    SG_TRY(wait_stream(cu_train_of(r), err));
    cu_train_copies_changed(cu_train_of(r), to);
    return cu_copy_to_gpu(cu_train_of(r)->u, address(to), host, bytes, err);
}

static segue_status read_numbers(struct sg_train_resident *r, void *host, const void *from, size_t bytes, segue_error *err)
{
    SG_TRY(wait_stream(cu_train_of(r), err));
    return cu_copy_to_host(cu_train_of(r)->u, host, address(from), bytes, err);
}

/* --- operations --- */

static cu_train_op *const ops[SG_OP_N] = {
    [SG_OP_EMBED] = cu_train_embed,   [SG_OP_NORM] = cu_train_norm,     [SG_OP_LINEAR] = cu_train_linear,
    [SG_OP_ROPE] = cu_train_rope,     [SG_OP_ATTEND] = cu_train_attend, [SG_OP_CONV] = cu_train_conv,
    [SG_OP_DELTA] = cu_train_delta,   [SG_OP_GLU] = cu_train_elements,  [SG_OP_ACT] = cu_train_elements,
    [SG_OP_ADD] = cu_train_elements,  [SG_OP_SCALE] = cu_train_elements,
};

static segue_status can_train(const struct sg_train_resident *r, const struct sg_graph *g, const struct sg_op *op,
                              segue_error *why)
{
    (void)r, (void)g;
    const struct sg_delta *d = &op->u.delta;
    if (!ops[op->code])
        return sg_fail(why, SEGUE_EUNSUPPORTED, "unit cuda: %s (layer %d) has no training kernel; use ref or cpu",
                       sg_op_name(op->code), (int)op->layer);
    if (op->code == SG_OP_DELTA && (d->dk > CT_DELTA_MAX || d->dv > CT_DELTA_MAX))
        return sg_fail(why, SEGUE_EUNSUPPORTED,
                       "unit cuda: delta (layer %d): training has no kernel for heads of width %u and %u; the limit is %d",
                       (int)op->layer, d->dk, d->dv, CT_DELTA_MAX);
    return SEGUE_OK;
}

static segue_status run(struct sg_train_resident *r, const struct sg_resident_call *c, segue_error *err)
{
    int done = 0;
    SG_TRY(can_train(r, NULL, c->op, err));
    if (!r_bf16(r)) return ops[c->op->code](cu_train_of(r), c, err);
    SG_TRY(cu_train_bf16(cu_train_of(r), c, &done, err));
    return done ? SEGUE_OK : cu_train_widened(cu_train_of(r), c, ops[c->op->code], err);
}

static segue_status select_rows(struct sg_train_resident *r, struct sg_resident_matrix x, const uint32_t *rows, uint32_t n,
                                float *out, segue_error *err)
{
    struct cu_train *t = cu_train_of(r);
    struct ct_half_rows h = {cu_train_half(x), rows, (uint16_t *)(void *)out, sg_resident_stride(2, x.width)};
    if (r_bf16(r)) return cu_train_launch(t, t->k.bf16_select, n, 1, 1, CT_THREADS, &h, err);
    struct ct_rows a = {cu_train_matrix(x), rows, out, NULL, n, 0};
    return cu_train_launch(cu_train_of(r), cu_train_of(r)->k.select, n, 1, 1, CT_THREADS, &a, err);
}

static segue_status select_back(struct sg_train_resident *r, struct sg_resident_matrix dx, const uint32_t *rows, uint32_t n,
                                const float *dout, segue_error *err)
{
    struct cu_train *t = cu_train_of(r);
    struct ct_half_rows h = {cu_train_half(dx), rows, (uint16_t *)(uintptr_t)dout, sg_resident_stride(2, dx.width)};
    if (r_bf16(r)) return cu_train_launch(t, t->k.bf16_select_back, n, 1, 1, CT_THREADS, &h, err);
    struct ct_rows a = {cu_train_matrix(dx), rows, NULL, dout, n, 0};
    return cu_train_launch(cu_train_of(r), cu_train_of(r)->k.select_back, n, 1, 1, CT_THREADS, &a, err);
}

/* --- loss and update --- */

static segue_status loss(struct sg_train_resident *r, const struct sg_resident_tokens *k, uint32_t at, uint32_t n, uint32_t vocab,
                         const float *logits, float *dlogits, segue_error *err)
{
    struct cu_train *t = cu_train_of(r);
    if (!at) SG_TRY(cu_mem_grow(t->u, &t->losses, &t->losses_bytes, k->rows * sizeof(double), "losses", err));
    struct ct_policy policy = {k->policy ? k->policy + (size_t)4 * at : NULL, k->clip, k->kl};
    struct ct_half_loss h = {(const uint16_t *)(const void *)logits, (uint16_t *)(void *)dlogits, k->labels, k->labelled + at,
                             (double *)(uintptr_t)t->losses + at, policy, sg_resident_stride(2, vocab), n, vocab};
    if (r_bf16(r)) return cu_train_launch(t, t->k.bf16_loss, n, 1, 1, CT_THREADS, &h, err);
    struct ct_loss a = {logits, dlogits, k->labels, k->labelled + at, (double *)(uintptr_t)t->losses + at, policy, n, vocab};
    return cu_train_launch(t, t->k.loss, n, 1, 1, CT_THREADS, &a, err);
}

static segue_status losses(struct sg_train_resident *r, uint32_t n, double *out, segue_error *err)
{
    return read_numbers(r, out, (const void *)(uintptr_t)cu_train_of(r)->losses, n * sizeof *out, err);
}

static size_t blocks_of(size_t n) { return (n + CT_SQUARES - 1) / CT_SQUARES; }

/* All blocks of all parameters are summed before the first copy. */
static segue_status squares(struct sg_train_resident *r, const float *const *x, const size_t *n, size_t count, double *sums,
                            segue_error *err)
{
    struct cu_train *t = cu_train_of(r);
    size_t all = 0, at = 0;
    float *parts;
    for (size_t i = 0; i < count; i++) all += blocks_of(n[i]);
    SG_TRY(cu_train_parts(t, 2 * all, &parts, err));
    for (size_t i = 0; i < count; at += blocks_of(n[i]), i++) {
        struct ct_squares a = {x[i], (double *)(void *)parts + at, n[i]};
        SG_TRY(cu_train_launch(t, t->k.squares, (uint32_t)blocks_of(n[i]), 1, 1, CT_THREADS, &a, err));
    }
    double *host = sg_alloc(all * sizeof *host);
    if (!host) return sg_no_memory("sums of training", all * sizeof *host, err);
    segue_status status = read_numbers(r, host, parts, all * sizeof *host, err);
    at = 0;
    for (size_t i = 0; i < count; i++) {
        sums[i] = 0;
        for (size_t b = 0; b < blocks_of(n[i]); b++) sums[i] += host[at++];
    }
    sg_free(host);
    return status;
}

static segue_status adamw(struct sg_train_resident *r, const struct sg_resident_adamw *a, segue_error *err)
{
    struct cu_train *t = cu_train_of(r);
    size_t blocks = (a->n + CT_THREADS - 1) / CT_THREADS, max = (size_t)t->u->sms * 8;
    cu_train_copies_changed(t, a->value);
    struct ct_adamw k = {a->value, a->gradient, a->moment1, a->moment2, a->n, a->scale, a->keep, a->step, a->beta1, a->beta2,
                         a->root, a->eps, 0};
    return cu_train_launch(t, t->k.adamw, (uint32_t)(blocks < max ? blocks : max), 1, 1, CT_THREADS, &k, err);
}

/* --- opening --- */

static void close_train(struct sg_train_resident *r)
{
    struct cu_train *t = cu_train_of(r);
    struct sg_unit *u = t->u;
    cu_enter(u);
    if (t->stream) u->d.stream_sync(t->stream);
    cu_mem_free(u, &t->scratch);
    cu_mem_free(u, &t->parts);
    cu_mem_free(u, &t->losses);
    cu_mem_free(u, &t->wide);
    for (size_t i = 0; i < t->copies_n; i++) cu_mem_free(u, &t->copies[i].half);
    for (size_t i = 0; i < t->lines_n; i++) cu_mem_free(u, &t->lines[i].p);
    cu_train_blas_close(t);
    for (int i = 0; i < CU_TRAIN_FILES; i++)
        if (t->modules[i]) u->d.module_unload(t->modules[i]);
    if (t->stream) u->d.stream_free(t->stream);
    cu_leave(u);
    sg_free(t->copies);
    sg_free(t->lines);
    sg_free(t);
}

static segue_status find_kernel(struct cu_train *t, const char *file, const char *name, cu_fn *out, segue_error *err)
{
    for (int i = 0; i < CU_TRAIN_FILES && cu_train_images[i]; i++)
        if (!strcmp(cu_train_image_names[i], file) && !t->u->d.get_function(out, t->modules[i], name)) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNIT, "trainer not opened: cuda: kernel %s is not in this build; rebuild segue", name);
}

/* Kernels of products end with the number of enum ct_products. */
static segue_status find_products(struct cu_train *t, segue_error *err)
{
    static const char *const kinds[CT_GEMM_KINDS] = {"nt", "nn", "tn"};
    char name[48];
    uint32_t products = t->u->products < CT_PRODUCTS ? t->u->products : CT_BF16; /* of what has no bf16 kernel */
    for (int i = 0; i < 2 * CT_GEMM_KINDS; i++) {
        snprintf(name, sizeof name, "train_gemm_%s_%d_%u", kinds[i / 2], i % 2 ? CT_LARGE : CT_TILE, products);
        SG_TRY(find_kernel(t, "k_train_gemm", name, &t->k.gemm[i / 2][i % 2], err));
    }
#define X(product)                                                               \
    snprintf(name, sizeof name, "train_" #product "_%u", products);              \
    SG_TRY(find_kernel(t, "k_train_attend", name, &t->k.product, err));
    CU_TRAIN_PRODUCTS(X)
#undef X
    return SEGUE_OK;
}

static segue_status load(struct cu_train *t, segue_error *err)
{
    struct sg_unit *u = t->u;
    SG_TRY(cu_check(&u->d, u->d.stream_new(&t->stream, CU_STREAM_NON_BLOCKING, 0), "trainer not opened", err));
    for (int i = 0; i < CU_TRAIN_FILES && cu_train_images[i]; i++)
        SG_TRY(cu_check(&u->d, u->d.module_load(&t->modules[i], cu_train_images[i]), "trainer not opened: kernels", err));
#define X(file, name) SG_TRY(find_kernel(t, "k_train_" #file, "train_" #name, &t->k.name, err));
    CU_TRAIN_KERNELS(X)
#undef X
    return find_products(t, err);
}

static const struct sg_train_resident_ops table = {
    .close = close_train, .can = can_train, .alloc = take, .free = leave, .zero = zero, .write = write_numbers,
    .read = read_numbers, .run = run, .select = select_rows, .select_back = select_back, .loss = loss, .losses = losses,
    .squares = squares, .adamw = adamw,
};

segue_status cu_train_open(struct sg_unit *u, struct sg_train_resident **out, segue_error *err)
{
    struct cu_train *t = sg_alloc(sizeof *t);
    if (!t) return sg_no_memory("trainer of cuda", sizeof *t, err);
    t->base = (struct sg_train_resident_base){&table, u->products == CT_VALUES_BF16 ? 2 : 4};
    t->u = u;
    cu_enter(u);
    segue_status status = load(t, err);
    cu_leave(u);
    if (status == SEGUE_OK) *out = (struct sg_train_resident *)(void *)t;
    else close_train((struct sg_train_resident *)(void *)t);
    return status;
}
