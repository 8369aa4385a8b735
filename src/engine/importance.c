/* importance.c: see importance.h. The head is left out, as llama-imatrix does by default: it is stored with 6 bits or more.
 * SPDX-License-Identifier: MIT */
#include "engine/importance.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/placement/units.h"
#include "model/family.h"
#include "model/quantize/imatrix.h"
#include "unit/unit.h"

/* BUFFER_BYTES: of the outputs of one run. ROWS_MAX: tokens of one run. */
enum { BUFFER_BYTES = 256 << 20, ROWS_MAX = 256 };

/* A matrix of the model and where its input is. */
struct input {
    char name[128];           /* in GGUF */
    uint32_t output, at;      /* index of the graph output; the first column in it */
    uint32_t cols;
    struct sg_perm perm;      /* logical to stored column of GGUF */
    double *sums;             /* [cols] in stored order */
};

struct sg_importance {
    struct segue_unit *held;  /* a lane of it, until closing */
    const struct sg_unit_ops *ops;
    struct sg_unit *unit;
    struct sg_graph *graph;
    struct sg_program *program;
    struct input *inputs;     /* [inputs_n] */
    uint32_t inputs_n;
    int32_t *outputs;         /* [outputs_n] indices of graph outputs */
    float **values;           /* [outputs_n] each [rows, width] */
    uint32_t outputs_n, rows; /* rows: tokens of one run */
    uint64_t tokens;          /* added */
    uint32_t context;
    struct sg_arena arena;
};

/* The role and layer of a weight of the model; NULL: it is none, or it has no name in GGUF. */
static const struct sg_tensor_row *role_of(const struct segue_model *m, const struct sg_tensor *t, uint32_t *layer)
{
    for (*layer = 0; *layer <= m->numbers->layers; ++*layer)
        for (enum sg_role role = SG_ROLE_NONE + 1; role < SG_ROLE_N; role++) {
            const struct sg_tensor_row *row = sg_tensor_find(m->family, role);
            int here = row && row->gguf && (*layer < m->numbers->layers) == !!row->layers;
            if (here && sg_model_weight(m, *layer, role)->weight == t)
                return row;
        }
    return NULL;
}

/* 1: a linear op before op i has the same tensor, whose input is the same. */
static int seen_before(const struct sg_graph *g, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (g->ops[k].code == SG_OP_LINEAR && g->ops[k].u.linear.weight.tensor == g->ops[i].u.linear.weight.tensor) return 1;
    return 0;
}

/* The output that is value v of the graph; a new one if there is none yet. ports: with space for all. */
static uint32_t output_of(struct sg_importance *im, int32_t v)
{
    struct sg_graph *g = im->graph;
    for (uint32_t i = 0; i < im->outputs_n; i++)
        if (g->outputs[im->outputs[i]].value == v) return i;
    char *name = sg_arena_printf(&im->arena, "input.%d", (int)v);
    im->outputs[im->outputs_n] = (int32_t)g->outputs_n;
    g->outputs[g->outputs_n++] = (struct sg_port){name ? name : "input", v};
    return im->outputs_n++;
}

/* List the matrices, and make their inputs outputs of the graph. */
static segue_status list_inputs(struct sg_importance *im, const struct segue_model *m, segue_error *err)
{
    struct sg_graph *g = im->graph;
    struct sg_port *ports = sg_arena_alloc(&im->arena, (g->outputs_n + g->ops_n) * sizeof *ports);
    im->inputs = sg_arena_alloc(&im->arena, g->ops_n * sizeof *im->inputs);
    im->outputs = sg_arena_alloc(&im->arena, g->ops_n * sizeof *im->outputs);
    im->values = sg_arena_alloc(&im->arena, g->ops_n * sizeof *im->values);
    if (!ports || !im->inputs || !im->outputs || !im->values) return sg_no_memory("importance matrix", g->ops_n * 256, err);
    memcpy(ports, g->outputs, g->outputs_n * sizeof *ports);
    g->outputs = ports;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        uint32_t layer;
        if (op->code != SG_OP_LINEAR || seen_before(g, i)) continue;
        const struct sg_tensor *t = g->tensors[op->u.linear.weight.tensor];
        const struct sg_tensor_row *row = role_of(m, t, &layer);
        if (!row || t->part) continue;
        struct input *in = &im->inputs[im->inputs_n];
        struct sg_perm rows;
        const char *slot = strstr(row->gguf, "%u");
        if (slot) snprintf(in->name, sizeof in->name, "%.*s%u%s", (int)(slot - row->gguf), row->gguf, layer, slot + 2);
        else snprintf(in->name, sizeof in->name, "%s", row->gguf);
        SG_TRY(sg_fix_perms(m->family, m->numbers, row, 1, &rows, &in->perm, err));
        in->output = output_of(im, op->in[0].value);
        in->at = op->in[0].at;
        in->cols = op->in[0].width;
        in->sums = sg_arena_alloc(&im->arena, in->cols * sizeof *in->sums);
        if (!in->sums) return sg_no_memory(in->name, in->cols * sizeof *in->sums, err);
        im->inputs_n++;
    }
    if (im->inputs_n) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNSUPPORTED, "importance matrix: this model has no matrix; use another one");
}

/* Buffers for the input rows of all matrices, BUFFER_BYTES in all; sets the number of rows per run. */
static segue_status alloc_values(struct sg_importance *im, segue_error *err)
{
    uint64_t width = 1;
    for (uint32_t i = 0; i < im->outputs_n; i++) width += im->graph->values[im->graph->outputs[im->outputs[i]].value].width;
    uint64_t rows = BUFFER_BYTES / sizeof(float) / width;
    im->rows = rows < 1 ? 1 : rows > ROWS_MAX ? ROWS_MAX : (uint32_t)rows;
    for (uint32_t i = 0; i < im->outputs_n; i++) {
        size_t bytes = (size_t)im->rows * im->graph->values[im->graph->outputs[im->outputs[i]].value].width * sizeof(float);
        if (!(im->values[i] = sg_arena_alloc(&im->arena, bytes))) return sg_no_memory("activations", bytes, err);
    }
    return SEGUE_OK;
}

static segue_status prepare(struct sg_importance *im, const struct segue_model *m, segue_error *err)
{
    struct sg_graph_request request = {.to = m->numbers->layers};
    SG_TRY(sg_model_graph(m, &request, &im->graph, err));
    SG_TRY(list_inputs(im, m, err));
    SG_TRY(alloc_values(im, err));
    const struct sg_graph *graph = im->graph;
    return im->ops->compile(im->unit, &graph, 1, NULL, &im->program, err);
}

segue_status sg_importance_open(struct sg_importance **out, const segue_model *m, segue_unit *u, uint32_t context,
                                segue_error *err)
{
    struct sg_importance *im = sg_alloc(sizeof *im);
    if (!im) return sg_no_memory("importance matrix", sizeof *im, err);
    im->unit = u->unit;
    im->ops = sg_ops_of(u->unit);
    im->context = context;
    segue_status s = sg_unit_enter(u, NULL, err);
    if (s == SEGUE_OK) im->held = u;
    if (s == SEGUE_OK) s = prepare(im, m, err);
    if (s == SEGUE_OK) *out = im;
    else sg_importance_close(im);
    return s;
}

void sg_importance_close(struct sg_importance *im)
{
    if (!im) return;
    if (im->program) im->ops->discard(im->program);
    if (im->held) sg_unit_leave(im->held);
    sg_graph_free(im->graph);
    sg_arena_free(&im->arena);
    sg_free(im);
}

/* Add the squares of n rows of all outputs. */
static void add_rows(struct sg_importance *im, uint32_t n)
{
    for (uint32_t i = 0; i < im->inputs_n; i++) {
        const struct input *in = &im->inputs[i];
        uint32_t width = im->graph->values[im->graph->outputs[im->outputs[in->output]].value].width;
        for (uint32_t r = 0; r < n; r++) {
            const float *x = im->values[in->output] + (size_t)r * width + in->at;
            for (uint32_t c = 0; c < in->cols; c++)
                in->sums[in->perm.a ? sg_perm_stored(&in->perm, c) : c] += (double)x[c] * (double)x[c];
        }
    }
}

segue_status sg_importance_add(struct sg_importance *im, const int32_t *tokens, uint32_t n, segue_error *err)
{
    struct sg_state *state = NULL;
    struct sg_state_opts opts = {.kv = SG_F32, .rows = im->context};
    SG_TRY(im->ops->state_new(im->unit, im->graph->slots, im->graph->slots_n, &opts, &state, err));
    segue_status s = SEGUE_OK;
    for (uint32_t at = 0, rows; at < n && s == SEGUE_OK; at += rows) {
        rows = n - at < im->rows ? n - at : im->rows;
        struct sg_span span = {.state = state, .rows = rows, .first = at, .tokens = tokens + at, .steps = 1};
        struct sg_batch batch = {
            .spans = &span, .spans_n = 1, .inline_hint = 1, .outputs = im->outputs, .outputs_n = im->outputs_n};
        uint32_t done = 0;
        struct sg_result result = {.values = im->values, .rows_done = &done};
        struct sg_run *run = NULL;
        s = im->ops->start(im->program, &batch, &result, &run, err);
        if (s == SEGUE_OK)
            while ((s = im->ops->wait(run, 1000000000, err)) == SEGUE_END) continue;
        if (s == SEGUE_OK) add_rows(im, rows);
    }
    im->ops->state_free(state);
    if (s == SEGUE_OK) im->tokens += n;
    return s;
}

segue_status sg_importance_write(const struct sg_importance *im, const char *path, const char *dataset, uint32_t chunks,
                                 uint32_t chunk, segue_error *err)
{
    struct sg_imatrix_sums *list = sg_alloc(im->inputs_n * sizeof *list);
    struct sg_arena arena = {0};
    if (!list) return sg_no_memory("importance matrix", im->inputs_n * sizeof *list, err);
    segue_status s = SEGUE_OK;
    for (uint32_t i = 0; i < im->inputs_n && s == SEGUE_OK; i++) {
        const struct input *in = &im->inputs[i];
        list[i] = (struct sg_imatrix_sums){in->name, sg_arena_alloc(&arena, in->cols * sizeof(float)), in->cols, im->tokens};
        if (!list[i].sums) s = sg_no_memory(in->name, in->cols * sizeof(float), err);
        for (uint32_t c = 0; c < in->cols && s == SEGUE_OK; c++) {
            list[i].sums[c] = (float)in->sums[c];
            if (!isfinite(list[i].sums[c]))
                s = sg_fail(err, SEGUE_EFORMAT, "importance matrix: %s: its input is not finite; the model is damaged", in->name);
        }
    }
    if (s == SEGUE_OK) s = sg_imatrix_write(path, list, im->inputs_n, dataset, chunks, chunk, err);
    sg_arena_free(&arena);
    sg_free(list);
    return s;
}
