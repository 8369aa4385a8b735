/* shared_queue.h: the threads that want a run on one layer range, in order of arrival. A thread that finds no run in progress
 * leads the next one: it takes what all waiting threads offer, tokens of running answers first, then chunks of prompts as far as
 * answers allow, computes that, and wakes the others. So single sessions and schedulers share their runs. What a session is, the
 * queue does not know: shared_run.h fills and computes the shares.
 *
 * A session is away while its caller has the result of the last run and has not asked for the next one. For one run an answer
 * that is away counts as running: the chunk of a prompt that is computed meanwhile is as short as beside it. If it usually
 * returns at once, the leader waits for it a fraction of the time of a token, since otherwise threads would take turns instead of
 * sharing.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_SHARED_QUEUE_H
#define SG_ENGINE_SHARED_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/queue/pace.h"
#include "engine/queue/step_buffers.h"

struct sg_shared_queue;
struct sg_run_group;
struct segue_session;

/* A session's entry in a queue, between its runs. Owned by the session; zeroed: none. Guarded by the queue's lock, except for
 * `queue`, which only the thread that uses the session changes. */
struct sg_away {
    struct sg_shared_queue *queue; /* of the last offer; NULL: none yet */
    struct sg_away *next, *before; /* in queue->away, valid while listed */
    uint32_t listed, is_prompt; /* is_prompt: of a prompt that is not complete */
    uint32_t slow;      /* 1: it did not return at once the last time, and is not waited for */
    uint64_t turn;      /* place in the order of arrival; 0: none */
    uint64_t run;       /* number of its last run */
    uint64_t end_ns;    /* end of that run; 0: none yet */
    uint64_t target_ns; /* of its group */
    pthread_t thread;   /* that offered it last */
};

/* What follows when all tokens of a share are computed. */
enum sg_then { SG_THEN_NOTHING, SG_THEN_CHOOSE, SG_THEN_LOGITS };

/* What one session offers for a run, and its result. */
struct sg_share {
    struct segue_session *session;
    struct sg_away *away;       /* of the session */
    struct sg_run_group *group; /* set by the queue */
    uint32_t index;             /* free for the caller */
    uint32_t rows;              /* tokens that may be computed, from 1 */
    uint32_t chunk;             /* the most tokens of prompts in a run without answers */
    uint32_t is_answer;         /* 1: one token after a chosen one */
    uint32_t whole;             /* 1: its rows are not cut, and no run has two of these */
    size_t keep;                /* pending tokens of the session that the call leaves alone */
    enum sg_then wish;          /* after all others of them */
    enum sg_then then;          /* after all of `rows` */
    uint32_t tokens_n;          /* out: of `rows`, those in the run; 0: it was not in it */
    enum sg_then does;          /* out: what follows in this run */
    uint32_t again;             /* out: 1 = the leader filled it anew, and its group stays in the queue */
    uint32_t alone;             /* out: 1 = the shared run failed and the session ran alone */
    int32_t token;              /* out: the chosen token; -1: none */
    segue_error error;          /* out: OK, END (the chosen token ends the sequence) or a failure with its text */
};

/* What one thread offers at once, and waits for. */
struct sg_run_group {
    struct sg_run_group *next;
    struct sg_share *shares; /* [shares_n], of different sessions */
    uint32_t shares_n;
    uint32_t stays;               /* 1: one share, which the leader fills anew until its call is complete */
    uint32_t patient;             /* 1: its answers wait for its prompts anyhow, so they do not shorten these */
    uint64_t target_ns;           /* time between tokens of its answers; 0: the default */
    struct sg_mask_thread *masks; /* makes those masks that are not ready; NULL: all are */
    uint32_t waits;               /* 1: in the queue */
    uint32_t taken;               /* 1: in the run in progress */
    uint32_t served;              /* out: 1 = a run with some of its shares has ended */
    uint32_t spans;               /* out: shares of all groups in that run */
    struct sg_pace_run run;       /* out: what it had in it; ns 0: it failed */
    struct sg_pace pace;          /* out: of the queue, after it */
};

struct sg_shared_queue {
    pthread_mutex_t lock;    /* guards everything below; the leader alone uses chosen, masks and step during its run */
    pthread_cond_t changed;  /* a run has ended */
    pthread_cond_t arrived;  /* the leader, before its run: a group was added */
    struct sg_run_group *first;
    struct sg_away *away;    /* sessions of the last run that have not returned */
    uint32_t busy;           /* 1: a thread leads */
    uint32_t rows_max;       /* tokens of one run */
    uint64_t turns, runs, ended_ns;
    struct sg_pace pace;
    struct sg_share **chosen; /* [chosen_cap] chosen_n of the run */
    size_t chosen_n, chosen_cap;
    struct sg_pace_run run;
    struct sg_mask_thread *masks; /* for the run */
    struct sg_step *step;         /* NULL: no run was shared yet */
};

/* rows_max 0: no bound. EMEMORY. */
segue_status sg_shared_queue_new(struct sg_shared_queue **out, uint32_t rows_max, segue_error *err);
void sg_shared_queue_free(struct sg_shared_queue *q); /* NULL is allowed */
/* Forgets the times of runs. */
void sg_shared_queue_forget(struct sg_shared_queue *q);

enum sg_turn { SG_TURN_LEAD, SG_TURN_SERVED, SG_TURN_CANCELED };

/* Waits until the group was served, or until this thread is to compute q->chosen, which may be without the group; then it calls
 * sg_shared_queue_leave, and waits again unless the group was served. CANCELED: *cancel (may be NULL) was set; the group has left
 * the queue. */
enum sg_turn sg_shared_queue_wait(struct sg_shared_queue *q, struct sg_run_group *g, const atomic_int *cancel);
/* After the run of q->chosen, which took ns; 0: it failed. */
void sg_shared_queue_leave(struct sg_shared_queue *q, uint64_t ns);

/* The session closes, or moves to another queue. */
void sg_away_forget(struct sg_away *a);

#endif
