/* grammar.h: constraints on generated text: a context-free grammar over bytes, compiled from GBNF, a JSON schema or a regular
 * expression, run as a pushdown automaton over the tokens of a vocabulary. A grammar is shared and may be used by any thread.
 * All limits are in parts.h; nothing here recurses on the input.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_GRAMMAR_H
#define SG_TEXT_GRAMMAR_H

#include "text/tokenizer/tokenizer.h"

struct sg_grammar;
struct sg_token_trie;

/* The tokens of a vocabulary as a trie of their bytes. Control tokens are found only after the byte 0xFF, which no text has:
 * a grammar names them that way. vocab: ids below it. The tokenizer must live as long. EMEMORY. */
segue_status sg_token_trie_new(struct sg_token_trie **out, const struct sg_tokenizer *t, uint32_t vocab, segue_error *err);
void sg_token_trie_free(struct sg_token_trie *trie);

/* trie: borrowed, NULL for a grammar that only checks texts. stops [stops_n]: tokens that are allowed exactly where the text may
 * end; copied. EFORMAT: the text is not valid, with its position. EUNSUPPORTED: a construct is not supported;
 * the message names it. ELIMIT: too large. EMEMORY. */
segue_status sg_grammar_new(struct sg_grammar **out, int kind, const char *text, size_t len, const struct sg_token_trie *trie,
                            const int32_t *stops, size_t stops_n, segue_error *err);
void sg_grammar_free(struct sg_grammar *g); /* NULL is allowed */

/* Position in a grammar. Zero-initialise; plain data. */
struct sg_grammar_pos {
    uint32_t state, generation; /* of the automaton's cache; generation 0: at the beginning */
};

/* Set *pos to where the tokens [n] lead from the beginning, and words [(vocab + 31) / 32] to the tokens that are allowed there:
 * bit t % 32 of word t / 32. from: the first `from` tokens lead to the present *pos. A stop token ends the text: after it nothing
 * is allowed. EFORMAT: the grammar does not allow a token, or no token is allowed. ELIMIT: too ambiguous. */
segue_status sg_grammar_mask(struct sg_grammar *g, struct sg_grammar_pos *pos, const int32_t *tokens, size_t n, size_t from,
                             uint32_t *words, segue_error *err);
/* Words of a mask; 0: no vocabulary. */
size_t sg_grammar_mask_words(const struct sg_grammar *g);
/* OK: the whole text is allowed. END: more must follow. EFORMAT: not allowed; *valid = bytes that are. ELIMIT. */
segue_status sg_grammar_check(struct sg_grammar *g, const char *text, size_t len, size_t *valid, segue_error *err);

#endif
