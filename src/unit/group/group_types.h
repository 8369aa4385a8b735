/* group_types.h: internal header of unit/group. group.c: the unit and its programs; group_run.c: runs; group_lora.c: adapters;
 * group_state.c: states. Objects of the ranks are used through their table only. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_GROUP_TYPES_H
#define SG_UNIT_GROUP_TYPES_H

#include <pthread.h>

#include "graph/tensor_parallel.h"
#include "unit/unit.h"

enum { GROUP_LANES = 2 };

struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_ops table;        /* of this group; optional members only when the ranks have them */
    const struct sg_unit_ops *ops;   /* the ranks' table */
    struct sg_unit_desc desc;
    uint32_t ranks;
    struct sg_unit *rank[SG_RANKS_MAX];
    pthread_mutex_t lanes[GROUP_LANES];  /* [0]: short runs, [1]: long runs (desc.long_rows); one of each at a time, so that
                                          * all ranks start runs in the same order */
    pthread_mutex_t lock;            /* guards programs */
    struct sg_program *programs;     /* list of those that were not discarded */
};

struct group_lora;

/* The graphs of one compile, shared by its programs. */
struct group_graphs {
    struct sg_tp_graphs *tp;         /* each graph split into ranks */
    uint32_t refs;                   /* programs */
    struct group_lora *loras;        /* split adapters; guarded by the unit's lock */
};

struct sg_program {
    struct sg_program_base base;
    struct group_graphs *graphs;
    uint32_t index;                  /* of its graph in graphs->tp */
    struct sg_program *rank[SG_RANKS_MAX];
    struct sg_program *next;         /* in the unit's list */
};

struct sg_state {
    struct sg_state_base base;
    uint32_t slots_n;
    struct sg_slot *slots;           /* [slots_n] of the unsplit graph */
    struct sg_tp_slot *splits;       /* [slots_n] how each slot is split over the ranks */
    struct sg_state *rank[SG_RANKS_MAX];
};

segue_status sg_group_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                        segue_error *err);
segue_status sg_group_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err);
/* The adapter with pairs for the ranks' parts of the weights; made on first use. It lives as long as the programs of the compile
 * and refers to matrices of `whole`. EMEMORY. */
segue_status sg_group_lora(struct sg_program *p, const struct sg_lora *whole, const struct sg_lora **out, segue_error *err);
void sg_group_loras_free(struct group_lora *l);
/* Fills in the functions of states. */
void sg_group_state_table(struct sg_unit_ops *t);

#endif
