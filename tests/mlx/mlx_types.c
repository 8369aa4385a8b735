/* mlx_types.c: the type of every array of a prompt and of a decode step, of each family with type=f16 and bf16: nothing but what
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

enum { PROMPT = 20 };

/* primitives NULL: every array of the op except its result. */
static const struct {
    enum sg_op_code op;
    const char *primitives;          /* between spaces */
    const char *why;
} allowed[] = {
    {SG_OP_DELTA, NULL, "the recurrence and its gates are fp32, as in published implementations"},
    {SG_OP_CONV, " AsType ", "the slot is fp32 between passes: its rows are converted"},
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

static void list_rows(struct sg_program *p, const struct sg_unit_ops *ops, uint32_t rows, struct seen *s)
{
    int32_t tokens[PROMPT];
    uint32_t last = rows - 1, arrays = s->arrays;
    struct sg_state *state;
    segue_error err = {0};
    for (uint32_t i = 0; i < rows; i++) tokens[i] = (int32_t)i + 1;
    assert_int_equal(ops->state_new(p->base.unit, p->base.graph->slots, p->base.graph->slots_n, NULL, &state, &err), SEGUE_OK);
    struct sg_span span = {.state = state, .rows = rows, .tokens = tokens, .wanted = &last, .wanted_n = 1};
    if (mlx_list_arrays(p, &span, 1, 0, look, s, &err) != SEGUE_OK) fail_msg("%s", err.text);
    assert_true(s->arrays > arrays + p->base.graph->ops_n && s->values > 0);
    ops->state_free(state);
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
    list_rows(p, ops, PROMPT, &s);
    list_rows(p, ops, 1, &s);
    printf("%s, %s: %u arrays, %u of them fp32\n", model, type, s.arrays, s.fp32);
    assert_int_equal(s.wrong, 0);
    ops->discard(p);
    sg_graph_free(g);
    segue_model_close(m);
    segue_unit_close(unit);
}

static void every_family(void **unused)
{
    static const char *const models[] = {"gpt2", "llama", "llama_mlx4", "llama_yarn_mscale", "mistral", "qwen2", "qwen3",
                                         "qwen3_5", "qwen3_5_mlx4", "gemma3"};
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
