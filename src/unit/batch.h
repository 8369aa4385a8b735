/* batch.h: shared by the units: validation of a batch, a run that computes on the caller's or on a new thread, waiting for it.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_BATCH_H
#define SG_UNIT_BATCH_H

#include <pthread.h>

#include "unit/unit.h"

/* What sg_batch_check needs to know about a unit. The functions read a state of that unit. */
struct sg_batch_rules {
    const char *unit;                /* named in errors */
    uint64_t rows_max;               /* tokens of all spans together; 0 = UINT32_MAX / 2 */
    int stateless;                   /* 1: a graph without slots needs no state */
    uint64_t (*rows)(const struct sg_state *s);                             /* length of the sequence in tokens */
    const struct sg_slot *(*slot)(const struct sg_state *s, uint32_t i);    /* NULL: the state has fewer slots */
};
/* EARG, ELIMIT: names the span and the problem. Changes nothing. */
segue_status sg_batch_check(const struct sg_batch_rules *rules, const struct sg_program_base *p,
                            const struct sg_batch *b, segue_error *err);

/* Waits until *done, which is written under the lock and then signalled, or for timeout_ns (0: polls). Returns *done. */
int sg_wait_done(pthread_mutex_t *lock, pthread_cond_t *changed, const int *done, uint64_t timeout_ns);

/* The common part of a run that allocates at start and frees after wait; the first member of the unit's struct sg_run. */
struct sg_thread_run {
    struct sg_run_base base;
    struct sg_batch batch;           /* its spans are the copy below */
    struct sg_span *spans;           /* [spans_n] the unit may advance them from step to step */
    struct sg_result result;         /* copy: the caller's buffers */
    struct sg_result *report;        /* the caller's struct, written by wait */
    struct sg_chooser *chooser;      /* NULL until sg_thread_run_chooser */
    int32_t *history;                /* [history_n of the first span's sampler + steps], see sg_generation_begin */
    uint32_t *rows_done;             /* [spans_n] counted by the unit, reported by wait */
    uint64_t ns;                     /* duration of work */
    segue_status status;             /* result of work ... */
    segue_error error;               /* ... and its text */
    void (*work)(struct sg_thread_run *run);    /* the whole run; sets status and error */
    pthread_t thread;
    int threaded;                    /* 1: `thread` was started and is to be joined */
    int done;
    pthread_mutex_t lock;            /* guards done */
    pthread_cond_t finished;
};
/* Copies batch and spans. Also after a failure the run is to be freed with sg_thread_run_free. */
segue_status sg_thread_run_init(struct sg_thread_run *run, const struct sg_program_base *p, const struct sg_batch *b,
                              struct sg_result *r, void (*work)(struct sg_thread_run *run), segue_error *err);
/* Allocates `chooser` on first use: about 40 bytes per token of the vocabulary. */
segue_status sg_thread_run_chooser(struct sg_thread_run *run, uint32_t vocab, segue_error *err);
/* Calls work: in this call with inline_hint or when no thread can be started, else on a new thread. */
void sg_thread_run_start(struct sg_thread_run *run);
/* SEGUE_END: not done. Otherwise the status of the run; rows_done and ns are in the caller's result. */
segue_status sg_thread_run_wait(struct sg_thread_run *run, uint64_t timeout_ns, segue_error *err);
void sg_thread_run_free(struct sg_thread_run *run);     /* not the struct itself */

#endif
