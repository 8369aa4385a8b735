/* mlx_unit.c: the table of the unit `mlx`, its devices and compile.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "unit/finite.h"
#include "unit/mlx/mlxunit.h"
#include "unit/spec.h"

enum { TYPICAL_TOKENS = 512 };
static const char *const devices[] = {"mlx:cpu", "mlx:gpu"};

/* --- devices --- */

static void describe_one(struct sg_unit_desc *d, int gpu)
{
    char name[64];
    *d = (struct sg_unit_desc){.lanes = 1, .samples = 1, .named_only = 1};
    d->info.size = sizeof d->info;
    d->info.built = 1;
    d->info.present = gpu ? (uint32_t)mxc_gpu_present() : 1;
    snprintf(d->info.spec, sizeof d->info.spec, "%s", devices[gpu]);
    snprintf(d->info.kind, sizeof d->info.kind, "mlx");
    if (!d->info.present) {
        snprintf(d->info.why, sizeof d->info.why, "MLX %s of this build has no GPU", mxc_version());
        return;
    }
    mxc_device_facts(gpu, name, sizeof name, &d->info.memory_bytes);
    snprintf(d->info.features, sizeof d->info.features, "MLX %s on the %s%s%s", mxc_version(), gpu ? "GPU" : "CPU",
             name[0] ? ", " : "", name);
}

static segue_status mlx_list(struct sg_unit_desc *out, size_t cap, size_t *n, segue_error *err)
{
    (void)err;
    for (size_t i = 0; i < 2 && i < cap; i++) describe_one(&out[i], i == 1);
    *n = 2;
    return SEGUE_OK;
}

struct mlx_opening {
    struct sg_unit *unit;
    char text[MXC_TEXT];
};

static void open_device(void *arg)
{
    struct mlx_opening *o = arg;
    o->unit->device = mxc_device_new(o->unit->gpu, o->text);
    if (o->unit->device) o->unit->tape = mxc_tape_new(o->unit->device);
}

static void close_device(void *arg)
{
    struct sg_unit *u = arg;
    for (int i = 0; i < MLX_ADAPTERS; i++) mlx_adapter_clear(&u->adapters[i]);
    mxc_tape_free(u->tape);
    mxc_device_free(u->device);
}

static void mlx_close(struct sg_unit *u)
{
    mlx_call(u, close_device, u);
    mlx_owner_stop(&u->owner);
    mlx_memory_close(u);
    sg_free(u);
}

/* type=: of all values. Without it, that of the model's weights; on the CPU fp32, which is faster than the 16-bit types. */
static segue_status options_of(struct sg_unit *u, const struct sg_unit_spec *spec, segue_error *err)
{
    static const char *const keys[] = {"", "type", NULL};
    const char *device = sg_spec_value(spec, ""), *type = sg_spec_value(spec, "type");
    char name[80] = "";
    SG_TRY(sg_spec_only(spec, keys, err));
    if (device) snprintf(name, sizeof name, "mlx:%s", device);
    u->gpu = device ? !strcmp(name, devices[1]) : mxc_gpu_present();
    if (device && strcmp(name, devices[u->gpu]))
        return sg_fail(err, SEGUE_EARG, "open unit: %s: no device %s; use %s or %s", spec->text, device, devices[0], devices[1]);
    if (u->gpu && !mxc_gpu_present())
        return sg_fail(err, SEGUE_EUNIT, "open unit: %s: MLX %s of this build has no GPU; use %s", spec->text, mxc_version(),
                       devices[0]);
    u->type = u->gpu ? MXC_F16 : MXC_F32;
    u->follows = u->gpu && !type;
    if (!type) return SEGUE_OK;
    if (!strcmp(type, "f32")) u->type = MXC_F32;
    else if (!strcmp(type, "f16")) u->type = MXC_F16;
    else if (!strcmp(type, "bf16")) u->type = MXC_BF16;
    else return sg_fail(err, SEGUE_EARG, "open unit: %s: type=%s; use f32, f16 or bf16", spec->text, type);
    return SEGUE_OK;
}

static segue_status mlx_open(struct sg_unit **out, const struct sg_unit_spec *spec, segue_error *err)
{
    static const char *const names[] = {"f32", "f16", "bf16"};
    struct sg_unit *u = sg_alloc(sizeof *u);
    if (!u) return sg_no_memory("unit mlx", sizeof *u, err);
    struct mlx_opening o = {.unit = u};
    u->base.ops = &sg_unit_mlx;
    segue_status status = options_of(u, spec, err);
    if (status == SEGUE_OK) status = mlx_owner_start(&u->owner, err);
    if (status != SEGUE_OK) {
        sg_free(u);
        return status;
    }
    mlx_memory_open(u);
    mlx_call(u, open_device, &o);
    if (!u->tape) {
        mlx_close(u);
        return sg_fail(err, SEGUE_EUNIT, "open unit: %s: %s", spec->text, o.text[0] ? o.text : "no memory");
    }
    describe_one(&u->desc, u->gpu);
    u->desc.half = u->follows || u->type == MXC_BF16 ? 2 : u->type == MXC_F16 ? 1 : 0;    /* 2: the coarsest that it may choose */
    if (sg_spec_value(spec, "type"))
        snprintf(u->desc.info.spec, sizeof u->desc.info.spec, "%s,type=%s", devices[u->gpu], names[u->type]);
    *out = u;
    return SEGUE_OK;
}

static void mlx_describe(const struct sg_unit *u, struct sg_unit_desc *out) { *out = u->desc; }

static segue_status mlx_can(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op, segue_error *why)
{
    (void)u;
    SG_TRY(sg_op_check(g, (uint32_t)(op - g->ops), why));
    if (op->code != SG_OP_JOIN) return SEGUE_OK;
    return sg_fail(why, SEGUE_EUNSUPPORTED, "mlx: join (layer %d): a group of units of this kind is not supported", op->layer);
}

/* --- compile --- */

static void free_variants(void *arg)
{
    struct sg_program *p = arg;
    for (int i = 0; i < MLX_VARIANTS; i++) mlx_variant_free(p->variants[i]);
}

static void mlx_discard(struct sg_program *p)
{
    if (!p) return;
    if (p->variants_used) mlx_call(p->base.unit, free_variants, p);
    mlx_segments_free(p->segments, p->segments_n);
    for (uint32_t i = 0; p->periods && i < p->base.graph->ropes_n; i++) mxc_release(p->periods[i]);
    mlx_weights_release(p->weights);
    sg_free(p->periods);
    sg_free(p->fp32);
    sg_free(p->stack_of);
    sg_free(p->stack_at);
    sg_free(p->by_tensor);
    sg_free(p);
}

/* MLX's rope takes periods, the reciprocals of frequencies. */
static segue_status add_periods(struct sg_program *p, segue_error *err)
{
    struct sg_unit *u = p->base.unit;
    const struct sg_graph *g = p->base.graph;
    for (uint32_t i = 0; i < g->ropes_n; i++) {
        uint32_t n = g->ropes[i].pairs;
        float *periods = sg_alloc(n * sizeof *periods);
        if (!periods) return sg_no_memory("program of mlx", n * sizeof *periods, err);
        for (uint32_t k = 0; k < n; k++) periods[k] = 1.0f / g->ropes[i].inverse[k];
        p->periods[i] = mxc_keep(u->tape, mxc_from(u->tape, periods, MXC_F32, &n, 1));
        sg_free(periods);
    }
    return mlx_status(u, "compile", err);
}

static int is_dense(enum sg_storage s) { return s == SG_F32 || s == SG_F16 || s == SG_BF16; }

/* Quantised matrices of the program that MLX computes with as numbers of the unit's type. */
static void note_converted(struct sg_program *p)
{
    static const char *const names[] = {"f32", "f16", "bf16"};
    uint32_t quantised = 0, converted = 0;
    for (uint32_t t = 0; t < p->base.graph->tensors_n; t++) {
        const struct mlx_weight *w = mlx_weight_of(p, (int32_t)t, MLX_MATRIX);
        if (!w || is_dense(w->tensor->storage)) continue;
        quantised++;
        converted += !w->bits;
    }
    if (!converted) return;
    snprintf(p->converted, sizeof p->converted,
             "no cache; %u of %u quantised matrices were converted to %s: MLX has no exact form of their storage in this type",
             converted, quantised, names[p->type]);
}

static const char *mlx_kept(const struct sg_program *p, const char **why)
{
    *why = p->converted[0] ? p->converted : NULL;
    return NULL;
}

/* Bytes of the matrices that a decoded token reads, and of the values of TYPICAL_TOKENS tokens. */
static void estimate(struct sg_program *p)
{
    const struct sg_graph *g = p->base.graph;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        uint64_t width = g->values[op->out].width;
        if (p->scratch < width * TYPICAL_TOKENS * 4 * sizeof(float)) p->scratch = width * TYPICAL_TOKENS * 4 * sizeof(float);
        if (op->code != SG_OP_LINEAR) continue;
        enum mlx_role role = p->fp32[op->out] ? MLX_MATRIX_FP32 : MLX_MATRIX;
        const struct mlx_weight *w = mlx_weight_of(p, op->u.linear.weight.tensor, role);
        uint64_t bytes = mxc_held_bytes(w->numbers) + mxc_held_bytes(w->scales) + mxc_held_bytes(w->biases);
        p->read_per_token += bytes / w->tensor->rows * op->u.linear.weight.rows;
    }
}

static segue_status compile_one(struct sg_unit *u, const struct sg_graph *g, struct mlx_weights *w, struct sg_program **out,
                                segue_error *err)
{
    SG_TRY(sg_graph_check(g, err));
    for (uint32_t i = 0; i < g->ops_n; i++) SG_TRY(mlx_can(u, g, &g->ops[i], err));
    struct sg_program *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("program of mlx", sizeof *p, err);
    p->base = (struct sg_program_base){&sg_unit_mlx, u, g};
    p->weights = w;
    p->number = ++u->programs;
    p->type = w->type;
    p->step_fits = mlx_step_fits(g);
    for (uint32_t i = 0; i < g->values_n; i++) p->selects |= g->values[i].wanted != 0;
    atomic_fetch_add(&w->refs, 1u);
    p->by_tensor = sg_alloc(((size_t)g->tensors_n * MLX_ROLES + 1) * sizeof *p->by_tensor);
    p->periods = sg_alloc((g->ropes_n + 1) * sizeof *p->periods);
    p->fp32 = sg_alloc((g->values_n + 1) * sizeof *p->fp32);
    p->stack_of = sg_alloc((g->ops_n + 1) * sizeof *p->stack_of);
    p->stack_at = sg_alloc((g->ops_n + 1) * sizeof *p->stack_at);
    int complete = p->by_tensor && p->periods && p->fp32 && p->stack_of && p->stack_at;
    segue_status status = complete ? SEGUE_OK : sg_no_memory("program of mlx", g->tensors_n, err);
    if (status == SEGUE_OK) status = mlx_stacks_find(w, g, p->stack_of, p->stack_at, err);
    if (status == SEGUE_OK) status = add_periods(p, err);
    if (status == SEGUE_OK) status = mlx_segments_new(g, &p->segments, &p->segments_n, err);
    if (status != SEGUE_OK) {
        mlx_discard(p);
        return status;
    }
    for (uint32_t t = 0; t < g->tensors_n; t++)
        for (uint32_t i = 0; i < w->n; i++)
            if (w->list[i].tensor == g->tensors[t]) p->by_tensor[t * MLX_ROLES + w->list[i].role] = &w->list[i];
    for (uint32_t i = 0; i < g->values_n; i++) p->fp32[i] = (uint8_t)mlx_is_fp32(g, (int32_t)i);
    note_converted(p);
    estimate(p);
    *out = p;
    return SEGUE_OK;
}

struct compilation {
    struct sg_unit *unit;
    const struct sg_graph *const *graphs;
    uint32_t n;
    struct sg_program **programs;
    struct mlx_weights *weights;
    segue_status status;
    segue_error *err;
};

/* All weights are added before the first program, because programs point into the list, which is reallocated while it grows. */
static void compile_all(void *arg)
{
    struct compilation *c = arg;
    uint32_t made = 0;
    for (uint32_t i = 0; i < c->n && c->status == SEGUE_OK; i++)
        c->status = mlx_weights_add(c->weights, c->unit, c->graphs[i], c->err);
    for (uint32_t i = 0; i < c->n && c->status == SEGUE_OK; i++)
        c->status = mlx_stacks_add(c->weights, c->unit, c->graphs[i], c->err);
    for (; made < c->n && c->status == SEGUE_OK; made += c->status == SEGUE_OK)
        c->status = compile_one(c->unit, c->graphs[made], c->weights, &c->programs[made], c->err);
    while (c->status != SEGUE_OK && made) mlx_discard(c->programs[--made]);
    mxc_tape_clear(c->unit->tape);
}

static segue_status mlx_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n,
                                const struct sg_weight_cache *keep, struct sg_program **programs, segue_error *err)
{
    (void)keep;
    for (uint32_t i = 0; i < n; i++) SG_TRY(sg_weights_finite(graphs[i], err));
    struct compilation c = {.unit = u, .graphs = graphs, .n = n, .programs = programs, .err = err};
    c.weights = sg_alloc(sizeof *c.weights);
    if (!c.weights) return sg_no_memory("weights of mlx", sizeof *c.weights, err);
    atomic_init(&c.weights->refs, 1u);
    c.weights->type = u->follows ? mlx_prevailing_type(graphs, n, u->type) : u->type;
    mlx_call(u, compile_all, &c);
    mlx_weights_release(c.weights);
    return c.status;
}

static void mlx_footprint(const struct sg_program *p, uint64_t *own, uint64_t *read, uint64_t *scratch)
{
    if (own) *own = p->weights->bytes;
    if (read) *read = p->read_per_token;
    if (scratch) *scratch = p->scratch;
}

const struct sg_unit_ops sg_unit_mlx = {
    .kind = "mlx",
    .list = mlx_list,
    .open = mlx_open,
    .close = mlx_close,
    .describe = mlx_describe,
    .can = mlx_can,
    .compile = mlx_compile,
    .discard = mlx_discard,
    .footprint = mlx_footprint,
    .start = mlx_start,
    .wait = sg_thread_run_end,
    .state_new = mlx_state_new,
    .state_free = mlx_state_free,
    SG_STATE_CORE_MEMBERS,
    .state_bytes = mlx_state_bytes,
    .state_get = mlx_state_get,
    .state_put = sg_state_core_put,
    .state_transfer = mlx_state_transfer,
    .state_attach = mlx_state_attach,
    .kept = mlx_kept,
    .host = mlx_memory_host,
};
