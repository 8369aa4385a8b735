/* npu.c: the device of the software NPU: budgets, loading, surfaces, dispatches, symptoms and
 * simulated time. What operations compute is in the handlers of npu_plan.h. Numbers of constraints
 * refer to the table in docs/ANE.md. See npu.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/npu/npu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/npu/npu_plan.h"
#include "unit/ane/rules/rules.h"

enum { NPU_VERSION = 3 };        /* part of cache keys; raised when the checks accept or refuse other texts than before */

/* One simulated process. `memory` has the values of the running program, `scratch` the temporary data
 * of its handlers. Both grow and are used again, because a device runs one call at a time. */
struct sg_ane_device {
    struct sg_ane_device_base base;
    struct sg_npu_opts o;
    struct sg_pool *pool;
    const struct sg_npu_kernels *k;
    struct sg_npu_tables tables;
    struct sg_ane_counters c;
    struct sg_ane_losses losses;
    uint64_t compiles_tried, evaluates_tried;       /* for fault injection */
    uint64_t compiles_left, restarts;
    uint32_t broken;                    /* 1: every evaluate fails (constraint 54) */
    uint32_t refusals_left;             /* compiles that are still refused after a failed one (constraint 40) */
    struct sg_npu_weight_cache weight_cache;        /* packed weights that programs share */
    float *memory, *scratch;
    size_t memory_floats, scratch_floats;
};

/* A parsed program with one plan per function. A function is a procedure of the device interface. */
struct sg_ane_program {
    struct sg_ane_program_base base;
    struct sg_mil_program *mil;
    struct sg_npu_plan *plans; /* [mil->functions_n] */
};

/* n: bytes, a multiple of the surface unit of the profile. locked: number of nested locks. */
struct sg_ane_surface {
    struct sg_ane_surface_base base;
    uint8_t *bytes;
    uint64_t n;
    uint32_t locked;
};

static const struct sg_ane_device_ops npu_ops;

/* --- the device --- */

segue_status sg_npu_open(struct sg_ane_device **out, const struct sg_npu_opts *o, segue_error *err)
{
    struct sg_ane_device *d = sg_alloc(sizeof *d);
    if (!d) return sg_no_memory("the software NPU", sizeof *d, err);
    d->base.ops = &npu_ops;
    d->o = *o;
    if (!d->o.compiles) d->o.compiles = o->profile.compiles;
    if (!d->o.loads) d->o.loads = o->profile.loads;
    d->compiles_left = d->o.compiles;
    sg_npu_tables_make(&d->tables);
    d->k = sg_npu_kernels_here();    /* sets of instructions differ in the last bit of fp32 only */
    segue_status status = sg_pool_open(&d->pool, o->threads, err);
    if (status != SEGUE_OK)
        sg_free(d);
    else
        *out = d;
    return status;
}

/* Programs and surfaces were freed by the caller. */
static void npu_close(struct sg_ane_device *d)
{
    if (!d) return;
    sg_pool_close(d->pool);
    sg_free_aligned(d->memory);
    sg_free_aligned(d->scratch);
    sg_free(d);
}

/* The counters are not reset. */
segue_status sg_npu_restart(struct sg_ane_device *d, segue_error *err)
{
    if (d->c.loaded)
        return sg_fail(err, SEGUE_EARG,
                       "software NPU: restart: %llu programs are loaded; unload them first",
                       (unsigned long long)d->c.loaded);
    d->compiles_left = d->o.compiles;
    d->refusals_left = d->broken = 0;
    d->restarts++;
    return SEGUE_OK;
}

uint64_t sg_npu_restarts(const struct sg_ane_device *d) { return d->restarts; }
const struct sg_mil_program *sg_npu_program_of(const struct sg_ane_program *p) { return p->mil; }

/* Faithful mode accepts texts that refuse mode does not. */
static void npu_compiler(const struct sg_ane_device *d, char out[64])
{
    snprintf(out, 64, "software %d%s", NPU_VERSION, d->o.faithful ? " faithful" : "");
}

static void npu_count(const struct sg_ane_device *d, struct sg_ane_counters *out)
{
    *out = d->c;
    out->packed_bytes = d->weight_cache.bytes;
}

static void npu_losses(struct sg_ane_device *d, struct sg_ane_losses *out)
{
    *out = d->losses;
    d->losses = (struct sg_ane_losses){0};
}

/* Fractions of a ns are dropped. */
static void simulate_ns(struct sg_ane_device *d, double ns) { d->c.simulated_ns += (uint64_t)ns; }

/* --- loading --- */

/* Counts one compile, before the text is read: a failed compile costs as much of the budget. EUNIT: the
 * service still refuses after a failure (constraint 40), or fail_compile. ELIMIT: the budget is used up
 * (constraint 5). */
static segue_status count_compile(struct sg_ane_device *d, const char *name, segue_error *err)
{
    d->compiles_tried++;
    if (d->refusals_left) {
        d->refusals_left--;
        return sg_fail(err, SEGUE_EUNIT,
                       "compile: %.60s: constraint 40: the service restarts after a failed compile; try "
                       "again after 15 s",
                       name);
    }
    if (!d->compiles_left)
        return sg_fail(err, SEGUE_ELIMIT,
                       "compile: %.60s: constraint 5: the %u compiles of this process are used up; save, restart the "
                       "process, and load compiled programs from the cache",
                       name, d->o.compiles);
    d->compiles_left--;
    d->c.compiles++;
    simulate_ns(d, d->o.profile.compile_ms * 1e6);
    if (d->o.fail_compile && d->compiles_tried == d->o.fail_compile) {
        d->refusals_left = d->o.refusals;
        return sg_fail(err, SEGUE_EUNIT,
                       "compile: %.60s: _ANECompiler : ANECCompile() FAILED: err=(); try again", name);
    }
    return SEGUE_OK;
}

/* Records what a function does wrong when it runs. Symptoms of the compiler are handled by
 * decide_faults. */
static void add_symptom(struct sg_npu_symptoms *s, enum sg_ane_symptom symptom)
{
    if (symptom == SG_ANE_ZEROS) s->zeros = 1;
    if (symptom == SG_ANE_LAST_ONLY) s->last_only = 1;
    if (symptom == SG_ANE_HANGS) s->hangs = 1;
    if (symptom == SG_ANE_BREAKS) s->breaks = 1;
    if (symptom == SG_ANE_FAILS) s->fails = "status=0x1d : statusType=0x9: Program Inference error";
    if (symptom == SG_ANE_INVALID) s->fails = "InvalidMILProgram";
}

/* Decides what the findings of the checker lead to. Refuse mode: each finding that is not advice is an
 * error. Faithful mode: what the compiler of the chip refuses is an error; what crashes its service is
 * an error, and the service refuses compiles for a while; everything else becomes a symptom of all
 * functions. If findings were dropped for lack of space, all are errors. */
static segue_status decide_faults(struct sg_ane_device *d, struct sg_ane_program *p,
                          const struct sg_mil_faults *faults, const char *name, segue_error *err)
{
    struct sg_mil_faults refused = {0};
    int crashes = 0;
    if (!d->o.faithful || !faults->refusals) return sg_mil_faults_fail(faults, name, err);
    for (uint32_t i = 0; i < faults->n; i++) {
        const struct sg_mil_fault *f = &faults->list[i];
        if (f->advice) continue;
        /* A finding without a rule is an error of types or syntax, which every compiler refuses. */
        const struct sg_ane_rule *rule = sg_ane_rule_find(f->constraint);
        enum sg_ane_symptom symptom = rule ? rule->symptom : SG_ANE_REFUSES;
        struct sg_mil_loc at = {f->line, f->column, f->constraint, 0, f->op};
        if (symptom == SG_ANE_REFUSES) sg_mil_fault_add(&refused, &at, "%s", f->text);
        crashes |= symptom == SG_ANE_CRASHES;
        for (uint32_t k = 0; k < p->mil->functions_n; k++) add_symptom(&p->plans[k].symptoms, symptom);
    }
    segue_status status =
        faults->dropped ? sg_mil_faults_fail(faults, name, err) : sg_mil_faults_fail(&refused, name, err);
    sg_mil_faults_free(&refused);
    if (status != SEGUE_OK || !crashes) return status;
    d->refusals_left = d->o.refusals ? d->o.refusals : 1;
    return sg_fail(err, SEGUE_EUNIT,
                   "compile: %.60s: constraint 35: the compiler service crashed; run segue mil check", name);
}

/* base.device is NULL in a program whose load failed: it was not counted as loaded. */
static void npu_unload(struct sg_ane_program *p)
{
    if (!p) return;
    for (uint32_t i = 0; p->plans && i < p->mil->functions_n; i++) sg_npu_plan_free(&p->plans[i]);
    sg_free(p->plans);
    sg_mil_program_free(p->mil);
    if (p->base.device) {
        p->base.device->c.loaded--;
        p->base.device->c.unloads++;
    }
    sg_free(p);
}

/* Parses, checks and plans a program. sg_npu_plan_make clears the plan, so the symptoms found before
 * are set again. */
static segue_status make_program(struct sg_ane_device *d, struct sg_ane_program *p,
                                 const struct sg_ane_source *s, segue_error *err)
{
    struct sg_mil_faults faults = {0};
    SG_TRY(sg_mil_parse(&p->mil, s->text, s->text_bytes, s->name, NULL, err));
    p->plans = sg_alloc(p->mil->functions_n * sizeof *p->plans);
    if (!p->plans) return sg_no_memory("a program", 0, err);
    /* The checker needs an array even when there are no files. */
    static const struct sg_ane_file none;
    sg_ane_check(p->mil, &d->o.profile, s->files ? s->files : &none, s->files_n, &faults);
    segue_status status = decide_faults(d, p, &faults, s->name, err);
    sg_mil_faults_free(&faults);
    for (uint32_t i = 0; status == SEGUE_OK && i < p->mil->functions_n; i++) {
        struct sg_npu_symptoms symptoms = p->plans[i].symptoms;
        status = sg_npu_plan_make(&p->plans[i], p->mil, &p->mil->functions[i], &d->o.profile, s,
                                  &d->weight_cache, d->o.faithful || d->o.profile.blobs_unchecked, err);
        p->plans[i].symptoms = symptoms;
    }
    return status;
}

/* A cached source costs no compile. The budget of loads (constraint 6) is checked after the program was
 * made. */
static segue_status npu_load(struct sg_ane_device *d, const struct sg_ane_source *s,
                             struct sg_ane_program **out, segue_error *err)
{
    if (!s->cached) SG_TRY(count_compile(d, s->name, err));
    struct sg_ane_program *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("a program", sizeof *p, err);
    p->base.ops = &npu_ops;
    segue_status status = make_program(d, p, s, err);
    if (status == SEGUE_OK && d->c.loaded >= d->o.loads)
        status = sg_fail(
            err, SEGUE_ELIMIT,
            "load: %.60s: constraint 6: %u programs are loaded (GetANEFModel: must re-compile); unload some",
            s->name, d->o.loads);
    if (status != SEGUE_OK) {
        npu_unload(p);
        return status;
    }
    p->base.device = d;
    d->c.loads++;
    d->c.loaded++;
    simulate_ns(d, d->o.profile.load_ms * 1e6);
    *out = p;
    return SEGUE_OK;
}

/* Constraint 8: weights stay as compiled unless the device was opened with delta. A chip ignores the
 * change without an error, and so does faithful mode. */
static segue_status check_weights_unchanged(const struct sg_ane_device *d, const struct sg_npu_plan *before,
                                           const struct sg_npu_plan *after, segue_error *err)
{
    const char *name = d->o.faithful ? NULL : sg_npu_plan_differs(before, after);
    return name ? sg_fail(err, SEGUE_EUNSUPPORTED,
                          "reload: constraint 8 (op %.60s): its weights stay as compiled; compile again, or pass "
                          "weights as inputs",
                          name)
                : SEGUE_OK;
}

/* Makes new plans from the new blob files. Without the delta option they are only compared with the old
 * ones (constraint 8) and freed; with it they replace the old ones. They share no packed weights: the
 * cache is keyed by the compiled weights. */
static segue_status npu_reload(struct sg_ane_program *p, const struct sg_ane_file *files, uint32_t files_n,
                               segue_error *err)
{
    struct sg_ane_device *d = p->base.device;
    struct sg_mil_faults faults = {0};
    sg_ane_check_blobs(p->mil, &p->base.device->o.profile, files, files_n, &faults);
    segue_status status = sg_mil_faults_fail(&faults, "reload", err);
    sg_mil_faults_free(&faults);
    for (uint32_t i = 0; status == SEGUE_OK && i < p->mil->functions_n; i++) {
        struct sg_npu_plan made;
        status = sg_npu_plan_make(&made, p->mil, &p->mil->functions[i], &d->o.profile,
                                  &(struct sg_ane_source){.files = files, .files_n = files_n},
                                  NULL, d->o.faithful || d->o.profile.blobs_unchecked, err);
        if (status != SEGUE_OK) break;
        made.symptoms = p->plans[i].symptoms;
        if (!d->o.delta) status = check_weights_unchanged(d, &p->plans[i], &made, err);
        sg_npu_plan_free(d->o.delta ? &p->plans[i] : &made);
        if (d->o.delta) p->plans[i] = made;
    }
    if (status == SEGUE_OK) {
        d->c.loads++;
        d->c.unloads++;
        simulate_ns(d, d->o.profile.load_ms * 1e6);
    }
    return status;
}

/* --- surfaces --- */

/* At least one surface unit, zeroed. */
static segue_status npu_surface_new(struct sg_ane_device *d, uint64_t bytes, struct sg_ane_surface **out,
                                    segue_error *err)
{
    uint64_t unit = d->o.profile.surface_bytes, n = (bytes + unit - 1) / unit * unit;
    struct sg_ane_surface *s = sg_alloc(sizeof *s);
    if (!n) n = unit;
    if (s && n < SIZE_MAX / 2) s->bytes = sg_alloc_aligned((size_t)n);
    if (!s || !s->bytes) {
        sg_free(s);
        return sg_no_memory("a surface", (size_t)n, err);
    }
    s->base = (struct sg_ane_surface_base){&npu_ops, d};
    s->n = n;
    *out = s;
    return SEGUE_OK;
}

static void npu_surface_free(struct sg_ane_surface *s)
{
    if (!s) return;
    sg_free_aligned(s->bytes);
    sg_free(s);
}

/* Locks nest; reading and writing are the same here. */
static segue_status npu_lock(struct sg_ane_surface *s, int to_write, void **bytes, uint64_t *n,
                             segue_error *err)
{
    (void)to_write;
    (void)err;
    s->locked++;
    *bytes = s->bytes;
    if (n) *n = s->n;
    return SEGUE_OK;
}

static void npu_unlock(struct sg_ane_surface *s)
{
    if (s->locked) s->locked--;
}

/* --- dispatches --- */

/* The ports belong to the plan; a reload with delta replaces them. */
static segue_status npu_ports(struct sg_ane_program *p, uint32_t procedure, const struct sg_ane_port **inputs,
                              uint32_t *inputs_n, const struct sg_ane_port **outputs, uint32_t *outputs_n,
                              segue_error *err)
{
    if (procedure >= p->mil->functions_n)
        return sg_fail(err, SEGUE_EARG, "program: procedure %u of %u does not exist; use a smaller index", procedure,
                       p->mil->functions_n);
    const struct sg_npu_plan *plan = &p->plans[procedure];
    *inputs = plan->inputs;
    *outputs = plan->outputs;
    *inputs_n = plan->f->params_n;
    *outputs_n = plan->f->returns_n;
    return SEGUE_OK;
}

/* Checks the surfaces of an evaluate: bound, unlocked, large enough (constraint 1), a multiple of the
 * surface unit (43), and all of one size if the profile requires it (2). An engine reports the last
 * three only as status 0x1d. */
static segue_status check_surfaces(const struct sg_ane_device *d, const struct sg_ane_port *ports, uint32_t n,
                                   struct sg_ane_surface *const *surfaces, segue_error *err)
{
    const char *status = "evaluate: status=0x1d : statusType=0x9: Program Inference error";
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_ane_surface *s = surfaces[i];
        uint64_t row, needed;
        if (!s) return sg_fail(err, SEGUE_EARG, "evaluate: port %s has no surface; bind one", ports[i].name);
        if (s->locked)
            return sg_fail(err, SEGUE_EARG, "evaluate: port %s: its surface is locked; unlock it first",
                           ports[i].name);
        sg_ane_port_sizes(&ports[i].type, &d->o.profile, &row, &needed);
        if (s->n < needed)
            return sg_fail(
                err, SEGUE_EUNIT,
                "%s: constraint 1: the surface of %s has %llu bytes, %llu are needed; allocate more", status,
                ports[i].name, (unsigned long long)s->n, (unsigned long long)needed);
        if (s->n % d->o.profile.surface_bytes)
            return sg_fail(err, SEGUE_EUNIT,
                           "%s: constraint 43: the surface of %s has %llu bytes, not a multiple of %u; allocate more",
                           status, ports[i].name, (unsigned long long)s->n, d->o.profile.surface_bytes);
        if (i && d->o.profile.equal_sizes && s->n != surfaces[0]->n)
            return sg_fail(
                err, SEGUE_EUNIT,
                "%s: constraint 2: surfaces of %llu and %llu bytes; make all as large as the largest", status,
                (unsigned long long)surfaces[0]->n, (unsigned long long)s->n);
    }
    return SEGUE_OK;
}

/* Refuse mode: what the last operation recorded becomes an error that names the constraint. The flags
 * are cleared. */
static segue_status check_flags(struct sg_npu_run *r, const char *op, segue_error *err)
{
    unsigned flags = atomic_exchange(&r->flags, 0);
    if (r->faithful || !flags) return SEGUE_OK;
    if (flags & SG_NPU_MAC_LIMIT)
        return sg_fail(
            err, SEGUE_EUNSUPPORTED,
            "evaluate: constraint 30 (op %.60s): a product of %u or more becomes infinite; scale weights or "
            "activations by a power of two",
            op, r->profile->mac_limit);
    if (flags & SG_NPU_SLICE_LIMIT)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "evaluate: constraint 29 (op %.60s): values above %u become infinite in a slice of "
                       "the last axis; "
                       "slice the channels, or scale first",
                       op, r->profile->slice_limit);
    return sg_fail(
        err, SEGUE_EUNSUPPORTED,
        "evaluate: numerics 4.2 (op %.60s): a result %s, which an engine hides; keep values finite", op,
        flags & SG_NPU_MADE_NAN ? "is not a number" : "exceeds 65504, the largest fp16 number");
}

/* Runs the operations in the order of the text and checks the flags after each, so that an error names
 * the operation. */
static segue_status run_plan(struct sg_npu_run *r, segue_error *err)
{
    const struct sg_mil_function *f = r->plan->f;
    for (uint32_t o = 0; o < f->ops_n; o++) {
        if (!r->plan->handlers[o]) continue;
        SG_TRY(r->plan->handlers[o](r, &f->ops[o]));
        if (r->plan->fault != SG_MIL_NONE && f->values[r->plan->fault].op == o) sg_npu_alter(r, r->plan->fault);
        sg_npu_count_losses(r, o);
        SG_TRY(check_flags(r, f->values[f->ops[o].first].name, err));
    }
    return SEGUE_OK;
}

/* Faults that the options inject, then symptoms that prevent the run. A call that would never return
 * gives ELOST at once. */
static segue_status injected_fault(struct sg_ane_device *d, const struct sg_npu_plan *plan, segue_error *err)
{
    d->evaluates_tried++;
    if (d->o.fail_evaluate && d->evaluates_tried == d->o.fail_evaluate)
        return sg_fail(err, SEGUE_EUNIT,
                       "evaluate: %.60s: ANEProgramProcessRequestDirect() Failed; try again", plan->f->name);
    if (d->o.hang_evaluate && d->evaluates_tried == d->o.hang_evaluate)
        return sg_fail(
            err, SEGUE_ELOST,
            "evaluate: %.60s: constraint 46: it did not return within 2 s; the unit is lost, use another",
            plan->f->name);
    if (d->broken)
        return sg_fail(err, SEGUE_EUNIT,
                       "evaluate: %.60s: status=0x1d : constraint 54: a program with tile has run in this process; restart it",
                       plan->f->name);
    if (plan->symptoms.hangs)
        return sg_fail(err, SEGUE_ELOST, "evaluate: %.60s: it did not return within 2 s; run segue mil check",
                       plan->f->name);
    if (plan->symptoms.fails)
        return sg_fail(err, SEGUE_EUNIT, "evaluate: %.60s: %s; run segue mil check", plan->f->name,
                       plan->symptoms.fails);
    return SEGUE_OK;
}

/* Adds the simulated time of a dispatch: a fixed cost plus the larger of compute time and memory time,
 * as in aneshape.c. Units: flops / (Tflop/s * 1e3) is ns, bytes / (GB/s) is ns. */
static void count_dispatch(struct sg_ane_device *d, const struct sg_npu_plan *plan)
{
    const struct sg_ane_profile *p = &d->o.profile;
    double int8 = p->int8_tflops > 0 ? p->int8_tflops : p->tflops;
    /* ns */
    double compute = (double)(plan->flops - plan->int8_flops) / (p->tflops * 1e3) + (double)plan->int8_flops / (int8 * 1e3);
    double memory =
        (double)plan->weight_bytes / p->weight_gb_s + (double)plan->activation_bytes / p->activation_gb_s;
    d->c.dispatches++;
    d->c.flops += plan->flops;
    d->c.weight_bytes += plan->weight_bytes;
    for (uint32_t i = 0; i < plan->f->params_n; i++) d->c.input_bytes += plan->inputs[i].surface_bytes;
    for (uint32_t i = 0; i < plan->f->returns_n; i++) d->c.output_bytes += plan->outputs[i].surface_bytes;
    simulate_ns(d, p->dispatch_us * 1e3 + (compute > memory ? compute : memory));
}

/* Grows the memory for values; its contents are lost. */
static segue_status grow_memory(struct sg_ane_device *d, uint64_t floats, segue_error *err)
{
    if (floats <= d->memory_floats) return SEGUE_OK;
    sg_free_aligned(d->memory);
    d->memory_floats = 0;
    d->memory = sg_alloc_aligned((size_t)floats * sizeof *d->memory);
    if (!d->memory) return sg_no_memory("a program's values", (size_t)floats * sizeof *d->memory, err);
    d->memory_floats = (size_t)floats;
    return SEGUE_OK;
}

/* Checks the surfaces, converts the inputs to fp32, runs the plan, writes the outputs. 16 spare floats
 * allow a vector access after the last value. */
static segue_status npu_evaluate(struct sg_ane_program *p, uint32_t procedure,
                                 struct sg_ane_surface *const *inputs, struct sg_ane_surface *const *outputs,
                                 segue_error *err)
{
    struct sg_ane_device *d = p->base.device;
    const struct sg_ane_port *in = NULL, *out = NULL;
    uint32_t in_n = 0, out_n = 0;
    SG_TRY(npu_ports(p, procedure, &in, &in_n, &out, &out_n, err));
    const struct sg_npu_plan *plan = &p->plans[procedure];
    SG_TRY(check_surfaces(d, in, in_n, inputs, err));
    SG_TRY(check_surfaces(d, out, out_n, outputs, err));
    SG_TRY(injected_fault(d, plan, err));
    SG_TRY(grow_memory(d, plan->memory + 16, err));
    struct sg_npu_run r = {.program = p->mil,
                           .plan = plan,
                           .profile = &d->o.profile,
                           .k = d->k,
                           .tables = d->o.profile.tables ? &d->tables : NULL,
                           .pool = d->pool,
                           .memory = d->memory,
                           .scratch = &d->scratch,
                           .scratch_floats = &d->scratch_floats,
                           .faithful = d->o.faithful != 0,
                           .wide = d->o.wide != 0,
                           .losses = &d->losses,
                           .err = err};
    /* The pass over each result is skipped for profiles with the arithmetic of IEEE. */
    r.engine_math = d->o.profile.undefined_to_zero || d->o.profile.unsigned_zero;
    for (uint32_t i = 0; i < in_n; i++) {
        sg_npu_read_port(&r, &in[i], inputs[i]->bytes, plan->input_values[i]);
        SG_TRY(check_flags(&r, in[i].name, err));
    }
    SG_TRY(run_plan(&r, err));
    /* The symptom last_only needs the name of the last output: ports are sorted by name. */
    const char *last = plan->f->values[plan->f->returns[out_n - 1]].name;
    for (uint32_t i = 0; i < out_n; i++)
        sg_npu_write_port(&r, &out[i], outputs[i]->bytes, outputs[i]->n, plan->output_values[i],
                          plan->symptoms.zeros || (plan->symptoms.last_only && strcmp(out[i].name, last) != 0));
    d->broken |= plan->symptoms.breaks;
    count_dispatch(d, plan);
    return SEGUE_OK;
}

static const struct sg_ane_device_ops npu_ops = {
    .close = npu_close,
    .load = npu_load,
    .unload = npu_unload,
    .reload = npu_reload,
    .ports = npu_ports,
    .surface_new = npu_surface_new,
    .surface_free = npu_surface_free,
    .lock = npu_lock,
    .unlock = npu_unlock,
    .evaluate = npu_evaluate,
    .count = npu_count,
    .compiler = npu_compiler,
    .losses = npu_losses,
    .software = 1,
};
