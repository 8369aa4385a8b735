/* ane.c: the unit `ane`, the Apple Neural Engine: its table, its options and its description. Without an engine, or when the
 * spec says `soft`, the unit uses the software NPU and is described as simulated; `linux` uses the open driver. The unit is used
 * only when it is named: neither interface to an engine has run on a device yet. See aneunit.h.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit/ane/aneunit.h"
#include "unit/ane/libane/libane.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/train/anetrain.h"
#include "unit/spec.h"

extern const struct sg_unit_ops sg_unit_ane;

/* What computes. */
enum engine { ENGINE_MAC, ENGINE_LINUX, ENGINE_SOFTWARE };

/* The description of a unit. `half`: it computes in fp16. */
static void describe_one(struct sg_unit_desc *d, const char *spec, const char *profile, enum engine engine)
{
    static const char *const texts[][2] = {{"neural engine, limits of", "private interface"},
                                           {"neural engine, limits of", "open Linux driver"},
                                           {"software NPU, profile", "simulated"}};
    *d = (struct sg_unit_desc){.lanes = 1, .half = 1, .kv = SG_KV_F16_ONLY, .fits_kv = 1, .named_only = 1, .select_late = 1};
    d->info.size = sizeof d->info;
    d->info.built = d->info.present = 1;
    d->info.simulated = engine == ENGINE_SOFTWARE;
    snprintf(d->info.spec, sizeof d->info.spec, "%.63s", spec);
    snprintf(d->info.kind, sizeof d->info.kind, "ane");
    snprintf(d->info.features, sizeof d->info.features, "%s %s, fp16; %s", texts[engine][0], profile, texts[engine][1]);
}

/* There is one engine per machine; the software NPU is listed in its place where there is none. */
static segue_status ane_list(struct sg_unit_desc *out, size_t cap, size_t *n, segue_error *err)
{
    struct sg_apple_api api;
    (void)err;
    if (cap) describe_one(out, "ane", "strict", sg_apple_api_here(&api, NULL) == SEGUE_OK ? ENGINE_MAC : ENGINE_SOFTWARE);
    *n = 1;
    return SEGUE_OK;
}

/* Reads an integer option; *out is unchanged when it is absent. EARG: not a number in [min, max]. */
static segue_status read_number(const struct sg_unit_spec *spec, const char *key, unsigned long min, unsigned long max,
                                uint32_t *out, segue_error *err)
{
    const char *text = sg_spec_value(spec, key);
    char *end;
    if (!text) return SEGUE_OK;
    unsigned long v = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || v < min || v > max)
        return sg_fail(err, SEGUE_EARG, "open unit: %s: %s=%s; use %lu to %lu", spec->text, key, text, min, max);
    *out = (uint32_t)v;
    return SEGUE_OK;
}

/* Reads an option with two allowed values; *out is 1 for `yes`, 0 for `no` or when it is absent. */
static segue_status read_choice(const struct sg_unit_spec *spec, const char *key, const char *no, const char *yes,
                                uint32_t *out, segue_error *err)
{
    const char *text = sg_spec_value(spec, key);
    *out = text && !strcmp(text, yes);
    if (!text || *out || !strcmp(text, no)) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "open unit: %s: %s=%s; use %s or %s", spec->text, key, text, no, yes);
}

/* Option out_of_range: refuse; fp32: on the host; count: neither, the default where the engine's mistakes are to be seen. */
static segue_status read_losses(const struct sg_unit_spec *spec, struct sg_unit *u, int faithful, segue_error *err)
{
    static const char *const names[] = {"refuse", "fp32", "count"};
    const char *text = sg_spec_value(spec, "out_of_range");
    u->losses = faithful ? ANE_LOSSES_COUNT : ANE_LOSSES_REFUSE;
    if (!text) return SEGUE_OK;
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i])) {
            u->losses = i;
            return SEGUE_OK;
        }
    return sg_fail(err, SEGUE_EARG, "open unit: %s: out_of_range=%s; use refuse, fp32 or count", spec->text, text);
}

/* Parses the unit spec. rows is 1 or a power of two from 32 to 512, keys a power of two from 32 to 4096: the engine pads the
 * last dimension to 32 elements, and powers of two keep the number of compiled shapes small. */
static segue_status read_spec(const struct sg_unit_spec *spec, struct sg_unit *u, struct sg_npu_opts *o,
                              segue_error *err)
{
    static const char *const keys[] = {"",     "profile", "weights", "compiles",     "on_violation", "threads",
                                       "rows", "keys",    "layers",  "range",        "out_of_range", "storage",
                                       "head", "programs", "retain", "wired",        "evaluate",     "fault",   NULL};
    const char *profile = sg_spec_value(spec, "profile");
    SG_TRY(sg_spec_only(spec, keys, err));
    SG_TRY(sg_ane_profile_named(&o->profile, profile ? profile : "strict", err));
    SG_TRY(read_choice(spec, "weights", "frozen", "delta", &o->delta, err));
    SG_TRY(read_choice(spec, "on_violation", "refuse", "faithful", &o->faithful, err));
    SG_TRY(read_number(spec, "compiles", 1, 1000000, &o->compiles, err));
    SG_TRY(read_number(spec, "threads", 1, 256, &o->threads, err));
    SG_TRY(read_number(spec, "rows", 1, ANE_ROWS_MAX, &u->rows, err));
    SG_TRY(read_number(spec, "keys", 1, ANE_KEYS_MAX, &u->keys, err));
    SG_TRY(read_number(spec, "layers", 1, 4096, &u->layers, err));
    SG_TRY(read_choice(spec, "range", "weights", "none", &u->by_weights, err));
    u->by_weights = !u->by_weights;
    SG_TRY(read_choice(spec, "head", "helper", "engine", &u->head, err));
    SG_TRY(sg_fault_read(spec, &u->fault, err));
    u->threads = o->threads;
    if (sg_spec_value(spec, "storage"))
        SG_TRY(sg_ane_storage_named(&u->storage, sg_spec_value(spec, "storage"), "open unit", err));
    SG_TRY(read_losses(spec, u, o->faithful != 0, err));
    /* Not every number in the range is a shape. */
    if (u->rows > 1 && (u->rows < 32 || (u->rows & (u->rows - 1))))
        return sg_fail(err, SEGUE_EARG, "open unit: %s: rows=%u; use 1, 32, 64, 128, 256 or 512", spec->text, u->rows);
    if (u->keys && (u->keys < SG_ANE_PAD || (u->keys & (u->keys - 1))))
        return sg_fail(err, SEGUE_EARG, "open unit: %s: keys=%u; use a power of two from 32 to 4096", spec->text, u->keys);
    u->profile = o->profile;
    u->delta = o->delta ? ANE_DELTA_ASKED : ANE_DELTA_OFF;
    return SEGUE_OK;
}

/* Also for a unit that ane_open_on left incomplete. Programs and states were freed by the caller. */
static void ane_close(struct sg_unit *u)
{
    if (!u) return;
    if (u->device) sg_ane_ops_of(u->device)->close(u->device);
    if (u->wide) sg_ane_ops_of(u->wide)->close(u->wide);
    if (u->pool) sg_pool_close(u->pool);
    sg_free(u);
}

/* Options of the software NPU. */
static segue_status refuse_software_options(const struct sg_unit_spec *spec, segue_error *err)
{
    static const char *const keys[] = {"on_violation", "compiles", "fault"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (sg_spec_value(spec, keys[i]))
            return sg_fail(err, SEGUE_EARG, "open unit: %s: %s is an option of the software NPU; use ane:soft", spec->text,
                           keys[i]);
    return SEGUE_OK;
}

/* Opens the real engine of a Mac. Without option profile= the limits follow the chip: the first three characters of its
 * architecture are an alias of a profile; "h13g" gives h13, the profile m1. An unknown one keeps the strict profile, the
 * limits of all chips. */
static segue_status open_mac(struct sg_unit *u, const struct sg_unit_spec *spec, segue_error *err)
{
    char architecture[32];
    uint32_t engines, cores;
    struct sg_apple_opts o = {0};
    SG_TRY(refuse_software_options(spec, err));
    SG_TRY(read_number(spec, "retain", 0, 1, &o.retain, err));
    SG_TRY(read_number(spec, "wired", 0, 1, &o.wired, err));
    SG_TRY(read_choice(spec, "evaluate", "usual", "realtime", &o.real_time, err));
    sg_apple_describe(&u->api, architecture, &engines, &cores);
    architecture[3] = 0;
    if (!sg_spec_value(spec, "profile")) (void)sg_ane_profile_named(&u->profile, architecture, NULL);
    return sg_apple_open(&u->device, &u->api, &o, err);
}

static segue_status open_linux(struct sg_unit *u, const struct sg_unit_spec *spec, segue_error *err)
{
    struct sg_libane_api api;
    const char *folder = sg_spec_value(spec, "programs");
    SG_TRY(refuse_software_options(spec, err));
    if (!folder)
        return sg_fail(err, SEGUE_EARG, "open unit: %s: programs=FOLDER is missing; give the folder of compiled programs",
                       spec->text);
    SG_TRY(sg_libane_find(&api, err));
    return sg_libane_open(&u->device, &api, folder, err);
}

/* Columns of fp16 that fill whole rows of surfaces, after the profile is known. */
static segue_status set_columns(struct sg_unit *u, const struct sg_unit_spec *spec, segue_error *err)
{
    uint32_t row = sg_ane_row_columns(&u->profile);
    u->columns = row > SG_ANE_PAD ? row : SG_ANE_PAD;
    if (!u->keys || u->keys % u->columns == 0) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "open unit: %s: keys=%u; the profile %s needs multiples of %u", spec->text, u->keys,
                   u->profile.name, u->columns);
}

/* The engine that a spec means; api NULL: this machine has no private interface. */
static segue_status engine_of(const struct sg_unit_spec *spec, const struct sg_apple_api *api, enum engine *out, segue_error *err)
{
    const char *text = sg_spec_value(spec, "");
    *out = !text ? (api ? ENGINE_MAC : ENGINE_SOFTWARE) : !strcmp(text, "linux") ? ENGINE_LINUX : ENGINE_SOFTWARE;
    if (text && *out == ENGINE_SOFTWARE && strcmp(text, "soft") != 0)
        return sg_fail(err, SEGUE_EARG, "open unit: %s: '%s' is not an option; use soft, linux, or nothing", spec->text, text);
    if (*out != ENGINE_MAC &&
        (sg_spec_value(spec, "retain") || sg_spec_value(spec, "wired") || sg_spec_value(spec, "evaluate")))
        return sg_fail(err, SEGUE_EARG, "open unit: %s: retain, wired and evaluate are options of the engine of a Mac; remove "
                       "them", spec->text);
    if (*out != ENGINE_LINUX && sg_spec_value(spec, "programs"))
        return sg_fail(err, SEGUE_EARG, "open unit: %s: programs= is an option of ane:linux; remove it", spec->text);
    return SEGUE_OK;
}

/* The pool for host operations has as many threads as the software NPU: both compute at different times. */
segue_status ane_open_on(struct sg_unit **out, const struct sg_unit_spec *spec, const struct sg_apple_api *api,
                         segue_error *err)
{
    struct sg_npu_opts o = {0};
    enum engine engine;
    SG_TRY(engine_of(spec, api, &engine, err));
    struct sg_unit *u = sg_alloc(sizeof *u);
    if (!u) return sg_no_memory("unit ane", sizeof *u, err);
    u->base.ops = &sg_unit_ane;
    segue_status status = read_spec(spec, u, &o, err);
    if (engine == ENGINE_MAC) u->api = *api;
    if (status == SEGUE_OK)
        status = engine == ENGINE_SOFTWARE ? sg_npu_open(&u->device, &o, err)
                 : engine == ENGINE_MAC    ? open_mac(u, spec, err)
                                           : open_linux(u, spec, err);
    if (status == SEGUE_OK && u->storage == SG_ANE_STORE_W8A8 && !(u->profile.int8_tflops > 0))
        status = sg_fail(err, SEGUE_EUNSUPPORTED, "open unit: %s: storage=w8a8: the profile %s has no products of 8-bit "
                         "numbers; use m4, m5 or ieee, or storage=int8", spec->text, u->profile.name);
    if (status == SEGUE_OK) status = set_columns(u, spec, err);
    if (status == SEGUE_OK) status = sg_pool_open(&u->pool, o.threads, err);
    if (status != SEGUE_OK) {
        ane_close(u);
        return status;
    }
    describe_one(&u->desc, spec->text, u->profile.name, engine);
    u->desc.samples = u->head;
    /* These options change results, so the description shows them. */
    size_t length = strlen(u->desc.info.features);
    if (u->keys)
        snprintf(u->desc.info.features + length, sizeof u->desc.info.features - length, "; attends to the last %u tokens only",
                 u->keys);
    length = strlen(u->desc.info.features);
    if (u->head) snprintf(u->desc.info.features + length, sizeof u->desc.info.features - length, "; output head in fp16");
    *out = u;
    return SEGUE_OK;
}

/* Member `open`: the real engine where there is one. */
static segue_status ane_open(struct sg_unit **out, const struct sg_unit_spec *spec, segue_error *err)
{
    struct sg_apple_api api;
    int real = sg_apple_api_here(&api, NULL) == SEGUE_OK;
    return ane_open_on(out, spec, real ? &api : NULL, err);
}

static void ane_describe(const struct sg_unit *u, struct sg_unit_desc *out) { *out = u->desc; }

/* Whether the engine or the host can compute the operation; the limits of sizes are checked when a part is lowered. */
static segue_status ane_can(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op, segue_error *why)
{
    (void)u;
    SG_TRY(sg_op_check(g, (uint32_t)(op - g->ops), why));
    return sg_ane_can_lower(g, op, why);
}

/* stored: bytes of the blob files made so far; read: fp16 weight bytes read per token; scratch: the surfaces x and info. */
static void ane_footprint(const struct sg_program *p, uint64_t *stored, uint64_t *read, uint64_t *scratch)
{
    uint64_t bytes = 0, weights = 0;
    const struct sg_graph *g = p->base.graph;
    for (uint32_t i = 0; i <= p->cut[0].parts_n; i++) bytes += p->blobs[i].file.len;
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_LINEAR)
            weights += 2ull * g->ops[i].u.linear.weight.rows * g->ops[i].in[0].width;
    if (stored) *stored = bytes;
    if (read) *read = weights;
    if (scratch) *scratch = 2 * p->surface_bytes + p->info_bytes;
}

static uint64_t ane_compiles(const struct sg_program *p) { return atomic_load(&p->compiles); }

/* One entry that was written makes the outcome "written", whatever else was found. */
static const char *ane_kept(const struct sg_program *p, const char **why)
{
    const struct sg_ane_cache *k = p->cache;
    *why = k && atomic_load(&k->has_problem) ? k->why : NULL;
    return !k ? NULL : atomic_load(&k->written) ? "written" : atomic_load(&k->hits) ? "mapped" : NULL;
}

/* Members that the unit does not have are absent: it does not transfer states, pin host memory or read weights back. */
const struct sg_unit_ops sg_unit_ane = {
    .kind = "ane",
    .list = ane_list,
    .open = ane_open,
    .close = ane_close,
    .describe = ane_describe,
    .can = ane_can,
    .compile = ane_compile,
    .discard = ane_discard,
    .footprint = ane_footprint,
    .compiles = ane_compiles,
    .kept = ane_kept,
    .weight_put = ane_weight_put,
    .start = ane_start,
    .wait = sg_thread_run_end,
    .state_new = ane_state_new,
    .state_free = ane_state_free,
    SG_STATE_CORE_MEMBERS,
    .state_bytes = ane_state_bytes,
    .state_get = ane_state_get,
    .state_put = ane_state_put,
    .state_at = ane_state_at,
    .state_rows = ane_state_rows,
    .state_logits = ane_state_logits,
    .train_device = ane_train_device,
};
