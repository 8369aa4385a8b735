/* mlx_types.c: the type of every array of a prompt and of decode steps of one and two sequences, of each family and
 * form of weights, with type=f16 and bf16: nothing but what
 * the list below explains is fp32.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "engine/placement/units.h"
#include "model/model.h"
#include "unit/mlx/mlxunit.h"

enum { PROMPT = 20, SEQUENCES = 2 };

/* primitives NULL: every array of the op except its result. */
static const struct {
    enum sg_op_code op;
    const char *primitives;          /* between spaces */
    const char *why;
} allowed[] = {
    {SG_OP_DELTA, NULL, "the recurrence and its gates are fp32, as in published implementations"},
    {SG_OP_CONV, " AsType ", "the slot is fp32 between passes: its rows are converted"},
    {SG_OP_CONV, " Slice Multiply Add ", "the sum over taps of one row: one kernel on a GPU, rounded once, as MLX's convolution"},
    {SG_OP_CONV, " Full Broadcast ", "the slot of a new state: zeros"},
    {SG_OP_NORM, " AsType Square Sum Broadcast Multiply Add Rsqrt Subtract ",
     "one kernel on a GPU, which sums in fp32; for the CPU, MLX composes it of these"},
    {SG_OP_NORM, " Sigmoid ", "the gate of a norm: x * silu(gate) is rounded once, as in mlx-lm"},
    {SG_OP_ROPE, " AsType Arange Broadcast ExpandDims Multiply Add Divide Cos Sin ",
     "one kernel on a GPU, which has angles in fp32; for the CPU, MLX composes it of these"},
};

struct seen {
    const char *model;
    enum mxc_type type;
    uint32_t arrays, fp32, values, wrong;
};

static int is_allowed(const struct sg_op *op, const char *primitive)
{
    char word[64];
    snprintf(word, sizeof word, " %s ", primitive);
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (allowed[i].op == op->code && (!allowed[i].primitives || strstr(allowed[i].primitives, word))) return 1;
    return 0;
}

static void look(void *context, const struct sg_op *op, const char *primitive, enum mxc_type type, int value)
{
    struct seen *s = context;
    int is_number = type == MXC_F32 || type == MXC_F16 || type == MXC_BF16;
    s->arrays++;
    s->values += (uint32_t)value;
    s->fp32 += type == MXC_F32;
    if (!is_number || type == s->type || (type == MXC_F32 && !value && is_allowed(op, primitive))) return;
    fprintf(stderr, "%s, type %d: %s of %s (v%d, layer %d) has type %d\n", s->model, s->type, primitive, sg_op_name(op->code),
            op->out, op->layer, type);
    s->wrong++;
}

static void list_rows(struct sg_program *p, const struct sg_unit_ops *ops, uint32_t rows, uint32_t spans_n, struct seen *s)
{
    int32_t tokens[PROMPT];
    uint32_t last = rows - 1, arrays = s->arrays;
    struct sg_span spans[SEQUENCES];
    segue_error err = {0};
    for (uint32_t i = 0; i < rows; i++) tokens[i] = (int32_t)i + 1;
    for (uint32_t i = 0; i < spans_n; i++) {
        struct sg_state *state;
        const struct sg_graph *g = p->base.graph;
        assert_int_equal(ops->state_new(p->base.unit, g->slots, g->slots_n, NULL, &state, &err), SEGUE_OK);
        spans[i] = (struct sg_span){.state = state, .rows = rows, .tokens = tokens, .wanted = &last, .wanted_n = 1};
    }
    if (mlx_list_arrays(p, spans, spans_n, MLX_LIST_OPS, look, s, &err) != SEGUE_OK) fail_msg("%s", err.text);
    assert_true(s->arrays > arrays + p->base.graph->ops_n && s->values > 0);
    for (uint32_t i = 0; i < spans_n; i++) ops->state_free(spans[i].state);
}

static void one_model(const char *model, const char *type, enum mxc_type number)
{
    char path[512], spec[64];
    segue_unit *unit;
    segue_model *m;
    struct sg_graph *g;
    struct sg_program *p;
    segue_error err = {0};
    struct seen s = {.model = model, .type = number};
    const struct sg_graph_request request = {.head = 1};
    snprintf(path, sizeof path, SEGUE_SOURCE_DIR "/tests/golden/tiny/%s", model);
    snprintf(spec, sizeof spec, "mlx:cpu,type=%s", type);
    assert_int_equal(segue_unit_open(&unit, spec, &err), SEGUE_OK);
    if (segue_model_open(&m, path, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
    assert_int_equal(sg_model_graph(m, &request, &g, &err), SEGUE_OK);
    const struct sg_unit_ops *ops = sg_ops_of(unit->unit);
    const struct sg_graph *graphs[1] = {g};
    if (ops->compile(unit->unit, graphs, 1, NULL, &p, &err) != SEGUE_OK) fail_msg("%s", err.text);
    list_rows(p, ops, PROMPT, 1, &s);
    list_rows(p, ops, 1, 1, &s);
    list_rows(p, ops, 1, SEQUENCES, &s);
    printf("%s, %s: %u arrays, %u of them fp32\n", model, type, s.arrays, s.fp32);
    assert_int_equal(s.wrong, 0);
    ops->discard(p);
    sg_graph_free(g);
    segue_model_close(m);
    segue_unit_close(unit);
}

static void every_family(void **unused)
{
    static const char *const models[] = {
        "gpt2", "gpt2/model-q8_0.gguf", "llama", "llama/model-q8_0.gguf", "llama_mlx4", "llama_yarn", "llama_yarn_mscale",
        "llama_linear", "llama_bias", "llama_mha", "llama3", "mistral", "qwen2", "qwen3", "qwen3_5", "qwen3_5/model-q8_0.gguf",
        "qwen3_5_mlx4", "qwen3_5_asym", "qwen3_5_asym_mlx", "gemma3", "gemma3/model-switches.gguf", "gemma3_wrapped"};
    (void)unused;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        one_model(models[i], "f16", MXC_F16);
        one_model(models[i], "bf16", MXC_BF16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_family)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
