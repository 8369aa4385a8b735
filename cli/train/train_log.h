/* train_log.h: what `segue train` reports of every update: a line of CSV, a JSON object, a chart at the end.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_TRAIN_LOG_H
#define SEGUE_CLI_TRAIN_LOG_H

#include "term/out.h"
#include "segue_train.h"

/* One update. */
struct train_step {
    uint64_t step;               /* from 1 on */
    double loss;                 /* mean per labelled token */
    double rate, norm;           /* learning rate; norm of the gradient */
    double held_out;             /* loss of the held-out part; NAN: not evaluated */
    double ms;                   /* of this update */
    double reward, reward_deviation, kl, clipped, answer_tokens;   /* with --grpo: means; `clipped` is a share */
    uint64_t tokens;             /* of this update */
    double joules;               /* of this update; NAN: not measured */
    const char *sample;          /* an answer after it; NULL: none; valid during train_log_add */
    segue_train_result device;   /* sums of its micro-batches */
};

struct train_log {
    FILE *csv;                   /* NULL: none */
    bool json;                   /* an object per update on stdout */
    bool grpo;                   /* with rewards */
    uint64_t overlap_ns;         /* with --grpo: of sampling beside updates */
    double flops;                /* of forward and backward pass, per token */
    double roof;                 /* operations per second of products on the unit; 0: not measured, see roof_error */
    segue_error roof_error;
    double joules;               /* of all updates, as far as they were measured */
    bool device;                 /* the unit computes beside a host: report what it did */
    const char *html;            /* NULL: no page */
    struct train_step *steps;    /* [n] those of earlier processes, as far as --metrics has them, come first */
    size_t n, earlier_n;
    uint64_t earlier_tokens;     /* of earlier processes, and their seconds */
    double earlier_s;
    uint64_t start_ns;
    uint64_t tokens;             /* of this process */
    segue_train_result sum;      /* of the updates of this process: device figures */
    uint64_t late_compiles;      /* compiles after the first update of this process */
};

/* path NULL: no CSV. done: updates that the checkpoint has; the file keeps the lines of these, and continues after them.
 * EIO. EFORMAT: the file is not one of such a run. */
segue_status train_log_open(struct train_log *l, const char *path, uint64_t done, segue_error *err);
/* EIO: the CSV cannot be written. */
segue_status train_log_add(struct train_log *l, const struct train_step *s, segue_error *err);
/* Of the roof that an update reached; NAN: not known. */
double train_log_roof_share(const struct train_log *l, const struct train_step *s);
/* Writes the page, if there is to be one. title: of the page. */
segue_status train_log_page(const struct train_log *l, const char *title, segue_error *err);
/* Adds the figures of the unit to the result: per update, and how much of its time the host used. */
void train_log_put(const struct train_log *l, json_t *result);
void train_log_close(struct train_log *l);

#endif
