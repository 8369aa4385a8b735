/* torch.c: joins the tensors of modules that were quantised by libraries of PyTorch into one SG_CODED tensor:
 *   AutoGPTQ, GPTQModel   X.qweight I32 [cols * bits / 32, rows], X.scales [groups, rows], X.qzeros, X.g_idx
 *   AutoAWQ (GEMM)        X.qweight I32 [cols, rows / 8], X.scales [groups, rows], X.qzeros
 *   compressed-tensors    X.weight_packed I32 or U8 [rows, ...], X.weight_scale, X.weight_zero_point, X.weight_g_idx, ...
 *   FP8 and int8          X.weight F8_E4M3 or I8 [rows, cols], X.weight_scale or X.weight_scale_inv
 * Nothing is copied or converted: the result describes where the codes, scales and zeros are.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "tensor/coded.h"
#include "tensor/join/join.h"
#include "tensor/json.h"

/* A module: its tensors, NULL when absent, and what config.json says about it. */
struct torch_module {
    const char *path;
    const struct sg_tensor *scale, *zeros, *order, *shape, *global;
    int64_t bits, group; /* 0: not specified */
};

static segue_status fail_at(const struct torch_module *m, segue_status status, const char *why, segue_error *err)
{
    return sg_fail(err, status, "join quantised tensor: %s: %s; check config.json, or use another file of this model", m->path,
                   why);
}

/* The object with the parameters of weights: quantization_config itself, or the first group of compressed-tensors. */
static const json_t *weight_rule(const struct sg_module_join *j)
{
    const json_t *all = json_object_get(j->config, "quantization_config"), *groups, *group;
    if (!json_is_object(all)) all = json_object_get(j->config, "compression_config");
    groups = json_object_get(all, "config_groups");
    void *first = json_is_object(groups) ? json_object_iter((json_t *)(uintptr_t)groups) : NULL;
    group = first ? json_object_get(json_object_iter_value(first), "weights") : NULL;
    return json_is_object(group) ? group : all;
}

static const json_t *config_of(const struct sg_module_join *j) { return json_object_get(j->config, "quantization_config"); }

/* A positive integer of the rule; 0 when it is absent, null or not positive. */
static segue_status read_int(const json_t *rule, const char *key, int64_t *out, segue_error *err)
{
    *out = 0;
    if (json_is_null(json_object_get(rule, key))) return SEGUE_OK;
    SG_TRY(sg_json_int(rule, key, 0, out, "config.json quantization_config", err));
    if (*out < 0) *out = 0;
    return SEGUE_OK;
}

/* 1: one of the types that scales of PyTorch have. */
static int is_real(const struct sg_tensor *t) { return t->storage == SG_F32 || t->storage == SG_F16 || t->storage == SG_BF16; }

/* Columns per scale, of the config if it fits, else by even division. */
static segue_status group_of(const struct torch_module *m, uint64_t cols, uint64_t groups, uint32_t *group, segue_error *err)
{
    uint64_t by = m->group > 0 ? (uint64_t)m->group : 0;
    if (groups == 1) by = cols;
    if (!by && groups && cols % groups == 0) by = cols / groups;
    if (!groups || !by || by > UINT32_MAX || cols > UINT32_MAX || (cols + by - 1) / by != groups)
        return fail_at(m, SEGUE_EFORMAT, "the number of scales does not fit the columns and the group size", err);
    *group = (uint32_t)by;
    return SEGUE_OK;
}

/* Set t->coded.order unless the groups are in the order of the columns. Entries of -1 mean that no order was stored. */
static segue_status set_order(struct sg_tensor *t, const struct torch_module *m, segue_error *err)
{
    uint64_t groups = (t->cols + t->affine.group - 1) / t->affine.group;
    int plain = 1, absent = 1;
    if (!m->order) return SEGUE_OK;
    if (m->order->storage != SG_I32 || m->order->rows * m->order->cols != t->cols)
        return fail_at(m, SEGUE_EFORMAT, "g_idx has another type or length than expected", err);
    for (uint64_t i = 0; i < t->cols; i++) {
        uint32_t g = sg_le32(m->order->data + 4 * i);
        plain &= g == i / t->affine.group;
        absent &= g == UINT32_MAX;
        if (g >= groups && !(g == UINT32_MAX && absent))
            return fail_at(m, SEGUE_EFORMAT, "g_idx names a group that does not exist", err);
    }
    if (plain || absent) return SEGUE_OK;
    t->coded.order = m->order->data;
    /* Such numbers have no form as blocks with one scale. The decoders of these libraries round to the type of the scales,
     * so a unit that keeps 16-bit numbers loses nothing. */
    t->coded.round = t->affine.storage;
    return SEGUE_OK;
}

/* Turn entry t into the matrix X.weight [rows, cols]. The caller has set storage-specific parts; sizes are checked here. */
static segue_status finish(struct sg_module_join *j, struct sg_tensor *t, const struct torch_module *m, uint64_t rows,
                           uint64_t cols, segue_error *err)
{
    uint64_t bytes[4];
    const struct sg_tensor *parts[4] = {t, m->scale, m->zeros, NULL};
    if (!rows || !cols || rows > (uint64_t)1 << 40 || cols > UINT32_MAX || rows > ((uint64_t)1 << 48) / cols)
        return fail_at(m, SEGUE_EFORMAT, "the shape is out of range", err);
    t->rank = 2;
    t->rows = t->shape[0] = rows;
    t->cols = t->shape[1] = cols;
    t->shape[2] = t->shape[3] = 0;
    SG_TRY(set_order(t, m, err));
    const char *why = sg_coded_fault(t);
    if (why) return fail_at(m, SEGUE_EUNSUPPORTED, why, err);
    sg_coded_extent(t, bytes);
    for (int i = 0; i < 3; i++)
        if (bytes[i] && (!parts[i] || parts[i]->bytes != bytes[i]))
            return fail_at(m, SEGUE_EFORMAT, "the sizes of codes, scales and zeros do not fit each other", err);
    t->storage = SG_CODED;
    if (!(t->name = sg_arena_printf(&j->a->arena, "%s.weight", m->path))) return sg_no_memory(m->path, strlen(m->path), err);
    sg_join_take(j, m->scale);
    sg_join_take(j, m->zeros);
    sg_join_take(j, m->order);
    sg_join_take(j, m->shape);
    sg_join_take(j, m->global);
    return SEGUE_OK;
}

/* --- AutoGPTQ and AutoAWQ --- */

/* Other layouts of the same libraries, which are named in the config. */
static segue_status check_layout(const struct sg_module_join *j, const struct torch_module *m, int awq, int *v2, segue_error *err)
{
    const char *version = NULL, *format = NULL;
    SG_TRY(sg_json_text(config_of(j), "version", NULL, &version, "config.json quantization_config", err));
    SG_TRY(sg_json_text(config_of(j), "checkpoint_format", NULL, &format, "config.json quantization_config", err));
    if (awq && version && strcmp(version, "gemm") && strcmp(version, "GEMM"))
        return fail_at(m, SEGUE_EUNSUPPORTED, "only version gemm of AWQ is supported", err);
    if (!awq && format && strcmp(format, "gptq") && strcmp(format, "gptq_v2"))
        return fail_at(m, SEGUE_EUNSUPPORTED, "only the checkpoint formats gptq and gptq_v2 are supported", err);
    *v2 = format && !strcmp(format, "gptq_v2");
    return SEGUE_OK;
}

static segue_status join_qweight(struct sg_module_join *j, struct sg_tensor *t, struct torch_module *m, segue_error *err)
{
    int v2 = 0;
    m->scale = sg_join_part(j, m->path, ".scales");
    m->zeros = sg_join_part(j, m->path, ".qzeros");
    m->order = sg_join_part(j, m->path, ".g_idx");
    if (!m->scale || !m->zeros || !is_real(m->scale) || m->zeros->storage != SG_I32 || m->scale->rank != 2 || t->rank != 2 ||
        m->zeros->rank != 2)
        return fail_at(m, SEGUE_EFORMAT, "qweight without scales or qzeros of the expected types", err);
    uint64_t rows = m->scale->cols, words = m->zeros->cols;
    int awq = t->cols != rows;
    SG_TRY(check_layout(j, m, awq, &v2, err));
    /* The zeros of one group have as many words as one column of codes. */
    uint64_t bits = words > rows || !rows ? 0 : words * 32 / rows;
    if (bits < 1 || bits > 8 || words * 32 != rows * bits || (awq && t->cols != words))
        return fail_at(m, SEGUE_EFORMAT, "the shapes of qweight, qzeros and scales do not fit each other", err);
    if (t->rows > UINT32_MAX) return fail_at(m, SEGUE_EFORMAT, "the shape is out of range", err);
    uint64_t cols = awq ? t->rows : t->rows * 32 / bits;
    t->stored_as = sg_arena_printf(&j->a->arena, "%s%u", awq ? "awq" : "gptq", (unsigned)bits);
    if (!t->stored_as) return sg_no_memory(m->path, 8, err);
    t->affine = (struct sg_affine){m->scale->data, m->zeros->data, m->scale->storage, (uint32_t)bits, 0};
    t->coded = (struct sg_coded){.code = SG_CODE_UINT, .layout = awq ? SG_CODES_AWQ : SG_CODES_GPTQ, .zeros = SG_ZEROS_PACKED,
                                 .scale_rows = 1, .zero = !awq && !v2, .round = SG_F32, .divisor = 1};
    SG_TRY(group_of(m, cols, m->scale->rows, &t->affine.group, err));
    return finish(j, t, m, rows, cols, err);
}

/* --- compressed-tensors --- */

/* The matrix [rows, cols] that the codes were packed from; by weight_shape if it is there. */
static segue_status packed_shape(const struct sg_tensor *t, const struct torch_module *m, uint32_t *bits, uint64_t *cols,
                                 segue_error *err)
{
    *bits = m->bits ? (uint32_t)(m->bits > 64 ? 64 : m->bits) : 4;
    *cols = t->cols > UINT32_MAX ? 0 : t->cols * 32 / *bits;
    if (!m->shape) return SEGUE_OK;
    if (m->shape->storage != SG_I64 || m->shape->bytes != 16 || sg_le64(m->shape->data) != t->rows)
        return fail_at(m, SEGUE_EFORMAT, "weight_shape does not fit the codes", err);
    *cols = sg_le64(m->shape->data + 8);
    if (!*cols || *cols > UINT32_MAX || t->cols > UINT32_MAX || t->cols * 32 % *cols)
        return fail_at(m, SEGUE_EFORMAT, "weight_shape does not fit the codes", err);
    *bits = (uint32_t)(t->cols * 32 / *cols);
    return SEGUE_OK;
}

/* Integers in words, stored as code + 2^(bits - 1). */
static segue_status join_packed_int(struct sg_module_join *j, struct sg_tensor *t, struct torch_module *m, segue_error *err)
{
    uint32_t bits;
    uint64_t cols;
    m->order = sg_join_part(j, m->path, ".weight_g_idx");
    SG_TRY(packed_shape(t, m, &bits, &cols, err));
    if (!is_real(m->scale) || (bits != 2 && bits != 4 && bits != 8) || (m->zeros && m->zeros->storage != SG_I32))
        return fail_at(m, SEGUE_EUNSUPPORTED, "only codes of 2, 4 or 8 bits with scales of 16 or 32 bits are supported", err);
    t->stored_as = bits == 2 ? "int2" : bits == 4 ? "int4" : "int8";
    t->affine = (struct sg_affine){m->scale->data, m->zeros ? m->zeros->data : NULL, m->scale->storage, bits, 0};
    t->coded = (struct sg_coded){.code = SG_CODE_UINT, .zeros = m->zeros ? SG_ZEROS_PACKED : SG_ZEROS_FIXED, .scale_rows = 1,
                                 .zero = m->zeros ? 0 : 1 << (bits - 1), .round = SG_F32, .divisor = 1};
    SG_TRY(group_of(m, cols, m->scale->rank < 2 ? 1 : m->scale->cols, &t->affine.group, err));
    return finish(j, t, m, t->rows, cols, err);
}

/* E2M1, two codes per byte: NVFP4 with a global divisor of the E4M3 scales, or MXFP4. */
static segue_status join_packed_fp4(struct sg_module_join *j, struct sg_tensor *t, struct torch_module *m, segue_error *err)
{
    int nv = m->scale->storage == SG_F8_E4M3;
    float divisor = 1;
    if (nv && m->global && m->global->storage == SG_F32 && m->global->bytes == 4)
        divisor = sg_f32_of_bits(sg_le32(m->global->data));
    else if (nv || m->scale->storage != SG_U8)
        return fail_at(m, SEGUE_EUNSUPPORTED, "4-bit floats need scales in E4M3 with weight_global_scale, or in U8", err);
    t->stored_as = nv ? "nvfp4" : "mxfp4";
    t->affine = (struct sg_affine){m->scale->data, NULL, m->scale->storage, 4, nv ? 16 : 32};
    t->coded = (struct sg_coded){.code = SG_CODE_E2M1, .scale_rows = 1, .round = SG_F32, .divisor = divisor};
    m->zeros = NULL;
    return finish(j, t, m, t->rows, t->cols > UINT32_MAX ? 0 : 2 * t->cols, err);
}

/* --- one byte per weight --- */

/* The side of the blocks that share a scale; 128 unless the config says otherwise. */
static segue_status block_sides(const struct sg_module_join *j, int64_t side[2], segue_error *err)
{
    const json_t *list = json_object_get(config_of(j), "weight_block_size");
    if (!json_is_array(list)) list = json_object_get(weight_rule(j), "block_structure");
    side[0] = side[1] = 128;
    if (!json_is_array(list)) return SEGUE_OK;
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_array_get(list, i);
        if (json_array_size(list) != 2 || !json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1 << 24)
            return sg_fail(err, SEGUE_EFORMAT,
                           "open model: config.json: weight_block_size is not two positive integers; download it again");
        side[i] = json_integer_value(v);
    }
    return SEGUE_OK;
}

/* One scale for all rows, per row, per row and group, or per block of rows and columns, by the shape of the scales. */
static segue_status join_bytes(struct sg_module_join *j, struct sg_tensor *t, struct torch_module *m, segue_error *err)
{
    uint64_t n = m->scale->rows * m->scale->cols;
    int fp8 = t->storage == SG_F8_E4M3;
    int64_t side[2];
    SG_TRY(block_sides(j, side, err));
    if (!is_real(m->scale) || t->rank != 2 || t->cols > UINT32_MAX || t->rows > UINT32_MAX ||
        (m->zeros && m->zeros->storage != SG_I8))
        return fail_at(m, SEGUE_EUNSUPPORTED, "the scales have an unexpected type or shape", err);
    if (m->zeros && fp8) sg_join_take(j, m->zeros), m->zeros = NULL; /* written as zeros by some versions */
    t->stored_as = fp8 ? "f8_e4m3" : "int8";
    t->affine = (struct sg_affine){m->scale->data, m->zeros ? m->zeros->data : NULL, m->scale->storage, 8, (uint32_t)t->cols};
    /* DeepSeek's and compressed-tensors' decoders of FP8 return bf16. */
    t->coded = (struct sg_coded){.code = fp8 ? SG_CODE_E4M3 : SG_CODE_INT8, .zeros = m->zeros ? SG_ZEROS_INT8 : SG_ZEROS_FIXED,
                                 .scale_rows = 1, .round = fp8 ? SG_BF16 : SG_F32, .divisor = 1};
    if (n == 1) t->coded.scale_rows = (uint32_t)t->rows;
    else if (m->scale->rank == 2 && m->scale->rows == t->rows)
        SG_TRY(group_of(m, t->cols, m->scale->cols, &t->affine.group, err));
    else if (n != t->rows) t->coded.scale_rows = (uint32_t)side[0], t->affine.group = (uint32_t)side[1];
    return finish(j, t, m, t->rows, t->cols, err);
}

/* --- entry --- */

/* Scales of activations and of other formats of the same module: not needed, because activations are not quantised. */
static void take_unused(struct sg_module_join *j, const char *path)
{
    static const char *const unused[] = {".input_scale", ".input_zero_point", ".input_global_scale", ".activation_scale"};
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) sg_join_take(j, sg_join_part(j, path, unused[i]));
}

segue_status sg_join_torch(struct sg_module_join *j, uint32_t i, segue_error *err)
{
    char path[SG_JOIN_PATH];
    struct sg_tensor *t = &j->list[i];
    struct torch_module m = {.path = path};
    int ints = t->storage == SG_I32, bytes = t->storage == SG_F8_E4M3 || t->storage == SG_I8, is_packed;
    if (!ints && !bytes && t->storage != SG_U8) return SEGUE_OK;
    if (ints && sg_join_path(t->name, ".qweight", path)) {
        SG_TRY(read_int(config_of(j), "group_size", &m.group, err));
        return join_qweight(j, t, &m, err);
    }
    is_packed = !bytes && sg_join_path(t->name, ".weight_packed", path);
    if (!is_packed && (!bytes || !sg_join_path(t->name, ".weight", path))) return SEGUE_OK;
    m.scale = sg_join_part(j, path, ".weight_scale");
    if (!m.scale && bytes) m.scale = sg_join_part(j, path, ".weight_scale_inv");
    if (!m.scale) return SEGUE_OK; /* refused when it is used */
    m.zeros = sg_join_part(j, path, ".weight_zero_point");
    m.shape = sg_join_part(j, path, ".weight_shape");
    m.global = sg_join_part(j, path, ".weight_global_scale");
    SG_TRY(read_int(weight_rule(j), "group_size", &m.group, err));
    SG_TRY(read_int(weight_rule(j), "num_bits", &m.bits, err));
    take_unused(j, path);
    return bytes ? join_bytes(j, t, &m, err) : ints ? join_packed_int(j, t, &m, err) : join_packed_fp4(j, t, &m, err);
}
