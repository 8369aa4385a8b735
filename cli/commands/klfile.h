/* klfile.h: files of base logits as llama-perplexity writes them, so that either program can judge the other.
 * Layout, little-endian: "_logits_", int32 rows per chunk, int32 vocabulary, int32 chunks, int32
 * tokens[chunks][rows], then per chunk for each row from rows/2 to rows-2: float scale, float smallest
 * log-probability, uint16 value[vocabulary], padded to an even count. log p = scale * value + smallest.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_KLFILE_H
#define SEGUE_CLI_KLFILE_H

#include "term/out.h"

struct klfile {
    FILE *file;
    char *path, *aside; /* aside: only while writing */
    int32_t rows, vocab, chunks;
    int32_t *tokens; /* [chunks][rows] */
    uint16_t *row;   /* one row as stored */
    size_t row_cells;
};
segue_status klfile_create(struct klfile *k, const char *path, int32_t rows, int32_t vocab, int32_t chunks,
                           const int32_t *tokens, segue_error *err);
segue_status klfile_put(struct klfile *k, const float *logits, segue_error *err);
segue_status klfile_commit(struct klfile *k, segue_error *err);
segue_status klfile_open(struct klfile *k, const char *path, int32_t vocab, segue_error *err);
/* Read the next row and compare logits with it: the divergence of ours from theirs, and whether the best
 * token is equal. */
segue_status klfile_compare(struct klfile *k, const float *logits, double *kl, bool *same_top,
                            segue_error *err);
void klfile_close(struct klfile *k); /* removes what was not committed */

#endif
