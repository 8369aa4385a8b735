/* read_ahead.h: reading the next turn before it comes. While one unit writes an answer, a second session reads the
 * answer's tokens, and then what the template puts behind them, on the unit that reads. The next turn goes on
 * from there: what is left to do before its first token are the new words and the hand-off.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_AHEAD_H
#define SEGUE_CLI_AHEAD_H

#include "term/out.h"

struct ahead; /* NULL is allowed everywhere: nothing is read ahead */

struct ahead *ahead_open(void); /* NULL: no thread */
void ahead_close(struct ahead *a);

/* A turn begins, whose prompt is ids[n]: wait for what is under way. *session becomes the session that has
 * read most of it: itself, or another one, and the caller closes the old one. waited_ns: how long it took. */
void ahead_turn(struct ahead *a, segue_session **session, const int32_t *ids, size_t n, uint64_t *waited_ns);
/* The prompt waits in the session and nothing of the answer is computed: make sure that there is a session to
 * follow it. */
segue_status ahead_follow(struct ahead *a, segue_session *session, segue_error *err);
void ahead_token(struct ahead *a, int32_t token); /* of the answer; allocates nothing */
/* The answer is over, and the next turn will begin with these. */
void ahead_known(struct ahead *a, const int32_t *ids, size_t n);
/* What was read does not hold any more. */
void ahead_forget(struct ahead *a);
/* Tokens read ahead for the last turn, and the time it took beside the answer. */
size_t ahead_tokens(const struct ahead *a, uint64_t *ns);

#endif
