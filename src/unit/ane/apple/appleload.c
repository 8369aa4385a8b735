/* appleload.c: see apple.h: a program described, compiled, loaded, bound by the names of its symbols, unloaded, in the
 * engine's own order (docs/ANE.md). SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "unit/ane/apple/applefiles.h"
#include "unit/ane/apple/appleparts.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/rules/rules.h"

enum { HEX_MAX = 256 };

/* --- ports --- */

/* Ports of a function with their row and surface sizes. values: indices of the values; NULL: the
 * first n values. */
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

/* Finds the symbol index of a port by name. Symbol names may carry a suffix after '@' (outputs:
 * @output). Returns 0 when there is none. */
static int symbol_index(world *w, void *names, void *indices, const char *name, uint32_t *out)
{
    for (unsigned long i = 0; i < count(w, indices); i++) {
        uint64_t index = SEND0(give_u64, item(w, indices, i), "unsignedLongLongValue");
        const char *symbol =
            index < count(w, names) ? text_of(w, item(w, names, (unsigned long)index)) : NULL;
        size_t n = symbol ? strcspn(symbol, "@") : 0;
        if (!symbol || strlen(name) != n || memcmp(symbol, name, n) != 0) continue;
        *out = (uint32_t)index;
        return 1;
    }
    return 0;
}

/* Compares the row strides that the loaded model reports (list: LiveInputList or LiveOutputList)
 * with ours. Entries without a stride are accepted. */
static segue_status check_strides(world *w, void *attributes, const char *list,
                                  const struct sg_ane_port *ports, uint32_t n, segue_error *err)
{
    void *networks = entry(w, attributes, "NetworkStatusList"),
         *live = count(w, networks) ? entry(w, item(w, networks, 0), list) : NULL;
    for (unsigned long i = 0; i < count(w, live); i++) {
        void *one = item(w, live, i), *stride = entry(w, one, "RowStride");
        const char *name = text_of(w, entry(w, one, "Name"));
        uint64_t bytes = stride ? SEND0(give_u64, stride, "unsignedLongLongValue") : 0;
        for (uint32_t k = 0; name && bytes && k < n; k++)
            if (!strncmp(name, ports[k].name, strcspn(name, "@")) && !ports[k].name[strcspn(name, "@")] &&
                bytes != ports[k].row_bytes)
                return sg_fail(err, SEGUE_EUNIT,
                               "neural engine: port %.60s: rows of %llu bytes, the engine wants %llu; pad "
                               "the last dimension",
                               name, (unsigned long long)ports[k].row_bytes, (unsigned long long)bytes);
    }
    return SEGUE_OK;
}

/* Reads the symbol indices of all ports from modelAttributes. A program with one input and one
 * output needs none: its index 0 is the same in all sources. */
static segue_status bind_by_name(struct sg_ane_program *p, segue_error *err)
{
    world *w = p->base.device->w;
    void *attributes = SEND0(take0, p->model, "modelAttributes"),
         *description = entry(w, attributes, "ANEFModelDescription");
    void *procedures = entry(w, description, "ANEFModelProcedures");
    void *names[2] = {entry(w, description, "kANEFModelInputSymbolsArrayKey"),
                      entry(w, description, "kANEFModelOutputSymbolsArrayKey")};
    for (uint32_t f = 0; f < p->mil->functions_n; f++) {
        struct procedure *q = &p->procedures[f];
        void *one = f < count(w, procedures) ? item(w, procedures, f) : NULL;
        if (!one && q->in_n == 1 && q->out_n == 1 && p->mil->functions_n == 1)
            return SEGUE_OK; /* all sources agree on this one */
        if (!one)
            return sg_fail(err, SEGUE_EUNIT,
                           "neural engine: %.60s: the system names no symbols, so several inputs or outputs "
                           "cannot be bound; pack them "
                           "into one",
                           p->name);
        void *indices[2] = {entry(w, one, "ANEFModelInputSymbolIndexArray"),
                            entry(w, one, "ANEFModelOutputSymbolIndexArray")};
        for (uint32_t i = 0; i < q->in_n + q->out_n; i++) {
            int out = i >= q->in_n;
            const char *name = out ? q->out[i - q->in_n].name : q->in[i].name;
            if (!symbol_index(w, names[out], indices[out], name,
                              out ? &q->out_index[i - q->in_n] : &q->in_index[i]))
                return sg_fail(
                    err, SEGUE_EUNIT,
                    "neural engine: %.60s: the loaded program has no symbol %.60s; it is another program",
                    p->name, name);
        }
        SG_TRY(check_strides(w, attributes, "LiveInputList", q->in, q->in_n, err));
        SG_TRY(check_strides(w, attributes, "LiveOutputList", q->out, q->out_n, err));
    }
    return SEGUE_OK;
}

/* --- loading --- */

/* The weights dictionary of a model descriptor: "@model_path/<file>" maps to {offset: 0, data:
 * NSData}. Autoreleased. Must not be nil, so it is empty for programs without files. NULL: out of
 * memory. */
static void *weights_of(world *w, const struct sg_ane_source *s)
{
    void *dictionary = empty(w); /* never nil, also without weights */
    void **objects = s->files_n ? sg_alloc(2 * s->files_n * sizeof *objects) : NULL;
    for (uint32_t i = 0; objects && i < s->files_n; i++) {
        struct sg_buf path = {0};
        void *parts[2] = {number(w, 0), data(w, s->files[i].data, s->files[i].bytes)},
             *keys[2] = {string(w, "offset"), string(w, "data")};
        sg_buf_printf(&path, "@model_path/%s", s->files[i].path);
        objects[i] = pairs(w, parts, keys, 2);
        objects[s->files_n + i] = path.data ? string(w, path.data) : NULL;
        sg_buf_free(&path);
        if (!objects[i] || !objects[s->files_n + i]) {
            sg_free(objects);
            return NULL;
        }
    }
    if (s->files_n) dictionary = objects ? pairs(w, objects, objects + s->files_n, s->files_n) : NULL;
    sg_free(objects);
    return dictionary;
}

/* Describes the program, makes the model object (retained in p->model), and writes its files to
 * <temporary>/<identifier>, where the service reads them. The identifier becomes a path component,
 * so only plain characters are accepted. */
static segue_status make_model(struct job *j)
{
    world *w = j->d->w;
    void *text = data(w, j->source->text, j->source->text_bytes), *weights = weights_of(w, j->source);
    if (!text || !weights) return sg_no_memory("a program for the engine", 0, &j->err);
    void *descriptor = SEND(take3, w->class_named("_ANEInMemoryModelDescriptor"),
                            "modelWithMILText:weights:optionsPlist:", text, weights, NULL);
    if (!descriptor)
        return sg_fail(
            &j->err, SEGUE_EUNIT,
            "neural engine: describing a program: %.60s: the system refuses it; try segue mil check",
            j->source->name);
    j->p->model = retained(
        w, SEND(take1, w->class_named("_ANEInMemoryModel"), "inMemoryModelWithDescriptor:", descriptor));
    if (!j->p->model)
        return sg_fail(&j->err, SEGUE_EUNIT,
                       "neural engine: making a program: %.60s: the system refuses it; try segue mil check",
                       j->source->name);
    const char *hex = text_of(w, SEND0(take0, j->p->model, "hexStringIdentifier"));
    size_t n = hex ? strlen(hex) : 0;
    if (!n || n > HEX_MAX || strspn(hex, "0123456789abcdefABCDEF_-") != n)
        return sg_fail(&j->err, SEGUE_EUNIT,
                       "neural engine: naming a program: %.60s: the system gives no plain identifier; this "
                       "system is not known",
                       j->source->name);
    j->p->folder = sg_path_join(w->temporary, hex);
    if (!j->p->folder) return sg_no_memory("a path", n, &j->err);
    return sg_apple_files_write(j->p->folder, j->source, &j->err);
}

/* Tries up to `tries` times with pauses of 100 ms, doubling up to 1 s: after a failed compile the
 * service may be restarting. Each try counts against the compile budget. */
static segue_status compile(struct job *j)
{
    world *w = j->d->w;
    uint64_t pause = 100000000u;
    for (uint32_t i = 0;; i++) {
        void *error = NULL;
        j->d->c.compiles++;
        if (SEND(work_options, j->p->model, "compileWithQoS:options:error:", QOS, empty(w), &error))
            return SEGUE_OK;
        if (i + 1 >= j->d->o.tries) return sg_apple_failed(w, "compile", j->source->name, error, &j->err);
        w->pause_ns(pause);
        pause = pause * 2 > 1000000000u ? 1000000000u : pause * 2;
    }
}

static int load(struct job *j, void **error)
{
    world *w = j->d->w;
    *error = NULL;
    j->p->loaded = SEND(work_options, j->p->model, "loadWithQoS:options:error:", QOS, empty(w), error);
    return j->p->loaded;
}

/* Loads a cached compilation when the system still has it. A failed load means a stale one: it is
 * purged, compiled and loaded once more. */
static segue_status load_job(struct job *j)
{
    world *w = j->d->w;
    void *error;
    SG_TRY(make_model(j));
    int kept = j->source->cached && SEND0(give_truth, j->p->model, "compiledModelExists");
    if (!kept) SG_TRY(compile(j));
    if (!load(j, &error)) { /* a stale cache: once more from the start */
        SEND0(give_none, j->p->model, "purgeCompiledModel");
        SG_TRY(compile(j));
        if (!load(j, &error)) return sg_apple_failed(w, "load", j->source->name, error, &j->err);
    }
    return bind_by_name(j->p, &j->err);
}

/* Drops the references to request and model; errors of the service are ignored. */
static segue_status unload_job(struct job *j)
{
    world *w = j->d->w;
    void *error = NULL;
    if (j->p->loaded) SEND(work_plain, j->p->model, "unloadWithQoS:error:", QOS, &error);
    j->p->loaded = 0;
    released(w, j->p->request);
    released(w, j->p->model);
    j->p->request = j->p->model = NULL;
    return SEGUE_OK;
}

/* Unloads, overwrites the blob files, loads again. The request is dropped because it belongs to
 * the old load. */
static segue_status reload_job(struct job *j)
{
    world *w = j->d->w;
    void *error = NULL;
    if (!SEND(work_plain, j->p->model, "unloadWithQoS:error:", QOS, &error))
        return sg_apple_failed(w, "unload", j->p->name, error, &j->err);
    j->p->loaded = 0;
    released(w, j->p->request);
    j->p->request = NULL;
    SG_TRY(sg_apple_blobs_write(j->p->folder, j->files, j->files_n, &j->err));
    return load(j, &error) ? SEGUE_OK : sg_apple_failed(w, "load", j->p->name, error, &j->err);
}

/* Files are removed only after the unload, because the service reads them on demand. If the device
 * is lost, everything is leaked. */
void sg_apple_unload(struct sg_ane_program *p)
{
    if (!p) return;
    struct sg_ane_device *d = p->base.device;
    if (d->lost ||
        sg_apple_ask(&(struct job){.d = d, .p = p, .work = unload_job}, d->o.load_ns, "unload", NULL) == SEGUE_ELOST)
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

/* Parses the text on our side to know names, types and sizes of all ports. */
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
        struct procedure *q = &p->procedures[i];
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
    p->base = (struct sg_ane_program_base){&sg_apple_ops, d};
    segue_status status = prepare(p, s, err);
    if (status == SEGUE_OK)
        status = sg_apple_ask(&(struct job){.d = d, .p = p, .work = load_job, .source = s}, d->o.compile_ns,
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
    return sg_apple_ask(
        &(struct job){.d = p->base.device, .p = p, .work = reload_job, .files = files, .files_n = files_n},
        p->base.device->o.load_ns, "reload", err);
}
