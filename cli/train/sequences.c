/* sequences.c: see sequences.h. SPDX-License-Identifier: MIT */
#include "train/sequences.h"

#include <stdlib.h>
#include <string.h>

#include "term/out.h"

void pack_begin(struct pack *p, size_t capacity)
{
    *p = (struct pack){.tokens = out_alloc(capacity * sizeof *p->tokens), .labels = out_alloc(capacity * sizeof *p->labels),
                       .lengths = out_alloc(capacity * sizeof *p->lengths)};
}

void pack_free(struct pack *p)
{
    free(p->tokens);
    free(p->labels);
    free(p->lengths);
}

size_t pack_add(struct pack *p, const int32_t *tokens, const int32_t *labels, size_t n)
{
    size_t at = p->used;
    memcpy(p->tokens + at, tokens, n * sizeof *tokens);
    memcpy(p->labels + at, labels, n * sizeof *labels);
    p->lengths[p->n++] = n;
    p->used += n;
    return at;
}
