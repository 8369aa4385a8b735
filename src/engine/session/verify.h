/* verify.h: is what a hand-off brought what the decoder would have computed? The decoder reads the last rows of the prompt
 * itself, from a state handed over in front of them; their logits are compared with the reader's, and the states behind
 * them with those handed over. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_VERIFY_H
#define SG_ENGINE_VERIFY_H

#include <stdint.h>

#include "base/err.h"

struct segue_session;

/* How many of the rows that wait are to be read twice: the last ones. */
uint32_t sg_verify_token_count(const struct segue_session *s);
/* All that wait: instead of the last run of a prompt on the reading layout: nothing waits behind it, and the logits are known. */
segue_status sg_verify_logits(struct segue_session *s, segue_error *err);
/* Behind the hand-off. A breach: the decoder computes all tokens anew and reads by itself from then on. */
segue_status sg_verify_states(struct segue_session *s, segue_error *err);

#endif
