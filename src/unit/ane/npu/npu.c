/* npu.c: see npu.h: the device behind device.h: budgets, surfaces, programs, dispatches. What a program
 * computes stands in npu_plan.h's handlers. SPDX-License-Identifier: MIT */
#include "unit/ane/npu/npu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/npu/npu_plan.h"
#include "unit/ane/rules/rules.h"

enum { NPU_VERSION = 2 }; /* raised when a text that was accepted may be refused, or the other way round */

/* One simulated process. memory holds the values of the running program, work the scratch of its
 * handlers; both grow and are reused, because a device runs one call at a time. */
struct sg_ane_device {
    struct sg_ane_device_base base;
    struct sg_npu_opts o;
    struct sg_pool *pool;
    const struct sg_npu_kernels *k;
    struct sg_ane_counters c;
    uint64_t compiles_tried, evaluates_tried, compiles_left, restarts;
    uint32_t resting;     /* compiles still refused after a failed one */
    struct sg_npu_weight_cache shelf; /* weights that programs share */
    float *memory, *work; /* of the program at work; grown */
    size_t memory_floats, work_floats;
};

/* A parsed program with one plan for each function (a procedure of the device interface). */
struct sg_ane_program {
    struct sg_ane_program_base base;
    struct sg_mil_program *mil;
    struct sg_npu_plan *plans; /* [mil->functions_n] */
};

/* n is rounded up to the surface unit of the profile. locked counts nested locks. */
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
    if (!d) return sg_no_memory("the software engine", sizeof *d, err);
    d->base.ops = &npu_ops;
    d->o = *o;
    if (!d->o.compiles) d->o.compiles = o->profile.compiles;
    if (!d->o.loads) d->o.loads = o->profile.loads;
    d->compiles_left = d->o.compiles;
    d->k = sg_npu_kernels_here();
    segue_status status = sg_pool_open(&d->pool, o->threads, err);
    if (status != SEGUE_OK)
        sg_free(d);
    else
        *out = d;
    return status;
}

static void npu_close(struct sg_ane_device *d)
{
    if (!d) return;
    sg_pool_close(d->pool);
    sg_free_aligned(d->memory);
    sg_free_aligned(d->work);
    sg_free(d);
}

segue_status sg_npu_restart(struct sg_ane_device *d, segue_error *err)
{
    if (d->c.loaded)
        return sg_fail(err, SEGUE_EARG,
                       "software engine: restart: %llu programs are loaded; unload them first",
                       (unsigned long long)d->c.loaded);
    d->compiles_left = d->o.compiles;
    d->resting = 0;
    d->restarts++;
    return SEGUE_OK;
}

uint64_t sg_npu_restarts(const struct sg_ane_device *d) { return d->restarts; }
const struct sg_mil_program *sg_npu_program_of(const struct sg_ane_program *p) { return p->mil; }

/* Identity of the compiler for cache keys. */
static void npu_compiler(const struct sg_ane_device *d, char out[64])
{
    snprintf(out, 64, "software %d%s", NPU_VERSION, d->o.faithful ? " faithful" : "");
}

static void npu_count(const struct sg_ane_device *d, struct sg_ane_counters *out)
{
    *out = d->c;
    out->packed_bytes = d->shelf.bytes;
}

static void simulate_ns(struct sg_ane_device *d, double ns) { d->c.simulated_ns += (uint64_t)ns; }

/* --- loading --- */

/* Charges one compile before the text is read. Errors: EUNIT while the service refuses after a
 * failure (constraint 40), ELIMIT when the budget is spent (constraint 5), EUNIT for a failure
 * requested by fail_compile. */
static segue_status spend_compile(struct sg_ane_device *d, const char *name, segue_error *err)
{
    d->compiles_tried++;
    if (d->resting) {
        d->resting--;
        return sg_fail(err, SEGUE_EUNIT,
                       "compile: %.60s: constraint 40: the service restarts after a failed compile; try "
                       "again after 15 s",
                       name);
    }
    if (!d->compiles_left)
        return sg_fail(err, SEGUE_ELIMIT,
                       "compile: %.60s: constraint 5: %u compiles of this process are spent; save, restart "
                       "the process, and "
                       "load compiled programs from the cache",
                       name, d->o.compiles);
    d->compiles_left--;
    d->c.compiles++;
    simulate_ns(d, d->o.profile.compile_ms * 1e6);
    if (d->o.fail_compile && d->compiles_tried == d->o.fail_compile) {
        d->resting = d->o.rest;
        return sg_fail(err, SEGUE_EUNIT,
                       "compile: %.60s: _ANECompiler : ANECCompile() FAILED: err=(); try again", name);
    }
    return SEGUE_OK;
}

/* Records what a function will do wrong at run time in faithful mode. */
static void show(struct sg_npu_symptoms *s, enum sg_ane_symptom symptom)
{
    if (symptom == SG_ANE_ZEROS) s->zeros = 1;
    if (symptom == SG_ANE_LAST_ONLY) s->last_only = 1;
    if (symptom == SG_ANE_HANGS) s->hangs = 1;
    if (symptom == SG_ANE_FAILS) s->fails = "status=0x1d : statusType=0x9: Program Inference error";
    if (symptom == SG_ANE_INVALID) s->fails = "InvalidMILProgram";
}

/* Decides on the findings of the checker. In refuse mode each one is an error. In faithful mode
 * only those that the real compiler reports are errors; a crash of the compiler service is an
 * error and makes it refuse further compiles; the others become symptoms of all functions. */
static segue_status judge(struct sg_ane_device *d, struct sg_ane_program *p,
                          const struct sg_mil_faults *faults, const char *name, segue_error *err)
{
    struct sg_mil_faults refused = {0};
    int crashes = 0;
    if (!d->o.faithful || !faults->refusals) return sg_mil_faults_fail(faults, name, err);
    for (uint32_t i = 0; i < faults->n; i++) {
        const struct sg_mil_fault *f = &faults->list[i];
        if (f->advice) continue;
        const struct sg_ane_rule *rule = sg_ane_rule_find(f->constraint);
        enum sg_ane_symptom symptom = rule ? rule->symptom : SG_ANE_REFUSES;
        struct sg_mil_loc at = {f->line, f->column, f->constraint, 0, f->op};
        if (symptom == SG_ANE_REFUSES) sg_mil_fault_add(&refused, &at, "%s", f->text);
        crashes |= symptom == SG_ANE_CRASHES;
        for (uint32_t k = 0; k < p->mil->functions_n; k++) show(&p->plans[k].shows, symptom);
    }
    segue_status status =
        faults->dropped ? sg_mil_faults_fail(faults, name, err) : sg_mil_faults_fail(&refused, name, err);
    sg_mil_faults_free(&refused);
    if (status != SEGUE_OK || !crashes) return status;
    d->resting = d->o.rest ? d->o.rest : 1;
    return sg_fail(err, SEGUE_EUNIT,
                   "compile: %.60s: constraint 35: the compiler's service ended; see segue mil check", name);
}

/* base.device is NULL for a program that was never counted as loaded. */
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

/* Parses, checks and plans a program. sg_npu_plan_make clears the plan, so the symptoms are saved
 * around the call. */
static segue_status make_program(struct sg_ane_device *d, struct sg_ane_program *p,
                                 const struct sg_ane_source *s, segue_error *err)
{
    struct sg_mil_faults faults = {0};
    SG_TRY(sg_mil_parse(&p->mil, s->text, s->text_bytes, s->name, NULL, err));
    p->plans = sg_alloc(p->mil->functions_n * sizeof *p->plans);
    if (!p->plans) return sg_no_memory("a program", 0, err);
    static const struct sg_ane_file none;
    sg_ane_check(p->mil, &d->o.profile, s->files ? s->files : &none, s->files_n, &faults);
    segue_status status = judge(d, p, &faults, s->name, err);
    sg_mil_faults_free(&faults);
    for (uint32_t i = 0; status == SEGUE_OK && i < p->mil->functions_n; i++) {
        struct sg_npu_symptoms shows = p->plans[i].shows;
        status = sg_npu_plan_make(&p->plans[i], p->mil, &p->mil->functions[i], &d->o.profile, s,
                                  &d->shelf, d->o.faithful != 0, err);
        p->plans[i].shows = shows;
    }
    return status;
}

/* A cached source costs no compile. The load budget (constraint 6) is checked after the program
 * was made. */
static segue_status npu_load(struct sg_ane_device *d, const struct sg_ane_source *s,
                             struct sg_ane_program **out, segue_error *err)
{
    if (!s->cached) SG_TRY(spend_compile(d, s->name, err));
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

/* Constraint 8: weights stay as compiled unless the device was opened with delta: in silence when faithful. */
static segue_status keep_weights(const struct sg_ane_device *d, const struct sg_npu_plan *was,
                                 const struct sg_npu_plan *made, segue_error *err)
{
    const char *name = d->o.faithful ? NULL : sg_npu_plan_differs(was, made);
    return name ? sg_fail(err, SEGUE_EUNSUPPORTED,
                          "reload: constraint 8 (op %.60s): its weights stay as compiled; compile again, or give "
                          "weights as inputs",
                          name)
                : SEGUE_OK;
}

/* Replaces the blob files of a loaded program. Without the delta option the new plans only serve
 * the comparison of constraint 8 and are freed; with it they replace the old ones. Shared packed
 * weights are not used here (cache NULL). */
static segue_status npu_reload(struct sg_ane_program *p, const struct sg_ane_file *files, uint32_t files_n,
                               segue_error *err)
{
    struct sg_ane_device *d = p->base.device;
    struct sg_mil_faults faults = {0};
    sg_ane_check_blobs(p->mil, files, files_n, &faults);
    segue_status status = sg_mil_faults_fail(&faults, "reload", err);
    sg_mil_faults_free(&faults);
    for (uint32_t i = 0; status == SEGUE_OK && i < p->mil->functions_n; i++) {
        struct sg_npu_plan made;
        status = sg_npu_plan_make(&made, p->mil, &p->mil->functions[i], &d->o.profile,
                                  &(struct sg_ane_source){.files = files, .files_n = files_n},
                                  NULL, d->o.faithful != 0, err);
        if (status != SEGUE_OK) break;
        made.shows = p->plans[i].shows;
        if (!d->o.delta) status = keep_weights(d, &p->plans[i], &made, err);
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

/* Zeroed memory, at least one surface unit. */
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

static segue_status npu_ports(struct sg_ane_program *p, uint32_t procedure, const struct sg_ane_port **inputs,
                              uint32_t *inputs_n, const struct sg_ane_port **outputs, uint32_t *outputs_n,
                              segue_error *err)
{
    if (procedure >= p->mil->functions_n)
        return sg_fail(err, SEGUE_EARG, "program: procedure %u: there are %u; give another", procedure,
                       p->mil->functions_n);
    const struct sg_npu_plan *plan = &p->plans[procedure];
    *inputs = plan->inputs;
    *outputs = plan->outputs;
    *inputs_n = plan->f->params_n;
    *outputs_n = plan->f->returns_n;
    return SEGUE_OK;
}

/* Checks of the surfaces at evaluate: present, unlocked, large enough (constraint 1), a whole
 * number of units (43), and of equal size where the profile asks for it (2). */
static segue_status check_surfaces(const struct sg_ane_device *d, const struct sg_ane_port *ports, uint32_t n,
                                   struct sg_ane_surface *const *surfaces, segue_error *err)
{
    const char *status = "evaluate: status=0x1d : statusType=0x9: Program Inference error";
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_ane_surface *s = surfaces[i];
        uint64_t row, needed;
        if (!s) return sg_fail(err, SEGUE_EARG, "evaluate: port %s has no surface; bind one", ports[i].name);
        if (s->locked)
            return sg_fail(err, SEGUE_EARG, "evaluate: the surface of %s is locked; unlock it first",
                           ports[i].name);
        sg_ane_port_sizes(&ports[i].type, &d->o.profile, &row, &needed);
        if (s->n < needed)
            return sg_fail(
                err, SEGUE_EUNIT,
                "%s: constraint 1: the surface of %s has %llu bytes, %llu are needed; allocate more", status,
                ports[i].name, (unsigned long long)s->n, (unsigned long long)needed);
        if (s->n % d->o.profile.surface_bytes)
            return sg_fail(err, SEGUE_EUNIT,
                           "%s: constraint 43: the surface of %s has %llu bytes, not whole %u; allocate more",
                           status, ports[i].name, (unsigned long long)s->n, d->o.profile.surface_bytes);
        if (i && d->o.profile.equal_sizes && s->n != surfaces[0]->n)
            return sg_fail(
                err, SEGUE_EUNIT,
                "%s: constraint 2: surfaces of %llu and %llu bytes; make all as large as the largest", status,
                (unsigned long long)surfaces[0]->n, (unsigned long long)s->n);
    }
    return SEGUE_OK;
}

/* Elements per row (the last dimension), and the number of rows. */
static uint64_t row_places(const struct sg_mil_type *t, uint64_t *rows)
{
    uint64_t width = t->rank ? (uint64_t)t->dim[t->rank - 1] : 1;
    *rows = sg_mil_elements(t) / width;
    return width;
}

/* Converts a surface to fp32 values. Each row begins at a multiple of row_bytes; values are
 * packed. */
static void read_surface(struct sg_npu_run *r, const struct sg_ane_port *port, const struct sg_ane_surface *s,
                         uint32_t value)
{
    uint64_t rows, width = row_places(&port->type, &rows);
    float *out = sg_npu_data(r, value);
    for (uint64_t i = 0; i < rows; i++, out += width) {
        const uint8_t *row = s->bytes + i * port->row_bytes;
        for (uint64_t k = 0; port->type.dtype != SG_MIL_FP16 && k < width; k++)
            out[k] = port->type.dtype == SG_MIL_FP32   ? sg_f32_of_bits(sg_le32(row + 4 * k))
                     : port->type.dtype == SG_MIL_INT8 ? (float)(int8_t)row[k]
                     : port->type.dtype == SG_MIL_BOOL ? (float)(row[k] != 0)
                                                       : (float)row[k];
        if (port->type.dtype == SG_MIL_FP16) r->k->widen((const uint16_t *)(const void *)row, out, width);
        for (uint64_t k = 0; r->profile->nan_to_infinity && k < width; k++)
            if (out[k] != out[k]) {
                out[k] = INFINITY;
                atomic_fetch_or_explicit(&r->flags, SG_NPU_MADE_NAN, memory_order_relaxed);
            }
    }
}

/* Writes a result to its surface. All other bytes are filled with fp16 NaN (0x7e00), so that code
 * that reads padding is detected. zeros: the symptom of an output that the engine never writes. */
static void write_surface(struct sg_npu_run *r, const struct sg_ane_port *port, struct sg_ane_surface *s,
                          uint32_t value, int zeros)
{
    uint64_t rows, width = row_places(&port->type, &rows);
    const float *in = sg_npu_data(r, value);
    for (uint64_t i = 0; i + 1 < s->n; i += 2) {
        s->bytes[i] = 0x00;
        s->bytes[i + 1] = 0x7e;
    }
    for (uint64_t i = 0; i < rows; i++, in += width) {
        uint8_t *row = s->bytes + i * port->row_bytes;
        uint32_t each = sg_mil_dtype_info((enum sg_mil_dtype)port->type.dtype)->bits / 8u;
        if (zeros)
            memset(row, 0, width * each);
        else if (port->type.dtype == SG_MIL_FP16)
            r->k->narrow(in, (uint16_t *)(void *)row, width);
        else if (port->type.dtype == SG_MIL_FP32)
            memcpy(row, in, width * sizeof *in);
        else
            for (uint64_t k = 0; k < width; k++)
                memcpy(row + each * k, &(int32_t){(int32_t)in[k]}, each < 4 ? each : 4);
    }
}

/* In refuse mode, turns what the last operation recorded into an error that names the constraint.
 * Clears the flags. */
static segue_status check_flags(struct sg_npu_run *r, const char *op, segue_error *err)
{
    unsigned met = atomic_exchange(&r->flags, 0);
    if (r->faithful || !met) return SEGUE_OK;
    if (met & SG_NPU_MAC_LIMIT)
        return sg_fail(
            err, SEGUE_EUNSUPPORTED,
            "evaluate: constraint 30 (op %.60s): a product of %u or more becomes infinite; scale weights or "
            "activations by a power of two",
            op, r->profile->mac_limit);
    if (met & SG_NPU_SLICE_LIMIT)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "evaluate: constraint 29 (op %.60s): values above %u become infinite in a slice of "
                       "the last axis; "
                       "slice the channels, or scale before",
                       op, r->profile->slice_limit);
    return sg_fail(
        err, SEGUE_EUNSUPPORTED,
        "evaluate: numerics 4.2 (op %.60s): a result %s, which an engine hides; keep values finite", op,
        met & SG_NPU_MADE_NAN ? "is not a number" : "is beyond fp16's 65504");
}

/* Runs the operations in program order. */
static segue_status run_plan(struct sg_npu_run *r, segue_error *err)
{
    const struct sg_mil_function *f = r->plan->f;
    for (uint32_t o = 0; o < f->ops_n; o++) {
        if (!r->plan->handlers[o]) continue;
        SG_TRY(r->plan->handlers[o](r, &f->ops[o]));
        SG_TRY(check_flags(r, f->values[f->ops[o].first].name, err));
    }
    return SEGUE_OK;
}

/* Faults requested by the options, then symptoms of faithful mode. ELOST stands for a call that
 * never returns. */
static segue_status injected(struct sg_ane_device *d, const struct sg_npu_plan *plan, segue_error *err)
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
    if (plan->shows.hangs)
        return sg_fail(err, SEGUE_ELOST, "evaluate: %.60s: it did not return within 2 s; see segue mil check",
                       plan->f->name);
    if (plan->shows.fails)
        return sg_fail(err, SEGUE_EUNIT, "evaluate: %.60s: %s; see segue mil check", plan->f->name,
                       plan->shows.fails);
    return SEGUE_OK;
}

/* Adds the simulated time of a dispatch: the fixed cost plus the larger of compute time and memory
 * time. */
static void account(struct sg_ane_device *d, const struct sg_npu_plan *plan)
{
    const struct sg_ane_profile *p = &d->o.profile;
    double compute = (double)plan->flops / (p->tflops * 1e3); /* ns */
    double memory =
        (double)plan->weight_bytes / p->weight_gb_s + (double)plan->activation_bytes / p->activation_gb_s;
    d->c.dispatches++;
    d->c.flops += plan->flops;
    d->c.weight_bytes += plan->weight_bytes;
    for (uint32_t i = 0; i < plan->f->params_n; i++) d->c.input_bytes += plan->inputs[i].surface_bytes;
    for (uint32_t i = 0; i < plan->f->returns_n; i++) d->c.output_bytes += plan->outputs[i].surface_bytes;
    simulate_ns(d, p->dispatch_us * 1e3 + (compute > memory ? compute : memory));
}

/* Grows the value memory of the device; its contents are lost. */
static segue_status ready_memory(struct sg_ane_device *d, uint64_t floats, segue_error *err)
{
    if (floats <= d->memory_floats) return SEGUE_OK;
    sg_free_aligned(d->memory);
    d->memory_floats = 0;
    d->memory = sg_alloc_aligned((size_t)floats * sizeof *d->memory);
    if (!d->memory) return sg_no_memory("a program's values", (size_t)floats * sizeof *d->memory, err);
    d->memory_floats = (size_t)floats;
    return SEGUE_OK;
}

/* Checks surfaces, converts inputs to fp32, runs the plan, and writes the outputs. */
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
    SG_TRY(injected(d, plan, err));
    SG_TRY(ready_memory(d, plan->memory + 16, err));
    struct sg_npu_run r = {.program = p->mil,
                           .plan = plan,
                           .profile = &d->o.profile,
                           .k = d->k,
                           .pool = d->pool,
                           .memory = d->memory,
                           .work = &d->work,
                           .work_floats = &d->work_floats,
                           .faithful = d->o.faithful != 0,
                           .err = err};
    r.tidy = d->o.profile.undefined_to_zero || d->o.profile.unsigned_zero;
    for (uint32_t i = 0; i < in_n; i++) {
        read_surface(&r, &in[i], inputs[i], plan->input_values[i]);
        SG_TRY(check_flags(&r, in[i].name, err));
    }
    SG_TRY(run_plan(&r, err));
    const char *last = plan->f->values[plan->f->returns[out_n - 1]].name;
    for (uint32_t i = 0; i < out_n; i++)
        write_surface(&r, &out[i], outputs[i], plan->output_values[i],
                      plan->shows.zeros || (plan->shows.last_only && strcmp(out[i].name, last) != 0));
    account(d, plan);
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
    .software = 1,
};
