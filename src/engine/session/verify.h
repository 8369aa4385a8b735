/* verify.h: verification of a hand-off. The decode unit computes the last tokens of the prompt too, from a copy of the states
 * before them. Its logits are compared with those of the prefill unit, and its states with those that are handed over.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_VERIFY_H
#define SG_ENGINE_VERIFY_H

#include <stdint.h>

#include "base/err.h"

struct segue_session;

/* Number of pending tokens, the last ones, that both units compute. */
uint32_t sg_verify_token_count(const struct segue_session *s);
/* Replaces the last run of a prompt on the prefill layout: computes all pending tokens on both and compares the logits. */
segue_status sg_verify_logits(struct segue_session *s, segue_error *err);
/* After the hand-off: compares the states. On a difference beyond the bound the decode layout computes all tokens again and
 * also does the prefill from then on (segue_verify.action). */
segue_status sg_verify_states(struct segue_session *s, segue_error *err);

#endif
