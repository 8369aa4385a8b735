/* placement.h: from flags to a ready engine: opens the model, the units, the LoRA adapters and the engine, and builds the
 * plan that assigns the phases prefill and decode to units.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PLACEMENT_H
#define SEGUE_CLI_PLACEMENT_H

#include "term/args.h"
#include "term/out.h"

/* Largest number of different units in a plan, and of adapters given with --lora. */
enum { PLACEMENT_UNITS = 8, PLACEMENT_ADAPTERS = 16, PLACEMENT_PARTS = 16 };
/* Flags of placement_open. KEEP_VALUES: the engine can dump the intermediate values of every layer. EMBEDDINGS: it can give the
 * final hidden values. */
enum { PLACEMENT_KEEP_VALUES = 1, PLACEMENT_EMBEDDINGS = 2 };

/* Everything a command needs to open sessions. Zero-initialised by the open functions; units, specs, unit_info, models
 * and model_info have the same index. */
struct placement {
    char *path;          /* of the model file or folder */
    const char *storage; /* --storage fp8; NULL: as in the file */
    const char *compressed; /* --storage of programs of ane; NULL: fp16 */
    unsigned compressed_units; /* units that were opened with it */
    segue_model *model; /* the model of -m */
    segue_model_info info; /* of model; its strings belong to the model */
    segue_unit *units[PLACEMENT_UNITS];
    char *specs[PLACEMENT_UNITS]; /* as given by the user; NULL: chosen by the library */
    segue_unit_info unit_info[PLACEMENT_UNITS];
    segue_model *models[PLACEMENT_UNITS]; /* another storage of the model for one unit (model=, storage=); NULL: model */
    segue_model_info model_info[PLACEMENT_UNITS];
    size_t units_n;
    segue_engine *engine; /* NULL after placement_open_model */
    segue_part parts[PLACEMENT_PARTS];  /* [parts_n] parts of the plan; none unless planned */
    size_t parts_n;
    uint32_t shapes[SEGUE_PLAN_SHAPES]; /* tokens of the prefill runs of a pipeline; 0: none */
    segue_plan *plan;     /* made of parts and shapes; NULL unless planned */
    struct follow *follow; /* the planner's choice that is followed; NULL: units were named, or follow_why */
    const char *follow_why; /* why no plan is followed although no unit was named */
    bool planned;         /* the flags define a plan; otherwise unit 0 runs both phases */
    const char *pipeline; /* name given with --pipeline, or NULL */
    segue_adapter *adapters[PLACEMENT_ADAPTERS];
    size_t adapters_n;
    uint64_t load_ns, compile_ns; /* time to open the model; time to open units, adapters and engine */
    double memory_bandwidth_gb_s;           /* memory bandwidth, measured by the first report of the process; 0: not measured */
};

/* Open the model only, or model, units, adapters and engine. On failure they print the error, close everything and return
 * the exit code; 0: success. */
int placement_open_model(struct placement *p, const struct args *args);
int placement_open(struct placement *p, const struct args *args, unsigned flags);
/* Where the first message of a conversation comes from. Called at most once, when the model is open and the plan depends on the
 * message; it may wait for input. NULL: the message is not known yet. */
struct first_message {
    const char *(*read)(void *context);
    void *context;
};
/* first: NULL: no message is known before the first answer. */
int placement_open_for(struct placement *p, const struct args *args, unsigned flags, const struct first_message *first);
/* As placement_open_for, but without printing or closing. *unsupported_code is the exit code for SEGUE_EUNSUPPORTED: a file
 * was rejected (EXIT_BAD_INPUT), or a unit is missing (EXIT_UNAVAILABLE). */
segue_status placement_try(struct placement *p, const struct args *args, unsigned flags, const struct first_message *first,
                           int *unsupported_code, segue_error *err);
/* Close everything and zero *p. Sessions of the engine must be closed before. */
void placement_close(struct placement *p);

/* Open one unit by its spec; NULL: the fastest available one. threads 0: as the spec says. Threads apply to CPU units. */
segue_status placement_open_unit(segue_unit **out, const char *spec, unsigned threads, segue_error *err);
/* The path of PATH[=SCALE], to be freed, and the scale. */
char *placement_adapter_path(const char *text, float *scale);
/* Load a LoRA adapter given as PATH[=SCALE]. */
segue_status placement_load_adapter(segue_adapter **out, const segue_model *model, const char *text, segue_error *err);
/* Load an adapter and append it to p->adapters. */
segue_status placement_add_adapter(struct placement *p, const char *text, segue_error *err);
/* The plan for segue_session_opts: the one of the flags, or NULL. */
const segue_plan *placement_plan(const struct placement *p);

#endif
