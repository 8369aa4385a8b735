/* apple.c: see apple.h: every symbol of Apple's that the unit uses, and the sequence in which it uses them
 * (docs/ANE.md). Compiles everywhere. Every call is a cast of the method's address to its exact C type: a
 * variadic call would put arguments elsewhere. Objects from factories are autoreleased; what outlives a pool
 * is retained here and released in the opposite order. SPDX-License-Identifier: MIT */
#include "unit/ane/apple.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "unit/ane/applefiles.h"
#include "unit/ane/milinfer.h"
#include "unit/ane/milparse.h"
#include "unit/ane/patience.h"
#include "unit/ane/profile.h"
#include "unit/ane/rules.h"

enum { QOS = 21, READ_ONLY = 1, TRIES = 5, INT64_NUMBER = 4, HEX_MAX = 256, PORTS_MAX = 256 };

/* --- what is looked up --- */

static const struct {
    const char *class, *selector, *encoding;
    int of_class;
} methods[] = {
    {"_ANEInMemoryModelDescriptor", "modelWithMILText:weights:optionsPlist:", "@@:@@@", 1},
    {"_ANEInMemoryModel", "inMemoryModelWithDescriptor:", "@@:@", 1},
    {"_ANEInMemoryModel", "hexStringIdentifier", "@@:", 0},
    {"_ANEInMemoryModel", "compileWithQoS:options:error:", "B@:I@^@", 0},
    {"_ANEInMemoryModel", "loadWithQoS:options:error:", "B@:I@^@", 0},
    {"_ANEInMemoryModel", "evaluateWithQoS:options:request:error:", "B@:I@@^@", 0},
    {"_ANEInMemoryModel", "unloadWithQoS:error:", "B@:I^@", 0},
    {"_ANEInMemoryModel", "compiledModelExists", "B@:", 0},
    {"_ANEInMemoryModel", "purgeCompiledModel", "v@:", 0},
    {"_ANEInMemoryModel", "modelAttributes", "@@:", 0},
    {"_ANEIOSurfaceObject", "objectWithIOSurface:", "@@:^{__IOSurface=}", 1},
    {"_ANERequest",
     "requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:",
     "@@:@@@@@@@", 1},
};

static int same_encoding(const char *found, const char *expected)
{
    for (; found && *found; found++) {
        if (*found >= '0' && *found <= '9') continue; /* frame offsets */
        if (*found != *expected++) return 0;
    }
    return found && !*expected;
}

int sg_apple_method_at(const struct sg_apple_world *w, size_t i, struct sg_apple_method *out)
{
    if (i >= sizeof methods / sizeof *methods) return 0;
    void *class = w->class_named(methods[i].class), *selector = w->selector(methods[i].selector);
    void *method = !class                ? NULL
                   : methods[i].of_class ? w->class_method(class, selector)
                                         : w->instance_method(class, selector);
    *out = (struct sg_apple_method){methods[i].class, methods[i].selector, methods[i].encoding,
                                    method ? w->type_encoding(method) : NULL, 0};
    out->equal = same_encoding(out->found, out->expected);
    return 1;
}

struct symbol {
    const char *name;
    size_t offset;
    int is_variable;
};
#define AT(member) offsetof(struct sg_apple_world, member)
static const struct {
    const char *path;
    struct symbol symbols[12];
} libraries[] = {
    {"/usr/lib/libobjc.A.dylib",
     {{"objc_getClass", AT(class_named), 0},
      {"sel_registerName", AT(selector), 0},
      {"objc_msgSend", AT(send), 0},
      {"class_getClassMethod", AT(class_method), 0},
      {"class_getInstanceMethod", AT(instance_method), 0},
      {"method_getTypeEncoding", AT(type_encoding), 0},
      {"objc_autoreleasePoolPush", AT(pool_push), 0},
      {"objc_autoreleasePoolPop", AT(pool_pop), 0}}},
    {"/System/Library/Frameworks/Foundation.framework/Foundation", {{0}}},
    {"/System/Library/Frameworks/CoreFoundation.framework/CoreFoundation",
     {{"CFRelease", AT(release), 0},
      {"CFDictionaryCreate", AT(dictionary), 0},
      {"CFNumberCreate", AT(number), 0},
      {"kCFTypeDictionaryKeyCallBacks", AT(key_calls), 0},
      {"kCFTypeDictionaryValueCallBacks", AT(value_calls), 0}}},
    {"/System/Library/Frameworks/IOSurface.framework/IOSurface",
     {{"IOSurfaceCreate", AT(surface_create), 0},
      {"IOSurfaceLock", AT(surface_lock), 0},
      {"IOSurfaceUnlock", AT(surface_unlock), 0},
      {"IOSurfaceGetBaseAddress", AT(surface_base), 0},
      {"kIOSurfaceWidth", AT(surface_keys[0]), 1},
      {"kIOSurfaceHeight", AT(surface_keys[1]), 1},
      {"kIOSurfaceBytesPerElement", AT(surface_keys[2]), 1},
      {"kIOSurfaceBytesPerRow", AT(surface_keys[3]), 1},
      {"kIOSurfaceAllocSize", AT(surface_keys[4]), 1},
      {"kIOSurfacePixelFormat", AT(surface_keys[5]), 1}}},
    {"/System/Library/PrivateFrameworks/AppleNeuralEngine.framework/AppleNeuralEngine", {{0}}},
};

/* Libraries stay open for the life of the process: classes cannot be unloaded. */
segue_status sg_apple_world_here(struct sg_apple_world *out, segue_error *err)
{
    struct sg_apple_world w = {.pause_ns = sg_pause_ns};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        void *library = dlopen(libraries[i].path, RTLD_NOW);
        if (!library)
            return sg_fail(err, SEGUE_EUNIT,
                           "neural engine: %s: not on this machine; a Mac with Apple silicon has it",
                           libraries[i].path);
        for (const struct symbol *s = libraries[i].symbols; s->name; s++) {
            void *found = dlsym(library, s->name);
            if (found && s->is_variable) memcpy(&found, found, sizeof found);
            if (!found)
                return sg_fail(err, SEGUE_EUNIT, "neural engine: %s: not in %s; this system is not known",
                               s->name, libraries[i].path);
            memcpy((char *)&w + s->offset, &found, sizeof found);
        }
    }
    const char *temporary = getenv("TMPDIR"); /* what NSTemporaryDirectory() gives */
    if (!temporary || !*temporary) temporary = "/tmp";
    if (strlen(temporary) >= sizeof w.temporary)
        return sg_fail(err, SEGUE_EUNIT, "neural engine: TMPDIR: too long; set a shorter one");
    memcpy(w.temporary, temporary, strlen(temporary) + 1);
    struct utsname system;
    if (uname(&system) >= 0) snprintf(w.build, sizeof w.build, "%.60s", system.release);
    *out = w;
    return SEGUE_OK;
}

/* --- messages --- */

typedef const struct sg_apple_world world;
typedef void *take0(void *, void *);
typedef void *take1(void *, void *, void *);
typedef void *take3(void *, void *, void *, void *, void *);
typedef void *take7(void *, void *, void *, void *, void *, void *, void *, void *, void *);
typedef void *take_bytes(void *, void *, const void *, unsigned long);
typedef void *take_text(void *, void *, const char *);
typedef void *take_list(void *, void *, void *const *, unsigned long);
typedef void *take_pairs(void *, void *, void *const *, void *const *, unsigned long);
typedef void *take_number(void *, void *, unsigned long long);
typedef void *take_index(void *, void *, unsigned long);
typedef const char *give_text(void *, void *);
typedef unsigned long give_count(void *, void *);
typedef unsigned give_u32(void *, void *);
typedef unsigned long long give_u64(void *, void *);
typedef _Bool give_truth(void *, void *);
typedef void give_none(void *, void *);
typedef _Bool work_options(void *, void *, unsigned, void *, void **);
typedef _Bool work_request(void *, void *, unsigned, void *, void *, void **);
typedef _Bool work_plain(void *, void *, unsigned, void **);

static void (*function_of(world *w, void *receiver, void *selector))(void)
{
    return w->method ? w->method(receiver, selector) : w->send;
}
#define SEND(type, receiver, name, ...) \
    ((type *)function_of(w, receiver, w->selector(name)))(receiver, w->selector(name), __VA_ARGS__)
#define SEND0(type, receiver, name) \
    ((type *)function_of(w, receiver, w->selector(name)))(receiver, w->selector(name))

static void *retained(world *w, void *o) { return o ? SEND0(take0, o, "retain") : NULL; }
static void released(world *w, void *o)
{
    if (o) SEND0(give_none, o, "release");
}

static void *string(world *w, const char *s)
{
    return SEND(take_text, w->class_named("NSString"), "stringWithUTF8String:", s);
}
static const char *text_of(world *w, void *o) { return o ? SEND0(give_text, o, "UTF8String") : NULL; }
static void *data(world *w, const void *bytes, size_t n)
{
    return SEND(take_bytes, w->class_named("NSData"), "dataWithBytes:length:", bytes, n);
}
static void *number(world *w, uint64_t v)
{
    return SEND(take_number, w->class_named("NSNumber"), "numberWithUnsignedLongLong:", v);
}
static void *array(world *w, void *const *objects, size_t n)
{
    return SEND(take_list, w->class_named("NSArray"), "arrayWithObjects:count:", objects, n);
}
static void *pairs(world *w, void *const *values, void *const *keys, size_t n)
{
    return SEND(take_pairs, w->class_named("NSDictionary"), "dictionaryWithObjects:forKeys:count:", values,
                keys, n);
}
static void *empty(world *w) { return SEND0(take0, w->class_named("NSDictionary"), "dictionary"); }
static void *entry(world *w, void *dictionary, const char *key)
{
    return dictionary ? SEND(take1, dictionary, "objectForKey:", string(w, key)) : NULL;
}
static unsigned long count(world *w, void *list) { return list ? SEND0(give_count, list, "count") : 0; }
static void *item(world *w, void *list, unsigned long i)
{
    return SEND(take_index, list, "objectAtIndex:", i);
}

/* What the engine says, and what to do about it. */
static segue_status engine_failed(world *w, const char *what, const char *name, void *error, segue_error *err)
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

struct sg_ane_device {
    struct sg_ane_device_base base;
    world *w;
    struct sg_apple_opts o;
    struct sg_patience *worker;
    struct sg_ane_counters c;
    struct sg_ane_profile profile; /* padding of surfaces */
    int lost;
};

struct procedure {
    struct sg_ane_port *in, *out;
    uint32_t *in_index, *out_index; /* symbol indices */
    uint32_t in_n, out_n;
};
struct sg_ane_program {
    struct sg_ane_program_base base;
    struct sg_mil_program *mil;   /* names and types of ports */
    struct procedure *procedures; /* [mil->functions_n] */
    struct sg_arena arena;
    void *model, *request;      /* retained */
    void *bound[PORTS_MAX * 2]; /* what the request binds */
    uint32_t bound_n, bound_procedure;
    char *name, *folder;
    int loaded;
};

struct sg_ane_surface {
    struct sg_ane_surface_base base;
    void *surface, *object; /* IOSurface, and the engine's object around it (retained) */
    uint64_t n;
    int locked, options;
};

static const struct sg_ane_device_ops apple_ops;

segue_status sg_apple_open(struct sg_ane_device **out, const struct sg_apple_world *w,
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
    d->base.ops = &apple_ops;
    d->w = w;
    if (o) d->o = *o;
    if (!d->o.compile_ns) d->o.compile_ns = 120000000000u;
    if (!d->o.load_ns) d->o.load_ns = 10000000000u;
    if (!d->o.evaluate_ns) d->o.evaluate_ns = 2000000000u;
    if (!d->o.tries) d->o.tries = TRIES;
    segue_status status = sg_ane_profile_named(&d->profile, "ieee", err);
    if (status == SEGUE_OK) status = sg_patience_open(&d->worker, err);
    if (status != SEGUE_OK)
        sg_free(d);
    else
        *out = d;
    return status;
}

/* What the service still holds of a lost device stays for it. */
static void apple_close(struct sg_ane_device *d)
{
    if (!d) return;
    sg_patience_close(d->worker);
    if (!d->lost) sg_free(d);
}

void sg_apple_describe(const struct sg_apple_world *w, char architecture[32], uint32_t *engines,
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

/* The system's build is the compiler's version. */
static void apple_compiler(const struct sg_ane_device *d, char out[64])
{
    char architecture[32];
    uint32_t engines, cores;
    sg_apple_describe(d->w, architecture, &engines, &cores);
    snprintf(out, 64, "%s %.24s", architecture, d->w->build);
}

static void apple_count(const struct sg_ane_device *d, struct sg_ane_counters *out) { *out = d->c; }

/* Everything that asks the service runs on the device's thread, within a limit. The job lies in memory of its
 * own: when the service does not answer, job and objects are left to it. */
struct job {
    struct sg_ane_device *d;
    struct sg_ane_program *p;
    segue_status (*work)(struct job *j);
    const struct sg_ane_source *source;
    const struct sg_ane_file *files;
    uint32_t files_n, procedure;
    struct sg_ane_surface *const *in, *const *out;
    segue_status status;
    segue_error err;
};

static void run_job(void *arg)
{
    struct job *j = arg;
    void *pool = j->d->w->pool_push();
    j->status = j->work(j);
    j->d->w->pool_pop(pool);
}

static segue_status ask(const struct job *given, uint64_t limit_ns, const char *what, segue_error *err)
{
    struct sg_ane_device *d = given->d;
    struct job *j = sg_alloc(sizeof *j);
    if (!j) return sg_no_memory("a request to the engine", sizeof *j, err);
    *j = *given;
    if (d->lost || !sg_patience_do(d->worker, run_job, j, limit_ns)) {
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

/* --- ports --- */

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

/* The symbol index of a port, by its name; outputs carry the suffix @output. */
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

/* Rows of the loaded program must lie where surfaces have them. */
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

/* Up to `tries` times, from 100 ms doubling to 1 s: after a failed compile the service may be restarting. */
static segue_status compile(struct job *j)
{
    world *w = j->d->w;
    uint64_t pause = 100000000u;
    for (uint32_t i = 0;; i++) {
        void *error = NULL;
        j->d->c.compiles++;
        if (SEND(work_options, j->p->model, "compileWithQoS:options:error:", QOS, empty(w), &error))
            return SEGUE_OK;
        if (i + 1 >= j->d->o.tries) return engine_failed(w, "compile", j->source->name, error, &j->err);
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
        if (!load(j, &error)) return engine_failed(w, "load", j->source->name, error, &j->err);
    }
    return bind_by_name(j->p, &j->err);
}

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

static segue_status reload_job(struct job *j)
{
    world *w = j->d->w;
    void *error = NULL;
    if (!SEND(work_plain, j->p->model, "unloadWithQoS:error:", QOS, &error))
        return engine_failed(w, "unload", j->p->name, error, &j->err);
    j->p->loaded = 0;
    released(w, j->p->request);
    j->p->request = NULL;
    SG_TRY(sg_apple_blobs_write(j->p->folder, j->files, j->files_n, &j->err));
    return load(j, &error) ? SEGUE_OK : engine_failed(w, "load", j->p->name, error, &j->err);
}

/* Files stay until the program is unloaded: the service reads them on demand. A lost device keeps everything.
 */
static void apple_unload(struct sg_ane_program *p)
{
    if (!p) return;
    struct sg_ane_device *d = p->base.device;
    if (d->lost ||
        ask(&(struct job){.d = d, .p = p, .work = unload_job}, d->o.load_ns, "unload", NULL) == SEGUE_ELOST)
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

static segue_status apple_load(struct sg_ane_device *d, const struct sg_ane_source *s,
                               struct sg_ane_program **out, segue_error *err)
{
    struct sg_ane_program *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("a program", sizeof *p, err);
    p->base = (struct sg_ane_program_base){&apple_ops, d};
    segue_status status = prepare(p, s, err);
    if (status == SEGUE_OK)
        status = ask(&(struct job){.d = d, .p = p, .work = load_job, .source = s}, d->o.compile_ns,
                     "compile and load", err);
    if (status != SEGUE_OK) {
        apple_unload(p);
        return status;
    }
    d->c.loads++;
    *out = p;
    return SEGUE_OK;
}

static segue_status apple_reload(struct sg_ane_program *p, const struct sg_ane_file *files, uint32_t files_n,
                                 segue_error *err)
{
    return ask(
        &(struct job){.d = p->base.device, .p = p, .work = reload_job, .files = files, .files_n = files_n},
        p->base.device->o.load_ns, "reload", err);
}

/* --- surfaces --- */

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

static void apple_surface_free(struct sg_ane_surface *s)
{
    if (!s) return;
    world *w = s->base.device->w;
    if (s->base.device->lost) return; /* the engine may still write into it */
    released(w, s->object);
    if (s->surface) w->release(s->surface);
    sg_free(s);
}

static segue_status apple_surface_new(struct sg_ane_device *d, uint64_t bytes, struct sg_ane_surface **out,
                                      segue_error *err)
{
    world *w = d->w;
    uint64_t unit = d->profile.surface_bytes, n = bytes ? (bytes + unit - 1) / unit * unit : unit;
    struct sg_ane_surface *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("a surface", sizeof *s, err);
    s->base = (struct sg_ane_surface_base){&apple_ops, d};
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

/* A request binds surfaces to symbol indices; it is kept while the same surfaces come again. */
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

static segue_status evaluate_job(struct job *j)
{
    world *w = j->d->w;
    void *error = NULL;
    SG_TRY(make_request(j));
    if (!SEND(work_request, j->p->model, "evaluateWithQoS:options:request:error:", QOS, empty(w),
              j->p->request, &error))
        return engine_failed(w, "evaluate", j->p->name, error, &j->err);
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
    SG_TRY(ask(
        &(struct job){
            .d = d, .p = p, .work = evaluate_job, .procedure = procedure, .in = inputs, .out = outputs},
        d->o.evaluate_ns, "evaluate", err));
    const struct procedure *q = &p->procedures[procedure];
    d->c.dispatches++;
    for (uint32_t i = 0; i < q->in_n; i++) d->c.input_bytes += q->in[i].surface_bytes;
    for (uint32_t i = 0; i < q->out_n; i++) d->c.output_bytes += q->out[i].surface_bytes;
    return SEGUE_OK;
}

static const struct sg_ane_device_ops apple_ops = {
    .close = apple_close,
    .load = apple_load,
    .unload = apple_unload,
    .reload = apple_reload,
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
