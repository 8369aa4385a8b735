/* probe_units.h: measures what runs cost on units: `segue calibrate` and `segue bench --predict`. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PROBE_UNITS_H
#define SEGUE_CLI_PROBE_UNITS_H

#include <stdbool.h>
#include "engine/planner/modelcost.h"

enum { PROBE_UNITS = 12, PROBE_SAMPLES = 512 };

/* Repeats of one phase on one unit: logarithms of their times over the shortest of each case. */
struct probe_spread {
    double of[PROBE_SAMPLES];
    size_t n;
};

/* Watts under a load, and the load in 10^9 weights and rows per second. */
struct probe_load {
    double watts, rate;
};

/* A model on units. Zero-initialised; closed by probe_close in any case. */
struct probe {
    segue_model *model;
    segue_unit *units[PROBE_UNITS];
    char specs[PROBE_UNITS][64]; /* as the units report themselves */
    segue_unit_info info[PROBE_UNITS];
    size_t units_n;
    segue_engine *engine;
    struct sg_model_cost cost; /* sizes of the model */
    uint32_t vocab, layers;
    const char *storage; /* of segue_model_opts, for the next model */
    segue_kv kv;         /* of segue_engine_opts, for the next model */
    double load_ms; /* time to place the weights on all units */
    uint64_t hurry_ns; /* from then on cases are repeated less often, 15 s later not at all; 0: never */
    struct probe_spread spread[PROBE_UNITS][2]; /* by unit and SG_PHASE_* */
    struct probe_load load[PROBE_UNITS][2];     /* the smaller of two loads */
};
/* Open units by spec; a unit that is already open under its full name is left out. */
segue_status probe_open_units(struct probe *p, const char *const *specs, size_t n, segue_error *err);
/* The specs of at most `max` units that may be used without being named; they live in infos, which has `cap` entries. Returns
 * their number. */
size_t probe_list_units(segue_unit_info *infos, size_t cap, const char **names, size_t max);
/* Open the model file on the open units; closes an earlier one. cache: folder of packed weights or NULL. */
segue_status probe_open_model(struct probe *p, const char *path, const char *cache, segue_error *err);
void probe_close(struct probe *p);

/* One run: `depth` tokens unmeasured, then `prompt` tokens and `output` generated ones. */
struct probe_times {
    double prefill_ms, ttft_ms, handoff_ms; /* handoff: the exposed part */
    double token_ms;                      /* mean, without the first one */
    double total_ms, joules;                /* joules: of the units, over the whole run; negative: not known */
};
/* prefill, decode: indices of units. split > 0: layers [0, split) on `prefill`, the others on `decode`, in both phases. */
struct probe_case {
    size_t prefill, decode, depth, prompt, output, split;
};
segue_status probe_run(struct probe *p, const struct probe_case *c, struct probe_times *out, segue_error *err);
/* Runs of one case. Costs come from the shortest runs: other work on the machine only adds to a time, and differences of two
 * times are small. Not from the fastest tokens of a run: a GPU may hand out several at once. */
enum { PROBE_ROUNDS = 7 };
struct probe_sample {
    struct probe_case c;
    double least, usual, handoff; /* ms of a prefill or a step: shortest and median; the shortest hand-off */
    double ms[PROBE_ROUNDS + 1], handoffs[PROBE_ROUNDS + 1], spent_ms;
    size_t n;
};
/* Measures cases in turn, each up to PROBE_ROUNDS times, so that other work of a second meets a run of all of them rather than
 * all runs of one. Adds what repeats say of their units to p->spread. probe_rounds.c. */
segue_status probe_rounds(struct probe *p, struct probe_sample *samples, size_t n, segue_error *err);
int probe_compare(const void *a, const void *b); /* two doubles, for qsort */
/* Sum of the energy counters of two units in J, one unit counted once; -1: a unit has none. */
double probe_joules(struct probe *p, size_t prefill, size_t decode);

/* The numbers of unitcost.h for every open unit, from models of random weights in a temporary folder. Replaces what costs hold of
 * these units. show: called with a line on progress; may be NULL. */
segue_status probe_units(struct probe *p, struct sg_unit_costs *costs, void (*show)(const char *line), segue_error *err);
/* Watts of one phase (SG_PHASE_*) of the open model, and how many 10^9 weights and rows it multiplies per second. *watts is
 * negative without a meter. */
segue_status probe_power(struct probe *p, size_t unit, int phase, double *watts, double *rate, segue_error *err);
/* A few runs of the open model on every unit: the factors of the model. probe_real.c. */
segue_status probe_real(struct probe *p, struct sg_unit_costs *costs, segue_error *err);
/* A hash of the processor and of the part of it that this process may use: costs of another machine are not used. */
void probe_machine(char out[40]);

#endif
