/* checkalone.c: each sequence of a world by itself, on the unit that ran them together: a unit that says so (`invariant`) gives
 * the same bits, rows and states. SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "check.h"

/* The runs in which the sequence has rows; which[i]: the run of all ranks that is run i here. */
static struct check_world one_of(const struct check_world *w, uint32_t s, uint32_t which[CHECK_RUNS_MAX])
{
    struct check_world one = *w;
    one.seqs = 1;
    one.runs = 0;
    for (uint32_t r = 0; r < w->runs; r++) {
        if (!w->rows[r][s]) continue;
        one.rows[one.runs][0] = w->rows[r][s];
        one.wanted[one.runs][0] = w->wanted[r][s];
        one.wanted_n[one.runs][0] = w->wanted_n[r][s];
        which[one.runs++] = r;
    }
    one.values[0] = w->values[s];
    one.tokens[0] = w->tokens[s];
    memcpy(one.loras[0], w->loras[s], sizeof one.loras[0]);
    one.loras_n[0] = w->loras_n[s];
    return one;
}

/* Rows of the world's result before those of sequence s in run r. wanted: they are those that were asked for. */
static size_t before(const struct check_world *w, uint32_t r, uint32_t s, uint32_t wanted)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r; i++) n += check_world_rows(w, i, wanted);
    for (uint32_t i = 0; i < s; i++)
        if (w->rows[r][i]) n += wanted ? w->wanted_n[r][i] : w->rows[r][i];
    return n;
}

static double rows_apart(const struct check_world *w, const struct check_world *one, const uint32_t *which, uint32_t s,
                         const struct check_result *all, const struct check_result *alone)
{
    int32_t output = sg_graph_output(w->graph, "y");
    uint32_t wanted = output < 0 || w->graph->values[w->graph->outputs[output].value].wanted;
    double max_error = 0, scale;
    size_t at = 0;
    for (uint32_t i = 0; i < one->runs; i++) {
        size_t n = (size_t)check_world_rows(one, i, wanted) * w->output_width;
        double d = check_distance(alone->y + at, n, all->y + before(w, which[i], s, wanted) * w->output_width, n, &scale);
        if (d > max_error) max_error = d;
        at += n;
    }
    return max_error;
}

static segue_status world_alone(const struct check_world *w, const struct check_unit *u, const struct check_result *all,
                                double *apart, segue_error *err)
{
    size_t at = 0;
    *apart = 0;
    for (uint32_t s = 0; s < w->seqs; s++) {
        uint32_t which[CHECK_RUNS_MAX];
        struct check_world one = one_of(w, s, which);
        struct check_result r = {0};
        double scale;
        SG_TRY(check_world_run(&one, u, &r, err));
        double rows = rows_apart(w, &one, which, s, all, &r),
               slots = at + r.slots_n <= all->slots_n ? check_distance(r.slots, r.slots_n, all->slots + at, r.slots_n, &scale)
                                                      : INFINITY;
        at += r.slots_n;
        *apart = fmax(*apart, fmax(rows, slots));
        check_result_free(&r);
    }
    return SEGUE_OK;
}

void check_alone(const struct check_unit *u, const struct check_world *w, const struct check_result *all, struct check_case *k)
{
    segue_error err = {0};
    double apart = 0;
    if (world_alone(w, u, all, &apart, &err) != SEGUE_OK)
        fprintf(stderr, "check: %s %s, alone: %s\n", k->unit, k->name, err.text);
    else if (apart > 0 || isnan(apart)) fprintf(stderr, "check: %s %s: alone it is %g apart\n", k->unit, k->name, apart);
    else return;
    k->ok = -1;
}
