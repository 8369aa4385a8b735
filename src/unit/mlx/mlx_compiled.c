/* mlx_compiled.c: passes of one row per sequence, computed by compiled segments (mlx_segment.c) with attention between them. A
 * variant has the closures for a number of sequences and a pattern of adapters; positions, slots and the matrices of adapters are
 * inputs. The variants used last are kept.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/mlx/mlxunit.h"

/* A segment of a variant. */
struct mlx_closure {
    struct mlx_variant *variant;
    const struct mlx_segment *segment;
    struct mxc_closure *closure;
    uint64_t weight_bytes, arrays;   /* of one call */
};
struct mlx_variant {
    struct sg_program *program;
    uint32_t spans_n;
    uint32_t *pairs;                 /* [pairs_n] as mlx_pairs lists them */
    uint32_t pairs_n;
    const struct sg_span *spans;     /* of the pass that calls */
    struct mlx_closure *closures;    /* [segments_n] */
    mxc_ref *in, *out;               /* scratch for the largest segment */
    uint64_t used;
};

int mlx_compiles(const struct sg_program *p, const struct sg_span *spans, uint32_t n)
{
    if (n > MLX_STEP_SPANS) return 0;
    for (uint32_t s = 0; s < n; s++)
        if (spans[s].rows != 1 || (p->selects && spans[s].wanted_n != 1)) return 0;
    return 1;
}

/* --- building a closure --- */

static void number_inputs(struct mlx_pass *p, const struct mlx_closure *c, const mxc_ref *in, mxc_ref *out)
{
    const struct mlx_segment *s = c->segment;
    for (uint32_t i = 0; i < s->in_n; i++) p->values[s->in[i]] = in[i];
    p->segment = s;
    p->positions = in[s->in_n];
    p->before = in + s->in_n + 1;
    p->after = out + s->out_n;
    p->adapters = p->before + (size_t)s->slots_n * p->spans_n;
}

static segue_status build_ops(struct mlx_pass *p, segue_error *err)
{
    const struct mlx_segment *s = p->segment;
    if (s->gated >= 0) {
        const struct sg_op *a = &p->graph->ops[s->gated];
        p->values[a->out] = mlx_op_gate(p, a, p->values[a->out]);
    }
    for (uint32_t i = s->from; i < s->to && !mxc_error(p->t); i++) SG_TRY(mlx_pass_op(p, &p->graph->ops[i], err));
    return SEGUE_OK;
}

static int build(void *context, struct mxc_tape *t, const mxc_ref *in, uint32_t in_n, mxc_ref *out, uint32_t out_n)
{
    struct mlx_closure *c = context;
    struct mlx_pass p;
    segue_error err;
    segue_status status = mlx_pass_open(&p, c->variant->program, c->variant->spans, c->variant->spans_n, &err);
    (void)in_n;
    (void)out_n;
    if (status == SEGUE_OK) {
        p.t = t;
        mlx_pass_layout(&p);
        number_inputs(&p, c, in, out);
        status = build_ops(&p, &err);
        for (uint32_t i = 0; i < c->segment->out_n; i++) out[i] = p.values[c->segment->out[i]];
        c->weight_bytes = p.weight_bytes;
        c->arrays = mxc_count(t);
    }
    mlx_pass_close(&p);
    return status == SEGUE_OK && !mxc_error(t);
}

/* --- variants --- */

void mlx_variant_free(struct mlx_variant *v)
{
    if (!v) return;
    for (uint32_t k = 0; v->closures && k < v->program->segments_n; k++) mxc_closure_free(v->closures[k].closure);
    sg_free(v->closures);
    sg_free(v->pairs);
    sg_free(v->in);
    sg_free(v->out);
    sg_free(v);
}

/* The most arrays that go into a segment, or come out. */
static size_t largest(const struct sg_program *p, uint32_t spans_n, uint32_t pairs_n)
{
    size_t n = 0;
    for (uint32_t k = 0; k < p->segments_n; k++) {
        const struct mlx_segment *s = &p->segments[k];
        size_t here = (s->in_n > s->out_n ? s->in_n : s->out_n) + 1 + (size_t)s->slots_n * spans_n + 2 * (size_t)pairs_n;
        if (here > n) n = here;
    }
    return n;
}

static int fill(struct mlx_variant *v, struct sg_program *p)
{
    for (uint32_t k = 0; k < p->segments_n; k++) {
        struct mlx_closure *c = &v->closures[k];
        const struct mlx_segment *s = &p->segments[k];
        *c = (struct mlx_closure){.variant = v, .segment = s};
        c->closure = mxc_closure_new(p->base.unit->device, build, c, s->out_n + s->slots_n * v->spans_n);
        if (!c->closure) return 0;
    }
    return 1;
}

static struct mlx_variant *variant_new(struct sg_program *p, uint32_t spans_n, const uint32_t *pairs, uint32_t pairs_n)
{
    struct mlx_variant *v = sg_alloc(sizeof *v);
    size_t n = largest(p, spans_n, pairs_n);
    if (!v) return NULL;
    *v = (struct mlx_variant){.program = p, .spans_n = spans_n, .pairs_n = pairs_n};
    v->closures = sg_alloc(p->segments_n * sizeof *v->closures);
    v->pairs = sg_alloc((pairs_n + 1) * sizeof *v->pairs);
    v->in = sg_alloc(n * sizeof *v->in);
    v->out = sg_alloc(n * sizeof *v->out);
    if (v->pairs && pairs_n) memcpy(v->pairs, pairs, pairs_n * sizeof *pairs);
    if (v->closures && v->pairs && v->in && v->out && fill(v, p)) return v;
    mlx_variant_free(v);
    return NULL;
}

static int fits(const struct mlx_variant *v, uint32_t spans_n, const uint32_t *pairs, uint32_t n)
{
    return v && v->spans_n == spans_n && v->pairs_n == n && (!n || !memcmp(v->pairs, pairs, n * sizeof *pairs));
}

/* The entry of the variant, or that to be replaced: a free one, or the one used longest ago. */
static struct mlx_variant **place_of(struct sg_program *p, uint32_t spans_n, const uint32_t *pairs, uint32_t n)
{
    struct mlx_variant **at = &p->variants[0];
    for (uint32_t i = 0; i < MLX_VARIANTS; i++) {
        struct mlx_variant **v = &p->variants[i];
        if (fits(*v, spans_n, pairs, n)) return v;
        if (*at && (!*v || (*v)->used < (*at)->used)) at = v;
    }
    return at;
}

static segue_status variant_of(struct mlx_pass *p, struct mlx_variant **out, segue_error *err)
{
    uint32_t *pairs, n;
    SG_TRY(mlx_pairs(p, &pairs, &n, err));
    struct mlx_variant **v = place_of(p->program, p->spans_n, pairs, n);
    if (!fits(*v, p->spans_n, pairs, n)) {
        mlx_variant_free(*v);
        *v = variant_new(p->program, p->spans_n, pairs, n);
    }
    sg_free(pairs);
    if (!*v) return sg_no_memory("compiled step of mlx", p->graph->ops_n, err);
    (*v)->used = ++p->program->variants_used;
    *out = *v;
    return SEGUE_OK;
}

/* --- a pass --- */

static mxc_ref slot_before(struct mlx_pass *p, uint32_t span, uint32_t slot)
{
    size_t at = (size_t)span * p->graph->slots_n + slot;
    return p->fixed ? mxc_use(p->t, p->fixed[at]) : mlx_state_fixed(p->unit, mlx_slot_at(p->spans[span].state, slot));
}

static void slot_after(struct mlx_pass *p, uint32_t span, uint32_t slot, mxc_ref x)
{
    x = mlx_state_shaped(p->unit, mlx_slot_at(p->spans[span].state, slot), x);
    p->states[p->states_n++] = x;
    p->state_bytes += 2 * mlx_slot_at(p->spans[span].state, slot)->core.fixed_bytes;
    if (!p->fixed_next) {
        mlx_state_set_next(p->unit, p->spans[span].state, slot, x);
        return;
    }
    struct mxc_held **next = &p->fixed_next[(size_t)span * p->graph->slots_n + slot];
    mxc_release(*next);
    *next = mxc_keep(p->t, x);
}

static segue_status call(struct mlx_pass *p, struct mlx_variant *v, uint32_t k, mxc_ref positions, segue_error *err)
{
    struct mlx_closure *c = &v->closures[k];
    const struct mlx_segment *s = c->segment;
    uint32_t n = 0;
    if (s->from == s->to && s->gated < 0) return SEGUE_OK;
    for (uint32_t i = 0; i < s->in_n; i++) v->in[n++] = p->values[s->in[i]];
    v->in[n++] = positions;
    for (uint32_t i = 0; i < s->slots_n; i++)
        for (uint32_t span = 0; span < p->spans_n; span++) v->in[n++] = slot_before(p, span, s->slots[i]);
    n += mlx_pair_inputs(p, s, v->in + n);
    uint32_t out_n = s->out_n + s->slots_n * p->spans_n;
    if (!mxc_closure_call(p->t, c->closure, v->in, n, v->out, out_n)) return mlx_status(p->unit, "run", err);
    for (uint32_t i = 0; i < s->out_n; i++) p->values[s->out[i]] = v->out[i];
    for (uint32_t i = 0; i < s->slots_n; i++)
        for (uint32_t span = 0; span < p->spans_n; span++)
            slot_after(p, span, s->slots[i], v->out[s->out_n + i * p->spans_n + span]);
    p->weight_bytes += c->weight_bytes;
    p->arrays += c->arrays;
    return SEGUE_OK;
}

static mxc_ref positions_of(const struct mlx_pass *p)
{
    int32_t first[MLX_STEP_SPANS];
    for (uint32_t s = 0; s < p->spans_n; s++) first[s] = (int32_t)p->spans[s].first;
    return mxc_from(p->t, first, MXC_I32, &p->spans_n, 1);
}

segue_status mlx_pass_compiled(struct mlx_pass *p, segue_error *err)
{
    struct mlx_variant *v = NULL;
    SG_TRY(variant_of(p, &v, err));
    v->spans = p->spans;
    mxc_ref positions = positions_of(p);
    for (uint32_t k = 0; k < p->program->segments_n && !mxc_error(p->t); k++) {
        SG_TRY(call(p, v, k, positions, err));
        uint32_t to = p->program->segments[k].to;
        if (to < p->graph->ops_n) p->values[p->graph->ops[to].out] = mlx_op_attend(p, &p->graph->ops[to]);
    }
    return mlx_status(p->unit, "run", err);
}
