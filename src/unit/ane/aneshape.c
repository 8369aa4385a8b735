/* aneshape.c: the shapes of dispatches. The rows of a span are cut into dispatches of fixed sizes such that the estimated time
 * is minimal. The estimate of a dispatch: a fixed cost per engine program, plus the larger of compute time and memory time,
 * where the weights are read once whatever the number of rows. The last dispatch may be padded. See aneunit.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/aneunit.h"

/* Rows of a dispatch, which are padded to sg_unit.columns. One row is decode. */
static const uint32_t row_counts[] = {1, 32, 64, 128, 256, 512};
enum { ROW_COUNTS = sizeof row_counts / sizeof *row_counts };

static uint32_t columns_of(const struct sg_unit *u, uint32_t rows) { return rows < u->columns ? u->columns : rows; }

/* The number of keys doubles from ANE_KEYS_MIN until it holds `end` positions. When all layers have sliding windows, `enough`
 * keys hold the largest window (0: some layer attends to all positions). With that many keys, and with option keys=, the rings
 * roll: new positions overwrite the oldest ones, and a sequence may be of any length. */
segue_status ane_shape_of(const struct sg_program *p, uint32_t rows, uint64_t end, uint32_t rank, struct sg_ane_shape *out,
                          segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    uint32_t fixed = p->base.unit->keys, enough = sg_ane_ring_keys(g->slots, g->slots_n, ANE_KEYS_MIN, ANE_KEYS_MAX);
    *out = (struct sg_ane_shape){rows, columns_of(p->base.unit, rows), fixed ? fixed : ANE_KEYS_MIN, rank, 0};
    while (!fixed && out->keys < end && out->keys < ANE_KEYS_MAX && out->keys != enough) out->keys *= 2;
    out->rolls = fixed || out->keys == enough;
    if (out->rolls || end <= out->keys) return SEGUE_OK;
    return sg_fail(err, SEGUE_ELIMIT, "run: ane: position %llu: programs hold %d keys; shorten the text, or open the unit with "
                   "keys=%d to forget the oldest positions", (unsigned long long)end, ANE_KEYS_MAX, ANE_KEYS_MAX);
}

/* What the engine computes per row: *weights elements of weights, which is one multiply-add each, and *per_key multiply-adds of
 * attention for each key. Host operations do not count. */
static void count_work(const struct sg_graph *g, double *weights, double *per_key)
{
    *weights = *per_key = 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        if (sg_ane_helper_reason(g, op)) continue;
        if (op->code == SG_OP_LINEAR) *weights += (double)op->u.linear.weight.rows * op->in[0].width;
        if (op->code == SG_OP_ATTEND) *per_key += (double)op->u.attend.heads * (op->u.attend.d + op->u.attend.dv);
    }
}

/* Estimated time in ns of a dispatch for each entry of row_counts. 1e3 converts Tflop/s to flop/ns and us to ns; GB/s is B/ns. */
static void costs_of(const struct sg_program *p, uint32_t keys, double cost[ROW_COUNTS])
{
    const struct sg_ane_profile *c = &p->base.unit->profile;
    const struct sg_ane_partition *cut = &p->cut[0];
    double weights, per_key, products = p->base.unit->storage == SG_ANE_STORE_W8A8 ? c->int8_tflops : c->tflops;
    count_work(p->base.graph, &weights, &per_key);
    for (int k = 0; k < ROW_COUNTS; k++) {
        uint32_t columns = columns_of(p->base.unit, row_counts[k]);
        double flops = 2 * (weights * c->tflops / products + per_key * keys) * row_counts[k]; /* as many of fp16 */
        double compute = flops / (c->tflops * 1e3), activations = 0;
        for (uint32_t i = 0; i < cut->parts_n; i++)
            activations += (double)sg_ane_part_bytes(p->base.graph, &cut->parts[i], columns, keys);
        double memory = 2 * weights / c->weight_gb_s + activations / c->activation_gb_s;
        cost[k] = cut->parts_n * c->dispatch_us * 1e3 + (compute > memory ? compute : memory);
    }
}

/* The smallest of the shapes that holds `left` rows, else the largest, as a size of dispatch. */
static uint32_t shape_for(uint32_t left, const uint32_t *shapes)
{
    uint32_t wanted = shapes[0], k = 0;
    for (uint32_t i = 1; i < SEGUE_PLAN_SHAPES && shapes[i] && wanted < left; i++) wanted = shapes[i];
    while (k + 1 < ROW_COUNTS && row_counts[k] < wanted) k++;
    return row_counts[k];
}

/* Dynamic programming: best[n] is the cheapest division of n rows into dispatches: one dispatch and the best division of the
 * rest. The largest dispatch for the `left` rows runs first. The costs are those at the end of the span, for all of its
 * dispatches. */
uint32_t ane_rows_for(const struct sg_program *p, uint64_t held, uint32_t left, const uint32_t *shapes)
{
    struct {
        double cost;
        uint32_t first; /* largest dispatch of the best division; 0: not known */
    } best[ANE_ROWS_MAX + 1] = {{0, 0}};
    struct sg_ane_shape shape;
    double cost[ROW_COUNTS];
    if (p->base.unit->rows) return p->base.unit->rows;
    if (shapes[0]) return shape_for(left, shapes);
    if (left == 1) return 1;
    if (left >= ANE_ROWS_MAX) return ANE_ROWS_MAX;
    (void)ane_shape_of(p, ANE_ROWS_MAX, held + left, 0, &shape, NULL);
    costs_of(p, shape.keys, cost);
    for (uint32_t n = 1; n <= left; n++)
        for (int k = 0; k < ROW_COUNTS; k++) { /* the first of equal costs: the fewest rows */
            uint32_t rows = row_counts[k], rest = n > rows ? n - rows : 0;
            uint32_t first = best[rest].first > rows ? best[rest].first : rows;
            if (best[n].first && best[rest].cost + cost[k] >= best[n].cost) continue;
            best[n].cost = best[rest].cost + cost[k];
            best[n].first = first;
        }
    return best[left].first;
}
