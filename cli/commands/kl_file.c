/* kl_file.c: base logits files, see kl_file.h. The sizes in the header are checked against the size of the file
 * before they are used.
 * Values are in host byte order, which is little-endian on all supported machines.
 * SPDX-License-Identifier: MIT */
#include "commands/kl_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROW_HEADER = 4 }; /* uint16 units taken by scale and minimum */

/* Allocate the row buffer; the count of values is rounded up to an even number. */
static void alloc_row(struct kl_file *k)
{
    k->row_u16 = 2 * (((size_t)k->vocab + 1) / 2) + ROW_HEADER;
    k->row = out_alloc(k->row_u16 * sizeof *k->row);
}

/* Write n bytes; a full disk is reported here or by the commit. */
static segue_status write_bytes(struct kl_file *k, const void *bytes, size_t n, segue_error *err)
{
    errno = 0;
    return fwrite(bytes, 1, n, k->file) == n ? SEGUE_OK
                                             : out_fail_errno(err, "writing base logits", k->path, NULL);
}

/* The stored tokens are those of the text, even where a chunk was scored with BOS as its first token. */
segue_status kl_file_create(struct kl_file *k, const char *path, int32_t chunk_tokens, int32_t vocab, int32_t chunks,
                           const int32_t *tokens, segue_error *err)
{
    *k = (struct kl_file){.chunk_tokens = chunk_tokens, .vocab = vocab, .chunks = chunks, .path = out_strdup(path)};
    k->file = out_temporary(path, 0666, &k->tmp_path);
    alloc_row(k);
    if (!k->file) return out_fail_errno(err, "writing base logits", path, NULL);
    int32_t head[3] = {chunk_tokens, vocab, chunks};
    segue_status st = write_bytes(k, "_logits_", 8, err);
    if (!st) st = write_bytes(k, head, sizeof head, err);
    return st ? st : write_bytes(k, tokens, (size_t)chunk_tokens * (size_t)chunks * sizeof *tokens, err);
}

/* log(sum(exp(logits[n]))), shifted by the maximum for stability. *best: index of the maximum. */
static double log_sum_exp(const float *logits, int32_t n, int32_t *best)
{
    *best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[*best]) *best = i;
    double sum = 0, high = logits[*best];
    for (int32_t i = 0; i < n; i++) sum += exp(logits[i] - high);
    return high + log(sum);
}

/* The range is the highest logit down to 16 below it, as in llama-perplexity; lower values are clamped. */
segue_status kl_file_write_row(struct kl_file *k, const float *logits, segue_error *err)
{
    int32_t best;
    double sum = log_sum_exp(logits, k->vocab, &best);
    float high = logits[best], low = high;
    for (int32_t i = 0; i < k->vocab; i++)
        if (logits[i] < low) low = logits[i];
    /* e^-16 is about 1e-7: smaller probabilities do not matter for the divergence. */
    if (low < high - 16) low = high - 16;
    /* {scale, minimum}: log p = scale * value + minimum, with value in [0, 65535]. */
    float pair[2] = {(high - low) / 65535.0f, (float)(low - sum)};
    memcpy(k->row, pair, sizeof pair);
    for (int32_t i = 0; i < k->vocab; i++)
        k->row[ROW_HEADER + i] =
            logits[i] > low && pair[0] > 0 ? (uint16_t)lrintf((logits[i] - low) / pair[0]) : 0;
    return write_bytes(k, k->row, k->row_u16 * sizeof *k->row, err);
}

/* The temporary file is renamed after fsync, so that a crash leaves the old file or the new one. */
segue_status kl_file_commit(struct kl_file *k, segue_error *err)
{
    errno = 0;
    bool ok = fflush(k->file) == 0 && fsync(fileno(k->file)) == 0;
    ok = fclose(k->file) == 0 && ok;
    k->file = NULL;
    if (!ok || rename(k->tmp_path, k->path)) return out_fail_errno(err, "writing base logits", k->path, NULL);
    free(k->tmp_path);
    k->tmp_path = NULL;
    return SEGUE_OK;
}

/* The error for a file that is not in the format of kl_file.h. */
static segue_status bad_file(const struct kl_file *k, const char *reason, segue_error *err)
{
    return out_fail(err, SEGUE_EFORMAT, "base logits: %.250s: %s; recreate it with --kl-out", k->path,
                    reason);
}

/* The implied size is computed in double, which cannot overflow. */
segue_status kl_file_open(struct kl_file *k, const char *path, int32_t vocab, segue_error *err)
{
    *k = (struct kl_file){.path = out_strdup(path), .file = fopen(path, "rb")};
    struct stat s;
    char magic[8];
    int32_t head[3];
    if (!k->file || fstat(fileno(k->file), &s))
        return out_fail_errno(err, "reading base logits", path, "check the path");
    if (fread(magic, 8, 1, k->file) != 1 || memcmp(magic, "_logits_", 8) != 0)
        return bad_file(k, "the magic _logits_ is missing", err);
    if (fread(head, sizeof head, 1, k->file) != 1) return bad_file(k, "the header is truncated", err);
    /* The limits keep the products below in the range of size_t. */
    if (head[0] < 2 || head[0] > 1 << 24 || head[2] < 1 || head[2] > 1 << 24 || head[1] < 1)
        return bad_file(k, "invalid numbers in the header", err);
    if (head[1] != vocab)
        return out_fail(err, SEGUE_EFORMAT,
                        "base logits: %.250s: vocabulary of %d tokens, the model has %d; "
                        "use a file of the same model",
                        path, head[1], vocab);
    k->chunk_tokens = head[0];
    k->vocab = head[1];
    k->chunks = head[2];
    alloc_row(k);
    /* Rows per chunk: positions chunk_tokens / 2 to chunk_tokens - 2. */
    double cells = (double)k->chunks * (k->chunk_tokens - 1 - k->chunk_tokens / 2) * (double)k->row_u16;
    double size = 20 + 4.0 * k->chunks * k->chunk_tokens + 2 * cells;
    if ((double)s.st_size < size) return bad_file(k, "the file is truncated", err);
    size_t n = (size_t)k->chunks * (size_t)k->chunk_tokens;
    k->tokens = out_alloc(n * sizeof *k->tokens);
    if (fread(k->tokens, sizeof *k->tokens, n, k->file) != n) return bad_file(k, "the file is truncated", err);
    for (size_t i = 0; i < n; i++)
        if (k->tokens[i] < 0 || k->tokens[i] >= vocab)
            return bad_file(k, "a token is outside the vocabulary", err);
    return SEGUE_OK;
}

/* Tokens with a base probability below e^-16 are not counted, as in llama-perplexity. */
segue_status kl_file_compare(struct kl_file *k, const float *logits, double *kl, bool *same_top,
                            segue_error *err)
{
    if (fread(k->row, sizeof *k->row, k->row_u16, k->file) != k->row_u16)
        return bad_file(k, "the file is truncated", err);
    float pair[2];
    memcpy(pair, k->row, sizeof pair);
    if (!isfinite(pair[0]) || !isfinite(pair[1]) || pair[0] < 0)
        return bad_file(k, "invalid scale", err);
    int32_t best, base_best = 0;
    double sum = log_sum_exp(logits, k->vocab, &best), total = 0;
    for (int32_t i = 0; i < k->vocab; i++) {
        /* On a tie the first token counts as the most likely one, as in log_sum_exp. */
        if (k->row[ROW_HEADER + i] > k->row[ROW_HEADER + base_best]) base_best = i;
        /* Stored log-probability of token i in the base model. */
        double base = (double)pair[0] * k->row[ROW_HEADER + i] + pair[1];
        if (base > -16) total += exp(base) * (base - (logits[i] - sum));
    }
    *kl = total;
    *same_top = best == base_best;
    return SEGUE_OK;
}

/* Safe on a zeroed struct and after a failed open. */
void kl_file_close(struct kl_file *k)
{
    if (k->file) fclose(k->file);
    if (k->tmp_path) unlink(k->tmp_path);
    free(k->tmp_path);
    free(k->path);
    free(k->tokens);
    free(k->row);
    *k = (struct kl_file){0};
}
