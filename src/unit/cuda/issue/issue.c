/* issue.c: issuing the steps of one pass: where values lie, what each kernel is told, the launch itself.
 * Everything is asynchronous; a pass may be captured. Products are in issue_product.c. SPDX-License-Identifier:
 * MIT */
#include <math.h>

#include "unit/cuda/issue/issue.h"

static float *address(cu_ptr p) { return (float *)(uintptr_t)p; }

struct ck_view cu_view_of(const struct cu_pass *p, const struct sg_operand *x)
{
    if (x->value < 0) return (struct ck_view){0};
    const struct cu_place *place = &p->program->places[x->value];
    uint32_t at = x->at;
    if (place->from >= 0 && p->rows_n[0] == p->rows_n[1]) {
        at += place->from_at;
        place = &p->program->places[place->from];
    }
    cu_ptr base =
        p->room->memory[place->wanted] + (cu_ptr)place->at * p->room->rows[place->wanted] * sizeof(float);
    return (struct ck_view){.p = address(base) + place->inside + at, .stride = place->stride, .width = x->width};
}

struct ck_view cu_halves_of(const struct cu_pass *p, const struct sg_operand *x)
{
    struct ck_view v = cu_view_of(p, x);
    uint32_t inside = p->program->places[x->value].inside + x->at;
    v.p = (float *)(void *)((uint16_t *)(void *)(v.p - inside) + inside);
    return v;
}

static struct ck_view out_of(const struct cu_pass *p, const struct sg_op *op)
{
    struct sg_operand whole = {.value = op->out, .width = p->program->base.graph->values[op->out].width};
    return cu_view_of(p, &whole);
}

static segue_status launch(struct cu_pass *p, cu_fn fn, struct cu_launch *l, uint32_t cluster, const void *args)
{
    struct sg_unit *u = p->program->base.unit;
    struct cu_launch_attr attrs[2];
    void *list[] = {(void *)(uintptr_t)args};
    if (!l->grid_x || !l->grid_y || !l->grid_z) return SEGUE_OK;
    l->stream = p->lane->stream;
    l->attrs = attrs;
    if (u->pdl && p->launches)
        attrs[l->attrs_n++] = (struct cu_launch_attr){.id = CU_LAUNCH_PROGRAMMATIC, .value = {.allowed = 1}};
    if (cluster > 1)
        attrs[l->attrs_n++] = (struct cu_launch_attr){.id = CU_LAUNCH_CLUSTER, .value = {.cluster = {cluster, 1, 1}}};
    p->launches++;
    return cu_check(&u->d, u->d.launch(l, fn, list, NULL), "run", p->err);
}

segue_status cu_launch(struct cu_pass *p, cu_fn fn, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t threads,
                       size_t shared, const void *args)
{
    struct cu_launch l = {gx, gy, gz, threads, 1, 1, (unsigned)shared, NULL, NULL, 0};
    return launch(p, fn, &l, 1, args);
}

segue_status cu_launch_clusters(struct cu_pass *p, cu_fn fn, uint32_t gx, uint32_t cluster, uint32_t threads, size_t shared,
                                const void *args)
{
    struct cu_launch l = {gx, 1, 1, threads, 1, 1, (unsigned)shared, NULL, NULL, 0};
    return launch(p, fn, &l, cluster, args);
}

struct ck_pass cu_kernel_pass(const struct cu_pass *p)
{
    const struct cu_pass_args *l = &p->lane->headings[p->heading];
    return (struct ck_pass){.head = (void *)(uintptr_t)l->head,
                            .tokens = (void *)(uintptr_t)l->tokens,
                            .place = (void *)(uintptr_t)l->place,
                            .span = (void *)(uintptr_t)l->span,
                            .wanted = (void *)(uintptr_t)l->wanted,
                            .slots = (void *)(uintptr_t)l->slots,
                            .slots_out = (void *)(uintptr_t)l->slots_out,
                            .slots_n = p->program->base.graph->slots_n};
}

static const struct cu_tensor *tensor(const struct cu_pass *p, const struct sg_weight *w)
{
    return w->tensor < 0 ? NULL
                         : cu_weight_of(p->program->weights, p->program->base.graph->tensors[w->tensor]);
}

const float *cu_vector_of(const struct cu_pass *p, const struct sg_weight *w)
{
    const struct cu_tensor *t = tensor(p, w);
    return t ? address(t->vector) : NULL;
}

static uint32_t rows_of(const struct cu_pass *p, const struct sg_op *op)
{
    return p->rows_n[p->program->base.graph->values[op->out].wanted];
}

static segue_status need(struct cu_pass *p, cu_ptr *room, size_t *have, size_t want)
{
    return cu_grow(p->program->base.unit, room, have, want, "room of a run", p->err);
}

/* --- small ops --- */

static struct ck_embed embed_of(const struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_embed *e = &op->u.embed;
    const struct cu_tensor *places = tensor(p, &e->positions);
    struct ck_embed a = {.pass = cu_kernel_pass(p),
                         .table = tensor(p, &e->table)->w,
                         .at = e->table.at,
                         .places_at = e->positions.at,
                         .rows = rows_of(p, op),
                         .scale = e->scale,
                         .y = out_of(p, op)};
    if (places) a.places = places->w;
    return a;
}

static segue_status do_embed(struct cu_pass *p, const struct sg_op *op)
{
    struct ck_embed a = embed_of(p, op);
    return cu_launch(p, p->program->base.unit->k.embed, a.rows, cu_pieces(a.y.width, 256), 1, 256, 0, &a);
}

struct ck_norm cu_norm_of(const struct cu_pass *p, const struct sg_op *op)
{
    if (!op) return (struct ck_norm){.groups = 1};
    const struct sg_norm *n = &op->u.norm;
    return (struct ck_norm){.weight = cu_vector_of(p, &n->weight),
                            .bias = cu_vector_of(p, &n->bias),
                            .gate = cu_view_of(p, &op->in[1]),
                            .eps = n->eps,
                            .layer = n->kind == SG_NORM_LAYER,
                            .groups = n->groups,
                            .plus_one = n->plus_one,
                            .present = 1};
}

static segue_status do_norm(struct cu_pass *p, const struct sg_op *op)
{
    struct ck_norm_args a = {
        .x = cu_view_of(p, &op->in[0]), .y = out_of(p, op), .norm = cu_norm_of(p, op), .rows = rows_of(p, op)};
    uint32_t group = a.x.width / a.norm.groups, threads = group > 512 ? 256 : group > 128 ? 128 : 64;
    return cu_launch(p, p->program->base.unit->k.norm_rows, a.rows, a.norm.groups, 1, threads, 0, &a);
}

static segue_status do_rope(struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_rope *r = &op->u.rope;
    const struct sg_rope_table *t = &p->program->base.graph->ropes[r->table];
    struct ck_rope a = {.pass = cu_kernel_pass(p),
                        .x = cu_view_of(p, &op->in[0]),
                        .y = out_of(p, op),
                        .inverse = address(p->program->inverse[r->table]),
                        .heads = r->heads,
                        .head_width = r->head_width,
                        .pairs = t->pairs,
                        .rows = rows_of(p, op),
                        .mscale = t->mscale,
                        .sign = r->sign};
    return cu_launch(p, p->program->base.unit->k.rope, a.rows, cu_pieces(a.x.width, 128), 1, 128, 0, &a);
}

static segue_status do_map(struct cu_pass *p, const struct sg_op *op, cu_fn fn)
{
    struct ck_map a = {.x = cu_view_of(p, &op->in[0]),
                       .x2 = cu_view_of(p, &op->in[1]),
                       .y = out_of(p, op),
                       .rows = rows_of(p, op)};
    if (op->code == SG_OP_GLU) a.act = op->u.glu.act;
    if (op->code == SG_OP_ACT) a.act = op->u.act.act;
    if (op->code == SG_OP_SCALE) {
        const struct cu_tensor *t = tensor(p, &op->u.scale.weight);
        a.value = op->u.scale.value;
        a.weight = cu_vector_of(p, &op->u.scale.weight);
        a.one = t && t->source->rows == 1 && t->source->cols == 1;
    }
    return cu_launch(p, fn, a.rows, cu_pieces(a.y.width, 256), 1, 256, 0, &a);
}

static segue_status do_rows(struct cu_pass *p, const struct sg_op *op)
{
    if (p->program->places[op->out].from >= 0 && p->rows_n[0] == p->rows_n[1]) return SEGUE_OK;
    struct ck_rows a = {.pass = cu_kernel_pass(p),
                        .x = cu_view_of(p, &op->in[0]),
                        .y = out_of(p, op),
                        .rows = rows_of(p, op)};
    return cu_launch(p, p->program->base.unit->k.rows, a.rows, cu_pieces(a.x.width, 256), 1, 256, 0, &a);
}

static segue_status do_route(struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_route *r = &op->u.route;
    struct ck_route a = {.x = cu_view_of(p, &op->in[0]),
                         .y = out_of(p, op),
                         .bias = cu_vector_of(p, &r->bias),
                         .experts = r->experts,
                         .k = r->k,
                         .sigmoid = r->sigmoid,
                         .renormalise = r->renormalise,
                         .rows = rows_of(p, op),
                         .scale = r->scale};
    return cu_launch(p, p->program->base.unit->k.route, cu_pieces(a.rows, 32), 1, 1, 32, 0, &a);
}

static segue_status do_experts(struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_experts *e = &op->u.experts;
    struct sg_unit *u = p->program->base.unit;
    struct ck_experts a = {.x = cu_view_of(p, &op->in[0]),
                           .routing = cu_view_of(p, &op->in[1]),
                           .y = out_of(p, op),
                           .gate = tensor(p, &e->gate)->w,
                           .up = tensor(p, &e->up)->w,
                           .down = tensor(p, &e->down)->w,
                           .gate_at = e->gate.at,
                           .up_at = e->up.at,
                           .down_at = e->down.at,
                           .experts = e->experts,
                           .k = e->k,
                           .ff = e->ff,
                           .act = e->act,
                           .rows = rows_of(p, op)};
    a.d = a.y.width;
    SG_TRY(need(p, &p->lane->scratch, &p->lane->scratch_n, (size_t)a.rows * a.k * a.ff * sizeof(float)));
    a.hidden = address(p->lane->scratch);
    SG_TRY(cu_launch(p, u->k.experts_in, cu_pieces(a.ff, 8), a.rows * a.k, 1, 256, 0, &a));
    return cu_launch(p, u->k.experts_out, cu_pieces(a.d, 8), a.rows, 1, 256, 0, &a);
}

/* --- ops with a memory --- */

/* s: the step that normalises and rotates heads first, or NULL. */
static struct ck_prepare prepare_of(const struct cu_pass *p, const struct cu_step *s, const struct sg_op *attend)
{
    const struct sg_attend *a = &attend->u.attend;
    const struct sg_op *raw_q = s ? s->q_norm ? s->q_norm : s->q_rope : NULL,
                       *raw_k = s ? s->k_norm ? s->k_norm : s->k_rope : NULL;
    struct ck_prepare args = {.pass = cu_kernel_pass(p),
                              .q = cu_view_of(p, raw_q ? &raw_q->in[0] : &attend->in[0]),
                              .k = cu_view_of(p, raw_k ? &raw_k->in[0] : &attend->in[1]),
                              .v = cu_view_of(p, &attend->in[2]),
                              .q_norm = cu_norm_of(p, s ? s->q_norm : NULL),
                              .k_norm = cu_norm_of(p, s ? s->k_norm : NULL),
                              .heads = a->heads,
                              .kv_heads = a->kv_heads,
                              .d = a->d,
                              .dv = a->dv,
                              .slot_k = (uint32_t)a->slot_k,
                              .slot_v = (uint32_t)a->slot_v,
                              .storage = cu_storage_of(p->kv),
                              .rows = p->rows_n[0]};
    if (!s) return args;
    const struct sg_rope *r = &s->q_rope->u.rope;
    const struct sg_rope_table *t = &p->program->base.graph->ropes[r->table];
    args.q_out = out_of(p, s->q_rope);
    args.inverse = address(p->program->inverse[r->table]);
    args.pairs = t->pairs;
    args.mscale = t->mscale;
    args.q_norm.present = s->q_norm != NULL;
    args.k_norm.present = s->k_norm != NULL;
    return args;
}

static segue_status do_append(struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_attend *a = &op->u.attend;
    struct ck_append args = {.pass = cu_kernel_pass(p),
                             .k = cu_view_of(p, &op->in[1]),
                             .v = cu_view_of(p, &op->in[2]),
                             .heads = a->kv_heads,
                             .d = a->d,
                             .dv = a->dv,
                             .slot_k = (uint32_t)a->slot_k,
                             .slot_v = (uint32_t)a->slot_v,
                             .storage = cu_storage_of(p->kv),
                             .rows = p->rows_n[0]};
    return cu_launch(p, p->program->base.unit->k.append, args.rows, a->kv_heads, 1, 64, 0, &args);
}

static struct ck_attend attend_of(const struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_attend *a = &op->u.attend;
    return (struct ck_attend){.pass = cu_kernel_pass(p),
                             .q = cu_view_of(p, &op->in[0]),
                             .gate = cu_view_of(p, &op->in[3]),
                             .y = out_of(p, op),
                             .sinks = cu_vector_of(p, &a->sinks),
                             .heads = a->heads,
                             .kv_heads = a->kv_heads,
                             .d = a->d,
                             .dv = a->dv,
                             .window = a->window,
                             .slot_k = (uint32_t)a->slot_k,
                             .slot_v = (uint32_t)a->slot_v,
                             .storage = cu_storage_of(p->kv),
                             .rows = p->rows_n[0],
                             .chunks = p->chunks,
                             .scale = a->scale,
                             .softcap = a->softcap};
}

static int width_of(uint32_t d) { return d == 64 ? 0 : d == 128 ? 1 : d == 256 ? 2 : -1; }

/* Rows that are each a sequence of their own, over few positions: all of it in one launch (k_single.cu). */
static cu_fn single_of(const struct cu_pass *p, const struct ck_prepare *b, const struct ck_attend *a)
{
    int width = width_of(a->d), is_16 = a->storage == CK_KV_F16 || a->storage == CK_KV_BF16;
    if (p->program->base.unit->invariant || a->rows > CU_FEW || a->rows != p->spans_n || a->chunks > CK_SINGLE_CHUNKS ||
        width < 0 || a->d != a->dv || !is_16 || a->softcap > 0 || (a->window && a->window < a->chunks * CK_CHUNK) ||
        b->pairs % 32 || b->pairs > a->d / 2 || (b->pairs & (b->pairs - 1)))
        return NULL;
    return p->program->base.unit->k.single[a->storage == CK_KV_BF16][width];
}

static segue_status attend_single(struct cu_pass *p, cu_fn fn, const struct ck_prepare *b, const struct ck_attend *a)
{
    struct ck_single args = {.prepare = *b, .attend = *a};
    uint32_t threads = a->rows > 1 && a->chunks <= CK_SINGLE_CHUNKS / 2 ? CK_SINGLE_THREADS / 2 : CK_SINGLE_THREADS;
    return cu_launch(p, fn, a->heads, a->rows, 1, threads, 0, &args);
}

static segue_status do_attend(struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_attend *a = &op->u.attend;
    const struct cu_kernels *k = &p->program->base.unit->k;
    struct ck_attend args = attend_of(p, op);
    enum ck_storage storage = cu_storage_of(p->kv);
    uint32_t groups = a->kv_heads * cu_pieces(a->heads / a->kv_heads, CK_GROUP_HEADS);
    size_t shared = (size_t)CK_GROUP_HEADS * a->d * sizeof(float);
    uint32_t tiles = cu_pieces(args.rows, 64);
    int width = width_of(a->d);
    int is_flash = args.rows > CU_EXACT && width >= 0 && a->d == a->dv && (storage == CK_KV_F16 || storage == CK_KV_BF16);
    if (is_flash && k->wgflash[0][width] && cu_in_fours(&args.q) && cu_in_fours(&args.gate) && cu_in_fours(&args.y))
        return cu_launch(p, k->wgflash[storage == CK_KV_BF16][width], tiles * a->heads > p->sms ? cu_pieces(tiles, 2) : tiles,
                         a->heads, 1, CK_WGFLASH_THREADS, CK_WGFLASH_BYTES(a->d), &args);
    if (is_flash)
        return cu_launch(p, k->flash[storage == CK_KV_BF16][width], cu_pieces(args.rows, 64), a->heads, 1, 128,
                         (size_t)128 * (a->d + 8) * 2, &args);
    if (args.rows > CU_FEW)
        return cu_launch(p, k->attend_many[storage], args.rows, groups, 1, 256,
                         shared + (size_t)CK_GROUP_HEADS * a->dv * sizeof(float), &args);
    SG_TRY(need(p, &p->lane->parts, &p->lane->parts_n,
                (size_t)CU_FEW * a->heads * p->chunks * (a->dv + 2) * sizeof(float)));
    args.parts = address(p->lane->parts);
    SG_TRY(cu_launch(p, k->attend_part[storage], p->chunks, groups, args.rows, 256, shared, &args));
    return cu_launch(p, k->attend_join, args.rows, a->heads, 1, a->dv > 128 ? 256 : a->dv > 64 ? 128 : 64, 0, &args);
}

static segue_status do_prepare(struct cu_pass *p, const struct ck_prepare *a)
{
    const struct cu_kernels *k = &p->program->base.unit->k;
    uint32_t each = a->heads + a->kv_heads;
    if (a->rows > CU_EXACT && a->d % 4 == 0 && cu_in_fours(&a->q) && cu_in_fours(&a->k) && cu_in_fours(&a->q_out))
        return cu_launch(p, k->prepare_many, cu_pieces(a->rows * each, 8), 1, 1, 256, 0, a);
    return cu_launch(p, k->prepare, a->rows, each, 1, 128, 0, a);
}

/* Attention with what a layer does before it. */
static segue_status do_attention(struct cu_pass *p, const struct cu_step *s, const struct sg_op *op)
{
    struct ck_prepare before = prepare_of(p, s, op);
    struct ck_attend args = attend_of(p, op);
    cu_fn single = single_of(p, &before, &args);
    if (single) return attend_single(p, single, &before, &args);
    SG_TRY(s ? do_prepare(p, &before) : do_append(p, op));
    return do_attend(p, op);
}

/* --- any step --- */

static segue_status do_op(struct cu_pass *p, const struct sg_op *op)
{
    const struct cu_kernels *k = &p->program->base.unit->k;
    switch (op->code) {
    case SG_OP_EMBED:
        return do_embed(p, op);
    case SG_OP_NORM:
        return do_norm(p, op);
    case SG_OP_ROPE:
        return do_rope(p, op);
    case SG_OP_ATTEND:
        return do_attention(p, NULL, op);
    case SG_OP_CONV:
        return cu_conv(p, op);
    case SG_OP_DELTA:
        return cu_delta(p, op, NULL);
    case SG_OP_GLU:
        return do_map(p, op, k->glu);
    case SG_OP_ACT:
        return do_map(p, op, k->act);
    case SG_OP_ADD:
        return do_map(p, op, k->add);
    case SG_OP_SCALE:
        return do_map(p, op, k->scale);
    case SG_OP_ROUTE:
        return do_route(p, op);
    case SG_OP_EXPERTS:
        return do_experts(p, op);
    case SG_OP_ROWS:
        return do_rows(p, op);
    case SG_OP_JOIN:
        return cu_join(p, op);
    default:
        return sg_fail(p->err, SEGUE_EINTERNAL, "run: cuda: op %d is unknown; report this", (int)op->code);
    }
}

segue_status cu_issue(struct cu_pass *p, const struct cu_step *s)
{
    SG_TRY(cu_rank_settle(p, s));
    if (s->kind == CU_STEP_PRODUCT) return cu_product(p, s);
    if (s->kind == CU_STEP_PREPARE) return do_attention(p, s, s->attend);
    return s->conv ? cu_delta(p, s->op, s->conv) : do_op(p, s->op);
}

static int in_fours(const struct ck_weight *w)
{
    return w->kind == CK_F32 || w->kind == CK_F16 || w->kind == CK_BF16 || w->kind == CK_Q8;
}

int cu_next_embed(const struct cu_pass *p, struct ck_embed *out)
{
    const struct cu_step *s = p->program->fused;
    /* where products wait for nothing but their inputs: a launch beside the others is sooner */
    if (!p->program->windows_n) return 0;
    for (uint32_t i = 0; i < p->program->fused_n; i++)
        if ((s[i].kind == CU_STEP_OP && s[i].op->code == SG_OP_EMBED) != !i) return 0;
    *out = embed_of(p, s->op);
    return cu_in_fours(&out->y) && in_fours(&out->table) && (!out->places.data || in_fours(&out->places));
}

segue_status cu_issue_choice(struct cu_pass *p, uint32_t advance, uint32_t stops_n)
{
    const struct sg_graph *g = p->program->base.graph;
    struct cu_lane *l = p->lane;
    struct sg_unit *u = p->program->base.unit;
    uint32_t *best_index = (uint32_t *)(uintptr_t)l->best_index;
    if (!p->best_done) {
        int32_t value = g->outputs[sg_graph_output(g, "logits")].value;
        struct sg_operand whole = {.value = value, .width = g->vocab};
        struct ck_argmax a = {.x = cu_view_of(p, &whole),
                              .best_value = address(l->best_value),
                              .best_index = best_index,
                              .banned = p->banned,
                              .blocks = 64,
                              .rows = p->rows_n[1]};
        p->best_blocks = a.blocks;
        SG_TRY(cu_launch(p, u->k.argmax_rows, a.blocks, a.rows, 1, 256, 0, &a));
    }
    cu_ptr ring = 0, chosen = 0;
    SG_TRY(cu_check(&u->d, u->d.host_ptr(&ring, l->ring, 0), "run", p->err));
    SG_TRY(cu_check(&u->d, u->d.host_ptr(&chosen, l->host_chosen, 0), "run", p->err));
    struct cu_pass other = *p;
    other.heading = !p->heading;
    struct ck_choose c = {.pass = cu_kernel_pass(p),
                          .next = cu_kernel_pass(&other),
                          .best_value = address(l->best_value),
                          .best_index = best_index,
                          .blocks = p->best_blocks,
                          .rows = p->rows_n[1],
                          .advance = advance,
                          .stops_n = stops_n,
                          .stops = (int32_t *)(uintptr_t)l->stops,
                          .ring = (int32_t *)(uintptr_t)ring,
                          .ring_cap = CU_RING,
                          .ring_written = (uint32_t *)(uintptr_t)(ring + CU_RING * sizeof(int32_t)),
                          .chosen = advance == 1 ? NULL : (int32_t *)(uintptr_t)chosen + p->heading * CU_FEW};
    if (p->embeds) cu_next_embed(p, &c.embed);
    return cu_launch(p, u->k.choose_best, c.rows, 1, 1, CK_CHOOSE_THREADS, 0, &c);
}
