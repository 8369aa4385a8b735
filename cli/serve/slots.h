/* slots.h: places for requests that run at once, as in llama.cpp's server. A slot remembers the tokens of its last request,
 * so that their states can be saved. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_SLOTS_H
#define SEGUE_CLI_SLOTS_H

#include <pthread.h>
#include "term/out.h"

struct slot {
    bool busy;
    char realm[24];
    int32_t *tokens; /* [tokens_n] prompt and answer of the last request */
    size_t tokens_n;
    uint64_t used_ns;
};

struct slots {
    pthread_mutex_t lock;
    struct slot *list; /* [n] */
    size_t n;
};

void slots_open(struct slots *s, size_t n);
void slots_close(struct slots *s);
/* A free slot for a request: `wanted` if it is free; else the one of this realm whose tokens begin most like the prompt;
 * else the one that was not used for the longest time. SIZE_MAX: none is free. */
size_t slots_acquire(struct slots *s, size_t wanted, const char *realm, const int32_t *tokens, size_t n);
/* The request has ended; tokens are copied. i SIZE_MAX: no effect. */
void slots_release(struct slots *s, size_t i, const int32_t *tokens, size_t n);
/* The tokens of a slot of this realm, as a copy; NULL: it has none. */
int32_t *slots_tokens(struct slots *s, size_t i, const char *realm, size_t *n);
/* Replace what a slot remembers; false: it is busy. */
bool slots_set(struct slots *s, size_t i, const char *realm, const int32_t *tokens, size_t n);

#endif
