/* options.h: all placements of a task on the units of a chip, with their costs, and the choice among them. Pure: nothing is
 * opened, equal inputs give equal results. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_OPTIONS_H
#define SG_ENGINE_OPTIONS_H

#include "engine/planner/chips/chip.h"
#include "engine/planner/phasecost.h"

/* Where the costs come from: published pipelines of a chip, or measured units; one of them is NULL. */
struct sg_plan_source {
    const struct sg_chips *chips;
    const struct sg_chip *chip;
    const struct sg_unit_costs *costs;
};

/* Expected value; low and high hold 9 of 10 runs. mid < 0: not known. */
struct sg_figure {
    double mid, low, high;
};
enum { SG_TERMS = 8 };
struct sg_option {
    const char *pipeline;         /* single, split, gpu, fixed, ane-seq, ane-batch, ... */
    char prefill[160], decode[160]; /* units; divided layers: U@A-B|V@C-D, A to B inclusive */
    const char *storage;          /* of the weights: that of the model or of one `also` */
    int converted;                /* 1: of an `also` */
    int kv;                       /* SG_KV_FORM_*: how states have K and V */
    int asked_kv;                 /* 0: another form than the model's own, of an `also` */
    int alone;                    /* 1: one unit does all */
    struct sg_figure ttft_ms, token_ms, handoff_ms, load_ms, total_ms, joules, watts;
    double joules_least; /* of the units that have a meter, where another has none and joules are not known; else negative */
    double prefill_bytes, decode_bytes, kv_bytes, checkpoint_bytes, disk_bytes;
    struct {
        const char *name;
        double ms;
    } terms[SG_TERMS]; /* of the total, of all turns */
    size_t terms_n;
    const char *excluded; /* why it cannot be chosen; NULL: it can */
    int unverified;
    double margin; /* share by which another placement must be better; less is within the scatter of runs */
};

/* The reason of `excluded` where memory is too small. */
#define SG_DOES_NOT_FIT "does not fit in the unit's memory"
enum { SG_OPTIONS_MAX = 1024 };
struct sg_options {
    struct sg_option list[SG_OPTIONS_MAX];
    size_t n;
    int choice;                         /* -1: none can be chosen */
    const char *dominant;               /* the largest term of the choice */
    double crossover, energy_crossover; /* prompt length at which the choice for time or energy changes; 0: none */
    size_t computed, priced;            /* phases of a unit computed, and placements priced, at all lengths */
};

/* Fills out with the placements of the model, and of each `also` of it. The sizes must be valid. */
void sg_options_make(struct sg_options *out, const struct sg_plan_source *source, const struct sg_model_cost *model,
                     const struct sg_plan_task *task);

/* The choice among the options that are not excluded, for the task's objective; -1: none. Of those that count as equal to
 * the least one, a unit alone wins against a split, then the first in the list. */
int sg_options_choose(const struct sg_options *o, const struct sg_plan_task *task);
/* The term of a placement that takes most of its time; NULL: it has none. */
const char *sg_option_dominant(const struct sg_option *o);
/* 1: nothing can be chosen, and some placement only because it does not fit. */
int sg_options_too_large(const struct sg_options *o);

#endif
