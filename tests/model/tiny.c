/* tiny.c: see tiny.h. Everything is freed, also on failure, so that leak checks stay quiet.
 * SPDX-License-Identifier: MIT */
#include "model/tiny.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "unit/spec.h"

extern const struct sg_unit_ops sg_unit_ref;

const char *tiny_folder(void)
{
    const char *other = getenv("SEGUE_TINY_SET");
    return other && *other ? other : SEGUE_SOURCE_DIR "/tests/golden/tiny";
}

struct bench {
    const struct tiny_wish *wish;
    const struct sg_unit_ops *ops;
    struct segue_model *model;
    struct sg_archive *golden;
    struct sg_graph *graph;
    struct sg_unit *unit;
    struct sg_program *program;
    struct sg_state *state;
    int32_t *prompt;
    uint32_t prompt_n, values_n;
    float **values;   /* [outputs_n] rows of each output but the logits */
    int32_t *outputs; /* [outputs_n] */
    float *logits;    /* [prompt_n, vocab] */
    struct tiny_error *result;
    segue_error *err;
};

static float *golden_of(struct bench *b, const char *name, uint64_t *n)
{
    const struct sg_tensor *t = sg_archive_find(b->golden, name);
    if (!t) return NULL;
    float *out = malloc((size_t)(t->rows * t->cols) * sizeof *out);
    sg_tensor_read(t, out);
    *n = t->rows * t->cols;
    return out;
}

static int32_t *golden_ids(struct bench *b, const char *name, uint32_t *n)
{
    const struct sg_tensor *t = sg_archive_find(b->golden, name);
    *n = t && t->storage == SG_I32 ? (uint32_t)t->cols : 0;
    int32_t *out = malloc((*n + 1) * sizeof *out);
    for (uint32_t i = 0; i < *n; i++) out[i] = (int32_t)sg_le32(t->data + 4 * (size_t)i);
    return out;
}

static void note(struct bench *b, const char *name, double max, double mean)
{
    struct tiny_error *e = b->result;
    int beyond = max > 1e-3 && e->max <= 1e-3;
    if (beyond || (max > e->max && e->max <= 1e-3))
        snprintf(e->where, sizeof e->where, "%s (max %.2g)", name, max);
    if (max > e->max || isnan(max)) e->max = isnan(max) ? 1e30 : max;
    if (mean > e->mean || isnan(mean)) e->mean = isnan(mean) ? 1e30 : mean;
}

/* Compares n numbers; ours[i] belongs to the golden's number i. */
static void compare(struct bench *b, const char *name, const float *ours, const float *theirs, uint64_t n)
{
    double max = 0, sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        double d = fabs((double)ours[i] - theirs[i]);
        if (!(d <= max)) max = d;
        sum += d;
    }
    note(b, name, max, n ? sum / (double)n : 0);
}

static int32_t best(const float *logits, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[at]) at = i;
    return (int32_t)at;
}

/* --- one run --- */

static segue_status run_rows(struct bench *b, const int32_t *tokens, uint32_t rows, uint64_t first,
                             float *logits, float **values)
{
    uint32_t *wanted = malloc(rows * sizeof *wanted), done = 0;
    for (uint32_t i = 0; i < rows; i++) wanted[i] = i;
    const struct sg_lora *lora = b->wish->lora;
    struct sg_span span = {.state = b->state,
                           .rows = rows,
                           .first = first,
                           .tokens = tokens,
                           .wanted = wanted,
                           .wanted_n = rows,
                           .loras = &lora,
                           .loras_n = lora ? 1 : 0,
                           .steps = 1};
    struct sg_batch batch = {
        .spans = &span, .spans_n = 1, .inline_hint = 1, .outputs = b->outputs, .outputs_n = b->values_n};
    struct sg_result result = {.logits = logits, .values = values, .rows_done = &done};
    struct sg_run *run = NULL;
    segue_status s = b->ops->start(b->program, &batch, &result, &run, b->err);
    if (s == SEGUE_OK) do
            s = b->ops->wait(run, 1000000000, b->err);
        while (s == SEGUE_END);
    free(wanted);
    return s;
}

static segue_status prefill(struct bench *b)
{
    uint32_t n = b->prompt_n, chunk = b->wish->chunk ? b->wish->chunk : n, vocab = b->graph->vocab;
    b->logits = calloc((size_t)n * vocab, sizeof *b->logits);
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t rows = n - at < chunk ? n - at : chunk;
        float *part[64];
        for (uint32_t i = 0; i < b->values_n; i++) {
            uint32_t width = b->graph->values[b->graph->outputs[b->outputs[i]].value].width;
            if (!b->values[i]) b->values[i] = calloc((size_t)n * width, sizeof(float));
            part[i] = b->values[i] + (size_t)at * width;
        }
        SG_TRY(run_rows(b, b->prompt + at, rows, at, b->logits + (size_t)at * vocab, part));
    }
    return SEGUE_OK;
}

/* --- comparisons, in the order in which a mistake shows --- */

static void compare_values(struct bench *b)
{
    for (uint32_t i = 0; !b->wish->pad && i < b->values_n; i++) {
        const struct sg_port *port = &b->graph->outputs[b->outputs[i]];
        uint64_t n = 0;
        float *golden = golden_of(b, port->name, &n);
        if (golden) compare(b, port->name, b->values[i], golden, n);
        free(golden);
    }
    uint64_t n = 0;
    float *golden = golden_of(b, "logits", &n);
    uint64_t skip = (uint64_t)b->wish->pad * b->graph->vocab;
    uint32_t vocab = b->graph->vocab, equal = 0, rows = golden ? (uint32_t)(n / vocab) : 0;
    if (golden) compare(b, "logits", b->logits + skip, golden, n);
    for (uint64_t r = 0; r < rows; r++)
        equal += best(b->logits + skip + r * vocab, vocab) == best(golden + r * vocab, vocab);
    b->result->top = rows ? (double)equal / rows : 0;
    free(golden);
}

/* Golden K and V: [heads, rows held, width] of the last rows; ours: [row][head][width]. */
static segue_status compare_rows(struct bench *b, uint32_t slot, const char *name, const float *golden,
                                 uint64_t n)
{
    const struct sg_slot *s = &b->graph->slots[slot];
    uint64_t width = (uint64_t)s->heads * s->width, held = n / width, from = b->prompt_n - held;
    float *ours = malloc(n * sizeof *ours), *turned = malloc(n * sizeof *turned);
    segue_status status = b->ops->state_get(b->state, slot, from, b->prompt_n, SG_F32, ours, b->err);
    for (uint64_t r = 0; status == SEGUE_OK && r < held; r++)
        for (uint64_t h = 0; h < s->heads; h++)
            memcpy(turned + (h * held + r) * s->width, ours + r * width + h * s->width,
                   s->width * sizeof *ours);
    if (status == SEGUE_OK) compare(b, name, turned, golden, n);
    free(ours);
    free(turned);
    return status;
}

/* Golden convolution: [channel][row]; ours: [row][channel]. The delta state is laid out alike. */
static segue_status compare_fixed(struct bench *b, uint32_t slot, const char *name, const float *golden,
                                  uint64_t n)
{
    const struct sg_slot *s = &b->graph->slots[slot];
    if (sg_slot_fixed_bytes(s) != n * sizeof(float))
        return sg_fail(b->err, SEGUE_EINTERNAL, "%s: another size", name);
    float *ours = malloc(n * sizeof *ours), *turned = malloc(n * sizeof *turned);
    segue_status status = b->ops->state_get(b->state, slot, 0, 0, SG_F32, ours, b->err);
    for (uint64_t i = 0; i < n; i++)
        turned[i] = s->kind == SG_SLOT_CONV ? ours[i % s->heads * s->width + i / s->heads] : ours[i];
    if (status == SEGUE_OK) compare(b, name, turned, golden, n);
    free(ours);
    free(turned);
    return status;
}

static segue_status compare_state(struct bench *b)
{
    static const char *const names[] = {
        [SG_SLOT_K] = "k", [SG_SLOT_V] = "v", [SG_SLOT_CONV] = "conv", [SG_SLOT_DELTA] = "rec"};
    for (uint32_t i = 0; i < b->graph->slots_n; i++) {
        const struct sg_slot *s = &b->graph->slots[i];
        char name[32];
        uint64_t n = 0;
        snprintf(name, sizeof name, "%s.%u", names[s->kind], s->layer);
        float *golden = golden_of(b, name, &n);
        if (!golden) continue;
        int rows = s->kind == SG_SLOT_K || s->kind == SG_SLOT_V;
        segue_status status =
            rows ? compare_rows(b, i, name, golden, n) : compare_fixed(b, i, name, golden, n);
        free(golden);
        SG_TRY(status);
    }
    return SEGUE_OK;
}

static segue_status compare_steps(struct bench *b)
{
    uint32_t vocab = b->graph->vocab;
    uint32_t steps_n = 0;
    uint64_t n = 0;
    int32_t *greedy = golden_ids(b, "greedy", &steps_n);
    float *golden = golden_of(b, "step_logits", &n);
    float *logits = malloc(vocab * sizeof *logits), *values[64] = {0};
    segue_status s = SEGUE_OK;
    memcpy(logits, b->logits + (size_t)(b->prompt_n - 1) * vocab, vocab * sizeof *logits);
    b->result->greedy_equal = 1;
    b->values_n = 0;
    for (uint32_t i = 0; s == SEGUE_OK && i < steps_n; i++) {
        int32_t token = greedy[i];
        char name[32];
        snprintf(name, sizeof name, "step %u", i);
        if (best(logits, vocab) != token) b->result->greedy_equal = 0;
        s = run_rows(b, &token, 1, b->prompt_n + i, logits, values);
        if (s == SEGUE_OK) compare(b, name, logits, golden + (size_t)i * vocab, vocab);
    }
    free(greedy);
    free(golden);
    free(logits);
    return s;
}

/* --- all of it --- */

static segue_status read_prompt(struct bench *b)
{
    uint32_t n = 0;
    int32_t *ids = golden_ids(b, "prompt", &n);
    b->prompt_n = n + b->wish->pad;
    b->prompt = calloc(b->prompt_n + 1, sizeof *b->prompt);
    memcpy(b->prompt + b->wish->pad, ids, n * sizeof *ids);
    free(ids);
    return n ? SEGUE_OK : sg_fail(b->err, SEGUE_EFORMAT, "golden: no prompt");
}

static segue_status prepare(struct bench *b)
{
    struct sg_graph_request wish = {.head = 1, .values = 1};
    struct sg_unit_spec spec = {0};
    SG_TRY(sg_model_graph(b->model, &wish, &b->graph, b->err));
    if (b->wish->mutate) b->wish->mutate(b->graph);
    b->outputs = calloc(b->graph->outputs_n, sizeof *b->outputs);
    b->values = calloc(b->graph->outputs_n, sizeof *b->values);
    for (uint32_t i = 0; i < b->graph->outputs_n; i++)
        if (strcmp(b->graph->outputs[i].name, "logits")) b->outputs[b->values_n++] = (int32_t)i;
    SG_TRY(sg_spec_parse(&spec, b->wish->spec ? b->wish->spec : b->ops->kind, b->err));
    SG_TRY(b->ops->open(&b->unit, &spec, b->err));
    b->ops = sg_ops_of(b->unit); /* several units as one have a table of their own */
    const struct sg_graph *graph = b->graph;
    SG_TRY(b->ops->compile(b->unit, &graph, 1, NULL, &b->program, b->err));
    struct sg_state_opts opts = {.kv = b->wish->kv, .rows = b->prompt_n + 64};
    return b->ops->state_new(b->unit, b->graph->slots, b->graph->slots_n, &opts, &b->state, b->err);
}

static segue_status compare_all(struct bench *b, const char *model, const char *golden)
{
    if (b->wish->model)
        b->model = sg_model_ref(b->wish->model);
    else
        SG_TRY(sg_model_open(&b->model, model, NULL, b->err));
    SG_TRY(sg_archive_open(&b->golden, golden, b->err));
    SG_TRY(read_prompt(b));
    SG_TRY(prepare(b));
    SG_TRY(prefill(b));
    compare_values(b);
    if (!b->wish->pad) SG_TRY(compare_state(b));
    return b->wish->pad ? SEGUE_OK : compare_steps(b);
}

segue_status tiny_compare(const char *model, const char *golden, const struct tiny_wish *wish,
                          struct tiny_error *out, segue_error *err)
{
    struct bench b = {.wish = wish, .ops = wish->unit ? wish->unit : &sg_unit_ref, .result = out, .err = err};
    *out = (struct tiny_error){0};
    segue_status s = compare_all(&b, model, golden);
    uint32_t n = b.graph ? b.graph->outputs_n : 0;
    if (b.state) b.ops->state_free(b.state);
    if (b.program) b.ops->discard(b.program);
    if (b.unit) b.ops->close(b.unit);
    for (uint32_t i = 0; b.values && i < n; i++) free(b.values[i]);
    free(b.values);
    free(b.outputs);
    free(b.prompt);
    free(b.logits);
    sg_graph_free(b.graph);
    sg_archive_close(b.golden);
    sg_model_unref(b.model);
    return s;
}
