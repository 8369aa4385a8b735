/* mlx.c: joins the tensors of an MLX-quantised module: U32 codes, scales and biases into one SG_AFFINE tensor, U32 codes and
 * U8 scales of the modes mxfp4, mxfp8 and nvfp4 into one SG_CODED tensor. Mode, bits and group size come from config.json and
 * are checked against the shapes.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "tensor/coded.h"
#include "tensor/join/join.h"
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

/* 1 when s has one row per row of w and a type that scales and biases may have. */
static int scales_fit(const struct sg_tensor *w, const struct sg_tensor *s)
{
    return s->rows == w->rows && (s->storage == SG_F32 || s->storage == SG_F16 || s->storage == SG_BF16);
}

/* Turn the codes w, U32 [rows, words], with scales and biases [rows, groups], into an SG_AFFINE
 * tensor [rows, groups * group]. Its data stays where it is. */
static segue_status join_affine(struct sg_archive *a, struct sg_tensor *w, const struct sg_tensor *scales,
                                const struct sg_tensor *biases, struct rule rule, segue_error *err)
{
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

/* The modes without biases. */
static const struct mlx_mode {
    const char *name;
    enum sg_code code;
    uint32_t bits, group;
    enum sg_storage scales;
} modes[] = {{"mxfp4", SG_CODE_E2M1, 4, 32, SG_U8},
             {"mxfp8", SG_CODE_E4M3, 8, 32, SG_U8},
             {"nvfp4", SG_CODE_E2M1, 4, 16, SG_F8_E4M3}};

/* By name; without one, the only mode that fits the shapes. NULL: none. */
static const struct mlx_mode *find_mode(const char *name, const struct sg_tensor *w, const struct sg_tensor *scales)
{
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        uint64_t words = scales->cols * (modes[i].group * modes[i].bits / 32);
        if (name ? !strcmp(name, modes[i].name) : words == w->cols) return &modes[i];
    }
    return NULL;
}

/* Codes and one byte per group as SG_CODED; numbers of mxfp8 are exact in bf16, those of the others as integers with a scale. */
static segue_status join_mode(struct sg_tensor *w, const struct sg_tensor *scales, const struct rule *rule, segue_error *err)
{
    const struct mlx_mode *m = find_mode(rule->mode, w, scales);
    if (!m)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "join MLX tensor: %s: quantisation mode %s is not supported; use affine, mxfp4, mxfp8 or nvfp4", w->name,
                       rule->mode && strcmp(rule->mode, "affine") ? rule->mode : "unknown (scales without biases)");
    if (scales->storage != SG_U8 || scales->rows != w->rows || w->cols > UINT32_MAX || scales->cols > UINT32_MAX / m->group ||
        scales->cols * m->group * m->bits != w->cols * 32 || (rule->bits && rule->bits != m->bits) ||
        (rule->group && rule->group != m->group))
        return sg_fail(err, SEGUE_EFORMAT,
                       "join MLX tensor: %s: %llu x %llu words and scales %llu x %llu %s do not fit %s, which has %u bits in "
                       "groups of %u; check config.json",
                       w->name, (unsigned long long)w->rows, (unsigned long long)w->cols, (unsigned long long)scales->rows,
                       (unsigned long long)scales->cols, scales->stored_as, m->name, m->bits, m->group);
    w->storage = SG_CODED;
    w->stored_as = m->name;
    w->cols = scales->cols * m->group;
    if (w->rank) w->shape[w->rank - 1] = w->cols;
    w->affine = (struct sg_affine){scales->data, NULL, m->scales, m->bits, m->group};
    w->coded = (struct sg_coded){.code = m->code, .scale_rows = 1, .divisor = 1,
                                 .round = m->code == SG_CODE_E4M3 ? SG_BF16 : SG_F32};
    return SEGUE_OK;
}

segue_status sg_join_mlx(struct sg_module_join *j, uint32_t i, segue_error *err)
{
    char path[SG_JOIN_PATH];
    struct sg_tensor *w = &j->list[i];
    if (w->storage != SG_U32 || !sg_join_path(w->name, ".weight", path)) return SEGUE_OK;
    const struct sg_tensor *scales = sg_join_part(j, path, ".scales"), *biases = sg_join_part(j, path, ".biases");
    struct rule rule;
    if (!scales) return SEGUE_OK;
    SG_TRY(find_rule(j->config, path, &rule, err));
    if (biases && (!rule.mode || !strcmp(rule.mode, "affine"))) SG_TRY(join_affine(j->a, w, scales, biases, rule, err));
    else SG_TRY(join_mode(w, scales, &rule, err));
    sg_join_take(j, scales);
    sg_join_take(j, biases);
    return SEGUE_OK;
}
