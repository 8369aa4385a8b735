/* layout.h: the placement of one session's layers and states: one or several stages, each a layer range on a unit. A session
 * has one layout for prefill and one for decode; its states are in one of them. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_LAYOUT_H
#define SG_ENGINE_LAYOUT_H

#include "engine/placement/layer_range.h"

enum {
    SG_STAGES_MAX = 8,
    SG_UNDO_MAX = 8 /* largest number of undo marks of a state */
};

/* Consecutive layers on one unit. */
struct sg_layout_stage {
    const struct sg_layer_range *layer_range; /* the engine's */
    uint32_t placement;                       /* index in segue_engine.placements */
    enum sg_storage kv;
    const struct sg_host_memory *host; /* memory of another unit, best for states that move there; NULL: none */
    struct sg_state *state;            /* owned; NULL: the states are not in this layout */
};

struct sg_layout {
    struct sg_layout_stage stages[SG_STAGES_MAX]; /* [n] in the order of layers */
    uint32_t n;
    uint32_t chunk_tokens; /* maximum number of tokens of one run: the minimum over the stages' placements */
    uint32_t shapes[SEGUE_PLAN_SHAPES]; /* of the plan, for runs of several tokens */
};

/* The stages of one phase of a checked plan, without states. */
segue_status sg_layout_make(struct sg_layout *out, struct segue_engine *e, const struct segue_plan *plan,
                            segue_phase phase, segue_error *err);
/* All layers on one placement, without states. */
segue_status sg_layout_of_placement(struct sg_layout *out, struct segue_engine *e, uint32_t placement,
                                    segue_error *err);
/* 1: the same layers on the same units with the same storage of K and V. */
int sg_layout_same(const struct sg_layout *a, const struct sg_layout *b);

/* Makes empty states with capacity for tokens_n tokens (they can grow); all stages or none. */
segue_status sg_layout_states(struct sg_layout *l, uint64_t tokens_n, segue_error *err);
/* sg_layout_states for states whose slots are all written before the first run: the units may skip clearing them. */
segue_status sg_layout_states_to_fill(struct sg_layout *l, uint64_t tokens_n, segue_error *err);
/* States without memory, which only receive a state by the unit's state_transfer. */
segue_status sg_layout_bare_states(struct sg_layout *l, segue_error *err);
void sg_layout_drop_states(struct sg_layout *l);
/* Frees the states on units that are idle; the others remain. */
void sg_layout_try_drop(struct sg_layout *l);
int sg_layout_holds(const struct sg_layout *l); /* 1: the layout has states */
/* `to` becomes a copy of `from` whose states share memory with it until they are written. */
segue_status sg_layout_fork(const struct sg_layout *from, struct sg_layout *to, segue_error *err);
/* Cuts all stages to tokens_n tokens. EUNSUPPORTED: a slot cannot be cut there; 0 tokens always works. */
segue_status sg_layout_cut(struct sg_layout *l, uint64_t tokens_n, segue_error *err);
uint64_t sg_layout_bytes(const struct sg_layout *l);

/* The stage that has the slot of a kind and layer of the model, and its index there. NULL: no stage has it. */
struct sg_layout_stage *sg_layout_slot(struct sg_layout *l, enum sg_slot_kind kind, uint32_t layer, uint32_t *index);

/* Runs a batch on a layer range and waits for it. Fills the counters of *r; rows_done is valid also on failure. */
segue_status sg_layer_range_run(const struct sg_layer_range *s, const struct sg_batch *b, struct sg_result *r,
                                segue_error *err);
/* The same in two steps; the unit computes between them. Every successful start needs a wait. */
segue_status sg_layer_range_start(const struct sg_layer_range *s, const struct sg_batch *b, struct sg_result *r,
                                  struct sg_run **out, segue_error *err);
segue_status sg_layer_range_wait(const struct sg_layer_range *s, const struct sg_batch *b, struct sg_run *run,
                                 segue_error *err);

#endif
