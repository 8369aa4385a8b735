/* cpu.c: the operations table of the cpu unit: open, list, describe, can, compile, footprint, start,
 * wait, stream. Execution of a run is in cpu_run.c, sequence states in cpu_state.c.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "unit/batch.h"
#include "unit/cpu/cpu_train.h"
#include "unit/cpu/cpu_types.h"
#include "unit/cpu/dispatch.h"
#include "unit/spec.h"

enum { TAPS_MAX = 16 };                  /* of a convolution */

extern const struct sg_unit_ops sg_unit_cpu;

/* The unit behind the interface's handle. */
static struct sg_cpu_unit *cpu_unit(struct sg_unit *u) { return (struct sg_cpu_unit *)(void *)u; }

/* Fills the description: the spec that reopens this unit, its features, memory and limits. */
static void desc_fill(struct sg_unit_desc *d, enum sg_isa isa, uint32_t threads)
{
    memset(d, 0, sizeof *d);
    d->info.size = sizeof d->info;
    snprintf(d->info.spec, sizeof d->info.spec, "cpu:isa=%s,threads=%u", sg_isa_name(isa), threads);
    snprintf(d->info.kind, sizeof d->info.kind, "cpu");
    snprintf(d->kernels, sizeof d->kernels, "cpu %s", sg_isa_name(isa));
    for (int i = SG_ISA_GENERIC; i < SG_ISA_N; i++)
        if (sg_isa_present((enum sg_isa)i)) {
            size_t n = strlen(d->info.features);
            snprintf(d->info.features + n, sizeof d->info.features - n, "%s%s", n ? " " : "",
                     sg_isa_name((enum sg_isa)i));
        }
    d->info.built = d->info.present = 1;
    /* installed memory, for the planner; sysconf may not know it */
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) d->info.memory_bytes = (uint64_t)pages * (uint64_t)page;
    /* one stream of runs at a time; tokens are chosen on this unit */
    d->lanes = 1;
    d->rows_max = SG_CPU_ROWS_MAX;
    d->samples = 1;
    d->streams = 1;
}

/* The enum is ordered, so the last instruction set present is the best. */
static enum sg_isa best_isa(void)
{
    enum sg_isa best = SG_ISA_GENERIC;
    for (int i = 0; i < SG_ISA_N; i++)
        if (sg_isa_present((enum sg_isa)i)) best = (enum sg_isa)i;
    return best;
}

/* There is one cpu unit, listed with all its cores. */
static segue_status cpu_list(struct sg_unit_desc *out, size_t cap, size_t *n, segue_error *err)
{
    (void)err;
    if (cap) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        desc_fill(out, best_isa(), cores > 0 ? (uint32_t)cores : 1);
        snprintf(out->info.spec, sizeof out->info.spec, "cpu");
    }
    *n = 1;
    return SEGUE_OK;
}

static void cpu_close(struct sg_unit *unit)
{
    struct sg_cpu_unit *u = cpu_unit(unit);
    if (!u) return;
    sg_thread_run_close(&u->queue);
    sg_pool_close(u->pool);
    pthread_mutex_destroy(&u->work);
    pthread_mutex_destroy(&u->rapl.lock);
    sg_free(u);
}

/* Parses threads=N; 0 when absent, which lets the pool choose. EARG. */
static segue_status threads_of(const struct sg_unit_spec *spec, uint32_t *out, segue_error *err)
{
    const char *text = sg_spec_value(spec, "threads");
    *out = 0;
    if (!text) return SEGUE_OK;
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end || n < 1 || n > 256)
        return sg_fail(err, SEGUE_EARG, "open unit: cpu: threads=%s is not a number from 1 to 256; correct it", text);
    *out = (uint32_t)n;
    return SEGUE_OK;
}

/* Parses invariant=0 or 1; 0 when absent. EARG. */
static segue_status invariant_of(const struct sg_unit_spec *spec, uint32_t *out, segue_error *err)
{
    const char *text = sg_spec_value(spec, "invariant");
    *out = text && !strcmp(text, "1");
    if (!text || *out || !strcmp(text, "0")) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "open unit: cpu: invariant=%s is not 0 or 1; correct it", text);
}

/* Parses products=0 (fp32) or 2 (bf16, as of cuda), of training; the kernels are chosen already. EARG; EUNIT without them. */
static segue_status products_of(const struct sg_unit_spec *spec, struct sg_cpu_unit *u, segue_error *err)
{
    const char *text = sg_spec_value(spec, "products");
    if (!text || !strcmp(text, "0")) return SEGUE_OK;
    if (strcmp(text, "2") != 0)
        return sg_fail(err, SEGUE_EARG, "open unit: cpu: products=%s is not 0 (fp32) or 2 (bf16); correct it", text);
    if (!u->k.gemm_bf16)
        return sg_fail(err, SEGUE_EUNIT,
                       "open unit: cpu: products=2 needs AVX512-BF16, which this processor or isa lacks; omit it");
    u->products_bf16 = 1;
    return SEGUE_OK;
}

/* Options: isa (an instruction set), threads, invariant (results do not depend on the rows of a run), products (of training),
 * powercap (another root of the energy counters), and fault (unit/spec.h). EARG for other keys;
 * EUNIT if the instruction set is missing. */
static segue_status cpu_open(struct sg_unit **out, const struct sg_unit_spec *spec, segue_error *err)
{
    static const char *const keys[] = {"isa", "threads", "invariant", "products", "powercap", "fault", NULL};
    uint32_t threads, invariant;
    struct sg_fault fault;
    SG_TRY(sg_spec_only(spec, keys, err));
    SG_TRY(threads_of(spec, &threads, err));
    SG_TRY(invariant_of(spec, &invariant, err));
    SG_TRY(sg_fault_read(spec, &fault, err));
    struct sg_cpu_unit *u = sg_alloc(sizeof *u);
    if (!u) return sg_no_memory("cpu unit", sizeof *u, err);
    u->base.ops = &sg_unit_cpu;
    sg_run_queue_init(&u->queue);
    pthread_mutex_init(&u->work, NULL);
    pthread_mutex_init(&u->rapl.lock, NULL);
    const char *isa = sg_spec_value(spec, "isa"), *powercap = sg_spec_value(spec, "powercap");
    snprintf(u->rapl.root, sizeof u->rapl.root, "%s", powercap ? powercap : "/sys/class/powercap");
    segue_status status = sg_isa_choose(isa, &u->k, err);
    if (status == SEGUE_OK) status = products_of(spec, u, err);
    if (status == SEGUE_OK) status = sg_pool_open(&u->pool, threads, err);
    if (status != SEGUE_OK) {
        cpu_close((struct sg_unit *)(void *)u);
        return status;
    }
    /* The name in the description: the requested instruction set or the best one. */
    enum sg_isa level = best_isa();
    for (int i = 0; isa && i < SG_ISA_N; i++)
        if (!strcmp(isa, sg_isa_name((enum sg_isa)i))) level = (enum sg_isa)i;
    desc_fill(&u->desc, level, sg_pool_threads(u->pool));
    u->invariant = invariant;
    u->fault = fault;
    u->desc.invariant = invariant ? 2 : 0;
    if (invariant) {
        size_t n = strlen(u->desc.info.spec);
        snprintf(u->desc.info.spec + n, sizeof u->desc.info.spec - n, ",invariant=1");
        snprintf(u->desc.kernels, sizeof u->desc.kernels, "cpu %s invariant", sg_isa_name(level));
    }
    if (u->products_bf16) {
        size_t n = strlen(u->desc.info.spec);
        snprintf(u->desc.info.spec + n, sizeof u->desc.info.spec - n, ",products=2");
    }
    if (fault.op[0]) {
        size_t n = strlen(u->desc.info.spec);
        snprintf(u->desc.info.spec + n, sizeof u->desc.info.spec - n, ",fault=%d.%s", fault.layer, fault.op);
    }
    *out = (struct sg_unit *)(void *)u;
    return SEGUE_OK;
}

static void cpu_describe(const struct sg_unit *unit, struct sg_unit_desc *out)
{
    *out = ((const struct sg_cpu_unit *)(const void *)unit)->desc;
}

static segue_status fail_limit(segue_error *why, const struct sg_op *op, const char *what, uint32_t value,
                           uint32_t max)
{
    return sg_fail(why, SEGUE_EUNSUPPORTED,
                   "compile: cpu: %s of layer %d: %s is %u, the maximum is %u; use another unit", sg_op_name(op->code),
                   op->layer, what, value, max);
}

/* EUNSUPPORTED unless the weight has a storage that can be decoded here. */
static segue_status weight_supported(const struct sg_graph *g, const struct sg_op *op, const struct sg_weight *w,
                               segue_error *why)
{
    if (w->tensor < 0) return SEGUE_OK;
    const struct sg_tensor *t = g->tensors[w->tensor];
    if (sg_storage_info(t->storage)->computable && t->cols <= UINT32_MAX / 64) return SEGUE_OK;
    return sg_fail(why, SEGUE_EUNSUPPORTED,
                   "compile: cpu: %s of layer %d: %s is stored as %s, which is not supported; convert it first",
                   sg_op_name(op->code), op->layer, t->name, sg_storage_info(t->storage)->name);
}

segue_status sg_cpu_can(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op,
                        segue_error *why)
{
    (void)u;
    switch (op->code) {
    case SG_OP_EMBED:
        SG_TRY(weight_supported(g, op, &op->u.embed.table, why));
        return weight_supported(g, op, &op->u.embed.positions, why);
    case SG_OP_LINEAR: return weight_supported(g, op, &op->u.linear.weight, why);
    case SG_OP_EXPERTS:
        SG_TRY(weight_supported(g, op, &op->u.experts.gate, why));
        SG_TRY(weight_supported(g, op, &op->u.experts.up, why));
        return weight_supported(g, op, &op->u.experts.down, why);
    /* rows of wider heads would not fit the conversion buffers */
    case SG_OP_ATTEND:
        if (op->u.attend.d > SG_HEAD_MAX) return fail_limit(why, op, "head width", op->u.attend.d, SG_HEAD_MAX);
        if (op->u.attend.dv > SG_HEAD_MAX) return fail_limit(why, op, "value width", op->u.attend.dv, SG_HEAD_MAX);
        return SEGUE_OK;
    case SG_OP_CONV:
        if (op->u.conv.taps > TAPS_MAX) return fail_limit(why, op, "taps", op->u.conv.taps, TAPS_MAX);
        return SEGUE_OK;
    default:
        if ((unsigned)op->code < SG_OP_JOIN) return SEGUE_OK;
        return sg_fail(why, SEGUE_EUNSUPPORTED, "compile: cpu: op %d of layer %d is unknown; use another unit",
                       (int)op->code, op->layer);
    }
}

/* Frees a program. The packed weights remain until the last program of the set is gone. */
static void cpu_discard(struct sg_program *program)
{
    struct sg_cpu_program *p = (struct sg_cpu_program *)(void *)program;
    if (!p) return;
    sg_cpu_scratch_free(p);
    sg_pack_unref(p->set);
    sg_arena_free(&p->arena);
    sg_free(p);
}

/* For each slot the last stage of the op that writes it: a get beside a run may read the slot after
 * that stage. */
static segue_status slot_stages(struct sg_cpu_program *p, segue_error *err)
{
    uint32_t n = p->base.graph->slots_n;
    p->slot_stage = sg_arena_alloc(&p->arena, n * sizeof *p->slot_stage);
    if (!p->slot_stage) return sg_no_memory("cpu program", n * sizeof *p->slot_stage, err);
    for (uint32_t i = 0; i < p->stages_n; i++) {
        const struct sg_op *op = p->stages[i].op;
        if (!op) continue;
        if (op->code == SG_OP_ATTEND) p->slot_stage[op->u.attend.slot_k] = p->slot_stage[op->u.attend.slot_v] = i;
        if (op->code == SG_OP_CONV) p->slot_stage[op->u.conv.slot] = i;
        if (op->code == SG_OP_DELTA) p->slot_stage[op->u.delta.slot] = i;
    }
    return SEGUE_OK;
}

/* Checks all ops and builds one program; requests its weights from the set. */
static segue_status program_new(struct sg_cpu_unit *u, const struct sg_graph *g, struct sg_pack_set *set,
                                 struct sg_cpu_program **out, segue_error *err)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        SG_TRY(sg_cpu_can((struct sg_unit *)(void *)u, g, &g->ops[i], err));
    struct sg_cpu_program *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("cpu program", sizeof *p, err);
    p->base = (struct sg_program_base){&sg_unit_cpu, (struct sg_unit *)(void *)u, g};
    p->invariant = u->invariant;
    p->set = set;
    atomic_fetch_add(&set->refs, 1u);
    for (uint32_t i = 0; i < g->slots_n; i++)
        p->recurrent |= g->slots[i].kind == SG_SLOT_CONV || g->slots[i].kind == SG_SLOT_DELTA;
    *out = p;                                /* freed by the caller, also on failure */
    SG_TRY(sg_cpu_match(p, err));
    sg_cpu_fault_place(p, &u->fault);
    return slot_stages(p, err);
}

/* Compiles all graphs against one set of packed weights, so that a tensor used by two graphs is packed
 * once. */
static segue_status cpu_compile(struct sg_unit *unit, const struct sg_graph *const *graphs, uint32_t n,
                                const struct sg_weight_cache *cache, struct sg_program **programs, segue_error *err)
{
    struct sg_cpu_unit *u = cpu_unit(unit);
    struct sg_pack_set *set = sg_alloc(sizeof *set);
    if (!set) return sg_no_memory("cpu program", sizeof *set, err);
    atomic_init(&set->refs, 1u);
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < n; i++) programs[i] = NULL;
    for (uint32_t i = 0; i < n && status == SEGUE_OK; i++) {
        struct sg_cpu_program *p = NULL;
        status = program_new(u, graphs[i], set, &p, err);
        programs[i] = (struct sg_program *)(void *)p;
    }
    if (status == SEGUE_OK) {
        /* packing uses the pool, which executes one job at a time */
        pthread_mutex_lock(&u->work);
        status = sg_pack_fill(set, u, graphs, n, cache, err);
        pthread_mutex_unlock(&u->work);
    }
    /* no program is returned unless all compiled */
    for (uint32_t i = 0; i < n && status != SEGUE_OK; i++) {
        cpu_discard(programs[i]);
        programs[i] = NULL;
    }
    sg_pack_unref(set);
    return status;
}

/* Bytes of weights (shared by the set), bytes read per token, bytes of scratch so far. */
static void cpu_footprint(const struct sg_program *program, uint64_t *weights, uint64_t *read,
                          uint64_t *scratch)
{
    const struct sg_cpu_program *p = (const struct sg_cpu_program *)(const void *)program;
    *weights = p->set->bytes;
    *read = p->read_per_token;
    *scratch = p->scratch_bytes;
}

/* How the packed weights were obtained, and why not from the cache. */
static const char *cpu_cache_result(const struct sg_program *program, const char **why)
{
    const struct sg_pack_set *set = ((const struct sg_cpu_program *)(const void *)program)->set;
    *why = set->cache_why.text[0] ? set->cache_why.text : NULL;
    return set->cache_result;
}

static segue_status cpu_meter(struct sg_unit *unit, segue_energy *out, segue_error *err)
{
    return sg_rapl_read(&cpu_unit(unit)->rapl, out, err);
}

/* Measurement of the memory bandwidth that this pool of threads reaches. */

/* Arguments of the bandwidth measurement; items of 128 KB. */
struct bandwidth_read { const struct sg_cpu_unit *u; const uint64_t *data; size_t words; atomic_ullong sum; };
enum { STREAM_WORDS = 1 << 14 };

/* Sums one piece; the result is stored so that the reads are not optimised away. */
static void stream_work(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    struct bandwidth_read *s = arg;
    (void)stage;
    (void)thread;
    size_t from = (size_t)item * STREAM_WORDS,
           n = s->words - from < STREAM_WORDS ? s->words - from : STREAM_WORDS;
    atomic_fetch_add_explicit(&s->sum, s->u->k.sum(s->data + from, n), memory_order_relaxed);
}

/* Best of at least three repetitions, for at least 150 ms; the first only warms the caches and page
 * tables. */
static segue_status cpu_stream(struct sg_unit *unit, uint64_t bytes, double *gb_s, segue_error *err)
{
    struct sg_cpu_unit *u = cpu_unit(unit);
    size_t words = (size_t)(bytes / 8 / 16 * 16);
    if (words < STREAM_WORDS) words = STREAM_WORDS;
    uint64_t *data = sg_alloc_aligned(words * sizeof *data);
    if (!data) return sg_no_memory("stream of the cpu unit", words * sizeof *data, err);
    /* touches every page, so that the first pass does not measure page faults */
    for (size_t i = 0; i < words; i += 64) data[i] = i;
    struct bandwidth_read s = {.u = u, .data = data, .words = words};
    uint32_t items = (uint32_t)((words + STREAM_WORDS - 1) / STREAM_WORDS);
    struct sg_job job = {.items = &items, .stages = 1, .work = stream_work, .arg = &s};
    uint64_t best = UINT64_MAX, start_ns = sg_now_ns();
    pthread_mutex_lock(&u->work);
    for (int i = 0; i < 3 || sg_now_ns() - start_ns < 150000000u; i++) {
        uint64_t from = sg_now_ns();
        sg_pool_run(u->pool, &job);
        uint64_t ns = sg_now_ns() - from;
        if (i && ns < best) best = ns;
    }
    pthread_mutex_unlock(&u->work);
    sg_free_aligned(data);
    *gb_s = (double)(words * sizeof *data) / (double)(best ? best : 1);
    return SEGUE_OK;
}

/* A unit that was opened with invariant=1 stays so. */
static void cpu_compile_invariant(struct sg_unit *unit, uint32_t on)
{
    cpu_unit(unit)->invariant = on || cpu_unit(unit)->desc.invariant;
}

static void cpu_progress(struct sg_unit *unit, const struct sg_progress *progress) { cpu_unit(unit)->progress = progress; }

const struct sg_unit_ops sg_unit_cpu = {
    .kind = "cpu",
    .list = cpu_list,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .can = sg_cpu_can,
    .compile = cpu_compile,
    .discard = cpu_discard,
    .footprint = cpu_footprint,
    .start = sg_cpu_start,
    .wait = sg_thread_run_end,
    .state_new = sg_cpu_state_new,
    .state_free = sg_cpu_state_free,
    SG_STATE_CORE_MEMBERS,
    .state_bytes = sg_cpu_state_bytes,
    .state_get = sg_cpu_state_get,
    .state_put = sg_state_core_put,
    .state_transfer = sg_cpu_state_transfer,
    .state_at = sg_cpu_state_at,
    .stream = cpu_stream,
    .meter = cpu_meter,
    .kept = cpu_cache_result,
    .progress = cpu_progress,
    .compile_invariant = cpu_compile_invariant,
    .train_math = sg_cpu_train_math,
};
