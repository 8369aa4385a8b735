/* blas.c: cuBLASLt by dlopen. The algorithm of each shape is queried once and cached. Row-major products are column-major ones
 * with both operands exchanged. A failure never fails a run: cu_blas_multiply returns 0 and the caller uses its own kernel.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/driver/blas.h"

#include <dlfcn.h>
#include <string.h>

/* Tiles of the library's algorithms, and two limits: heuristics requested per shape; rows from which its first choice is not used
 * without a check of its tiles. */
enum { ALGO_TILE = 1, TILE_128_128 = 20, TILE_128_256 = 23, TILE_256_128 = 24, TILE_168_128 = 197, TILE_320_128 = 248 };
enum { HEURISTICS = 8, MANY_ROWS = 1024 };

/* Looks up every function; 0: the library lacks one. */
static int load_symbols(struct cu_blas *b)
{
    const struct {
        const char *name;
        void *to;
    } wanted[] = {
        {"cublasLtCreate", &b->create},
        {"cublasLtDestroy", &b->destroy},
        {"cublasLtMatmulDescCreate", &b->desc_new},
        {"cublasLtMatmulDescDestroy", &b->desc_free},
        {"cublasLtMatmulDescSetAttribute", &b->desc_set},
        {"cublasLtMatrixLayoutCreate", &b->layout_new},
        {"cublasLtMatrixLayoutDestroy", &b->layout_free},
        {"cublasLtMatmulPreferenceCreate", &b->pref_new},
        {"cublasLtMatmulPreferenceDestroy", &b->pref_free},
        {"cublasLtMatmulPreferenceSetAttribute", &b->pref_set},
        {"cublasLtMatmulAlgoGetHeuristic", &b->find},
        {"cublasLtMatmulAlgoConfigGetAttribute", &b->setting},
        {"cublasLtMatmul", &b->multiply},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *symbol = dlsym(b->library, wanted[i].name);
        if (!symbol) return 0;
        memcpy(wanted[i].to, &symbol, sizeof symbol);
    }
    return 1;
}

/* The newest library first. The last path is where the toolkit puts it, outside of the loader's directories. */
void cu_blas_open(struct cu_blas *b)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                        "/usr/local/cuda/lib64/libcublasLt.so"};
    memset(b, 0, sizeof *b);
    for (size_t i = 0; i < sizeof names / sizeof *names && !b->library; i++) b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!b->library) return;
    if (!load_symbols(b) || b->create(&b->handle)) {
        b->handle = NULL;
        dlclose(b->library);
        b->library = NULL;
        return;
    }
    pthread_mutex_init(&b->lock, NULL);
}

/* Frees what shape_find has created, also after it failed. */
static void shape_free(struct cu_blas *b, struct cu_blas_shape *s)
{
    if (s->desc) b->desc_free(s->desc);
    void *layouts[] = {s->w, s->x, s->c, s->y};
    for (int i = 0; i < 4; i++)
        if (layouts[i]) b->layout_free(layouts[i]);
}

/* No product is in progress. */
void cu_blas_close(struct cu_blas *b)
{
    if (!b->handle) return;
    for (uint32_t i = 0; i < b->shapes_n; i++) shape_free(b, &b->shapes[i]);
    b->destroy(b->handle);
    pthread_mutex_destroy(&b->lock);
    dlclose(b->library);
    memset(b, 0, sizeof *b);
}

/* The tile shape of an algorithm (cublasLtMatmulTile_t); 0: unknown. */
static int tile_of(const struct cu_blas *b, const struct cu_blas_heuristic *f)
{
    int tile = 0;
    size_t written;
    return b->setting(f->algo, ALGO_TILE, &tile, sizeof tile, &written) ? 0 : tile;
}

/* Index of the algorithm to use among n. The library's first choice, except for many rows: there tiles of 256 and more are 6 to
 * 14 % slower on an H200 than others further down its list (docs/CUDA-KERNELS.md). */
static int preferred_algo(const struct cu_blas *b, const struct cu_blas_heuristic *f, int n, uint32_t rows)
{
    static const int better[] = {TILE_168_128, TILE_128_128};
    int first = tile_of(b, &f[0]);
    if (rows < MANY_ROWS || (first != TILE_128_256 && first != TILE_256_128 && first != TILE_320_128)) return 0;
    for (int k = 0; k < 2; k++)
        for (int i = 1; i < n; i++)
            if (!f[i].state && tile_of(b, &f[i]) == better[k]) return i;
    return 0;
}

/* Creates the descriptors of a shape and selects its algorithm. The library computes y^T = w . x^T in column-major order: A is w
 * transposed, B is x, C is the residual. Accumulation is in fp32. 0: failed; the caller frees what was created. */
static int shape_find(struct cu_blas *b, struct cu_blas_shape *s)
{
    int transpose = 1, epilogue = CU_BLAS_EPILOGUE_BIAS, n = 0;
    int type = s->bf16 ? CU_BLAS_BF16 : CU_BLAS_F16, out = s->out16 ? type : CU_BLAS_F32;
    size_t workspace = CU_BLAS_WORKSPACE;
    uint64_t bias = 256; /* any aligned address: the heuristic only checks that a bias is set */
    void *pref = NULL;
    struct cu_blas_heuristic f[HEURISTICS];
    if (b->desc_new(&s->desc, CU_BLAS_COMPUTE_F32, CU_BLAS_F32)) return 0;
    if (b->desc_set(s->desc, CU_BLAS_TRANSPOSE_A, &transpose, sizeof transpose)) return 0;
    if (s->bias &&
        (b->desc_set(s->desc, CU_BLAS_EPILOGUE, &epilogue, sizeof epilogue) ||
         b->desc_set(s->desc, CU_BLAS_BIAS, &bias, sizeof bias)))
        return 0;
    if (b->layout_new(&s->w, type, s->k, s->n, s->pitch) || b->layout_new(&s->x, type, s->k, s->t, s->k) ||
        b->layout_new(&s->c, out, s->n, s->t, s->add) || b->layout_new(&s->y, out, s->n, s->t, s->out))
        return 0;
    if (b->pref_new(&pref)) return 0;
    int bad = b->pref_set(pref, CU_BLAS_PREF_WORKSPACE, &workspace, sizeof workspace) ||
              b->find(b->handle, s->desc, s->w, s->x, s->c, s->y, pref, HEURISTICS, f, &n) || n < 1 || f[0].state;
    b->pref_free(pref);
    if (!bad) memcpy(s->algo, f[preferred_algo(b, f, n, s->t)].algo, sizeof s->algo);
    return !bad;
}

/* The cached entry of a product's shape, created on first use. All fields before `desc` are the key. A full cache replaces its
 * last entry, which keeps the shapes of the first model. NULL: the library does not support the shape. */
static struct cu_blas_shape *shape_of(struct cu_blas *b, const struct cu_blas_product *p)
{
    struct cu_blas_shape want = {.t = p->t,
                                 .n = p->n,
                                 .k = p->k,
                                 .pitch = p->pitch,
                                 .out = p->out_stride,
                                 .add = p->residual ? p->residual_stride : p->out_stride,
                                 .bf16 = p->bf16,
                                 .out16 = p->out16,
                                 .residual = p->residual != 0,
                                 .bias = p->bias != 0};
    size_t key = offsetof(struct cu_blas_shape, desc);
    for (uint32_t i = 0; i < b->shapes_n; i++)
        if (!memcmp(&b->shapes[i], &want, key)) return &b->shapes[i];
    if (!shape_find(b, &want)) {
        shape_free(b, &want);
        return NULL;
    }
    if (b->shapes_n == CU_BLAS_SHAPES) shape_free(b, &b->shapes[--b->shapes_n]);
    b->shapes[b->shapes_n] = want;
    return &b->shapes[b->shapes_n++];
}

/* Under the lock. The bias pointer is part of the descriptor, which products of one shape share. */
static int multiply(struct cu_blas *b, const struct cu_blas_product *p)
{
    const float beta = p->residual ? 1 : 0;
    struct cu_blas_shape *s = shape_of(b, p);
    if (!s) return 0;
    if (p->bias && b->desc_set(s->desc, CU_BLAS_BIAS, &p->bias, sizeof p->bias)) return 0;
    uint64_t c = p->residual ? p->residual : p->y;
    return !b->multiply(b->handle, s->desc, &p->times, (const void *)(uintptr_t)p->w, s->w, (const void *)(uintptr_t)p->x, s->x,
                        &beta, (const void *)(uintptr_t)c, s->c, (void *)(uintptr_t)p->y, s->y, s->algo,
                        (void *)(uintptr_t)p->workspace, CU_BLAS_WORKSPACE, p->stream);
}

/* The library needs rows of a multiple of 16 bytes, hence the multiples of 8. */
int cu_blas_multiply(struct cu_blas *b, const struct cu_blas_product *p)
{
    if (!b->handle || p->k % 8 || p->pitch % 8) return 0;
    pthread_mutex_lock(&b->lock);
    int started = multiply(b, p);
    pthread_mutex_unlock(&b->lock);
    return started;
}
