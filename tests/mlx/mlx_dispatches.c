/* mlx_dispatches.c: what MLX is to compute for one decode step: one line "PRIMITIVE N" for each primitive.
 *     mlx_dispatches MODEL [UNIT [fused]]          fused: what a GPU fuses counts once, on the CPU too
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "engine/placement/units.h"
#include "model/model.h"
#include "unit/mlx/mlxunit.h"

enum { PROMPT = 12, KINDS = 256 };

struct primitives {
    char name[KINDS][160];
    uint32_t count[KINDS], n;
};

static void count(void *context, const struct sg_op *op, const char *primitive, enum mxc_type type, int value)
{
    struct primitives *t = context;
    uint32_t i = 0;
    (void)op;
    (void)type;
    (void)value;
    while (i < t->n && strncmp(t->name[i], primitive, sizeof t->name[i] - 1) != 0) i++;
    if (i == KINDS) return;
    if (i == t->n) snprintf(t->name[t->n++], sizeof t->name[i], "%s", primitive);
    t->count[i]++;
}

/* The prompt is computed; the step after it is listed only. */
static segue_status list_step(struct sg_program *p, const struct sg_unit_ops *ops, int fused, struct primitives *t,
                              segue_error *err)
{
    static const int32_t tokens[PROMPT] = {7, 3, 11, 23, 42, 5, 5, 19, 31, 2, 57, 13};
    static const uint32_t last = PROMPT - 1, only = 0;
    const struct sg_graph *g = p->base.graph;
    struct sg_state *state;
    struct sg_run *run;
    struct sg_result result = {0};
    SG_TRY(ops->state_new(p->base.unit, g->slots, g->slots_n, NULL, &state, err));
    struct sg_span prompt = {.state = state, .rows = PROMPT, .tokens = tokens, .wanted = &last, .wanted_n = 1};
    struct sg_span step = {.state = state, .first = PROMPT, .rows = 1, .tokens = tokens, .wanted = &only, .wanted_n = 1};
    const struct sg_batch batch = {.spans = &prompt, .spans_n = 1, .inline_hint = 1};
    segue_status status = ops->start(p, &batch, &result, &run, err);
    if (status == SEGUE_OK) status = ops->wait(run, UINT64_MAX, err);
    if (status == SEGUE_OK) status = mlx_list_arrays(p, &step, 1, fused ? MLX_LIST_FUSED : MLX_LIST_COMPILED, count, t, err);
    ops->state_free(state);
    return status;
}

static segue_status list_model(const char *path, const char *spec, int fused, struct primitives *t, segue_error *err)
{
    const struct sg_graph_request request = {.head = 1};
    segue_unit *unit;
    segue_model *m;
    struct sg_graph *g;
    struct sg_program *p;
    SG_TRY(segue_unit_open(&unit, spec, err));
    SG_TRY(segue_model_open(&m, path, NULL, err));
    SG_TRY(sg_model_graph(m, &request, &g, err));
    const struct sg_graph *graphs[1] = {g};
    const struct sg_unit_ops *ops = sg_ops_of(unit->unit);
    SG_TRY(ops->compile(unit->unit, graphs, 1, NULL, &p, err));
    SG_TRY(list_step(p, ops, fused, t, err));
    ops->discard(p);
    sg_graph_free(g);
    segue_model_close(m);
    segue_unit_close(unit);
    return SEGUE_OK;
}

int main(int argc, char **argv)
{
    struct primitives t = {.n = 0};
    segue_error err = {0};
    if (argc < 2 || list_model(argv[1], argc > 2 ? argv[2] : "mlx:cpu", argc > 3, &t, &err) != SEGUE_OK) {
        fprintf(stderr, "mlx_dispatches: %s\n", argc < 2 ? "model missing" : err.text);
        return 1;
    }
    for (uint32_t i = 0; i < t.n; i++) printf("%s %u\n", t.name[i], t.count[i]);
    return 0;
}
