/* mlx_adapters.c: LoRA adapters: their matrices on the device, and which of them a pass multiplies with. The matrices of the
 * adapters used last stay there.
 * SPDX-License-Identifier: MIT */
#include "unit/mlx/mlxunit.h"

void mlx_adapter_clear(struct mlx_adapter *a)
{
    for (uint32_t i = 0; a->matrices && i < 2 * a->pairs_n; i++) mxc_release(a->matrices[i]);
    sg_free(a->matrices);
    *a = (struct mlx_adapter){0};
}

/* The adapter's entry; a new one replaces that which was used longest ago. NULL: no memory. */
static struct mlx_adapter *entry_of(struct mlx_pass *p, const struct sg_lora *l, enum mxc_type type)
{
    struct mlx_adapter *list = p->unit->adapters, *at = list;
    for (uint32_t i = 0; i < MLX_ADAPTERS; i++) {
        if (list[i].matrices && list[i].id == l->id && list[i].type == type) return &list[i];
        if (list[i].used < at->used) at = &list[i];
    }
    mlx_adapter_clear(at);
    at->matrices = sg_alloc((2 * (size_t)l->pairs_n + 1) * sizeof *at->matrices);
    if (!at->matrices) return NULL;
    at->id = l->id;
    at->type = type;
    at->pairs_n = l->pairs_n;
    return at;
}

/* A [rank, k] and B [n, rank] in the type of the op. */
static void matrices(struct mlx_pass *p, const struct sg_op *op, const struct sg_lora *l, const struct sg_lora_pair *pair,
                     mxc_ref out[2])
{
    enum mxc_type type = p->program->fp32[op->out] ? MXC_F32 : p->type;
    struct mlx_adapter *e = entry_of(p, l, type);
    const uint32_t shapes[2][2] = {{pair->rank, (uint32_t)pair->tensor->cols}, {(uint32_t)pair->tensor->rows, pair->rank}};
    const float *numbers[2] = {pair->a, pair->b};
    if (e) e->used = ++p->unit->adapters_used;
    for (int i = 0; i < 2; i++) {
        struct mxc_held **held = e ? &e->matrices[2 * (pair - l->pairs) + i] : NULL;
        if (held && *held) {
            out[i] = mxc_use(p->t, *held);
            continue;
        }
        out[i] = mlx_cast(p, mxc_from(p->t, numbers[i], MXC_F32, shapes[i], 2), type);
        if (held) *held = mxc_keep(p->t, out[i]);
    }
}

/* x A^T B^T of one adapter, for the rows of the weight that the op uses. */
static mxc_ref product(struct mlx_pass *p, const struct sg_op *op, mxc_ref x, const struct sg_lora *l,
                       const struct sg_lora_pair *pair)
{
    const struct sg_weight *w = &op->u.linear.weight;
    mxc_ref of[2];
    if (p->adapters) {
        of[0] = *p->adapters++;
        of[1] = *p->adapters++;
    } else {
        matrices(p, op, l, pair, of);
    }
    return mxc_linear(p->t, mxc_linear(p->t, x, of[0], MXC_NONE), mlx_rows_of(p, of[1], w->at, w->at + w->rows), MXC_NONE);
}

static const struct sg_lora_pair *pair_of(const struct mlx_pass *p, uint32_t s, uint32_t i, const struct sg_op *op)
{
    return sg_lora_find(p->spans[s].loras[i], p->graph->tensors[op->u.linear.weight.tensor]);
}

/* 1: some adapter changes the op. */
static int is_adapted(const struct mlx_pass *p, const struct sg_op *op)
{
    for (uint32_t s = 0; s < p->spans_n; s++)
        for (uint32_t i = 0; i < p->spans[s].loras_n; i++)
            if (pair_of(p, s, i, op)) return 1;
    return 0;
}

mxc_ref mlx_add_adapters(struct mlx_pass *p, const struct sg_op *op, mxc_ref x, mxc_ref y)
{
    const uint32_t *from = p->from[p->graph->values[op->out].wanted];
    uint32_t n = 0;
    if (!is_adapted(p, op)) return y;
    for (uint32_t s = 0; s < p->spans_n; s++) {
        if (from[s] == from[s + 1]) continue;
        mxc_ref piece = mlx_rows_of(p, y, from[s], from[s + 1]), rows = mlx_rows_of(p, x, from[s], from[s + 1]);
        for (uint32_t i = 0; i < p->spans[s].loras_n; i++) {
            const struct sg_lora_pair *pair = pair_of(p, s, i, op);
            if (pair) piece = mxc_add(p->t, piece, product(p, op, rows, p->spans[s].loras[i], pair));
        }
        p->pieces[n++] = piece;
    }
    return n == 1 ? p->pieces[0] : mxc_concat(p->t, p->pieces, n, 0);
}

/* FNV-1a of the numbers of the adapters, which are unique. */
uint64_t mlx_adapters_of(const struct sg_span *span)
{
    uint64_t hash = span->loras_n ? 14695981039346656037u : 0;
    for (uint32_t i = 0; i < span->loras_n; i++) hash = (hash ^ span->loras[i]->id) * 1099511628211u;
    return hash;
}

/* --- for compiled segments --- */

/* Calls each for the pairs of ops [from, to), in the order of mlx_add_adapters. */
typedef void pair_fn(struct mlx_pass *p, uint32_t op, uint32_t s, uint32_t i, const struct sg_lora_pair *pair, void *context);
static void for_pairs(struct mlx_pass *p, uint32_t from, uint32_t to, pair_fn *each, void *context)
{
    uint32_t any = 0;
    for (uint32_t s = 0; s < p->spans_n; s++) any += p->spans[s].loras_n;
    for (uint32_t k = from; any && k < to; k++) {
        const struct sg_op *op = &p->graph->ops[k];
        for (uint32_t s = 0; op->code == SG_OP_LINEAR && s < p->spans_n; s++)
            for (uint32_t i = 0; i < p->spans[s].loras_n; i++) {
                const struct sg_lora_pair *pair = pair_of(p, s, i, op);
                if (pair) each(p, k, s, i, pair, context);
            }
    }
}

struct pair_listing {
    uint32_t *list, n;               /* NULL: counted only */
};

static void note(struct mlx_pass *p, uint32_t op, uint32_t s, uint32_t i, const struct sg_lora_pair *pair, void *context)
{
    struct pair_listing *l = context;
    const uint32_t entry[MLX_PAIR_NUMBERS] = {op, s, i, pair->rank};
    (void)p;
    for (uint32_t k = 0; l->list && k < MLX_PAIR_NUMBERS; k++) l->list[l->n + k] = entry[k];
    l->n += MLX_PAIR_NUMBERS;
}

segue_status mlx_pairs(struct mlx_pass *p, uint32_t **out, uint32_t *n, segue_error *err)
{
    struct pair_listing l = {NULL, 0};
    for_pairs(p, 0, p->graph->ops_n, note, &l);
    *n = l.n;
    *out = l.list = sg_alloc((l.n + 1) * sizeof *l.list);
    if (!l.list) return sg_no_memory("a run of mlx", l.n * sizeof *l.list, err);
    l.n = 0;
    for_pairs(p, 0, p->graph->ops_n, note, &l);
    return SEGUE_OK;
}

static void gather(struct mlx_pass *p, uint32_t op, uint32_t s, uint32_t i, const struct sg_lora_pair *pair, void *context)
{
    mxc_ref **in = context;
    matrices(p, &p->graph->ops[op], p->spans[s].loras[i], pair, *in);
    *in += 2;
}

uint32_t mlx_pair_inputs(struct mlx_pass *p, const struct mlx_segment *s, mxc_ref *in)
{
    mxc_ref *at = in;
    for_pairs(p, s->from, s->to, gather, &at);
    return (uint32_t)(at - in);
}
