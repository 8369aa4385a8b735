/* cutiles.c: when a product of 2 to 16 rows takes k_tiles.cu (on Hopper, with 16-bit weights), and what that kernel is told:
 * how many blocks share rows. What the kernel does not do before or behind the product is a
 * step of its own. SPDX-License-Identifier: MIT */
#include "unit/cuda/cu.h"

enum { ROWS = 16, PAIR = 64, CLUSTER_LOG = 3, LONG = 16 }; /* PAIR: columns that a warp takes at a time */

static int in_fours(const void *p) { return ((uintptr_t)p & 15) == 0; }

/* The kernel does the norm: of whole rows, of groups of whole pairs. */
static int norm_fits(const struct ck_norm *n, uint32_t k)
{
    if (!n->present) return 1;
    if (n->layer || n->bias) return 0;
    if (n->groups == 1) return !n->gate.p;
    uint32_t group = k / n->groups;
    return group % PAIR == 0 && (group & (group - 1)) == 0 && group <= CK_TILES_SLICE / 2 && (!n->gate.p || cu_in_fours(&n->gate));
}

/* Blocks that share rows, as few as have slices of whole pairs and groups; of groups a warp has one pair. -1: too long. */
static int cluster_of(const struct ck_norm *n, uint32_t k)
{
    uint32_t unit = n->present && n->groups > 1 ? k / n->groups : PAIR, most = unit > PAIR || n->groups > 1 ? CK_TILES_SLICE / 2 : CK_TILES_SLICE;
    for (int log = 0; log <= CLUSTER_LOG; log++)
        if (k % (unit << log) == 0 && k >> log <= most) return log;
    return -1;
}

static int act_fits(uint32_t act) { return act == SG_ACT_NONE || act == SG_ACT_SILU; }

static int rows_fit(const struct ck_gemv *g)
{
    for (uint32_t i = 0; i < g->segments; i++)
        if (!in_fours(g->segment[i].data)) return 0;
    return 1;
}

/* What the kernel does behind the product: an activation, or the convolution where each row is a sequence of its own. */
static void after_of(const struct cu_pass *p, const struct cu_step *s, struct ck_after *out)
{
    const struct sg_op *op = s->after;
    *out = (struct ck_after){0};
    if (!op || (op->code == SG_OP_CONV && (p->rows_n[0] != p->spans_n || op->u.conv.taps > CK_STREAM_TAPS))) return;
    cu_after_of(p, s, out);
}

int cu_tiles_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w, const struct ck_gemv *g,
                  struct cu_tiled *out)
{
    struct sg_unit *u = p->program->base.unit;
    uint32_t most = g->glu ? ROWS / 2 : ROWS;
    *out = (struct cu_tiled){.a = {.g = *g}};
    struct ck_tiles *a = &out->a;
    if (s->norm && !norm_fits(&g->norm, w->cols)) {
        out->norm_apart = 1;
        a->g.norm = (struct ck_norm){.groups = 1};
        a->g.x = cu_view_of(p, &s->op->in[0]);
    }
    int log = cluster_of(&a->g.norm, w->cols);
    if (!u->k.tiles[0][0][0] || !u->stream || log < 0 || (w->kind != CK_F16 && w->kind != CK_BF16) || w->pitch != w->cols * 2 || !rows_fit(g) || !cu_in_fours(&a->g.x)) return 0;
    a->cluster_log = (uint32_t)log;
    a->slice = w->cols >> log;
    a->group_warps = w->cols / a->g.norm.groups / PAIR;
    a->per_group = 1.0f / (float)(w->cols / a->g.norm.groups);
    a->g.rows = p->rows_n[p->program->base.graph->values[s->op->out].wanted];
    after_of(p, s, &a->after);
    out->whole = a->after.kind != CK_AFTER_NOTHING;
    for (uint32_t i = 0; i < CK_SEGMENTS; i++) {
        a->first[i] = i < g->segments && (!g->glu || !i) ? a->tiles : UINT32_MAX;
        if (a->first[i] != UINT32_MAX) a->tiles += (g->segment[i].n + most - 1) / most;
    }
    uint32_t clusters = p->sms >> log ? p->sms >> log : 1, turns = (a->tiles + clusters - 1) / clusters;
    if (!act_fits(a->after.act) || (g->glu && (!act_fits(g->act) || log)) || (log && turns > CK_TILES_TURN)) return 0;
    if (log > 1) clusters = (a->tiles + turns - 1) / turns; /* clusters of many blocks do not fill the card to the last */
    if (turns > LONG) clusters *= 2; /* so that one block reads while another one sums */
    if (clusters > a->tiles) clusters = a->tiles;
    out->cluster = 1u << log;
    out->blocks = clusters << log;
    out->fn = u->k.tiles[w->kind == CK_BF16][a->g.rows > 8][a->slice > CK_TILES_SLICE / 2];
    return 1;
}
