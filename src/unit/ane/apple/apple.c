/* apple.c: the device of the private interface: opening, surfaces, dispatches. Programs are loaded in
 * appleload.c. This file is built on every system, because all functions of Apple are reached through
 * struct sg_apple_api. See apple.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/apple/apple.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "unit/ane/apple/appleparts.h"

enum {
    READ_ONLY = 1,               /* kIOSurfaceLockReadOnly */
    INT64_NUMBER = 4,            /* kCFNumberSInt64Type */
    TRIES = 5,                   /* attempts to compile, as other users of the interface make */
};

static const struct sg_ane_device_ops apple_ops;

/* --- the device --- */

/* The type encodings of all methods are compared before anything is called: a call through a wrong cast
 * is undefined.
 *
 * Default time limits: small programs compile in 10 to 60 ms, large convolutions in more than a minute;
 * a load takes 2 to 150 ms; an evaluate takes below 1 ms, or about 260 ms after 5 s without work, and
 * may hang for ever when the service fails (constraint 46). The profile "ieee" is used only for the
 * sizes of surfaces. */
segue_status sg_apple_open(struct sg_ane_device **out, const struct sg_apple_api *api,
                           const struct sg_apple_opts *o, segue_error *err)
{
    struct sg_apple_method m;
    for (size_t i = 0; sg_apple_method_at(api, i, &m); i++) {
        if (m.real_time && !(o && o->real_time)) continue;
        if (!m.found)
            return sg_fail(err, SEGUE_EUNIT,
                           "neural engine: %s %s: not on this system; use another version of the system",
                           m.class, m.selector);
        if (!m.equal)
            return sg_fail(err, SEGUE_EUNIT,
                           "neural engine: %s %s: the type encoding is %.60s, expected %s; this version of the system "
                           "is not supported",
                           m.class, m.selector, m.found, m.expected);
    }
    struct sg_ane_device *d = sg_alloc(sizeof *d);
    if (!d) return sg_no_memory("the neural engine", sizeof *d, err);
    d->base.ops = &apple_ops;
    d->api = api;
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

/* The struct of a lost device is leaked: a call that timed out may still use it. */
static void apple_close(struct sg_ane_device *d)
{
    if (!d) return;
    sg_timed_call_close(d->worker);
    if (!d->lost) sg_free(d);
}

/* Queries _ANEDeviceInfo, which is optional: class methods that this system does not have are skipped.
 * Architectures are named after the chip family and its variant: h13g is an M1, h16g an M4. */
void sg_apple_describe(const struct sg_apple_api *api, char architecture[32], uint32_t *engines,
                       uint32_t *cores)
{
    void *info = api->class_named("_ANEDeviceInfo"), *pool = api->pool_push();
    architecture[0] = 0;
    *engines = *cores = 0;
    if (info && api->class_method(info, api->selector("aneArchitectureType"))) {
        const char *text = ns_text(api, SEND0(msg_id, info, "aneArchitectureType"));
        if (text && strlen(text) < 32) memcpy(architecture, text, strlen(text) + 1);
    }
    if (info && api->class_method(info, api->selector("numANEs"))) *engines = SEND0(msg_u32, info, "numANEs");
    if (info && api->class_method(info, api->selector("numANECores")))
        *cores = SEND0(msg_u32, info, "numANECores");
    api->pool_pop(pool);
}

/* Compiler identity for cache keys: architecture and kernel release. The compiler has no version that
 * can be read, but it changes only with the system. */
static void apple_compiler(const struct sg_ane_device *d, char out[64])
{
    char architecture[32];
    uint32_t engines, cores;
    sg_apple_describe(d->api, architecture, &engines, &cores);
    snprintf(out, 64, "%s %.24s", architecture, d->api->build);
}

/* Weights, flops and simulated time stay 0. */
static void apple_count(const struct sg_ane_device *d, struct sg_ane_counters *out) { *out = d->c; }

/* --- surfaces --- */

/* An IOSurface of one row of `bytes` elements of one byte, with pixel format 0: the layout is that of
 * the program, not of an image. The numbers and the dictionary are released here; the caller owns the
 * surface. NULL: out of memory. */
static void *surface_of(const struct sg_apple_api *api, uint64_t bytes)
{
    int64_t values[6] = {(int64_t)bytes, 1, 1, (int64_t)bytes, (int64_t)bytes, 0};
    const void *keys[6], *numbers[6];
    void *surface = NULL;
    uint32_t n = 0;
    for (; n < 6 && (numbers[n] = api->number(NULL, INT64_NUMBER, &values[n])); n++)
        keys[n] = api->surface_keys[n];
    const void *properties =
        n == 6 ? api->dictionary(NULL, keys, numbers, 6, api->key_calls, api->value_calls) : NULL;
    if (properties) surface = api->surface_create(properties);
    if (properties) api->release(properties);
    while (n) api->release(numbers[--n]);
    return surface;
}

/* The surface of a lost device is leaked: the engine may still write to it. */
static void apple_surface_free(struct sg_ane_surface *s)
{
    if (!s) return;
    const struct sg_apple_api *api = s->base.device->api;
    if (s->base.device->lost) return;
    release_object(api, s->object);
    if (s->surface) api->release(s->surface);
    sg_free(s);
}

/* A surface needs +[_ANEIOSurfaceObject objectWithIOSurface:] around it for requests. That object is
 * autoreleased, so it is retained before the pool is popped. */
static segue_status apple_surface_new(struct sg_ane_device *d, uint64_t bytes, struct sg_ane_surface **out,
                                      segue_error *err)
{
    const struct sg_apple_api *api = d->api;
    uint64_t unit = d->profile.surface_bytes, n = bytes ? (bytes + unit - 1) / unit * unit : unit;
    struct sg_ane_surface *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("a surface", sizeof *s, err);
    s->base = (struct sg_ane_surface_base){&apple_ops, d};
    s->n = n;
    void *pool = api->pool_push(), *start = NULL;
    s->surface = surface_of(api, n);
    if (s->surface)
        s->object = retain(
            api, SEND(msg_id_1, api->class_named("_ANEIOSurfaceObject"), "objectWithIOSurface:", s->surface));
    api->pool_pop(pool);
    int locked = s->object && !api->surface_lock(s->surface, 0, NULL);
    if (locked && (start = api->surface_base(s->surface))) memset(start, 0, (size_t)n);
    if (locked) api->surface_unlock(s->surface, 0, NULL);
    if (!start) {
        apple_surface_free(s);
        return sg_fail(err, SEGUE_EMEMORY,
                       "neural engine: a surface of %llu bytes cannot be allocated; free memory",
                       (unsigned long long)n);
    }
    *out = s;
    return SEGUE_OK;
}

/* Locks do not nest. kIOSurfaceLockReadOnly tells the system that the contents do not change; unlock
 * must repeat the option. */
static segue_status apple_lock(struct sg_ane_surface *s, int to_write, void **bytes, uint64_t *n,
                               segue_error *err)
{
    const struct sg_apple_api *api = s->base.device->api;
    if (s->locked)
        return sg_fail(err, SEGUE_EARG, "neural engine: a surface is locked already; unlock it first");
    s->options = to_write ? 0 : READ_ONLY;
    if (api->surface_lock(s->surface, (uint32_t)s->options, NULL) || !(*bytes = api->surface_base(s->surface)))
        return sg_fail(err, SEGUE_EUNIT,
                       "neural engine: a surface cannot be locked; restart the process");
    s->locked = 1;
    if (n) *n = s->n;
    return SEGUE_OK;
}

static void apple_unlock(struct sg_ane_surface *s)
{
    if (s->locked) s->base.device->api->surface_unlock(s->surface, (uint32_t)s->options, NULL);
    s->locked = 0;
}

/* --- dispatches --- */

/* The order is that of declaration in the text; the binding in a request is by symbol index. The order
 * in which a surface is bound is therefore not part of the interface. */
static segue_status apple_ports(struct sg_ane_program *p, uint32_t procedure,
                                const struct sg_ane_port **inputs, uint32_t *inputs_n,
                                const struct sg_ane_port **outputs, uint32_t *outputs_n, segue_error *err)
{
    if (procedure >= p->mil->functions_n)
        return sg_fail(err, SEGUE_EARG, "program: procedure %u of %u does not exist; use a smaller index", procedure,
                       p->mil->functions_n);
    const struct sg_apple_procedure *q = &p->procedures[procedure];
    *inputs = q->in;
    *inputs_n = q->in_n;
    *outputs = q->out;
    *outputs_n = q->out_n;
    return SEGUE_OK;
}

/* Makes the _ANERequest that binds surface objects to symbol indices. The previous request is used
 * again when procedure and surfaces are the same; the two surfaces of a state alternate from token to
 * token, so then it is not. All surfaces are checked first: the engine reports a wrong size only as
 * status 0x1d. */
static segue_status make_request(struct sg_apple_job *j)
{
    const struct sg_apple_api *api = j->d->api;
    struct sg_ane_program *p = j->p;
    const struct sg_apple_procedure *q = &p->procedures[j->procedure];
    /* Inputs first, then outputs, as in p->bound. */
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
    release_object(api, p->request);
    p->request = NULL;
    for (uint32_t i = 0; i < n; i++) {
        objects[i] = wanted[i];
        indices[i] = ns_number(api, i < q->in_n ? q->in_index[i] : q->out_index[i - q->in_n]);
        if (!indices[i]) return sg_no_memory("a request to the engine", 0, &j->err);
    }
    void *request =
        SEND(msg_id_7, api->class_named("_ANERequest"),
             "requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:",
             ns_array(api, objects, q->in_n), ns_array(api, indices, q->in_n), ns_array(api, objects + q->in_n, q->out_n),
             ns_array(api, indices + q->in_n, q->out_n), NULL, NULL, ns_number(api, j->procedure));
    if (!request)
        return sg_fail(
            &j->err, SEGUE_EUNIT,
            "neural engine: making a request: %.60s: the system refuses it; this version of the system is not supported",
            p->name);
    p->request = retain(api, request);
    memcpy(p->bound, wanted, n * sizeof *wanted);
    p->bound_n = n;
    p->bound_procedure = j->procedure;
    return SEGUE_OK;
}

/* On the worker thread. The call returns when the engine has finished. */
static segue_status evaluate_job(struct sg_apple_job *j)
{
    const struct sg_apple_api *api = j->d->api;
    void *error = NULL;
    SG_TRY(make_request(j));
    if (j->d->o.real_time) {
        void *client = SEND0(msg_id, api->class_named("_ANEClient"), "sharedConnection"),
             *model = SEND0(msg_id, j->p->model, "model");
        if (client && model &&
            SEND(msg_real_time, client, "evaluateRealTimeWithModel:options:request:error:", model, ns_empty_dictionary(api),
                 j->p->request, &error))
            return SEGUE_OK;
        return sg_apple_failed(api, "real-time evaluate", j->p->name, error, &j->err);
    }
    if (!SEND(msg_evaluate, j->p->model, "evaluateWithQoS:options:request:error:", QOS, ns_empty_dictionary(api),
              j->p->request, &error))
        return sg_apple_failed(api, "evaluate", j->p->name, error, &j->err);
    return SEGUE_OK;
}

/* A procedure that does not exist is refused here, since the worker indexes p->procedures with it. */
static segue_status apple_evaluate(struct sg_ane_program *p, uint32_t procedure,
                                   struct sg_ane_surface *const *inputs,
                                   struct sg_ane_surface *const *outputs, segue_error *err)
{
    struct sg_ane_device *d = p->base.device;
    if (procedure >= p->mil->functions_n)
        return sg_fail(err, SEGUE_EARG, "program: procedure %u of %u does not exist; use a smaller index", procedure,
                       p->mil->functions_n);
    SG_TRY(sg_apple_call(
        &(struct sg_apple_job){
            .d = d, .p = p, .work = evaluate_job, .procedure = procedure, .in = inputs, .out = outputs},
        d->o.evaluate_ns, "evaluate", err));
    const struct sg_apple_procedure *q = &p->procedures[procedure];
    d->c.dispatches++;
    for (uint32_t i = 0; i < q->in_n; i++) d->c.input_bytes += q->in[i].surface_bytes;
    for (uint32_t i = 0; i < q->out_n; i++) d->c.output_bytes += q->out[i].surface_bytes;
    return SEGUE_OK;
}

static const struct sg_ane_device_ops apple_ops = {
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
