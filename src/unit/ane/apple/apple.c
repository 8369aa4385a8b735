/* apple.c: see apple.h: a device of the private interface, its surfaces and dispatches. Compiles everywhere.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/apple/apple.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "unit/ane/apple/appleparts.h"

enum { READ_ONLY = 1, TRIES = 5, INT64_NUMBER = 4 };

/* Turns an NSError of the service into EUNIT with advice: the first known text found in its
 * description or domain decides. error may be NULL: the service gave no reason. */
segue_status sg_apple_failed(world *w, const char *what, const char *name, void *error, segue_error *err)
{
    static const struct {
        const char *words, *advice;
    } known[] = {{"InvalidMILProgram", "the text breaks a rule; try segue mil check"},
                 {"ANECCompile", "the compiler refuses it; try segue mil check, and again after 15 s"},
                 {"status=0x1d", "a surface has the wrong size, count or order"},
                 {"status=0x2", "a symbol index is wrong for this procedure"},
                 {"must re-compile", "too many programs are loaded; unload some"},
                 {"0xe00002e2", "only what the service compiled loads"},
                 {"0xe00002c7", "the system asks for an entitlement"}};
    const char *text = error ? text_of(w, SEND0(take0, error, "localizedDescription")) : NULL;
    const char *domain = error ? text_of(w, SEND0(take0, error, "domain")) : NULL;
    const char *advice = error ? "see docs/ANE.md"
                               : "no reason was given: the compile budget may be spent; restart the process";
    for (size_t i = 0; text && i < sizeof known / sizeof *known; i++)
        if (strstr(text, known[i].words) || (domain && strstr(domain, known[i].words)))
            advice = known[i].advice;
    return sg_fail(err, SEGUE_EUNIT, "neural engine: %s: %.60s: %.200s; %s", what, name,
                   text ? text : "it said no", advice);
}

/* --- the device --- */

/* Compares the type encoding of every method with the table in apple_api.c before anything is
 * called: a wrong cast would corrupt the call. */
segue_status sg_apple_open(struct sg_ane_device **out, const struct sg_apple_api *w,
                           const struct sg_apple_opts *o, segue_error *err)
{
    struct sg_apple_method m;
    for (size_t i = 0; sg_apple_method_at(w, i, &m); i++) {
        if (!m.found)
            return sg_fail(err, SEGUE_EUNIT,
                           "neural engine: %s %s: not on this system; another version of the system has it",
                           m.class, m.selector);
        if (!m.equal)
            return sg_fail(err, SEGUE_EUNIT,
                           "neural engine: %s %s: its arguments are %.60s, not %s; this system is not known",
                           m.class, m.selector, m.found, m.expected);
    }
    struct sg_ane_device *d = sg_alloc(sizeof *d);
    if (!d) return sg_no_memory("the neural engine", sizeof *d, err);
    d->base.ops = &sg_apple_ops;
    d->w = w;
    if (o) d->o = *o;
    if (!d->o.compile_ns) d->o.compile_ns = 120000000000u;
    if (!d->o.load_ns) d->o.load_ns = 10000000000u;
    if (!d->o.evaluate_ns) d->o.evaluate_ns = 2000000000u;
    if (!d->o.tries) d->o.tries = TRIES;
    segue_status status = sg_ane_profile_named(&d->profile, "ieee", err);
    if (status == SEGUE_OK) status = sg_timed_call_open(&d->worker, err);
    if (status != SEGUE_OK)
        sg_free(d);
    else
        *out = d;
    return status;
}

/* On a lost device the struct is leaked, because the service may still use it. */
static void apple_close(struct sg_ane_device *d)
{
    if (!d) return;
    sg_timed_call_close(d->worker);
    if (!d->lost) sg_free(d);
}

/* Queries _ANEDeviceInfo. Class methods that this system does not have are skipped. */
void sg_apple_describe(const struct sg_apple_api *w, char architecture[32], uint32_t *engines,
                       uint32_t *cores)
{
    void *info = w->class_named("_ANEDeviceInfo"), *pool = w->pool_push();
    architecture[0] = 0;
    *engines = *cores = 0;
    if (info && w->class_method(info, w->selector("aneArchitectureType"))) {
        const char *text = text_of(w, SEND0(take0, info, "aneArchitectureType"));
        if (text && strlen(text) < 32) memcpy(architecture, text, strlen(text) + 1);
    }
    if (info && w->class_method(info, w->selector("numANEs"))) *engines = SEND0(give_u32, info, "numANEs");
    if (info && w->class_method(info, w->selector("numANECores")))
        *cores = SEND0(give_u32, info, "numANECores");
    w->pool_pop(pool);
}

/* Compiler identity for cache keys: architecture and the kernel release, with which the compiler
 * changes. */
static void apple_compiler(const struct sg_ane_device *d, char out[64])
{
    char architecture[32];
    uint32_t engines, cores;
    sg_apple_describe(d->w, architecture, &engines, &cores);
    snprintf(out, 64, "%s %.24s", architecture, d->w->build);
}

static void apple_count(const struct sg_ane_device *d, struct sg_ane_counters *out) { *out = d->c; }

/* Runs on the worker thread inside an autorelease pool. */
static void run_job(void *arg)
{
    struct job *j = arg;
    void *pool = j->d->w->pool_push();
    j->status = j->work(j);
    j->d->w->pool_pop(pool);
}

segue_status sg_apple_ask(const struct job *given, uint64_t limit_ns, const char *what, segue_error *err)
{
    struct sg_ane_device *d = given->d;
    struct job *j = sg_alloc(sizeof *j);
    if (!j) return sg_no_memory("a request to the engine", sizeof *j, err);
    *j = *given;
    if (d->lost || !sg_timed_call_run(d->worker, run_job, j, limit_ns)) {
        if (d->lost) sg_free(j);
        d->lost = 1;
        return sg_fail(
            err, SEGUE_ELOST,
            "neural engine: %s: the service did not answer in time; the unit is lost, use another or restart",
            what);
    }
    segue_status status = j->status;
    if (status != SEGUE_OK && err) *err = j->err;
    sg_free(j);
    return status;
}

/* --- surfaces --- */

/* IOSurfaceCreate for one row of `bytes` one-byte elements. The Core Foundation numbers and the
 * dictionary are released here; the caller owns the surface. */
static void *surface_of(world *w, uint64_t bytes)
{
    int64_t values[6] = {(int64_t)bytes, 1, 1, (int64_t)bytes, (int64_t)bytes, 0};
    const void *keys[6], *numbers[6];
    void *surface = NULL;
    uint32_t n = 0;
    for (; n < 6 && (numbers[n] = w->number(NULL, INT64_NUMBER, &values[n])); n++)
        keys[n] = w->surface_keys[n];
    const void *properties =
        n == 6 ? w->dictionary(NULL, keys, numbers, 6, w->key_calls, w->value_calls) : NULL;
    if (properties) surface = w->surface_create(properties);
    if (properties) w->release(properties);
    while (n) w->release(numbers[--n]);
    return surface;
}

/* On a lost device the surface is leaked: the engine may still write to it. */
static void apple_surface_free(struct sg_ane_surface *s)
{
    if (!s) return;
    world *w = s->base.device->w;
    if (s->base.device->lost) return; /* the engine may still write into it */
    released(w, s->object);
    if (s->surface) w->release(s->surface);
    sg_free(s);
}

/* Makes a zeroed surface and wraps it with +[_ANEIOSurfaceObject objectWithIOSurface:]. The
 * wrapper is autoreleased, so it is retained before the pool is popped. */
static segue_status apple_surface_new(struct sg_ane_device *d, uint64_t bytes, struct sg_ane_surface **out,
                                      segue_error *err)
{
    world *w = d->w;
    uint64_t unit = d->profile.surface_bytes, n = bytes ? (bytes + unit - 1) / unit * unit : unit;
    struct sg_ane_surface *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("a surface", sizeof *s, err);
    s->base = (struct sg_ane_surface_base){&sg_apple_ops, d};
    s->n = n;
    void *pool = w->pool_push(), *start = NULL;
    s->surface = surface_of(w, n);
    if (s->surface)
        s->object = retained(
            w, SEND(take1, w->class_named("_ANEIOSurfaceObject"), "objectWithIOSurface:", s->surface));
    w->pool_pop(pool);
    int locked = s->object && !w->surface_lock(s->surface, 0, NULL);
    if (locked && (start = w->surface_base(s->surface))) memset(start, 0, (size_t)n);
    if (locked) w->surface_unlock(s->surface, 0, NULL);
    if (!start) {
        apple_surface_free(s);
        return sg_fail(err, SEGUE_EMEMORY,
                       "neural engine: a surface of %llu bytes: the system gives none; free memory",
                       (unsigned long long)n);
    }
    *out = s;
    return SEGUE_OK;
}

/* Reads lock with kIOSurfaceLockReadOnly. Locks do not nest here. */
static segue_status apple_lock(struct sg_ane_surface *s, int to_write, void **bytes, uint64_t *n,
                               segue_error *err)
{
    world *w = s->base.device->w;
    if (s->locked)
        return sg_fail(err, SEGUE_EARG, "neural engine: a surface is locked already; unlock it first");
    s->options = to_write ? 0 : READ_ONLY;
    if (w->surface_lock(s->surface, (uint32_t)s->options, NULL) || !(*bytes = w->surface_base(s->surface)))
        return sg_fail(err, SEGUE_EUNIT,
                       "neural engine: locking a surface: the system refuses; restart the process");
    s->locked = 1;
    if (n) *n = s->n;
    return SEGUE_OK;
}

static void apple_unlock(struct sg_ane_surface *s)
{
    if (s->locked) s->base.device->w->surface_unlock(s->surface, (uint32_t)s->options, NULL);
    s->locked = 0;
}

/* --- dispatches --- */

static segue_status apple_ports(struct sg_ane_program *p, uint32_t procedure,
                                const struct sg_ane_port **inputs, uint32_t *inputs_n,
                                const struct sg_ane_port **outputs, uint32_t *outputs_n, segue_error *err)
{
    if (procedure >= p->mil->functions_n)
        return sg_fail(err, SEGUE_EARG, "program: procedure %u: there are %u; give another", procedure,
                       p->mil->functions_n);
    const struct procedure *q = &p->procedures[procedure];
    *inputs = q->in;
    *inputs_n = q->in_n;
    *outputs = q->out;
    *outputs_n = q->out_n;
    return SEGUE_OK;
}

/* Builds the _ANERequest that binds surface objects to symbol indices. The previous request is
 * reused when procedure and surfaces are the same, which is the case from token to token. */
static segue_status make_request(struct job *j)
{
    world *w = j->d->w;
    struct sg_ane_program *p = j->p;
    const struct procedure *q = &p->procedures[j->procedure];
    void *wanted[PORTS_MAX * 2], *objects[PORTS_MAX * 2], *indices[PORTS_MAX * 2];
    uint32_t n = q->in_n + q->out_n;
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_ane_surface *s = i < q->in_n ? j->in[i] : j->out[i - q->in_n];
        const struct sg_ane_port *port = i < q->in_n ? &q->in[i] : &q->out[i - q->in_n];
        if (!s || s->locked || s->n < port->surface_bytes)
            return sg_fail(&j->err, SEGUE_EARG,
                           "neural engine: port %.60s: its surface is missing, locked or too small; bind an "
                           "unlocked one of %llu bytes",
                           port->name, (unsigned long long)port->surface_bytes);
        wanted[i] = s->object;
    }
    if (p->request && p->bound_procedure == j->procedure && p->bound_n == n &&
        !memcmp(wanted, p->bound, n * sizeof *wanted))
        return SEGUE_OK;
    released(w, p->request);
    p->request = NULL;
    for (uint32_t i = 0; i < n; i++) {
        objects[i] = wanted[i];
        indices[i] = number(w, i < q->in_n ? q->in_index[i] : q->out_index[i - q->in_n]);
        if (!indices[i]) return sg_no_memory("a request to the engine", 0, &j->err);
    }
    void *request =
        SEND(take7, w->class_named("_ANERequest"),
             "requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:",
             array(w, objects, q->in_n), array(w, indices, q->in_n), array(w, objects + q->in_n, q->out_n),
             array(w, indices + q->in_n, q->out_n), NULL, NULL, number(w, j->procedure));
    if (!request)
        return sg_fail(
            &j->err, SEGUE_EUNIT,
            "neural engine: making a request: %.60s: the system refuses it; this system is not known",
            p->name);
    p->request = retained(w, request);
    memcpy(p->bound, wanted, n * sizeof *wanted);
    p->bound_n = n;
    p->bound_procedure = j->procedure;
    return SEGUE_OK;
}

/* -[_ANEInMemoryModel evaluateWithQoS:options:request:error:], on the worker thread. */
static segue_status evaluate_job(struct job *j)
{
    world *w = j->d->w;
    void *error = NULL;
    SG_TRY(make_request(j));
    if (!SEND(work_request, j->p->model, "evaluateWithQoS:options:request:error:", QOS, empty(w),
              j->p->request, &error))
        return sg_apple_failed(w, "evaluate", j->p->name, error, &j->err);
    return SEGUE_OK;
}

static segue_status apple_evaluate(struct sg_ane_program *p, uint32_t procedure,
                                   struct sg_ane_surface *const *inputs,
                                   struct sg_ane_surface *const *outputs, segue_error *err)
{
    struct sg_ane_device *d = p->base.device;
    if (procedure >= p->mil->functions_n)
        return sg_fail(err, SEGUE_EARG, "program: procedure %u: there are %u; give another", procedure,
                       p->mil->functions_n);
    SG_TRY(sg_apple_ask(
        &(struct job){
            .d = d, .p = p, .work = evaluate_job, .procedure = procedure, .in = inputs, .out = outputs},
        d->o.evaluate_ns, "evaluate", err));
    const struct procedure *q = &p->procedures[procedure];
    d->c.dispatches++;
    for (uint32_t i = 0; i < q->in_n; i++) d->c.input_bytes += q->in[i].surface_bytes;
    for (uint32_t i = 0; i < q->out_n; i++) d->c.output_bytes += q->out[i].surface_bytes;
    return SEGUE_OK;
}

const struct sg_ane_device_ops sg_apple_ops = {
    .close = apple_close,
    .load = sg_apple_load,
    .unload = sg_apple_unload,
    .reload = sg_apple_reload,
    .ports = apple_ports,
    .surface_new = apple_surface_new,
    .surface_free = apple_surface_free,
    .lock = apple_lock,
    .unlock = apple_unlock,
    .evaluate = apple_evaluate,
    .count = apple_count,
    .compiler = apple_compiler,
    .software = 0,
};
