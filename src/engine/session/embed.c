/* embed.c: final hidden values of pending tokens, pooled over a sequence. SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/session/session.h"

segue_status sg_session_check_embed(const struct segue_session *s, segue_error *err)
{
    const struct sg_layout *l = &s->layouts[SG_PREFILL_LAYOUT];
    if (!s->engine->embeddings)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "no embedding: the engine was opened without embeddings; open it with embeddings = 1");
    if (l->n != 1 || !l->stages[0].layer_range->embed)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "no embedding: the plan divides the layers among units; use a plan with one unit for a prompt");
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
