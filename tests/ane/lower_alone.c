/* lower_alone.c: the partition of a graph and its range analysis, each alone. Every operation is in exactly one part, values are
 * defined before the parts that read them, and each slot belongs to one part. No product exceeds its bound, and some row
 * reaches it.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "../api/tiny.h"
#include "model/model.h"
#include "unit/ane/analysis/partition.h"
#include "unit/ane/analysis/value_range.h"

static struct segue_model *models[TINY_MODELS];
static struct sg_graph *graphs[TINY_MODELS];

static int begin(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_MODELS; i++) {
        char at[512];
        tiny_folder(at, sizeof at, "alone", tiny_models[i].name);
        if (!tiny_write(&tiny_models[i], at, 5u + (unsigned)i) || segue_model_open(&models[i], at, NULL, NULL) ||
            sg_model_graph(models[i], &(struct sg_graph_request){.head = 1, .select_late = 1}, &graphs[i], NULL))
            return -1;
    }
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_MODELS; i++) {
        sg_graph_free(graphs[i]);
        segue_model_close(models[i]);
    }
    tiny_remove("alone");
    return 0;
}

/* Part that defines each value: 0 before all parts, part number + 1, or parts_n + 1 after them. */
static uint32_t *defining_parts(const struct sg_graph *g, const struct sg_ane_partition *c)
{
    uint32_t *at = calloc(g->values_n, sizeof *at), *times = calloc(g->ops_n, sizeof *times);
    for (uint32_t i = 0; i < c->before_n; i++) times[c->before[i]]++;
    for (uint32_t p = 0; p < c->parts_n; p++)
        for (uint32_t i = 0; i < c->parts[p].ops_n; i++) {
            assert_true(!i || c->parts[p].ops[i - 1] < c->parts[p].ops[i]);
            assert_null(sg_ane_helper_reason(g, &g->ops[c->parts[p].ops[i]]));
            times[c->parts[p].ops[i]]++;
            at[g->ops[c->parts[p].ops[i]].out] = p + 1;
        }
    for (uint32_t i = 0; i < c->behind_n; i++) {
        times[c->behind[i]]++;
        at[g->ops[c->behind[i]].out] = c->parts_n + 1;
    }
    for (uint32_t i = 0; i < g->ops_n; i++) assert_int_equal(times[i], 1); /* in exactly one part */
    free(times);
    return at;
}

static int holds(const int32_t *list, uint32_t n, int32_t value)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == value) return 1;
    return 0;
}

static void check_part(const struct sg_graph *g, const struct sg_ane_partition *c, uint32_t p, const uint32_t *at)
{
    const struct sg_ane_part *part = &c->parts[p];
    for (uint32_t i = 0; i < part->in_n; i++) assert_true(at[part->in[i]] < p + 1);
    for (uint32_t i = 0; i < part->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++) {
            int32_t v = g->ops[part->ops[i]].in[k].value;
            if (v >= 0 && at[v] != p + 1 && !holds(part->in, part->in_n, v))
                fail_msg("part %u reads %%%d, which does not come in", p, v);
        }
    for (uint32_t i = 0; i < part->out_n; i++) assert_true(at[part->out[i]] <= p + 1);
    if (p + 1 < c->parts_n) /* the inputs of the next part are the outputs of this one */
        for (uint32_t i = 0; i < c->parts[p + 1].in_n; i++) assert_true(holds(part->out, part->out_n, c->parts[p + 1].in[i]));
    assert_int_equal(part->layer_from, p ? c->parts[p - 1].layer_to : 0);
}

static void every_operation_has_one_place(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        for (uint32_t layers = 0; layers <= 4; layers++) { /* 0: the default rule */
            const struct sg_graph *g = graphs[m];
            struct sg_ane_partition c;
            uint32_t slots = 0, *owned = calloc(g->slots_n, sizeof *owned);
            assert_int_equal(sg_ane_partition_make(&c, g, layers, 0, NULL), SEGUE_OK);
            assert_int_equal(c.parts_n, layers ? (g->layers + layers - 1) / layers : 1);
            assert_int_equal(c.parts[c.parts_n - 1].layer_to, g->layers);
            uint32_t *at = defining_parts(g, &c);
            for (uint32_t p = 0; p < c.parts_n; p++) {
                check_part(g, &c, p, at);
                for (uint32_t i = 0; i < c.parts[p].slots_n; i++) slots += !owned[c.parts[p].slots[i]]++;
                if (!layers) assert_true(sg_ane_part_bytes(g, &c.parts[p], SG_ANE_PART_ROWS, SG_ANE_PART_KEYS) <= SG_ANE_PART_BYTES_MAX);
            }
            assert_int_equal(slots, g->slots_n);
            for (uint32_t i = 0; i < g->slots_n; i++) assert_int_equal(owned[i], 1);
            sg_ane_partition_free(&c);
            free(at);
            free(owned);
        }
}

static const struct sg_op *maker(const struct sg_graph *g, int32_t value)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].out == value) return &g->ops[i];
    return NULL;
}

/* The output of an RMS norm without its weight has length sqrt(k), so the bound of a product is sqrt(k) times the longest row of
 * W diag(w). An input parallel to that row reaches the bound. */
static double largest_product(const struct sg_graph *g, const struct sg_op *op, const struct sg_op *norm)
{
    const struct sg_tensor *t = g->tensors[op->u.linear.weight.tensor];
    const struct sg_norm *n = &norm->u.norm;
    uint32_t k = (uint32_t)t->cols;
    float *row = malloc(k * sizeof *row), *w = malloc(k * sizeof *w);
    double max_error = 0;
    for (uint32_t i = 0; i < k; i++) w[i] = 1;
    if (n->weight.tensor >= 0) sg_tensor_read(g->tensors[n->weight.tensor], w);
    for (uint32_t r = 0; r < op->u.linear.weight.rows; r++) {
        double sum = 0;
        sg_tensor_row(t, (uint64_t)op->u.linear.weight.at + r, 0, k, row);
        for (uint32_t i = 0; i < k; i++) {
            double v = (double)row[i] * ((double)w[i] + (n->plus_one && n->weight.tensor >= 0));
            sum += v * v;
        }
        max_error = fmax(max_error, sqrt(sum * k));
    }
    free(row);
    free(w);
    return max_error;
}

static void bounds_hold_and_are_reached(void **state)
{
    uint32_t seen = 0;
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        const struct sg_graph *g = graphs[m];
        struct sg_ane_range r;
        assert_int_equal(sg_ane_range_make(&r, g, NULL), SEGUE_OK);
        for (uint32_t i = 0; i < g->ops_n; i++) {
            const struct sg_op *op = &g->ops[i];
            assert_true(r.max[op->out] >= 0 && r.max[op->out] < 3e38f);
            if (op->code != SG_OP_LINEAR || op->in[1].value >= 0 || op->u.linear.bias.tensor >= 0 || sg_ane_helper_reason(g, op))
                continue;
            const struct sg_op *from = maker(g, op->in[0].value);
            if (!from || from->code != SG_OP_NORM || from->u.norm.kind != SG_NORM_RMS || from->u.norm.groups != 1 ||
                from->u.norm.bias.tensor >= 0 || from->in[1].value >= 0 || op->in[0].width != g->values[op->in[0].value].width)
                continue;
            double want = largest_product(g, op, from);
            if (!(r.max[op->out] >= want * 0.9999 && r.max[op->out] <= want * 1.0001))
                fail_msg("%s: op %u: bound %g, the largest product is %g", tiny_models[m].name, i, (double)r.max[op->out], want);
            assert_int_equal(r.inner[i], want > 16384 ? r.inner[i] : 0);
            seen++;
        }
        sg_ane_range_free(&r);
    }
    assert_true(seen >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_operation_has_one_place),
                                       cmocka_unit_test(bounds_hold_and_are_reached)};
    return cmocka_run_group_tests(tests, begin, end);
}
