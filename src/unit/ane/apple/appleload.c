/* appleload.c: programs of the private interface. The order of calls is the one that the service
 * expects: descriptor, model, files on disk, compile, load, symbol indices, and at the end unload,
 * release, removal of the files. See apple.h, docs/ANE.md.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "unit/ane/apple/applefiles.h"
#include "unit/ane/apple/appleparts.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/rules/rules.h"

enum { HEX_MAX = 256 };          /* characters of a program's identifier; today three hashes, 194 characters */

/* --- ports --- */

/* Fills the ports of a function with their row and surface sizes. values: [n] indices of the values;
 * NULL: the first n values, which are the parameters. The symbol indices stay 0 until bind_by_name. */
static segue_status port_list(struct sg_ane_program *p, const struct sg_mil_function *f,
                              const uint32_t *values, uint32_t n, struct sg_ane_port **ports,
                              uint32_t **index, segue_error *err)
{
    *ports = sg_arena_alloc(&p->arena, n * sizeof **ports);
    *index = sg_arena_alloc(&p->arena, n * sizeof **index);
    if (!*ports || !*index) return sg_no_memory("a program's ports", n, err);
    if (n > PORTS_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "neural engine: %.60s: more than %d inputs or outputs; pack them",
                       f->name, PORTS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_mil_value *v = &f->values[values ? values[i] : i];
        (*ports)[i] = (struct sg_ane_port){.name = v->name, .type = v->type};
        sg_ane_port_sizes(&v->type, &p->base.device->profile, &(*ports)[i].row_bytes,
                          &(*ports)[i].surface_bytes);
    }
    return SEGUE_OK;
}

/* Finds the symbol index of a port by its name. Names of symbols may have a suffix after '@', such as
 * @output. 0: none. */
static int symbol_index(const struct sg_apple_api *api, void *names, void *indices, const char *name, uint32_t *out)
{
    for (unsigned long i = 0; i < ns_count(api, indices); i++) {
        uint64_t index = SEND0(msg_u64, ns_item(api, indices, i), "unsignedLongLongValue");
        const char *symbol =
            index < ns_count(api, names) ? ns_text(api, ns_item(api, names, (unsigned long)index)) : NULL;
        size_t n = symbol ? strcspn(symbol, "@") : 0;
        if (!symbol || strlen(name) != n || memcmp(symbol, name, n) != 0) continue;
        *out = (uint32_t)index;
        return 1;
    }
    return 0;
}

/* Compares the row strides that the loaded model reports with those of the ports. list: "LiveInputList"
 * or "LiveOutputList". Entries without a stride are accepted: not every system reports one. */
static segue_status check_strides(const struct sg_apple_api *api, void *attributes, const char *list,
                                  const struct sg_ane_port *ports, uint32_t n, segue_error *err)
{
    void *networks = ns_entry(api, attributes, "NetworkStatusList"),
         *live = ns_count(api, networks) ? ns_entry(api, ns_item(api, networks, 0), list) : NULL;
    for (unsigned long i = 0; i < ns_count(api, live); i++) {
        void *one = ns_item(api, live, i), *stride = ns_entry(api, one, "RowStride");
        const char *name = ns_text(api, ns_entry(api, one, "Name"));
        uint64_t bytes = stride ? SEND0(msg_u64, stride, "unsignedLongLongValue") : 0;
        for (uint32_t k = 0; name && bytes && k < n; k++)
            if (!strncmp(name, ports[k].name, strcspn(name, "@")) && !ports[k].name[strcspn(name, "@")] &&
                bytes != ports[k].row_bytes)
                return sg_fail(err, SEGUE_EUNIT,
                               "neural engine: port %.60s: rows of %llu bytes, the engine needs %llu; pad "
                               "the last dimension",
                               name, (unsigned long long)ports[k].row_bytes, (unsigned long long)bytes);
    }
    return SEGUE_OK;
}

/* Reads the symbol indices of all ports from modelAttributes: sources contradict each other about the
 * order in which the engine binds them. Without that dictionary only a program with one input and one
 * output can be bound; its indices are 0. */
static segue_status bind_by_name(struct sg_ane_program *p, segue_error *err)
{
    const struct sg_apple_api *api = p->base.device->api;
    void *attributes = SEND0(msg_id, p->model, "modelAttributes"),
         *description = ns_entry(api, attributes, "ANEFModelDescription");
    void *procedures = ns_entry(api, description, "ANEFModelProcedures");
    void *names[2] = {ns_entry(api, description, "kANEFModelInputSymbolsArrayKey"),
                      ns_entry(api, description, "kANEFModelOutputSymbolsArrayKey")};
    for (uint32_t f = 0; f < p->mil->functions_n; f++) {
        struct sg_apple_procedure *q = &p->procedures[f];
        void *one = f < ns_count(api, procedures) ? ns_item(api, procedures, f) : NULL;
        if (!one && q->in_n == 1 && q->out_n == 1 && p->mil->functions_n == 1)
            return SEGUE_OK;
        if (!one)
            return sg_fail(err, SEGUE_EUNIT,
                           "neural engine: %.60s: the system reports no symbols, so several inputs or outputs cannot be "
                           "bound; pack them into one",
                           p->name);
        void *indices[2] = {ns_entry(api, one, "ANEFModelInputSymbolIndexArray"),
                            ns_entry(api, one, "ANEFModelOutputSymbolIndexArray")};
        for (uint32_t i = 0; i < q->in_n + q->out_n; i++) {
            int out = i >= q->in_n;
            const char *name = out ? q->out[i - q->in_n].name : q->in[i].name;
            if (!symbol_index(api, names[out], indices[out], name,
                              out ? &q->out_index[i - q->in_n] : &q->in_index[i]))
                return sg_fail(
                    err, SEGUE_EUNIT,
                    "neural engine: %.60s: the loaded program has no symbol %.60s; purge and compile again",
                    p->name, name);
        }
        SG_TRY(check_strides(api, attributes, "LiveInputList", q->in, q->in_n, err));
        SG_TRY(check_strides(api, attributes, "LiveOutputList", q->out, q->out_n, err));
    }
    return SEGUE_OK;
}

/* --- loading: the functions named _job and those they call run on the worker thread --- */

/* The weights dictionary of a model descriptor: "@model_path/<file>" maps to {offset: 0, data: NSData}.
 * Autoreleased. It is empty for programs without files, because the service does not accept nil. NULL:
 * out of memory. */
static void *weights_of(const struct sg_apple_api *api, const struct sg_ane_source *s)
{
    void *dictionary = ns_empty_dictionary(api);
    void **objects = s->files_n ? sg_alloc(2 * s->files_n * sizeof *objects) : NULL;
    for (uint32_t i = 0; objects && i < s->files_n; i++) {
        struct sg_buf path = {0};
        void *parts[2] = {ns_number(api, 0), ns_data(api, s->files[i].data, s->files[i].bytes)},
             *keys[2] = {ns_string(api, "offset"), ns_string(api, "data")};
        sg_buf_printf(&path, "@model_path/%s", s->files[i].path);
        objects[i] = ns_dictionary(api, parts, keys, 2);
        objects[s->files_n + i] = path.data ? ns_string(api, path.data) : NULL;
        sg_buf_free(&path);
        if (!objects[i] || !objects[s->files_n + i]) {
            sg_free(objects);
            return NULL;
        }
    }
    if (s->files_n) dictionary = objects ? ns_dictionary(api, objects, objects + s->files_n, s->files_n) : NULL;
    sg_free(objects);
    return dictionary;
}

/* Makes the descriptor and the model object, and writes the files to <temporary>/<identifier>, where
 * the service reads them. The identifier becomes a component of a path, so only plain characters are
 * accepted. The text itself is checked by the compile. */
static segue_status make_model(struct sg_apple_job *j)
{
    const struct sg_apple_api *api = j->d->api;
    void *text = ns_data(api, j->source->text, j->source->text_bytes), *weights = weights_of(api, j->source);
    if (!text || !weights) return sg_no_memory("a program for the engine", 0, &j->err);
    void *descriptor = SEND(msg_id_3, api->class_named("_ANEInMemoryModelDescriptor"),
                            "modelWithMILText:weights:optionsPlist:", text, weights, NULL);
    if (!descriptor)
        return sg_fail(
            &j->err, SEGUE_EUNIT,
            "neural engine: describing a program: %.60s: the system refuses it; run segue mil check",
            j->source->name);
    j->p->model = retain(
        api, SEND(msg_id_1, api->class_named("_ANEInMemoryModel"), "inMemoryModelWithDescriptor:", descriptor));
    if (!j->p->model)
        return sg_fail(&j->err, SEGUE_EUNIT,
                       "neural engine: making a program: %.60s: the system refuses it; run segue mil check",
                       j->source->name);
    const char *hex = ns_text(api, SEND0(msg_id, j->p->model, "hexStringIdentifier"));
    size_t n = hex ? strlen(hex) : 0;
    if (!n || n > HEX_MAX || strspn(hex, "0123456789abcdefABCDEF_-") != n)
        return sg_fail(&j->err, SEGUE_EUNIT,
                       "neural engine: naming a program: %.60s: its identifier is not plain text; this version of the "
                       "system is not supported",
                       j->source->name);
    j->p->folder = sg_path_join(api->temporary, hex);
    if (!j->p->folder) return sg_no_memory("a path", n, &j->err);
    return sg_apple_files_write(j->p->folder, j->source, &j->err);
}

/* Options of a compile or a load: none, or the keys that the device was opened with. */
static void *options_of(const struct sg_ane_device *d, int of_load)
{
    const struct sg_apple_api *api = d->api;
    void *keys[2], *values[2];
    unsigned long n = 0;
    if (d->o.retain) keys[n++] = ns_string(api, "kANEFRetainModelsWithoutSourceURLKey");
    if (d->o.wired && of_load) keys[n++] = ns_string(api, "kANEFKeepModelMemoryWiredKey");
    for (unsigned long i = 0; i < n; i++) values[i] = ns_number(api, 1);
    return n ? ns_dictionary(api, values, keys, n) : ns_empty_dictionary(api);
}

/* Tries up to `tries` times with pauses of 100 ms, doubled up to 1 s: after a failed compile the
 * service may be restarting. Each try counts against the compile budget of the process. */
static segue_status compile(struct sg_apple_job *j)
{
    const struct sg_apple_api *api = j->d->api;
    uint64_t pause = 100000000u;
    for (uint32_t i = 0;; i++) {
        void *error = NULL;
        j->d->c.compiles++;
        if (SEND(msg_compile, j->p->model, "compileWithQoS:options:error:", QOS, options_of(j->d, 0), &error))
            return SEGUE_OK;
        if (i + 1 >= j->d->o.tries) return sg_apple_failed(api, "compile", j->source->name, error, &j->err);
        api->pause_ns(pause);
        pause = pause * 2 > 1000000000u ? 1000000000u : pause * 2;
    }
}

/* 1: loaded. The error belongs to the autorelease pool of the job. */
static int load(struct sg_apple_job *j, void **error)
{
    const struct sg_apple_api *api = j->d->api;
    *error = NULL;
    j->p->loaded = SEND(msg_compile, j->p->model, "loadWithQoS:options:error:", QOS, options_of(j->d, 1), error);
    return j->p->loaded;
}

/* With source->cached the compile is skipped if the system still has the compiled form. If the load
 * fails, that form is stale: it is purged, compiled and loaded once more. */
static segue_status load_job(struct sg_apple_job *j)
{
    const struct sg_apple_api *api = j->d->api;
    void *error;
    SG_TRY(make_model(j));
    int compiled = j->source->cached && SEND0(msg_bool, j->p->model, "compiledModelExists");
    if (!compiled) SG_TRY(compile(j));
    if (!load(j, &error)) {
        SEND0(msg_void, j->p->model, "purgeCompiledModel");
        SG_TRY(compile(j));
        if (!load(j, &error)) return sg_apple_failed(api, "load", j->source->name, error, &j->err);
    }
    return bind_by_name(j->p, &j->err);
}

/* Errors of the service are ignored: the program is freed in any case. */
static segue_status unload_job(struct sg_apple_job *j)
{
    const struct sg_apple_api *api = j->d->api;
    void *error = NULL;
    if (j->p->loaded) SEND(msg_unload, j->p->model, "unloadWithQoS:error:", QOS, &error);
    j->p->loaded = 0;
    release_object(api, j->p->request);
    release_object(api, j->p->model);
    j->p->request = j->p->model = NULL;
    return SEGUE_OK;
}

/* Unloads, overwrites the blob files, loads again. The request is released because it belongs to the
 * previous load. */
static segue_status reload_job(struct sg_apple_job *j)
{
    const struct sg_apple_api *api = j->d->api;
    void *error = NULL;
    if (!SEND(msg_unload, j->p->model, "unloadWithQoS:error:", QOS, &error))
        return sg_apple_failed(api, "unload", j->p->name, error, &j->err);
    j->p->loaded = 0;
    release_object(api, j->p->request);
    j->p->request = NULL;
    SG_TRY(sg_apple_blobs_write(j->p->folder, j->files, j->files_n, &j->err));
    return load(j, &error) ? SEGUE_OK : sg_apple_failed(api, "load", j->p->name, error, &j->err);
}

/* Files are removed only after the unload, because the service reads them while the program is loaded.
 * On a lost device everything is leaked. Also for a program whose load failed. */
void sg_apple_unload(struct sg_ane_program *p)
{
    if (!p) return;
    struct sg_ane_device *d = p->base.device;
    if (d->lost ||
        sg_apple_call(&(struct sg_apple_job){.d = d, .p = p, .work = unload_job}, d->o.load_ns, "unload", NULL) == SEGUE_ELOST)
        return;
    if (p->folder) sg_apple_files_remove(p->folder);
    sg_free(p->folder);
    sg_free(p->name);
    sg_free(p->procedures);
    sg_mil_program_free(p->mil);
    sg_arena_free(&p->arena);
    sg_free(p);
    d->c.unloads++;
}

/* Parses the text to know names, types and sizes of all ports: the service does not report the sizes. */
static segue_status prepare(struct sg_ane_program *p, const struct sg_ane_source *s, segue_error *err)
{
    p->name = sg_strndup(s->name, strlen(s->name));
    if (!p->name) return sg_no_memory("a program", 0, err);
    SG_TRY(sg_mil_parse(&p->mil, s->text, s->text_bytes, s->name, NULL, err));
    struct sg_mil_faults faults = {0};
    sg_mil_check_types(p->mil, &faults);
    segue_status status = sg_mil_faults_fail(&faults, s->name, err);
    sg_mil_faults_free(&faults);
    if (status != SEGUE_OK) return status;
    p->procedures = sg_alloc(p->mil->functions_n * sizeof *p->procedures);
    if (!p->procedures) return sg_no_memory("a program", 0, err);
    for (uint32_t i = 0; i < p->mil->functions_n; i++) {
        const struct sg_mil_function *f = &p->mil->functions[i];
        struct sg_apple_procedure *q = &p->procedures[i];
        q->in_n = f->params_n;
        q->out_n = f->returns_n;
        SG_TRY(port_list(p, f, NULL, q->in_n, &q->in, &q->in_index, err));
        SG_TRY(port_list(p, f, f->returns, q->out_n, &q->out, &q->out_index, err));
    }
    return SEGUE_OK;
}

segue_status sg_apple_load(struct sg_ane_device *d, const struct sg_ane_source *s,
                               struct sg_ane_program **out, segue_error *err)
{
    struct sg_ane_program *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("a program", sizeof *p, err);
    p->base = (struct sg_ane_program_base){d->base.ops, d};
    segue_status status = prepare(p, s, err);
    if (status == SEGUE_OK)
        status = sg_apple_call(&(struct sg_apple_job){.d = d, .p = p, .work = load_job, .source = s}, d->o.compile_ns,
                     "compile and load", err);
    if (status != SEGUE_OK) {
        sg_apple_unload(p);
        return status;
    }
    d->c.loads++;
    *out = p;
    return SEGUE_OK;
}

segue_status sg_apple_reload(struct sg_ane_program *p, const struct sg_ane_file *files, uint32_t files_n,
                                 segue_error *err)
{
    return sg_apple_call(
        &(struct sg_apple_job){.d = p->base.device, .p = p, .work = reload_job, .files = files, .files_n = files_n},
        p->base.device->o.load_ns, "reload", err);
}
