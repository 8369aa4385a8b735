/* kl_file.h: files of base logits in the format of llama-perplexity, so that the two programs can exchange them.
 * Layout, little-endian: "_logits_", int32 tokens per chunk, int32 vocabulary, int32 chunks, int32
 * tokens[chunks][chunk_tokens]; then per chunk, for each position from chunk_tokens/2 to chunk_tokens-2: float scale,
 * float minimum, uint16 value[vocabulary], padded to an even count. log p = scale * value + minimum.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_KL_FILE_H
#define SEGUE_CLI_KL_FILE_H

#include "term/out.h"

/* An open file, for writing (kl_file_create) or reading (kl_file_open). */
struct kl_file {
    FILE *file;
    char *path, *tmp_path; /* tmp_path: while writing, until the commit */
    int32_t chunk_tokens, vocab, chunks; /* as in the header of the file */
    int32_t *tokens; /* [chunks][chunk_tokens] */
    uint16_t *row;   /* [row_u16] one row as stored */
    size_t row_u16;
};
/* Create a temporary file next to path and write the header and the tokens. */
segue_status kl_file_create(struct kl_file *k, const char *path, int32_t chunk_tokens, int32_t vocab, int32_t chunks,
                           const int32_t *tokens, segue_error *err);
/* Append the log-probabilities of logits[vocab], quantized to 16 bits. */
segue_status kl_file_write_row(struct kl_file *k, const float *logits, segue_error *err);
/* Flush to disk and rename to path. */
segue_status kl_file_commit(struct kl_file *k, segue_error *err);
/* Open for reading. SEGUE_EFORMAT if the file is damaged or its vocabulary is not `vocab`. */
segue_status kl_file_open(struct kl_file *k, const char *path, int32_t vocab, segue_error *err);
/* Read the next row and compare it with logits[vocab]. *kl: KL divergence from the base model to this one, natural
 * logarithm; *same_top: the most likely tokens are equal. */
segue_status kl_file_compare(struct kl_file *k, const float *logits, double *kl, bool *same_top,
                            segue_error *err);
/* Close; an uncommitted file is deleted. */
void kl_file_close(struct kl_file *k);

#endif
