/* group_types.h: what the files of a team share: group.c (the unit and its programs), group_run.c (runs), group_lora.c (adapters),
 * group_state.c (states). The ranks' own objects are known by their table alone. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_GROUP_TYPES_H
#define SG_UNIT_GROUP_TYPES_H

#include <pthread.h>

#include "graph/tensor_parallel.h"
#include "unit/unit.h"

enum { GROUP_LANES = 2 };

struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_ops own;          /* the table of this team: what its ranks can do */
    const struct sg_unit_ops *ops;   /* the ranks' table */
    struct sg_unit_desc desc;
    uint32_t ranks;
    struct sg_unit *rank[SG_RANKS_MOST];
    pthread_mutex_t lanes[GROUP_LANES];  /* ranks meet in the same order: one run of few rows, and a long one, at a time */
    pthread_mutex_t lock;            /* guards programs */
    struct sg_program *programs;     /* all that were not discarded */
};

struct group_lora;

struct group_graphs {                 /* of one compile */
    struct sg_tp_graphs *shares;
    uint32_t references;
    struct group_lora *loras;         /* adapters that were bound; the unit's lock guards the list */
};

struct sg_program {
    struct sg_program_base base;
    struct group_graphs *shares;
    uint32_t index;                  /* of its graph there */
    struct sg_program *rank[SG_RANKS_MOST];
    struct sg_program *next;         /* of the unit's */
};

struct sg_state {
    struct sg_state_base base;
    uint32_t slots_n;
    struct sg_slot *slots;           /* of the whole */
    struct sg_tp_slot *shares;    /* how each is dealt */
    struct sg_state *rank[SG_RANKS_MOST];
};

segue_status sg_group_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                        segue_error *err);
segue_status sg_group_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err);
/* The adapter as the ranks' parts of the weights see it. It lives as long as the program's shares, and what it does not copy as
 * long as the whole. EMEMORY. */
segue_status sg_group_lora(struct sg_program *p, const struct sg_lora *whole, const struct sg_lora **out, segue_error *err);
void sg_group_loras_free(struct group_lora *l);
/* All calls on states into a table. */
void sg_group_state_table(struct sg_unit_ops *t);

#endif
