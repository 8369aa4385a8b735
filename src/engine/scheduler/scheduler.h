/* scheduler.h: many requests on one engine. A request has a session, which one thread at a time computes: the thread whose round
 * has claimed the request. Everything else in a request and in the scheduler is guarded by the scheduler's lock, which is never
 * held while a unit computes. No other lock is taken while it is held.
 *
 * Work is divided between two workers. The worker `prefill` computes prompts of plans with two units, one chunk after the other,
 * with the hand-off, and reads states from files; the worker `shared` computes everything else, in runs that all its requests
 * share with each other and with single sessions, through the queue of the layer range (queue/shared_queue.h). One round of each
 * may be in progress at once, so that two units work at the same time. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_SCHEDULER_H
#define SG_ENGINE_SCHEDULER_H

#include <pthread.h>

#include "engine/session/shared_run.h"

enum { SG_WORKER_PREFILL = 0, SG_WORKER_SHARED = 1, SG_WORKERS = 2 };

enum { SG_REQUESTS_MAX = 4096 /* with states at once */ };

enum sg_request_state {
    SG_REQUEST_WAITING, /* not started */
    SG_REQUEST_RUNNING, /* started; has states, unless it is preempted */
    SG_REQUEST_ENDED    /* not in the scheduler's lists any more */
};

struct segue_request {
    struct segue_request *next, *before; /* neighbours in a list of the scheduler */
    struct segue_scheduler *scheduler;   /* a reference */
    uint64_t number;                     /* in order of submission */
    segue_request_opts opts;             /* without pointers */
    struct segue_session *session;       /* NULL: closed after the end */
    uint32_t borrowed;                   /* 1: the session is the caller's */
    enum sg_request_state state;
    uint32_t claimed;                    /* 1: a round uses the session */
    uint32_t worker;                       /* valid while running and not claimed */
    uint32_t prepared;                   /* 1: states exist and the prefix store was searched */
    uint32_t canceled;
    uint32_t blocked;                    /* 1: first in the queue, and waiting for memory */
    uint64_t bytes;                      /* of states, checkpoints and their next growth, while running or to start */
    size_t first_token;                  /* tokens of the session before the first chosen one */
    int32_t *tokens;                     /* [out_cap] out_n chosen, read_n of them read */
    segue_logprob *logprobs;             /* [out_cap, logprobs_n]; NULL without log-probabilities */
    size_t out_n, out_cap, read_n, logprobs_n;
    int32_t *prompt;                     /* [prompt_n] SEGUE_SCORE: tokens not yet appended start at prompt_at */
    size_t prompt_n, prompt_at;
    double *sum;                         /* [width] SEGUE_EMBED: so far */
    float *values;                       /* [values_n] result of SEGUE_SCORE and SEGUE_EMBED */
    size_t values_n;
    segue_error error;                   /* why it failed; status OK: it did not */
    segue_request_info info;             /* as of the last round */
    pthread_cond_t changed;              /* signalled on new tokens, on the end, and when claimed becomes 0 */
};

struct sg_request_list {
    struct segue_request *first, *last;
    size_t n;
};

struct segue_scheduler {
    atomic_uint references;
    struct segue_engine *engine; /* a reference */
    segue_scheduler_opts opts;   /* defaults filled in; plan and pointers NULL */
    segue_plan *plan;            /* owned */
    pthread_mutex_t lock;        /* guards everything below, and requests */
    pthread_cond_t work;         /* a worker may have work, or is to stop */
    pthread_cond_t changed;      /* `changes` rose, or the scheduler closes */
    struct sg_request_list waiting, running;
    struct sg_share *shares;                    /* [opts.running] used by the round of the worker `shared` */
    struct sg_mask_thread *masks;               /* NULL: manual */
    struct segue_request **round[SG_WORKERS];   /* [opts.running] claimed by the round of the worker */
    uint32_t busy[SG_WORKERS];                  /* 1: a round of this worker is in progress */
    pthread_t threads[SG_WORKERS];
    uint32_t threads_n;
    uint32_t closing;
    uint64_t changes, submitted;
    uint64_t store_bytes;        /* of the prefix store, as of the last round */
    struct sg_shared_queue *queue;  /* of the last shared run; NULL: none yet */
    struct sg_pace pace;         /* of that queue, after it */
    segue_scheduler_info info; /* counters */
};

/* --- request_list.c: the lock is held --- */
void sg_request_list_add(struct sg_request_list *l, struct segue_request *q);
void sg_request_list_remove(struct sg_request_list *l, struct segue_request *q);
/* Wakes the readers of a request and those who wait for any. */
void sg_request_notify(struct segue_request *q);
void sg_scheduler_release(struct segue_scheduler *s);

/* Memory that a request needs now; the caller may use its session. */
uint64_t sg_request_bytes(const struct segue_request *q);
/* Memory of the states of n tokens of it. */
uint64_t sg_request_bytes_of(const struct segue_request *q, size_t n);

/* --- request_end.c --- */
/* The end in two steps. finish, with the lock held, makes it visible together with the last token; a borrowed session is the
 * caller's from then on. close_session, without the lock, closes the session that finish returned, which the request owns
 * (NULL is allowed); this may write to the prefix store. `claimed` holds the request until then. */
struct segue_session *sg_request_finish(struct segue_request *q, segue_finish finish, const segue_error *err);
void sg_request_close_session(struct segue_request *q, struct segue_session *own);
/* finish and close_session: ends a request that no round uses, or that the calling round has claimed; the lock is not held.
 * err: NULL, or why. */
void sg_request_end(struct segue_request *q, segue_finish finish, const segue_error *err);
/* Copies the counters of the session. The caller has claimed the request and holds the lock. */
void sg_request_snapshot(struct segue_request *q);

/* --- admission.c: the lock is held --- */
/* Starts waiting requests while they fit into the budget. */
void sg_scheduler_admit(struct segue_scheduler *s);
/* Frees memory until the running requests and the store can grow within the budget: first from the store, then by
 * preemption. The lock is released meanwhile. */
void sg_scheduler_reclaim(struct segue_scheduler *s);

/* --- round.c --- */
/* One run of the worker, if it has work and no other thread is in it. 0: nothing to do. The lock is held, and released
 * meanwhile. */
int sg_scheduler_round(struct segue_scheduler *s, uint32_t worker);

#endif
