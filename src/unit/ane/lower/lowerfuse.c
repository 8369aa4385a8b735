/* lowerfuse.c: see lowerfuse.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/lower/lowerfuse.h"

#include "unit/ane/analysis/value_range.h"

/* 1: a is linear and reads the same columns of the same value as b, with the same division before the
 * product. */
static int can_fuse(const struct sg_graph *g, const struct sg_ane_part *p, uint32_t a, uint32_t b)
{
    const struct sg_operand *x = &g->ops[a].in[0], *y = &g->ops[b].in[0];
    return g->ops[a].code == SG_OP_LINEAR && x->value == y->value && x->at == y->at && x->width == y->width &&
           (!p->range || p->range->inner[a] == p->range->inner[b]);
}

/* Collects candidates in order and starts a new list whenever one is full. The lists depend only on the
 * part, so that every operation finds the same one; the search ends with the list that has op. */
uint32_t sg_ane_fused_linears(const struct sg_graph *g, const struct sg_ane_part *p, uint32_t op, uint32_t out[SG_ANE_FUSED_MAX])
{
    uint64_t channels = 0;
    uint32_t n = 0;
    int found = 0;
    for (uint32_t i = 0; i < p->ops_n; i++) {
        uint32_t other = p->ops[i], rows = g->ops[other].u.linear.weight.rows;
        if (!can_fuse(g, p, other, op)) continue;
        if (n && (n == SG_ANE_FUSED_MAX || channels + rows > SG_ANE_FUSED_CHANNELS_MAX)) {
            if (found) break;
            n = 0;
            channels = 0;
        }
        out[n++] = other;
        channels += rows;
        found |= other == op;
    }
    return n;
}
