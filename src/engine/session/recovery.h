/* recovery.h: what a session remembers so that it can continue after a unit is lost: a copy of its states in host memory,
 * at most one chunk old, and where its runs ended. Computing the tokens after the copy again in the same runs gives the
 * same bits on a unit of the same kind. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_RECOVERY_H
#define SG_ENGINE_RECOVERY_H

#include "engine/transfer/hostcopy.h"

struct segue_session;

/* Short runs between two copies: a copy costs about as much as one of them. */
enum { SG_RECOVERY_RUNS_MAX = 32 };

struct sg_recovery {
    struct sg_hostcopy copy;
    uint8_t *run_ends;        /* [context / 8 + 1] bits; bit i: a run ended after token i */
    uint32_t runs_since_copy;
    uint64_t handoff_pos;     /* tokens when the states last left the prefill layout; earlier tokens were computed there */
    uint64_t loss_pos;        /* computed tokens at the last loss */
    uint32_t losses_there;    /* further losses at that position */
};

/* Allocates run_ends for the session's context. EMEMORY. */
segue_status sg_recovery_alloc(struct segue_session *s, segue_error *err);
void sg_recovery_free(struct segue_session *s);
/* Before a run of n tokens: copies the states to the host when a loss would cost too much. ELOST; a failed allocation is no
 * error, a loss then costs more. */
segue_status sg_recovery_update(struct segue_session *s, uint32_t n, segue_error *err);
/* After a run: `computed` has grown by n. */
void sg_recovery_after_run(struct segue_session *s, uint32_t n);
/* The states were cut to tokens_n tokens. */
void sg_recovery_cut(struct segue_session *s, uint64_t tokens_n);
/* The states were replaced by others of the same tokens: drop the copy and make a new one soon. */
void sg_recovery_reset(struct segue_session *s);
/* Copies the run ends, not the host copy. */
void sg_recovery_fork(struct segue_session *to, const struct segue_session *from);

#ifdef SEGUE_FAULTS
/* Development builds: the first run of unit `spec` over token `pos` reports that the unit is lost. NULL: never. */
void sg_fault_lost(const char *spec, uint64_t pos);
int sg_fault_is_lost(const struct segue_unit *u, uint64_t first, uint32_t n, segue_error *err);
#endif

#endif
