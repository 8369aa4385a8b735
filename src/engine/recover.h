/* recover.h: going on when a unit is lost in the middle. While a session works on a unit that may vanish, a copy of its
 * states is kept here, as of a chunk ago at most; after a loss the unit is restarted, or another one takes its place, the
 * copy is put there, and the rows behind it are computed again in the same runs as before, so that a survivor of the same
 * kind goes on to the same bit. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_RECOVER_H
#define SG_ENGINE_RECOVER_H

#include "engine/transfer/hostcopy.h"

struct segue_session;

struct sg_recovery {
    struct sg_hostcopy copy;
    uint8_t *edges;              /* [context / 8 + 1] bit i: a run ended behind row i */
    uint32_t runs;               /* since the copy */
    uint64_t moved_at;           /* rows when the states last left the reading layout; those before were read there */
    uint64_t lost_at;            /* rows of the last loss ... */
    uint32_t lost_again;         /* ... and how often there */
};

segue_status sg_recovery_room(struct segue_session *s, segue_error *err);    /* at open */
void sg_recovery_free(struct segue_session *s);
/* Before a run of `rows` rows: keep what a loss would cost too much. ELOST. */
segue_status sg_recovery_keep(struct segue_session *s, uint32_t rows, segue_error *err);
/* Behind a run: `computed` has grown by `rows`. */
void sg_recovery_ran(struct segue_session *s, uint32_t rows);
/* The states go on with fewer rows. */
void sg_recovery_cut(struct segue_session *s, uint64_t rows);
/* The states were replaced by others of the same tokens, computed elsewhere: a copy of them is due. */
void sg_recovery_jumped(struct segue_session *s);
void sg_recovery_fork(struct segue_session *to, const struct segue_session *from);
/* After ELOST, whose text is in err: have states of `computed` rows again, where they were or elsewhere. ELOST: nothing is
 * left to go on with; the session then has no states. */
segue_status sg_session_recover(struct segue_session *s, segue_error *err);
/* As sg_session_to_layout, over losses. */
segue_status sg_session_carry(struct segue_session *s, uint32_t to, segue_error *err);

#ifdef SEGUE_FAULTS
/* Development builds: the first run of unit `spec` that reads token `row` says that the unit is lost. NULL: never. */
void sg_fault_lost(const char *spec, uint64_t row);
int sg_fault_is_lost(const struct segue_unit *u, uint64_t first, uint32_t rows, segue_error *err);
#endif

#endif
