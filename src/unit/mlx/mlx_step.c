/* mlx_step.c: decode steps. The ops of one row are built once as a closure, which MLX compiles; it is built again when K and V
 * have grown. Its inputs are the token, the position and the slots. While a step is computed, the next one is issued for its best
 * token. It changes nothing that the sequence has: K and V rows are beyond its end, recurrent slots are new arrays. So it is
 * dropped when the next run asks for something else.
 * SPDX-License-Identifier: MIT */
#include "unit/mlx/mlxunit.h"

enum { IN_TOKEN, IN_POSITION, IN_SLOTS };
enum { OUT_LOGITS, OUT_TOKEN, OUT_FLAG, OUT_SLOTS };

struct mlx_step {
    struct sg_program *program;
    struct mxc_closure *closure;
    int q8;
    mxc_ref *in, *out;               /* [IN_SLOTS + slots_n], [OUT_SLOTS + slots_n] scratch */
    uint64_t weight_bytes, arrays;   /* of one step */
};

int mlx_step_fits(const struct sg_graph *g)
{
    int32_t logits = g->vocab ? sg_graph_output(g, "logits") : -1;
    if (logits < 0 || g->inputs_n != 1 || g->values[g->inputs[0].value].kind != SG_VALUE_TOKENS) return 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        /* The best token is the next input; a convolution of one tap has an empty slot. */
        if (op->code == SG_OP_EMBED && op->u.embed.table.rows < g->vocab) return 0;
        if (op->code == SG_OP_CONV && op->u.conv.taps < 2) return 0;
    }
    return 1;
}

/* --- the closure --- */

static segue_status build_ops(struct mlx_pass *p, mxc_ref token, mxc_ref *out, segue_error *err)
{
    const struct sg_graph *g = p->graph;
    mlx_pass_layout(p);
    p->values[g->inputs[0].value] = token;
    for (uint32_t i = 0; i < g->ops_n && !mxc_error(p->t); i++) SG_TRY(mlx_pass_op(p, &g->ops[i], err));
    mxc_ref logits = p->values[g->outputs[sg_graph_output(g, "logits")].value], flag = mlx_range_flag(p);
    out[OUT_LOGITS] = mlx_cast(p, logits, MXC_F32);
    out[OUT_TOKEN] = mxc_argmax(p->t, logits);
    out[OUT_FLAG] = flag == MXC_NONE ? out[OUT_TOKEN] : flag;
    return SEGUE_OK;
}

static int build(void *context, struct mxc_tape *t, const mxc_ref *in, uint32_t in_n, mxc_ref *out, uint32_t out_n)
{
    static const uint32_t wanted = 0;
    const struct sg_span span = {.rows = 1, .wanted = &wanted, .wanted_n = 1};
    struct mlx_step *s = context;
    struct mlx_pass p;
    segue_error err;
    segue_status status = mlx_pass_open(&p, s->program, &span, 1, &err);
    p.t = t;
    p.position = in[IN_POSITION];
    p.before = in + IN_SLOTS;
    p.after = out + OUT_SLOTS;
    p.q8 = s->q8;
    (void)in_n;
    (void)out_n;
    if (status == SEGUE_OK) status = build_ops(&p, in[IN_TOKEN], out, &err);
    s->weight_bytes = p.weight_bytes;
    s->arrays = mxc_count(t);
    mlx_pass_close(&p);
    return status == SEGUE_OK && !mxc_error(t);
}

void mlx_step_free(struct mlx_step *s)
{
    if (!s) return;
    mxc_closure_free(s->closure);
    sg_free(s->in);
    sg_free(s->out);
    sg_free(s);
}

/* The step of a program; made on first use. */
static segue_status step_of(struct sg_program *program, int q8, struct mlx_step **out, segue_error *err)
{
    uint32_t slots = program->base.graph->slots_n;
    struct mlx_step *s = *out = program->steps[q8];
    if (s) return SEGUE_OK;
    s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("a step of mlx", sizeof *s, err);
    *s = (struct mlx_step){.program = program, .q8 = q8};
    s->in = sg_alloc((IN_SLOTS + slots) * sizeof *s->in);
    s->out = sg_alloc((OUT_SLOTS + slots) * sizeof *s->out);
    s->closure = mxc_closure_new(program->base.unit->device, build, s, OUT_SLOTS + slots);
    if (!s->in || !s->out || !s->closure) {
        mlx_step_free(s);
        return sg_no_memory("a step of mlx", slots * sizeof *s->in, err);
    }
    *out = program->steps[q8] = s;
    return SEGUE_OK;
}

/* --- issuing --- */

/* Keeps the outputs of a call; those of K and V replace the slots. */
static void keep_outputs(struct mlx_step *s, struct sg_state *st, struct mlx_issued *i)
{
    struct mxc_tape *t = st->core.base.unit->tape;
    i->logits = mxc_keep(t, s->out[OUT_LOGITS]);
    i->token = mxc_keep(t, s->out[OUT_TOKEN]);
    i->flag = mxc_keep(t, s->out[OUT_FLAG]);
    for (uint32_t k = 0; k < st->core.slots_n; k++) {
        struct mlx_slot *slot = mlx_slot_at(st, k);
        struct mxc_held **to = sg_slot_grows(&slot->core.slot) ? &slot->array : &i->fixed[k];
        struct mxc_held *held = mxc_keep(t, s->out[OUT_SLOTS + k]);
        if (!held) continue;
        mxc_release(*to);
        *to = held;
    }
}

/* fixed NULL: the recurrent slots of the state; else [slots_n]. The tape keeps nothing that the next step overwrites. */
static segue_status issue(struct mlx_step *s, struct sg_state *st, uint64_t first, mxc_ref token,
                          struct mxc_held *const *fixed, struct mlx_issued *i, segue_error *err)
{
    struct sg_unit *u = st->core.base.unit;
    uint32_t one = 1, n = OUT_SLOTS + st->core.slots_n;
    int32_t position = (int32_t)first;
    s->in[IN_TOKEN] = token;
    s->in[IN_POSITION] = mxc_from(u->tape, &position, MXC_I32, &one, 1);
    for (uint32_t k = 0; k < st->core.slots_n; k++) {
        struct mlx_slot *slot = mlx_slot_at(st, k);
        s->in[IN_SLOTS + k] = sg_slot_grows(&slot->core.slot) ? mlx_state_grown(u, slot, st->core.storage, first + 1)
                              : fixed                         ? mxc_use(u->tape, fixed[k])
                                                              : mlx_state_fixed(u, slot);
    }
    if (mxc_closure_call(u->tape, s->closure, s->in, IN_SLOTS + st->core.slots_n, s->out, n)) {
        keep_outputs(s, st, i);
        (void)mxc_issue(u->tape, s->out, n);
        for (uint32_t k = 0; k < n; k++) mxc_forget(u->tape, s->out[k]);
    }
    u->steps_issued++;
    i->first = first;
    i->version = st->version;
    i->program = s->program->number;
    return mlx_status(u, "run", err);
}

/* 1: the issued step is the one that the run asks for. */
static int is_expected(const struct sg_program *program, const struct sg_span *span, const struct mlx_issued *i)
{
    return i->token && i->first == span->first && i->version == span->state->version && i->program == program->number &&
           i->input == span->tokens[0];
}

static uint64_t state_bytes(const struct sg_state *st, uint64_t end)
{
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < st->core.slots_n; k++) {
        const struct mlx_slot *s = mlx_slot_at(st, k);
        uint64_t window = s->core.slot.window, rows = window && window < end ? window : end;
        bytes += sg_slot_grows(&s->core.slot) ? rows * s->core.row_bytes : 2 * s->core.fixed_bytes;
    }
    return bytes;
}

/* best: the token that the next step was issued for. */
static segue_status read_step(struct mlx_pass *p, const struct mlx_issued *i, float *logits, int32_t *best, int *infinite,
                              segue_error *err)
{
    float flag = 0;
    if (logits) (void)mxc_read(p->t, mxc_use(p->t, i->logits), logits, p->graph->vocab * sizeof *logits);
    (void)mxc_read(p->t, mxc_use(p->t, i->token), best, sizeof *best);
    if (p->unit->type == MXC_F16) (void)mxc_read(p->t, mxc_use(p->t, i->flag), &flag, sizeof flag);
    *infinite = !(flag == 0);
    return mlx_status(p->unit, "run", err);
}

segue_status mlx_step_run(struct mlx_pass *p, const struct sg_span *span, int ahead, float *logits, int *infinite,
                          segue_error *err)
{
    struct sg_state *st = span->state;
    struct mlx_issued *now = &st->issued[0], *next = &st->issued[1];
    struct mlx_step *s;
    uint32_t one = 1;
    SG_TRY(step_of(p->program, st->core.storage == SG_Q8_0, &s, err));
    struct mlx_issued taken = *next;
    *next = *now;                    /* empty: a run takes its results */
    *now = taken;
    if (!is_expected(p->program, span, now)) {
        mlx_issued_clear(st, now);
        SG_TRY(issue(s, st, span->first, mxc_from(p->t, span->tokens, MXC_I32, &one, 1), NULL, now, err));
    }
    if (ahead) SG_TRY(issue(s, st, span->first + 1, mxc_use(p->t, now->token), now->fixed, next, err));
    SG_TRY(read_step(p, now, logits, &next->input, infinite, err));
    for (uint32_t k = 0; k < st->core.slots_n; k++) {
        struct mlx_slot *slot = mlx_slot_at(st, k);
        if (sg_slot_grows(&slot->core.slot)) continue;
        mxc_release(slot->next);
        slot->next = now->fixed[k];
        now->fixed[k] = NULL;
    }
    mlx_issued_clear(st, now);
    p->weight_bytes += s->weight_bytes;
    p->state_bytes += state_bytes(st, span->first + 1);
    p->arrays += s->arrays;
    return SEGUE_OK;
}
