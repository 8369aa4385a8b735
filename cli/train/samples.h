/* samples.h: training data: files to sequences of tokens with labels, a held-out part, and an order by seed.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_SAMPLES_H
#define SEGUE_CLI_SAMPLES_H

#include "run/placement.h"
#include "run/prompt.h"

/* One sequence. labels[i]: the token that position i is to predict; -1: no loss there. */
struct train_sample {
    int32_t *tokens, *labels; /* [n] one block; free(tokens) */
    size_t n;
};

/* Zero-initialise; free with samples_free. */
struct train_data {
    struct train_sample *items; /* [n] the held-out ones first */
    size_t n, cap, held_out;
    size_t cut, skipped;  /* shortened to the context; left out, because nothing in them has a label */
};

/* Read a file: .jsonl, one object per line with "text", "messages" or "tokens"; .bin, .u16 or .u32: tokens as numbers of 2 or 4
 * bytes, or as llm.c writes them; else one text. Tokens and texts are cut into sequences of `context` tokens. Of conversations
 * only what the assistant says has labels. held_out: share of all sequences, from 0 to 0.5; which ones depends on seed. EFORMAT:
 * file and line, or number of the token, of what is wrong. */
segue_status samples_read(struct train_data *s, const struct placement *p, const char *path, size_t context, double held_out,
                          uint64_t seed, segue_error *err);
void samples_free(struct train_data *s);
/* Lines of a .jsonl file have at most this many bytes. */
enum { TRAIN_LINE_BYTES = 16 << 20 };
/* Calls take for each line of a .jsonl file that is not blank, until one fails. Its error gets the file, the line and what to do.
 * ELIMIT: a line is too long. */
segue_status train_lines(const char *path, const struct out_text *text,
                         segue_status (*take)(void *context, const char *line, size_t len, segue_error *err), void *context,
                         segue_error *err);
/* A list of token ids. Free out with prompt_free, also after an error. EFORMAT. */
segue_status train_ids(struct prompt *out, const struct placement *p, const json_t *list, segue_error *err);
/* The sequence to train at place `at` of an endless row of epochs; every epoch has an order of its own. */
size_t samples_order(uint64_t seed, uint64_t at, size_t n); /* index below n at place `at` */
const struct train_sample *samples_at(const struct train_data *s, uint64_t seed, uint64_t at);

#endif
