/* layout.h: one way to lay a session out over units: the layers in one or several layer_ranges, and where its
 * states are. A session has a layout for reading and one for writing; its states are in one of them at a
 * time. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_LAYOUT_H
#define SG_ENGINE_LAYOUT_H

#include "engine/engine.h"

enum { SG_STAGES_MAX = 8, SG_MARKS_MAX = 8 };

struct sg_stage {
    const struct sg_layer_range *layer_range;
    uint32_t place; /* of the engine */
    enum sg_storage kv;
    const struct sg_host_memory *host; /* of another unit of the engine, NULL: none: states that go there take it */
    struct sg_state *state;            /* NULL: the state is not here */
};

struct sg_layout {
    struct sg_stage stages[SG_STAGES_MAX]; /* [n] in the order of layers */
    uint32_t n;
    uint32_t chunk_rows; /* the least of its places */
};

/* The parts of one phase of a plan that was checked. */
segue_status sg_layout_make(struct sg_layout *out, struct segue_engine *e, const segue_plan *plan,
                            uint32_t phase, segue_error *err);
/* All layers on one place. */
segue_status sg_layout_of_place(struct sg_layout *out, struct segue_engine *e, uint32_t place,
                                segue_error *err);
int sg_layout_same(const struct sg_layout *a,
                   const struct sg_layout *b); /* 1: the same units hold the same layers */

/* Empty states for `rows` expected rows; all or none. */
segue_status sg_layout_states(struct sg_layout *l, uint64_t rows, segue_error *err);
/* The same, of which every slot is put before anything else. */
segue_status sg_layout_to_fill(struct sg_layout *l, uint64_t rows, segue_error *err);
/* States that only wait to be passed to. */
segue_status sg_layout_bare(struct sg_layout *l, segue_error *err);
void sg_layout_drop_states(struct sg_layout *l);
void sg_layout_try_drop(struct sg_layout *l); /* those on units that nobody uses now */
int sg_layout_holds(const struct sg_layout *l); /* 1: the states are here */
segue_status sg_layout_fork(const struct sg_layout *from, struct sg_layout *to, segue_error *err);
/* All stages, or EUNSUPPORTED; rows 0 always works. */
segue_status sg_layout_cut(struct sg_layout *l, uint64_t rows, segue_error *err);
uint64_t sg_layout_bytes(const struct sg_layout *l);

/* The slot of a kind and layer of the model: its stage, and its index there. NULL: there is none. */
struct sg_stage *sg_layout_slot(struct sg_layout *l, enum sg_slot_kind kind, uint32_t layer, uint32_t *index);

/* Run a batch on a layer_range and wait for it. result's counters are filled; rows_done is valid also on failure.
 */
segue_status sg_stretch_run(const struct sg_layer_range *s, const struct sg_batch *b, struct sg_result *r,
                            segue_error *err);
/* The same in two steps: the run is in the air between them. Every start that went well is waited for. */
segue_status sg_stretch_start(const struct sg_layer_range *s, const struct sg_batch *b, struct sg_result *r,
                              struct sg_run **out, segue_error *err);
segue_status sg_stretch_wait(const struct sg_layer_range *s, const struct sg_batch *b, struct sg_run *run, segue_error *err);

#endif
