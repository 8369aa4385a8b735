/* sequences.h: sequences that are computed together, without padding: all tokens one after the other.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_SEQUENCES_H
#define SEGUE_CLI_SEQUENCES_H

#include <stddef.h>
#include <stdint.h>

struct pack {
    int32_t *tokens, *labels; /* [capacity] */
    size_t *lengths;          /* [n] */
    size_t n, used;
};

void pack_begin(struct pack *p, size_t capacity);
void pack_free(struct pack *p);
/* Appends a sequence, which must fit, and returns the index of its first token. */
size_t pack_add(struct pack *p, const int32_t *tokens, const int32_t *labels, size_t n);

#endif
