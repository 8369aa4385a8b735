/* gemm.c: products on all threads. A unit with packed products gets both factors packed once, a part at a time, and then tiles of
 * C; others get the tiles. A number of C does not depend on the tiles, the parts or the threads.
 * SPDX-License-Identifier: MIT */
#include "train/train.h"

/* Numbers of 4 bytes of the packed parts, elements of `inner` of a part, lines (or, straight, numbers of `inner`) that are packed
 * as one item, rows of a frozen matrix that are converted at a time. */
enum { A_NUMBERS = 1 << 22, B_NUMBERS = 1 << 21, ELEMENTS = 12 * 192, PACK_LINES = 96, PACK_DEPTH = 64, CONVERT_ROWS = 32 };
/* A tile of C and its rows of A stay in the second cache. */
static const struct { uint32_t rows, cols; } tile_sizes[] = {{264, 384}, {132, 192}, {132, 96}};
enum { TILE_SIZES = 3, ITEMS_PER_THREAD = 4 };

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t divide(uint32_t a, uint32_t b) { return a / b + (a % b != 0); }

/* A product, or a part of one. */
struct gemm_work {
    const struct sg_train_math *m;
    struct sg_gemm g;
    const struct sg_tensor *frozen;  /* NULL, or B: its rows from b_at on, columns from b_from on */
    uint64_t b_at, b_from;
    struct sg_gemm more;             /* with `inner` numbers behind those of g; 0: none */
    float *a, *b;                    /* packed; NULL: not */
    float *converted;                /* [threads, converted_n] rows of `frozen` */
    size_t converted_n;
    uint32_t elements, more_at;      /* of the part of `inner`; where those of `more` begin */
    uint32_t a_items, items;         /* that pack A; that pack A and B, without `more` */
    uint32_t across, rows, cols;     /* tiles in a row of tiles; size of a tile */
};

/* --- tiles --- */

static void gemm_tile(void *arg, uint32_t item, uint32_t thread)
{
    const struct gemm_work *w = arg;
    struct sg_gemm g = w->g;
    uint32_t r = item / w->across * w->rows, c = item % w->across * w->cols;
    g.c += r * g.ldc + c;
    g.rows = least(g.rows - r, w->rows);
    g.cols = least(g.cols - c, w->cols);
    if (w->a) {
        w->m->gemm_packed(w->m, &g, w->a + (size_t)r * w->elements, w->b + (size_t)c * w->elements, w->elements);
        return;
    }
    g.a += g.kind == SG_GEMM_TN ? r : r * g.lda;
    g.b += g.kind == SG_GEMM_NT ? c * g.ldb : c;
    w->m->gemm(w->m, &g, thread);
}

/* The largest tiles that are enough to keep the threads from waiting for each other. */
static void all_tiles(struct gemm_work *w)
{
    uint32_t items = 0;
    for (int i = 0; i < TILE_SIZES && items < ITEMS_PER_THREAD * w->m->threads; i++) {
        w->rows = tile_sizes[i].rows, w->cols = tile_sizes[i].cols;
        w->across = divide(w->g.cols, w->cols);
        items = divide(w->g.rows, w->rows) * w->across;
    }
    if (items) w->m->each(w->m, items, gemm_tile, w);
}

/* --- packing --- */

/* An item is some lines with their whole depth, or, straight, a part of the depth of all lines. */
static uint32_t pack_items(uint32_t lines, uint32_t depth, int straight)
{
    return straight ? divide(depth, PACK_DEPTH) : divide(lines, PACK_LINES);
}

/* Rows of a frozen matrix at x, some at a time: lines of B, or, straight, numbers of `inner`. */
static void pack_frozen(const struct gemm_work *w, struct sg_gemm_pack p, uint32_t item, uint32_t thread)
{
    const struct sg_gemm_shape *s = w->m->shape;
    uint32_t all = p.straight ? p.depth : p.lines, wide = p.straight ? p.lines : p.depth;
    float *rows = w->converted + thread * w->converted_n, *to = p.to;
    uint64_t from = w->b_at + (uint64_t)item * (p.straight ? PACK_DEPTH : PACK_LINES);
    p.x = rows;
    p.ldx = wide;
    for (uint32_t at = 0; at < all; at += CONVERT_ROWS) {
        uint32_t n = least(all - at, CONVERT_ROWS);
        for (uint32_t i = 0; i < n; i++) sg_tensor_row(w->frozen, from + at + i, w->b_from, wide, rows + (size_t)i * wide);
        if (p.straight) p.depth = n, p.to = to + (size_t)(at / s->each) * s->cols;
        else p.lines = n, p.to = to + at / s->cols * p.panel;
        w->m->pack(w->m, &p);
    }
}

/* Item 0: its B; 1: its A. */
static void pack_more(const struct gemm_work *w, uint32_t item)
{
    const struct sg_gemm_shape *s = w->m->shape;
    const struct sg_gemm *g = &w->more;
    int b = !item;
    uint32_t width = b ? s->cols : s->rows;
    struct sg_gemm_pack p = {.b = b, .straight = b ? g->kind != SG_GEMM_NT : g->kind == SG_GEMM_TN, .x = b ? g->b : g->a,
                             .ldx = b ? g->ldb : g->lda, .lines = b ? g->cols : g->rows, .depth = g->inner,
                             .to = (b ? w->b : w->a) + (size_t)w->more_at * width, .panel = (size_t)w->elements * width};
    w->m->pack(w->m, &p);
}

static void pack_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct gemm_work *w = arg;
    if (item >= w->items) {
        pack_more(w, item - w->items);
        return;
    }
    const struct sg_gemm_shape *s = w->m->shape;
    const struct sg_gemm *g = &w->g;
    int b = item >= w->a_items;
    uint32_t width = b ? s->cols : s->rows, lines = b ? g->cols : g->rows, i = b ? item - w->a_items : item;
    struct sg_gemm_pack p = {.b = b, .straight = b ? g->kind != SG_GEMM_NT : g->kind == SG_GEMM_TN, .x = b ? g->b : g->a,
                             .ldx = b ? g->ldb : g->lda, .to = b ? w->b : w->a, .panel = (size_t)w->elements * width};
    uint32_t at = i * (p.straight ? PACK_DEPTH : PACK_LINES);
    p.lines = p.straight ? lines : least(lines - at, PACK_LINES);
    p.depth = p.straight ? least(g->inner - at, PACK_DEPTH) : g->inner;
    if (p.x) p.x += at * p.ldx; /* frozen: none */
    p.to += p.straight ? (size_t)(at / s->each) * width : at / width * p.panel;
    if (b && w->frozen) pack_frozen(w, p, i, thread);
    else w->m->pack(w->m, &p);
}

/* One part: rows and columns of C, and of `inner` at most ELEMENTS. A 1: the rows of A are new. */
static void packed_part(struct gemm_work *w, int a)
{
    const struct sg_gemm *g = &w->g;
    w->a_items = a ? pack_items(g->rows, g->inner, g->kind == SG_GEMM_TN) : 0;
    w->items = w->a_items + pack_items(g->cols, g->inner, g->kind != SG_GEMM_NT);
    w->m->each(w->m, w->items + (w->more.inner ? 1 + (a != 0) : 0), pack_item, w);
    all_tiles(w);
}

/* --- parts --- */

/* How many lines fit into `numbers`, in whole panels; at least one. */
static uint32_t lines_of(uint32_t numbers, uint32_t elements, uint32_t width)
{
    uint32_t panels = numbers / (elements * width);
    return (panels ? panels : 1) * width;
}

/* Sizes of the parts: numbers of `inner`, rows and columns of C. */
struct gemm_parts { uint32_t inner, rows, cols; size_t a, b; };

static struct gemm_parts parts_of(const struct sg_gemm_shape *s, const struct sg_gemm *g, uint32_t more)
{
    struct gemm_parts p;
    uint32_t elements = least(divide(g->inner, s->each), ELEMENTS);
    if (!elements) elements = 1;
    p.inner = elements * s->each;
    elements += divide(more, s->each);
    p.rows = least(lines_of(A_NUMBERS, elements, s->rows), divide(g->rows, s->rows) * s->rows);
    p.cols = least(lines_of(B_NUMBERS, elements, s->cols), divide(g->cols, s->cols) * s->cols);
    p.a = (size_t)p.rows * elements;
    p.b = (size_t)p.cols * elements;
    return p;
}

static void columns_of(const struct gemm_work *all, const struct gemm_parts *p, uint32_t k, uint32_t r)
{
    const struct sg_gemm *g = &all->g;
    for (uint32_t c = 0; c < g->cols; c += p->cols) {
        struct gemm_work w = *all;
        int nt = g->kind == SG_GEMM_NT;
        w.g.rows = least(g->rows - r, p->rows), w.g.cols = least(g->cols - c, p->cols), w.g.inner = least(g->inner - k, p->inner);
        w.elements = w.more_at = divide(w.g.inner, all->m->shape->each);
        if (k + w.g.inner < g->inner) w.more.inner = 0;
        w.elements += divide(w.more.inner, all->m->shape->each);
        w.more.rows = w.g.rows, w.more.cols = w.g.cols;
        if (w.more.inner) {
            w.more.a += g->kind == SG_GEMM_TN ? r : r * w.more.lda;
            w.more.b += nt ? c * w.more.ldb : c;
        }
        w.g.a += g->kind == SG_GEMM_TN ? k * g->lda + r : r * g->lda + k;
        w.b_at += nt ? c : k;
        w.b_from += nt ? k : c;
        if (!w.frozen) w.g.b += nt ? c * g->ldb + k : k * g->ldb + c;
        w.g.c += r * g->ldc + c;
        w.g.add = g->add || k;
        packed_part(&w, !c);
    }
}

/* Sizes are powers of two, so that most products use the same blocks of memory. */
static float *take_packed(struct sg_train_pass *p, size_t n)
{
    size_t size = 4096;
    while (size < n) size *= 2;
    return sg_train_take(p, size);
}

size_t sg_train_gemm_n(const struct sg_train_math *m, const struct sg_gemm *g)
{
    struct gemm_parts p = {0};
    if (m->shape) p = parts_of(m->shape, g, 0);
    return p.a + p.b;
}

static void gemm_with(struct gemm_work *w, float *packed)
{
    struct gemm_parts p = parts_of(w->m->shape, &w->g, w->more.inner);
    w->a = packed;
    w->b = packed + p.a;
    for (uint32_t k = 0; k < w->g.inner || (!w->g.inner && !k); k += p.inner)
        for (uint32_t r = 0; r < w->g.rows; r += p.rows) columns_of(w, &p, k, r);
}

void sg_train_gemm_with(const struct sg_train_math *m, const struct sg_gemm *g, float *packed)
{
    struct gemm_work w = {.m = m, .g = *g};
    if (packed) gemm_with(&w, packed);
    else all_tiles(&w);
}

segue_status sg_train_gemm(struct sg_train_pass *p, const struct sg_gemm *g)
{
    float *packed = p->m->shape ? take_packed(p, sg_train_gemm_n(p->m, g)) : NULL;
    if (p->m->shape && !packed) return SEGUE_EMEMORY;
    sg_train_gemm_with(p->m, g, packed);
    if (packed) sg_train_put(p, packed);
    return SEGUE_OK;
}

/* --- frozen matrices --- */

struct convert_work { const struct sg_tensor *t; float *out; uint64_t at; };

static void convert_row(void *arg, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct convert_work *w = arg;
    sg_tensor_row(w->t, w->at + item, 0, w->t->cols, w->out + (size_t)item * w->t->cols);
}

/* Converts some rows at a time to fp32 and multiplies them. */
static segue_status convert_rows(struct sg_train_pass *p, const struct sg_gemm *g, const struct sg_tensor *t, uint64_t first)
{
    enum { NUMBERS = 1 << 20 };
    int back = g->kind == SG_GEMM_NN;
    uint32_t all = back ? g->inner : g->cols, block = least((uint32_t)(NUMBERS / t->cols + 1), all);
    float *rows = sg_train_take(p, (size_t)block * t->cols);
    if (!rows) return SEGUE_EMEMORY;
    for (uint32_t at = 0; at < all; at += block) {
        uint32_t n = least(all - at, block);
        struct convert_work c = {t, rows, first + at};
        sg_train_each(p, n, convert_row, &c);
        struct gemm_work w = {.m = p->m, .g = *g};
        w.g.b = rows, w.g.ldb = t->cols;
        if (back) w.g.a += at, w.g.inner = n, w.g.add |= at != 0;
        else w.g.c += at, w.g.cols = n;
        all_tiles(&w);
    }
    sg_train_put(p, rows);
    return SEGUE_OK;
}

segue_status sg_train_gemm_frozen(struct sg_train_pass *p, const struct sg_gemm *g, const struct sg_tensor *t, uint64_t at,
                                  const struct sg_gemm *more)
{
    if (!p->m->shape) {
        SG_TRY(convert_rows(p, g, t, at));
        return more ? sg_train_gemm(p, more) : SEGUE_OK;
    }
    struct gemm_work w = {.m = p->m, .g = *g, .frozen = t, .b_at = at};
    if (more) w.more = *more;
    struct gemm_parts parts = parts_of(p->m->shape, g, w.more.inner);
    w.converted_n = (size_t)CONVERT_ROWS * (g->kind == SG_GEMM_NT ? parts.inner : parts.cols);
    w.converted = take_packed(p, p->m->threads * w.converted_n);
    float *packed = take_packed(p, parts.a + parts.b);
    segue_status status = w.converted && packed ? SEGUE_OK : SEGUE_EMEMORY;
    if (status == SEGUE_OK) gemm_with(&w, packed);
    sg_train_put(p, packed);
    sg_train_put(p, w.converted);
    return status;
}
