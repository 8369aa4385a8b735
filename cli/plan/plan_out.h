/* plan_out.h: a plan as text, JSON or page. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PLAN_OUT_H
#define SEGUE_CLI_PLAN_OUT_H

#include "engine/planner/options.h"
#include "term/out.h"

/* What was planned for, for headings. */
struct plan_subject {
    const char *model, *storage, *costs; /* costs: the chip, or the calibration */
    const struct sg_plan_task *task;
    const struct sg_plan_source *source;
    const struct sg_model_cost *cost;
    double plan_us; /* time that the plan took */
    bool lower;     /* K and V in q8 are planned because nothing else fits */
};
/* A placement in a few words. */
const char *plan_label(char out[160], const struct sg_option *p);
json_t *plan_json(const struct sg_options *o, const struct plan_subject *h);
/* explain: the terms of the choice as bars, and why the others lose. */
void plan_text(struct out_text *text, const struct sg_options *o, const struct plan_subject *h, bool explain);
segue_status plan_html(const struct sg_options *o, const struct plan_subject *h, const char *path, segue_error *err);

#endif
