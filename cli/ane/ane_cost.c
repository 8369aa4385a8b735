/* ane_cost.c: see ane_cost.h. The programs are those that the unit loads. SPDX-License-Identifier: MIT */
#include "ane/ane_cost.h"

#include <stdbool.h>
#include "model/model.h"
#include "unit/ane/tools/emit.h"
#include "unit/ane/tools/explain.h"
#include "unit/ane/rules/rules.h"

/* Adds the time and the weights of a program, which is freed. */
static void add(struct sg_mil_program *mil, const struct sg_ane_profile *profile, double *ms, uint64_t *bytes)
{
    for (uint32_t i = 0; mil && i < mil->functions_n; i++) {
        struct sg_mil_cost c;
        sg_mil_cost_of(&c, &mil->functions[i], profile);
        *ms += sg_mil_expected_us(&c, profile) * 1e-3;
        *bytes += c.weight_bytes;
    }
    sg_mil_program_free(mil);
}

/* The first rule that refuses a program of this chip; 0: none. Advice does not count. */
static unsigned refusal_of(const struct sg_mil_program *mil, const struct sg_ane_profile *profile)
{
    struct sg_mil_faults faults = {0};
    unsigned rule = 0;
    sg_ane_check(mil, profile, NULL, 0, &faults);
    for (uint32_t i = 0; i < faults.n && !rule; i++)
        if (!faults.list[i].advice) rule = faults.list[i].constraint;
    sg_mil_faults_free(&faults);
    return rule;
}

static segue_status add_all(struct sg_ane_emit *e, const struct sg_ane_profile *profile, struct ane_cost *out, segue_error *err)
{
    struct sg_mil_program *mil;
    struct sg_ane_blobs blobs;
    segue_status st = SEGUE_OK;
    for (uint32_t i = 0; i < sg_ane_emit_count(e) && !st; i++) {
        bool is_head = i == e->cut.parts_n;
        st = sg_ane_emit_part(e, i, &mil, &blobs, err);
        if (!st && !out->rule) out->rule = refusal_of(mil, profile);
        add(mil, profile, is_head ? &out->head_ms : &out->layers_ms, is_head ? &out->head_bytes : &out->layers_bytes);
        sg_ane_blobs_free(&blobs);
    }
    out->dispatches = e->cut.parts_n;
    return st;
}

segue_status ane_cost_of(const segue_model *model, const char *profile, unsigned rows, unsigned keys, struct ane_cost *out,
                         segue_error *err)
{
    struct sg_graph_request wish = {.head = 1, .select_late = 1};
    struct sg_ane_emit_opts opts = {.rows = rows, .keys = keys, .sizes_only = 1, .head = 1};
    struct sg_ane_profile chip;
    struct sg_graph *g = NULL;
    struct sg_ane_emit e;
    *out = (struct ane_cost){0};
    SG_TRY(sg_ane_profile_named(&chip, profile, err));
    opts.columns = sg_ane_row_columns(&chip);
    SG_TRY(sg_model_graph(model, &wish, &g, err));
    segue_status st = sg_ane_emit_open(&e, g, &opts, err);
    if (!st) {
        st = add_all(&e, &chip, out, err);
        sg_ane_emit_close(&e);
    }
    sg_graph_free(g);
    return st;
}
