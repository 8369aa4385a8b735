/* tokenizer.c: closing a tokenizer, and the description of it.
 * SPDX-License-Identifier: MIT */
#include "text/tokenizer/tokparts.h"

/* Also closes a tokenizer that was read only in part. */
void sg_tokenizer_close(struct sg_tokenizer *t)
{
    if (!t) return;
    for (uint32_t i = 0; i < t->splits_n; i++) sg_split_free(&t->splits[i]);
    sg_arena_free(&t->arena);
    sg_free(t);
}

/* The texts in *out belong to the tokenizer. t may be NULL: no tokenizer. */
void sg_tokenizer_info_get(const struct sg_tokenizer *t, struct sg_tokenizer_info *out)
{
    static const struct sg_tokenizer_info none = {.bos = -1, .eos = -1, .bos_text = "", .eos_text = ""};
    *out = t ? t->info : none;
}
