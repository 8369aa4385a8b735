/* fault.c: see fault.h. SPDX-License-Identifier: MIT */
#include "unit/fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

segue_status sg_fault_read(const struct sg_unit_spec *spec, struct sg_fault *out, segue_error *err)
{
    const char *text = sg_spec_value(spec, "fault");
    char *end;
    *out = (struct sg_fault){0};
    if (!text) return SEGUE_OK;
    unsigned long layer = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '.' || !end[1] || strlen(end + 1) >= sizeof out->op || layer > 65535)
        return sg_fail(err, SEGUE_EARG, "open unit: %s: fault=%s; use LAYER.OP", spec->text, text);
    out->layer = (int)layer;
    snprintf(out->op, sizeof out->op, "%s", end + 1);
    return SEGUE_OK;
}

uint32_t sg_fault_op(const struct sg_fault *f, const struct sg_graph *g)
{
    for (uint32_t i = 0; f->op[0] && i < g->ops_n; i++)
        if (g->ops[i].layer == f->layer && !strcmp(sg_op_name(g->ops[i].code), f->op)) return i;
    return UINT32_MAX;
}
