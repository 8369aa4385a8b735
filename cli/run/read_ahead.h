/* read_ahead.h: prefill of the next turn of a chat before it is sent. If prefill and decode run on different units, a
 * thread feeds the tokens of the answer to a second session on the prefill unit while the answer is generated. After the
 * answer it reads what follows in any case, and on a terminal what the user types, also with one unit: the words, and at each key
 * the whole prompt as if the message ended there. The next turn continues in one of these sessions, so that at most its last
 * word, the template's text after it and the hand-off remain before the first token. All functions accept NULL, which means no
 * read-ahead.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_READ_AHEAD_H
#define SEGUE_CLI_READ_AHEAD_H

#include "term/out.h"

struct read_ahead;

/* Start the thread; NULL if it cannot be started. one_unit: the unit is busy during an answer, so nothing is read until it is
 * complete. */
struct read_ahead *read_ahead_open(bool one_unit);
/* Cancel a running prefill, stop the thread and close its sessions. */
void read_ahead_close(struct read_ahead *a);

/* A turn begins with the prompt ids[n]: wait for the running prefill. If the read-ahead session holds at least as
 * much of the prompt, *session is replaced by it and the caller closes the old one. *waited_ns: time spent waiting. */
void read_ahead_begin_turn(struct read_ahead *a, segue_session **session, const int32_t *ids, size_t n, uint64_t *waited_ns);
/* Call before the first token of an answer is computed: prepares a session that follows `session`, forking it if
 * needed. */
segue_status read_ahead_attach(struct read_ahead *a, segue_session *session, segue_error *err);
/* Queue a token of the answer. Does not allocate. */
void read_ahead_push(struct read_ahead *a, int32_t token);
/* The answer of `session` is complete, or the first message is expected; ids[n] is the known beginning of the next prompt, which
 * the thread prefills. */
void read_ahead_finish(struct read_ahead *a, segue_session *session, const int32_t *ids, size_t n);
/* ids[n] is the beginning of the next prompt as far as it was typed. Does not wait: what the thread has not begun is replaced.
 * Words that were read and then changed are read again. */
void read_ahead_words(struct read_ahead *a, const int32_t *ids, size_t n);
/* ids[n] is the next prompt if the message ends here: a turn with exactly this prompt has nothing left to compute. Does not wait:
 * another prompt is given up, also while it is computed. If one takes too long, the others of this turn are not computed. */
void read_ahead_whole(struct read_ahead *a, const int32_t *ids, size_t n);
/* Discard everything read ahead, for example after the session was replaced. */
void read_ahead_reset(struct read_ahead *a);
/* Tokens read ahead for the last turn; *ns: their prefill time. */
size_t read_ahead_stats(const struct read_ahead *a, uint64_t *ns);

#endif
