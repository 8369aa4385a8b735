/* ref.c: the table of the unit `ref`, its description, and compile, which finds the last use of each value.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "unit/batch.h"
#include "unit/ref/ref.h"
#include "unit/finite.h"
#include "unit/spec.h"
#include "unit/group/group.h"

enum { DEFAULT_THREADS = 2, THREADS_MAX = 64, TYPICAL_TOKENS = 512 };

extern const struct sg_unit_ops sg_unit_ref;

/* The description of every ref unit; open replaces the spec. */
static void describe_one(struct sg_unit_desc *d)
{
    *d = (struct sg_unit_desc){.lanes = 1, .samples = 1, .reference = 1, .streams = 1, .invariant = 2};
    d->info.size = sizeof d->info;
    d->info.built = d->info.present = 1;
    snprintf(d->info.spec, sizeof d->info.spec, "ref");
    snprintf(d->info.kind, sizeof d->info.kind, "ref");
    snprintf(d->kernels, sizeof d->kernels, "ref");
    snprintf(d->info.features, sizeof d->info.features, "fp32, plain C: the specification, slow");
}

static segue_status ref_list(struct sg_unit_desc *out, size_t cap, size_t *n, segue_error *err)
{
    (void)err;
    if (cap) describe_one(out);
    *n = 1;
    return SEGUE_OK;
}

/* Value of threads=N. Two by default, which leaves CPUs for the unit that is compared with ref. */
static segue_status threads_of(const struct sg_unit_spec *spec, uint32_t *threads, segue_error *err)
{
    const char *text = sg_spec_value(spec, "threads");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *threads = cores > 1 ? DEFAULT_THREADS : 1;
    if (!text) return SEGUE_OK;
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || !n || n > THREADS_MAX)
        return sg_fail(err, SEGUE_EARG, "open unit: %s: threads=%s; use 1 to %d", spec->text, text,
                       THREADS_MAX);
    *threads = (uint32_t)n;
    return SEGUE_OK;
}

/* ranks=N: a group of N ref units with the other keys of the spec; the reference for groups of GPUs. */
static segue_status open_ranks(struct sg_unit **out, const struct sg_unit_spec *spec, const char *text, segue_error *err)
{
    struct sg_unit *units[SG_RANKS_MAX];
    struct sg_unit_spec one = *spec;
    uint32_t ranks = text[0] >= '2' && text[0] <= '8' && !text[1] ? (uint32_t)(text[0] - '0') : 0, n = 0;
    if (!ranks) return sg_fail(err, SEGUE_EARG, "open unit: %s: ranks=%s; use 2 to 8", spec->text, text);
    for (one.pairs_n = 0; one.pairs_n < spec->pairs_n && strcmp(spec->pairs[one.pairs_n].key, "ranks"); one.pairs_n++) {}
    for (uint32_t i = one.pairs_n; i + 1 < spec->pairs_n; i++) one.pairs[one.pairs_n++] = spec->pairs[i + 1];
    segue_status status = SEGUE_OK;
    for (; n < ranks && status == SEGUE_OK; n++) status = sg_unit_ref.open(&units[n], &one, err);
    if (status == SEGUE_OK) return sg_group_open(out, units, ranks, spec->text, err);
    for (n--; n;) sg_unit_ref.close(units[--n]);
    return status;
}

/* With ranks=N the result is a group. */
static segue_status ref_open(struct sg_unit **out, const struct sg_unit_spec *spec, segue_error *err)
{
    static const char *const keys[] = {"threads", "ranks", "fault", NULL};
    uint32_t threads;
    SG_TRY(sg_spec_only(spec, keys, err));
    SG_TRY(threads_of(spec, &threads, err));
    if (sg_spec_value(spec, "ranks")) return open_ranks(out, spec, sg_spec_value(spec, "ranks"), err);
    struct sg_unit *u = sg_alloc(sizeof *u);
    if (!u) return sg_no_memory("unit ref", sizeof *u, err);
    u->base.ops = &sg_unit_ref;
    u->threads = threads;
    segue_status status = sg_fault_read(spec, &u->fault, err);
    if (status != SEGUE_OK) {
        sg_free(u);
        return status;
    }
    describe_one(&u->desc);
    snprintf(u->desc.info.spec, sizeof u->desc.info.spec, "%s", spec->text);
    *out = u;
    return SEGUE_OK;
}

static void ref_close(struct sg_unit *u) { sg_free(u); }

static void ref_describe(const struct sg_unit *u, struct sg_unit_desc *out) { *out = u->desc; }

/* ref supports every valid op. */
static segue_status ref_can(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op,
                            segue_error *why)
{
    (void)u;
    return sg_op_check(g, (uint32_t)(op - g->ops), why);
}

/* --- compile --- */

/* Bytes of the rows that an op uses. */
static uint64_t weight_bytes(const struct sg_graph *g, const struct sg_weight *w)
{
    if (w->tensor < 0) return 0;
    const struct sg_tensor *t = g->tensors[w->tensor];
    return t->bytes / t->rows * w->rows;
}

/* Bytes read per decoded token: each linear once, one row of embeddings, k of the experts. */
static uint64_t read_per_token(const struct sg_graph *g)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        const struct sg_experts *e = &op->u.experts;
        if (op->code == SG_OP_LINEAR) bytes += weight_bytes(g, &op->u.linear.weight);
        if (op->code == SG_OP_EMBED) bytes += weight_bytes(g, &op->u.embed.table) / op->u.embed.table.rows;
        if (op->code == SG_OP_EXPERTS)
            bytes += (weight_bytes(g, &e->gate) + weight_bytes(g, &e->up) + weight_bytes(g, &e->down)) /
                     e->experts * e->k;
    }
    return bytes;
}

/* Fills last_use; returns the maximum of the summed widths of live values. */
static uint64_t find_last_uses(const struct sg_graph *g, uint32_t *last_use)
{
    uint64_t live = 0, max = 0;
    int32_t logits = sg_graph_output(g, "logits");
    for (uint32_t i = 0; i < g->ops_n; i++) {
        last_use[g->ops[i].out] = i;
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (g->ops[i].in[k].value >= 0) last_use[g->ops[i].in[k].value] = i;
    }
    if (logits >= 0) last_use[g->outputs[logits].value] = UINT32_MAX;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        live += g->values[g->ops[i].out].width;
        if (live > max) max = live;
        for (uint32_t v = 0; v < g->values_n; v++)
            if (last_use[v] == i && g->values[v].op >= 0) live -= g->values[v].width;
    }
    return max;
}

static void ref_discard(struct sg_program *p)
{
    if (!p) return;
    sg_free(p->last_use);
    sg_free(p);
}

/* The graph is checked here because it may come from another process. */
static segue_status compile_one(struct sg_unit *u, const struct sg_graph *g, struct sg_program **out,
                                segue_error *err)
{
    SG_TRY(sg_graph_check(g, err));
    struct sg_program *p = sg_alloc(sizeof *p);
    uint32_t *last_use = sg_alloc(g->values_n * sizeof *last_use);
    if (!p || !last_use) {
        sg_free(p);
        sg_free(last_use);
        return sg_no_memory("program of ref", g->values_n * sizeof *last_use, err);
    }
    p->base = (struct sg_program_base){&sg_unit_ref, u, g};
    p->last_use = last_use;
    p->fault = sg_fault_op(&u->fault, g);
    p->live_cols_max = find_last_uses(g, last_use);
    p->read_per_token = read_per_token(g);
    *out = p;
    return SEGUE_OK;
}

/* Weights are not prepared, so the cache is not used. */
static segue_status ref_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n,
                                const struct sg_weight_cache *keep, struct sg_program **programs, segue_error *err)
{
    (void)keep;
    for (uint32_t i = 0; i < n; i++) {
        segue_status status = sg_weights_finite(graphs[i], err);
        if (status == SEGUE_OK) status = compile_one(u, graphs[i], &programs[i], err);
        if (status == SEGUE_OK) continue;
        while (i) ref_discard(programs[--i]);
        return status;
    }
    return SEGUE_OK;
}

/* Weights stay in the mapped file; scratch is an estimate for TYPICAL_TOKENS tokens. */
static void ref_footprint(const struct sg_program *p, uint64_t *own, uint64_t *read, uint64_t *scratch)
{
    if (own) *own = 0;
    if (read) *read = p->read_per_token;
    if (scratch) *scratch = p->live_cols_max * sizeof(float) * TYPICAL_TOKENS;
}

const struct sg_unit_ops sg_unit_ref = {
    .kind = "ref",
    .list = ref_list,
    .open = ref_open,
    .close = ref_close,
    .describe = ref_describe,
    .can = ref_can,
    .compile = ref_compile,
    .discard = ref_discard,
    .footprint = ref_footprint,
    .start = ref_start,
    .wait = sg_thread_run_end,
    .state_new = ref_state_new,
    .state_free = ref_state_free,
    SG_STATE_CORE_MEMBERS,
    .state_bytes = ref_state_bytes,
    .state_get = ref_state_get,
    .state_rows = ref_state_rows,
    .state_put = sg_state_core_put,
    .train_math = ref_train_math,
};
