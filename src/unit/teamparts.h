/* teamparts.h: what the files of a team share: team.c (the unit and its programs), teamrun.c (runs), teamlora.c (adapters),
 * teamstate.c (states). The ranks' own objects are known by their table alone. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_TEAMPARTS_H
#define SG_UNIT_TEAMPARTS_H

#include <pthread.h>

#include "graph/share.h"
#include "unit/unit.h"

enum { TEAM_LANES = 2 };

struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_ops own;          /* the table of this team: what its ranks can do */
    const struct sg_unit_ops *ops;   /* the ranks' table */
    struct sg_unit_desc desc;
    uint32_t ranks;
    struct sg_unit *rank[SG_RANKS_MOST];
    pthread_mutex_t lanes[TEAM_LANES];  /* ranks meet in the same order: one run of few rows, and a long one, at a time */
    pthread_mutex_t lock;            /* guards programs */
    struct sg_program *programs;     /* all that were not discarded */
};

struct team_lora;

struct team_shares {                 /* of one compile */
    struct sg_shares *shares;
    uint32_t references;
    struct team_lora *loras;         /* adapters that were bound; the unit's lock guards the list */
};

struct sg_program {
    struct sg_program_base base;
    struct team_shares *shares;
    uint32_t index;                  /* of its graph there */
    struct sg_program *rank[SG_RANKS_MOST];
    struct sg_program *next;         /* of the unit's */
};

struct sg_state {
    struct sg_state_base base;
    uint32_t slots_n;
    struct sg_slot *slots;           /* of the whole */
    struct sg_share_slot *shares;    /* how each is dealt */
    struct sg_state *rank[SG_RANKS_MOST];
};

segue_status sg_team_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                        segue_error *err);
segue_status sg_team_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err);
/* The adapter as the ranks' parts of the weights see it. It lives as long as the program's shares, and what it does not copy as
 * long as the whole. EMEMORY. */
segue_status sg_team_lora(struct sg_program *p, const struct sg_lora *whole, const struct sg_lora **out, segue_error *err);
void sg_team_loras_free(struct team_lora *l);
/* All calls on states into a table. */
void sg_team_state_table(struct sg_unit_ops *t);

#endif
