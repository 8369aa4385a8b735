/* tokggufout.h: a tokenizer as GGUF keys.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_TOKGGUFOUT_H
#define SG_TEXT_TOKGGUFOUT_H

#include "tensor/ggufout.h"
#include "text/tokenizer/tokenizer.h"

/* Adds the tokenizer.ggml.* keys for a vocabulary of `rows` ids (the embedding's rows). EUNSUPPORTED: a pre-tokenizer
 * that GGUF cannot name. */
segue_status sg_tokenizer_to_gguf(const struct sg_tokenizer *t, uint32_t rows, struct sg_gguf_out *o, segue_error *err);

#endif
