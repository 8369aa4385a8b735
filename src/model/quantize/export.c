/* export.c: writes a model as GGUF in another storage type. A GGUF source is copied tensor by
 * tensor under the same names; other sources are written by the family's tables, which have the
 * names and layouts of both formats. export_rows.c encodes the rows.
 * SPDX-License-Identifier: MIT */
#include "model/quantize/export.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "model/family.h"
#include "model/quantize/export_rows.h"
#include "model/quantize/imatrix.h"
#include "tensor/ggufout.h"
#include "text/tokenizer/tokggufout.h"

/* The source of one written tensor. */
struct origin {
    const struct sg_tensor *tensor;
    struct sg_perm rows, cols; /* logical to stored order in the new file */
    uint32_t plus_one;         /* 1: the source stores w - 1, add 1 */
    uint32_t log_decay;        /* 1: the source stores the logarithm, write -exp(x) */
    const float *values;       /* not NULL: computed numbers instead of a tensor */
};

/* An export in progress. */
struct sg_export {
    const struct segue_model *m; /* holds a reference */
    const struct sg_mixture *mix; /* requested for matrices */
    const struct sg_imatrix *importance; /* NULL: none */
    int tied;                    /* 1: the embedding is the head, too */
    struct sg_gguf_out out;
    struct sg_gguf_item *items;  /* [items_n] the tensors to write */
    struct origin *origins;      /* [items_n] */
    uint8_t *fallback;           /* [items_n] 1: another storage than requested */
    uint32_t items_n, next;      /* next: the tensor that sg_export_next writes */
    uint32_t important;          /* tensors that it has numbers for */
    struct sg_export_buffers buffers;
    struct sg_arena arena;
};

/* --- mixtures: the rules of llama-quantize (llama-quant.cpp) for models without experts --- */

enum { Q2_K, Q2_K_S, Q3_K_S, Q3_K_M, Q3_K_L, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M };

/* The mixed ones first, in the order of the enumeration. */
static const struct sg_mixture mixtures[] = {
    {"q2_k", SG_Q2_K, 10, 1},   {"q2_k_s", SG_Q2_K, 21, 1}, {"q3_k_s", SG_Q3_K, 11, 1}, {"q3_k_m", SG_Q3_K, 12, 1},
    {"q3_k_l", SG_Q3_K, 13, 1}, {"q4_k_s", SG_Q4_K, 14, 1}, {"q4_k_m", SG_Q4_K, 15, 1}, {"q5_k_s", SG_Q5_K, 16, 1},
    {"q5_k_m", SG_Q5_K, 17, 1}, {"f32", SG_F32, 0, 0},      {"f16", SG_F16, 1, 0},      {"bf16", SG_BF16, 32, 0},
    {"q8_0", SG_Q8_0, 7, 0},    {"q6_k", SG_Q6_K, 18, 0},   {"q5_1", SG_Q5_1, 9, 0},    {"q5_0", SG_Q5_0, 8, 0},
    {"q5_k", SG_Q5_K, 17, 0},   {"q4_k", SG_Q4_K, 15, 0},   {"q3_k", SG_Q3_K, 12, 0},   {"q4_1", SG_Q4_1, 3, 0},
    {"q4_0", SG_Q4_0, 2, 0},
};

const struct sg_mixture *sg_mixture_find(const char *name)
{
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++)
        if (!strcmp(mixtures[i].name, name)) return &mixtures[i];
    return NULL;
}

/* The first and the last eighth of the layers, and every third one between. */
static int more_bits(uint32_t i, uint32_t n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

/* The value projection. Models of 80 layers with shared K and V heads get at least 5 bits: the matrix is small there. */
static enum sg_storage of_values(long mix, enum sg_storage base, const struct sg_mixture_place *at)
{
    enum sg_storage s = base;
    if (mix == Q2_K) s = at->queries_per_kv >= 4 ? SG_Q4_K : SG_Q3_K;
    if (mix == Q2_K_S && at->queries_per_kv >= 4) s = SG_Q4_K;
    if (mix == Q3_K_M) s = at->value < 2 ? SG_Q5_K : SG_Q4_K;
    if (mix == Q3_K_L) s = SG_Q5_K;
    if ((mix == Q4_K_M || mix == Q5_K_M) && more_bits(at->value, at->values)) s = SG_Q6_K;
    if (mix == Q4_K_S && at->value < 4) s = SG_Q5_K;
    if (at->layers == 80 && at->queries_per_kv > 1 && (s == SG_Q3_K || s == SG_Q4_K)) s = SG_Q5_K;
    return s;
}

/* The down projection of the feed-forward network. */
static enum sg_storage of_down(long mix, enum sg_storage base, const struct sg_mixture_place *at)
{
    if (mix == Q2_K) return SG_Q3_K;
    if (mix == Q2_K_S) return at->layer < at->layers / 8 ? SG_Q4_K : base;
    if (mix == Q3_K_M) return at->layer < at->layers / 16 ? SG_Q5_K : SG_Q4_K;
    if (mix == Q3_K_L) return SG_Q5_K;
    if ((mix == Q4_K_M || mix == Q5_K_M) && more_bits(at->layer, at->layers)) return SG_Q6_K;
    if (mix == Q4_K_S && at->layer < at->layers / 8) return SG_Q5_K;
    return base;
}

enum sg_storage sg_mixture_storage(const struct sg_mixture *mix, const char *name, const struct sg_mixture_place *at)
{
    if (!mix->mixed) return mix->base;
    long m = (long)(mix - mixtures);
    if (strstr(name, "attn_v.weight")) return of_values(m, mix->base, at);
    if (strstr(name, "ffn_down")) return of_down(m, mix->base, at);
    if (strstr(name, "attn_output.weight"))
        return m == Q2_K ? SG_Q3_K : m == Q3_K_M ? SG_Q4_K : m == Q3_K_L ? SG_Q5_K : mix->base;
    if (strstr(name, "attn_qkv.weight"))
        return m == Q3_K_M || m == Q3_K_L ? SG_Q4_K : m == Q4_K_M ? SG_Q5_K : m == Q5_K_M ? SG_Q6_K : mix->base;
    return mix->base;
}

/* --- choice of storage --- */

static int ends_with(const char *name, const char *end)
{
    size_t a = strlen(name), b = strlen(end);
    return a >= b && !strcmp(name + a - b, end);
}

/* 1 for weights of linear layers and tables, which are quantised; norms, convolutions, position
 * tables and routers are not. */
static int is_matrix(const char *name, uint32_t rank)
{
    return rank >= 2 && ends_with(name, ".weight") && !ends_with(name, "_norm.weight") &&
           !strstr(name, "ssm_conv1d") && !strstr(name, "position_embd") && !strstr(name, "ffn_gate_inp");
}

/* The layer of a tensor of GGUF, "blk.12.attn_v.weight"; UINT32_MAX outside of the layers. */
static uint32_t layer_of(const char *name)
{
    unsigned layer;
    return sscanf(name, "blk.%u.", &layer) == 1 ? layer : UINT32_MAX;
}

/* Set the numbers of layers with a value projection: all, and those before `layer`. */
static void count_values(const struct sg_export *e, uint32_t layer, struct sg_mixture_place *at)
{
    for (uint32_t i = 0; i < e->items_n; i++) {
        const char *name = e->items[i].name;
        if (!strstr(name, "attn_v.weight") && !strstr(name, "attn_qkv.weight")) continue;
        at->values++;
        at->value += layer_of(name) < layer;
    }
}

/* The head, or the tied embedding, gets at least 6 bits, as in llama.cpp. */
static enum sg_storage wanted_storage(const struct sg_export *e, const char *name)
{
    enum sg_storage base = e->mix->base;
    int head = !strcmp(name, "output.weight") || (e->tied && !strcmp(name, "token_embd.weight"));
    if (head) return base > SG_BF16 && base != SG_Q8_0 ? SG_Q6_K : base;
    const struct sg_numbers *n = e->m->numbers;
    struct sg_mixture_place at = {.layer = layer_of(name), .layers = n->layers};
    if (at.layer == UINT32_MAX) return base;
    at.queries_per_kv = n->kv_heads ? n->heads / n->kv_heads : 1;
    count_values(e, at.layer, &at);
    return sg_mixture_storage(e->mix, name, &at);
}

/* If rows are not whole blocks: the substitute that llama.cpp uses (Q4_0 where that is IQ4_NL, of the same size), or F16. */
static enum sg_storage fitting_storage(enum sg_storage s, uint64_t cols)
{
    if (cols % sg_storage_info(s)->block == 0) return s;
    if (s == SG_Q2_K || s == SG_Q3_K) s = SG_Q4_0;
    if (s == SG_Q4_K) s = SG_Q5_0;
    if (s == SG_Q5_K) s = SG_Q5_1;
    if (s == SG_Q6_K) s = SG_Q8_0;
    return cols % sg_storage_info(s)->block == 0 ? s : SG_F16;
}

/* Set the storage of all items. */
static void choose_storages(struct sg_export *e)
{
    for (uint32_t i = 0; i < e->items_n; i++) {
        struct sg_gguf_item *t = &e->items[i];
        t->storage = SG_F32;
        if (!is_matrix(t->name, t->rank)) continue;
        enum sg_storage want = wanted_storage(e, t->name);
        t->storage = fitting_storage(want, t->shape[t->rank - 1]);
        e->fallback[i] = t->storage != want;
    }
}

/* --- the list of tensors --- */

/* Lists for up to n tensors. */
static segue_status alloc_lists(struct sg_export *e, uint32_t n, segue_error *err)
{
    e->items = sg_arena_alloc(&e->arena, n * sizeof *e->items);
    e->origins = sg_arena_alloc(&e->arena, n * sizeof *e->origins);
    e->fallback = sg_arena_alloc(&e->arena, n);
    return e->items && e->origins && e->fallback ? SEGUE_OK : sg_no_memory("list of tensors", n, err);
}

/* GGUF source: the same tensors, already in stored order. */
static segue_status list_gguf(struct sg_export *e, segue_error *err)
{
    const struct sg_archive *a = e->m->archive;
    SG_TRY(alloc_lists(e, a->tensors_n, err));
    e->tied = !sg_archive_find(a, "output.weight");
    for (uint32_t i = 0; i < a->tensors_n; i++) {
        const struct sg_tensor *t = &a->tensors[i];
        e->items[i] = (struct sg_gguf_item){.name = t->name, .rank = t->rank};
        memcpy(e->items[i].shape, t->shape, sizeof t->shape);
        e->origins[i].tensor = t;
    }
    e->items_n = a->tensors_n;
    return SEGUE_OK;
}

/* The GGUF name of a tensor; NULL: out of memory. */
static const char *gguf_name(struct sg_export *e, const char *pattern, uint32_t layer, int bias)
{
    const char *slot = strstr(pattern, "%u");
    char *name = slot
                     ? sg_arena_printf(&e->arena, "%.*s%u%s", (int)(slot - pattern), pattern, layer, slot + 2)
                     : sg_arena_printf(&e->arena, "%s", pattern);
    if (name && bias && ends_with(name, ".weight")) memcpy(name + strlen(name) - 7, ".bias", 6);
    return name;
}

/* Append the weight or bias of a role in one layer, with the conversions from its layout to GGUF's. */
static segue_status add_role(struct sg_export *e, const struct sg_tensor_row *row, uint32_t layer, int bias,
                             segue_error *err)
{
    const struct segue_model *m = e->m;
    const struct sg_bound *bound = sg_model_weight(m, layer, row->role);
    const struct sg_tensor *t = bias ? bound->bias : bound->weight;
    int tied_head = row->role == SG_HEAD && t == sg_model_weight(m, m->numbers->layers, SG_EMBED)->weight;
    if (!t || !row->gguf || tied_head) return SEGUE_OK;
    struct sg_gguf_item *item = &e->items[e->items_n];
    struct origin *from = &e->origins[e->items_n];
    if (!(item->name = gguf_name(e, row->gguf, layer, bias))) return sg_no_memory("name", 64, err);
    int vector = bias || !row->rows;
    item->rank = vector ? 1 : 2;
    item->shape[0] = vector ? t->cols : t->rows;
    item->shape[1] = vector ? 0 : t->cols;
    *from = (struct origin){
        .tensor = t, .plus_one = !bias && bound->plus_one, .log_decay = row->role == SG_DELTA_DECAY};
    SG_TRY(sg_fix_perms(m->family, m->numbers, row, 1, &from->rows, &from->cols, err));
    /* A vector is written as one row: its row permutation applies to the columns. */
    if (vector) from->cols = from->rows, from->rows = (struct sg_perm){0};
    e->items_n++;
    return SEGUE_OK;
}

/* GGUF stores Llama 3's frequency scaling as a tensor of divisors: unscaled frequency / scaled
 * frequency. */
static segue_status add_divisors(struct sg_export *e, segue_error *err)
{
    const struct sg_rotary *r = &e->m->numbers->rotary[0];
    if (r->scaling != SG_SCALING_LLAMA3) return SEGUE_OK;
    float *divisors = sg_arena_alloc(&e->arena, r->pairs * sizeof *divisors);
    if (!divisors) return sg_no_memory("rotary divisors", r->pairs, err);
    for (uint32_t j = 0; j < r->pairs; j++)
        /* r->inverse has the scaled frequencies. */
        divisors[j] = (float)(pow(r->theta, -(double)j / r->pairs) / (double)r->inverse[j]);
    e->items[e->items_n] =
        (struct sg_gguf_item){.name = "rope_freqs.weight", .storage = SG_F32, .rank = 1, .shape = {r->pairs}};
    e->origins[e->items_n++].values = divisors;
    return SEGUE_OK;
}

/* Other sources: all weights and biases, layer by layer. */
static segue_status list_roles(struct sg_export *e, segue_error *err)
{
    const struct segue_model *m = e->m;
    uint32_t layers = m->numbers->layers;
    SG_TRY(alloc_lists(e, 2 * (layers + 1) * SG_ROLE_N + 1, err));
    for (uint32_t i = 0; i <= layers; i++) /* the last iteration: weights outside the layers */
        for (enum sg_role role = SG_ROLE_NONE + 1; role < SG_ROLE_N; role++) {
            const struct sg_tensor_row *row = sg_tensor_find(m->family, role);
            if (!row || (i == layers) != !row->layers || role == SG_DIVISORS) continue;
            SG_TRY(add_role(e, row, i, 0, err));
            SG_TRY(add_role(e, row, i, 1, err));
        }
    e->tied = sg_model_weight(m, layers, SG_HEAD)->weight == sg_model_weight(m, layers, SG_EMBED)->weight;
    return add_divisors(e, err);
}

/* --- keys --- */

/* Keys that describe the new file. */
static void general_keys(struct sg_export *e)
{
    sg_gguf_key_u32(&e->out, "general.file_type", e->mix->file_type);
    sg_gguf_key_u32(&e->out, "general.quantization_version", 2);
}

/* Copy the keys of a GGUF source, except those that describe the file itself. */
static void copy_keys(struct sg_export *e)
{
    static const char *const excluded[] = {"general.file_type", "general.quantization_version",
                                      "general.alignment", "quantize.imatrix.entries_count", "split.no",
                                      "split.count",       "split.tensors.count"};
    const struct sg_archive *a = e->m->archive;
    for (uint32_t i = 0; i < a->meta_n; i++) {
        int skip = 0;
        for (size_t k = 0; k < sizeof excluded / sizeof *excluded; k++) skip |= !strcmp(a->meta[i].key, excluded[k]);
        if (!skip) sg_gguf_key_copy(&e->out, &a->meta[i]);
    }
    general_keys(e);
}

/* Rotary parameters. Llama 3's scaling is written as a tensor instead. */
static void rope_keys(struct sg_export *e, const char *arch)
{
    const struct sg_rotary *r = &e->m->numbers->rotary[0];
    char key[160];
    snprintf(key, sizeof key, "%s.rope.dimension_count", arch);
    sg_gguf_key_u32(&e->out, key, 2 * r->pairs);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    sg_gguf_key_f32(&e->out, key, (float)r->theta);
    if (r->scaling == SG_SCALING_NONE || r->scaling == SG_SCALING_LLAMA3) return;
    const char *name = sg_scaling_name(r->scaling);
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    sg_gguf_key_string(&e->out, key, name, strlen(name));
    snprintf(key, sizeof key, "%s.rope.scaling.factor", arch);
    sg_gguf_key_f32(&e->out, key, (float)r->factor);
    if (r->scaling == SG_SCALING_LINEAR) return;
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
    sg_gguf_key_u32(&e->out, key, (uint32_t)r->original);
}

/* How many rotary pairs encode time, height and width in multimodal models. For text all three are
 * the position, so any split gives the same result; thirds are written. */
static void section_keys(struct sg_export *e, const char *arch)
{
    uint32_t pairs = e->m->numbers->rotary[0].pairs, time = (pairs + 2) / 3, height = (pairs - time + 1) / 2;
    const uint32_t sections[4] = {time, height, pairs - time - height, 0};
    char key[160];
    snprintf(key, sizeof key, "%s.rope.dimension_sections", arch);
    sg_gguf_key_i32_array(&e->out, key, 4);
    for (int i = 0; i < 4; i++) sg_gguf_put_i32(&e->out, (int32_t)sections[i]);
}

/* Keys from the family's table of hyperparameters. */
static void make_keys(struct sg_export *e)
{
    const struct sg_family *f = e->m->family;
    const char *arch = f->gguf[0], *name = e->m->info.name;
    char key[160];
    sg_gguf_key_string(&e->out, "general.architecture", arch, strlen(arch));
    if (name) sg_gguf_key_string(&e->out, "general.name", name, strlen(name));
    general_keys(e);
    for (const struct sg_number_row *r = NULL; (r = sg_number_next(f, r));) {
        double v = sg_number_value(e->m->numbers, r);
        /* 0 stands for an absent optional value; files do not have the key then. */
        if (!r->gguf || (v == 0 && !r->required)) continue;
        snprintf(key, sizeof key, "%s.%s", arch, r->gguf);
        if (r->kind == SG_NUMBER_REAL)
            sg_gguf_key_f32(&e->out, key, (float)v);
        else if (r->kind == SG_NUMBER_COUNT)
            sg_gguf_key_u32(&e->out, key, (uint32_t)v);
    }
    if (!f->learned_positions) rope_keys(e, arch);
    if (f->sections) section_keys(e, arch);
}

/* --- data --- */

/* The inverse of a permutation of n indices: order[stored] = logical. The caller frees it; NULL:
 * out of memory. */
static uint32_t *stored_order(const struct sg_perm *p, uint64_t n)
{
    uint32_t *order = sg_alloc(n * sizeof *order);
    for (uint64_t i = 0; order && i < n; i++) order[p->a ? sg_perm_stored(p, i) : i] = (uint32_t)i;
    return order;
}

/* The importance of the columns of tensor i; *weights NULL: none. */
static segue_status find_importance(struct sg_export *e, uint32_t i, const float **weights, segue_error *err)
{
    const struct sg_gguf_item *item = &e->items[i];
    uint64_t n = 0, cols = item->shape[item->rank - 1];
    *weights = e->importance && item->rank >= 2 ? sg_imatrix_find(e->importance, item->name, &n) : NULL;
    if (!*weights || n == cols) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT,
                   "quantize: %s: the importance matrix has %llu numbers for %llu columns; it belongs to another model",
                   item->name, (unsigned long long)n, (unsigned long long)cols);
}

/* Write a tensor in stored order: rows[] and cols[] map stored to logical indices. */
static segue_status write_rows(struct sg_export *e, uint32_t i, const uint32_t *rows, const uint32_t *cols,
                               segue_error *err)
{
    const struct origin *from = &e->origins[i];
    struct sg_export_rows t = {.tensor = from->tensor,
                               .rows = rows,
                               .cols = cols,
                               .plus_one = from->plus_one,
                               .log_decay = from->log_decay,
                               .out = &e->out,
                               .item = i};
    SG_TRY(find_importance(e, i, &t.importance, err));
    return sg_export_write_rows(&t, &e->buffers, err);
}

/* Write tensor i. */
static segue_status write_item(struct sg_export *e, uint32_t i, segue_error *err)
{
    const struct origin *from = &e->origins[i];
    if (from->values) return sg_gguf_out_data(&e->out, i, 0, from->values, (size_t)e->items[i].bytes, err);
    uint32_t *rows = stored_order(&from->rows, from->tensor->rows),
             *cols = stored_order(&from->cols, from->tensor->cols);
    segue_status s = rows && cols ? write_rows(e, i, rows, cols, err)
                                  : sg_no_memory("order of rows", (size_t)from->tensor->rows, err);
    sg_free(rows);
    sg_free(cols);
    return s;
}

/* --- opening and closing --- */

/* The importance matrix has at least one tensor of the model, and its keys name it as those of llama-quantize do. */
static segue_status use_importance(struct sg_export *e, segue_error *err)
{
    const float *weights;
    for (uint32_t i = 0; i < e->items_n; i++) {
        SG_TRY(find_importance(e, i, &weights, err));
        e->important += weights != NULL;
    }
    if (!e->important)
        return sg_fail(err, SEGUE_EFORMAT, "quantize: %s: the importance matrix has no tensor of this model; make one for it",
                       e->m->archive->path);
    sg_gguf_key_u32(&e->out, "quantize.imatrix.entries_count", e->important);
    return SEGUE_OK;
}

/* List the tensors, collect the keys, allocate the row buffers and write the header. */
static segue_status begin(struct sg_export *e, const char *path, segue_error *err)
{
    const struct segue_model *m = e->m;
    int gguf = m->archive->format == SG_FORMAT_GGUF;
    uint64_t widest = 1;
    SG_TRY(gguf ? list_gguf(e, err) : list_roles(e, err));
    choose_storages(e);
    for (uint32_t i = 0; i < e->items_n; i++) {
        uint64_t width = e->items[i].rank ? e->items[i].shape[e->items[i].rank - 1] : 1;
        if (width > widest) widest = width;
    }
    /* Keys of a GGUF source are copied; other sources have none and their keys are made from the model. */
    if (gguf)
        copy_keys(e);
    else
        make_keys(e);
    if (e->importance) SG_TRY(use_importance(e, err));
    if (!gguf && m->tokenizer) SG_TRY(sg_tokenizer_to_gguf(m->tokenizer, m->numbers->vocab, &e->out, err));
    if (!gguf && m->template_source)
        sg_gguf_key_string(&e->out, "tokenizer.chat_template", m->template_source, m->template_len);
    SG_TRY(sg_export_buffers_new(&e->buffers, widest, err));
    return sg_gguf_out_begin(&e->out, path, e->items, e->items_n, err);
}

/* EARG if path is one of the files of the model, also by another name or through a link: the renamed output would replace
 * the input. */
static segue_status check_not_input(const struct sg_archive *a, const char *path, segue_error *err)
{
    struct stat target, source;
    if (stat(path, &target)) return SEGUE_OK;
    for (uint32_t i = 0; i < a->files_n; i++)
        if (!stat(a->files[i], &source) && source.st_dev == target.st_dev && source.st_ino == target.st_ino)
            return sg_fail(err, SEGUE_EARG, "quantize: %s: the output is a file of the input model; choose another name", path);
    return SEGUE_OK;
}

segue_status sg_export_open(struct sg_export **out, const struct segue_model *m, const char *path,
                            const struct sg_mixture *mix, const struct sg_imatrix *importance, segue_error *err)
{
    SG_TRY(check_not_input(m->archive, path, err));
    struct sg_export *e = sg_alloc(sizeof *e);
    if (!e) return sg_no_memory("export", sizeof *e, err);
    e->m = sg_model_ref(m);
    e->mix = mix;
    e->importance = importance;
    e->out.file.fd = -1;
    segue_status s = begin(e, path, err);
    if (s == SEGUE_OK)
        *out = e;
    else
        sg_export_close(e);
    return s;
}

uint32_t sg_export_count(const struct sg_export *e) { return e->items_n; }
uint32_t sg_export_important(const struct sg_export *e) { return e->important; }

/* The call after the last tensor commits the file. */
segue_status sg_export_next(struct sg_export *e, struct sg_export_item *item, segue_error *err)
{
    uint32_t i = e->next;
    if (i == e->items_n) {
        SG_TRY(sg_gguf_out_commit(&e->out, err));
        e->next++;
    }
    if (i >= e->items_n) return SEGUE_END;
    SG_TRY(write_item(e, i, err));
    const struct sg_tensor *t = e->origins[i].tensor;
    *item = (struct sg_export_item){.name = e->items[i].name,
                                    .from = t ? t->storage : SG_F32,
                                    .to = e->items[i].storage,
                                    .fallback = e->fallback[i],
                                    .bytes = e->items[i].bytes};
    e->next++;
    return SEGUE_OK;
}

/* Before SEGUE_END was returned, this deletes the incomplete file. */
void sg_export_close(struct sg_export *e)
{
    if (!e) return;
    sg_gguf_out_close(&e->out);
    sg_export_buffers_free(&e->buffers);
    sg_arena_free(&e->arena);
    sg_model_unref((struct segue_model *)(uintptr_t)e->m);
    sg_free(e);
}
