/* issue_product.c: products of weights with rows. 2 to 16 rows of 16-bit weights go through issue_batch.c, other products of up to 32
 * rows through the decode kernels, 16 at a time, with norm, gate and best logit in the same launch. More rows go through
 * cuBLASLt, or the unit's own tensor-core kernel, with activations narrowed to 16 bits and quantised weights widened into
 * scratch. fp32 weights always take the decode kernels. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

static const struct cu_tensor *weight(const struct cu_pass *p, const struct sg_op *op)
{
    return cu_weight_of(p->program->weights, p->program->base.graph->tensors[op->u.linear.weight.tensor]);
}

static struct ck_view out_of(const struct cu_pass *p, const struct sg_op *op)
{
    struct sg_operand whole = {.value = op->out, .width = p->program->base.graph->values[op->out].width};
    return cu_view_of(p, &whole);
}

static struct ck_segment segment_of(const struct cu_pass *p, const struct sg_op *op)
{
    const struct cu_tensor *t = weight(p, op);
    return (struct ck_segment){.data = t->w.data,
                               .scales = t->w.scales,
                               .bias = cu_vector_of(p, &op->u.linear.bias),
                               .residual = cu_view_of(p, &op->in[1]),
                               .y = out_of(p, op),
                               .n = op->u.linear.weight.rows,
                               .at = op->u.linear.weight.at};
}

static void skip_rows(struct ck_view *v, uint32_t rows)
{
    if (v->p) v->p += (size_t)rows * v->stride;
}

/* --- few rows --- */

/* Warps that share a pair of rows: more while there are too few pairs to fill the card and each still has 3
 * pieces a lane. Shape alone decides, so that a row does not depend on its batch. */
static uint32_t split_of(const struct sg_unit *u, uint32_t pieces, uint32_t pairs)
{
    uint32_t split = 1;
    while (split < 8 && (uint64_t)pairs * split < (uint64_t)u->sms * 12 && pieces >= 96 * split * 2)
        split *= 2;
    return split;
}

static segue_status few(struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *whole,
                        uint32_t from, uint32_t rows)
{
    static const uint32_t numbers[CK_KINDS] = {4, 8, 8, 16, 32, 16, 32, 16};
    struct sg_unit *u = p->program->base.unit;
    const struct cu_tensor *t = weight(p, s->parts[0]);
    struct ck_gemv g = *whole;
    uint32_t b = 0, chunks = g.pitch / 16;
    size_t shared;
    for (;; rows = rows / 2 + rows % 2) { /* as many rows as shared memory takes */
        for (b = 0; (1u << b) < rows; b++) {}
        shared = (32 + ((size_t)chunks * numbers[t->w.kind] + chunks) * (1u << b)) * sizeof(float);
        if (shared <= u->shared_max || rows == 1) break;
    }
    if (shared > u->shared_max)
        return sg_fail(p->err, SEGUE_EUNSUPPORTED,
                       "run: cuda: rows of %u weights do not fit into shared memory", g.k);
    g.rows = rows;
    skip_rows(&g.x, from);
    skip_rows(&g.norm.gate, from);
    for (uint32_t i = 0; i < g.segments; i++) {
        skip_rows(&g.segment[i].residual, from);
        skip_rows(&g.segment[i].y, from);
    }
    int wide = rows == 1 && !u->invariant && g.split == 1 && u->k.wide[t->w.kind] && shared + CU_WIDE_STATIC <= u->shared_max;
    uint32_t threads = wide ? CK_WIDE_THREADS : CK_GEMV_THREADS, warps = threads / 32,
             blocks = (g.pairs * g.split + warps - 1) / warps,
             most = p->sms * (wide                                  ? 1
                              : t->w.kind < CK_Q8 || u->waves < 4 ? u->waves
                                                                    : 3); /* as fit */
    if (blocks > most) blocks = most;
    if (blocks > CU_BLOCKS) blocks = CU_BLOCKS;
    g.best_value = (float *)(uintptr_t)p->lane->best_value;
    g.best_index = (uint32_t *)(uintptr_t)p->lane->best_index;
    p->best_blocks = g.best ? blocks : p->best_blocks;
    cu_fn fn = wide ? u->k.wide[t->w.kind] : u->k.gemv[t->w.kind][b];
    SG_TRY(cu_launch(p, fn, blocks, 1, 1, threads, shared, &g));
    return SEGUE_OK;
}

static uint32_t few_at_once(const struct cu_pass *p, const struct cu_step *s, uint32_t rows)
{
    static const uint32_t numbers[CK_KINDS] = {4, 8, 8, 16, 32, 16, 32, 16};
    const struct ck_weight *w = &weight(p, s->parts[0])->w;
    uint32_t chunks = w->pitch / 16, at_once = rows < CU_FEW ? rows : CU_FEW, b;
    for (;; at_once = at_once / 2 + at_once % 2) {
        for (b = 1; b < at_once; b *= 2) {}
        if (at_once == 1 || (32 + ((size_t)chunks * numbers[w->kind] + chunks) * b) * sizeof(float) <=
                                p->program->base.unit->shared_max)
            return at_once;
    }
}

/* 2 to 16 rows of 16-bit weights. */
static segue_status product_batch(struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w, const struct ck_gemv *g,
                                  uint32_t rows, int *whole)
{
    struct cu_tiled t;
    if (!cu_tiles_fits(p, s, w, g, &t)) return cu_batch(p, s, w, g, rows);
    struct cu_step norm = {.kind = CU_STEP_OP, .op = s->norm};
    if (t.norm_apart) SG_TRY(cu_issue(p, &norm));
    t.a.g.best_value = (float *)(uintptr_t)p->lane->best_value;
    t.a.g.best_index = (uint32_t *)(uintptr_t)p->lane->best_index;
    p->best_blocks = t.a.g.best ? t.blocks : p->best_blocks;
    p->best_done |= t.a.g.best;
    *whole = t.whole;
    return cu_launch_clusters(p, t.fn, t.blocks, t.cluster, CK_TILES_THREADS, t.shared, &t.a);
}

struct ck_gemv cu_gemv_of(const struct cu_pass *p, const struct cu_step *s)
{
    const struct ck_weight *w = &weight(p, s->parts[0])->w;
    struct ck_gemv a = {.x = cu_view_of(p, s->norm ? &s->norm->in[0] : &s->op->in[0]),
                        .norm = cu_norm_of(p, s->norm),
                        .k = w->cols,
                        .pitch = w->pitch,
                        .scale_pitch = w->scale_pitch,
                        .group = w->group,
                        .segments = s->parts_n};
    for (uint32_t i = 0; i < s->parts_n; i++) {
        a.segment[i] = segment_of(p, s->parts[i]);
        a.pairs += s->glu ? (i == 0 ? a.segment[i].n : 0) : (a.segment[i].n + 1) / 2;
    }
    if (s->glu) {
        a.glu = 1;
        a.act = s->glu->u.glu.act;
        a.segment[0].y = out_of(p, s->glu);
    }
    a.split = split_of(p->program->base.unit, w->pitch / 16, a.pairs);
    return a;
}

/* whole: 1 when what comes behind the product is done as well. */
static segue_status product_few(struct cu_pass *p, const struct cu_step *s, uint32_t rows, int *whole)
{
    const struct sg_graph *g = p->program->base.graph;
    const struct ck_weight *w = &weight(p, s->parts[0])->w;
    int32_t logits = g->vocab ? sg_graph_output(g, "logits") : -1;
    struct ck_gemv a = cu_gemv_of(p, s);
    a.best = p->best && s->parts_n == 1 && !s->glu && logits >= 0 && g->outputs[logits].value == s->op->out;
    a.banned = p->banned;
    if (cu_batch_fits(p, s, w, rows)) return product_batch(p, s, w, &a, rows, whole);
    uint32_t at_once = few_at_once(p, s, rows);
    int alone = rows == 1 && !p->program->base.unit->invariant;
    a.best &= rows <= at_once;
    if (a.best && p->screen && alone && s->op == p->program->screen.head) {
        *whole = 1;
        return cu_screen(p, s);
    }
    p->best_done |= a.best;
    struct cu_vocab head;
    if (alone && !s->after && cu_vocab_fits(p, &a, w, &head)) {
        p->best_blocks = a.best ? head.blocks : p->best_blocks;
        *whole = 1;
        return cu_launch(p, head.fn, head.blocks, 1, 1, CK_VOCAB_THREADS, head.shared, &head.a);
    }
    struct cu_streamed one, other;
    int streamed = alone && cu_stream_fits(p, s, &a, &one), digits = alone && cu_digits_fits(p, s, &a, streamed, &other);
    if (digits) {
        one = other;
        p->gate = one.a.gates ? 1 + (uint32_t)s->parts[one.a.gates - 1]->out : 0;
    }
    if (!digits && p->gate && s->norm && p->gate == 1 + (uint32_t)s->norm->in[1].value)
        return sg_fail(p->err, SEGUE_EINTERNAL,
                       "run: cuda: a gate was left as its SiLU for a product that does not come; report this");
    if (streamed || digits) {
        one.a.g.best_value = (float *)(uintptr_t)p->lane->best_value;
        one.a.g.best_index = (uint32_t *)(uintptr_t)p->lane->best_index;
        p->best_blocks = a.best ? one.blocks : p->best_blocks;
        *whole = 1;
        return cu_launch(p, one.fn, one.blocks, 1, 1, one.threads, one.shared, &one.a);
    }
    for (uint32_t t = 0; t < rows; t += at_once)
        SG_TRY(few(p, s, &a, t, rows - t < at_once ? rows - t : at_once));
    return SEGUE_OK;
}

/* --- many rows --- */

/* Rows that the kernel may take 16 bytes at a time. */
static uint32_t narrows_by_four(const struct ck_narrow *a)
{
    const struct ck_norm *n = &a->norm;
    if (a->k % 4 || n->layer || n->bias || a->low || (n->groups > 1 && a->k / n->groups != 128)) return 0;
    return cu_in_fours(&a->x) && cu_in_fours(&a->x2) && cu_in_fours(&n->gate) && (n->groups > 1 || !n->gate.p);
}

static segue_status narrow(struct cu_pass *p, struct ck_narrow *a, uint32_t rows)
{
    a->fours = narrows_by_four(a);
    return cu_launch(p, p->program->base.unit->k.narrow, rows, 1, 1, 256, 0, a);
}

static int is_half(const struct cu_pass *p, int32_t value)
{
    for (uint32_t i = 0; p->halves && i < p->halves->parts_n; i++)
        if (p->halves->parts[i]->out == value) return 1;
    return 0;
}

static segue_status narrow_x(struct cu_pass *p, const struct cu_step *s, uint32_t rows, uint32_t bf16)
{
    struct sg_unit *u = p->program->base.unit;
    const struct sg_op *norm =
        s->norm && (s->norm->u.norm.groups > 1 || s->norm->in[1].value < 0) ? s->norm : NULL;
    if (s->norm && !norm) { /* as a whole with a gate: into its own value first */
        struct cu_step apart = {.kind = CU_STEP_OP, .op = s->norm};
        SG_TRY(cu_issue(p, &apart));
    }
    struct ck_narrow a = {.x = cu_view_of(p, norm ? &norm->in[0] : &s->op->in[0]),
                          .rows = rows,
                          .bf16 = bf16,
                          .norm = cu_norm_of(p, norm)};
    a.k = a.x.width;
    if (norm && is_half(p, norm->in[1].value)) {
        a.norm.gate = cu_halves_of(p, &norm->in[1]);
        a.gate_halves = 1;
    }
    if (p->narrowed == a.x.p && p->narrowed_norm == norm && p->narrowed_bf16 == bf16 &&
        p->narrowed_by == s->op->in[0].value)
        return SEGUE_OK;
    SG_TRY(cu_grow(u, &p->lane->narrow, &p->lane->narrow_n, (size_t)rows * a.k * 2 + 256, "room of a run",
                   p->err));
    a.y = (void *)(uintptr_t)p->lane->narrow;
    p->narrowed = a.x.p;
    p->narrowed_at = p->lane->narrow;
    p->narrowed_norm = norm;
    p->narrowed_bf16 = bf16;
    p->narrowed_by = s->op->in[0].value;
    return narrow(p, &a, rows);
}

/* Rows of a quantised weight behind the `before` ones that lie in scratch already. */
static segue_status widen_rows(struct cu_pass *p, const struct cu_tensor *t, uint32_t at, uint32_t n, uint32_t before,
                               uint32_t bf16)
{
    struct sg_unit *u = p->program->base.unit;
    uint16_t *to = (uint16_t *)(uintptr_t)p->lane->wide + (size_t)before * t->w.cols;
    struct ck_widen a = {.w = t->w, .at = at, .rows = n, .y = to, .bf16 = bf16};
    uint32_t numbers = t->w.kind == CK_Q8 || t->w.kind == CK_G8 || t->w.kind == CK_F8 ? 16 : 32;
    uint64_t many = (uint64_t)n * (t->w.cols / numbers);
    if (t->w.kind >= CK_Q8 && t->w.cols % numbers == 0 && t->w.group % numbers == 0 && many < UINT32_MAX)
        return cu_launch(p, u->k.widen_pieces, (uint32_t)((many + 255) / 256), 1, 1, 256, 0, &a);
    return cu_launch(p, u->k.widen, n, (t->w.cols + 255) / 256, 1, 256, 0, &a);
}

static int is_wide(const struct cu_tensor *t) { return t->w.kind == CK_F16 || t->w.kind == CK_BF16; }

/* How many parts from `i` on are one product: their outputs lie side by side, and so do their weights, which quantised ones do
 * once they are widened. */
static uint32_t joined_from(const struct cu_pass *p, const struct cu_step *s, uint32_t i)
{
    struct ck_segment a = segment_of(p, s->parts[i]);
    const struct cu_tensor *t = weight(p, s->parts[i]);
    uint32_t n = 1;
    if (!p->lane->workspace || a.bias || a.residual.p) return 1;
    for (; i + n < s->parts_n; n++) {
        struct ck_segment b = segment_of(p, s->parts[i + n]);
        if (b.bias || b.residual.p || b.y.p != a.y.p + a.n || b.y.stride != a.y.stride) break;
        if (is_wide(t) && (const char *)b.data + (size_t)b.at * t->w.pitch !=
                              (const char *)a.data + (size_t)(a.at + a.n) * t->w.pitch)
            break;
        a = b;
    }
    return n;
}

/* The weights of n parts that are one product, in 16 bits: quantised ones are widened into scratch. */
static segue_status wide_weights(struct cu_pass *p, const struct cu_step *s, uint32_t from, uint32_t n, uint32_t bf16,
                                 struct ck_segment *segment, uint32_t *pitch)
{
    const struct cu_tensor *t = weight(p, s->parts[from]);
    uint32_t all = 0;
    *segment = segment_of(p, s->parts[from]);
    *pitch = t->w.pitch;
    for (uint32_t i = 0; i < n; i++) all += s->parts[from + i]->u.linear.weight.rows;
    segment->n = all;
    if (is_wide(t)) return SEGUE_OK;
    SG_TRY(cu_grow(p->program->base.unit, &p->lane->wide, &p->lane->wide_n, (size_t)all * t->w.cols * 2, "room of a run",
                   p->err));
    for (uint32_t i = 0, before = 0; i < n; i++) {
        const struct sg_weight *w = &s->parts[from + i]->u.linear.weight;
        SG_TRY(widen_rows(p, weight(p, s->parts[from + i]), w->at, w->rows, before, bf16));
        before += w->rows;
    }
    segment->data = (const void *)(uintptr_t)p->lane->wide;
    segment->at = 0;
    *pitch = t->w.cols * 2;
    return SEGUE_OK;
}

/* y = x w^T for n parts that are one product; x lies narrowed. half: y in 16 bits where its fp32 would begin, if *half is still
 * set behind it. */
static segue_status multiply_many(struct cu_pass *p, const struct cu_step *s, uint32_t from, uint32_t n, uint32_t rows,
                                  uint32_t bf16, uint32_t *half)
{
    struct sg_unit *u = p->program->base.unit;
    const struct cu_tensor *t = weight(p, s->parts[from]);
    struct ck_segment segment;
    uint32_t pitch;
    SG_TRY(wide_weights(p, s, from, n, bf16, &segment, &pitch));
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
    if (p->lane->workspace && cu_blas_multiply(&u->blas, &b)) return SEGUE_OK;
    b.out16 = *half = 0;
    if (p->lane->workspace && cu_blas_multiply(&u->blas, &b)) return SEGUE_OK;
    struct ck_gemm g = {.x = (const void *)(uintptr_t)p->narrowed_at,
                        .segment = segment,
                        .rows = rows,
                        .k = t->w.cols,
                        .bf16 = bf16,
                        .pitch = pitch};
    return cu_launch(p, bf16 ? u->k.gemm_bf16 : u->k.gemm_f16, (segment.n + 63) / 64, (rows + 63) / 64, 1,
                     128, 0, &g);
}

/* Gate * up, narrowed for the step behind this one. half: both lie in 16 bits, side by side. */
static segue_status narrow_glu(struct cu_pass *p, const struct cu_step *s, uint32_t rows, uint32_t bf16, uint32_t half)
{
    struct sg_unit *u = p->program->base.unit;
    struct ck_narrow a = {.x = cu_view_of(p, &s->glu->in[0]),
                          .x2 = cu_view_of(p, &s->glu->in[1]),
                          .act = s->glu->u.glu.act,
                          .rows = rows,
                          .bf16 = bf16,
                          .norm = {.groups = 1}};
    a.k = a.x.width;
    SG_TRY(cu_grow(u, &p->lane->narrow, &p->lane->narrow_n, (size_t)rows * a.k * 2 + 256, "room of a run",
                   p->err));
    a.y = (void *)(uintptr_t)p->lane->narrow;
    p->narrowed = out_of(p, s->glu).p;
    p->narrowed_at = p->lane->narrow;
    p->narrowed_norm = NULL;
    p->narrowed_bf16 = bf16;
    p->narrowed_by = s->glu->out;
    if (half) return cu_launch(p, u->k.narrow_halves, (uint32_t)(((uint64_t)rows * a.k / 8 + 255) / 256), 1, 1, 256, 0, &a);
    return narrow(p, &a, rows);
}

/* Gate and up may leave their product in bf16: only their own product reads them, and it is narrowed to that anyway. So may what
 * the delta rule in chunks reads: x was narrowed to that before the product, which is as much. */
static uint32_t leaves_halves(const struct cu_pass *p, const struct cu_step *s, uint32_t bf16)
{
    if (s->halves) return bf16 && joined_from(p, s, 0) == s->parts_n && cu_delta_halves(p, s->delta, s->after);
    if (!s->for_next || !bf16 || joined_from(p, s, 0) != 2) return 0;
    struct ck_view gate = cu_view_of(p, &s->glu->in[0]), up = cu_view_of(p, &s->glu->in[1]);
    return gate.width % 8 == 0 && gate.stride == 2 * gate.width && up.p == gate.p + gate.width;
}

/* Gate, up and what is behind them in one launch, where it can. */
static segue_status glu_at_once(struct cu_pass *p, const struct cu_step *s, uint32_t rows, uint32_t bf16, int *done)
{
    struct ck_segment segment;
    uint32_t pitch;
    *done = 0;
    if (!s->glu || !s->for_next || joined_from(p, s, 0) != 2 || !cu_glu_fits(p, s, rows)) return SEGUE_OK;
    SG_TRY(wide_weights(p, s, 0, 2, bf16, &segment, &pitch));
    return cu_glu(p, s, (const char *)segment.data + (size_t)segment.at * pitch, pitch, rows, bf16, done);
}

static segue_status product_many(struct cu_pass *p, const struct cu_step *s, uint32_t rows)
{
    uint32_t bf16 = weight(p, s->parts[0])->w.kind != CK_F16, half = leaves_halves(p, s, bf16);
    int done;
    SG_TRY(narrow_x(p, s, rows, bf16));
    SG_TRY(glu_at_once(p, s, rows, bf16, &done));
    if (done) return SEGUE_OK;
    for (uint32_t i = 0, n; i < s->parts_n; i += n) {
        n = joined_from(p, s, i);
        SG_TRY(multiply_many(p, s, i, n, rows, bf16, &half));
    }
    if (s->halves) p->halves = half ? s : NULL;
    if (!s->glu) return SEGUE_OK;
    if (s->for_next) return narrow_glu(p, s, rows, bf16, half);
    struct cu_step apart = {.kind = CU_STEP_OP, .op = s->glu};
    return cu_issue(p, &apart);
}

/* --- adapters --- */

/* The matrices of an adapter for one weight, sent once per program: both lie in one piece, b behind a. */
static segue_status lora_room(struct cu_pass *p, uint64_t id, const struct sg_lora_pair *pair, cu_ptr *out)
{
    struct cu_lane *l = p->lane;
    size_t a_bytes = (size_t)pair->rank * pair->tensor->cols * sizeof(float),
           b_bytes = (size_t)pair->rank * pair->tensor->rows * sizeof(float);
    for (uint32_t i = 0; i < l->loras_n; i++)
        if (l->loras[i].id == id && l->loras[i].pair == pair) {
            *out = l->loras[i].room;
            return SEGUE_OK;
        }
    if (l->loras_n == l->loras_cap) {
        uint32_t cap = l->loras_cap * 2 + 64;
        struct cu_lora *wider = sg_realloc(l->loras, cap * sizeof *wider);
        if (!wider) return sg_no_memory("adapters", cap * sizeof *wider, p->err);
        l->loras = wider;
        l->loras_cap = cap;
    }
    SG_TRY(cu_room(p->program->base.unit, a_bytes + b_bytes, "adapter", out, p->err));
    l->loras[l->loras_n++] = (struct cu_lora){id, pair, *out};
    SG_TRY(cu_send(p->program->base.unit, *out, pair->a, a_bytes, p->err));
    return cu_send(p->program->base.unit, *out + a_bytes, pair->b, b_bytes, p->err);
}

/* One adapter on the rows [from, to). */
static segue_status add_lora(struct cu_pass *p, const struct sg_op *op, uint64_t id,
                             const struct sg_lora_pair *pair, uint32_t from, uint32_t to)
{
    struct sg_unit *u = p->program->base.unit;
    const struct sg_tensor *t = pair->tensor;
    cu_ptr room;
    if (from == to) return SEGUE_OK;
    SG_TRY(lora_room(p, id, pair, &room));
    SG_TRY(cu_grow(u, &p->lane->scratch, &p->lane->scratch_n,
                   (size_t)(to - from) * pair->rank * sizeof(float), "room of a run", p->err));
    struct ck_lora a = {.x = cu_view_of(p, &op->in[0]),
                        .y = out_of(p, op),
                        .a = (const float *)(uintptr_t)room,
                        .b = (const float *)(uintptr_t)(room + (size_t)pair->rank * t->cols * sizeof(float)),
                        .low = (float *)(uintptr_t)p->lane->scratch,
                        .rank = pair->rank,
                        .from = from,
                        .to = to,
                        .k = (uint32_t)t->cols,
                        .n = op->u.linear.weight.rows,
                        .at = op->u.linear.weight.at};
    SG_TRY(cu_launch(p, u->k.lora_low, (pair->rank + 7) / 8, to - from, 1, 256, 0, &a));
    return cu_launch(p, u->k.lora_add, (a.n + 255) / 256, to - from, 1, 256, 0, &a);
}

static segue_status add_loras(struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_tensor *t = p->program->base.graph->tensors[op->u.linear.weight.tensor];
    uint32_t wanted = p->program->base.graph->values[op->out].wanted;
    for (uint32_t s = 0; s < p->spans_n; s++)
        for (uint32_t i = 0; i < p->spans[s]->loras_n; i++) {
            const struct sg_lora_pair *pair = sg_lora_find(p->spans[s]->loras[i], t);
            if (pair)
                SG_TRY(add_lora(p, op, p->spans[s]->loras[i]->id, pair, p->from[wanted][s],
                                p->from[wanted][s + 1]));
        }
    return SEGUE_OK;
}

segue_status cu_product(struct cu_pass *p, const struct cu_step *s)
{
    uint32_t rows = p->rows_n[p->program->base.graph->values[s->op->out].wanted];
    if (!rows) return SEGUE_OK;
    int exact = rows <= CU_EXACT || weight(p, s->parts[0])->w.kind == CK_F32;
    int whole = 0;
    SG_TRY(exact ? product_few(p, s, rows, &whole) : product_many(p, s, rows));
    if (s->after && !whole && !(s->delta && cu_delta_convolves(p, s->delta, s->after))) {
        struct cu_step apart = {.kind = CU_STEP_OP, .op = s->after};
        SG_TRY(cu_issue(p, &apart));
    }
    return p->spans ? add_loras(p, s->parts[0]) : SEGUE_OK;
}
