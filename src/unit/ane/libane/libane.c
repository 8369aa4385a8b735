/* libane.c: the device of libane. A network of the library has buffers of its own, so surfaces are host memory that is copied in
 * and out at each dispatch. See libane.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/libane/libane.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "unit/ane/apple/applefiles.h"
#include "unit/ane/apple/timed_call.h"
#include "unit/ane/libane/anec.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/rules/rules.h"

#define EVALUATE_NS 2000000000u      /* an evaluate takes milliseconds; the driver may wait for ever */

struct sg_ane_device {
    struct sg_ane_device_base base;
    struct sg_libane_api api;
    struct sg_ane_profile profile;   /* "ieee": sizes of rows and surfaces */
    struct sg_ane_counters c;
    struct sg_timed_call *worker;
    char *folder;
    int lost;
};

/* One side of a program. channel[i]: the library's index of port i, the rank of its name. */
struct port_side {
    struct sg_ane_port ports[SG_ANEC_CHANNELS];
    uint32_t channel[SG_ANEC_CHANNELS], n;
};
struct sg_ane_program {
    struct sg_ane_program_base base;
    struct sg_mil_program *mil;      /* names and types */
    void *network;
    struct port_side in, out;
    int result, error;               /* of the last ane_exec: its value and errno */
};
struct sg_ane_surface {
    struct sg_ane_surface_base base;
    uint8_t *bytes;
    uint64_t n;
    uint32_t locked;
};

static const struct sg_ane_device_ops libane_ops;

/* --- the device --- */

/* The worker of a lost device uses the device and the program for ever; both are leaked. */
static void libane_close(struct sg_ane_device *d)
{
    if (!d) return;
    sg_timed_call_close(d->worker);
    if (d->lost) return;
    sg_free(d->folder);
    sg_free(d);
}

segue_status sg_libane_open(struct sg_ane_device **out, const struct sg_libane_api *api, const char *folder, segue_error *err)
{
    struct sg_ane_device *d = sg_alloc(sizeof *d);
    if (!d) return sg_no_memory("the neural engine", sizeof *d, err);
    d->base.ops = &libane_ops;
    d->api = *api;
    d->folder = sg_strndup(folder, strlen(folder));
    segue_status status = d->folder ? sg_make_folders(folder, err) : sg_no_memory("a path", strlen(folder), err);
    if (status == SEGUE_OK) status = sg_ane_profile_named(&d->profile, "ieee", err);
    if (status == SEGUE_OK) status = sg_timed_call_open(&d->worker, err);
    if (status != SEGUE_OK) {
        sg_free(d->folder);
        sg_free(d);
        return status;
    }
    *out = d;
    return SEGUE_OK;
}

/* Programs come from a folder of compiled files, so the cache has nothing to tell apart. */
static void libane_compiler(const struct sg_ane_device *d, char out[64])
{
    (void)d;
    snprintf(out, 64, "libane");
}

static void libane_count(const struct sg_ane_device *d, struct sg_ane_counters *out) { *out = d->c; }

/* --- programs --- */

/* Names in alphabetical order are the order in which Apple's compiler numbers inputs and outputs. */
static void number_ports(struct port_side *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < s->n; k++) s->channel[i] += strcmp(s->ports[k].name, s->ports[i].name) < 0;
}

static segue_status list_ports(struct sg_ane_program *p, struct port_side *s, const uint32_t *values, uint32_t n,
                               segue_error *err)
{
    const struct sg_mil_function *f = &p->mil->functions[0];
    if (n > SG_ANEC_CHANNELS)
        return sg_fail(err, SEGUE_ELIMIT, "load: more than %d inputs or outputs; pack them", SG_ANEC_CHANNELS);
    s->n = n;
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_mil_value *v = &f->values[values ? values[i] : i];
        s->ports[i] = (struct sg_ane_port){.name = v->name, .type = v->type};
        sg_ane_port_sizes(&v->type, &p->base.device->profile, &s->ports[i].row_bytes, &s->ports[i].surface_bytes);
    }
    number_ports(s);
    return SEGUE_OK;
}

static segue_status read_text(struct sg_ane_program *p, const struct sg_ane_source *s, segue_error *err)
{
    struct sg_mil_faults faults = {0};
    SG_TRY(sg_mil_parse(&p->mil, s->text, s->text_bytes, s->name, NULL, err));
    sg_mil_check_types(p->mil, &faults);
    segue_status status = sg_mil_faults_fail(&faults, s->name, err);
    sg_mil_faults_free(&faults);
    if (status != SEGUE_OK) return status;
    const struct sg_mil_function *f = &p->mil->functions[0];
    if (p->mil->functions_n != 1)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "load: %.60s: a compiled file has one function; write one text for each",
                       s->name);
    SG_TRY(list_ports(p, &p->in, NULL, f->params_n, err));
    return list_ports(p, &p->out, f->returns, f->returns_n, err);
}

/* Name of the compiled form: text, and paths and bytes of all weights. */
static void hash_source(const struct sg_ane_source *s, char hex[33])
{
    struct sg_hash h = sg_hash_bytes(s->text, s->text_bytes, 0);
    for (uint32_t i = 0; i < s->files_n; i++) {
        h = sg_hash_join(h, sg_hash_bytes(s->files[i].path, strlen(s->files[i].path), 1));
        h = sg_hash_join(h, sg_hash_bytes(s->files[i].data, s->files[i].bytes, 2));
    }
    sg_hash_hex(h, hex);
}

/* Writes what a compiler needs to make the missing file. */
static segue_status write_request(const struct sg_ane_device *d, const struct sg_ane_source *s, const char *hex, segue_error *err)
{
    char *folder = sg_path_join(d->folder, hex);
    segue_status status = folder ? sg_apple_files_write(folder, s, err) : sg_no_memory("a path", 0, err);
    if (status == SEGUE_OK)
        status = sg_fail(err, SEGUE_EUNIT, "load: %.60s: %.200s.anec does not exist; compile %.200s/model.mil for this chip and "
                                           "write it there", s->name, folder, folder);
    sg_free(folder);
    return status;
}

/* The surfaces of segue are copied as they are, so rows must have the same distance; a file need not tell it. */
static segue_status check_rows(const struct port_side *s, const struct sg_anec *a, uint32_t i, uint32_t at, segue_error *err)
{
    const struct sg_ane_port *port = &s->ports[i];
    if (a->shape[at][5] && a->shape[at][5] != port->row_bytes)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "load: port %.60s: rows of %llu bytes, the compiled program has %llu; pad the last dimension", port->name,
                       (unsigned long long)port->row_bytes, (unsigned long long)a->shape[at][5]);
    return SEGUE_OK;
}

static segue_status fit_side(struct sg_ane_program *p, struct port_side *s, const struct sg_anec *a, segue_error *err)
{
    const struct sg_libane_api *api = &p->base.device->api;
    int out = s == &p->out;
    for (uint32_t i = 0; i < s->n; i++) {
        struct sg_ane_port *port = &s->ports[i];
        uint64_t has = (out ? api->dst_size : api->src_size)(p->network, s->channel[i]);
        SG_TRY(check_rows(s, a, i, out ? sg_anec_output(s->channel[i]) : sg_anec_input(a, s->channel[i]), err));
        if (has < port->surface_bytes)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "load: port %.60s: %llu bytes, the compiled program has %llu at index %u; compile this text again",
                           port->name, (unsigned long long)port->surface_bytes, (unsigned long long)has, s->channel[i]);
        port->surface_bytes = has;
    }
    return SEGUE_OK;
}

static segue_status load_compiled(struct sg_ane_program *p, const struct sg_ane_source *s, const char *path, segue_error *err)
{
    struct sg_anec a;
    SG_TRY(sg_anec_read(&a, path, err));
    if (a.inputs != p->in.n || a.outputs != p->out.n)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "load: %.300s: %u inputs and %u outputs, the text has %u and %u; compile this text", path, a.inputs,
                       a.outputs, p->in.n, p->out.n);
    p->network = p->base.device->api.init(path, 0);
    if (!p->network)
        return sg_fail(err, SEGUE_EUNIT,
                       "load: %.60s: libane cannot load %.300s; see its message and the permissions of /dev/accel", s->name,
                       path);
    SG_TRY(fit_side(p, &p->in, &a, err));
    return fit_side(p, &p->out, &a, err);
}

static void free_program(struct sg_ane_program *p)
{
    if (p->network) p->base.device->api.free(p->network);
    sg_mil_program_free(p->mil);
    sg_free(p);
}

static void libane_unload(struct sg_ane_program *p)
{
    if (!p || p->base.device->lost) return;
    p->base.device->c.unloads++;
    p->base.device->c.loaded--;
    free_program(p);
}

static segue_status libane_load(struct sg_ane_device *d, const struct sg_ane_source *s, struct sg_ane_program **out,
                                segue_error *err)
{
    char hex[33], name[40];
    if (d->lost)
        return sg_fail(err, SEGUE_ELOST, "load: libane: %.60s: the driver did not answer before; restart, or use another unit",
                       s->name);
    struct sg_ane_program *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("a program", sizeof *p, err);
    p->base = (struct sg_ane_program_base){&libane_ops, d};
    hash_source(s, hex);
    snprintf(name, sizeof name, "%s.anec", hex);
    char *path = sg_path_join(d->folder, name);
    segue_status status = path ? read_text(p, s, err) : sg_no_memory("a path", 0, err);
    if (status == SEGUE_OK)
        status = sg_path_kind(path) == SG_PATH_NONE ? write_request(d, s, hex, err) : load_compiled(p, s, path, err);
    sg_free(path);
    if (status != SEGUE_OK) {
        free_program(p);
        return status;
    }
    d->c.loads++;
    d->c.loaded++;
    *out = p;
    return SEGUE_OK;
}

/* Weights are part of the compiled file. */
static segue_status libane_reload(struct sg_ane_program *p, const struct sg_ane_file *files, uint32_t files_n, segue_error *err)
{
    (void)p;
    (void)files;
    (void)files_n;
    return sg_fail(err, SEGUE_EUNSUPPORTED, "reload: a compiled file has its weights inside; use weights=frozen");
}

static segue_status libane_ports(struct sg_ane_program *p, uint32_t procedure, const struct sg_ane_port **inputs,
                                 uint32_t *inputs_n, const struct sg_ane_port **outputs, uint32_t *outputs_n, segue_error *err)
{
    if (procedure) return sg_fail(err, SEGUE_EARG, "program: procedure %u of 1 does not exist; use 0", procedure);
    *inputs = p->in.ports;
    *inputs_n = p->in.n;
    *outputs = p->out.ports;
    *outputs_n = p->out.n;
    return SEGUE_OK;
}

/* --- surfaces --- */

static segue_status libane_surface_new(struct sg_ane_device *d, uint64_t bytes, struct sg_ane_surface **out, segue_error *err)
{
    struct sg_ane_surface *s = sg_alloc(sizeof *s);
    uint64_t n = bytes ? (bytes + SG_ANEC_TILE - 1) / SG_ANEC_TILE * SG_ANEC_TILE : SG_ANEC_TILE;
    if (s && n < SIZE_MAX / 2) s->bytes = sg_alloc_aligned((size_t)n);
    if (!s || !s->bytes) {
        sg_free(s);
        return sg_no_memory("a surface", (size_t)n, err);
    }
    s->base = (struct sg_ane_surface_base){&libane_ops, d};
    s->n = n;
    *out = s;
    return SEGUE_OK;
}

static void libane_surface_free(struct sg_ane_surface *s)
{
    if (!s) return;
    sg_free_aligned(s->bytes);
    sg_free(s);
}

static segue_status libane_lock(struct sg_ane_surface *s, int to_write, void **bytes, uint64_t *n, segue_error *err)
{
    (void)to_write;
    (void)err;
    s->locked++;
    *bytes = s->bytes;
    if (n) *n = s->n;
    return SEGUE_OK;
}

static void libane_unlock(struct sg_ane_surface *s)
{
    if (s->locked) s->locked--;
}

/* --- dispatches --- */

static segue_status check_surfaces(const struct port_side *s, struct sg_ane_surface *const *surfaces, segue_error *err)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (!surfaces[i] || surfaces[i]->locked || surfaces[i]->n < s->ports[i].surface_bytes)
            return sg_fail(err, SEGUE_EARG,
                           "evaluate: port %.60s: its surface is missing, locked or too small; bind one of %llu bytes",
                           s->ports[i].name, (unsigned long long)s->ports[i].surface_bytes);
    return SEGUE_OK;
}

static void exec_task(void *program)
{
    struct sg_ane_program *p = program;
    errno = 0;
    p->result = p->base.device->api.exec(p->network);
    p->error = errno;
}

static segue_status exec(struct sg_ane_program *p, segue_error *err)
{
    struct sg_ane_device *d = p->base.device;
    if (d->lost || !sg_timed_call_run(d->worker, exec_task, p, EVALUATE_NS)) {
        d->lost = 1;
        return sg_fail(err, SEGUE_ELOST,
                       "evaluate: the driver did not answer within 2 s; the unit is lost, use another or restart");
    }
    if (p->result >= 0) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNIT, "evaluate: ane_exec failed (%d): %s; see the messages of the kernel", p->result,
                   p->error ? strerror(p->error) : "no reason given");
}

static segue_status libane_evaluate(struct sg_ane_program *p, uint32_t procedure, struct sg_ane_surface *const *inputs,
                                    struct sg_ane_surface *const *outputs, segue_error *err)
{
    struct sg_ane_device *d = p->base.device;
    if (procedure) return sg_fail(err, SEGUE_EARG, "program: procedure %u of 1 does not exist; use 0", procedure);
    SG_TRY(check_surfaces(&p->in, inputs, err));
    SG_TRY(check_surfaces(&p->out, outputs, err));
    for (uint32_t i = 0; !d->lost && i < p->in.n; i++) d->api.send(p->network, inputs[i]->bytes, p->in.channel[i]);
    SG_TRY(exec(p, err));
    for (uint32_t i = 0; i < p->out.n; i++) d->api.read(p->network, outputs[i]->bytes, p->out.channel[i]);
    d->c.dispatches++;
    for (uint32_t i = 0; i < p->in.n; i++) d->c.input_bytes += p->in.ports[i].surface_bytes;
    for (uint32_t i = 0; i < p->out.n; i++) d->c.output_bytes += p->out.ports[i].surface_bytes;
    return SEGUE_OK;
}

static const struct sg_ane_device_ops libane_ops = {
    .close = libane_close,
    .load = libane_load,
    .unload = libane_unload,
    .reload = libane_reload,
    .ports = libane_ports,
    .surface_new = libane_surface_new,
    .surface_free = libane_surface_free,
    .lock = libane_lock,
    .unlock = libane_unlock,
    .evaluate = libane_evaluate,
    .count = libane_count,
    .compiler = libane_compiler,
    .software = 0,
};
