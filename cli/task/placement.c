/* placement.c: see placement.h. A unit that was named is opened or the command ends; nothing falls back.
 * SPDX-License-Identifier: MIT */
#include "task/placement.h"
#include "task/folders.h"
#include "task/machine.h"
#include "bench/pipeline.h"
#include "term/progress.h"

#include <stdlib.h>
#include <string.h>

static segue_status try_model(struct place *p, const struct args *args, segue_error *err)
{
    *p = (struct place){0};
    uint64_t begun = out_now_ns();
    segue_model_opts opts = SEGUE_INIT(segue_model_opts);
    if (args_find(args->command, "storage", 7)) p->storage = opts.storage = args_text(args, "storage");
    segue_status st = folders_model(args, &p->path, err);
    if (!st) st = segue_model_open(&p->model, p->path, &opts, err);
    if (!st) {
        p->info = SEGUE_INIT(segue_model_info);
        st = segue_model_info_get(p->model, &p->info, err);
    }
    p->load_ns = out_now_ns() - begun;
    if (!st && p->info.warning) out_note("%s: tokenizer: %s", p->path, p->info.warning);
    return st;
}

/* EUNSUPPORTED here is about the file, so exit 4. */
int place_open_model(struct place *p, const struct args *args)
{
    segue_error err;
    if (!try_model(p, args, &err)) return EXIT_DONE;
    int code = out_error(&err, EXIT_REFUSED);
    place_close(p);
    return code;
}

/* Threads are a property of cpu units; a unit that is not one is left as it was opened. */
segue_status place_unit(segue_unit **out, const char *spec, unsigned threads, segue_error *err)
{
    segue_unit_info info = SEGUE_INIT(segue_unit_info);
    segue_status st = segue_unit_open(out, spec, err);
    if (!st && !threads) return SEGUE_OK;
    if (!st) st = segue_unit_info_get(*out, &info, err);
    if (st) return st;
    const char *base = spec ? spec : info.kind;
    const char *inner = strncmp(base, "proc:", 5) ? base : base + 5; /* the unit in a process of its own */
    if ((strcmp(info.kind, "cpu") != 0 && strncmp(inner, "cpu", 3) != 0) || strstr(base, "threads=")) return SEGUE_OK;
    segue_unit_close(*out);
    *out = NULL;
    char *full = out_printf("%s%cthreads=%u", base, strchr(inner, ':') ? ',' : ':', threads);
    st = segue_unit_open(out, full, err);
    free(full);
    return st;
}

/* Cut "KEY=value" out of a spec: what is left is the unit's. The value (memory of the caller) holds no comma; NULL: none. */
static char *cut(char *spec, const char *key)
{
    char *at = spec;
    size_t key_n = strlen(key);
    while ((at = strstr(at, key)) && (at == spec || (at[-1] != ',' && at[-1] != ':'))) at++;
    if (!at) return NULL;
    size_t len = strcspn(at, ",");
    char *value = out_printf("%.*s", (int)(len - key_n), at + key_n), *tail = at + len + (at[len] == ',');
    memmove(at, tail, strlen(tail) + 1);
    size_t n = strlen(spec);
    if (n && (spec[n - 1] == ',' || spec[n - 1] == ':')) spec[n - 1] = 0;
    return value;
}

/* The model of one unit: another file (name NULL: the same), another storage (NULL: as all have it). */
static segue_status other_model(struct place *p, size_t at, const char *name, const char *storage, segue_error *err)
{
    char *path = NULL;
    segue_model_opts opts = SEGUE_INIT(segue_model_opts);
    opts.storage = storage ? storage : p->storage;
    segue_status st = name ? folders_model_named(name, &path, err) : SEGUE_OK;
    if (!st) st = segue_model_open(&p->models[at], path ? path : p->path, &opts, err);
    p->model_info[at] = SEGUE_INIT(segue_model_info);
    if (!st) st = segue_model_info_get(p->models[at], &p->model_info[at], err);
    free(path);
    return st;
}

static segue_status open_unit(struct place *p, size_t at, const char *spec, unsigned threads,
                              segue_error *err)
{
    char *unit = spec ? out_strdup(spec) : NULL, *path = unit ? cut(unit, "model=") : NULL,
         *storage = unit ? cut(unit, "storage=") : NULL;
    segue_status st = place_unit(&p->units[at], unit, threads, err);
    if (!st && (path || storage)) st = other_model(p, at, path, storage, err);
    free(path);
    free(storage);
    free(unit);
    return st;
}

/* The place of a unit among p->units; opened when it is new. */
static segue_status unit_index(struct place *p, const char *spec, unsigned threads, uint32_t *index,
                               segue_error *err)
{
    for (size_t i = 0; i < p->units_n; i++)
        if ((!spec && !p->specs[i]) || (spec && p->specs[i] && !strcmp(spec, p->specs[i]))) {
            *index = (uint32_t)i;
            return SEGUE_OK;
        }
    if (p->units_n == PLACE_UNITS)
        return out_fail(err, SEGUE_EARG, "units: more than %d named; name fewer", PLACE_UNITS);
    size_t at = p->units_n;
    segue_status st = open_unit(p, at, spec, threads, err);
    if (st) return st;
    p->unit_info[at] = SEGUE_INIT(segue_unit_info);
    *index = (uint32_t)at;
    st = segue_unit_info_get(p->units[at], &p->unit_info[at], err);
    if (st) return st;
    for (size_t i = 0; i < at; i++)
        if ((!spec || !p->specs[i]) && !p->models[i] && !p->models[at] &&
            !strcmp(p->unit_info[i].spec, p->unit_info[at].spec)) { /* the fastest one is this one */
            segue_unit_close(p->units[at]);
            p->units[at] = NULL;
            *index = (uint32_t)i;
            return SEGUE_OK;
        }
    p->specs[at] = spec ? out_strdup(spec) : NULL;
    p->units_n++;
    return SEGUE_OK;
}

/* "U@A-B" -> unit, layers [A, B + 1); without @: all layers. */
static segue_status add_part(struct place *p, const char *text, uint32_t phase, unsigned threads,
                             segue_error *err)
{
    char *spec = out_strdup(text), *at = strrchr(spec, '@');
    segue_part part = {.phase = phase, .from = 0, .to = p->info.layers, .expect_j = -1};
    segue_status st = SEGUE_OK;
    if (at) {
        unsigned a, b;
        char rest;
        *at = 0;
        if (sscanf(at + 1, "%u-%u%c", &a, &b, &rest) != 2 || a > b || b >= p->info.layers)
            st = out_fail(err, SEGUE_EARG, "layers: %.100s: give A-B with A <= B <= %u", text,
                          p->info.layers - 1);
        else {
            part.from = a;
            part.to = b + 1;
        }
    }
    if (!st && p->plan.parts_n == 8) st = out_fail(err, SEGUE_EARG, "plan: more than 8 parts; name fewer");
    if (!st) st = unit_index(p, spec, threads, &part.unit, err);
    if (!st) p->plan.parts[p->plan.parts_n++] = part;
    free(spec);
    return st;
}

/* A phase of a pipeline: all layers on one unit. */
static segue_status pipeline_part(struct place *p, const char *spec, uint32_t phase, unsigned threads,
                                  segue_error *err)
{
    segue_part *part = &p->plan.parts[p->plan.parts_n++];
    *part = (segue_part){.phase = phase, .to = p->info.layers, .expect_j = -1};
    return unit_index(p, *spec ? spec : NULL, threads, &part->unit, err);
}

static segue_status open_pipeline(struct place *p, const struct args *args, unsigned threads,
                                  segue_error *err)
{
    struct pipeline pipeline;
    if (args_has(args, "unit") || args_has(args, "prefill") || args_has(args, "decode"))
        return out_fail(err, SEGUE_EARG,
                        "flag --pipeline: it names the units; leave out --unit, --prefill and --decode");
    p->pipeline = args_text(args, "pipeline");
    p->planned = true;
    segue_status st = pipeline_read(&pipeline, p->pipeline, err);
    memcpy(p->plan.shapes, pipeline.shapes, sizeof p->plan.shapes);
    if (!st) st = pipeline_part(p, pipeline.prefill, 0, threads, err);
    if (!st) st = pipeline_part(p, pipeline.decode, 1, threads, err);
    return st;
}

/* Without --prefill and --decode one unit does both. A phase that was not named falls to --unit. */
static segue_status open_units(struct place *p, const struct args *args, segue_error *err)
{
    static const char *const phases[] = {"prefill", "decode"};
    unsigned threads = (unsigned)args_number(args, "threads", 0);
    const char *all = args_text(args, "unit"), *text;
    p->plan = SEGUE_INIT(segue_plan);
    if (args_find(args->command, "pipeline", 8) && args_has(args, "pipeline"))
        return open_pipeline(p, args, threads, err);
    p->planned = args_has(args, "prefill") || args_has(args, "decode");
    uint32_t index;
    if (!p->planned) return unit_index(p, all, threads, &index, err);
    for (uint32_t phase = 0; phase < 2; phase++) {
        segue_status st = SEGUE_OK;
        size_t i = 0;
        for (; !st && (text = args_each(args, phases[phase], i)); i++)
            st = add_part(p, text, phase, threads, err);
        if (st) return st;
        if (i) continue;
        segue_part whole = {.phase = phase, .to = p->info.layers, .expect_j = -1};
        st = unit_index(p, all, threads, &whole.unit, err);
        if (st) return st;
        p->plan.parts[p->plan.parts_n++] = whole;
    }
    return SEGUE_OK;
}

/* A file whose name holds '=' is taken as it stands. */
segue_status place_adapter_open(segue_adapter **out, const segue_model *model, const char *text, segue_error *err)
{
    char *path = out_strdup(text), *sign = strrchr(path, '='), *end = NULL;
    float scale = 1;
    if (sign && sign[1] && !folders_is_file(text) && !folders_is_folder(text)) {
        float v = strtof(sign + 1, &end);
        if (!*end && v == v && v - v == 0) {
            scale = v;
            *sign = 0;
        }
    }
    segue_status st = segue_adapter_open(out, model, path, scale, err);
    free(path);
    return st;
}

segue_status place_adapter(struct place *p, const char *text, segue_error *err)
{
    if (p->adapters_n == PLACE_ADAPTERS)
        return out_fail(err, SEGUE_EARG, "adapters: more than %d; name fewer", PLACE_ADAPTERS);
    segue_status st = place_adapter_open(&p->adapters[p->adapters_n], p->model, text, err);
    if (!st) p->adapters_n++;
    return st;
}

static uint32_t kv_storage(const char *name)
{
    static const char *const names[] = {"", "f32", "f16", "bf16", "q8"};
    for (uint32_t i = 1; name && i < 5; i++)
        if (!strcmp(name, names[i])) return i;
    return SEGUE_KV_DEFAULT;
}

static uint64_t megabytes(const struct args *args, const char *name)
{
    return args_find(args->command, name, strlen(name)) ? (uint64_t)args_number(args, name, 0) << 20 : 0;
}

/* The prefix store: on when asked for, and in chat unless told otherwise; there a folder that cannot be made
 * costs the store, not the conversation. NULL: off. */
static char *store_folder(const struct args *args)
{
    segue_error err;
    const char *wish = args_find(args->command, "store", 5) ? args_text(args, "store") : "off";
    if (!wish) wish = strcmp(args->command->name, "chat") != 0 ? "off" : "auto";
    if (!strcmp(wish, "off")) return NULL;
    char *folder = folders_path("cache", "prefixes");
    if (!strcmp(wish, "on") || folders_make(folder, &err) == SEGUE_OK) return folder;
    out_note("%s; going on without the prefix store", err.text);
    free(folder);
    return NULL;
}

static segue_status place_engine(struct place *p, const struct args *args, unsigned flags, segue_error *err)
{
    segue_engine_opts opts = SEGUE_INIT(segue_engine_opts);
    opts.kv = kv_storage(args_text(args, "kv"));
    opts.chunk_rows = (uint32_t)args_number(args, "chunk", 0);
    opts.keep_values = flags & PLACE_KEEP_VALUES ? 1 : 0;
    char *cache = folders_home("cache"), *store = store_folder(args);
    opts.store = store;
    opts.store_memory_bytes = megabytes(args, "store-memory");
    opts.store_disk_bytes = megabytes(args, "store-disk");
    opts.cache = cache;
    opts.models = p->models;
    opts.plan = place_plan(p);
    bool quiet = args_find(args->command, "quiet", 5) && args_has(args, "quiet");
    struct progress_wait *wait = progress_wait_begin("placing the weights", quiet);
    segue_status st = segue_engine_open(&p->engine, p->model, p->units, p->units_n, &opts, err);
    progress_wait_end(wait);
    free(cache);
    free(store);
    return st;
}

/* EUNSUPPORTED is about units and features (exit 3) but for models and adapters, which are files. */
segue_status place_try(struct place *p, const struct args *args, unsigned flags, int *what, segue_error *err)
{
    *what = EXIT_REFUSED;
    segue_status st = try_model(p, args, err);
    if (st) return st;
    uint64_t begun = out_now_ns();
    *what = EXIT_NOT_HERE;
    st = open_units(p, args, err);
    const char *lora;
    for (size_t i = 0; !st && (lora = args_each(args, "lora", i)); i++) {
        st = place_adapter(p, lora, err);
        if (st) *what = EXIT_REFUSED;
    }
    if (!st) st = place_engine(p, args, flags, err);
    p->compile_ns = out_now_ns() - begun;
    machine_peak_bytes();
    return st;
}

int place_open(struct place *p, const struct args *args, unsigned flags)
{
    int what;
    segue_error err;
    if (!place_try(p, args, flags, &what, &err)) return EXIT_DONE;
    int code = out_error(&err, what);
    place_close(p);
    return code;
}

/* Children before parents, though the library would keep the parents alive. */
void place_close(struct place *p)
{
    for (size_t i = 0; i < p->adapters_n; i++) segue_adapter_close(p->adapters[i]);
    segue_engine_close(p->engine);
    for (size_t i = 0; i < PLACE_UNITS; i++) {
        segue_unit_close(p->units[i]);
        segue_model_close(p->models[i]);
        free(p->specs[i]);
    }
    segue_model_close(p->model);
    free(p->path);
    *p = (struct place){0};
}

const segue_plan *place_plan(const struct place *p) { return p->planned ? &p->plan : NULL; }
