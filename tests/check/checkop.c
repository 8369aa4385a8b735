/* checkop.c: level op. Each op in random sizes, windows, storages, spans and continuations: on every unit
 * against `ref`, and on `ref` against the restatement of checknaive.c.
 *
 * Bounds are a share of the largest number that the result can be expected to have (w.tolerance and a floor):
 *   - 2e-5: sums of up to 512 products in fp32, in any order; recurrences, whose errors feed back
 *   - 1e-5: elementwise ops and softmax (exp and tanh within a few ulp); 1e-6 where only a product is rounded
 *   - 1e-4: angles in fp32 up to position 400
 *   - 3e-2: weights in blocks, on units other than ref: activations may be rounded to int8 per block of 32,
 *     whose step is 1/254 of the block's largest number; with outliers that is a few per cent of a sum
 *   - 1e-2, 3e-2 for recurrences: units that round every number to fp16; times 4 (check_half): to bf16
 *   - 2e-3, 1e-2: attention whose factors a unit may round to fp16 or bf16, as K and V are
 *   - 2e-2: K and V in q8: a unit may place blocks and round halves its own way, half a step of 1/127
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "checkop.h"

/* --- runs and data --- */

/* Case 0 is one sequence with one row a run: decode. The others mix lengths around 16, 64 and 100. */
static void plan_runs(struct check_maker *m, int heavy, int prompts)
{
    static const uint32_t many[] = {1, 1, 2, 3, 5, 13, 17, 64, 65, 100};
    struct check_world *w = m->w;
    w->seqs = m->index ? check_maker_between(m, 1, CHECK_SEQS) : 1;
    w->runs = check_maker_between(m, 1, CHECK_RUNS);
    for (uint32_t r = 0; r < w->runs; r++)
        for (uint32_t s = 0; s < w->seqs; s++) {
            uint32_t n = m->index ? many[check_maker_between(m, 0, heavy ? 6 : 9)] : 1;
            if (prompts) n = check_maker_between(m, 33, 130);
            if (s && check_below(&m->rng, 4) == 0) n = 0; /* this sequence rests */
            w->rows[r][s] = n;
            w->wanted[r][s] = sg_arena_alloc(&w->arena, (n + 1) * sizeof(uint32_t));
            for (uint32_t t = 0; t < n; t++)
                if (check_maker_sometimes(m) || (!s && t + 1 == n)) w->wanted[r][s][w->wanted_n[r][s]++] = t;
        }
}

/* The first sequence grows by 16 rows a run, the others more slowly; the last runs have one row of each, as decoding has. */
static void plan_deep_runs(struct check_maker *m)
{
    struct check_world *w = m->w;
    w->seqs = m->index ? check_maker_between(m, 1, CHECK_SEQS) : 1;
    w->runs = CHECK_RUNS_MAX;
    for (uint32_t r = 0; r < w->runs; r++)
        for (uint32_t s = 0; s < w->seqs; s++) {
            uint32_t n = r + 4 >= w->runs ? 1 : s ? check_maker_between(m, 0, 4) : 16;
            w->rows[r][s] = n;
            w->wanted[r][s] = sg_arena_alloc(&w->arena, (n + 1) * sizeof(uint32_t));
            if (n) w->wanted[r][s][w->wanted_n[r][s]++] = n - 1;
        }
}

/* A long prompt, then two of few rows far behind its beginning; every 16th row of these is wanted. */
static void plan_long_runs(struct check_maker *m)
{
    struct check_world *w = m->w;
    const uint32_t rows[] = {check_maker_between(m, 1540, 1600), check_maker_between(m, 33, 64), check_maker_between(m, 65, 150)};
    w->seqs = 1;
    w->runs = sizeof rows / sizeof *rows;
    for (uint32_t r = 0; r < w->runs; r++) {
        w->rows[r][0] = rows[r];
        w->wanted[r][0] = sg_arena_alloc(&w->arena, (rows[r] + 1) * sizeof(uint32_t));
        for (uint32_t t = 15; r && t < rows[r]; t += 16) w->wanted[r][0][w->wanted_n[r][0]++] = t;
    }
}

/* Router logits on a grid of distinct numbers, with exact ties in some cases: no near-tie that rounding could
 * turn. */
static void grid_logits(struct check_maker *m, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] = ((float)i - (float)n / 2) * 0.2f;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = check_below(&m->rng, i);
        float v = x[i - 1];
        x[i - 1] = x[k];
        x[k] = v;
    }
    if (m->index % 3 == 1)
        for (uint32_t i = 0; i + 1 < n; i += 3) x[i] = x[i + 1];
}

/* Any expert may come twice: units must not assume that they differ. */
static void fill_routing(struct check_maker *m, float *x, const struct sg_experts *e)
{
    for (uint32_t i = 0; i < e->k; i++) {
        x[i] = (float)check_below(&m->rng, e->experts);
        x[e->k + i] = 0.6f + 0.4f * check_uniform(&m->rng);
    }
}

/* Keys that are not normalised must be short, or the recurrence grows without bound. */
static void shorten_keys(float *x, const struct sg_op *op)
{
    const struct sg_delta *d = &op->u.delta;
    for (int i = 0; i < 2 && !(d->l2_eps > 0); i++)
        for (uint32_t c = 0; c < op->in[i].width; c++) x[op->in[i].at + c] *= 0.5f / sqrtf((float)d->dk);
}

static void fill_inputs(struct check_maker *m)
{
    struct check_world *w = m->w;
    const struct sg_op *op = &w->graph->ops[w->graph->ops_n - 1];
    double width_max = 0;
    for (uint32_t s = 0; s < w->seqs; s++) {
        size_t rows = check_world_first(w, w->runs, s), n = rows * w->input_width;
        if (!w->input_width) {
            w->tokens[s] = sg_arena_alloc(&w->arena, (rows + 1) * sizeof(int32_t));
            for (size_t t = 0; t < rows; t++) w->tokens[s][t] = (int32_t)check_below(&m->rng, m->columns);
            continue;
        }
        float *x = w->values[s] = sg_arena_alloc(&w->arena, (n + 1) * sizeof *x);
        check_fill(&m->rng, x, n, m->data, 1);
        for (size_t i = 0; i < n; i++)
            if (fabs((double)x[i]) > width_max) width_max = fabs((double)x[i]);
        for (size_t t = 0; t < rows; t++) {
            if (op->code == SG_OP_ROUTE)
                grid_logits(m, x + t * w->input_width + op->in[0].at, op->in[0].width);
            if (op->code == SG_OP_EXPERTS)
                fill_routing(m, x + t * w->input_width + op->in[1].at, &op->u.experts);
            if (op->code == SG_OP_DELTA) shorten_keys(x + t * w->input_width, op);
        }
    }
    if (!(m->floor > 0)) m->floor = width_max;
}

segue_status check_op_world(struct check_world *w, struct check_rng rng, const char *name, uint32_t index, segue_error *err)
{
    struct check_maker m = {.w = w, .rng = rng, .index = index, .storage = SG_F32, .data = CHECK_NORMAL, .gradient = 1};
    const struct check_op_kind *k = check_op_kinds;
    while (strcmp(k->name, name) != 0) k++;
    SG_TRY(sg_builder_begin(&m.b, err));
    int32_t y = k->make(&m);
    sg_output(&m.b, y, "y");
    SG_TRY(sg_builder_end(&m.b, &w->graph, err));
    w->output_width = w->graph->values[y].width;
    fill_inputs(&m);
    return SEGUE_OK;
}

/* The op is the last one of its graph: checknaive.c relies on it. */
static segue_status make_world(struct check_maker *m, const struct check_op_kind *k, struct check_world *w, segue_error *err)
{
    *w = (struct check_world){0};
    m->w = w;
    m->data = (enum check_data)(m->index % k->data);
    if (k->plan == CHECK_PLAN_DEEP)
        plan_deep_runs(m);
    else if (k->plan == CHECK_PLAN_LONG)
        plan_long_runs(m);
    else
        plan_runs(m, k->by_storage && m->storage != SG_F32, k->plan == CHECK_PLAN_PROMPTS);
    SG_TRY(sg_builder_begin(&m->b, err));
    int32_t y = k->make(m);
    sg_output(&m->b, y, "y");
    SG_TRY(sg_builder_end(&m->b, &w->graph, err));
    w->output_width = w->graph->values[y].width;
    fill_inputs(m);
    return SEGUE_OK;
}

/* --- comparing --- */

/* Numbers below the smallest normal one may be taken as zero (tile units do). */
#define DENORMAL 1e-37

/* y, and on units other than ref the slots too. */
static void compare(struct check *c, struct check_case *k, const struct check_world *w, const struct check_maker *m,
                    const struct check_result *a, const struct check_result *b, int is_ref)
{
    double scale, tolerance = !is_ref && m->block_tolerance > 0 ? m->block_tolerance : w->tolerance;
    double half = w->graph->ops[w->graph->ops_n - 1].code == SG_OP_DELTA ? 3e-2 : 1e-2;
    if (tolerance < half * c->half) tolerance = half * c->half;
    double floor = c->half > 0 && m->floor < 6e-5 ? 6e-5 : m->floor; /* fp16's smallest */
    k->max_abs = check_distance(a->y, a->y_n, b->y, b->y_n, &scale);
    k->bound = tolerance * (scale > floor ? scale : floor) + DENORMAL;
    k->ns = a->ns;
    k->against_ns = b->ns;
    check_report(c, k);
    if (is_ref || !b->slots_n) return;
    struct check_case slots = *k;
    strncat(slots.name, ".state", sizeof slots.name - strlen(slots.name) - 1);
    slots.max_abs = check_distance(a->slots, a->slots_n, b->slots, b->slots_n, &scale);
    slots.bound = tolerance * (scale > floor ? scale : floor) + DENORMAL;
    check_report(c, &slots);
}

/* A unit that says EUNSUPPORTED is skipped with its reason; anything else has failed. */
static void fail_case(struct check *c, struct check_case *k, segue_status status, const segue_error *err)
{
    char why[sizeof err->text];
    snprintf(why, sizeof why, "%s", err->text);
    if (status == SEGUE_EUNSUPPORTED) {
        k->skipped = why;
    } else {
        fprintf(stderr, "check: %s %s: %s\n", k->unit, k->name, why);
        k->max_abs = INFINITY;
        k->ok = -1;
    }
    check_report(c, k);
}

/* --bench: the shortest of five. */
static segue_status timed_run(const struct check *c, const struct check_world *w, const struct check_unit *u,
                              struct check_result *out, segue_error *err)
{
    SG_TRY(check_world_run(w, u, out, err));
    for (int i = 0; c->bench && i < 4; i++) {
        struct check_result again = {0};
        SG_TRY(check_world_run(w, u, &again, err));
        if (again.ns < out->ns) out->ns = again.ns;
        check_result_free(&again);
    }
    return SEGUE_OK;
}

/* A case is made once for all units, and computed once on ref: data and ref take longer than most units. */
struct shared_case {
    struct check_maker m;
    struct check_world w;
    struct check_result ref;
    segue_status made;
    segue_error error;               /* of making it */
    int has_world, has_ref;
};

static void one_case(struct check *c, const struct check_unit *u, struct shared_case *s, struct check_case *k)
{
    struct check_result a = {0}, naive = {0};
    segue_error err = s->error;
    int is_ref = u->desc.reference != 0;
    c->half = check_half(u);
    segue_status status = s->made;
    if (status == SEGUE_OK) status = timed_run(c, &s->w, u, &a, &err);
    if (status == SEGUE_OK && is_ref) status = check_world_naive(&s->w, &naive, &err);
    if (status == SEGUE_OK && !is_ref && !s->has_ref) {
        status = timed_run(c, &s->w, &c->ref, &s->ref, &err);
        s->has_ref = status == SEGUE_OK;
    }
    if (status == SEGUE_OK) compare(c, k, &s->w, &s->m, &a, is_ref ? &naive : &s->ref, is_ref);
    else fail_case(c, k, status, &err);
    if (status == SEGUE_OK && !strcmp(u->spec, "ref") && !s->has_ref) { /* the other units compare with it */
        s->ref = a;
        a = (struct check_result){0};
        s->has_ref = 1;
    }
    check_result_free(&a);
    check_result_free(&naive);
}

static void case_on_units(struct check *c, const struct check_op_kind *kind, enum sg_storage storage, int index)
{
    struct shared_case s = {.m = {.index = (uint32_t)index, .storage = storage}};
    for (uint32_t i = 0; i < c->units_n; i++) {
        const struct check_unit *u = &c->units[i];
        struct check_case k = {.level = "op", .unit = u->spec, .against = u->desc.reference ? "naive" : "ref"};
        if (kind->by_storage) snprintf(k.name, sizeof k.name, "%s.%s.%d", kind->name, sg_storage_info(storage)->name, index);
        else snprintf(k.name, sizeof k.name, "%s.%d", kind->name, index);
        if (!check_wants(c, &k)) continue;
        if (!s.has_world) {
            s.m.rng = check_rng_of(c->seed, k.name, (uint64_t)index);
            s.made = make_world(&s.m, kind, &s.w, &s.error);
            s.has_world = 1;
        }
        one_case(c, u, &s, &k);
    }
    check_result_free(&s.ref);
    if (s.has_world) check_world_free(&s.w);
}

void check_ops(struct check *c)
{
    for (size_t k = 0; k < CHECK_OP_KINDS; k++)
        for (int s = 0; s < SG_STORAGE_N; s++)
            if (check_op_kinds[k].by_storage ? sg_storage_info((enum sg_storage)s)->computable : s == SG_F32)
                for (int i = 0; i < (c->quick ? check_op_kinds[k].quick : check_op_kinds[k].cases); i++)
                    case_on_units(c, &check_op_kinds[k], (enum sg_storage)s, i);
    for (uint32_t i = 0; i < c->units_n; i++) {
        check_tails(c, &c->units[i]);
        check_samples(c, &c->units[i]);
    }
    check_ranks(c);
}
