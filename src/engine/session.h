/* session.h: one sequence that grows, as the files of engine/ see it. One thread at a time, but for `cancel`.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_SESSION_H
#define SG_ENGINE_SESSION_H

#include "base/hash.h"
#include "engine/checkpoint.h"
#include "engine/recover.h"
#include "engine/transfer/bridge.h"
#include "engine/transfer/flow.h"
#include "engine/verify.h"
#include "model/adapter.h"

enum { SG_PREFILL_LAYOUT = 0, SG_DECODE_LAYOUT = 1 }; /* the two layouts; also the phases of a plan */

enum { SG_CHECKPOINTS_MAX = 64 };

/* A point that the session can go back to. */
struct sg_checkpoint_ref {
    struct sg_checkpoint *point; /* a reference */
    uint32_t begins;        /* 1: a layer_range of new text begins here */
};

enum { SG_LOGITS_HERE = 1, SG_LOGITS_LATE = 2 }; /* LATE: on the unit of the last row, fetched when asked for */

struct segue_session {
    struct segue_engine *engine;     /* a reference */
    struct segue_adapter **adapters; /* [adapters_n] references */
    const struct sg_lora **loras;    /* [adapters_n] */
    uint32_t adapters_n;
    struct sg_layout layouts[2]; /* of reading, of writing */
    uint32_t at;                 /* the layout that has the states, or will have them first */
    uint32_t split;              /* 1: the two differ */
    uint32_t marking;            /* 1: some slot cannot simply be cut, so points are kept */
    struct sg_flow *flow;        /* from reading to writing; NULL: states do not flow here */
    int32_t *tokens;             /* [context] tokens_n so far; the first `computed` are in the states */
    size_t tokens_n, computed, context;
    float *logits;   /* [vocab] after the last computed token, when logits_known */
    uint32_t logits_known; /* 0, or one of these */
    float *rows[2]; /* [chunk, width] between stages, in turn; NULL with one stage */
    segue_sampling sampling;
    struct segue_bias *bias; /* [sampling.bias_n], owned */
    const uint8_t *breakers; /* the engine's; only when DRY is on */
    size_t breakers_n;
    struct sg_chooser *chooser;         /* made when a choice is due that no unit makes */
    float *work;                        /* [vocab] logits that the chooser changes; made with it */
    struct sg_checkpoint_ref points[SG_CHECKPOINTS_MAX]; /* [checkpoints_n] rising rows */
    uint32_t checkpoints_n;
    uint32_t checkpoint_pending;     /* 1: the rows computed last end a layer_range; kept before the next run */
    uint64_t checkpoints_budget; /* bytes */
    size_t given_n;         /* tokens up to here were given, not chosen */
    uint64_t evicted_from, evicted_to; /* the first and last point that the budget cost; 0: none */
    uint32_t rewound;       /* 1: since the last run */
    uint32_t store_queried;        /* 1: the store was asked about the tokens as they are */
    uint32_t stored;        /* 1: the session takes part in the engine's store */
    uint32_t adapters_known;
    struct sg_hash adapters_id; /* when known */
    uint64_t read_ns, read_rows; /* in runs of several rows: what reading costs */
    atomic_int cancel;
    atomic_int busy;      /* 1 while a step over several sessions holds it */
    size_t verify_rows;
    struct segue_session *checker; /* between the rows and the states of a check; NULL */
    struct sg_recovery recovery; /* what a lost unit cannot take along */
    struct sg_step *step; /* room for steps over several sessions, kept by the first of them */
    segue_stats stats;
    segue_interval *spans; /* [2 * spans_cap] spans_n so far, intervals_total ever */
    size_t spans_cap, spans_n, intervals_total;
};

/* What one run over the next rows of one session shall give. */
struct sg_run_request {
    uint32_t rows;          /* of those that wait */
    const uint32_t *wanted; /* [wanted_n] rows whose logits are wanted */
    uint32_t wanted_n;
    float *logits;                    /* [wanted_n, vocab] or NULL */
    const struct sg_sampler *sampler; /* or NULL */
    int32_t token;                    /* the choice */
    uint32_t last;                    /* 1: nothing is read behind these rows */
    const int32_t *outputs;           /* [outputs_n] of the graph; one stage only */
    uint32_t outputs_n;
    float **values;
};

/* --- session.c --- */
segue_status sg_session_check(const struct segue_session *s, const char *what,
                              segue_error *err); /* EARG: NULL */
/* What the next choice depends on; points into the session. */
void sg_session_sampler(const struct segue_session *s, struct sg_sampler *out);
/* Keep the first rows of the states: cut, or back to a mark, or from the start; `computed` says how far it
 * came. */
void sg_session_cut(struct segue_session *s, uint64_t rows);

/* What computing so many rows costs here, by what reading took so far; 0: not known. */
uint64_t sg_session_read_ns(const struct segue_session *s, uint64_t rows);

/* --- checkpoints.c --- */
/* Keep the states as they are, within the budget, unless a point is near. begins: new text follows. */
void sg_session_checkpoint(struct segue_session *s, int begins);
/* Forget points behind `rows`. */
void sg_session_forget_checkpoints(struct segue_session *s, uint64_t rows);
/* Forget points on units of a layout that is lost. */
void sg_session_lose_checkpoints(struct segue_session *s, const struct sg_layout *lost);
/* The states of a session that ends go to the store. */
void sg_session_store_put(struct segue_session *s);
uint64_t sg_session_checkpoint_bytes(const struct segue_session *s);
/* Go on from a fork of the point, whose tokens are the session's. On failure the session may have no states. */
segue_status sg_session_restore(struct segue_session *s, const struct sg_checkpoint *p);
/* Back to the last point of at most `rows` rows; 0: there is none. */
int sg_session_to_checkpoint(struct segue_session *s, uint64_t rows);

/* --- advance.c --- */
/* Make sure that there are states to continue. */
segue_status sg_session_begin(struct segue_session *s, segue_error *err);
/* States where the waiting rows are to be read, and a point of them where one is due. When nothing waits but the logits are
 * unknown, one row is made to wait. */
segue_status sg_session_ready(struct segue_session *s, segue_error *err);
/* Behind a run: a point is due when all that was given has been read. */
void sg_session_after_run(struct segue_session *s);
/* The next rows, once more after a recovery when a unit was lost (recover.c). */
segue_status sg_session_run(struct segue_session *s, struct sg_run_request *ask, segue_error *err);
/* ELOST leaves states that can only be dropped. */
segue_status sg_session_run_once(struct segue_session *s, struct sg_run_request *ask, segue_error *err);
/* What logits_known becomes behind a run: where the unit that has the states can, its logits stay there until somebody asks. */
uint32_t sg_session_logits_then(const struct segue_session *s);
/* The logits behind the last computed row, brought here if need be; NULL: unknown. */
const float *sg_session_known_logits(const struct segue_session *s);
/* The states are about to go elsewhere: late logits are brought here first. */
void sg_session_keep_logits(struct segue_session *s);
/* Compute all that waits, and have the logits behind it. */
segue_status sg_session_settle(struct segue_session *s, segue_error *err);
/* EARG: empty; ELIMIT: full. */
segue_status sg_session_may_choose(const struct segue_session *s, segue_error *err);
int sg_session_unit_samples(const struct segue_session *s);
/* Append a chosen token; SEGUE_END when it ends the sequence. */
segue_status sg_session_accept(struct segue_session *s, int32_t token, int32_t *out);

/* --- step.c --- */
void sg_step_free(struct sg_step *step);

/* What may flow from where the session reads to where it writes; anew when its layouts have changed. */
segue_status sg_session_find_flow(struct segue_session *s, segue_error *err);

/* --- handoff.c --- */
/* Bring the session's states to its layout `to`. On failure they stay where they were. */
segue_status sg_session_to_layout(struct segue_session *s, uint32_t to, segue_error *err);
/* From a layout that has the states to one that has none; counted. */
segue_status sg_session_move_states(struct segue_session *s, struct sg_layout *from, struct sg_layout *to,
                                    segue_error *err);
/* 1: rows can be sent while they are read: the states that take them exist. */
int sg_session_flow_open(struct segue_session *s);
void sg_session_prewarm_peers(const struct segue_session *s); /* before a reading: its states may leave behind it */
void sg_session_free_stale(struct segue_session *s); /* free what a hand-off left behind, unless that would wait */
/* Beside a run of `rows` rows on stage k of the reading layout; 0: it failed, close the flow behind the run. */
int sg_session_follow(struct segue_session *s, uint32_t k, uint32_t rows, int last);

/* --- record.c --- */
segue_status sg_record_room(struct segue_session *s, size_t spans, segue_error *err);
void sg_record_run(struct segue_session *s, const struct sg_stage *stage, uint32_t phase, uint64_t begun,
                   uint32_t rows, const struct sg_result *r);
void sg_record_handoff(struct segue_session *s, const struct sg_layout *from, const struct sg_layout *to,
                       uint64_t begun, uint64_t rows);
void sg_record_give(const struct segue_session *s, segue_stats *out);

#endif
