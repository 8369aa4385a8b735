/* tokggufout.h: writes a tokenizer as GGUF keys.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_TOKGGUFOUT_H
#define SG_TEXT_TOKGGUFOUT_H

#include "tensor/ggufout.h"
#include "text/tokenizer/tokenizer.h"

/* Add the tokenizer.ggml.* keys to o for `vocab` ids, the rows of the embedding, which may exceed the ids of t.
 * EUNSUPPORTED: GGUF has no name for the pre-tokenizer. EMEMORY. */
segue_status sg_tokenizer_to_gguf(const struct sg_tokenizer *t, uint32_t vocab, struct sg_gguf_out *o, segue_error *err);

#endif
