/* placement.h: from flags to a model that stands ready on units: model, units, plan, adapters, engine.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PLACE_H
#define SEGUE_CLI_PLACE_H

#include "term/args.h"
#include "term/out.h"

enum { PLACE_UNITS = 8, PLACE_ADAPTERS = 16 };
enum { PLACE_KEEP_VALUES = 1, PLACE_QUIET = 2 };

struct place {
    char *path;
    const char *storage; /* --storage; NULL: as the file has it */
    segue_model *model;
    segue_model_info info;
    segue_unit *units[PLACE_UNITS];
    char *specs[PLACE_UNITS]; /* as the user wrote them; NULL = the library's choice */
    segue_unit_info unit_info[PLACE_UNITS];
    segue_model *models[PLACE_UNITS]; /* another storage of the model for that unit (model=); NULL: the model */
    segue_model_info model_info[PLACE_UNITS];
    size_t units_n;
    segue_engine *engine;
    segue_plan plan;
    bool planned;         /* the plan comes from flags */
    const char *pipeline; /* its name, when it has one */
    segue_adapter *adapters[PLACE_ADAPTERS];
    size_t adapters_n;
    uint64_t load_ns, compile_ns;
    double stream_gb_s; /* 0 until the first report of this process measured it */
};

/* Each prints its error and gives an exit code; 0 = done. A failed open leaves nothing open. */
int place_open_model(struct place *p, const struct args *args);
int place_open(struct place *p, const struct args *args, unsigned flags);
/* Without printing: *what is the exit code of EUNSUPPORTED, which says whether a file or a unit was refused. */
segue_status place_try(struct place *p, const struct args *args, unsigned flags, int *what, segue_error *err);
void place_close(struct place *p);

/* Open one unit by its spec (NULL: the fastest real one); threads 0 = as the spec says. */
segue_status place_unit(segue_unit **out, const char *spec, unsigned threads, segue_error *err);
/* PATH[=SCALE]. */
segue_status place_adapter_open(segue_adapter **out, const segue_model *model, const char *text, segue_error *err);
/* The same, appended to p->adapters. */
segue_status place_adapter(struct place *p, const char *text, segue_error *err);
/* The plan of a session: the one of the flags, or NULL. */
const segue_plan *place_plan(const struct place *p);

#endif
