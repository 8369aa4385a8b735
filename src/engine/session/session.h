/* session.h: struct segue_session, one growing token sequence, and the functions that the files of session/ share. They are
 * listed from the lowest level to the highest; a file calls only files above it in this list. One thread at a time per
 * session, except for `cancel`.
 *
 * The first `computed` of the `tokens_n` tokens are in the states; the others are pending. The states are in the layout
 * `active`. The prefill and the decode layout may be the same ("not split"). SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_SESSION_H
#define SG_ENGINE_SESSION_H

#include "base/hash.h"
#include "engine/constraint.h"
#include "engine/engine.h"
#include "engine/placement/checkpoint.h"
#include "engine/queue/shared_queue.h"
#include "engine/session/recovery.h"
#include "engine/statefile/statefile.h"
#include "engine/transfer/bridge.h"
#include "engine/transfer/flow.h"
#include "model/adapter.h"

enum { SG_PREFILL_LAYOUT = 0, SG_DECODE_LAYOUT = 1 }; /* index of segue_session.layouts; also the phase of a plan's part */

enum {
    SG_CHECKPOINTS_MAX = 64,
    SG_USES_MAX = 32,  /* parts of all plans that a session has used */
    SG_LOSSES_MAX = 4  /* losses that can be read */
};

/* A position that the session can go back to. */
struct sg_checkpoint_ref {
    struct sg_checkpoint *checkpoint; /* a reference */
    uint32_t starts_input;            /* 1: newly appended text starts here */
};

/* Values of segue_session.logits_known. LATE: still on the unit of the last layer, copied when they are needed. */
enum { SG_LOGITS_HERE = 1, SG_LOGITS_LATE = 2 };

struct segue_session {
    struct segue_engine *engine;     /* a reference */
    struct segue_adapter **adapters; /* [adapters_n] references */
    const struct sg_lora **loras;    /* [adapters_n] of the adapters */
    uint32_t adapters_n;
    struct sg_layout layouts[2]; /* by SG_PREFILL_LAYOUT, SG_DECODE_LAYOUT */
    uint32_t active;             /* layout that has the states, or will have them first */
    uint32_t split;              /* 1: the two layouts differ, so states are handed off between them */
    uint32_t needs_checkpoints;  /* 1: some slot (recurrent, sliding window) cannot be cut to fewer tokens */
    struct sg_flow *flow;        /* hand-off during prefill, owned; NULL: states are moved after it */
    int32_t *tokens;             /* [context] tokens_n valid */
    size_t tokens_n, computed, context;
    float *logits;         /* [vocab] after the last computed token, valid when logits_known */
    uint32_t logits_known; /* 0, SG_LOGITS_HERE or SG_LOGITS_LATE */
    uint32_t drops_logits; /* 1: of a request: the logits of its answer cannot be asked for, so shared runs do not copy them */
    float *hidden[2];      /* [chunk, width] hidden values between two stages, used in turn; NULL with one stage */
    segue_sampling sampling;
    struct segue_bias *bias; /* [sampling.bias_n], owned */
    struct sg_constraint constraint; /* of sampling.grammar */
    const uint8_t *breakers; /* [breakers_n], the engine's; only with DRY sampling */
    size_t breakers_n;
    struct sg_chooser *chooser; /* host sampler; made when a token is chosen that no unit samples */
    float *sampler_logits;      /* [vocab] copy that the host sampler changes; made with it */
    struct sg_checkpoint_ref checkpoints[SG_CHECKPOINTS_MAX]; /* [checkpoints_n] by rising position */
    uint32_t checkpoints_n;
    uint32_t checkpoint_pending;       /* 1: take a checkpoint before the next run */
    uint64_t checkpoints_budget;       /* bytes; 0: no checkpoints */
    size_t input_n;                    /* the first input_n tokens were appended by the caller, later ones were chosen */
    uint64_t evicted_from, evicted_to; /* lowest and highest position of checkpoints evicted for the budget; 0: none */
    uint32_t rewound;                  /* 1: rewound since the last run */
    uint32_t store_queried;            /* 1: the prefix store was searched for the present tokens */
    char *realm_id;                    /* hex hash of the realm; NULL: none */
    uint64_t replay_until;             /* with fixed chunks: tokens that are computed again in the same runs as before */
    size_t store_matched;              /* tokens that the prefix store knew at the last search, also where no state fitted */
    uint32_t may_use_store;            /* 1: the engine has a prefix store, and the caller did not refuse it */
    uint32_t uses_store;               /* 1: reads and writes it at present */
    uint32_t drafts;                   /* 1: forks are drafts */
    uint32_t is_draft;                 /* 1: a fork that no token was asked of: no store; a call does not clear `cancel` */
    uint32_t adapters_known;           /* 1: adapters_id is computed */
    struct sg_hash adapters_id;        /* checksum of the adapters' matrices */
    uint64_t prefill_ns, prefill_tokens; /* sums over prefill runs, for the cost of recomputing a prefix */
    atomic_int cancel; /* 1: stop the call in progress; set from any thread or signal handler, cleared by each call */
    atomic_int busy;                   /* in segue_session_step: 1 = not served yet, 2 = served; else 0 */
    size_t verify_tokens;              /* tokens at the end of a prompt that a hand-off check computes twice */
    struct segue_session *verifier;    /* session on the decode layout, only during such a check */
    struct sg_recovery recovery;
    struct sg_away away;     /* its entry in the queue of its layer range */
    struct sg_share *shares; /* [shares_cap] of segue_session_step, owned by the first session of its list; NULL: none yet */
    size_t shares_cap;
    segue_stats stats;                      /* without the lists below */
    segue_logprob logprobs[SG_LOGPROBS_MAX]; /* [logprobs_n] of the last chosen token: it, then the most probable ones */
    size_t logprobs_n;
    segue_use uses[SG_USES_MAX];            /* [stats.uses_n] */
    segue_loss losses[SG_LOSSES_MAX];       /* loss i is at i % SG_LOSSES_MAX; stats.losses_n counts all */
    struct sg_state_hashes *hashes; /* of every run (replay/state_hashes.h), owned; NULL: not recorded */
    segue_interval *intervals; /* [2 * intervals_cap] intervals_n valid; stats.intervals_total counts all */
    size_t intervals_cap, intervals_n;
};

/* One run over the next pending tokens of one session. */
struct sg_run_request {
    uint32_t tokens_n;
    const uint32_t *wanted; /* [wanted_n] indices within the run whose logits are computed */
    uint32_t wanted_n;
    float *logits;                    /* [wanted_n, vocab], or NULL: they stay on the unit */
    const struct sg_sampler *sampler; /* NULL: the unit does not sample */
    int32_t token;                    /* out: the sampled token */
    uint32_t is_last;                 /* 1: no further tokens are pending after this run */
    const int32_t *outputs;           /* [outputs_n] graph outputs to return; layouts of one stage only */
    uint32_t outputs_n;
    float **values; /* [outputs_n] each [tokens_n, width] */
};

static inline size_t sg_session_pending(const struct segue_session *s) { return s->tokens_n - s->computed; }

/* --- session_core.c --- */
/* EARG unless there is a session; `what` starts the message. */
segue_status sg_session_check(const struct segue_session *s, const char *what, segue_error *err);
/* A token is asked of the session: it is no draft any more. */
void sg_session_end_draft(struct segue_session *s);
/* A public call that computes starts: a cancel that was requested before has no effect on it, unless it is a draft. */
void sg_session_begin_call(struct segue_session *s);
/* ECANCELED if a cancel was requested during the call in progress (for a draft, or before it), which this consumes. */
segue_status sg_session_check_cancel(struct segue_session *s, segue_error *err);
/* Prepares the mask of the next sampling step, if the session has a grammar. EFORMAT, ELIMIT: sg_constraint_update. */
segue_status sg_session_mask(struct segue_session *s, segue_error *err);
/* Inputs of the next sampling step. The pointers in *out belong to the session. */
void sg_session_sampler(const struct segue_session *s, struct sg_sampler *out);
/* Expected time to compute n tokens here, from the prefill runs so far; 0: unknown. */
uint64_t sg_session_prefill_cost_ns(const struct segue_session *s, uint64_t n);
/* 1: the unit of the last layer can sample. */
int sg_session_unit_samples(const struct segue_session *s);
/* Value of logits_known after a run: LATE where the unit can keep the logits. */
uint32_t sg_session_logits_after_run(const struct segue_session *s);
/* The logits after the last computed token, copied from the unit if necessary; NULL: unknown. */
const float *sg_session_known_logits(const struct segue_session *s);
/* The same into out [vocab]; 0: unknown. */
int sg_session_copy_logits(const struct segue_session *s, float *out);
/* Copies late logits to the host. Call before the states leave their unit. */
void sg_session_fetch_logits(struct segue_session *s);

/* --- state_origin.c --- */
/* Identity of what computed this session's states. Caches adapters_id. */
void sg_session_origin(struct segue_session *s, struct sg_state_origin *out);
/* The same for the prefix store, where states of another realm are not found. */
void sg_session_store_origin(struct segue_session *s, struct sg_state_origin *out);
/* Remembers the realm (may be NULL). ELIMIT: too long; EMEMORY. */
segue_status sg_session_set_realm(struct segue_session *s, const char *realm, segue_error *err);

/* --- record.c --- */
/* Space for the last `intervals` intervals. EARG: too many; EMEMORY. */
segue_status sg_record_alloc(struct segue_session *s, size_t intervals, segue_error *err);
/* Adds one run on a stage to the statistics. phase: SEGUE_PREFILL or SEGUE_DECODE; start_ns: of sg_now_ns. */
void sg_record_run(struct segue_session *s, const struct sg_layout_stage *stage, segue_phase phase, uint64_t start_ns,
                   uint32_t tokens_n, const struct sg_result *r);
/* Adds the time and counters of a run that failed or was canceled, if it had begun; `runs` and `tokens` are those of complete
 * runs. */
void sg_record_failed_run(struct segue_session *s, const struct sg_layout_stage *stage, segue_phase phase, uint64_t start_ns,
                          const struct sg_result *r);
void sg_record_handoff(struct segue_session *s, const struct sg_layout *from, const struct sg_layout *to,
                       uint64_t start_ns, uint64_t tokens_n);
/* Adds a loss; the last SG_LOSSES_MAX can be read. */
void sg_record_loss(struct segue_session *s, const segue_loss *loss);

/* --- handoff.c --- */
/* Tokens that new states of a layout are to hold without growing: those that there are, and 512 more for an answer, at most the
 * context. Not for an answer: prefill states in memory that the decode unit takes over. */
uint64_t sg_session_capacity(const struct segue_session *s, const struct sg_layout *l);
/* Replaces s->flow by one for the present layouts; NULL where states cannot be sent during prefill. */
segue_status sg_session_make_flow(struct segue_session *s, segue_error *err);
/* Moves the states to layout `to`. On failure they stay where they were. */
segue_status sg_session_to_layout(struct segue_session *s, uint32_t to, segue_error *err);
/* Moves states from a layout that has them to one that has none, and counts it in the statistics. */
segue_status sg_session_move_states(struct segue_session *s, struct sg_layout *from, struct sg_layout *to,
                                    segue_error *err);
/* 1: states can be sent during the next run: the receiving states exist. */
int sg_session_flow_open(struct segue_session *s);
/* Before prefill: wakes the links on which the states may be sent afterwards. */
void sg_session_prewarm_peers(const struct segue_session *s);
/* Frees states that a hand-off left in the prefill layout, unless that would wait for a unit. */
void sg_session_free_stale(struct segue_session *s);
/* During a run of n tokens on stage k of the prefill layout: sends what is ready. 0: failed; close the flow after the run. */
int sg_session_flow_send(struct segue_session *s, uint32_t k, uint32_t n, int last);

/* --- checkpoints.c --- */
/* Takes a checkpoint of the states within the budget, unless the last one is near. starts_input: new text follows. */
void sg_session_checkpoint(struct segue_session *s, int starts_input);
/* Takes a checkpoint that is due. In the middle of a prompt it is dropped instead when fewer tokens than a chunk of the layout
 * were computed since the last one, unless the prefix store matches just up to here. */
void sg_session_checkpoint_due(struct segue_session *s);
/* Drops checkpoints after position `pos`. */
void sg_session_forget_checkpoints(struct segue_session *s, uint64_t pos);
/* Drops checkpoints that have states on a unit of layout `lost`. */
void sg_session_drop_lost_checkpoints(struct segue_session *s, const struct sg_layout *lost);
/* Gives all checkpoints to the prefix store, after a verification for which they waited. */
void sg_session_store_checkpoints(struct segue_session *s);
/* Gives the states of a closing session to the prefix store. */
void sg_session_store_put(struct segue_session *s);
/* Releases the states and checkpoints; they go to the prefix store if the session uses it. The tokens are pending
 * afterwards. EMEMORY: the session can only be closed. */
segue_status sg_session_preempt(struct segue_session *s, segue_error *err);
/* Bytes of unshared states of this many tokens in a layout (SG_PREFILL_LAYOUT, SG_DECODE_LAYOUT). */
uint64_t sg_session_state_bytes(const struct segue_session *s, uint32_t layout, uint64_t tokens_n);
/* The most that they may take while they grow, with KV blocks of `block` tokens. */
uint64_t sg_session_state_bytes_max(const struct segue_session *s, uint32_t layout, uint64_t tokens_n, uint64_t block);
uint64_t sg_session_checkpoint_bytes(const struct segue_session *s);
/* Continues from a fork of the checkpoint, whose tokens must be the session's. On failure the session may have no states. */
segue_status sg_session_restore(struct segue_session *s, const struct sg_checkpoint *p);
/* Restores the last checkpoint of at most `pos` tokens; 0: there is none. */
int sg_session_to_checkpoint(struct segue_session *s, uint64_t pos);

/* --- store_query.c --- */
/* Searches the prefix store for a longer prefix of the tokens than is computed, and continues from it. */
void sg_session_query_store(struct segue_session *s);
/* 1: the next sg_session_prepare would read states, or names of them, from files. */
int sg_session_reads_disk(struct segue_session *s);

/* --- rewind.c --- */
/* Keeps at most the first `pos` tokens of the states: cut, or from a checkpoint, or none. `computed` tells how many remain. */
void sg_session_cut(struct segue_session *s, uint64_t pos);

/* --- run.c --- */
/* Runs the next tokens once. ELOST: the states can only be dropped. */
segue_status sg_session_run_once(struct segue_session *s, struct sg_run_request *request, segue_error *err);

/* --- failover.c --- */
/* Makes empty states if the session has none. */
segue_status sg_session_make_states(struct segue_session *s, segue_error *err);
/* sg_session_run_once, repeated after each recovery from a lost unit. */
segue_status sg_session_run(struct segue_session *s, struct sg_run_request *request, segue_error *err);
/* sg_session_to_layout, repeated after each recovery from a lost unit. */
segue_status sg_session_to_layout_retry(struct segue_session *s, uint32_t to, segue_error *err);

/* --- advance.c --- */
/* Makes sure that the states are in the layout where the pending tokens are to be computed, and takes a due checkpoint. If
 * no token is pending and the logits are unknown, the last token becomes pending again. */
segue_status sg_session_prepare(struct segue_session *s, segue_error *err);
/* Maximum number of tokens of the next run of a prompt. */
size_t sg_session_chunk(const struct segue_session *s);
/* After a run: a checkpoint is due when all appended tokens are computed. */
void sg_session_after_run(struct segue_session *s);
/* Computes all pending tokens but the last `keep`, in chunks. with_logits: of the last token. */
segue_status sg_session_catch_up(struct segue_session *s, size_t keep, int with_logits, segue_error *err);
/* Computes the next n pending tokens. with_logits: of the last one. sampler (may be NULL): samples *token from them. */
segue_status sg_session_run_chunk(struct segue_session *s, size_t n, int with_logits, const struct sg_sampler *sampler,
                                  int32_t *token, segue_error *err);
/* Computes all pending tokens, with the logits after the last one. */
segue_status sg_session_compute_all(struct segue_session *s, segue_error *err);

/* --- next.c --- */
/* segue_session_next without its argument checks, without sg_session_begin_call and without the queue. */
segue_status sg_session_next_token(struct segue_session *s, int32_t *token, segue_error *err);
/* One run on the way to the next token, after sg_session_prepare: at most `chunk` pending tokens (0: the layout's chunk).
 * *token = -1: more runs are needed; else the token was chosen as by sg_session_next_token. */
segue_status sg_session_next_part(struct segue_session *s, size_t chunk, int32_t *token, segue_error *err);
/* EARG: no tokens; ELIMIT: the context is full. */
segue_status sg_session_check_choose(const struct segue_session *s, segue_error *err);
/* Appends a chosen token. SEGUE_END: it ends the sequence. */
segue_status sg_session_accept(struct segue_session *s, int32_t token, int32_t *out);

#endif
