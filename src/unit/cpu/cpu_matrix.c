/* cpu_matrix.c: matrix stages. For few rows every thread prepares the whole input itself (normalise,
 * quantise: cheaper than a barrier) and streams its share of the weights; for more rows a stage of its own
 * prepares tiles, and each item opens a panel of weights once and multiplies it with all tiles. Both run the
 * same sums in the same order for every row. Where the kernels have a wide form, passes of more than
 * DECODE_ROWS rows take it: products of bf16, opened panel by panel, with nothing to do per block.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cpu/cpu_types.h"

enum {
    ITEMS_PER_THREAD = 8,
    PANEL_MAX = 4,
    LINES = 64,
    TOKEN_BLOCK_BYTES = 1 << 20,
    DECODE_ROWS = 16,
    PAIR = 2,
    WIDE_PANEL = 8,             /* groups */
    WIDE_PANEL_BYTES = 3 << 18, /* of them: in the second-level cache beside a tile */
    WIDE_STEP = 2 * SG_WIDE,    /* rows */
    WIDE_PREPARE = 48           /* rows: whole tiles of both forms */
};

/* Scratch of one thread. */
struct room {
    uint64_t *stamp;                 /* pass and stage whose input lies in x */
    float *rows;      /* [SG_WIDE][k] */
    uint8_t *x;                      /* forms of up to SG_FEW rows */
    uint8_t *open[2]; /* PAIR opened groups each, or a wide panel */
    float *out[2];    /* [SG_TILE][16 * PANEL_MAX], or [WIDE_STEP][16 * WIDE_PANEL] */
};

static size_t lines(size_t bytes) { return (bytes + LINES - 1) / LINES * LINES; }

static uint32_t form_block(enum sg_form form)
{
    return form == SG_FORM_X16_FINE || form == SG_FORM_X16_RAISED ? 16 : 32;
}
static int is_wide(enum sg_form form) { return form >= SG_FORM_W1; }
static uint32_t form_terms(enum sg_form form) { return form == SG_FORM_W2 ? 2 : 1; }
static uint32_t form_fine(enum sg_form form) { return form <= SG_FORM_X16_FINE ? SG_FINE : SG_RAISED; }

/* Bytes of n rows of a form; wide: of the tiles that hold them. */
static size_t form_bytes(const struct sg_stage *st, enum sg_form form, size_t n)
{
    if (is_wide(form))
        return (n + SG_WIDE - 1) / SG_WIDE * sg_wide_size(st->k, form_terms(form)) * sizeof(uint16_t);
    return form == SG_FORM_XF ? n * st->k * sizeof(float)
                              : sg_tile_bytes(st->k, form_block(form), form_fine(form), n);
}

/* Terms of a weight in wide form. */
static uint32_t wide_terms(const struct sg_packed *w) { return w->kind == SG_PACK_F16 ? 2 : 1; }

static int may_widen(const struct sg_part *part, const struct sg_packed *w)
{
    return w->kind > SG_PACK_F32 || (w->kind < SG_PACK_F32 && !part->fine);
}

/* The form that a part wants for a pass of so many rows. Up to DECODE_ROWS rows every product is fine: they
 * are bound by reading weights, and drafts are checked with the arithmetic of single steps. Wide: bf16 holds
 * 8 bits, so F16 takes two terms to lose nothing, and the few products that must be fine stay in tiles. */
static enum sg_form form_of(const struct sg_kernels *k, const struct sg_part *part, const struct sg_packed *w,
                            uint32_t rows)
{
    int fine = part->fine || rows <= DECODE_ROWS;
    if (k->wide && rows > DECODE_ROWS && may_widen(part, part->w) && (!part->up || may_widen(part, part->up)))
        return w->kind > SG_PACK_F32 ? SG_FORM_W2 : SG_FORM_W1;
    if (w->kind >= SG_PACK_F32) return SG_FORM_XF;
    return sg_pack_run(w->kind) == 16 ? (fine ? SG_FORM_X16_FINE : SG_FORM_X16_RAISED)
           : fine                 ? SG_FORM_X32_FINE
                                  : SG_FORM_X32_RAISED;
}

static uint32_t forms_of(const struct sg_kernels *k, const struct sg_stage *st, uint32_t rows)
{
    uint32_t forms = 0;
    for (uint32_t i = 0; i < st->parts_n; i++) {
        forms |= 1u << form_of(k, &st->parts[i], st->parts[i].w, rows);
        if (st->parts[i].up) forms |= 1u << form_of(k, &st->parts[i], st->parts[i].up, rows);
    }
    return forms;
}

/* Where a form of n rows begins: those that are wanted lie one after the other. */
static size_t form_at(const struct sg_stage *st, uint32_t forms, enum sg_form form, size_t n)
{
    size_t at = 0;
    for (unsigned f = 0; f < (unsigned)form; f++)
        if (forms >> f & 1u) at += lines(form_bytes(st, (enum sg_form)f, n));
    return at;
}

/* Rows are counted in whole wide tiles: the area has room for a multiple of them. */
size_t sg_matrix_x_bytes(const struct sg_cpu_program *p, const struct sg_stage *st)
{
    const struct sg_kernels *k = sg_program_kernels(p);
    size_t few = form_at(st, forms_of(k, st, 1), SG_FORM_N, 1),
           many = form_at(st, forms_of(k, st, UINT32_MAX), SG_FORM_N, SG_WIDE) / SG_WIDE + 1;
    return (few > many ? few : many) + LINES;
}

/* Bytes of the widest group of a stage in wide form. */
static size_t wide_bytes(const struct sg_stage *st)
{
    uint32_t terms = 1;
    for (uint32_t i = 0; i < st->parts_n; i++)
        if (wide_terms(st->parts[i].w) > 1 || (st->parts[i].up && wide_terms(st->parts[i].up) > 1)) terms = 2;
    return sg_wide_size(st->k, terms) * sizeof(uint16_t);
}

/* Groups of the largest wide panel. */
static uint32_t wide_groups(const struct sg_stage *st)
{
    size_t n = WIDE_PANEL_BYTES / wide_bytes(st);
    return n < PAIR ? PAIR : n > WIDE_PANEL ? WIDE_PANEL : (uint32_t)(n / PAIR * PAIR);
}

static size_t open_bytes(const struct sg_cpu_program *p, const struct sg_stage *st)
{
    size_t each = 0, wide = wide_groups(st) * wide_bytes(st);
    for (uint32_t i = 0; i < st->parts_n; i++) {
        const struct sg_part *part = &st->parts[i];
        for (const struct sg_packed *w = part->w; w; w = w == part->w ? part->up : NULL)
            if (sg_open_bytes(w->kind, st->k) > each) each = sg_open_bytes(w->kind, st->k);
    }
    return sg_program_kernels(p)->wide && wide > PAIR * lines(each) ? wide : PAIR * lines(each);
}

static size_t out_bytes(void)
{
    return lines(
        (SG_TILE * PANEL_MAX > WIDE_STEP * WIDE_PANEL ? SG_TILE * PANEL_MAX : WIDE_STEP * WIDE_PANEL) *
        SG_GROUP * sizeof(float));
}

size_t sg_matrix_thread_bytes(const struct sg_cpu_program *p, const struct sg_stage *st)
{
    return LINES + lines(SG_WIDE * sizeof(float) * st->k) + SG_FEW * lines(sg_matrix_x_bytes(p, st)) +
           2 * open_bytes(p, st) + 2 * out_bytes();
}

static struct room room_of(const struct sg_pass *a, const struct sg_stage *st, uint32_t thread)
{
    uint8_t *p = a->p->threads[thread];
    struct room r = {.stamp = (uint64_t *)(void *)p};
    p += LINES;
    r.rows = (float *)(void *)p;
    p += lines(SG_WIDE * sizeof(float) * st->k);
    r.x = p;
    p += SG_FEW * lines(sg_matrix_x_bytes(a->p, st));
    for (int i = 0; i < 2; i++, p += open_bytes(a->p, st)) r.open[i] = p;
    for (int i = 0; i < 2; i++, p += out_bytes()) r.out[i] = (float *)(void *)p;
    return r;
}

/* --- preparing --- */

/* Rows of one tile of a form. */
static uint32_t form_tile(enum sg_form form) { return is_wide(form) ? SG_WIDE : SG_TILE; }

/* Rows that one item prepares: whole tiles of every form. */
static uint32_t prepare_rows(const struct sg_pass *a, const struct sg_stage *st)
{
    uint32_t forms = forms_of(sg_pass_kernels(a), st, sg_stage_rows(a, st)), wide = 3u << SG_FORM_W1;
    return !(forms & wide) ? SG_TILE : forms & ~wide ? WIDE_PREPARE : SG_WIDE;
}

/* Rows [t, t + n), at most one tile, in one form. */
static void prepare_tile(const struct sg_pass *a, const struct sg_stage *st, enum sg_form form, uint32_t t,
                         uint32_t n, float *rows, uint8_t *to)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    size_t stride;
    const float *from = sg_cpu_rows(a, st->x, t, &stride);
    if (st->norm.op) {
        for (uint32_t i = 0; i < n; i++)
            sg_row_norm(k, &st->norm, from + i * stride, NULL, st->k, rows + (size_t)i * st->k);
        from = rows;
        stride = st->k;
    }
    if (is_wide(form))
        k->wide_rows(from, stride, n, st->k, form_terms(form), (uint16_t *)(void *)to);
    else if (form == SG_FORM_XF)
        k->spread(from, stride, n, st->k, (float *)(void *)to);
    else
        k->quant(from, stride, n, st->k, form_block(form), form_fine(form), to);
}

/* Rows [t, t + n) in every form, of `all` rows; t begins a tile of each. */
static void prepare(const struct sg_pass *a, const struct sg_stage *st, uint32_t t, uint32_t n, uint32_t all,
                    float *rows, uint8_t *x)
{
    uint32_t forms = forms_of(sg_pass_kernels(a), st, all);
    for (unsigned f = 0; f < SG_FORM_N; f++) {
        enum sg_form form = (enum sg_form)f;
        uint8_t *to = x + form_at(st, forms, form, all);
        for (uint32_t i = t, each = form_tile(form); forms >> f & 1u && i < t + n; i += each)
            prepare_tile(a, st, form, i, t + n - i < each ? t + n - i : each, rows,
                         to + form_bytes(st, form, i));
    }
}

/* The tile that begins at row t, in this form. */
static const void *tile_at(const struct sg_stage *st, uint32_t forms, enum sg_form form, const uint8_t *x,
                           uint32_t all, uint32_t t)
{
    return x + form_at(st, forms, form, all) + form_bytes(st, form, t);
}

/* --- finishing: bias, adapter, activation, pair, residual --- */

struct block { uint32_t t, nt, row, rows; };     /* of the result: rows of the batch, rows of the weight */

static void side_add(const struct sg_pass *a, const struct sg_part *part, int up, const struct block *b,
                     float *out, size_t ld)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    const float *bias = up ? part->bias_up : part->bias;
    for (uint32_t i = 0; bias && i < b->nt; i++) k->add(out + i * ld, bias + b->row, b->rows, out + i * ld);
    if (!a->loras) return;
    const float *delta = a->p->lora_area + (up ? part->lora_up : part->lora) + b->row;
    for (uint32_t i = 0; i < b->nt; i++)
        k->add(out + i * ld, delta + (size_t)(b->t + i) * a->p->lora_columns, b->rows, out + i * ld);
}

static void finish(const struct sg_pass *a, const struct sg_part *part, const struct block *b, float *out,
                   float *up, size_t ld)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    size_t to_stride, res_stride = 0;
    float *to = sg_cpu_rows(a, (struct sg_operand){part->out, 0, 0}, b->t, &to_stride) + b->row;
    const float *res =
        part->residual.value >= 0 ? sg_cpu_rows(a, part->residual, b->t, &res_stride) + b->row : NULL;
    side_add(a, part, 0, b, out, ld);
    if (part->up) side_add(a, part, 1, b, up, ld);
    for (uint32_t i = 0; i < b->nt; i++) {
        float *y = to + i * to_stride, *x = out + i * ld;
        if (part->up) {
            k->glu(part->act, x, up + i * ld, b->rows, y);
            continue;
        }
        if (part->act != SG_ACT_NONE) k->act(part->act, x, b->rows, x);
        if (res) k->add(x, res + i * res_stride, b->rows, y);
        else memcpy(y, x, b->rows * sizeof *y);
    }
}

/* Asks for the lines that finish will read and write, so that they come while the product is taken. */
static void finish_ask(const struct sg_pass *a, const struct sg_part *part, const struct block *b)
{
    size_t to_stride, res_stride = 0;
    const float *to = sg_cpu_rows(a, (struct sg_operand){part->out, 0, 0}, b->t, &to_stride) + b->row, *res = NULL;
    if (part->residual.value >= 0) res = sg_cpu_rows(a, part->residual, b->t, &res_stride) + b->row;
    for (uint32_t i = 0; i < b->nt; i++)
        for (uint32_t j = 0; j < b->rows; j += LINES / sizeof *to) {
            __builtin_prefetch(to + i * to_stride + j, 1);
            if (res) __builtin_prefetch(res + i * res_stride + j, 0);
        }
}

/* --- items --- */

static uint32_t part_items(const struct sg_part *part, uint32_t each)
{
    return (part->w->groups + each - 1) / each;
}

static uint32_t mm_items(const struct sg_stage *st, uint32_t each)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < st->parts_n; i++) n += part_items(&st->parts[i], each);
    return n;
}

/* Groups of one item: small enough that every thread gets several. A wide panel wants to be large, for the
 * activations pass once per panel, and the last one taken must not find the other threads idle. */
static uint32_t item_groups(const struct sg_pass *a, const struct sg_stage *st)
{
    const struct sg_cpu_unit *u = (const struct sg_cpu_unit *)(const void *)a->p->base.unit;
    uint32_t all = 0, threads = sg_pool_threads(u->pool), rows = sg_stage_rows(a, st);
    for (uint32_t i = 0; i < st->parts_n; i++) all += st->parts[i].w->groups;
    if (u->k.wide && rows > DECODE_ROWS) {
        uint32_t best = PAIR, least = UINT32_MAX;
        for (uint32_t n = wide_groups(st); n >= PAIR; n -= PAIR) {
            uint32_t cost = (mm_items(st, n) + threads - 1) / threads * n;
            if (cost < least) {
                least = cost;
                best = n;
            }
        }
        return best;
    }
    uint32_t n = all / (threads * ITEMS_PER_THREAD), least = rows > SG_FEW ? PAIR : 1;
    return n < least ? least : n > PANEL_MAX ? PANEL_MAX : n / least * least;
}

uint32_t sg_matrix_items(const struct sg_pass *a, const struct sg_stage *st)
{
    uint32_t rows = sg_stage_rows(a, st), each;
    if (!rows) return 0;
    switch (st->kind) {
    case SG_ST_LORA:
        return a->loras ? rows : 0;
    case SG_ST_PREP:
        each = prepare_rows(a, st);
        return rows <= SG_FEW ? 0 : (rows + each - 1) / each;
    default:
        return mm_items(st, item_groups(a, st));
    }
}

/* Groups [g, g + n) of a part for few rows. */
static void few_work(struct sg_pass *a, const struct sg_stage *st, const struct sg_part *part, uint32_t g,
                     uint32_t n, uint32_t thread)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    struct room room = room_of(a, st, thread);
    uint32_t rows = sg_stage_rows(a, st);
    uint64_t stamp = a->p->pass_number << 20 | (uint64_t)(st - a->p->stages + 1);
    if (*room.stamp != stamp) {
        prepare(a, st, 0, rows, rows, room.rows, room.x);
        *room.stamp = stamp;
    }
    struct block b = {.nt = rows, .row = g * SG_GROUP};
    for (int up = 0; up < (part->up ? 2 : 1); up++) {
        const struct sg_packed *w = up ? part->up : part->w;
        b.rows = w->rows - b.row < n * SG_GROUP ? w->rows - b.row : n * SG_GROUP;
        enum sg_form form = form_of(k, part, w, rows);
        const void *x = tile_at(st, forms_of(k, st, rows), form, room.x, rows, 0);
        k->few[w->kind](w->data + g * w->group_bytes, st->k, b.rows, x, rows, form_fine(form), room.out[up],
                        PANEL_MAX * SG_GROUP);
    }
    finish(a, part, &b, room.out[0], room.out[1], PANEL_MAX * SG_GROUP);
}

/* Groups [g, g + n) in open form, one after the other. */
static const uint8_t *opened(const struct sg_kernels *k, const struct sg_packed *w, uint32_t g, uint32_t n,
                             uint8_t *room)
{
    const uint8_t *data = w->data + g * w->group_bytes;
    if (!k->open[w->kind]) return data;
    for (uint32_t i = 0; i < n; i++)
        k->open[w->kind](data + i * w->group_bytes, w->k, room + i * sg_open_bytes(w->kind, w->k));
    return room;
}

static const uint8_t *wide_opened(const struct sg_kernels *k, const struct sg_packed *w, uint32_t g,
                                  uint32_t n, uint8_t *room)
{
    uint32_t terms = wide_terms(w);
    size_t each = sg_wide_size(w->k, terms);
    for (uint32_t i = 0; i < n; i++)
        k->wide_open[w->kind](w->data + (g + i) * w->group_bytes, w->k, terms,
                              (uint16_t *)(void *)room + i * each);
    return room;
}

/* One side of a part: its weights for one group, and where its activations are. */
struct side { const struct sg_packed *w; const uint8_t *open, *x; enum sg_form form; };

static struct side side_of(const struct sg_pass *a, const struct sg_stage *st, const struct sg_part *part,
                           const struct sg_packed *w, uint32_t g, uint32_t n, uint8_t *room)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    uint32_t rows = sg_stage_rows(a, st);
    struct side s = {.w = w, .form = form_of(k, part, w, rows)};
    s.open = is_wide(s.form) ? wide_opened(k, w, g, n, room) : opened(k, w, g, n, room);
    s.x = a->p->x_area + form_at(st, forms_of(k, st, rows), s.form, rows);
    return s;
}

static void tile_mm(const struct sg_kernels *k, const struct sg_stage *st, const struct side *s,
                    const struct block *b, float *out)
{
    const uint8_t *x = s->x + form_bytes(st, s->form, b->t);
    if (s->form == SG_FORM_XF)
        k->few[SG_PACK_F32](s->open, st->k, b->rows, x, b->nt, 0, out, PAIR * SG_GROUP);
    else
        k->tile[sg_open_of(s->w->kind)](s->open, st->k, b->rows, x, b->nt, form_fine(s->form), out, PAIR * SG_GROUP);
}

/* Asks for share i of n of the packed pair of groups from g on, the next one to be opened. */
static void pair_ask(const struct sg_packed *w, uint32_t g, uint32_t i, uint32_t n)
{
    if (!w || g >= w->groups) return;
    const size_t bytes = (w->groups - g < PAIR ? w->groups - g : PAIR) * w->group_bytes, each = lines(bytes / n + 1);
    for (size_t at = i * each; at < bytes && at < (i + 1) * each; at += LINES)
        __builtin_prefetch(w->data + g * w->group_bytes + at, 0, 2);
}

/* Groups [g, g + n) of a part for many rows: blocks of tiles that stay in the second-level cache, a pair of
 * groups at a time. */
static void many_work(struct sg_pass *a, const struct sg_stage *st, const struct sg_part *part, uint32_t g,
                      uint32_t n, uint32_t thread)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    struct room room = room_of(a, st, thread);
    uint32_t all = sg_stage_rows(a, st),
             many = (uint32_t)(TOKEN_BLOCK_BYTES /
                               (form_bytes(st, form_of(k, part, part->w, all), SG_TILE) + 1)) *
                 SG_TILE;
    if (many < 8 * SG_TILE) many = 8 * SG_TILE;
    for (uint32_t from = 0; from < all; from += many)
        for (uint32_t i = g; i < g + n; i += PAIR) {
            uint32_t left = part->w->rows - i * SG_GROUP, groups = g + n - i < PAIR ? g + n - i : PAIR;
            struct block b = {.row = i * SG_GROUP,
                              .rows = left < groups * SG_GROUP ? left : groups * SG_GROUP};
            struct side w = side_of(a, st, part, part->w, i, groups, room.open[0]), up = w;
            if (part->up) up = side_of(a, st, part, part->up, i, groups, room.open[1]);
            for (b.t = from; b.t < all && b.t < from + many; b.t += SG_TILE) {
                b.nt = all - b.t < SG_TILE ? all - b.t : SG_TILE;
                const uint32_t share = (b.t - from) / SG_TILE, shares = (all - from < many ? all - from : many) / SG_TILE + 1;
                finish_ask(a, part, &b);
                pair_ask(part->w, i + PAIR, share, shares);
                pair_ask(part->up, i + PAIR, share, shares);
                tile_mm(k, st, &w, &b, room.out[0]);
                if (part->up) tile_mm(k, st, &up, &b, room.out[1]);
                finish(a, part, &b, room.out[0], room.out[1], PAIR * SG_GROUP);
                if (sg_pass_stops(a)) return;
            }
        }
}

static void wide_mm(const struct sg_kernels *k, const struct sg_stage *st, const struct side *s,
                    uint32_t groups, const struct block *b, float *out)
{
    struct sg_wide m = {.k = st->k,
                        .groups = groups,
                        .tiles = (b->nt + SG_WIDE - 1) / SG_WIDE,
                        .w_terms = wide_terms(s->w),
                        .x_terms = form_terms(s->form)};
    k->wide_mm(&m, (const uint16_t *)(const void *)s->open,
               (const uint16_t *)(const void *)(s->x + form_bytes(st, s->form, b->t)), out,
               WIDE_PANEL * SG_GROUP);
}

/* Groups [g, g + n) of a part for many rows in wide form: the panel stays in the second-level cache, tiles of
 * activations pass by. */
static void wide_work(struct sg_pass *a, const struct sg_stage *st, const struct sg_part *part, uint32_t g,
                      uint32_t n, uint32_t thread)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    struct room room = room_of(a, st, thread);
    uint32_t all = sg_stage_rows(a, st), left = part->w->rows - g * SG_GROUP;
    struct block b = {.row = g * SG_GROUP, .rows = left < n * SG_GROUP ? left : n * SG_GROUP};
    struct side w = side_of(a, st, part, part->w, g, n, room.open[0]), up = w;
    if (part->up) up = side_of(a, st, part, part->up, g, n, room.open[1]);
    k->wide_begin();
    for (; b.t < all; b.t += WIDE_STEP) {
        b.nt = all - b.t < WIDE_STEP ? all - b.t : WIDE_STEP;
        wide_mm(k, st, &w, n, &b, room.out[0]);
        if (part->up) wide_mm(k, st, &up, n, &b, room.out[1]);
        finish(a, part, &b, room.out[0], room.out[1], WIDE_PANEL * SG_GROUP);
        if (sg_pass_stops(a)) return;
    }
}

/* --- adapters: delta = (x A^T) B^T of every part, fp32 --- */

static void lora_side(const struct sg_pass *a, const struct sg_op *op, const struct sg_span *span,
                      const float *x, uint32_t k_n, float *low, uint32_t low_n, float *delta)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    const struct sg_weight *w = &op->u.linear.weight;
    memset(delta, 0, w->rows * sizeof *delta);
    for (uint32_t l = 0; l < span->loras_n; l++) {
        const struct sg_lora_pair *pair = sg_lora_find(span->loras[l], a->p->base.graph->tensors[w->tensor]);
        for (uint32_t from = 0; pair && from < pair->rank; from += low_n) {
            uint32_t n = pair->rank - from < low_n ? pair->rank - from : low_n;
            for (uint32_t r = 0; r < n; r++) low[r] = k->dot(x, pair->a + (size_t)(from + r) * k_n, k_n);
            for (uint32_t i = 0; i < w->rows; i++)
                delta[i] += k->dot(low, pair->b + (size_t)(w->at + i) * pair->rank + from, n);
        }
    }
}

static void lora_work(struct sg_pass *a, const struct sg_stage *st, uint32_t row, uint32_t thread)
{
    struct room room = room_of(a, st, thread);
    size_t stride;
    const float *x = sg_cpu_rows(a, st->x, row, &stride);
    *room.stamp = 0;
    if (st->norm.op) {
        sg_row_norm(sg_pass_kernels(a), &st->norm, x, NULL, st->k, room.rows);
        x = room.rows;
    }
    const struct sg_span *span = &a->spans[a->p->row_span[st->wanted ? a->p->wanted[row] : row]];
    for (uint32_t i = 0; i < st->parts_n; i++) {
        const struct sg_part *part = &st->parts[i];
        float *delta = a->p->lora_area + (size_t)row * a->p->lora_columns;
        lora_side(a, part->op, span, x, st->k, room.out[0], SG_TILE * 16 * PANEL_MAX, delta + part->lora);
        if (part->op_up)
            lora_side(a, part->op_up, span, x, st->k, room.out[0], SG_TILE * 16 * PANEL_MAX,
                      delta + part->lora_up);
    }
}

void sg_matrix_work(struct sg_pass *a, const struct sg_stage *st, uint32_t item, uint32_t thread)
{
    uint32_t rows = sg_stage_rows(a, st);
    if (st->kind == SG_ST_LORA) {
        lora_work(a, st, item, thread);
        return;
    }
    if (st->kind == SG_ST_PREP) {
        struct room room = room_of(a, st, thread);
        uint32_t n = prepare_rows(a, st), t = item * n;
        *room.stamp = 0;
        prepare(a, st, t, rows - t < n ? rows - t : n, rows, room.rows, a->p->x_area);
        return;
    }
    uint32_t each = item_groups(a, st), i = 0;
    while (item >= part_items(&st->parts[i], each)) item -= part_items(&st->parts[i++], each);
    uint32_t g = item * each, left = st->parts[i].w->groups - g;
    const struct sg_part *part = &st->parts[i];
    if (rows <= SG_FEW)
        few_work(a, st, part, g, left < each ? left : each, thread);
    else if (is_wide(form_of(sg_pass_kernels(a), part, part->w, rows)))
        wide_work(a, st, part, g, left < each ? left : each, thread);
    else
        many_work(a, st, part, g, left < each ? left : each, thread);
}
