/* adapter.c: reads low-rank changes: PEFT folders, MLX adapters and GGUF adapters. All end as fp32 pairs in
 * the house's order of rows and columns, with the scale multiplied into B, whatever layouts adapter and model
 * have. A tensor that has no place in the model, or another size, is refused by name; nothing is left out in
 * silence.
 * SPDX-License-Identifier: MIT */
#include "model/adapter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "model/family.h"

enum habit { HABIT_PEFT, HABIT_MLX, HABIT_GGUF };
enum { CONFIG_LIMIT = 1 << 20, NAME_CAP = 320 };

struct reading {
    struct segue_adapter *ad;
    const struct segue_model *m;
    const char *path;
    enum habit habit;
    json_t *config;             /* adapter_config.json; NULL: GGUF */
    double scale;               /* of the caller */
    uint8_t *claimed;           /* [tensors_n] */
    struct sg_lora_pair *pairs; /* [cap] */
    uint32_t pairs_n;
    segue_error *err;
};

/* Names around a module's name, by habit: prefixes, then the endings of A and B. */
static const char *const prefixes[][8] = {
    [HABIT_PEFT] = {"base_model.model.model.language_model.", "base_model.model.language_model.model.",
                    "base_model.model.model.", "base_model.model.transformer.", "base_model.model."},
    [HABIT_MLX] = {"model.", "language_model.model.", "model.language_model.", "transformer.", ""},
    [HABIT_GGUF] = {""},
};
static const char *const heads[] = {[HABIT_PEFT] = "base_model.model.", [HABIT_MLX] = "", [HABIT_GGUF] = ""};
static const char *const endings[][2] = {
    [HABIT_PEFT] = {".lora_A.weight", ".lora_B.weight"},
    [HABIT_MLX] = {".lora_a", ".lora_b"},
    [HABIT_GGUF] = {".weight.lora_a", ".weight.lora_b"},
};

static segue_status refuse(const struct reading *r, const char *name, const char *why, const char *remedy)
{
    return sg_fail(r->err, SEGUE_EFORMAT, "open adapter: %s: %.160s: %s; %s", r->path, name, why, remedy);
}

/* --- finding pairs --- */

/* A or B of one module under one prefix. The module's own ".weight" gives way to the habit's ending. */
static const struct sg_tensor *find(const struct reading *r, const char *prefix, const char *module,
                                    uint32_t layer, int b)
{
    char name[NAME_CAP];
    const char *mark = strstr(module, "%u");
    size_t len = strlen(module);
    if (len > 7 && !strcmp(module + len - 7, ".weight")) len -= 7;
    if (mark)
        snprintf(name, sizeof name, "%s%.*s%u%.*s%s", prefix, (int)(mark - module), module, layer,
                 (int)(len - (size_t)(mark - module) - 2), mark + 2, endings[r->habit][b]);
    else
        snprintf(name, sizeof name, "%s%.*s%s", prefix, (int)len, module, endings[r->habit][b]);
    return sg_archive_find(r->ad->archive, name);
}

/* Adapters are named after the class that was trained, whose prefix need not be the model file's. */
static void find_pair(const struct reading *r, const struct sg_tensor_row *row, uint32_t layer,
                      const struct sg_tensor *ab[2])
{
    const char *module = r->habit == HABIT_GGUF ? row->gguf : row->hf;
    ab[0] = ab[1] = NULL;
    if (!module) return;
    if (*module == '/') {
        for (int k = 0; k < 2; k++) ab[k] = find(r, heads[r->habit], module + 1, layer, k);
        return;
    }
    for (const char *const *p = prefixes[r->habit]; *p && !ab[0] && !ab[1]; p++)
        for (int k = 0; k < 2; k++) ab[k] = find(r, *p, module, layer, k);
}

/* --- scale --- */

/* A pattern of PEFT's rank_pattern or alpha_pattern: the name of a module's end, or all of it. */
static int matches(const char *pattern, const char *module)
{
    size_t p = strlen(pattern), m = strlen(module);
    return p <= m && !strcmp(module + m - p, pattern) && (p == m || module[m - p - 1] == '.');
}

/* alpha of the pair whose A is `a`: of a pattern, or the common one. */
static segue_status alpha_of(const struct reading *r, const struct sg_tensor *a, double *alpha)
{
    char module[NAME_CAP];
    const char *key;
    json_t *patterns = json_object_get(r->config, "alpha_pattern"), *value;
    SG_TRY(sg_json_real(r->config, "lora_alpha", 8, alpha, r->path, r->err));
    snprintf(module, sizeof module, "%s", a->name);
    char *end = strstr(module, endings[HABIT_PEFT][0]);
    if (end) *end = 0;
    json_object_foreach(patterns, key, value)
    {
        if (strpbrk(key, "*+?[](){}|^$\\"))
            return refuse(r, key, "regular expressions in alpha_pattern are not supported",
                          "name whole modules");
        if (!matches(key, module)) continue;
        if (!json_is_number(value))
            return refuse(r, key, "alpha_pattern holds no number", "train or download it again");
        *alpha = json_number_value(value);
    }
    return SEGUE_OK;
}

/* alpha / rank, or what the habit has instead; the rank is the tensor's, so rank patterns need no reading. */
static segue_status scale_of(const struct reading *r, const struct sg_tensor *a, uint32_t rank, double *scale)
{
    double alpha = 0;
    int rooted = 0;
    if (r->habit == HABIT_PEFT) {
        SG_TRY(alpha_of(r, a, &alpha));
        SG_TRY(sg_json_bool(r->config, "use_rslora", 0, &rooted, r->path, r->err));
        *scale = rooted ? alpha / sqrt(rank) : alpha / rank;
    } else if (r->habit == HABIT_MLX) {
        const json_t *p = json_object_get(r->config, "lora_parameters");
        if (!json_is_object(p)) p = r->config;
        SG_TRY(sg_json_real(p, "alpha", 0, &alpha, r->path, r->err));
        SG_TRY(sg_json_real(p, "scale", alpha / rank, scale, r->path, r->err));
        if (*scale == 0)
            return refuse(r, "lora_parameters.scale", "is missing or 0", "download the whole folder");
    } else {
        SG_TRY(sg_meta_float(r->ad->archive, "adapter.lora.alpha", 0, &alpha, r->err));
        *scale = alpha != 0 ? alpha / rank : 1;
    }
    *scale *= r->scale;
    return isfinite(*scale) ? SEGUE_OK : refuse(r, "scale", "is not finite", "train or download it again");
}

/* --- one pair --- */

static segue_status bad_shape(const struct reading *r, const struct sg_tensor *t, uint64_t rows,
                              uint64_t cols)
{
    return sg_fail(r->err, SEGUE_EFORMAT,
                   "open adapter: %s: tensor %s has shape %llux%llu, %llux%llu was expected; it was made for "
                   "another model",
                   r->path, t->name, (unsigned long long)t->rows, (unsigned long long)t->cols,
                   (unsigned long long)rows, (unsigned long long)cols);
}

static segue_status read_all(const struct reading *r, const struct sg_tensor *t, float **out)
{
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    size_t bytes;
    if (!info || !info->computable)
        return refuse(r, t->name, "has a storage that cannot be computed with",
                      "save it as F32, F16 or BF16");
    SG_TRY(sg_mul((size_t)t->rows, (size_t)t->cols, &bytes, t->name, r->err));
    SG_TRY(sg_mul(bytes, sizeof(float), &bytes, t->name, r->err));
    if (!(*out = sg_alloc(bytes))) return sg_no_memory("adapter", bytes, r->err);
    sg_tensor_read(t, *out);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        if (!isfinite((*out)[i])) {
            sg_free(*out);
            *out = NULL;
            return refuse(r, t->name, "holds a number that is not finite", "train or download it again");
        }
    return SEGUE_OK;
}

/* [rank, k] and [n, rank], from the file's order to the house's. MLX holds both turned. */
static void place(struct sg_lora_pair *pair, const struct reading *r, const float *a, const float *b,
                  float *to_a, float *to_b, const struct sg_perm perms[2], double scale)
{
    uint64_t k = pair->tensor->cols, n = pair->tensor->rows, rank = pair->rank;
    int turned = r->habit == HABIT_MLX;
    for (uint64_t j = 0; j < k; j++) {
        uint64_t from = sg_perm_stored(&perms[1], j);
        for (uint64_t i = 0; i < rank; i++) to_a[i * k + j] = turned ? a[from * rank + i] : a[i * k + from];
    }
    for (uint64_t j = 0; j < n; j++) {
        uint64_t from = sg_perm_stored(&perms[0], j);
        for (uint64_t i = 0; i < rank; i++)
            to_b[j * rank + i] = (float)(scale * (turned ? b[i * n + from] : b[from * rank + i]));
    }
    pair->a = to_a;
    pair->b = to_b;
}

/* Layouts are undone by the adapter's habit, not by the model's: a PEFT adapter fits a GGUF of its model. */
static segue_status fill_pair(struct reading *r, struct sg_lora_pair *pair, const struct sg_tensor_row *row,
                              const struct sg_tensor *const ab[2])
{
    uint64_t k = pair->tensor->cols, n = pair->tensor->rows;
    int turned = r->habit == HABIT_MLX;
    uint64_t rank = turned ? ab[0]->cols : ab[0]->rows;
    if (!rank || rank > 65536)
        return refuse(r, ab[0]->name, "has an absurd rank", "train or download it again");
    if (ab[0]->rank != 2 || ab[0]->rows != (turned ? k : rank) || ab[0]->cols != (turned ? rank : k))
        return bad_shape(r, ab[0], turned ? k : rank, turned ? rank : k);
    if (ab[1]->rank != 2 || ab[1]->rows != (turned ? rank : n) || ab[1]->cols != (turned ? n : rank))
        return bad_shape(r, ab[1], turned ? rank : n, turned ? n : rank);
    pair->rank = (uint32_t)rank;
    double scale;
    struct sg_perm perms[2];
    SG_TRY(scale_of(r, ab[0], pair->rank, &scale));
    SG_TRY(
        sg_fix_perms(r->m->family, r->m->numbers, row, r->habit == HABIT_GGUF, &perms[0], &perms[1], r->err));
    float *a = NULL, *b = NULL;
    float *to_a = sg_arena_alloc(&r->ad->arena, (size_t)(rank * k) * sizeof *to_a);
    float *to_b = sg_arena_alloc(&r->ad->arena, (size_t)(n * rank) * sizeof *to_b);
    segue_status s =
        to_a && to_b ? SEGUE_OK : sg_no_memory("adapter", (size_t)(rank * (n + k)) * sizeof *to_a, r->err);
    if (s == SEGUE_OK) s = read_all(r, ab[0], &a);
    if (s == SEGUE_OK) s = read_all(r, ab[1], &b);
    if (s == SEGUE_OK) place(pair, r, a, b, to_a, to_b, perms, scale);
    sg_free(a);
    sg_free(b);
    return s;
}

/* Marks what it uses, so that what is left over can be refused. */
static segue_status take_row(struct reading *r, const struct sg_tensor_row *row, uint32_t layer)
{
    const struct sg_tensor *ab[2], *base = sg_model_weight(r->m, layer, row->role)->weight;
    find_pair(r, row, layer, ab);
    if (!ab[0] && !ab[1]) return SEGUE_OK;
    if (!ab[0] || !ab[1])
        return refuse(r, ab[0] ? ab[0]->name : ab[1]->name, "its other half is missing", "download it again");
    if (row->role == SG_EMBED || !row->rows || (row->fix & SG_FIX_TAPS) || !base)
        return refuse(r, ab[0]->name, "this tensor cannot be changed by an adapter",
                      "train one for linear layers only");
    if (row->role == SG_HEAD && base == sg_model_weight(r->m, layer, SG_EMBED)->weight)
        return refuse(r, ab[0]->name, "the head is tied to the embedding", "train one without lm_head");
    for (int k = 0; k < 2; k++) r->claimed[ab[k] - r->ad->archive->tensors] = 1;
    r->pairs[r->pairs_n].tensor = base;
    return fill_pair(r, &r->pairs[r->pairs_n++], row, ab);
}

static int by_address(const void *x, const void *y)
{
    uintptr_t a = (uintptr_t)((const struct sg_lora_pair *)x)->tensor,
              b = (uintptr_t)((const struct sg_lora_pair *)y)->tensor;
    return a < b ? -1 : a > b;
}

static segue_status take_all(struct reading *r)
{
    const struct sg_archive *a = r->ad->archive;
    for (enum sg_role role = SG_ROLE_NONE + 1; role < SG_ROLE_N; role++) {
        const struct sg_tensor_row *row = sg_tensor_find(r->m->family, role);
        if (row && !row->layers) SG_TRY(take_row(r, row, r->m->numbers->layers));
        for (uint32_t i = 0; row && row->layers && i < r->m->numbers->layers; i++)
            if (row->layers & r->m->numbers->kinds[i]) SG_TRY(take_row(r, row, i));
    }
    for (uint32_t i = 0; i < a->tensors_n; i++)
        if (!r->claimed[i])
            return refuse(r, a->tensors[i].name, "the model has no place for it",
                          "use an adapter made for this model");
    if (!r->pairs_n)
        return refuse(r, "tensors", "there is not one low-rank pair", "name an adapter, not a model");
    qsort(r->pairs, r->pairs_n, sizeof *r->pairs, by_address);
    r->ad->lora.pairs = r->pairs;
    r->ad->lora.pairs_n = r->pairs_n;
    return SEGUE_OK;
}

/* --- what the adapter says of itself --- */

/* Options that would change the arithmetic beyond scale * B A. */
static segue_status check_peft(const struct reading *r)
{
    const char *type, *bias;
    int dora, fan;
    SG_TRY(sg_json_text(r->config, "peft_type", "LORA", &type, r->path, r->err));
    SG_TRY(sg_json_text(r->config, "bias", "none", &bias, r->path, r->err));
    SG_TRY(sg_json_bool(r->config, "use_dora", 0, &dora, r->path, r->err));
    SG_TRY(sg_json_bool(r->config, "fan_in_fan_out", 0, &fan, r->path,
                        r->err)); /* only says how the base is stored */
    if (strcmp(type, "LORA")) return refuse(r, type, "only LORA adapters are supported", "convert it");
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

static segue_status check_mlx(const struct reading *r)
{
    const char *type;
    SG_TRY(sg_json_text(r->config, "fine_tune_type", "lora", &type, r->path, r->err));
    return strcmp(type, "lora")
               ? refuse(r, type, "only fine_tune_type lora is supported", "merge it into the model")
               : SEGUE_OK;
}

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
    return refuse(r, "general.architecture", "is not the model's family",
                  "use an adapter made for this model");
}

/* adapter_config.json of the folder; whether the folder is PEFT's or MLX's shows in its keys. */
static segue_status read_config(struct reading *r, const char *folder)
{
    char *path = sg_path_join(folder, "adapter_config.json");
    if (!path) return sg_no_memory("path", strlen(folder), r->err);
    segue_status s =
        sg_path_kind(path) == SG_PATH_FILE
            ? sg_json_read(&r->config, path, CONFIG_LIMIT, r->err)
            : refuse(r, "adapter_config.json", "is missing beside the weights", "download the whole folder");
    sg_free(path);
    if (s != SEGUE_OK) return s;
    if (!json_is_object(r->config))
        return refuse(r, "adapter_config.json", "is no JSON object", "download it again");
    r->habit = json_object_get(r->config, "peft_type") || json_object_get(r->config, "lora_alpha")
                   ? HABIT_PEFT
                   : HABIT_MLX;
    return r->habit == HABIT_PEFT ? check_peft(r) : check_mlx(r);
}

/* A folder may hold an adapter of either habit; anything else is named as a file. */
static segue_status open_weights(struct reading *r)
{
    static const char *const names[] = {"adapter_model.safetensors", "adapters.safetensors"};
    int folder = sg_path_kind(r->path) == SG_PATH_FOLDER;
    for (size_t i = 0; folder && i < 2; i++) {
        char *file = sg_path_join(r->path, names[i]);
        if (!file) return sg_no_memory("path", strlen(r->path), r->err);
        int there = sg_path_kind(file) == SG_PATH_FILE;
        segue_status s = there ? sg_archive_open(&r->ad->archive, file, r->err) : SEGUE_OK;
        sg_free(file);
        if (there) return s;
    }
    return sg_archive_open(&r->ad->archive, r->path, r->err);
}

static segue_status open_parts(struct reading *r)
{
    size_t bytes;
    SG_TRY(open_weights(r));
    const struct sg_archive *a = r->ad->archive;
    if (a->format == SG_FORMAT_LLAMA2C)
        return refuse(r, "format", "is no adapter's",
                      "name a PEFT folder, adapters.safetensors or a GGUF adapter");
    if (a->format == SG_FORMAT_GGUF) {
        r->habit = HABIT_GGUF;
        SG_TRY(check_gguf(r));
    } else {
        const char *slash = strrchr(r->path, '/');
        int folder = sg_path_kind(r->path) == SG_PATH_FOLDER;
        char *parent = folder  ? sg_strndup(r->path, strlen(r->path))
                       : slash ? sg_strndup(r->path, (size_t)(slash - r->path) + 1)
                               : sg_strndup(".", 1);
        if (!parent) return sg_no_memory("path", strlen(r->path), r->err);
        segue_status s = read_config(r, parent);
        sg_free(parent);
        SG_TRY(s);
    }
    SG_TRY(sg_mul(a->tensors_n / 2 + 1, sizeof *r->pairs, &bytes, "adapter pairs", r->err));
    r->pairs = sg_arena_alloc(&r->ad->arena, bytes);
    r->claimed = sg_alloc(a->tensors_n);
    if (!r->pairs || !r->claimed) return sg_no_memory("adapter", bytes, r->err);
    return take_all(r);
}

/* Units key packed copies by it: an address alone may be used again after a close, a moment alone may be
 * shared. */
static uint64_t make_id(const struct segue_adapter *ad)
{
    uint64_t where_and_when[2] = {(uint64_t)(uintptr_t)ad, sg_now_ns()};
    return sg_hash_bytes(where_and_when, sizeof where_and_when, 0).lo;
}

segue_status sg_adapter_open(struct segue_adapter **out, const struct segue_model *m, const char *path,
                             float scale, segue_error *err)
{
    struct reading r = {.m = m, .path = path, .scale = scale, .err = err};
    if (!m || !path || !*path)
        return sg_fail(err, SEGUE_EARG, "open adapter: no model or no path: give both");
    if (!isfinite(scale))
        return sg_fail(err, SEGUE_EARG, "open adapter: %s: scale %g is not finite; give a number", path,
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
        sg_archive_close(r.ad->archive); /* all of it was read */
        r.ad->archive = NULL;
        *out = r.ad;
    } else {
        sg_adapter_unref(r.ad);
    }
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
