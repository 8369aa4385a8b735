/* checkworld.c: running a world on a unit through the unit's table alone: compile, one state per sequence,
 * every run by start and wait, then all slots read back. What a unit gives is compared elsewhere.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "check.h"

uint32_t check_world_rows(const struct check_world *w, uint32_t run, uint32_t wanted)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < w->seqs; s++)
        if (w->rows[run][s]) n += wanted ? w->wanted_n[run][s] : w->rows[run][s];
    return n;
}

uint32_t check_world_first(const struct check_world *w, uint32_t run, uint32_t seq)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < run; r++) n += w->rows[r][seq];
    return n;
}

void check_world_free(struct check_world *w)
{
    sg_graph_free(w->graph);
    sg_arena_free(&w->arena);
}

void check_result_free(struct check_result *r)
{
    sg_free(r->y);
    sg_free(r->slots);
    *r = (struct check_result){0};
}

double check_distance(const float *a, size_t a_n, const float *b, size_t b_n, double *scale)
{
    double max_error = 0;
    *scale = 0;
    if (a_n != b_n) return INFINITY;
    for (size_t i = 0; i < a_n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (isnan(a[i]) != isnan(b[i])) return INFINITY;
        if (isfinite(b[i]) && fabs((double)b[i]) > *scale) *scale = fabs((double)b[i]);
        if (!isfinite(b[i])) {
            if (!isnan(b[i]) && a[i] != b[i]) return INFINITY;
            continue;
        }
        if (d > max_error) max_error = d;
    }
    return max_error;
}

/* Every second run is computed on the caller's thread, the others on the unit's own. */
static segue_status one_run(const struct check_world *w, const struct check_unit *u, struct sg_program *p,
                            struct sg_state **states, uint32_t r, float *y, double *ns, segue_error *err)
{
    struct sg_span spans[CHECK_SEQS] = {0};
    uint32_t n = 0, done[CHECK_SEQS] = {0};
    int32_t output = sg_graph_output(w->graph, "y");
    for (uint32_t s = 0; s < w->seqs; s++) {
        if (!w->rows[r][s]) continue;
        uint32_t first = check_world_first(w, r, s);
        struct sg_span *span = &spans[n++];
        *span = (struct sg_span){.state = states[s],
                                 .rows = w->rows[r][s],
                                 .first = first,
                                 .wanted = w->wanted[r][s],
                                 .wanted_n = w->wanted_n[r][s],
                                 .loras = w->loras[s],
                                 .loras_n = w->loras_n[s],
                                 .steps = 1};
        if (w->tokens[s]) span->tokens = w->tokens[s] + first;
        if (w->values[s]) span->values = w->values[s] + (size_t)first * w->input_width;
    }
    struct sg_batch batch = {
        .spans = spans, .spans_n = n, .inline_hint = r % 2, .outputs = &output, .outputs_n = output >= 0};
    struct sg_result result = {.values = &y, .rows_done = done, .logits = output < 0 ? y : NULL};
    struct sg_run *run;
    SG_TRY(u->ops->start(p, &batch, &result, &run, err));
    SG_TRY(u->ops->wait(run, UINT64_MAX, err));
    *ns += (double)result.ns;
    for (uint32_t i = 0; i < n; i++)
        if (done[i] != spans[i].rows)
            return sg_fail(err, SEGUE_EUNIT, "check: span %u: %u rows done of %u", i, done[i], spans[i].rows);
    return SEGUE_OK;
}

/* Append every slot of a state, as fp32, to `out` (NULL: only count). */
static segue_status read_slots(const struct check_unit *u, const struct sg_graph *g, struct sg_state *state,
                               float *out, size_t *at, segue_error *err)
{
    for (uint32_t i = 0; i < g->slots_n; i++) {
        uint64_t first = 0, rows = 0;
        size_t fixed = sg_slot_fixed_bytes(&g->slots[i]) / sizeof(float);
        u->ops->state_held(state, i, &first, &rows);
        uint64_t window = g->slots[i].window; /* units may hold more than can be asked for */
        if (window && first + window <= rows) first = rows + 1 - window;
        size_t row = sg_slot_row_bytes(&g->slots[i], SG_F32) / sizeof(float);
        if (out) SG_TRY(u->ops->state_get(state, i, first, rows, SG_F32, out + *at, err));
        *at += row ? row * (rows - first) : fixed;
    }
    return SEGUE_OK;
}

/* Counted, then read. */
static segue_status all_slots(const struct check_world *w, const struct check_unit *u,
                              struct sg_state **states, struct check_result *out, segue_error *err)
{
    size_t n = 0, at = 0;
    for (uint32_t s = 0; s < w->seqs; s++) SG_TRY(read_slots(u, w->graph, states[s], NULL, &n, err));
    out->slots = sg_alloc(n * sizeof *out->slots);
    if (!out->slots) return sg_no_memory("check", n * sizeof *out->slots, err);
    for (uint32_t s = 0; s < w->seqs; s++) SG_TRY(read_slots(u, w->graph, states[s], out->slots, &at, err));
    out->slots_n = n;
    return SEGUE_OK;
}

static segue_status with_states(const struct check_world *w, const struct check_unit *u, struct sg_program *p,
                                struct sg_state **states, struct check_result *out, segue_error *err)
{
    struct sg_state_opts o = {.kv = w->kv, .rows = 64};
    int32_t output = sg_graph_output(w->graph, "y");
    uint32_t wanted = output < 0 || w->graph->values[w->graph->outputs[output].value].wanted;
    size_t at = 0;
    for (uint32_t s = 0; s < w->seqs; s++)
        SG_TRY(u->ops->state_new(u->unit, w->graph->slots, w->graph->slots_n, &o, &states[s], err));
    for (uint32_t r = 0; r < w->runs; r++)
        out->y_n += (size_t)check_world_rows(w, r, wanted) * w->output_width;
    out->y = sg_alloc(out->y_n * sizeof *out->y);
    if (!out->y) return sg_no_memory("check", out->y_n * sizeof *out->y, err);
    for (uint32_t r = 0; r < w->runs; r++) {
        SG_TRY(one_run(w, u, p, states, r, out->y + at, &out->ns, err));
        at += (size_t)check_world_rows(w, r, wanted) * w->output_width;
    }
    return all_slots(w, u, states, out, err);
}

/* The unit is asked first whether it can: its reason is the skip. */
segue_status check_world_run(const struct check_world *w, const struct check_unit *u,
                             struct check_result *out, segue_error *err)
{
    const struct sg_graph *graphs[] = {w->graph};
    struct sg_program *p = NULL;
    struct sg_state *states[CHECK_SEQS] = {0};
    *out = (struct check_result){0};
    for (uint32_t i = 0; i < w->graph->ops_n; i++)
        SG_TRY(u->ops->can(u->unit, w->graph, &w->graph->ops[i], err));
    SG_TRY(u->ops->compile(u->unit, graphs, 1, NULL, &p, err));
    segue_status status = with_states(w, u, p, states, out, err);
    for (uint32_t s = 0; s < w->seqs; s++)
        if (states[s]) u->ops->state_free(states[s]);
    u->ops->discard(p);
    if (status != SEGUE_OK) check_result_free(out);
    return status;
}
