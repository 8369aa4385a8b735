/* cpu_matrix.c: matrix stages: quantise activations, multiply, and apply bias, adapters, activation and
 * residual.
 *
 * Up to sg_kernels.few_rows rows: every thread prepares the whole input itself (normalise, quantise: cheaper than a
 * barrier) and streams its share of the packed weights. More rows: a separate stage prepares tiles, and
 * each item unpacks a panel of weights once and multiplies it with all tiles. Both compute the same
 * sums in the same order for every row. Where the kernels have a fast bf16 form, passes of more than
 * DECODE_ROWS rows use it: weights are unpacked to bf16 panel by panel, and the inner loop has no work
 * per quantisation block.
 * SPDX-License-Identifier: MIT */
#include <assert.h>
#include <string.h>

#include "unit/cpu/cpu_types.h"

/* Tuning: items per thread, groups per item, bytes of activations that stay in L2, rows up to which a
 * pass counts as decoding. */
enum {
    ITEMS_PER_THREAD = 8,
    PANEL_MAX = 4,
    LINE_BYTES = 64,
    TOKEN_BLOCK_BYTES = 1 << 20,
    DECODE_ROWS = 16,
    GROUP_PAIR = 2,
    BF16_PANEL = 8,             /* groups of a bf16 panel */
    BF16_PANEL_BYTES = 3 << 18, /* bytes of such a panel: it stays in L2 beside a tile of activations */
    BF16_STEP = 2 * SG_BF16_ROWS,    /* rows per bf16 product */
    BF16_PREPARE = 48           /* rows: whole tiles of both forms (12 and 16) */
};

static_assert((int)SG_FEW_MAX <= (int)DECODE_ROWS, "`few` has no SG_OUTLIER");
static_assert((int)SG_FEW_MAX <= (int)SG_BF16_ROWS, "mm_scratch.rows holds all rows of `few`");

/* Scratch of one thread; reused by all stages. */
struct mm_scratch {
    uint64_t *prepared_id;                 /* pass and stage whose input is prepared in x; 0: none */
    float *rows;      /* normalised rows [SG_BF16_ROWS][k] */
    uint8_t *x;                      /* prepared forms of up to SG_FEW_MAX rows */
    uint8_t *open[2]; /* two unpacked operands (gate and up): GROUP_PAIR groups each, or a bf16 panel */
    float *out[2];    /* two results: [SG_FEW_MAX][16 * PANEL_MAX], or [BF16_STEP][16 * BF16_PANEL] */
};

static size_t round_line(size_t bytes) { return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; }

/* Columns that share a scale in this form. */
static uint32_t form_block(enum sg_x_form form)
{
    return form == SG_FORM_X16_FINE || form == SG_FORM_X16_OUTLIER ? 16 : 32;
}
static int is_bf16(enum sg_x_form form) { return form >= SG_FORM_BF16_1; }
static uint32_t form_terms(enum sg_x_form form) { return form == SG_FORM_BF16_2 ? 2 : 1; }
static uint32_t x_precision(enum sg_x_form form) { return form <= SG_FORM_X16_FINE ? SG_FINE : SG_OUTLIER; }

/* Bytes of n rows of a form; bf16: of the tiles that contain them. */
static size_t form_bytes(const struct sg_cpu_stage *st, enum sg_x_form form, size_t n)
{
    if (is_bf16(form))
        return (n + SG_BF16_ROWS - 1) / SG_BF16_ROWS * sg_bf16_size(st->k, form_terms(form)) * sizeof(uint16_t);
    return form == SG_FORM_XF ? n * st->k * sizeof(float)
                              : sg_tile_bytes(st->k, form_block(form), x_precision(form), n);
}

/* bf16 terms of a weight: two for F16, whose 11 significant bits do not fit in one. */
static uint32_t bf16_terms(const struct sg_packed_weight *w) { return w->kind == SG_PACK_F16 ? 2 : 1; }

/* F16 and BF16 weights, and quantised ones that need not stay fine. F32 weights keep fp32 products. */
static int bf16_allowed(const struct sg_cpu_linear *lin, const struct sg_packed_weight *w)
{
    return w->kind > SG_PACK_F32 || (w->kind < SG_PACK_F32 && !lin->fine);
}

/* The form of activations for a linear in a pass of `rows` rows. Up to DECODE_ROWS rows every product uses fine activations
 * (SG_FINE): it is bound by reading weights anyway, and verification of draft tokens then uses the arithmetic of single
 * steps. Longer passes use 8 bits with outliers, or bf16. bf16 has 8 significant bits, so float weights take activations in
 * two terms; the few products that must stay fine remain in tiles. */
static enum sg_x_form form_of(const struct sg_cpu_program *p, const struct sg_cpu_linear *lin, const struct sg_packed_weight *w,
                            uint32_t rows)
{
    const struct sg_kernels *k = sg_cpu_program_kernels(p);
    if (p->invariant && rows > DECODE_ROWS) rows = DECODE_ROWS; /* the form must not depend on the number of rows */
    int fine = lin->fine || rows <= DECODE_ROWS;
    if (k->wide && rows > DECODE_ROWS && bf16_allowed(lin, lin->w) && (!lin->up || bf16_allowed(lin, lin->up)))
        return w->kind > SG_PACK_F32 ? SG_FORM_BF16_2 : SG_FORM_BF16_1;
    if (w->kind >= SG_PACK_F32) return SG_FORM_XF;
    return sg_pack_scale_cols(w->kind) == 16 ? (fine ? SG_FORM_X16_FINE : SG_FORM_X16_OUTLIER)
           : fine                 ? SG_FORM_X32_FINE
                                  : SG_FORM_X32_OUTLIER;
}

/* Bit set of the forms that the linears of a stage need for `rows` rows. */
static uint32_t forms_of(const struct sg_cpu_program *p, const struct sg_cpu_stage *st, uint32_t rows)
{
    uint32_t forms = 0;
    for (uint32_t i = 0; i < st->linears_n; i++) {
        forms |= 1u << form_of(p, &st->linears[i], st->linears[i].w, rows);
        if (st->linears[i].up) forms |= 1u << form_of(p, &st->linears[i], st->linears[i].up, rows);
    }
    return forms;
}

/* Byte offset of a form: the forms that the stage needs follow each other, each aligned to a cache
 * line. */
static size_t form_offset(const struct sg_cpu_stage *st, uint32_t forms, enum sg_x_form form, size_t n)
{
    size_t at = 0;
    for (unsigned f = 0; f < (unsigned)form; f++)
        if (forms >> f & 1u) at += round_line(form_bytes(st, (enum sg_x_form)f, n));
    return at;
}

/* Rows are counted in whole bf16 tiles; the area is allocated for a multiple of them. */
size_t sg_matrix_x_bytes(const struct sg_cpu_program *p, const struct sg_cpu_stage *st)
{
    size_t few = form_offset(st, forms_of(p, st, 1), SG_FORM_N, 1),
           many = form_offset(st, forms_of(p, st, UINT32_MAX), SG_FORM_N, SG_BF16_ROWS) / SG_BF16_ROWS + 1;
    return (few > many ? few : many) + LINE_BYTES;
}

/* Bytes of the largest unpacked bf16 group of a stage. */
static size_t bf16_group_bytes(const struct sg_cpu_stage *st)
{
    uint32_t terms = 1;
    for (uint32_t i = 0; i < st->linears_n; i++)
        if (bf16_terms(st->linears[i].w) > 1 || (st->linears[i].up && bf16_terms(st->linears[i].up) > 1)) terms = 2;
    return sg_bf16_size(st->k, terms) * sizeof(uint16_t);
}

/* Groups of the largest bf16 panel: as many as fit BF16_PANEL_BYTES, in pairs, at most BF16_PANEL. */
static uint32_t bf16_panel_groups(const struct sg_cpu_stage *st)
{
    size_t n = BF16_PANEL_BYTES / bf16_group_bytes(st);
    return n < GROUP_PAIR ? GROUP_PAIR : n > BF16_PANEL ? BF16_PANEL : (uint32_t)(n / GROUP_PAIR * GROUP_PAIR);
}

/* Bytes of one unpacked operand: a pair of groups, or a bf16 panel. */
static size_t unpack_bytes(const struct sg_cpu_program *p, const struct sg_cpu_stage *st)
{
    size_t each = 0, wide = bf16_panel_groups(st) * bf16_group_bytes(st);
    for (uint32_t i = 0; i < st->linears_n; i++) {
        const struct sg_cpu_linear *lin = &st->linears[i];
        for (const struct sg_packed_weight *w = lin->w; w; w = w == lin->w ? lin->up : NULL)
            if (sg_unpacked_bytes(w->kind, st->k) > each) each = sg_unpacked_bytes(w->kind, st->k);
    }
    return sg_cpu_program_kernels(p)->wide && wide > GROUP_PAIR * round_line(each) ? wide : GROUP_PAIR * round_line(each);
}

/* Bytes of one result buffer: the larger of both shapes. */
static size_t out_bytes(void)
{
    return round_line(
        (SG_FEW_MAX * PANEL_MAX > BF16_STEP * BF16_PANEL ? SG_FEW_MAX * PANEL_MAX : BF16_STEP * BF16_PANEL) *
        SG_GROUP * sizeof(float));
}

/* Must match the layout of scratch_of. */
size_t sg_matrix_thread_bytes(const struct sg_cpu_program *p, const struct sg_cpu_stage *st)
{
    return LINE_BYTES + round_line(SG_BF16_ROWS * sizeof(float) * st->k) + SG_FEW_MAX * round_line(sg_matrix_x_bytes(p, st)) +
           2 * unpack_bytes(p, st) + 2 * out_bytes();
}

/* Divides the scratch of a thread. */
static struct mm_scratch scratch_of(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t thread)
{
    uint8_t *p = a->p->threads[thread];
    struct mm_scratch r = {.prepared_id = (uint64_t *)(void *)p};
    p += LINE_BYTES;
    r.rows = (float *)(void *)p;
    p += round_line(SG_BF16_ROWS * sizeof(float) * st->k);
    r.x = p;
    p += SG_FEW_MAX * round_line(sg_matrix_x_bytes(a->p, st));
    for (int i = 0; i < 2; i++, p += unpack_bytes(a->p, st)) r.open[i] = p;
    for (int i = 0; i < 2; i++, p += out_bytes()) r.out[i] = (float *)(void *)p;
    return r;
}

/* Tile height, in rows of x, of the kernels that read x in this form, in a pass of `all` rows: `few` of packed weights takes all
 * of its rows as one tile. */
static uint32_t form_tile_rows(const struct sg_kernels *k, enum sg_x_form form, uint32_t all)
{
    return is_bf16(form) ? SG_BF16_ROWS : form != SG_FORM_XF && all <= k->few_rows ? all : SG_TILE;
}

/* Rows that one item prepares: whole tiles of every form that the stage needs. */
static uint32_t prepare_rows(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st)
{
    uint32_t forms = forms_of(a->p, st, sg_cpu_stage_rows(a, st)), wide = 3u << SG_FORM_BF16_1;
    return !(forms & wide) ? SG_TILE : forms & ~wide ? BF16_PREPARE : SG_BF16_ROWS;
}

/* Prepares rows [t, t + n), at most one tile, in one form. rows: scratch for the normalised rows. */
static void prepare_tile(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st, enum sg_x_form form, uint32_t t,
                         uint32_t n, float *rows, uint8_t *to)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    size_t stride;
    const float *from = sg_cpu_operand_row(a, st->x, t, &stride);
    if (st->norm.op) {
        for (uint32_t i = 0; i < n; i++)
            sg_row_norm(k, &st->norm, from + i * stride, NULL, st->k, rows + (size_t)i * st->k);
        from = rows;
        stride = st->k;
    }
    if (is_bf16(form))
        k->bf16_rows(from, stride, n, st->k, form_terms(form), (uint16_t *)(void *)to);
    else if (form == SG_FORM_XF)
        k->spread(from, stride, n, st->k, (float *)(void *)to);
    else
        k->quant(from, stride, n, st->k, form_block(form), x_precision(form), to);
}

/* Prepares rows [t, t + n) in every form, of `all` rows; t is the first row of a tile of every form. */
static void prepare(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t t, uint32_t n, uint32_t all,
                    float *rows, uint8_t *x)
{
    uint32_t forms = forms_of(a->p, st, all);
    for (unsigned f = 0; f < SG_FORM_N; f++) {
        enum sg_x_form form = (enum sg_x_form)f;
        uint8_t *to = x + form_offset(st, forms, form, all);
        for (uint32_t i = t, each = form_tile_rows(sg_cpu_pass_kernels(a), form, all); forms >> f & 1u && i < t + n; i += each)
            prepare_tile(a, st, form, i, t + n - i < each ? t + n - i : each, rows,
                         to + form_bytes(st, form, i));
    }
}

/* The prepared tile that begins at row t, in this form. */
static const void *tile_at(const struct sg_cpu_stage *st, uint32_t forms, enum sg_x_form form, const uint8_t *x,
                           uint32_t all, uint32_t t)
{
    return x + form_offset(st, forms, form, all) + form_bytes(st, form, t);
}

/* part of the result: rows [t, t + nt) of the batch, rows [row, row + rows) of the weight */
struct out_block { uint32_t t, nt, row, rows; };

/* Adds bias and adapter delta to the result of one operand (up: of the second one). */
static void add_bias_lora(const struct sg_cpu_pass *a, const struct sg_cpu_linear *lin, int up, const struct out_block *b,
                     float *out, size_t ld)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    const float *bias = up ? lin->bias_up : lin->bias;
    for (uint32_t i = 0; bias && i < b->nt; i++) k->add(out + i * ld, bias + b->row, b->rows, out + i * ld);
    if (!a->loras) return;
    const float *delta = a->p->lora_area + (up ? lin->lora_up : lin->lora) + b->row;
    for (uint32_t i = 0; i < b->nt; i++)
        k->add(out + i * ld, delta + (size_t)(b->t + i) * a->p->lora_columns, b->rows, out + i * ld);
}

/* Bias, adapter, gated activation or activation, residual; writes the result to its value. up NULL or
 * unused without a pair. */
static void epilogue(const struct sg_cpu_pass *a, const struct sg_cpu_linear *lin, const struct out_block *b, float *out,
                   float *up, size_t ld)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    size_t to_stride, res_stride = 0;
    float *to = sg_cpu_operand_row(a, (struct sg_operand){lin->out, 0, 0}, b->t, &to_stride) + b->row;
    const float *res =
        lin->residual.value >= 0 ? sg_cpu_operand_row(a, lin->residual, b->t, &res_stride) + b->row : NULL;
    add_bias_lora(a, lin, 0, b, out, ld);
    /* gate and up have separate biases and adapters */
    if (lin->up) add_bias_lora(a, lin, 1, b, up, ld);
    for (uint32_t i = 0; i < b->nt; i++) {
        float *y = to + i * to_stride, *x = out + i * ld;
        if (lin->up) {
            k->glu(lin->act, x, up + i * ld, b->rows, y);
            continue;
        }
        if (lin->act != SG_ACT_NONE) k->act(lin->act, x, b->rows, x);
        if (res) k->add(x, res + i * res_stride, b->rows, y);
        else memcpy(y, x, b->rows * sizeof *y);
    }
}

/* Prefetches the lines that the epilogue will read and write, while the product is computed. */
static void epilogue_prefetch(const struct sg_cpu_pass *a, const struct sg_cpu_linear *lin, const struct out_block *b)
{
    size_t to_stride, res_stride = 0;
    const float *to = sg_cpu_operand_row(a, (struct sg_operand){lin->out, 0, 0}, b->t, &to_stride) + b->row, *res = NULL;
    if (lin->residual.value >= 0) res = sg_cpu_operand_row(a, lin->residual, b->t, &res_stride) + b->row;
    for (uint32_t i = 0; i < b->nt; i++)
        for (uint32_t j = 0; j < b->rows; j += LINE_BYTES / sizeof *to) {
            __builtin_prefetch(to + i * to_stride + j, 1);
            if (res) __builtin_prefetch(res + i * res_stride + j, 0);
        }
}

/* Items of one linear, and of all linears of a stage, at `each` groups per item. */
static uint32_t linear_items(const struct sg_cpu_linear *lin, uint32_t each)
{
    return (lin->w->groups + each - 1) / each;
}

static uint32_t mm_items(const struct sg_cpu_stage *st, uint32_t each)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < st->linears_n; i++) n += linear_items(&st->linears[i], each);
    return n;
}

/* Groups of weights per item, small enough that every thread gets several items. bf16 panels should be
 * large, since all activations pass once per panel; but the last items must not leave other threads
 * idle. So the size with the smallest total (rounds of items per thread times groups) is chosen. */
static uint32_t item_groups(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st)
{
    const struct sg_cpu_unit *u = (const struct sg_cpu_unit *)(const void *)a->p->base.unit;
    uint32_t all = 0, threads = sg_pool_threads(u->pool), rows = sg_cpu_stage_rows(a, st);
    for (uint32_t i = 0; i < st->linears_n; i++) all += st->linears[i].w->groups;
    if (u->k.wide && rows > DECODE_ROWS && !a->p->invariant) {
        uint32_t best = GROUP_PAIR, least = UINT32_MAX;
        for (uint32_t n = bf16_panel_groups(st); n >= GROUP_PAIR; n -= GROUP_PAIR) {
            uint32_t cost = (mm_items(st, n) + threads - 1) / threads * n;
            if (cost < least) {
                least = cost;
                best = n;
            }
        }
        return best;
    }
    uint32_t n = all / (threads * ITEMS_PER_THREAD), least = rows > u->k.few_rows ? GROUP_PAIR : 1;
    return n < least ? least : n > PANEL_MAX ? PANEL_MAX : n / least * least;
}

/* LORA: one item per row, if there are adapters. PREP: none for few rows, which every thread prepares
 * itself. */
uint32_t sg_matrix_items(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st)
{
    uint32_t rows = sg_cpu_stage_rows(a, st), each;
    if (!rows) return 0;
    switch (st->kind) {
    case SG_ST_LORA:
        return a->loras ? rows : 0;
    case SG_ST_PREP:
        each = prepare_rows(a, st);
        return rows <= sg_cpu_pass_kernels(a)->few_rows ? 0 : (rows + each - 1) / each;
    default:
        return mm_items(st, item_groups(a, st));
    }
}

/* Groups [g, g + n) of a linear, up to few_rows rows. */
static void few_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, const struct sg_cpu_linear *lin, uint32_t g,
                     uint32_t n, uint32_t thread)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    struct mm_scratch scratch = scratch_of(a, st, thread);
    uint32_t rows = sg_cpu_stage_rows(a, st);
    uint64_t id = a->p->pass_number << 20 | (uint64_t)(st - a->p->stages + 1);
    /* the same thread may execute several items of this stage: prepare the input once */
    if (*scratch.prepared_id != id) {
        prepare(a, st, 0, rows, rows, scratch.rows, scratch.x);
        *scratch.prepared_id = id;
    }
    struct out_block b = {.nt = rows, .row = g * SG_GROUP};
    for (int up = 0; up < (lin->up ? 2 : 1); up++) {
        const struct sg_packed_weight *w = up ? lin->up : lin->w;
        b.rows = w->rows - b.row < n * SG_GROUP ? w->rows - b.row : n * SG_GROUP;
        enum sg_x_form form = form_of(a->p, lin, w, rows);
        uint32_t each = form_tile_rows(k, form, rows);
        for (uint32_t t = 0; t < rows; t += each)
            k->few[w->kind](w->data + g * w->group_bytes, st->k, b.rows,
                            tile_at(st, forms_of(a->p, st, rows), form, scratch.x, rows, t), rows - t < each ? rows - t : each,
                            x_precision(form), scratch.out[up] + t * PANEL_MAX * SG_GROUP, PANEL_MAX * SG_GROUP);
    }
    epilogue(a, lin, &b, scratch.out[0], scratch.out[1], PANEL_MAX * SG_GROUP);
}

/* Unpacks groups [g, g + n) into buf, or returns the packed data if it is used as it is. */
static const uint8_t *unpack_groups(const struct sg_kernels *k, const struct sg_packed_weight *w, uint32_t g, uint32_t n,
                             uint8_t *scratch)
{
    const uint8_t *data = w->data + g * w->group_bytes;
    if (!k->open[w->kind]) return data;
    for (uint32_t i = 0; i < n; i++)
        k->open[w->kind](data + i * w->group_bytes, w->k, scratch + i * sg_unpacked_bytes(w->kind, w->k));
    return scratch;
}

/* Unpacks groups [g, g + n) to bf16 terms. */
static const uint8_t *unpack_bf16(const struct sg_kernels *k, const struct sg_packed_weight *w, uint32_t g,
                                  uint32_t n, uint8_t *scratch)
{
    uint32_t terms = bf16_terms(w);
    size_t each = sg_bf16_size(w->k, terms);
    for (uint32_t i = 0; i < n; i++)
        k->bf16_unpack[w->kind](w->data + (g + i) * w->group_bytes, w->k, terms,
                              (uint16_t *)(void *)scratch + i * each);
    return scratch;
}

/* One operand of a product: unpacked weights of some groups, and the prepared activations. */
struct mm_operand { const struct sg_packed_weight *w; const uint8_t *open, *x; enum sg_x_form form; };

/* Unpacks the weights of n groups and finds the activations in the form they need. */
static struct mm_operand operand_of(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st, const struct sg_cpu_linear *lin,
                           const struct sg_packed_weight *w, uint32_t g, uint32_t n, uint8_t *scratch)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    uint32_t rows = sg_cpu_stage_rows(a, st);
    struct mm_operand s = {.w = w, .form = form_of(a->p, lin, w, rows)};
    s.open = is_bf16(s.form) ? unpack_bf16(k, w, g, n, scratch) : unpack_groups(k, w, g, n, scratch);
    s.x = a->p->x_area + form_offset(st, forms_of(a->p, st, rows), s.form, rows);
    return s;
}

/* One tile of at most SG_TILE rows. Float weights use the kernel of unpacked fp32. */
static void tile_mm(const struct sg_kernels *k, const struct sg_cpu_stage *st, const struct mm_operand *s,
                    const struct out_block *b, float *out)
{
    const uint8_t *x = s->x + form_bytes(st, s->form, b->t);
    if (s->form == SG_FORM_XF)
        k->few[SG_PACK_F32](s->open, st->k, b->rows, x, b->nt, 0, out, GROUP_PAIR * SG_GROUP);
    else
        k->tile[sg_unpacked_form(s->w->kind)](s->open, st->k, b->rows, x, b->nt, x_precision(s->form), out,
                                              GROUP_PAIR * SG_GROUP);
}

/* Prefetches share i of n of the packed pair of groups from g on, which is unpacked next. */
static void weights_prefetch(const struct sg_packed_weight *w, uint32_t g, uint32_t i, uint32_t n)
{
    if (!w || g >= w->groups) return;
    const size_t bytes = (w->groups - g < GROUP_PAIR ? w->groups - g : GROUP_PAIR) * w->group_bytes,
                 each = round_line(bytes / n + 1);
    for (size_t at = i * each; at < bytes && at < (i + 1) * each; at += LINE_BYTES)
        __builtin_prefetch(w->data + g * w->group_bytes + at, 0, 2);
}

/* Groups [g, g + n) of a linear for many rows, in tiles. Rows are taken in blocks whose activations
 * stay in L2; for each block the groups are unpacked in pairs and multiplied with all of its tiles. */
static void many_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, const struct sg_cpu_linear *lin, uint32_t g,
                      uint32_t n, uint32_t thread)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    struct mm_scratch scratch = scratch_of(a, st, thread);
    uint32_t all = sg_cpu_stage_rows(a, st),
             many = (uint32_t)(TOKEN_BLOCK_BYTES /
                               (form_bytes(st, form_of(a->p, lin, lin->w, all), SG_TILE) + 1)) *
                 SG_TILE;
    /* unpacking must be amortised over some tiles even if the rows are very wide */
    if (many < 8 * SG_TILE) many = 8 * SG_TILE;
    for (uint32_t from = 0; from < all; from += many)
        for (uint32_t i = g; i < g + n; i += GROUP_PAIR) {
            uint32_t left = lin->w->rows - i * SG_GROUP, groups = g + n - i < GROUP_PAIR ? g + n - i : GROUP_PAIR;
            struct out_block b = {.row = i * SG_GROUP,
                              .rows = left < groups * SG_GROUP ? left : groups * SG_GROUP};
            struct mm_operand w = operand_of(a, st, lin, lin->w, i, groups, scratch.open[0]), up = w;
            if (lin->up) up = operand_of(a, st, lin, lin->up, i, groups, scratch.open[1]);
            for (b.t = from; b.t < all && b.t < from + many; b.t += SG_TILE) {
                b.nt = all - b.t < SG_TILE ? all - b.t : SG_TILE;
                /* the next pair of groups is prefetched in equal shares, one per tile */
                const uint32_t share = (b.t - from) / SG_TILE, shares = (all - from < many ? all - from : many) / SG_TILE + 1;
                epilogue_prefetch(a, lin, &b);
                weights_prefetch(lin->w, i + GROUP_PAIR, share, shares);
                weights_prefetch(lin->up, i + GROUP_PAIR, share, shares);
                tile_mm(k, st, &w, &b, scratch.out[0]);
                if (lin->up) tile_mm(k, st, &up, &b, scratch.out[1]);
                epilogue(a, lin, &b, scratch.out[0], scratch.out[1], GROUP_PAIR * SG_GROUP);
                if (sg_cpu_pass_canceled(a)) return;
            }
        }
}

/* A panel of groups times nt rows, padded to whole tiles. */
static void bf16_mm(const struct sg_kernels *k, const struct sg_cpu_stage *st, const struct mm_operand *s,
                    uint32_t groups, const struct out_block *b, float *out)
{
    struct sg_bf16_shape m = {.k = st->k,
                        .groups = groups,
                        .tiles = (b->nt + SG_BF16_ROWS - 1) / SG_BF16_ROWS,
                        .w_terms = bf16_terms(s->w),
                        .x_terms = form_terms(s->form)};
    k->bf16_mm(&m, (const uint16_t *)(const void *)s->open,
               (const uint16_t *)(const void *)(s->x + form_bytes(st, s->form, b->t)), out,
               BF16_PANEL * SG_GROUP);
}

/* Groups [g, g + n) of a linear for many rows, in bf16: the panel stays in L2 while the tiles of
 * activations stream by. */
static void bf16_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, const struct sg_cpu_linear *lin, uint32_t g,
                      uint32_t n, uint32_t thread)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    struct mm_scratch scratch = scratch_of(a, st, thread);
    uint32_t all = sg_cpu_stage_rows(a, st), left = lin->w->rows - g * SG_GROUP;
    struct out_block b = {.row = g * SG_GROUP, .rows = left < n * SG_GROUP ? left : n * SG_GROUP};
    struct mm_operand w = operand_of(a, st, lin, lin->w, g, n, scratch.open[0]), up = w;
    if (lin->up) up = operand_of(a, st, lin, lin->up, g, n, scratch.open[1]);
    /* tile configuration of AMX, per thread */
    k->bf16_begin();
    for (; b.t < all; b.t += BF16_STEP) {
        b.nt = all - b.t < BF16_STEP ? all - b.t : BF16_STEP;
        bf16_mm(k, st, &w, n, &b, scratch.out[0]);
        if (lin->up) bf16_mm(k, st, &up, n, &b, scratch.out[1]);
        epilogue(a, lin, &b, scratch.out[0], scratch.out[1], BF16_PANEL * SG_GROUP);
        if (sg_cpu_pass_canceled(a)) return;
    }
}

/* LoRA adapters: delta = (x A^T) B^T, summed over the adapters of the span, in fp32. low: scratch of
 * low_n floats for x A^T, so a larger LoRA rank is processed in parts. */

static void lora_side(const struct sg_cpu_pass *a, const struct sg_op *op, const struct sg_span *span,
                      const float *x, uint32_t k_n, float *low, uint32_t low_n, float *delta)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
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

/* One row: the deltas of all linears, into the adapter area. Applied by the epilogue. */
static void lora_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t row, uint32_t thread)
{
    struct mm_scratch scratch = scratch_of(a, st, thread);
    size_t stride;
    const float *x = sg_cpu_operand_row(a, st->x, row, &stride);
    *scratch.prepared_id = 0;
    if (st->norm.op) {
        sg_row_norm(sg_cpu_pass_kernels(a), &st->norm, x, NULL, st->k, scratch.rows);
        x = scratch.rows;
    }
    const struct sg_span *span = &a->spans[a->p->row_span[st->wanted ? a->p->wanted[row] : row]];
    for (uint32_t i = 0; i < st->linears_n; i++) {
        const struct sg_cpu_linear *lin = &st->linears[i];
        float *delta = a->p->lora_area + (size_t)row * a->p->lora_columns;
        lora_side(a, lin->op, span, x, st->k, scratch.out[0], SG_TILE * 16 * PANEL_MAX, delta + lin->lora);
        if (lin->op_up)
            lora_side(a, lin->op_up, span, x, st->k, scratch.out[0], SG_TILE * 16 * PANEL_MAX,
                      delta + lin->lora_up);
    }
}

/* Executes an item: finds the linear that it belongs to, and its groups. */
void sg_matrix_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t item, uint32_t thread)
{
    uint32_t rows = sg_cpu_stage_rows(a, st);
    if (st->kind == SG_ST_LORA) {
        lora_work(a, st, item, thread);
        return;
    }
    if (st->kind == SG_ST_PREP) {
        struct mm_scratch scratch = scratch_of(a, st, thread);
        uint32_t n = prepare_rows(a, st), t = item * n;
        *scratch.prepared_id = 0;
        prepare(a, st, t, rows - t < n ? rows - t : n, rows, scratch.rows, a->p->x_area);
        return;
    }
    uint32_t each = item_groups(a, st), i = 0;
    while (item >= linear_items(&st->linears[i], each)) item -= linear_items(&st->linears[i++], each);
    uint32_t g = item * each, left = st->linears[i].w->groups - g;
    const struct sg_cpu_linear *lin = &st->linears[i];
    if (rows <= sg_cpu_pass_kernels(a)->few_rows)
        few_work(a, st, lin, g, left < each ? left : each, thread);
    else if (is_bf16(form_of(a->p, lin, lin->w, rows)))
        bf16_work(a, st, lin, g, left < each ? left : each, thread);
    else
        many_work(a, st, lin, g, left < each ? left : each, thread);
}
