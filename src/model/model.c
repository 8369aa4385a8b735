/* model.c: opens a model (archive, configuration, family, hyperparameters, tensors, text) and
 * builds its graphs with the family's layer function. Contains the list of families. No tensor data
 * is copied.
 * SPDX-License-Identifier: MIT */
#include "model/model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "model/family.h"
#include "model/textfiles.h"

/* The list of families. To add one, add its name here and define sg_family_NAME. */
#define SG_FAMILIES(F) F(gpt2) F(llama) F(qwen2) F(qwen3) F(qwen35) F(gemma3)
#define SG_FAMILY_DECLARE(name) extern const struct sg_family sg_family_##name;
#define SG_FAMILY_ADDRESS(name) &sg_family_##name,

SG_FAMILIES(SG_FAMILY_DECLARE)
static const struct sg_family *const families[] = {SG_FAMILIES(SG_FAMILY_ADDRESS)};
enum { FAMILIES_N = sizeof families / sizeof *families, CONFIG_LIMIT = 16 << 20 };

/* The state of opening a model. */
struct opening {
    struct segue_model *m;
    const char *path;
    char *folder;        /* contains the weights */
    char *config_path;   /* NULL: no config.json */
    json_t *config;      /* NULL: GGUF */
    struct sg_source source;
    const char *storage; /* storage to convert matrices to; NULL: as in the file */
    segue_error *err;
};

/* --- configuration and family --- */

/* 1 when name is in the NULL-terminated list. */
static int in_list(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (!strcmp(*names, name)) return 1;
    return 0;
}

/* EUNSUPPORTED with the list of supported families. */
static segue_status unknown_family(const struct opening *o, const char *what)
{
    return sg_fail(o->err, SEGUE_EUNSUPPORTED,
                   "open model: %s: family \"%.60s\" is not supported; use a GPT-2, Llama, Mistral, Qwen2, "
                   "Qwen3, Qwen3.5 or Gemma 3 model",
                   o->path, what);
}

/* Tries model_type of text_config, model_type, then architectures: wrappers of image-and-text
 * models have another outer model_type, and some files have none. */
static segue_status find_json_family(struct opening *o)
{
    const json_t *architectures = json_object_get(o->config, "architectures");
    const json_t *names[] = {json_object_get(o->source.inner, "model_type"),
                             json_object_get(o->config, "model_type"), json_array_get(architectures, 0)};
    const char *first = NULL;
    for (size_t i = 0; i < 3; i++) {
        const char *name = json_string_value(names[i]);
        for (size_t f = 0; name && f < FAMILIES_N; f++)
            if (in_list(families[f]->hf, name)) {
                o->m->family = families[f];
                return SEGUE_OK;
            }
        if (!first) first = name;
    }
    if (first) return unknown_family(o, first);
    return sg_fail(o->err, SEGUE_EFORMAT,
                   "open model: %s: model_type is missing; download the complete config.json", o->config_path);
}

/* GGUF files name the family in general.architecture. */
static segue_status find_gguf_family(struct opening *o)
{
    const char *text;
    size_t len;
    SG_TRY(sg_meta_string(o->m->archive, "general.architecture", &text, &len, o->err));
    if (!text || len > 64)
        return sg_fail(o->err, SEGUE_EFORMAT,
                       "open model: %s: general.architecture is missing or too long; download the complete file",
                       o->path);
    char *arch = sg_arena_strndup(&o->m->arena, text, len);
    if (!arch) return sg_no_memory("architecture", len, o->err);
    o->source.arch = arch;
    for (size_t f = 0; f < FAMILIES_N; f++)
        if (in_list(families[f]->gguf, arch)) {
            o->m->family = families[f];
            return SEGUE_OK;
        }
    return unknown_family(o, arch);
}

/* Make the equivalent of config.json from the header of a llama2.c file. */
static segue_status config_of_llama2c(struct opening *o)
{
    static const struct {
        const char *from, *to;
    } keys[] = {{"llama2c.dim", "hidden_size"},
                {"llama2c.hidden_dim", "intermediate_size"},
                {"llama2c.n_layers", "num_hidden_layers"},
                {"llama2c.n_heads", "num_attention_heads"},
                {"llama2c.n_kv_heads", "num_key_value_heads"},
                {"llama2c.vocab_size", "vocab_size"},
                {"llama2c.seq_len", "max_position_embeddings"}};
    if (!(o->config = json_pack("{s:s,s:f}", "model_type", "llama", "rms_norm_eps", 1e-5)))
        return sg_no_memory("configuration", 1024, o->err);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t value;
        SG_TRY(sg_meta_int(o->m->archive, keys[i].from, 0, &value, o->err));
        if (json_object_set_new(o->config, keys[i].to, json_integer(value)))
            return sg_no_memory("configuration", 64, o->err);
    }
    return SEGUE_OK;
}

/* A config that names a quantisation of PyTorch libraries beside plain weights belongs to other weights. */
static segue_status check_quantization(const struct opening *o)
{
    static const char *const methods[] = {"gptq", "awq", "bitsandbytes", NULL}, *const parts[] = {".qweight", ".absmax"};
    const char *method = json_string_value(json_object_get(json_object_get(o->config, "quantization_config"), "quant_method"));
    if (!method || !in_list(methods, method)) return SEGUE_OK;
    for (uint32_t i = 0; i < o->m->archive->tensors_n; i++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            if (strstr(o->m->archive->tensors[i].name, parts[k])) return SEGUE_OK;
    return sg_fail(
        o->err, SEGUE_EFORMAT,
        "open model: %s: quantization_config says %s, but the weights are not quantised; remove it, or take the weights "
        "that belong to it",
        o->config_path, method);
}

/* Read config.json, and join the tensors of quantised modules, which it describes. */
static segue_status read_config(struct opening *o)
{
    if (!(o->config_path = sg_path_join(o->folder, "config.json")))
        return sg_no_memory("path", strlen(o->path), o->err);
    if (sg_path_kind(o->config_path) != SG_PATH_FILE)
        return sg_fail(
            o->err, SEGUE_EFORMAT,
            "open model: %s: no config.json next to the weights; download the complete folder of the model",
            o->path);
    SG_TRY(sg_json_read(&o->config, o->config_path, CONFIG_LIMIT, o->err));
    if (!json_is_object(o->config))
        return sg_fail(o->err, SEGUE_EFORMAT, "open model: %s: not a JSON object; download the file again",
                       o->config_path);
    SG_TRY(check_quantization(o));
    return sg_archive_join(o->m->archive, o->config, o->err);
}

/* Set up o->source and find the family, by the format of the archive. */
static segue_status detect_family(struct opening *o)
{
    const struct sg_archive *a = o->m->archive;
    o->source.archive = a;
    o->source.path = o->path;
    o->m->convention.gguf = a->format == SG_FORMAT_GGUF;
    if (a->format == SG_FORMAT_GGUF) return find_gguf_family(o);
    SG_TRY(a->format == SG_FORMAT_LLAMA2C ? config_of_llama2c(o) : read_config(o));
    const json_t *inner = json_object_get(o->config, "text_config");
    o->source.path = o->config_path ? o->config_path : o->path;
    o->source.outer = o->config;
    o->source.inner = json_is_object(inner) ? inner : o->config;
    return find_json_family(o);
}

/* --- derived data --- */

/* GGUF stores Llama 3's frequency scaling as a tensor of divisors. Recompute the tables of matching
 * width with it. */
static segue_status apply_divisors(struct opening *o)
{
    struct segue_model *m = o->m;
    const struct sg_tensor *t = sg_model_weight(m, m->numbers->layers, SG_DIVISORS)->weight;
    if (!t) return SEGUE_OK;
    size_t bytes = t->cols * sizeof(float);
    float *divisors = sg_arena_alloc(&m->arena, bytes);
    if (!divisors) return sg_no_memory("rotary divisors", bytes, o->err);
    sg_tensor_read(t, divisors);
    for (uint64_t j = 0; j < t->cols; j++)
        if (!(divisors[j] >= 1e-3f) || !isfinite(divisors[j])) /* large ones switch a pair off */
            return sg_fail(o->err, SEGUE_EFORMAT,
                           "open model: %s: invalid value in %s: %g; the file is damaged, download it again", o->path,
                           t->name, (double)divisors[j]);
    for (size_t i = 0; i < 2; i++)
        if (m->numbers->rotary[i].pairs == t->cols) sg_rotary_make(&m->numbers->rotary[i], divisors);
    return SEGUE_OK;
}

/* Bytes read when the tensor is used, including scales and biases that are stored separately. */
static uint64_t stored_bytes(const struct sg_tensor *t)
{
    uint64_t groups = t->affine.group ? t->rows * (t->cols / t->affine.group) : 0;
    if (t->storage == SG_AFFINE) return t->bytes + 2 * groups * (t->affine.storage == SG_F32 ? 4 : 2);
    if (t->storage == SG_CODED) {
        struct sg_region regions[SG_REGIONS];
        uint64_t sum = 0;
        for (uint32_t n = sg_tensor_regions(t, regions); n--;) sum += regions[n].bytes;
        return sum;
    }
    return t->storage == SG_Q8_GROUP ? t->bytes + 4 * groups : t->bytes;
}

/* info.storage: the storage type with the most weights. bits, coded: of SG_AFFINE and SG_CODED. */
static segue_status name_storage(struct segue_model *m, const uint64_t weights[SG_STORAGE_N], uint32_t bits,
                                 const char *coded, segue_error *err)
{
    enum sg_storage main = SG_F32;
    for (enum sg_storage s = SG_F32; s < SG_STORAGE_N; s++)
        if (weights[s] > weights[main]) main = s;
    m->info.storage = main == SG_CODED ? coded : sg_storage_info(main)->name;
    if (main == SG_AFFINE && !(m->info.storage = sg_arena_printf(&m->arena, "mlx%u", bits)))
        return sg_no_memory("name", 8, err);
    return SEGUE_OK;
}

/* Sum of bytes and of weights per storage. A tied head is counted once. bits: of the last MLX
 * tensor other than the embedding, if there is one. coded: likewise, the name of the last SG_CODED tensor. */
static segue_status sum_weights(struct segue_model *m, segue_error *err)
{
    uint64_t weights[SG_STORAGE_N] = {0};
    uint32_t bits = 0;
    const char *coded = NULL;
    size_t n = ((size_t)m->numbers->layers + 1) * SG_ROLE_N;
    for (size_t i = 0; i < n; i++) {
        const struct sg_tensor *pair[2] = {m->weights[i].weight, m->weights[i].bias};
        /* The head of a tied model is the embedding, which was counted already. */
        int copy = i % SG_ROLE_N == SG_HEAD && pair[0] == m->weights[i - SG_HEAD + SG_EMBED].weight;
        for (size_t k = 0; k < 2 && !copy; k++) {
            if (!pair[k]) continue;
            weights[pair[k]->storage] += pair[k]->rows * pair[k]->cols;
            m->info.weight_bytes += stored_bytes(pair[k]);
            if (pair[k]->storage == SG_AFFINE && (!bits || i % SG_ROLE_N != SG_EMBED))
                bits = pair[k]->affine.bits;
            if (pair[k]->storage == SG_CODED && (!coded || i % SG_ROLE_N != SG_EMBED)) coded = pair[k]->stored_as;
        }
    }
    return name_storage(m, weights, bits, coded, err);
}

/* shape_id identifies what a state depends on, independent of the file format: the same model as
 * GGUF and as safetensors has the same id. Therefore reals are rounded, layer kinds are used
 * instead of the rules that select them, and the context length is omitted. */
static segue_status hash_shape(struct segue_model *m, segue_error *err)
{
    const struct sg_numbers *n = m->numbers;
    struct sg_buf text = {0};
    sg_buf_printf(&text, "%s %u %u %u %u %u %u %u %u %u %u", m->family->name, n->layers, n->width, n->ff,
                  n->heads, n->kv_heads, n->head_width, n->value_width, n->vocab, n->act, n->window);
    sg_buf_printf(&text, " %u %u %u %u %u %u %u %u", n->key_heads, n->value_heads, n->key_width,
                  n->delta_width, n->taps, n->experts, n->experts_used, n->expert_ff);
    sg_buf_printf(&text, " %.5g %.5g %.5g %.5g %.5g", n->eps, n->embed_scale, n->attention_scalar,
                  n->attention_softcap, n->final_softcap);
    for (size_t i = 0; i < 2; i++) sg_buf_printf(&text, " %u %.5g", n->rotary[i].pairs, n->rotary[i].theta);
    sg_buf_puts(&text, " ");
    for (uint32_t i = 0; i < n->layers; i++) sg_buf_printf(&text, "%u", n->kinds[i]);
    segue_status s = text.failed;
    if (s == SEGUE_OK) sg_hash_hex(sg_hash_bytes(text.data, text.len, 0), m->info.shape_id);
    sg_buf_free(&text);
    return s == SEGUE_OK ? s : sg_no_memory("shape id", 1024, err);
}

/* Size of a state, from the slots of the complete graph. Building it here also verifies that it can
 * be built. */
static segue_status sum_state(struct segue_model *m, segue_error *err)
{
    struct sg_graph *g = NULL;
    struct sg_graph_request request = {.head = 1};
    SG_TRY(sg_model_graph(m, &request, &g, err));
    for (uint32_t i = 0; i < g->slots_n; i++) {
        const struct sg_slot *s = &g->slots[i];
        m->info.state_fixed_bytes += sg_slot_fixed_bytes(s);
        if (s->kind == SG_SLOT_K || s->kind == SG_SLOT_V)
            m->info.state_token_bytes += sg_slot_row_bytes(s, SG_F16);
    }
    sg_graph_free(g);
    return SEGUE_OK;
}

/* The last component of a path, without trailing slashes. */
static char *base_name(struct sg_arena *arena, const char *path)
{
    size_t to = strlen(path);
    while (to > 1 && path[to - 1] == '/') to--;
    size_t from = to;
    while (from && path[from - 1] != '/') from--;
    return sg_arena_strndup(arena, path + from, to - from);
}

/* Fill m->info. A storage conversion is part of both hashes: its results differ from those of the
 * file. */
static segue_status fill_info(struct opening *o)
{
    static const char *const formats[] = {"safetensors", "gguf", "llama2c"};
    struct segue_model *m = o->m;
    segue_model_info *info = &m->info;
    const char *name = NULL;
    size_t len = 0;
    if (m->convention.gguf) SG_TRY(sg_meta_string(m->archive, "general.name", &name, &len, o->err));
    info->size = sizeof *info;
    info->path = sg_arena_strndup(&m->arena, o->path, strlen(o->path));
    info->name = name && len ? sg_arena_strndup(&m->arena, name, len) : base_name(&m->arena, o->path);
    if (!info->path || !info->name) return sg_no_memory("model name", strlen(o->path), o->err);
    info->family = m->family->name;
    info->format = formats[m->archive->format];
    info->layers = m->numbers->layers;
    info->width = m->numbers->width;
    info->vocab = m->numbers->vocab;
    info->context = m->numbers->context;
    info->bos = m->bos;
    info->eos = m->eos;
    info->stops = m->stops;
    info->stops_n = m->stops_n;
    SG_TRY(sg_weights_id_new(&m->weights_id, m->archive, o->storage, o->err));
    m->sample_hash = sg_archive_sample(m->archive);
    if (o->storage)
        m->sample_hash = sg_hash_join(m->sample_hash, sg_hash_bytes(o->storage, strlen(o->storage), 0));
    SG_TRY(sum_weights(m, o->err));
    SG_TRY(hash_shape(m, o->err));
    return sum_state(m, o->err);
}

/* --- open, reference, close --- */

/* Cheap steps first: a file of another kind is refused before its tokenizer is read. Fields of opts
 * are read only if its size includes them. */
static segue_status open_parts(struct opening *o, const segue_model_opts *opts)
{
    struct segue_model *m = o->m;
    int no_text = opts && opts->size >= sizeof opts->size + sizeof opts->no_text && opts->no_text;
    o->storage = opts && opts->size >= offsetof(segue_model_opts, storage) + sizeof opts->storage ? opts->storage : NULL;
    if (o->storage && strcmp(o->storage, "fp8") != 0)
        return sg_fail(o->err, SEGUE_EARG,
                       "open model: %s: storage %.40s is not supported as a conversion when loading; use fp8 or none",
                       o->path, o->storage);
    if (!(o->folder = sg_path_folder(o->path))) return sg_no_memory("path", strlen(o->path), o->err);
    SG_TRY(sg_archive_open(&m->archive, o->path, o->err));
    SG_TRY(detect_family(o));
    if (!m->archive->tensors_n)
        return sg_fail(o->err, SEGUE_EFORMAT,
                       "open model: %s: the file has settings and perhaps a vocabulary, but no weights; use the file of the same "
                       "model that has them",
                       o->path);
    if (!(m->numbers = sg_arena_alloc(&m->arena, sizeof *m->numbers)))
        return sg_no_memory("numbers", sizeof *m->numbers, o->err);
    /* The tables of tensors need the hyperparameters; the divisors are a tensor; the rest needs all
     * of it. */
    SG_TRY(sg_numbers_read(m->numbers, m->family, &o->source, &m->arena, o->err));
    SG_TRY(sg_weights_bind(m, m->numbers, o->err));
    if (o->storage) SG_TRY(sg_weights_fp8(m, o->err));
    SG_TRY(apply_divisors(o));
    SG_TRY(sg_textfiles_read(m, o->folder, o->source.outer, o->source.inner, no_text, o->err));
    return fill_info(o);
}

segue_status sg_model_open(struct segue_model **out, const char *path, const segue_model_opts *opts,
                           segue_error *err)
{
    struct opening o = {.path = path, .err = err};
    if (!path || !*path) return sg_fail(err, SEGUE_EARG, "open model: the path is empty; name a file or a folder");
    /* From here on sg_model_unref frees everything that was opened, also after a failure. */
    if (!(o.m = sg_alloc(sizeof *o.m))) return sg_no_memory("model", sizeof *o.m, err);
    atomic_init(&o.m->references, 1);
    segue_status s = open_parts(&o, opts);
    json_decref(o.config);
    sg_free(o.config_path);
    sg_free(o.folder);
    if (s == SEGUE_OK)
        *out = o.m;
    else
        sg_model_unref(o.m);
    return s;
}

struct segue_model *sg_model_ref(const struct segue_model *m)
{
    struct segue_model *shared =
        (struct segue_model *)(uintptr_t)m; /* only the reference count changes */
    if (shared) atomic_fetch_add(&shared->references, 1);
    return shared;
}

/* The tokenizer and the views point into the archive: nothing of the model may be used after this. */
void sg_model_unref(struct segue_model *m)
{
    if (!m || atomic_fetch_sub(&m->references, 1) != 1) return;
    sg_template_close(m->chat);
    sg_token_trie_free(atomic_load(&m->trie));
    sg_tokenizer_close(m->tokenizer);
    sg_weights_id_free(m->weights_id); /* reads the archive's files */
    sg_archive_close(m->archive);
    sg_free(m->stops);
    sg_arena_free(&m->arena);
    sg_free(m);
}

/* --- graphs --- */

/* The input of the graph: embedded tokens, or the hidden states of the previous layer range. */
static int32_t begin(struct sg_layer *l, const struct sg_graph_request *request)
{
    if (request->from) return sg_input_rows(l->b, l->n->width);
    l->i = l->n->layers;
    return sg_embed(l->b, sg_input_tokens(l->b), sg_layer_tensor(l, SG_EMBED),
                    sg_layer_tensor(l, SG_POSITIONS), (float)l->n->embed_scale);
}

/* cap * tanh(x / cap) as three ops: only the head needs it. */
static int32_t cap_logits(struct sg_builder *b, int32_t x, double cap)
{
    if (!(cap > 0)) return x;
    x = sg_scale(b, sg_whole(b, x), (float)(1 / cap), sg_weight_of(b, NULL));
    x = sg_activate(b, sg_whole(b, x), SG_ACT_TANH);
    return sg_scale(b, sg_whole(b, x), (float)cap, sg_weight_of(b, NULL));
}

/* The end of the graph. The final norm is computed for all tokens if its result is an output, else
 * for the requested tokens only. */
static void end(struct sg_layer *l, const struct sg_graph_request *request, int32_t x)
{
    const struct sg_numbers *n = l->n;
    l->b->layer = -1;
    l->i = n->layers;
    if (request->head && !request->values) x = sg_rows(l->b, sg_whole(l->b, x));
    if (request->to == n->layers) x = sg_layer_norm(l, x, SG_FINAL_NORM);
    if (request->values || !request->head) sg_output(l->b, x, "hidden.%u", request->to);
    if (!request->head) return;
    if (request->values) x = sg_rows(l->b, sg_whole(l->b, x));
    l->b->graph->vocab = n->vocab;
    sg_output(l->b, cap_logits(l->b, sg_layer_linear(l, x, SG_HEAD), n->final_softcap), "logits");
}

/* Append all ops. A rotary table is added with the first layer that needs it, so that graphs of
 * layer ranges have no unused tables. */
static void build(struct sg_builder *b, const struct segue_model *m, const struct sg_graph_request *request)
{
    const struct sg_numbers *n = m->numbers;
    /* tables: rotary table of full and of sliding layers; -1: not added yet. */
    struct sg_layer l = {.b = b, .m = m, .n = n, .rope = -1};
    int32_t tables[2] = {-1, -1};
    b->layer = -1;
    b->graph->layers = n->layers;
    b->graph->layer_from = request->from;
    b->graph->layer_to = request->to;
    int32_t x = begin(&l, request);
    for (l.i = request->from; l.i < request->to; l.i++) {
        if (request->values) sg_output(b, x, "hidden.%u", l.i);
        l.kind = (enum sg_layer_kind)n->kinds[l.i];
        size_t which = l.kind == SG_LAYER_SLIDING;
        const struct sg_rotary *r = &n->rotary[which];
        if (!m->family->learned_positions && l.kind != SG_LAYER_LINEAR && tables[which] < 0)
            tables[which] = sg_rope_table_add(b, r->pairs, r->inverse, r->mscale);
        l.rope = tables[which];
        b->layer = (int32_t)l.i;
        x = m->family->layer(&l, x);
    }
    end(&l, request, x);
}

/* The graph refers to tensors of the model, which must stay open. */
segue_status sg_model_graph(const struct segue_model *m, const struct sg_graph_request *request,
                            struct sg_graph **out, segue_error *err)
{
    struct sg_graph_request w = *request;
    struct sg_builder b;
    if (!w.to) w.to = m->numbers->layers;
    if (w.from >= w.to || w.to > m->numbers->layers)
        return sg_fail(err, SEGUE_EARG,
                       "build graph: layers %u to %u: the model has %u layers; request a range of them", w.from,
                       w.to, m->numbers->layers);
    /* A head on anything but the last layer would compute meaningless logits. */
    if (w.to < m->numbers->layers) w.head = 0;
    SG_TRY(sg_builder_begin(&b, err));
    build(&b, m, &w);
    if (w.head && !w.values && !w.select_late) sg_hoist_rows(&b);
    return sg_builder_end(&b, out, err);
}
