/* train_job.h: one run of `segue train`: its units, trainer, settings and files.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_TRAIN_JOB_H
#define SEGUE_CLI_TRAIN_JOB_H

#include "meter/unit_meter.h"
#include "run/placement.h"
#include "run/trace.h"
#include "train/prompts.h"
#include "train/rollouts.h"
#include "train/samples.h"
#include "train/train_adapter.h"
#include "train/train_log.h"

/* One run. */
struct train_job {
    const struct args *args;
    struct args shaped;         /* with --shape: the flags with the model of this shape */
    struct placement placement;
    struct train_data samples;
    struct train_prompts prompts; /* with --grpo, instead of samples */
    segue_unit *unit, *host;    /* host NULL: the unit computes everything */
    segue_trainer *trainer;
    struct train_log log;
    struct train_prompts shown; /* --sample: one prompt, or none */
    struct sampler_engine sampler; /* with --sample and without --full */
    struct unit_meter *meter;   /* --meter; NULL: none */
    struct trace trace;         /* --trace, without --grpo */
    size_t events;              /* in it */
    const char *out;            /* folder */
    char *result;               /* model that was written with --full; NULL: an adapter, or nothing yet */
    bool full, grpo;            /* --full, --grpo */
    bool keeping;               /* what a step leaves is being written, or that failed */
    enum adapter_form form;
    char run[33];               /* of data and settings, for the checkpoint */
    uint64_t seed, steps, step; /* steps wanted and done */
    size_t batch;
    double first, last; /* mean loss per token of the held-out part, with --grpo mean reward; NAN: nothing is held out */
    double loss;              /* of the last step */
};

enum { TRAIN_CONTEXT = 256 };

/* Tokens of a sequence at most. */
size_t job_context(const struct train_job *j);
/* Tokens that are computed together at most: at least one sequence. */
size_t job_micro_batch(const struct train_job *j);
/* Learning rate of a step: linear warm-up, then a half cosine to a tenth. */
double job_rate(const struct train_job *j, uint64_t step);
/* Fills j->run with a hash of what must be equal for a run to be continued: settings, weights, data. */
void job_identify(struct train_job *j);
/* The model of -m, or with --shape one that has its tokenizer. Prints errors; returns the exit code, with nothing open. */
int job_open_model(struct train_job *j);
/* Units and trainer. */
segue_status job_open(struct train_job *j, segue_error *err);
/* What --sample and --meter need; after job_open. */
segue_status job_open_extras(struct train_job *j, segue_error *err);
/* Measures the roof, if something reports it. */
void job_roof(struct train_job *j);
/* --sample: an answer after this step, if one is due. *text NULL: none. With --full it is that of the model as it is now, which
 * is written to the folder. */
segue_status job_sample(struct train_job *j, char **text, segue_error *err);
/* Checkpoint and adapter. */
segue_status job_keep(struct train_job *j, segue_error *err);
/* Adds what the last micro-batch did to the trace: products of the unit and, in a row of its own, weight gradients of the host;
 * of a unit alone the whole micro-batch, which began at begin_ns. */
void job_trace_pass(struct train_job *j, uint64_t begin_ns);
void job_trace_update(struct train_job *j, uint64_t begin_ns);
/* Writes the trace, if there is to be one. */
segue_status job_trace_end(struct train_job *j, segue_error *err);
/* Adds a micro-batch to the sums of a step. */
void job_sum(segue_train_result *sum, const segue_train_result *r);

#endif
