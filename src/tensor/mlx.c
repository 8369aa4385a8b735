/* mlx.c: joins the three tensors of an MLX-quantised module (U32 codes, scales, biases) into one
 * SG_AFFINE tensor. Bits and group size come from config.json and are checked against the shapes.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "tensor/archive_build.h"
#include "tensor/json.h"

/* Quantisation parameters of a module. */
struct rule {
    int64_t bits, group; /* 0: not specified */
    const char *mode;    /* NULL: not specified */
};

/* Members that the object does not have keep their value in *rule. */
static segue_status read_rule(const json_t *o, struct rule *rule, segue_error *err)
{
    SG_TRY(sg_json_int(o, "bits", rule->bits, &rule->bits, "config.json quantization", err));
    SG_TRY(sg_json_int(o, "group_size", rule->group, &rule->group, "config.json quantization", err));
    return sg_json_text(o, "mode", rule->mode, &rule->mode, "config.json quantization", err);
}

/* The global parameters, overridden by those of module `path`. "quantization" has precedence over
 * "quantization_config"; many files have both. */
static segue_status find_rule(const json_t *config, const char *path, struct rule *rule, segue_error *err)
{
    *rule = (struct rule){0};
    const json_t *all = json_object_get(config, "quantization");
    if (!json_is_object(all)) all = json_object_get(config, "quantization_config");
    if (!json_is_object(all)) return SEGUE_OK;
    SG_TRY(read_rule(all, rule, err));
    const json_t *module = json_object_get(all, path);
    return json_is_object(module) ? read_rule(module, rule, err) : SEGUE_OK;
}

/* MLX packs 2, 3, 4, 5, 6 or 8 bits. */
static int bits_supported(int64_t bits) { return bits >= 2 && bits <= 8 && bits != 7; }

/* Infer the parameters from the shapes: with 32-bit words and one scale per group, bits * group =
 * 32 * words / scales. Fails unless exactly one combination fits. */
static segue_status infer_rule(const char *name, uint64_t words, uint64_t scales, struct rule *rule,
                               segue_error *err)
{
    int found = 0;
    uint64_t product = scales ? words * 32 / scales : 0;
    struct rule best = *rule;
    for (int64_t bits = 2; bits <= 8; bits++) {
        for (int64_t group = 32; group <= 128; group *= 2) {
            if (!bits_supported(bits) || (uint64_t)(bits * group) != product) continue;
            if ((rule->bits && rule->bits != bits) || (rule->group && rule->group != group)) continue;
            best.bits = bits;
            best.group = group;
            found++;
        }
    }
    if (found == 1) {
        *rule = best;
        return SEGUE_OK;
    }
    return sg_fail(err, found ? SEGUE_EUNSUPPORTED : SEGUE_EFORMAT,
                   "join MLX tensor: %s: %llu words and %llu scales per row fit %d combinations of bits and "
                   "group size; add the model's config.json to the folder",
                   name, (unsigned long long)words, (unsigned long long)scales, found);
}

/* The tensor X.suffix for the tensor X.weight; NULL when absent. path is set to X. */
static const struct sg_tensor *sibling(const struct sg_archive *a, const char *weight, const char *suffix,
                                       char path[SG_NAME_MAX + 16])
{
    size_t n = strlen(weight) - strlen(".weight");
    memcpy(path, weight, n);
    memcpy(path + n, suffix, strlen(suffix) + 1);
    const struct sg_tensor *t = sg_archive_find(a, path);
    path[n] = 0;
    return t;
}

/* 1 when s has one row per row of w and a type that scales and biases may have. */
static int scales_fit(const struct sg_tensor *w, const struct sg_tensor *s)
{
    return s->rows == w->rows && (s->storage == SG_F32 || s->storage == SG_F16 || s->storage == SG_BF16);
}

/* Turn the codes w, U32 [rows, words], with scales and biases [rows, groups], into an SG_AFFINE
 * tensor [rows, groups * group]. Its data stays where it is. */
static segue_status join_one(struct sg_archive *a, struct sg_tensor *w, const char *path,
                             const struct sg_tensor *scales, const struct sg_tensor *biases,
                             const json_t *config, segue_error *err)
{
    struct rule rule;
    SG_TRY(find_rule(config, path, &rule, err));
    if ((rule.mode && strcmp(rule.mode, "affine")) || !biases)
        return sg_fail(
            err, SEGUE_EUNSUPPORTED,
            "join MLX tensor: %s: quantisation mode %s is not supported, only affine is; use another model file",
            w->name,
            rule.mode && strcmp(rule.mode, "affine") ? rule.mode : "unknown (scales without biases)");
    if (!rule.bits || !rule.group) SG_TRY(infer_rule(w->name, w->cols, scales->cols, &rule, err));
    if (!bits_supported(rule.bits) || (rule.group != 32 && rule.group != 64 && rule.group != 128))
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "join MLX tensor: %s: %lld bits in groups of %lld are not supported; use 2, 3, 4, 5, 6 or 8 bits "
                       "in groups of 32, 64 or 128",
                       w->name, (long long)rule.bits, (long long)rule.group);
    uint64_t cols = scales->cols * (uint64_t)rule.group; /* may wrap; the next check refuses such sizes */
    if (scales->cols > UINT32_MAX || !scales_fit(w, scales) || !scales_fit(w, biases) ||
        biases->cols != scales->cols || biases->storage != scales->storage || w->cols > UINT32_MAX ||
        cols * (uint64_t)rule.bits != w->cols * 32)
        return sg_fail(err, SEGUE_EFORMAT,
                       "join MLX tensor: %s: %llu x %llu words, scales %llu x %llu %s, biases %llu x %llu %s "
                       "do not fit %lld bits in groups of %lld; check config.json",
                       w->name, (unsigned long long)w->rows, (unsigned long long)w->cols,
                       (unsigned long long)scales->rows, (unsigned long long)scales->cols, scales->stored_as,
                       (unsigned long long)biases->rows, (unsigned long long)biases->cols, biases->stored_as,
                       (long long)rule.bits, (long long)rule.group);
    w->stored_as =
        sg_arena_printf(&a->arena, "affine_%lld_%lld", (long long)rule.bits, (long long)rule.group);
    if (!w->stored_as) return sg_no_memory(w->name, 32, err);
    w->affine = (struct sg_affine){scales->data, biases->data, scales->storage, (uint32_t)rule.bits,
                                   (uint32_t)rule.group};
    w->storage = SG_AFFINE;
    w->cols = cols;
    if (w->rank) w->shape[w->rank - 1] = cols;
    return SEGUE_OK;
}

/* Join all triples in `list`, a copy of a's tensors, and set joined[i] = 1 for each scale and bias
 * tensor that was merged. */
static segue_status join_all(struct sg_archive *a, struct sg_tensor *list, uint8_t *joined,
                             const json_t *config, segue_error *err)
{
    for (uint32_t i = 0; i < a->tensors_n; i++) {
        char path[SG_NAME_MAX + 16];
        size_t n = strlen(list[i].name);
        if (list[i].storage != SG_U32 || n < 8 || n > SG_NAME_MAX || strcmp(list[i].name + n - 7, ".weight"))
            continue;
        const struct sg_tensor *scales = sibling(a, list[i].name, ".scales", path);
        const struct sg_tensor *biases = sibling(a, list[i].name, ".biases", path);
        if (!scales) continue;
        SG_TRY(join_one(a, &list[i], path, scales, biases, config, err));
        joined[scales - a->tensors] = joined[biases - a->tensors] = 1;
    }
    return SEGUE_OK;
}

/* Replace the archive's tensors by `list` without the merged ones. The new index is built first, so
 * that a failure leaves the archive unchanged. Takes ownership of `list` on success. */
static segue_status replace_list(struct sg_archive *a, struct sg_tensor *list, const uint8_t *joined,
                                 segue_error *err)
{
    struct sg_archive next = *a;
    struct sg_build b = {.a = &next};
    next.tensors = list;
    next.tensors_n = 0;
    next.by_name = next.meta_by_key = NULL;
    for (uint32_t i = 0; i < a->tensors_n; i++)
        if (!joined[i]) list[next.tensors_n++] = list[i];
    segue_status s = sg_build_finish(&b, err);
    if (s != SEGUE_OK) {
        sg_free(next.by_name);
        sg_free(next.meta_by_key);
        return s;
    }
    sg_free(a->tensors);
    sg_free(a->by_name);
    sg_free(a->meta_by_key);
    *a = next;
    return SEGUE_OK;
}

segue_status sg_archive_join_affine(struct sg_archive *a, const json_t *config, segue_error *err)
{
    if (a->format != SG_FORMAT_SAFETENSORS || !a->tensors_n) return SEGUE_OK;
    struct sg_tensor *list = sg_alloc(a->tensors_n * sizeof *list);
    uint8_t *joined = sg_alloc(a->tensors_n);
    segue_status s = list && joined ? SEGUE_OK : sg_no_memory(a->path, a->tensors_n * sizeof *list, err);
    if (s == SEGUE_OK) {
        memcpy(list, a->tensors, a->tensors_n * sizeof *list);
        s = join_all(a, list, joined, config, err);
    }
    if (s == SEGUE_OK) s = replace_list(a, list, joined, err);
    if (s != SEGUE_OK) sg_free(list);
    sg_free(joined);
    return s;
}
