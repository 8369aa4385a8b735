/* train_blas.c: products of bf16 matrices by cuBLASLt. The algorithm of each shape is asked for once; it depends on the shape
 * alone, so a run has the same bits again. The library's matrices are column-major, so both operands are exchanged.
 * SPDX-License-Identifier: MIT */
#include <stddef.h>
#include <string.h>

#include "unit/cuda/train/cu_train.h"

enum { SHAPES_MAX = 256, WORKSPACE = 64 << 20 };

/* The fields before `desc` are the key. */
struct cu_train_shape {
    uint64_t lda, ldb, ldc, ldd;
    uint32_t kind, rows, cols, inner, wide, bias;
    void *desc, *a, *b, *c, *d;
    uint64_t algo[8];
};

int cu_train_blas(struct cu_train *t)
{
    cu_blas_finish(t->u);
    return t->u->blas.handle != NULL;
}

static void shape_free(struct cu_blas *b, struct cu_train_shape *s)
{
    void *layouts[] = {s->a, s->b, s->c, s->d};
    if (s->desc) b->desc_free(s->desc);
    for (int i = 0; i < 4; i++)
        if (layouts[i]) b->layout_free(layouts[i]);
}

/* 0: the library refuses. */
static int shape_find(struct cu_blas *b, struct cu_train_shape *s)
{
    int yes = 1, epilogue = CU_BLAS_EPILOGUE_BIAS, n = 0, out = s->wide ? CU_BLAS_F32 : CU_BLAS_BF16;
    size_t workspace = WORKSPACE;
    uint64_t bias = 256; /* any aligned address */
    void *pref = NULL;
    struct cu_blas_heuristic f[1];
    if (b->desc_new(&s->desc, CU_BLAS_COMPUTE_F32, CU_BLAS_F32)) return 0;
    if (s->kind == CT_NT && b->desc_set(s->desc, CU_BLAS_TRANSPOSE_A, &yes, sizeof yes)) return 0;
    if (s->kind == CT_TN && b->desc_set(s->desc, CU_BLAS_TRANSPOSE_B, &yes, sizeof yes)) return 0;
    if (s->bias && (b->desc_set(s->desc, CU_BLAS_EPILOGUE, &epilogue, sizeof epilogue) ||
                    b->desc_set(s->desc, CU_BLAS_BIAS, &bias, sizeof bias)))
        return 0;
    int nt = s->kind == CT_NT, tn = s->kind == CT_TN;
    if (b->layout_new(&s->b, CU_BLAS_BF16, nt ? s->inner : s->cols, nt ? s->cols : s->inner, (int64_t)s->ldb) ||
        b->layout_new(&s->a, CU_BLAS_BF16, tn ? s->rows : s->inner, tn ? s->inner : s->rows, (int64_t)s->lda) ||
        b->layout_new(&s->c, out, s->cols, s->rows, (int64_t)s->ldc) ||
        b->layout_new(&s->d, out, s->cols, s->rows, (int64_t)s->ldd))
        return 0;
    if (b->pref_new(&pref)) return 0;
    int bad = b->pref_set(pref, CU_BLAS_PREF_WORKSPACE, &workspace, sizeof workspace) ||
              b->find(b->handle, s->desc, s->b, s->a, s->c, s->d, pref, 1, f, &n) || n < 1 || f[0].state;
    b->pref_free(pref);
    if (!bad) memcpy(s->algo, f[0].algo, sizeof s->algo);
    return !bad;
}

static struct cu_train_shape *shape_of(struct cu_train *t, const struct cu_train_product *p)
{
    struct cu_train_shape want;
    memset(&want, 0, sizeof want);
    want.lda = p->lda, want.ldb = p->ldb, want.ldc = p->c ? p->ldc : p->ldd, want.ldd = p->ldd;
    want.kind = (uint32_t)p->kind, want.rows = p->rows, want.cols = p->cols, want.inner = p->inner;
    want.wide = p->wide != 0, want.bias = p->bias != NULL;
    for (size_t i = 0; i < t->shapes_n; i++)
        if (!memcmp(&t->shapes[i], &want, offsetof(struct cu_train_shape, desc))) return &t->shapes[i];
    if (!t->shapes) t->shapes = sg_alloc(SHAPES_MAX * sizeof *t->shapes);
    if (!t->shapes || !shape_find(&t->u->blas, &want)) {
        shape_free(&t->u->blas, &want);
        return NULL;
    }
    if (t->shapes_n == SHAPES_MAX) shape_free(&t->u->blas, &t->shapes[--t->shapes_n]);
    t->shapes[t->shapes_n] = want;
    return &t->shapes[t->shapes_n++];
}

static int multiply(struct cu_train *t, const struct cu_train_product *p)
{
    struct cu_blas *b = &t->u->blas;
    const float beta = p->c ? 1 : 0;
    struct cu_train_shape *s = shape_of(t, p);
    if (!s || (p->bias && b->desc_set(s->desc, CU_BLAS_BIAS, &p->bias, sizeof p->bias))) return 0;
    return !b->multiply(b->handle, s->desc, &p->scale, p->b, s->b, p->a, s->a, &beta, p->c ? p->c : p->d, s->c, p->d, s->d,
                        s->algo, (void *)(uintptr_t)t->workspace, WORKSPACE, t->stream);
}

segue_status cu_train_multiply(struct cu_train *t, const struct cu_train_product *p, segue_error *err)
{
    if (!p->rows || !p->cols || !p->inner) return SEGUE_OK;
    SG_TRY(cu_mem_grow(t->u, &t->workspace, &t->workspace_bytes, WORKSPACE, "workspace of cuBLASLt", err));
    cu_enter(t->u);
    int ok = multiply(t, p);
    cu_leave(t->u);
    if (ok) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNIT, "train: cuda: cuBLASLt cannot multiply %u x %u by %u x %u (kind %d); use products=2",
                   p->rows, p->inner, p->inner, p->cols, (int)p->kind);
}

void cu_train_blas_close(struct cu_train *t)
{
    for (size_t i = 0; i < t->shapes_n; i++) shape_free(&t->u->blas, &t->shapes[i]);
    sg_free(t->shapes);
    cu_mem_free(t->u, &t->workspace);
}
