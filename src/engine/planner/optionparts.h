/* optionparts.h: what the placements of options.h have in common, for the files that make them. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_OPTIONPARTS_H
#define SG_ENGINE_OPTIONPARTS_H

#include "engine/planner/options.h"

/* Checkpoints of a session, docs/STATE.md: at most this many of the fixed part. */
enum { SG_CHECKPOINTS = 8 };
/* Factor of the intervals of what was not measured. */
#define SG_UNVERIFIED 2.0

static inline struct sg_figure sg_option_figure(double mid, double factor)
{
    return mid < 0 ? (struct sg_figure){-1, -1, -1} : (struct sg_figure){mid, mid / factor, mid * factor};
}

static inline void sg_option_term(struct sg_option *o, const char *name, double ms)
{
    if (!(ms > 0) || o->terms_n == SG_TERMS) return;
    o->terms[o->terms_n].name = name;
    o->terms[o->terms_n++].ms = ms;
}

/* What the sessions of a task hold at their end. */
static inline double sg_task_kv_bytes(const struct sg_model_cost *m, const struct sg_plan_task *t)
{
    return t->sessions * (m->kv_bytes * (t->depth + t->turns * (t->prompt + t->output)) + m->state_bytes);
}

static inline double sg_task_checkpoint_bytes(const struct sg_model_cost *m, const struct sg_plan_task *t)
{
    return m->state_bytes > 0 ? SG_CHECKPOINTS * m->state_bytes * t->sessions : 0;
}

static inline void sg_option_memory(struct sg_option *o, const struct sg_model_cost *m, const struct sg_plan_task *t)
{
    o->kv_bytes = sg_task_kv_bytes(m, t);
    o->checkpoint_bytes = sg_task_checkpoint_bytes(m, t);
    o->disk_bytes = m->disk_bytes > 0 ? m->disk_bytes : m->file_bytes;
}

/* published_options.c: the published pipelines of s->chip. */
void sg_options_published(struct sg_options *out, const struct sg_plan_source *s, const struct sg_model_cost *m,
                          const struct sg_plan_task *t);

#endif
