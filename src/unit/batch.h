/* batch.h: shared by the units: validation of a batch, a run that computes on the caller's thread, on a new one or on that of a
 * queue, waiting for it.
 * A unit that computes one run at a time per program implements struct sg_thread_run_ops and nothing else of start and wait.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_BATCH_H
#define SG_UNIT_BATCH_H

#include <pthread.h>

#include "unit/run_queue.h"
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

/* The common part of a run; the first member of the unit's struct sg_run. It is allocated at start and freed after wait, or kept
 * by the unit's queue for the next start. */
struct sg_thread_run {
    struct sg_run_base base;
    struct sg_batch batch;           /* its spans are the copy below */
    struct sg_span *spans;           /* [spans_cap] the unit may advance them from step to step */
    struct sg_result result;         /* copy: the caller's buffers */
    struct sg_result *report;        /* the caller's struct, written by wait */
    struct sg_chooser *chooser;      /* NULL until sg_thread_run_chooser */
    int32_t *history;                /* [history_cap] with steps > 1: history_n of the sampler + steps, see sg_generation_begin */
    uint32_t *rows_done;             /* [spans_cap] counted by the unit, reported by wait */
    uint32_t spans_cap;
    size_t history_cap;
    int kept;                        /* 1: the queue had it; arrays, lock and finished are those of an earlier run */
    uint64_t ns;                     /* duration of work */
    segue_status status;             /* result of work ... */
    segue_error error;               /* ... and its text */
    void (*work)(struct sg_thread_run *run);    /* the whole run; sets status and error */
    const struct sg_thread_run_ops *ops;        /* NULL: not made by sg_thread_run_open */
    struct sg_run_queue *queue;      /* NULL: a run without inline_hint has a thread of its own */
    struct sg_queued queued;         /* the entry in that queue */
    pthread_t thread;
    int threaded;                    /* 1: `thread` was started and is to be joined */
    int done;
    pthread_mutex_t lock;            /* guards done */
    pthread_cond_t finished;
};

/* What a unit adds to a run. `run` is the unit's struct sg_run, whose first member is struct sg_thread_run. */
struct sg_thread_run_ops {
    struct sg_batch_rules rules;
    size_t size;                     /* of the unit's struct sg_run, which is zeroed */
    /* The queue of the program's unit; optional. */
    struct sg_run_queue *(*queue)(struct sg_program *p);
    /* Allocates what the run needs. The common part is complete, no state is acquired yet. */
    segue_status (*fill)(struct sg_thread_run *run, struct sg_program *p, segue_error *err);
    /* The states of all spans were acquired, before any thread computes; optional. After a failure they are released. */
    segue_status (*acquired)(struct sg_thread_run *run, segue_error *err);
    /* The whole run; usually calls sg_thread_run_steps. The states are released afterwards. */
    void (*work)(struct sg_thread_run *run);
    void (*released)(struct sg_thread_run *run); /* the states were released, the run is not done yet; optional */
    /* One pass over the batch and the choice of tokens. first 1: logits and values are copied to the result. sampler NULL: that
     * of each span. *token: the one chosen last. */
    segue_status (*step)(struct sg_thread_run *run, int first, const struct sg_sampler *sampler, int32_t *token);
    /* Copies the unit's counters to the caller's result, also after a failure. */
    void (*report)(const struct sg_thread_run *run, struct sg_result *r);
    void (*release)(struct sg_thread_run *run);  /* what fill and the run allocated, also when fill failed; optional */
};
/* Checks the batch, allocates the run or takes one that the queue kept, acquires all states and starts it. For the member start
 * of struct sg_unit_ops. */
segue_status sg_thread_run_open(const struct sg_thread_run_ops *ops, struct sg_program *p, const struct sg_batch *b,
                                struct sg_result *r, struct sg_run **out, segue_error *err);
/* The member wait of struct sg_unit_ops for such a run. */
segue_status sg_thread_run_end(struct sg_run *run, uint64_t timeout_ns, segue_error *err);
/* Calls step once or, with steps > 1, until the generation is complete: each later step reads the token that was chosen last. A
 * stop token is published but not read. Sets status. */
void sg_thread_run_steps(struct sg_thread_run *run);

/* For units with more to do between these. Copies batch and spans. Also after a failure the run is to be freed with
 * sg_thread_run_free. */
segue_status sg_thread_run_init(struct sg_thread_run *run, const struct sg_program_base *p, const struct sg_batch *b,
                              struct sg_result *r, void (*work)(struct sg_thread_run *run), segue_error *err);
/* Allocates `chooser` on first use: about 40 bytes per token of the vocabulary. */
segue_status sg_thread_run_chooser(struct sg_thread_run *run, uint32_t vocab, segue_error *err);
/* Calls work: in this call with inline_hint or when no thread can be started, else on the queue's thread or on a new one. */
void sg_thread_run_start(struct sg_thread_run *run);
/* SEGUE_END: not done. Otherwise the status of the run; rows_done and ns are in the caller's result. */
segue_status sg_thread_run_wait(struct sg_thread_run *run, uint64_t timeout_ns, segue_error *err);
void sg_thread_run_free(struct sg_thread_run *run);     /* not the struct itself */
/* Waits for the runs in the queue, which all were waited for, ends its thread and frees the runs that it kept. */
void sg_thread_run_close(struct sg_run_queue *q);

#endif
