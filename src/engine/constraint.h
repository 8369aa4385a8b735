/* constraint.h: grammars of sessions: the public object, and the mask of the tokens that a session may choose next.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_CONSTRAINT_H
#define SG_ENGINE_CONSTRAINT_H

#include "model/model.h"
#include "text/grammar/grammar.h"

struct segue_grammar {
    atomic_uint references;
    struct segue_model *model;  /* a reference: the tokens are its tokenizer's */
    struct sg_grammar *grammar; /* a reference */
};
struct segue_grammar *sg_constraint_share(struct segue_grammar *g);

/* The constraint of a session. Zeroed: none. */
struct sg_constraint {
    struct segue_grammar *grammar; /* a reference */
    struct sg_grammar_pos pos;     /* tokens [from, to) lead to it */
    size_t from, to;               /* from: number of tokens that the caller has given */
    uint32_t *allowed;             /* mask for token number masked - 1 */
    size_t masked;                 /* 0: no mask yet */
    segue_error error;             /* of a mask that mask_thread.c has made; status OK: none */
};
/* Replace the grammar; NULL: none. EARG: of another model. EMEMORY. */
segue_status sg_constraint_set(struct sg_constraint *c, struct segue_grammar *g, const struct segue_model *model,
                               segue_error *err);
void sg_constraint_free(struct sg_constraint *c);
/* 1: there is no grammar, or its mask for the next token after n tokens, of which the first input_n were given, is made. */
int sg_constraint_is_ready(const struct sg_constraint *c, size_t n, size_t input_n);
/* Make that mask, unless it is ready, from tokens [n]. EFORMAT: no token is allowed. ELIMIT: the grammar is too ambiguous. */
segue_status sg_constraint_update(struct sg_constraint *c, const int32_t *tokens, size_t n, size_t input_n, segue_error *err);

#endif
