/* adapter.c: reads LoRA adapters: PEFT folders, MLX adapters and GGUF adapters. The result is the
 * same for all: fp32 pairs in logical order of rows and columns, with the scale multiplied into B,
 * independent of the layouts of adapter file and model file. A tensor that does not belong to a
 * weight of the model, or has another size, is refused.
 * SPDX-License-Identifier: MIT */
#include "model/adapter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "model/family.h"

enum adapter_kind { ADAPTER_PEFT, ADAPTER_MLX, ADAPTER_GGUF };
enum { CONFIG_LIMIT = 1 << 20, NAME_CAP = 320 };

/* The state of reading an adapter. */
struct reading {
    struct segue_adapter *ad;
    const struct segue_model *m;
    const char *path;
    enum adapter_kind kind;
    json_t *config;             /* adapter_config.json; NULL: GGUF */
    double scale;               /* requested by the caller */
    uint8_t *claimed;           /* [tensors_n] 1: part of a pair */
    struct sg_lora_pair *pairs; /* in the adapter's arena; one for every two tensors */
    uint32_t pairs_n;
    segue_error *err;
};

/* Tensor names consist of a prefix, the module's name and an ending for A or B, depending on the
 * kind of adapter. heads: prefixes of modules outside the transformer body. */
static const char *const prefixes[][8] = {
    [ADAPTER_PEFT] = {"base_model.model.model.language_model.", "base_model.model.language_model.model.",
                    "base_model.model.model.", "base_model.model.transformer.", "base_model.model."},
    [ADAPTER_MLX] = {"model.", "language_model.model.", "model.language_model.", "transformer.", ""},
    [ADAPTER_GGUF] = {""},
};
static const char *const heads[] = {[ADAPTER_PEFT] = "base_model.model.", [ADAPTER_MLX] = "", [ADAPTER_GGUF] = ""};
static const char *const endings[][2] = {
    [ADAPTER_PEFT] = {".lora_A.weight", ".lora_B.weight"},
    [ADAPTER_MLX] = {".lora_a", ".lora_b"},
    [ADAPTER_GGUF] = {".weight.lora_a", ".weight.lora_b"},
};

/* Fails with EFORMAT. name: the tensor or key at fault. */
static segue_status refuse(const struct reading *r, const char *name, const char *why, const char *remedy)
{
    return sg_fail(r->err, SEGUE_EFORMAT, "open adapter: %s: %.160s: %s; %s", r->path, name, why, remedy);
}

/* --- finding pairs --- */

/* The tensor A (b = 0) or B (b = 1) of a module under a prefix. The ".weight" at the end of the
 * module's name is replaced by the ending. */
static const struct sg_tensor *find(const struct reading *r, const char *prefix, const char *module,
                                    uint32_t layer, int b)
{
    char name[NAME_CAP];
    const char *mark = strstr(module, "%u");
    size_t len = strlen(module);
    if (len > 7 && !strcmp(module + len - 7, ".weight")) len -= 7;
    if (mark)
        snprintf(name, sizeof name, "%s%.*s%u%.*s%s", prefix, (int)(mark - module), module, layer,
                 (int)(len - (size_t)(mark - module) - 2), mark + 2, endings[r->kind][b]);
    else
        snprintf(name, sizeof name, "%s%.*s%s", prefix, (int)len, module, endings[r->kind][b]);
    return sg_archive_find(r->ad->archive, name);
}

/* Find A and B of a row's module; NULL when absent. The prefix depends on the class that was
 * trained, so all are tried. */
static void find_pair(const struct reading *r, const struct sg_tensor_row *row, uint32_t layer,
                      const struct sg_tensor *ab[2])
{
    const char *module = r->kind == ADAPTER_GGUF ? row->gguf : row->hf;
    ab[0] = ab[1] = NULL;
    if (!module) return;
    if (*module == '/') {
        for (int k = 0; k < 2; k++) ab[k] = find(r, heads[r->kind], module + 1, layer, k);
        return;
    }
    /* The first prefix under which at least one of the two exists. */
    for (const char *const *p = prefixes[r->kind]; *p && !ab[0] && !ab[1]; p++)
        for (int k = 0; k < 2; k++) ab[k] = find(r, *p, module, layer, k);
}

/* --- scale --- */

/* 1 when a pattern of PEFT's alpha_pattern equals the module's name or its end after a dot. */
static int matches(const char *pattern, const char *module)
{
    size_t p = strlen(pattern), m = strlen(module);
    return p <= m && !strcmp(module + m - p, pattern) && (p == m || module[m - p - 1] == '.');
}

/* The alpha of the pair whose A is `a`: from alpha_pattern, else lora_alpha. */
static segue_status alpha_of(const struct reading *r, const struct sg_tensor *a, double *alpha)
{
    char module[NAME_CAP];
    const char *key;
    json_t *patterns = json_object_get(r->config, "alpha_pattern"), *value;
    SG_TRY(sg_json_real(r->config, "lora_alpha", 8, alpha, r->path, r->err));
    snprintf(module, sizeof module, "%s", a->name);
    char *end = strstr(module, endings[ADAPTER_PEFT][0]);
    if (end) *end = 0;
    json_object_foreach(patterns, key, value)
    {
        /* PEFT treats keys as regular expressions; plain module names are by far the most common. */
        if (strpbrk(key, "*+?[](){}|^$\\"))
            return refuse(r, key, "regular expressions in alpha_pattern are not supported",
                          "name whole modules");
        if (!matches(key, module)) continue;
        if (!json_is_number(value))
            return refuse(r, key, "its value in alpha_pattern is not a number", "train or download the adapter again");
        *alpha = json_number_value(value);
    }
    return SEGUE_OK;
}

/* The factor on B A: alpha / rank (PEFT, GGUF), alpha / sqrt(rank) (rank-stabilised LoRA) or `scale` (MLX), times the
 * caller's scale. The rank is that of the tensor, so rank_pattern is not needed. */
static segue_status scale_of(const struct reading *r, const struct sg_tensor *a, uint32_t rank, double *scale)
{
    double alpha = 0;
    int rslora = 0;
    if (r->kind == ADAPTER_PEFT) {
        SG_TRY(alpha_of(r, a, &alpha));
        SG_TRY(sg_json_bool(r->config, "use_rslora", 0, &rslora, r->path, r->err));
        *scale = rslora ? alpha / sqrt(rank) : alpha / rank;
    } else if (r->kind == ADAPTER_MLX) {
        const json_t *p = json_object_get(r->config, "lora_parameters");
        if (!json_is_object(p)) p = r->config;
        SG_TRY(sg_json_real(p, "alpha", 0, &alpha, r->path, r->err));
        SG_TRY(sg_json_real(p, "scale", alpha / rank, scale, r->path, r->err));
        if (*scale == 0)
            return refuse(r, "lora_parameters.scale", "is missing or 0", "download the complete folder");
    } else {
        SG_TRY(sg_meta_float(r->ad->archive, "adapter.lora.alpha", 0, &alpha, r->err));
        *scale = alpha != 0 ? alpha / rank : 1;
    }
    *scale *= r->scale;
    return isfinite(*scale) ? SEGUE_OK : refuse(r, "scale", "is not finite", "train or download the adapter again");
}

/* --- one pair --- */

/* EFORMAT: the tensor should be rows x cols. */
static segue_status bad_shape(const struct reading *r, const struct sg_tensor *t, uint64_t rows,
                              uint64_t cols)
{
    return sg_fail(r->err, SEGUE_EFORMAT,
                   "open adapter: %s: tensor %s has shape %llux%llu, expected %llux%llu; use an adapter made for this "
                   "model",
                   r->path, t->name, (unsigned long long)t->rows, (unsigned long long)t->cols,
                   (unsigned long long)rows, (unsigned long long)cols);
}

/* Convert a whole tensor to fp32; the caller frees *out with sg_free. All numbers must be finite. */
static segue_status read_all(const struct reading *r, const struct sg_tensor *t, float **out)
{
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    size_t bytes;
    if (!info || !info->computable)
        return refuse(r, t->name, "its storage type is not supported",
                      "save it as F32, F16 or BF16");
    SG_TRY(sg_mul((size_t)t->rows, (size_t)t->cols, &bytes, t->name, r->err));
    SG_TRY(sg_mul(bytes, sizeof(float), &bytes, t->name, r->err));
    if (!(*out = sg_alloc(bytes))) return sg_no_memory("adapter", bytes, r->err);
    sg_tensor_read(t, *out);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        if (!isfinite((*out)[i])) {
            sg_free(*out);
            *out = NULL;
            return refuse(r, t->name, "has a number that is not finite", "train or download the adapter again");
        }
    return SEGUE_OK;
}

/* Copy A to [rank, k] and B to [n, rank] in logical order and multiply B by the scale. MLX files
 * store both transposed. */
static void store_pair(struct sg_lora_pair *pair, const struct reading *r, const float *a, const float *b,
                  float *to_a, float *to_b, const struct sg_perm perms[2], double scale)
{
    uint64_t k = pair->tensor->cols, n = pair->tensor->rows, rank = pair->rank;
    int transposed = r->kind == ADAPTER_MLX;
    /* Columns of A follow the input features of W, rows of B its output features. */
    for (uint64_t j = 0; j < k; j++) {
        uint64_t from = sg_perm_stored(&perms[1], j);
        for (uint64_t i = 0; i < rank; i++) to_a[i * k + j] = transposed ? a[from * rank + i] : a[i * k + from];
    }
    for (uint64_t j = 0; j < n; j++) {
        uint64_t from = sg_perm_stored(&perms[0], j);
        for (uint64_t i = 0; i < rank; i++)
            to_b[j * rank + i] = (float)(scale * (transposed ? b[i * n + from] : b[from * rank + i]));
    }
    pair->a = to_a;
    pair->b = to_b;
}

/* Check the shapes of a pair and load it. The permutations are those of the adapter's file, not of
 * the model's: a PEFT adapter can be used with a GGUF of its model. */
static segue_status fill_pair(struct reading *r, struct sg_lora_pair *pair, const struct sg_tensor_row *row,
                              const struct sg_tensor *const ab[2])
{
    uint64_t k = pair->tensor->cols, n = pair->tensor->rows;
    int transposed = r->kind == ADAPTER_MLX;
    uint64_t rank = transposed ? ab[0]->cols : ab[0]->rows;
    if (!rank || rank > 65536)
        return refuse(r, ab[0]->name, "invalid LoRA rank", "train or download the adapter again");
    if (ab[0]->rank != 2 || ab[0]->rows != (transposed ? k : rank) || ab[0]->cols != (transposed ? rank : k))
        return bad_shape(r, ab[0], transposed ? k : rank, transposed ? rank : k);
    if (ab[1]->rank != 2 || ab[1]->rows != (transposed ? rank : n) || ab[1]->cols != (transposed ? n : rank))
        return bad_shape(r, ab[1], transposed ? rank : n, transposed ? n : rank);
    pair->rank = (uint32_t)rank;
    double scale;
    struct sg_perm perms[2];
    SG_TRY(scale_of(r, ab[0], pair->rank, &scale));
    SG_TRY(
        sg_fix_perms(r->m->family, r->m->numbers, row, r->kind == ADAPTER_GGUF, &perms[0], &perms[1],
                     r->err));
    float *a = NULL, *b = NULL;
    float *to_a = sg_arena_alloc(&r->ad->arena, (size_t)(rank * k) * sizeof *to_a);
    float *to_b = sg_arena_alloc(&r->ad->arena, (size_t)(n * rank) * sizeof *to_b);
    segue_status s =
        to_a && to_b ? SEGUE_OK : sg_no_memory("adapter", (size_t)(rank * (n + k)) * sizeof *to_a, r->err);
    if (s == SEGUE_OK) s = read_all(r, ab[0], &a);
    if (s == SEGUE_OK) s = read_all(r, ab[1], &b);
    if (s == SEGUE_OK) store_pair(pair, r, a, b, to_a, to_b, perms, scale);
    sg_free(a);
    sg_free(b);
    return s;
}

/* Load the pair of a row in one layer, if the adapter has one. Its tensors are marked as used. */
static segue_status load_row(struct reading *r, const struct sg_tensor_row *row, uint32_t layer)
{
    const struct sg_tensor *ab[2], *base = sg_model_weight(r->m, layer, row->role)->weight;
    find_pair(r, row, layer, ab);
    if (!ab[0] && !ab[1]) return SEGUE_OK;
    if (!ab[0] || !ab[1])
        return refuse(r, ab[0] ? ab[0]->name : ab[1]->name, "the other matrix of the pair is missing",
                      "download the adapter again");
    /* Only matrices that are the weight of a linear op: not embeddings, vectors or convolutions. */
    if (row->role == SG_EMBED || !row->rows || (row->fix & SG_FIX_TAPS) || !base)
        return refuse(r, ab[0]->name, "this tensor cannot be changed by an adapter",
                      "use an adapter for linear layers only");
    /* A change of a tied head would have to apply to the embedding as well. */
    if (row->role == SG_HEAD && base == sg_model_weight(r->m, layer, SG_EMBED)->weight)
        return refuse(r, ab[0]->name, "the head is tied to the embedding", "use an adapter without lm_head");
    for (int k = 0; k < 2; k++) r->claimed[ab[k] - r->ad->archive->tensors] = 1;
    r->pairs[r->pairs_n].tensor = base;
    return fill_pair(r, &r->pairs[r->pairs_n++], row, ab);
}

/* For qsort: sg_lora_find searches by tensor address. */
static int by_address(const void *x, const void *y)
{
    uintptr_t a = (uintptr_t)((const struct sg_lora_pair *)x)->tensor,
              b = (uintptr_t)((const struct sg_lora_pair *)y)->tensor;
    return a < b ? -1 : a > b;
}

/* Load the pairs of all weights; refuse tensors that belong to none. */
static segue_status load_all(struct reading *r)
{
    const struct sg_archive *a = r->ad->archive;
    for (enum sg_role role = SG_ROLE_NONE + 1; role < SG_ROLE_N; role++) {
        const struct sg_tensor_row *row = sg_tensor_find(r->m->family, role);
        if (row && !row->layers) SG_TRY(load_row(r, row, r->m->numbers->layers));
        for (uint32_t i = 0; row && row->layers && i < r->m->numbers->layers; i++)
            if (row->layers & r->m->numbers->kinds[i]) SG_TRY(load_row(r, row, i));
    }
    for (uint32_t i = 0; i < a->tensors_n; i++)
        if (!r->claimed[i])
            return refuse(r, a->tensors[i].name, "the model has no matching weight",
                          "use an adapter made for this model");
    if (!r->pairs_n)
        return refuse(r, "tensors", "the file has no LoRA matrices", "name an adapter, not a model");
    qsort(r->pairs, r->pairs_n, sizeof *r->pairs, by_address);
    r->ad->lora.pairs = r->pairs;
    r->ad->lora.pairs_n = r->pairs_n;
    return SEGUE_OK;
}

/* --- configuration --- */

/* Refuse options that change the arithmetic beyond W + scale * B A. */
static segue_status check_peft(const struct reading *r)
{
    const char *type, *bias;
    int dora, fan;
    SG_TRY(sg_json_text(r->config, "peft_type", "LORA", &type, r->path, r->err));
    SG_TRY(sg_json_text(r->config, "bias", "none", &bias, r->path, r->err));
    SG_TRY(sg_json_bool(r->config, "use_dora", 0, &dora, r->path, r->err));
    SG_TRY(sg_json_bool(r->config, "fan_in_fan_out", 0, &fan, r->path,
                        r->err)); /* describes the base model's layout; only its type is checked */
    if (strcmp(type, "LORA")) return refuse(r, type, "only LORA adapters are supported", "use a LoRA adapter");
    if (strcmp(bias, "none"))
        return refuse(r, "bias", "adapters that change biases are not supported", "merge it into the model");
    if (dora) return refuse(r, "use_dora", "DoRA is not supported", "merge it into the model");
    const json_t *saved = json_object_get(r->config, "modules_to_save");
    if (json_array_size(saved)) {
        const char *name = json_string_value(json_array_get(saved, 0));
        return refuse(r, name ? name : "modules_to_save", "modules_to_save is not supported",
                      "merge it into the model");
    }
    return SEGUE_OK;
}

/* MLX can also store DoRA adapters and full fine-tunes in this format. */
static segue_status check_mlx(const struct reading *r)
{
    const char *type;
    SG_TRY(sg_json_text(r->config, "fine_tune_type", "lora", &type, r->path, r->err));
    return strcmp(type, "lora")
               ? refuse(r, type, "only fine_tune_type lora is supported", "merge it into the model")
               : SEGUE_OK;
}

/* The adapter must be a LoRA adapter for the model's family. */
static segue_status check_gguf(const struct reading *r)
{
    const char *type, *arch;
    size_t type_len, arch_len;
    SG_TRY(sg_meta_string(r->ad->archive, "adapter.type", &type, &type_len, r->err));
    if (!type || type_len != 4 || memcmp(type, "lora", 4))
        return refuse(r, "adapter.type", "is not lora", "name a LoRA adapter");
    SG_TRY(sg_meta_string(r->ad->archive, "general.architecture", &arch, &arch_len, r->err));
    for (const char *const *g = r->m->family->gguf; arch && *g; g++)
        if (strlen(*g) == arch_len && !memcmp(*g, arch, arch_len)) return SEGUE_OK;
    return refuse(r, "general.architecture", "is not the family of the model",
                  "use an adapter made for this model");
}

/* Read adapter_config.json. Its keys tell whether the adapter is of PEFT or MLX. */
static segue_status read_config(struct reading *r, const char *folder)
{
    char *path = sg_path_join(folder, "adapter_config.json");
    if (!path) return sg_no_memory("path", strlen(folder), r->err);
    segue_status s =
        sg_path_kind(path) == SG_PATH_FILE
            ? sg_json_read(&r->config, path, CONFIG_LIMIT, r->err)
            : refuse(r, "adapter_config.json", "is missing next to the weights", "download the complete folder");
    sg_free(path);
    if (s != SEGUE_OK) return s;
    if (!json_is_object(r->config))
        return refuse(r, "adapter_config.json", "is not a JSON object", "download the adapter again");
    r->kind = json_object_get(r->config, "peft_type") || json_object_get(r->config, "lora_alpha")
                   ? ADAPTER_PEFT
                   : ADAPTER_MLX;
    return r->kind == ADAPTER_PEFT ? check_peft(r) : check_mlx(r);
}

/* Open the weights of a folder by the names that PEFT and MLX use, or the file itself. */
static segue_status open_weights(struct reading *r)
{
    static const char *const names[] = {"adapter_model.safetensors", "adapters.safetensors"};
    int folder = sg_path_kind(r->path) == SG_PATH_FOLDER;
    for (size_t i = 0; folder && i < 2; i++) {
        char *file = sg_path_join(r->path, names[i]);
        if (!file) return sg_no_memory("path", strlen(r->path), r->err);
        int exists = sg_path_kind(file) == SG_PATH_FILE;
        segue_status s = exists ? sg_archive_open(&r->ad->archive, file, r->err) : SEGUE_OK;
        sg_free(file);
        if (exists) return s;
    }
    return sg_archive_open(&r->ad->archive, r->path, r->err);
}

/* All steps of opening; the caller frees what r refers to. */
static segue_status open_parts(struct reading *r)
{
    size_t bytes;
    SG_TRY(open_weights(r));
    const struct sg_archive *a = r->ad->archive;
    if (a->format == SG_FORMAT_LLAMA2C)
        return refuse(r, "format", "is not that of an adapter",
                      "name a PEFT folder, adapters.safetensors or a GGUF adapter");
    if (a->format == SG_FORMAT_GGUF) {
        r->kind = ADAPTER_GGUF;
        SG_TRY(check_gguf(r));
    } else {
        char *folder = sg_path_folder(r->path);
        if (!folder) return sg_no_memory("path", strlen(r->path), r->err);
        segue_status s = read_config(r, folder);
        sg_free(folder);
        SG_TRY(s);
    }
    SG_TRY(sg_mul(a->tensors_n / 2 + 1, sizeof *r->pairs, &bytes, "adapter pairs", r->err));
    r->pairs = sg_arena_alloc(&r->ad->arena, bytes);
    r->claimed = sg_alloc(a->tensors_n);
    if (!r->pairs || !r->claimed) return sg_no_memory("adapter", bytes, r->err);
    return load_all(r);
}

/* An id that is not reused: units cache packed copies by it. An address can be reused after a
 * close, and two adapters can be opened at the same time; together they are unique. */
static uint64_t make_id(const struct segue_adapter *ad)
{
    uint64_t unique[2] = {(uint64_t)(uintptr_t)ad, sg_now_ns()};
    return sg_hash_bytes(unique, sizeof unique, 0).lo;
}

segue_status sg_adapter_open(struct segue_adapter **out, const struct segue_model *m, const char *path,
                             float scale, segue_error *err)
{
    struct reading r = {.m = m, .path = path, .scale = scale, .err = err};
    if (!m || !path || !*path)
        return sg_fail(err, SEGUE_EARG, "open adapter: model or path is missing; pass both");
    if (!isfinite(scale))
        return sg_fail(err, SEGUE_EARG, "open adapter: %s: scale %g is not finite; pass a finite number", path,
                       (double)scale);
    if (!(r.ad = sg_alloc(sizeof *r.ad))) return sg_no_memory("adapter", sizeof *r.ad, err);
    atomic_init(&r.ad->references, 1);
    r.ad->model = sg_model_ref(m);
    r.ad->lora.id = make_id(r.ad);
    segue_status s = (r.ad->path = sg_strndup(path, strlen(path))) ? open_parts(&r)
                                                                   : sg_no_memory("path", strlen(path), err);
    sg_free(r.claimed);
    json_decref(r.config);
    if (s == SEGUE_OK) {
        sg_archive_close(r.ad->archive); /* the matrices were copied */
        r.ad->archive = NULL;
        *out = r.ad;
    } else {
        sg_adapter_unref(r.ad);
    }
    return s;
}

static segue_status copy_pairs(struct segue_adapter *ad, const struct sg_lora_pair *pairs, uint32_t n, float scale,
                               segue_error *err)
{
    struct sg_lora_pair *to = sg_arena_alloc(&ad->arena, (n + 1) * sizeof *to);
    for (uint32_t i = 0; to && i < n; i++) {
        size_t a_n = (size_t)(pairs[i].rank * pairs[i].tensor->cols), b_n = (size_t)(pairs[i].tensor->rows * pairs[i].rank);
        float *a = sg_arena_alloc(&ad->arena, a_n * sizeof *a), *b = sg_arena_alloc(&ad->arena, b_n * sizeof *b);
        if (!a || !b) return sg_no_memory("adapter", (a_n + b_n) * sizeof *a, err);
        memcpy(a, pairs[i].a, a_n * sizeof *a);
        for (size_t k = 0; k < b_n; k++) b[k] = scale * pairs[i].b[k];
        to[i] = (struct sg_lora_pair){.tensor = pairs[i].tensor, .rank = pairs[i].rank, .a = a, .b = b};
    }
    if (!to) return sg_no_memory("adapter", (n + 1) * sizeof *to, err);
    qsort(to, n, sizeof *to, by_address);
    ad->lora.pairs = to;
    ad->lora.pairs_n = n;
    return SEGUE_OK;
}

segue_status sg_adapter_make(struct segue_adapter **out, const struct segue_model *m, const char *name,
                             const struct sg_lora_pair *pairs, uint32_t n, float scale, segue_error *err)
{
    struct segue_adapter *ad = sg_alloc(sizeof *ad);
    if (!ad) return sg_no_memory("adapter", sizeof *ad, err);
    atomic_init(&ad->references, 1);
    ad->model = sg_model_ref(m);
    ad->lora.id = make_id(ad);
    ad->path = sg_strndup(name, strlen(name));
    segue_status s = ad->path ? copy_pairs(ad, pairs, n, scale, err) : sg_no_memory("name", strlen(name), err);
    if (s == SEGUE_OK) *out = ad;
    else sg_adapter_unref(ad);
    return s;
}

struct segue_adapter *sg_adapter_ref(struct segue_adapter *a)
{
    if (a) atomic_fetch_add(&a->references, 1);
    return a;
}

void sg_adapter_unref(struct segue_adapter *a)
{
    if (!a || atomic_fetch_sub(&a->references, 1) != 1) return;
    sg_archive_close(a->archive);
    sg_model_unref(a->model);
    sg_arena_free(&a->arena);
    sg_free(a->path);
    sg_free(a);
}
