/* placement.c: opens model, units, adapters and engine, see placement.h. A unit named by the user is opened or the
 * command fails; there is no fallback to another unit.
 * SPDX-License-Identifier: MIT */
#include "run/placement.h"
#include "host/folders.h"
#include "host/machine.h"
#include "host/model_names.h"
#include "host/find_model.h"
#include "plan/expected_task.h"
#include "plan/follow.h"
#include "run/pipeline.h"
#include "term/progress.h"

#include <stdlib.h>
#include <string.h>

/* Reset *p and open the model of -m. Prints a warning of the tokenizer, if any. */
static segue_status open_model(struct placement *p, const struct args *args, segue_error *err)
{
    *p = (struct placement){0};
    uint64_t start_ns = out_now_ns();
    segue_model_opts opts = SEGUE_INIT(segue_model_opts);
    const char *storage = args_find(args->command, "storage", 7) ? args_text(args, "storage") : NULL;
    if (storage && !strcmp(storage, "fp8"))
        p->storage = opts.storage = storage;
    else
        p->compressed = storage;
    segue_status st = find_model(args, &p->path, err);
    if (!st) st = segue_model_open(&p->model, p->path, &opts, err);
    if (!st) {
        p->info = SEGUE_INIT(segue_model_info);
        st = segue_model_info_get(p->model, &p->info, err);
    }
    p->load_ns = out_now_ns() - start_ns;
    if (!st && p->info.warning) out_note("%s: tokenizer: %s", p->path, p->info.warning);
    return st;
}

/* SEGUE_EUNSUPPORTED concerns the file here, so the exit code is 4. */
int placement_open_model(struct placement *p, const struct args *args)
{
    segue_error err;
    if (!open_model(p, args, &err)) return EXIT_DONE;
    int code = out_error(&err, EXIT_BAD_INPUT);
    placement_close(p);
    return code;
}

/* The spec of the CPU unit carries its thread count, so the unit is reopened with threads=N, also inside a proc:
 * unit. Other units, and specs that already have threads=, are left as they are. */
segue_status placement_open_unit(segue_unit **out, const char *spec, unsigned threads, segue_error *err)
{
    segue_unit_info info = SEGUE_INIT(segue_unit_info);
    segue_status st = segue_unit_open(out, spec, err);
    if (!st && !threads) return SEGUE_OK;
    if (!st) st = segue_unit_info_get(*out, &info, err);
    if (st) return st;
    const char *base = spec ? spec : info.kind;
    const char *inner = strncmp(base, "proc:", 5) ? base : base + 5; /* the unit inside proc: */
    if ((strcmp(info.kind, "cpu") != 0 && strncmp(inner, "cpu", 3) != 0) || strstr(base, "threads=")) return SEGUE_OK;
    segue_unit_close(*out);
    *out = NULL;
    char *full = out_printf("%s%cthreads=%u", base, strchr(inner, ':') ? ',' : ':', threads);
    st = segue_unit_open(out, full, err);
    free(full);
    return st;
}

/* Remove "KEY=value" from a unit spec; the rest is passed to the unit. key includes the '='. Returns the value,
 * allocated, which ends at the next comma; NULL: the key is absent. */
static char *take_option(char *spec, const char *key)
{
    char *at = spec;
    size_t key_n = strlen(key);
    while ((at = strstr(at, key)) && (at == spec || (at[-1] != ',' && at[-1] != ':'))) at++;
    if (!at) return NULL;
    size_t len = strcspn(at, ",");
    char *value = out_printf("%.*s", (int)(len - key_n), at + key_n), *rest = at + len + (at[len] == ',');
    memmove(at, rest, strlen(rest) + 1);
    size_t n = strlen(spec);
    if (n && (spec[n - 1] == ',' || spec[n - 1] == ':')) spec[n - 1] = 0;
    return value;
}

/* Open a separate model for one unit: another file (name NULL: the same file), or another storage (NULL: that of
 * --storage). */
static segue_status open_unit_model(struct placement *p, size_t at, const char *name, const char *storage, segue_error *err)
{
    char *path = NULL;
    segue_model_opts opts = SEGUE_INIT(segue_model_opts);
    opts.storage = storage ? storage : p->storage;
    segue_status st = name ? model_names_find(name, &path, err) : SEGUE_OK;
    if (!st) st = segue_model_open(&p->models[at], path ? path : p->path, &opts, err);
    p->model_info[at] = SEGUE_INIT(segue_model_info);
    if (!st) st = segue_model_info_get(p->models[at], &p->model_info[at], err);
    free(path);
    return st;
}

/* Moves storage=X back to the spec of a unit `ane`, whose programs have compressed weights, from the spec or from --storage.
 * *storage: fp8 stays, which is a property of the model. */
static char *with_compressed(struct placement *p, char *unit, char **storage)
{
    const char *kind = unit && !strncmp(unit, "proc:", 5) ? unit + 5 : unit;
    const char *wanted = *storage && strcmp(*storage, "fp8") != 0 ? *storage : p->compressed;
    if (!wanted || !kind || strncmp(kind, "ane", 3) != 0 || (kind[3] && kind[3] != ':')) return unit;
    char *full = out_printf("%s%cstorage=%s", unit, kind[3] ? ',' : ':', wanted);
    if (wanted == *storage) {
        free(*storage);
        *storage = NULL;
    }
    p->compressed_units++;
    free(unit);
    return full;
}

/* Open units[at] by its spec, after removing the keys model= and storage=, which are handled here. */
static segue_status open_unit(struct placement *p, size_t at, const char *spec, unsigned threads,
                              segue_error *err)
{
    char *unit = spec ? out_strdup(spec) : NULL, *path = unit ? take_option(unit, "model=") : NULL,
         *storage = unit ? take_option(unit, "storage=") : NULL;
    unit = with_compressed(p, unit, &storage);
    segue_status st = placement_open_unit(&p->units[at], unit, threads, err);
    if (!st && (path || storage)) st = open_unit_model(p, at, path, storage, err);
    free(path);
    free(storage);
    free(unit);
    return st;
}

/* Index in p->units of the unit with this spec; the unit is opened if it is new. spec NULL: the fastest unit. If that
 * turns out to be a unit that is already open, the second handle is closed and the index of the first one returned. */
static segue_status unit_index(struct placement *p, const char *spec, unsigned threads, uint32_t *index,
                               segue_error *err)
{
    for (size_t i = 0; i < p->units_n; i++)
        if ((!spec && !p->specs[i]) || (spec && p->specs[i] && !strcmp(spec, p->specs[i]))) {
            *index = (uint32_t)i;
            return SEGUE_OK;
        }
    if (p->units_n == PLACEMENT_UNITS)
        return out_fail(err, SEGUE_EARG, "units: more than %d units; use fewer --prefill and --decode", PLACEMENT_UNITS);
    size_t at = p->units_n;
    segue_status st = open_unit(p, at, spec, threads, err);
    if (st) return st;
    p->unit_info[at] = SEGUE_INIT(segue_unit_info);
    *index = (uint32_t)at;
    st = segue_unit_info_get(p->units[at], &p->unit_info[at], err);
    if (st) return st;
    for (size_t i = 0; i < at; i++)
        if ((!spec || !p->specs[i]) && !p->models[i] && !p->models[at] &&
            !strcmp(p->unit_info[i].spec, p->unit_info[at].spec)) { /* the fastest unit is already open */
            segue_unit_close(p->units[at]);
            p->units[at] = NULL;
            *index = (uint32_t)i;
            return SEGUE_OK;
        }
    p->specs[at] = spec ? out_strdup(spec) : NULL;
    p->units_n++;
    return SEGUE_OK;
}

/* Add "U@A-B" to the plan: unit U runs layers A to B (inclusive) of a phase; without @ all layers. */
static segue_status add_plan_part(struct placement *p, const char *text, uint32_t phase, unsigned threads,
                             segue_error *err)
{
    char *spec = out_strdup(text), *at = strrchr(spec, '@');
    segue_part part = {.size = sizeof part, .phase = phase, .to = p->info.layers, .expect_j = -1};
    segue_status st = SEGUE_OK;
    if (at) {
        unsigned a, b;
        char rest;
        *at = 0;
        if (sscanf(at + 1, "%u-%u%c", &a, &b, &rest) != 2 || a > b || b >= p->info.layers)
            st = out_fail(err, SEGUE_EARG, "layers: %.100s: invalid range; expected A-B with A <= B <= %u", text,
                          p->info.layers - 1);
        else {
            part.from = a;
            part.to = b + 1;
        }
    }
    if (!st && p->parts_n == PLACEMENT_PARTS)
        st = out_fail(err, SEGUE_EARG, "plan: more than 16 parts; use fewer --prefill and --decode");
    if (!st) st = unit_index(p, spec, threads, &part.unit, err);
    if (!st) p->parts[p->parts_n++] = part;
    free(spec);
    return st;
}

/* Add a phase of a pipeline to the plan: all layers on one unit. An empty spec is the fastest unit. */
static segue_status pipeline_part(struct placement *p, const char *spec, uint32_t phase, unsigned threads,
                                  segue_error *err)
{
    segue_part *part = &p->parts[p->parts_n++];
    *part = (segue_part){.size = sizeof *part, .phase = phase, .to = p->info.layers, .expect_j = -1};
    return unit_index(p, *spec ? spec : NULL, threads, &part->unit, err);
}

/* Build the plan of --pipeline. The flags that name units exclude it. */
static segue_status open_pipeline(struct placement *p, const struct args *args, unsigned threads,
                                  segue_error *err)
{
    struct pipeline pipeline;
    if (args_has(args, "unit") || args_has(args, "prefill") || args_has(args, "decode"))
        return out_fail(err, SEGUE_EARG,
                        "flag --pipeline: cannot be combined with --unit, --prefill or --decode; remove one of them");
    p->pipeline = args_text(args, "pipeline");
    p->planned = true;
    segue_status st = pipeline_read(&pipeline, p->pipeline, err);
    memcpy(p->shapes, pipeline.shapes, sizeof p->shapes);
    if (!st) st = pipeline_part(p, pipeline.prefill, 0, threads, err);
    if (!st) st = pipeline_part(p, pipeline.decode, 1, threads, err);
    return st;
}

/* Adds the parts of a phase, U or U@A-B|V@C-D. failed: the unit that could not be opened. */
static segue_status add_followed(struct placement *p, const char *units, uint32_t phase, char failed[160], segue_error *err)
{
    segue_status st = SEGUE_OK;
    for (size_t n; *units && !st; units += n + (units[n] == '|')) {
        char part[160];
        n = strcspn(units, "|");
        snprintf(part, sizeof part, "%.*s", (int)n, units);
        snprintf(failed, 160, "%.*s", (int)strcspn(part, "@"), part);
        st = add_plan_part(p, part, phase, 0, err);
    }
    return st;
}

/* Opens the units of the plan. failed: the one that could not be opened; nothing is open then. */
static segue_status open_followed(struct placement *p, char failed[160], segue_error *err)
{
    const char *units[2] = {p->follow->prefill, p->follow->decode};
    segue_status st = SEGUE_OK;
    uint32_t index;
    p->planned = strcmp(units[0], units[1]) != 0 || strchr(units[0], '@');
    snprintf(failed, 160, "%s", units[0]);
    if (!p->planned) st = unit_index(p, units[0], 0, &index, err);
    for (uint32_t phase = 0; phase < 2 && p->planned && !st; phase++) st = add_followed(p, units[phase], phase, failed, err);
    if (!st) return SEGUE_OK;
    for (; p->units_n; p->units_n--) {
        segue_unit_close(p->units[p->units_n - 1]);
        free(p->specs[p->units_n - 1]);
        p->units[p->units_n - 1] = NULL;
        p->specs[p->units_n - 1] = NULL;
    }
    p->parts_n = 0;
    p->planned = false;
    return st;
}

/* run, chat and serve without a named unit follow the plan, if this machine was calibrated, and say so. A unit of the calibration
 * that is no longer there is named, and the plan made again without it. */
static segue_status follow_plan(struct placement *p, const struct args *args, const struct first_message *first, bool *followed,
                                segue_error *err)
{
    const char *name = args->command->name;
    char failed[160];
    bool quiet = args_find(args->command, "quiet", 5) && args_has(args, "quiet");
    *followed = false;
    if ((strcmp(name, "run") != 0 && strcmp(name, "chat") != 0 && strcmp(name, "serve") != 0) || args_has(args, "threads"))
        return SEGUE_OK;
    p->follow = follow_open(p->model, &p->follow_why);
    if (!p->follow) return SEGUE_OK;
    /* Only now: a prompt is tokenized to be counted. */
    struct expected_task task;
    expected_task_of(&task, args, p->model, &p->info, first ? first->read(first->context) : NULL);
    while (follow_choose(p->follow, &task)) {
        segue_status st = open_followed(p, failed, err);
        if (st == SEGUE_EUNIT || st == SEGUE_EUNSUPPORTED) {
            if (!quiet) out_note("plan: %s; planned without it, see segue calibrate", err->text);
            follow_leave_out(p->follow, failed);
            continue;
        }
        *followed = !st;
        if (!st && !quiet) follow_say(p->follow);
        return st;
    }
    follow_free(p->follow);
    p->follow = NULL;
    p->follow_why = "no measured unit can run the model, or none can be opened";
    return SEGUE_OK;
}

/* Without --prefill and --decode one unit runs both phases. If only one of them is given, the other phase runs on
 * --unit. */
static segue_status open_units(struct placement *p, const struct args *args, const struct first_message *first, segue_error *err)
{
    static const char *const phases[] = {"prefill", "decode"};
    unsigned threads = (unsigned)args_number(args, "threads", 0);
    const char *all = args_text(args, "unit"), *text;
    if (args_find(args->command, "pipeline", 8) && args_has(args, "pipeline"))
        return open_pipeline(p, args, threads, err);
    p->planned = args_has(args, "prefill") || args_has(args, "decode");
    uint32_t index;
    bool followed = false;
    if (!p->planned && !all) {
        segue_status st = follow_plan(p, args, first, &followed, err);
        if (st || followed) return st;
    }
    if (!p->planned) return unit_index(p, all, threads, &index, err);
    for (uint32_t phase = 0; phase < 2; phase++) {
        segue_status st = SEGUE_OK;
        size_t i = 0;
        for (; !st && (text = args_nth(args, phases[phase], i)); i++)
            st = add_plan_part(p, text, phase, threads, err);
        if (st) return st;
        if (i) continue;
        segue_part whole = {.size = sizeof whole, .phase = phase, .to = p->info.layers, .expect_j = -1};
        st = unit_index(p, all, threads, &whole.unit, err);
        if (st) return st;
        p->parts[p->parts_n++] = whole;
    }
    return SEGUE_OK;
}

/* Make the plan of the parts that the flags have named. */
static segue_status make_plan(struct placement *p, segue_error *err)
{
    segue_plan_opts opts = SEGUE_INIT(segue_plan_opts);
    memcpy(opts.shapes, p->shapes, sizeof opts.shapes);
    return segue_plan_new(&p->plan, p->parts, p->parts_n, &opts, err);
}

/* PATH may contain '=': if a file or folder of the whole text exists, the text is the path. Otherwise the number after
 * the last '=' is the scale. */
char *placement_adapter_path(const char *text, float *scale)
{
    char *path = out_strdup(text), *sign = strrchr(path, '='), *end = NULL;
    *scale = 1;
    if (sign && sign[1] && !folders_is_file(text) && !folders_is_folder(text)) {
        float v = strtof(sign + 1, &end);
        if (!*end && v == v && v - v == 0) {
            *scale = v;
            *sign = 0;
        }
    }
    return path;
}

segue_status placement_load_adapter(segue_adapter **out, const segue_model *model, const char *text, segue_error *err)
{
    float scale;
    char *path = placement_adapter_path(text, &scale);
    segue_status st = segue_adapter_open(out, model, path, scale, err);
    free(path);
    return st;
}

/* The adapters apply to every session that is opened without its own list. */
segue_status placement_add_adapter(struct placement *p, const char *text, segue_error *err)
{
    if (p->adapters_n == PLACEMENT_ADAPTERS)
        return out_fail(err, SEGUE_EARG, "adapters: more than %d adapters; remove some --lora flags", PLACEMENT_ADAPTERS);
    segue_status st = placement_load_adapter(&p->adapters[p->adapters_n], p->model, text, err);
    if (!st) p->adapters_n++;
    return st;
}

/* The number of a KV cache type in segue.h, by the name of --kv. */
static segue_kv kv_storage_of(const char *name)
{
    static const char *const names[] = {"", "f32", "f16", "bf16", "q8"};
    for (uint32_t i = 1; name && i < 5; i++)
        if (!strcmp(name, names[i])) return (segue_kv)i;
    return SEGUE_KV_DEFAULT;
}

/* The value of a flag in MiB as bytes; 0: the command has no such flag, or it was not given. */
static uint64_t megabytes(const struct args *args, const char *name)
{
    return args_find(args->command, name, strlen(name)) ? (uint64_t)args_number(args, name, 0) << 20 : 0;
}

/* Folder of the prefix store; NULL: off; "": in memory, the default of serve. It is on with --store on, and by default in
 * chat. If the folder cannot be created, or is not this user's, --store on fails later, while chat continues without it. */
static char *store_folder(const struct args *args)
{
    segue_error err;
    const char *mode = args_find(args->command, "store", 5) ? args_text(args, "store") : "off";
    if (!strcmp(args->command->name, "serve") && (!mode || !strcmp(mode, "memory"))) return out_strdup("");
    if (!mode) mode = strcmp(args->command->name, "chat") != 0 ? "off" : "auto";
    if (!strcmp(mode, "off")) return NULL;
    char *folder = folders_path("cache", "prefixes");
    if (!strcmp(mode, "on")) return folder;
    if (folders_make(folder, &err) == SEGUE_OK && folders_check_owner(folder, &err) == SEGUE_OK) return folder;
    out_note("%s; continuing without the prefix store", err.text);
    free(folder);
    return NULL;
}

/* What is shown while weights are loaded: a line without figures until the unit reports the first bytes, then a progress line. */
struct load_line {
    struct progress_wait *wait;
    struct progress bar;
};

/* segue_engine_opts.progress. A signal ends the process by itself, so loading is never canceled here. */
static int show_loaded(void *context, uint64_t done, uint64_t total)
{
    struct load_line *line = context;
    if (!done) return 0;
    progress_wait_end(line->wait);
    line->wait = NULL;
    progress_step(&line->bar, done, total, true);
    return 0;
}

/* Build the engine: packs the weights for every unit and compiles programs, which may take long. */
static segue_status open_engine(struct placement *p, const struct args *args, unsigned flags, segue_error *err)
{
    segue_engine_opts opts = SEGUE_INIT(segue_engine_opts);
    if (p->compressed && !p->compressed_units)
        return out_fail(err, SEGUE_EUNSUPPORTED,
                        "flag --storage: %s: only programs of the unit ane have it; use fp8, or --unit ane", p->compressed);
    opts.kv = kv_storage_of(args_text(args, "kv"));
    opts.chunk_tokens = (uint32_t)args_number(args, "chunk", 0);
    opts.keep_values = flags & PLACEMENT_KEEP_VALUES ? 1 : 0;
    opts.embeddings = flags & PLACEMENT_EMBEDDINGS ? 1 : 0;
    char *cache = folders_home("cache"), *store = store_folder(args);
    opts.store = store;
    opts.store_memory_bytes = megabytes(args, "store-memory");
    opts.store_disk_bytes = megabytes(args, "store-disk");
    opts.deterministic = args_find(args->command, "deterministic", 13) && args_has(args, "deterministic");
    opts.cache = cache;
    opts.models = p->models;
    opts.plan = placement_plan(p);
    bool quiet = args_find(args->command, "quiet", 5) && args_has(args, "quiet");
    struct load_line line = {.wait = progress_wait_begin("preparing the weights", quiet)};
    progress_begin(&line.bar, "preparing the weights", quiet);
    opts.progress = show_loaded;
    opts.progress_context = &line;
    segue_status st = segue_engine_open(&p->engine, p->model, p->units, p->units_n, &opts, err);
    progress_wait_end(line.wait);
    progress_end(&line.bar);
    free(cache);
    free(store);
    return st;
}

/* SEGUE_EUNSUPPORTED concerns units and features (exit 3), except for models and adapters, which are files (exit 4). */
segue_status placement_try(struct placement *p, const struct args *args, unsigned flags, const struct first_message *first,
                           int *unsupported_code, segue_error *err)
{
    *unsupported_code = EXIT_BAD_INPUT;
    segue_status st = open_model(p, args, err);
    if (st) return st;
    uint64_t start_ns = out_now_ns();
    *unsupported_code = EXIT_UNAVAILABLE;
    st = open_units(p, args, first, err);
    const char *lora;
    for (size_t i = 0; !st && (lora = args_nth(args, "lora", i)); i++) {
        st = placement_add_adapter(p, lora, err);
        if (st) *unsupported_code = EXIT_BAD_INPUT;
    }
    if (!st && p->planned) st = make_plan(p, err);
    if (!st) st = open_engine(p, args, flags, err);
    p->compile_ns = out_now_ns() - start_ns;
    machine_peak_bytes();
    return st;
}

/* Beyond the trained length models repeat themselves; the figures of a run do not show it. */
static void warn_about_context(const struct placement *p, const struct args *args)
{
    double context = args_find(args->command, "context", 7) ? args_number(args, "context", 0) : 0;
    if (p->info.context && context > p->info.context)
        out_note("context: %.0f tokens: the model was trained on at most %u; beyond them its answers lose their sense", context,
                 p->info.context);
}

int placement_open(struct placement *p, const struct args *args, unsigned flags)
{
    return placement_open_for(p, args, flags, NULL);
}

int placement_open_for(struct placement *p, const struct args *args, unsigned flags, const struct first_message *first)
{
    int unsupported_code;
    segue_error err;
    if (!placement_try(p, args, flags, first, &unsupported_code, &err)) {
        warn_about_context(p, args);
        return EXIT_DONE;
    }
    int code = out_error(&err, unsupported_code);
    placement_close(p);
    return code;
}

/* Children before parents. Safe on a partly opened placement. */
void placement_close(struct placement *p)
{
    for (size_t i = 0; i < p->adapters_n; i++) segue_adapter_close(p->adapters[i]);
    segue_engine_close(p->engine);
    segue_plan_close(p->plan);
    for (size_t i = 0; i < PLACEMENT_UNITS; i++) {
        segue_unit_close(p->units[i]);
        segue_model_close(p->models[i]);
        free(p->specs[i]);
    }
    segue_model_close(p->model);
    follow_free(p->follow);
    free(p->path);
    *p = (struct placement){0};
}

const segue_plan *placement_plan(const struct placement *p) { return p->plan; }
