/* engine.c: placing a model on units. Holds programs and nothing of any sequence; what a session needs of a
 * unit beyond its programs is in layout.c. SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include <string.h>

#include "base/mem.h"
#include "engine/sized.h"
#include "engine/store/prefixstore.h"

enum { CHUNK_ROWS = 512, CHUNK_ROWS_MAX = 1 << 20 };

/* --- what sampling needs of the vocabulary --- */

/* One pass over the vocabulary; done when the first session turns DRY on, since few do. */
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

/* Half precision unless asked: decoding reads the whole cache for each token. The specification stays fp32.
 */
static enum sg_storage kv_storage(uint32_t wish, const struct sg_unit_desc *desc)
{
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

static segue_status check_opts(const segue_engine_opts *o, size_t n, segue_error *err)
{
    if (n == 0) return sg_fail(err, SEGUE_EARG, "engine not opened: no unit given; open one and pass it");
    if (n > 64)
        return sg_fail(err, SEGUE_EARG, "engine not opened: %zu units given: at most 64; pass fewer", n);
    if (o->kv > SEGUE_KV_Q8)
        return sg_fail(err, SEGUE_EARG, "engine not opened: kv %u: no such storage; use SEGUE_KV_*", o->kv);
    if (o->chunk_rows > CHUNK_ROWS_MAX)
        return sg_fail(err, SEGUE_EARG, "engine not opened: chunk of %u rows: at most %d; ask for less",
                       o->chunk_rows, CHUNK_ROWS_MAX);
    return SEGUE_OK;
}

/* What the graph and the tokenizer say about the ends of their tables: learned positions, padded
 * vocabularies. */
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

/* Another storage of the engine's model: numbers and vocabulary must be the same, or states would not fit. */
static segue_status place_model(struct segue_engine *e, struct sg_placement *p, struct segue_model *model,
                                const segue_engine_opts *o, segue_error *err)
{
    if (!model) model = e->model;
    if (strcmp(model->info.shape_id, e->model->info.shape_id) != 0)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "engine not opened: %s: another shape (%s) than %s (%s); give another storage of one model",
            model->info.path, model->info.shape_id, e->model->info.path, e->model->info.shape_id);
    p->model = sg_model_ref(model);
    p->weight_cache.folder = e->cache;
    p->weight_cache.most = o->cache_bytes ? o->cache_bytes : SEGUE_CACHE_BYTES;
    p->weight_cache.weights = model->weights_hash;
    p->weight_cache.exact = sg_archive_file_id(model->archive, &p->weight_cache.stamp);
    uint32_t late = p->unit->desc.select_late;
    if (model == e->model && (!late || e->keep_values)) return SEGUE_OK;
    struct sg_graph_wish wish = {.head = 1, .values = e->keep_values, .select_late = late};
    return sg_model_graph(model, &wish, &p->graph, err);
}

/* A state that two storages of a model made together is neither's alone: it fits where the same pair was declared. */
static void name_weights(struct segue_engine *e)
{
    struct sg_hash all = e->model->weights_hash;
    for (uint32_t i = 0; i < e->placements_n; i++)
        if (e->placements[i].model != e->model) all = sg_hash_join(all, e->placements[i].model->weights_hash);
    sg_hash_hex(all, e->weights_id);
}

/* What is going to run is compiled now; without a plan everything on every unit. */
static segue_status compile_all(struct segue_engine *e, const segue_plan *wish, segue_error *err)
{
    const struct sg_layer_range *layer_range;
    segue_plan plan;
    SG_TRY(sg_sized_in(&plan, sizeof plan, wish, "plan", err));
    if (wish) SG_TRY(sg_plan_check(e, &plan, err));
    for (uint32_t i = 0; wish && i < plan.parts_n; i++)
        SG_TRY(sg_engine_layer_range(e, plan.parts[i].unit, plan.parts[i].from, plan.parts[i].to, &layer_range, err));
    for (uint32_t i = 0; !wish && i < e->placements_n; i++)
        SG_TRY(sg_engine_layer_range(e, i, 0, e->graph->layers, &layer_range, err));
    return SEGUE_OK;
}

/* places_n counts only units whose reference was taken, so that close gives back exactly those. */
static segue_status place_units(struct segue_engine *e, segue_unit *const *units, size_t n,
                                const segue_engine_opts *o, segue_error *err)
{
    e->placements = sg_alloc(n * sizeof *e->placements);
    if (!e->placements) return sg_no_memory("engine", n * sizeof *e->placements, err);
    for (size_t i = 0; i < n; i++) {
        if (!units[i])
            return sg_fail(err, SEGUE_EARG, "engine not opened: unit %zu: it is NULL; open it first", i);
        const struct sg_unit_desc *desc = &units[i]->desc;
        uint32_t rows = o->chunk_rows ? o->chunk_rows : CHUNK_ROWS;
        if (desc->rows_max && desc->rows_max < rows) rows = desc->rows_max;
        e->placements[i] = (struct sg_placement){
            .unit = sg_unit_share(units[i]), .kv = kv_storage(o->kv, desc), .chunk_tokens = rows};
        e->placements_n++;
        SG_TRY(place_model(e, &e->placements[i], o->models ? o->models[i] : NULL, o, err));
    }
    name_weights(e);
    return compile_all(e, o->plan, err);
}

/* What is kept is named by the weights' content, so that a copied model is the same model. */
static segue_status name_cache(struct segue_engine *e, const segue_engine_opts *o, segue_error *err)
{
    if (!o->cache || !*o->cache) return SEGUE_OK;
    e->cache = sg_strndup(o->cache, strlen(o->cache));
    if (!e->cache) return sg_no_memory("name of the cache folder", strlen(o->cache), err);
    return SEGUE_OK;
}

/* Everything that may fail; the caller closes what was made so far. */
static segue_status fill(struct segue_engine *e, segue_unit *const *units, size_t n,
                         const segue_engine_opts *o, segue_error *err)
{
    struct sg_graph_wish wish = {.head = 1, .values = o->keep_values != 0};
    e->keep_values = o->keep_values != 0;
    SG_TRY(sg_model_graph(e->model, &wish, &e->graph, err));
    SG_TRY(name_cache(e, o, err));
    read_limits(e);
    SG_TRY(place_units(e, units, n, o, err));
    return o->store ? sg_store_open(&e->store, e, o->store, o->store_memory_bytes, o->store_disk_bytes, err) : SEGUE_OK;
}

segue_status segue_engine_open(segue_engine **out, segue_model *model, segue_unit *const *units, size_t n,
                               const segue_engine_opts *opts, segue_error *err)
{
    segue_engine_opts o;
    if (!out || !model || (n && !units))
        return sg_fail(err, SEGUE_EARG, "engine not opened: out, model or units missing; pass all three");
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
