/* engine.c: opens an engine: places a model on units and compiles its layer ranges. An engine holds no state of any sequence.
 * SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include <string.h>

#include "base/mem.h"
#include "engine/placement/plan.h"
#include "engine/sized.h"
#include "engine/store/prefixstore.h"
#include "unit/kv/kv_fit.h"

/* Tokens per prefill run: longer runs delay a cancel and need more scratch memory, shorter ones read the weights more often. */
enum { CHUNK_TOKENS = 512, CHUNK_TOKENS_MAX = 1 << 20 };

/* --- what sampling needs of the vocabulary --- */

/* One pass over the vocabulary, on the first use of DRY sampling. */
static uint8_t *make_breakers(const struct sg_tokenizer *t, size_t n)
{
    uint8_t *flags = sg_alloc(n);
    for (size_t i = 0; flags && i < n; i++) {
        size_t len = 0;
        int special = 0;
        const char *text = sg_token_bytes(t, (int32_t)i, &len, &special);
        for (size_t j = 0; text && j < len && !flags[i]; j++)
            flags[i] = text[j] == '\n' || text[j] == ':' || text[j] == '"' || text[j] == '*';
    }
    return flags;
}

segue_status sg_engine_breakers(struct segue_engine *e, const uint8_t **out, size_t *n, segue_error *err)
{
    struct sg_tokenizer_info info;
    *out = NULL;
    *n = 0;
    if (!e->model->tokenizer) return SEGUE_OK;
    sg_tokenizer_info_get(e->model->tokenizer, &info);
    pthread_mutex_lock(&e->lock);
    if (!e->breakers) e->breakers = make_breakers(e->model->tokenizer, info.vocab);
    if (e->breakers) e->breakers_n = info.vocab;
    *out = e->breakers;
    *n = e->breakers_n;
    pthread_mutex_unlock(&e->lock);
    return *out ? SEGUE_OK : sg_no_memory("table of sequence breakers", info.vocab, err);
}

/* --- open, close --- */

static int stores_kv(const struct sg_unit_desc *desc, segue_kv wish)
{
    return desc->kv == SG_KV_ANY || wish == SEGUE_KV_F16 || (desc->kv == SG_KV_NOT_Q8 && wish != SEGUE_KV_Q8);
}

/* f16 by default, since decode reads the whole KV cache for each token; f32 on the reference unit. A unit that cannot store
 * what was asked for takes f16, and the hand-off converts; check_kv ensures that some unit can. */
static enum sg_storage kv_storage(segue_kv wish, const struct sg_unit_desc *desc)
{
    if (!stores_kv(desc, wish)) return SG_F16;
    switch (wish) {
    case SEGUE_KV_F32:
        return SG_F32;
    case SEGUE_KV_F16:
        return SG_F16;
    case SEGUE_KV_BF16:
        return SG_BF16;
    case SEGUE_KV_Q8:
        return SG_Q8_0;
    default:
        return desc->reference ? SG_F32 : SG_F16;
    }
}

/* Everything that can be checked without the model. EARG. */
static segue_status check_opts(const segue_engine_opts *o, size_t n, segue_error *err)
{
    if (n == 0) return sg_fail(err, SEGUE_EARG, "engine not opened: there are no units; pass at least one");
    if (n > 64)
        return sg_fail(err, SEGUE_EARG, "engine not opened: %zu units: the maximum is 64; pass fewer", n);
    if ((unsigned)o->kv > SEGUE_KV_Q8)
        return sg_fail(err, SEGUE_EARG, "engine not opened: kv %d: no such storage; use SEGUE_KV_*", (int)o->kv);
    if (o->chunk_tokens > CHUNK_TOKENS_MAX)
        return sg_fail(err, SEGUE_EARG, "engine not opened: chunk_tokens %u: the maximum is %d; use a smaller number",
                       o->chunk_tokens, CHUNK_TOKENS_MAX);
    return SEGUE_OK;
}

/* Limits from the model: the number of learned positions, and where the padding of the vocabulary starts. */
static void read_limits(struct segue_engine *e)
{
    struct sg_tokenizer_info info;
    for (uint32_t i = 0; i < e->graph->ops_n; i++) {
        const struct sg_op *op = &e->graph->ops[i];
        if (op->code == SG_OP_EMBED && op->u.embed.positions.tensor >= 0)
            e->context_max = e->graph->tensors[op->u.embed.positions.tensor]->rows;
    }
    if (!e->model->tokenizer) return;
    sg_tokenizer_info_get(e->model->tokenizer, &info);
    if (info.vocab < e->model->info.vocab) e->token_limit = info.vocab;
}

/* The model whose weights the unit uses: the engine's, or another storage of it. The shape must be the same, because states are
 * exchanged. */
static segue_status place_model(struct segue_engine *e, struct sg_placement *p, struct segue_model *model,
                                const segue_engine_opts *o, segue_error *err)
{
    if (!model) model = e->model;
    if (strcmp(model->info.shape_id, e->model->info.shape_id) != 0)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "engine not opened: %s: its shape %s differs from that of %s (%s); pass another storage of the same model",
            model->info.path, model->info.shape_id, e->model->info.path, e->model->info.shape_id);
    p->model = sg_model_ref(model);
    p->weight_cache.folder = e->cache;
    p->weight_cache.bytes_max = o->cache_bytes ? o->cache_bytes : SEGUE_CACHE_BYTES;
    p->weight_cache.weights = model->sample_hash;
    sg_weights_id_begin(model->weights_id, e->cache);
    p->weight_cache.exact = sg_archive_file_id(model->archive, &p->weight_cache.stamp);
    uint32_t late = p->unit->desc.select_late;
    if (model == e->model && (!late || e->keep_values)) return SEGUE_OK;
    struct sg_graph_request wish = {.head = 1, .values = e->keep_values, .select_late = late};
    return sg_model_graph(model, &wish, &p->graph, err);
}

static void name_samples(struct segue_engine *e)
{
    struct sg_hash all = e->model->sample_hash;
    for (uint32_t i = 0; i < e->placements_n; i++)
        if (e->placements[i].model != e->model) all = sg_hash_join(all, e->placements[i].model->sample_hash);
    sg_hash_hex(all, e->sample_id);
}

/* --- compilation with progress --- */

/* Progress over all ranges of segue_engine_open, in bytes of weights. */
struct compile_progress {
    const segue_engine_opts *opts;
    uint64_t before, range, total; /* bytes of the completed ranges; of the current one; of all */
    int canceled;
};

/* sg_progress of the unit: adds the bytes of earlier ranges. */
static int report_progress(void *arg, uint64_t done)
{
    struct compile_progress *p = arg;
    uint64_t sum = p->before + (done < p->range ? done : p->range);
    if (!p->canceled && p->opts->progress)
        p->canceled = p->opts->progress(p->opts->progress_context, sum, p->total) != 0;
    return p->canceled;
}

/* Stored bytes of the weights of layers [from, to), in proportion to the whole model. */
static uint64_t range_bytes(const struct segue_engine *e, uint32_t placement, uint32_t from, uint32_t to)
{
    uint64_t bytes = e->placements[placement].model->info.weight_bytes, layers = e->graph->layers;
    return to - from == layers ? bytes : bytes / layers * (to - from);
}

/* Compiles layers [from, to) for a placement; reports progress before and after. ECANCELED without a text: compile_all
 * adds it. */
static segue_status compile_range(struct segue_engine *e, uint32_t placement, uint32_t from, uint32_t to,
                                  struct compile_progress *p, segue_error *err)
{
    const struct sg_layer_range *range;
    struct sg_progress progress = {report_progress, p};
    p->range = range_bytes(e, placement, from, to);
    SG_TRY(report_progress(p, 0) ? SEGUE_ECANCELED : SEGUE_OK);
    SG_TRY(sg_engine_layer_range(e, placement, from, to, &progress, &range, err));
    p->before += p->range;
    return report_progress(p, 0) ? SEGUE_ECANCELED : SEGUE_OK;
}

/* Compiles the parts of the plan; without a plan all layers on every unit. The remaining ranges are compiled on first use. */
static segue_status compile_ranges(struct segue_engine *e, const struct segue_plan *plan, struct compile_progress *p,
                                   segue_error *err)
{
    for (size_t i = 0; plan && i < plan->info.parts_n; i++)
        SG_TRY(compile_range(e, plan->parts[i].unit, plan->parts[i].from, plan->parts[i].to, p, err));
    for (uint32_t i = 0; !plan && i < e->placements_n; i++) SG_TRY(compile_range(e, i, 0, e->graph->layers, p, err));
    return SEGUE_OK;
}

/* The total is computed first, so that progress never goes back. ECANCELED has precedence over the status of the unit. */
static segue_status compile_all(struct segue_engine *e, const segue_engine_opts *o, segue_error *err)
{
    struct compile_progress p = {.opts = o};
    if (o->plan) SG_TRY(sg_plan_check(e, o->plan, err));
    for (size_t i = 0; o->plan && i < o->plan->info.parts_n; i++)
        p.total += range_bytes(e, o->plan->parts[i].unit, o->plan->parts[i].from, o->plan->parts[i].to);
    for (uint32_t i = 0; !o->plan && i < e->placements_n; i++) p.total += range_bytes(e, i, 0, e->graph->layers);
    segue_status status = compile_ranges(e, o->plan, &p, err);
    if (!p.canceled || status == SEGUE_OK) return status;
    return sg_fail(err, SEGUE_ECANCELED, "engine not opened: canceled by the progress function; open it again");
}

/* EUNSUPPORTED: no unit stores K and V as the caller asks for. */
static segue_status check_kv(const struct segue_engine *e, segue_kv wish, segue_error *err)
{
    static const char *const names[] = {"", "f32", "f16", "bf16", "q8"};
    if (wish == SEGUE_KV_DEFAULT || wish == SEGUE_KV_F16) return SEGUE_OK;
    for (size_t i = 0; i < e->placements_n; i++)
        if (stores_kv(&e->placements[i].unit->desc, wish)) return SEGUE_OK;
    const struct sg_unit_desc *first = &e->placements[0].unit->desc;
    return sg_fail(err, SEGUE_EUNSUPPORTED, "engine not opened: %s stores K and V as %s, not %s; use f16, or decode on another "
                   "unit", first->info.spec, first->kv == SG_KV_F16_ONLY ? "f16 only" : "f32, f16 or bf16", names[wish]);
}

/* placements_n counts the units whose reference was taken, which close releases. */
static segue_status place_units(struct segue_engine *e, segue_unit *const *units, size_t n,
                                const segue_engine_opts *o, segue_error *err)
{
    e->placements = sg_alloc(n * sizeof *e->placements);
    if (!e->placements) return sg_no_memory("engine", n * sizeof *e->placements, err);
    for (size_t i = 0; i < n; i++) {
        if (!units[i])
            return sg_fail(err, SEGUE_EARG, "engine not opened: unit %zu is NULL; open it first", i);
        const struct sg_unit_desc *desc = &units[i]->desc;
        uint32_t rows = o->chunk_tokens ? o->chunk_tokens : CHUNK_TOKENS;
        if (desc->rows_max && desc->rows_max < rows) rows = desc->rows_max;
        e->placements[i] = (struct sg_placement){
            .unit = sg_unit_share(units[i]), .kv = kv_storage(o->kv, desc), .chunk_tokens = rows};
        e->placements_n++;
        SG_TRY(place_model(e, &e->placements[i], o->models ? o->models[i] : NULL, o, err));
    }
    SG_TRY(check_kv(e, o->kv, err));
    for (uint32_t i = 0; i < e->placements_n; i++) {
        const struct sg_unit_desc *desc = &e->placements[i].unit->desc;
        if (!desc->fits_kv) SG_TRY(sg_kv_estimate(desc->info.spec, e->graph, e->placements[i].kv, err));
    }
    name_samples(e);
    return compile_all(e, o, err);
}

/* The caller's string may be freed after segue_engine_open. */
static segue_status copy_cache_name(struct segue_engine *e, const segue_engine_opts *o, segue_error *err)
{
    if (!o->cache || !*o->cache) return SEGUE_OK;
    e->cache = sg_strndup(o->cache, strlen(o->cache));
    if (!e->cache) return sg_no_memory("name of the cache folder", strlen(o->cache), err);
    return SEGUE_OK;
}

/* desc.invariant 1 is enough, since the runs of a session then begin at fixed positions. */
static segue_status check_deterministic(struct segue_engine *e, const segue_unit *u, segue_error *err)
{
    if (!e->deterministic || !u || u->desc.invariant > 1 || sg_ops_of(u->unit)->compile_invariant) return SEGUE_OK;
    e->fixed_chunks = u->desc.invariant;
    if (e->fixed_chunks) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNSUPPORTED,
                   "engine not opened: deterministic: %s: its results depend on the other sequences of a run; open it "
                   "with invariant=1 if it has that option, or use another unit",
                   u->desc.info.spec);
}

/* Everything that may fail. After a failure the caller closes the engine. */
static segue_status fill(struct segue_engine *e, segue_unit *const *units, size_t n,
                         const segue_engine_opts *o, segue_error *err)
{
    struct sg_graph_request wish = {.head = 1, .values = o->keep_values != 0};
    e->keep_values = o->keep_values != 0;
    e->embeddings = o->embeddings != 0;
    e->deterministic = o->deterministic != 0;
    for (size_t i = 0; i < n; i++) SG_TRY(check_deterministic(e, units[i], err));
    SG_TRY(sg_model_graph(e->model, &wish, &e->graph, err));
    SG_TRY(copy_cache_name(e, o, err));
    read_limits(e);
    SG_TRY(place_units(e, units, n, o, err));
    return o->store ? sg_store_open(&e->store, e, o->store, o->store_memory_bytes, o->store_disk_bytes, err) : SEGUE_OK;
}

segue_status segue_engine_open(segue_engine **out, segue_model *model, segue_unit *const *units, size_t n,
                               const segue_engine_opts *opts, segue_error *err)
{
    segue_engine_opts o;
    if (!out || !model || (n && !units))
        return sg_fail(err, SEGUE_EARG, "engine not opened: out, model or units is NULL; pass all three");
    SG_TRY(sg_sized_in(&o, sizeof o, opts, "engine options", err));
    SG_TRY(check_opts(&o, n, err));
    struct segue_engine *e = sg_alloc(sizeof *e);
    if (!e) return sg_no_memory("engine", sizeof *e, err);
    if (pthread_mutex_init(&e->lock, NULL)) {
        sg_free(e);
        return sg_no_memory("lock of an engine", sizeof e->lock, err);
    }
    atomic_init(&e->references, 1);
    e->model = sg_model_ref(model);
    segue_status status = fill(e, units, n, &o, err);
    if (status != SEGUE_OK) {
        segue_engine_close(e);
        return status;
    }
    *out = e;
    return SEGUE_OK;
}

/* Sessions and checkpoints hold references: the engine is freed with the last of them, whatever the caller closes first. */
struct segue_engine *sg_engine_share(struct segue_engine *e)
{
    atomic_fetch_add(&e->references, 1);
    return e;
}

void segue_engine_close(segue_engine *e)
{
    if (!e || atomic_fetch_sub(&e->references, 1) != 1) return;
    sg_store_close(e->store);
    for (struct sg_layer_range *s = e->layer_ranges, *next; s; s = next) {
        next = s->next;
        sg_layer_range_free(s);
    }
    for (uint32_t i = 0; i < e->placements_n; i++) {
        if (e->placements[i].graph) sg_graph_free(e->placements[i].graph);
        if (e->placements[i].model) sg_model_unref(e->placements[i].model);
        segue_unit_close(e->placements[i].unit);
    }
    sg_free(e->placements);
    if (e->graph) sg_graph_free(e->graph);
    sg_free(e->breakers);
    sg_free(e->cache);
    sg_model_unref(e->model);
    pthread_mutex_destroy(&e->lock);
    sg_free(e);
}
