/* batch.h: what every unit asks of a batch before it runs it; a run that is carried out by the caller's thread or by one
 * of its own; waiting for a run.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_BATCH_H
#define SG_UNIT_BATCH_H

#include <pthread.h>

#include "unit/unit.h"

/* What a batch must keep on one unit. The functions look into a state that the unit made. */
struct sg_batch_rules {
    const char *unit;                /* named in errors */
    uint64_t rows_max;               /* of all spans together; 0 = UINT32_MAX / 2 */
    int stateless;                   /* 1: a graph without slots needs no state */
    uint64_t (*rows)(const struct sg_state *s);                             /* rows of the sequence */
    const struct sg_slot *(*slot)(const struct sg_state *s, uint32_t i);    /* NULL: it has fewer */
};
/* EARG, ELIMIT: names the span and what is wrong with it. Nothing is changed. */
segue_status sg_batch_check(const struct sg_batch_rules *rules, const struct sg_program_base *p,
                            const struct sg_batch *b, segue_error *err);

/* Until *done (written under the lock, then signalled) or timeout_ns; 0 = look once. 1: done. */
int sg_wait_done(pthread_mutex_t *lock, pthread_cond_t *changed, const int *done, uint64_t timeout_ns);

/* The common part of a run that takes its memory at start and gives it back after wait; the first member of a unit's
 * struct sg_run. */
struct sg_thread_run {
    struct sg_run_base base;
    struct sg_batch batch;           /* its spans are the copy below */
    struct sg_span *spans;           /* [spans_n] */
    struct sg_result result;         /* the caller's pointers */
    struct sg_result *report;        /* the caller's struct, filled by wait */
    struct sg_chooser *chooser;      /* NULL: none was needed so far */
    int32_t *history;                /* steps > 1: room for the sampler's history and what is chosen since */
    uint32_t *rows_done;             /* [spans_n] */
    uint64_t ns;
    segue_status status;
    segue_error error;
    void (*work)(struct sg_thread_run *run);    /* all of it; sets status, fills error */
    pthread_t thread;
    int threaded, done;
    pthread_mutex_t lock;            /* guards done */
    pthread_cond_t finished;
};
/* EMEMORY leaves a run that sg_thread_run_free takes. */
segue_status sg_thread_run_init(struct sg_thread_run *run, const struct sg_program_base *p, const struct sg_batch *b,
                              struct sg_result *r, void (*work)(struct sg_thread_run *run), segue_error *err);
/* Makes `chooser` where it is not there yet: some 40 bytes a token of the vocabulary, so not for a unit that needs none. */
segue_status sg_thread_run_chooser(struct sg_thread_run *run, uint32_t vocab, segue_error *err);
/* Works inside this call when the batch hints so or no thread can be had, else on a thread of its own. */
void sg_thread_run_start(struct sg_thread_run *run);
/* SEGUE_END: not over yet. Else what the run came to; rows_done and ns are reported. */
segue_status sg_thread_run_wait(struct sg_thread_run *run, uint64_t timeout_ns, segue_error *err);
void sg_thread_run_free(struct sg_thread_run *run);     /* frees what begin took, not the struct */

#endif
