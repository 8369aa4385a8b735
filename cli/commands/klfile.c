/* klfile.c: see klfile.h. Sizes in the header are checked against the file before anything is read by them.
 * SPDX-License-Identifier: MIT */
#include "commands/klfile.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PREFIX = 4 }; /* uint16 cells of scale and smallest */

static void make_row(struct klfile *k)
{
    k->row_cells = 2 * (((size_t)k->vocab + 1) / 2) + PREFIX;
    k->row = out_alloc(k->row_cells * sizeof *k->row);
}

static segue_status put(struct klfile *k, const void *bytes, size_t n, segue_error *err)
{
    errno = 0;
    return fwrite(bytes, 1, n, k->file) == n ? SEGUE_OK
                                             : out_fail_errno(err, "writing base logits", k->path, NULL);
}

/* The tokens are those of the text, also where a chunk was scored with BOS in the place of its first one. */
segue_status klfile_create(struct klfile *k, const char *path, int32_t rows, int32_t vocab, int32_t chunks,
                           const int32_t *tokens, segue_error *err)
{
    *k = (struct klfile){.rows = rows, .vocab = vocab, .chunks = chunks, .path = out_strdup(path)};
    k->aside = out_printf("%s.tmp-%ld", path, (long)getpid());
    k->file = fopen(k->aside, "wb");
    make_row(k);
    if (!k->file) return out_fail_errno(err, "writing base logits", path, NULL);
    int32_t head[3] = {rows, vocab, chunks};
    segue_status st = put(k, "_logits_", 8, err);
    if (!st) st = put(k, head, sizeof head, err);
    return st ? st : put(k, tokens, (size_t)rows * (size_t)chunks * sizeof *tokens, err);
}

/* Log of the sum of e^logits; best is the highest logit's index. */
static double log_sum(const float *logits, int32_t n, int32_t *best)
{
    *best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[*best]) *best = i;
    double sum = 0, high = logits[*best];
    for (int32_t i = 0; i < n; i++) sum += exp(logits[i] - high);
    return high + log(sum);
}

/* 16 bits between the highest log-probability and 16 below it; what lies deeper counts as that. */
segue_status klfile_put(struct klfile *k, const float *logits, segue_error *err)
{
    int32_t best;
    double sum = log_sum(logits, k->vocab, &best);
    float high = logits[best], low = high;
    for (int32_t i = 0; i < k->vocab; i++)
        if (logits[i] < low) low = logits[i];
    if (low < high - 16) low = high - 16;
    float pair[2] = {(high - low) / 65535.0f, (float)(low - sum)};
    memcpy(k->row, pair, sizeof pair);
    for (int32_t i = 0; i < k->vocab; i++)
        k->row[PREFIX + i] =
            logits[i] > low && pair[0] > 0 ? (uint16_t)lrintf((logits[i] - low) / pair[0]) : 0;
    return put(k, k->row, k->row_cells * sizeof *k->row, err);
}

segue_status klfile_commit(struct klfile *k, segue_error *err)
{
    errno = 0;
    bool sound = fflush(k->file) == 0 && fsync(fileno(k->file)) == 0;
    sound = fclose(k->file) == 0 && sound;
    k->file = NULL;
    if (!sound || rename(k->aside, k->path)) return out_fail_errno(err, "writing base logits", k->path, NULL);
    free(k->aside);
    k->aside = NULL;
    return SEGUE_OK;
}

static segue_status damaged(const struct klfile *k, const char *why, segue_error *err)
{
    return out_fail(err, SEGUE_EFORMAT, "base logits: %.250s: %s; write it again with --kl-out", k->path,
                    why);
}

/* The sizes that the head implies are compared with the file as doubles, which cannot wrap. */
segue_status klfile_open(struct klfile *k, const char *path, int32_t vocab, segue_error *err)
{
    *k = (struct klfile){.path = out_strdup(path), .file = fopen(path, "rb")};
    struct stat s;
    char magic[8];
    int32_t head[3];
    if (!k->file || fstat(fileno(k->file), &s))
        return out_fail_errno(err, "reading base logits", path, "check the path");
    if (fread(magic, 8, 1, k->file) != 1 || memcmp(magic, "_logits_", 8) != 0)
        return damaged(k, "it does not begin with _logits_", err);
    if (fread(head, sizeof head, 1, k->file) != 1) return damaged(k, "its head is cut off", err);
    if (head[0] < 2 || head[0] > 1 << 24 || head[2] < 1 || head[2] > 1 << 24 || head[1] < 1)
        return damaged(k, "absurd numbers in its head", err);
    if (head[1] != vocab)
        return out_fail(err, SEGUE_EFORMAT,
                        "base logits: %.250s: made with %d tokens in the vocabulary, the model has %d; "
                        "use files of one model",
                        path, head[1], vocab);
    k->rows = head[0];
    k->vocab = head[1];
    k->chunks = head[2];
    make_row(k);
    double cells = (double)k->chunks * (k->rows - 1 - k->rows / 2) * (double)k->row_cells;
    double size = 20 + 4.0 * k->chunks * k->rows + 2 * cells;
    if ((double)s.st_size < size) return damaged(k, "it is cut off", err);
    size_t n = (size_t)k->chunks * (size_t)k->rows;
    k->tokens = out_alloc(n * sizeof *k->tokens);
    if (fread(k->tokens, sizeof *k->tokens, n, k->file) != n) return damaged(k, "it is cut off", err);
    for (size_t i = 0; i < n; i++)
        if (k->tokens[i] < 0 || k->tokens[i] >= vocab)
            return damaged(k, "a token is outside the vocabulary", err);
    return SEGUE_OK;
}

/* Tokens that the base gives less than e^-16 add nothing, as in llama-perplexity. */
segue_status klfile_compare(struct klfile *k, const float *logits, double *kl, bool *same_top,
                            segue_error *err)
{
    if (fread(k->row, sizeof *k->row, k->row_cells, k->file) != k->row_cells)
        return damaged(k, "it is cut off", err);
    float pair[2];
    memcpy(pair, k->row, sizeof pair);
    if (!isfinite(pair[0]) || !isfinite(pair[1]) || pair[0] < 0)
        return damaged(k, "a scale is no number", err);
    int32_t best, base_best = 0;
    double sum = log_sum(logits, k->vocab, &best), total = 0;
    for (int32_t i = 0; i < k->vocab; i++) {
        if (k->row[PREFIX + i] > k->row[PREFIX + base_best]) base_best = i;
        double base = (double)pair[0] * k->row[PREFIX + i] + pair[1];
        if (base > -16) total += exp(base) * (base - (logits[i] - sum));
    }
    *kl = total;
    *same_top = best == base_best;
    return SEGUE_OK;
}

void klfile_close(struct klfile *k)
{
    if (k->file) fclose(k->file);
    if (k->aside) unlink(k->aside);
    free(k->aside);
    free(k->path);
    free(k->tokens);
    free(k->row);
    *k = (struct klfile){0};
}
