/* aneshape.c: into which dispatches rows are cut. An engine's time for one is known well enough beforehand: what it costs
 * to start each program, and the longer of its products and of its weights, which are read once whatever its rows. So
 * the cut with the least time is looked for; the last dispatch may be padded. SPDX-License-Identifier: MIT */
#include "unit/ane/aneunit.h"

static const uint32_t kinds[] = {1, 32, 64, 128, 256, 512};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* States grow in steps, until no row needs more: then they roll, as do those whose keys are fixed. */
segue_status ane_shape_of(const struct sg_program *p, uint32_t rows, uint64_t end, uint32_t rank, struct sg_ane_shape *out,
                          segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    uint32_t fixed = p->base.unit->keys, most = sg_ane_ring_keys(g->slots, g->slots_n, ANE_KEYS_MIN, ANE_KEYS_MAX);
    *out = (struct sg_ane_shape){rows, rows < SG_ANE_PAD ? SG_ANE_PAD : rows, fixed ? fixed : ANE_KEYS_MIN, rank, 0};
    while (!fixed && out->keys < end && out->keys < ANE_KEYS_MAX && out->keys != most) out->keys *= 2;
    out->rolls = fixed || out->keys == most;
    if (out->rolls || end <= out->keys) return SEGUE_OK;
    return sg_fail(err, SEGUE_ELIMIT, "run: ane: position %llu: programs hold %d keys; shorten the text, or let the oldest go: "
                   "keys=%d", (unsigned long long)end, ANE_KEYS_MAX, ANE_KEYS_MAX);
}

/* Weight count and attention multiply-adds per row and key, of what the engine computes. */
static void weigh(const struct sg_graph *g, double *numbers, double *per_key)
{
    *numbers = *per_key = 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        if (sg_ane_helper_reason(g, op)) continue;
        if (op->code == SG_OP_LINEAR) *numbers += (double)op->u.linear.weight.rows * op->in[0].width;
        if (op->code == SG_OP_ATTEND) *per_key += (double)op->u.attend.heads * (op->u.attend.d + op->u.attend.dv);
    }
}

/* Estimated time of a dispatch for each row count: fixed cost per part plus the larger of compute
 * and memory time. */
static void costs_of(const struct sg_program *p, uint32_t keys, double cost[KINDS])
{
    const struct sg_ane_profile *c = &p->base.unit->profile;
    const struct sg_ane_partition *cut = &p->cut[0];
    double numbers, per_key;
    weigh(p->base.graph, &numbers, &per_key);
    for (int k = 0; k < KINDS; k++) {
        double products = 2 * (numbers + per_key * keys) * kinds[k] / (c->tflops * 1e3), held = 0;
        for (uint32_t i = 0; i < cut->parts_n; i++)
            held += (double)sg_ane_part_bytes(p->base.graph, &cut->parts[i], kinds[k] < SG_ANE_PAD ? SG_ANE_PAD : kinds[k], keys);
        double memory = 2 * numbers / c->weight_gb_s + held / c->activation_gb_s;
        cost[k] = cut->parts_n * c->dispatch_us * 1e3 + (products > memory ? products : memory);
    }
}

/* Dynamic programming over the rows left: best[n] is the cheapest way to cut n rows. Returns the
 * largest dispatch of that cut, which runs first. */
uint32_t ane_rows_for(const struct sg_program *p, uint64_t held, uint32_t left)
{
    struct {
        double cost;
        uint32_t first; /* the most rows of a dispatch of the best cut */
    } best[ANE_ROWS_MAX + 1] = {{0, 0}};
    struct sg_ane_shape shape;
    double cost[KINDS];
    if (p->base.unit->rows) return p->base.unit->rows;
    if (left == 1) return 1;
    if (left >= ANE_ROWS_MAX) return ANE_ROWS_MAX;
    (void)ane_shape_of(p, ANE_ROWS_MAX, held + left, 0, &shape, NULL);
    costs_of(p, shape.keys, cost);
    for (uint32_t n = 1; n <= left; n++)
        for (int k = 0; k < KINDS; k++) { /* equal costs: the fewest rows */
            uint32_t rest = n > kinds[k] ? n - kinds[k] : 0, first = best[rest].first > kinds[k] ? best[rest].first : kinds[k];
            if (best[n].first && best[rest].cost + cost[k] >= best[n].cost) continue;
            best[n].cost = best[rest].cost + cost[k];
            best[n].first = first;
        }
    return best[left].first;
}
