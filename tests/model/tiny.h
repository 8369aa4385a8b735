/* tiny.h: opens a small model, runs it on a unit by the unit's table, and compares what comes out with a
 * golden file: hidden states first (the first wrong layer shows), then logits, caches, decode steps, greedy
 * tokens.
 * SPDX-License-Identifier: MIT */
#ifndef TESTS_MODEL_TINY_H
#define TESTS_MODEL_TINY_H

#include "model/adapter.h"
#include "model/model.h"
#include "unit/unit.h"

/* What to do beside running the model as it is. */
struct tiny_wish {
    const struct sg_unit_ops *unit;     /* NULL: ref */
    enum sg_storage kv;                 /* of K and V; 0 = F32 */
    void (*mutate)(struct sg_graph *g); /* a deliberate mistake; may be NULL */
    const struct sg_lora *lora;         /* NULL: none */
    const struct segue_model *model;    /* opened already; NULL: path is opened */
    uint32_t chunk;                     /* rows a run of the prompt takes; 0 = all */
    const char *spec;                   /* NULL: the unit's kind */
    uint32_t pad;                       /* tokens of id 0 put in front of the prompt */
};

/* The worst difference of one comparison. */
struct tiny_error {
    double max, mean;
    char where[96]; /* the first tensor beyond 1e-3, else the worst */
    double top;     /* share of positions whose best token is the golden's */
    int greedy_equal;
};

/* Fails with err when the model or the golden cannot be read or run. */
segue_status tiny_compare(const char *model, const char *golden, const struct tiny_wish *wish,
                          struct tiny_error *out, segue_error *err);

/* The folder of the goldens: $SEGUE_TINY_SET or the committed one. */
const char *tiny_folder(void);

#endif
