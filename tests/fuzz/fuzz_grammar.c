/* fuzz_grammar.c: hostile sources of constraints: the first byte selects GBNF, JSON schema or expression; the text up to the
 * first NUL is the source, what follows is held against it. SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_grammar *g = NULL;
    segue_error err;
    if (!size) return 0;
    const char *source = (const char *)data + 1;
    const char *nul = memchr(source, 0, size - 1);
    size_t len = nul ? (size_t)(nul - source) : size - 1, valid, left = nul ? size - 2 - len : 0;
    if (sg_grammar_new(&g, data[0] % 3, source, len, NULL, NULL, 0, &err) != SEGUE_OK) return 0;
    sg_grammar_check(g, nul ? nul + 1 : "", left, &valid, &err);
    sg_grammar_free(g);
    return 0;
}
