/* score.c: log-probabilities and logits of given tokens, the values of a dump, and final hidden values pooled over a sequence.
 * The logits of a chunk are bounded in bytes.
 * SPDX-License-Identifier: MIT */
#include "engine/session/score.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* Chunks of at least ROWS_MIN tokens run as fast as a prompt, so a large vocabulary may use up to LOGITS_MAX bytes for them. */
enum { LOGITS_BYTES = 16 << 20, LOGITS_MAX = 128 << 20, ROWS_MIN = 64 };

/* Tokens per chunk by the memory of their logits. */
static size_t rows_that_fit(size_t vocab)
{
    size_t rows = LOGITS_BYTES / 4 / vocab, max = LOGITS_MAX / 4 / vocab;
    return rows >= ROWS_MIN ? rows : max < ROWS_MIN ? max : ROWS_MIN;
}

/* In double: a sum over a whole vocabulary in fp32 would lose the fourth digit. */
static float log_probability(const float *logits, size_t n, int32_t token)
{
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        if ((double)logits[i] > top) top = (double)logits[i];
    for (size_t i = 0; i < n; i++) sum += exp((double)logits[i] - top);
    return (float)((double)logits[token] - top - log(sum));
}

/* Stores the results of tokens [at, at + rows), which were just computed. A token's log-probability is given by the logits of
 * the position before it. */
static void take_rows(struct segue_session *s, const struct sg_score_request *r, size_t at, size_t rows,
                      const float *logits)
{
    size_t vocab = s->engine->model->info.vocab;
    const int32_t *tokens = s->tokens + (s->computed - rows);
    for (size_t i = 0; r->logprobs && i < rows; i++) {
        const float *before = i ? logits + (i - 1) * vocab : s->logits;
        r->logprobs[at + i] = at + i || r->continues ? log_probability(before, vocab, tokens[i]) : 0;
    }
    memcpy(s->logits, logits + (rows - 1) * vocab, vocab * sizeof *logits);
    s->logits_known = 1;
}

/* Computes n pending tokens, `chunk` at a time. buffer: [chunk, vocab], used when the caller wants no logits. */
static segue_status read_chunks(struct segue_session *s, const struct sg_score_request *r, size_t n, size_t chunk,
                                uint32_t *wanted, float *buffer, float **values, segue_error *err)
{
    size_t vocab = s->engine->model->info.vocab;
    for (size_t i = 0; i < chunk; i++) wanted[i] = (uint32_t)i;
    for (size_t at = 0, rows; at < n; at += rows) {
        rows = n - at < chunk ? n - at : chunk;
        float *logits = r->logits ? r->logits + at * vocab : buffer;
        for (uint32_t k = 0; k < r->outputs_n; k++) values[k] = r->values[k] + at * r->width;
        struct sg_run_request request = {.tokens_n = (uint32_t)rows,
                             .wanted = wanted,
                             .wanted_n = (uint32_t)rows,
                             .logits = logits,
                             .outputs = r->outputs,
                             .outputs_n = r->outputs_n,
                             .values = values};
        SG_TRY(sg_session_run(s, &request, err));
        s->stats.tokens_in += rows;
        take_rows(s, r, at, rows, logits);
    }
    return SEGUE_OK;
}

segue_status sg_session_run_scored(struct segue_session *s, const struct sg_score_request *r, segue_error *err)
{
    size_t n = s->tokens_n - s->computed, vocab = s->engine->model->info.vocab;
    size_t chunk = rows_that_fit(vocab), max = s->layouts[s->active].chunk_tokens;
    if (chunk > max) chunk = max;
    if (chunk > n) chunk = n;
    if (!chunk) chunk = 1;
    uint32_t *wanted = sg_alloc(chunk * sizeof *wanted);
    float *buffer = sg_alloc(r->logits ? 1 : chunk * vocab * sizeof *buffer);
    float **values = sg_alloc((r->outputs_n + 1) * sizeof(float *));
    segue_status status = wanted && buffer && values
                              ? sg_session_make_states(s, err)
                              : sg_no_memory("logits", chunk * vocab * sizeof(float), err);
    if (status == SEGUE_OK) status = read_chunks(s, r, n, chunk, wanted, buffer, values, err);
    sg_free(wanted);
    sg_free(buffer);
    sg_free(values);
    return status;
}

segue_status segue_session_score(segue_session *session, const int32_t *tokens, size_t n, float *logprobs,
                                 float *logits, segue_error *err)
{
    SG_TRY(sg_session_check(session, "tokens not scored", err));
    sg_session_begin_call(session);
    if (!n || !tokens)
        return sg_fail(err, SEGUE_EARG, "tokens not scored: tokens is NULL or n is 0; pass at least one");
    if (session->tokens_n) SG_TRY(sg_session_compute_all(session, err));
    size_t before = session->tokens_n;
    SG_TRY(segue_session_append(session, tokens, n, err));
    sg_session_fetch_logits(session);
    struct sg_score_request r = {.logprobs = logprobs, .logits = logits, .continues = before > 0};
    segue_status status =
        logprobs || logits ? sg_session_run_scored(session, &r, err) : sg_session_compute_all(session, err);
    if (status != SEGUE_OK) session->tokens_n = session->computed > before ? session->computed : before;
    return status;
}

segue_status segue_session_logits(const segue_session *session, float *out, size_t cap, size_t *n,
                                  segue_error *err)
{
    SG_TRY(sg_session_check(session, "logits not read", err));
    size_t vocab = session->engine->model->info.vocab;
    if (!n || (cap && !out))
        return sg_fail(err, SEGUE_EARG, "logits not read: out or n is NULL; pass both");
    const float *logits = session->computed ? sg_session_known_logits(session) : NULL;
    if (!logits)
        return sg_fail(err, SEGUE_EARG,
                       "logits not read: the session has %zu tokens, the last one is not computed; prefill first",
                       session->tokens_n);
    *n = vocab;
    if (cap < vocab)
        return sg_fail(err, SEGUE_ELIMIT, "logits not read: out has %zu entries, %zu are needed; enlarge it", cap,
                       vocab);
    memcpy(out, logits, vocab * sizeof *out);
    return SEGUE_OK;
}

/* --- embeddings --- */

segue_status sg_session_check_embed(const struct segue_session *s, segue_error *err)
{
    const struct sg_layout *l = &s->layouts[SG_PREFILL_LAYOUT];
    if (!s->engine->embeddings)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "no embedding: the engine was opened without embeddings; open it with embeddings = 1");
    if (l->n != 1 || !l->stages[0].layer_range->embed)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "no embedding: the plan divides the layers among units; use a plan with one unit for a prompt");
    return SEGUE_OK;
}

/* Adds the rows of a run to the pooled vector. first: position of the first row. */
static void pool_rows(double *sum, segue_pooling pooling, const float *rows, size_t n, size_t width, uint64_t first)
{
    if (pooling == SEGUE_POOL_CLS && first) return;
    const float *one = pooling == SEGUE_POOL_LAST ? rows + (n - 1) * width : rows;
    for (size_t i = 0; i < width && pooling != SEGUE_POOL_MEAN; i++) sum[i] = (double)one[i];
    for (size_t r = 0; r < n && pooling == SEGUE_POOL_MEAN; r++)
        for (size_t i = 0; i < width; i++) sum[i] += (double)rows[r * width + i];
}

segue_status sg_session_embed_part(struct segue_session *s, size_t n, segue_pooling pooling, double *sum, segue_error *err)
{
    size_t width = s->engine->model->info.width, bytes;
    SG_TRY(sg_session_check_cancel(s, err));
    SG_TRY(sg_session_make_states(s, err));
    SG_TRY(sg_mul(n, width * sizeof(float), &bytes, "hidden values", err));
    const struct sg_layout_stage *stage = &s->layouts[s->active].stages[0];
    float *rows = sg_alloc(bytes);
    if (!rows) return sg_no_memory("hidden values", bytes, err);
    uint32_t done = 0;
    uint64_t start_ns = sg_now_ns();
    struct sg_span span = {.state = stage->state, .rows = (uint32_t)n, .first = s->computed, .tokens = s->tokens + s->computed,
                           .loras = s->loras, .loras_n = s->adapters_n, .steps = 1};
    struct sg_batch batch = {.spans = &span, .spans_n = 1, .inline_hint = 1, .quiet = 1, .cancel = &s->cancel,
                             .outputs = &stage->layer_range->embed->hidden, .outputs_n = 1};
    struct sg_result result = {.rows_done = &done, .values = &rows};
    segue_status status = sg_layer_range_run(stage->layer_range->embed, &batch, &result, err);
    if (status == SEGUE_OK) {
        sg_record_run(s, stage, SEGUE_PREFILL, start_ns, (uint32_t)n, &result);
        s->stats.prefill_ns += sg_now_ns() - start_ns;
        s->stats.tokens_in += n;
        pool_rows(sum, pooling, rows, n, width, s->computed);
    }
    s->computed += done;
    if (done) sg_recovery_after_run(s, done);
    s->logits_known = 0;
    sg_free(rows);
    return status;
}

void sg_session_embed_end(const struct segue_session *s, segue_pooling pooling, int normalize, const double *sum, float *out)
{
    size_t width = s->engine->model->info.width;
    double scale = pooling == SEGUE_POOL_MEAN ? 1 / (double)s->computed : 1, square = 0;
    for (size_t i = 0; i < width; i++) square += sum[i] * sum[i];
    if (normalize) scale = square > 0 ? 1 / sqrt(square) : 0;
    for (size_t i = 0; i < width; i++) out[i] = (float)(sum[i] * scale);
}
