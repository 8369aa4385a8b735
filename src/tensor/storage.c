/* storage.c: the table of storage types (names, block sizes, GGUF ids) and the size of a stored
 * row. quant.c and iquant.c decode them, encode.c encodes them.
 * SPDX-License-Identifier: MIT */
#include "tensor/tensor.h"

#include <stddef.h>

/* Columns: name, weights per block, bytes per block, GGUF id (-1: none), 1 if sg_tensor_row reads
 * it. */
static const struct sg_storage_info storage_table[SG_STORAGE_N] = {
    [SG_F32] = {"f32", 1, 4, 0, 1},
    [SG_F16] = {"f16", 1, 2, 1, 1},
    [SG_BF16] = {"bf16", 1, 2, 30, 1},
    [SG_Q4_0] = {"q4_0", 32, 18, 2, 1},
    [SG_Q4_1] = {"q4_1", 32, 20, 3, 1},
    [SG_Q5_0] = {"q5_0", 32, 22, 6, 1},
    [SG_Q5_1] = {"q5_1", 32, 24, 7, 1},
    [SG_Q8_0] = {"q8_0", 32, 34, 8, 1},
    [SG_Q2_K] = {"q2_k", 256, 84, 10, 1},
    [SG_Q3_K] = {"q3_k", 256, 110, 11, 1},
    [SG_Q4_K] = {"q4_k", 256, 144, 12, 1},
    [SG_Q5_K] = {"q5_k", 256, 176, 13, 1},
    [SG_Q6_K] = {"q6_k", 256, 210, 14, 1},
    [SG_IQ4_NL] = {"iq4_nl", 32, 18, 20, 1},
    [SG_MXFP4] = {"mxfp4", 32, 17, 39, 1},
    [SG_IQ2_XXS] = {"iq2_xxs", 256, 66, 16, 1},
    [SG_IQ2_XS] = {"iq2_xs", 256, 74, 17, 1},
    [SG_IQ2_S] = {"iq2_s", 256, 82, 22, 1},
    [SG_IQ3_XXS] = {"iq3_xxs", 256, 98, 18, 1},
    [SG_IQ3_S] = {"iq3_s", 256, 110, 21, 1},
    [SG_IQ1_S] = {"iq1_s", 256, 50, 19, 1},
    [SG_IQ1_M] = {"iq1_m", 256, 56, 29, 1},
    [SG_IQ4_XS] = {"iq4_xs", 256, 136, 23, 1},
    [SG_TQ1_0] = {"tq1_0", 256, 54, 34, 1},
    [SG_TQ2_0] = {"tq2_0", 256, 66, 35, 1},
    [SG_Q8_K] = {"q8_k", 256, 292, 15, 1},
    [SG_NVFP4] = {"nvfp4", 64, 36, 40, 1},
    [SG_AFFINE] = {"affine", 32, 0, -1, 1}, /* bytes depend on the bits per code */
    [SG_Q8_GROUP] = {"q8_group", 1, 1, -1, 1},
    [SG_CODED] = {"coded", 1, 1, -1, 1}, /* bytes depend on the bits per code */
    [SG_FP8] = {"fp8", 1, 1, -1, 1},
    [SG_I8] = {"i8", 1, 1, 24, 0},
    [SG_I16] = {"i16", 1, 2, 25, 0},
    [SG_I32] = {"i32", 1, 4, 26, 0},
    [SG_I64] = {"i64", 1, 8, 27, 0},
    [SG_F64] = {"f64", 1, 8, 28, 0},
    [SG_U8] = {"u8", 1, 1, -1, 0},
    [SG_U16] = {"u16", 1, 2, -1, 0},
    [SG_U32] = {"u32", 1, 4, -1, 0},
    [SG_U64] = {"u64", 1, 8, -1, 0},
    [SG_BOOL] = {"bool", 1, 1, -1, 0},
    [SG_F8_E4M3] = {"f8_e4m3", 1, 1, -1, 0},
    [SG_F8_E5M2] = {"f8_e5m2", 1, 1, -1, 0},
    [SG_OTHER] = {"other", 1, 0, -1, 0},
};

/* GGUF types that occur in published files but are not supported. Error messages use their names. */
static const struct {
    uint32_t id;
    const char *name;
} unsupported_ggml[] = {
    {4, "q4_2"},        {5, "q4_3"},        {9, "q8_1"},        {31, "q4_0_4_4"}, {32, "q4_0_4_8"},
    {33, "q4_0_8_8"},   {36, "iq4_nl_4_4"}, {37, "iq4_nl_4_8"}, {38, "iq4_nl_8_8"}, {41, "q1_0"},
};

const struct sg_storage_info *sg_storage_info(enum sg_storage s)
{
    return &storage_table[(unsigned)s < SG_STORAGE_N ? s : SG_OTHER];
}

/* A linear search is fast enough: one call per tensor of a file. */
enum sg_storage sg_storage_of_ggml(uint32_t id, const char **name)
{
    for (int s = 0; s < SG_STORAGE_N; s++) {
        if (storage_table[s].ggml < 0 || (uint32_t)storage_table[s].ggml != id) continue;
        if (name) *name = storage_table[s].name;
        return (enum sg_storage)s;
    }
    if (name) *name = NULL;
    for (size_t i = 0; name && i < sizeof unsupported_ggml / sizeof *unsupported_ggml; i++)
        if (unsupported_ggml[i].id == id) *name = unsupported_ggml[i].name;
    return SG_STORAGE_N;
}

segue_status sg_storage_row_bytes(enum sg_storage s, uint64_t cols, uint64_t *bytes, segue_error *err)
{
    const struct sg_storage_info *info = sg_storage_info(s);
    if (!info->bytes)
        return sg_fail(err, SEGUE_EFORMAT,
                       "row size: %s: this type has no fixed row size; use another type", info->name);
    if (cols % info->block)
        return sg_fail(err, SEGUE_EFORMAT,
                       "row size: %s: %llu columns are not a multiple of the block size %u; the file is damaged",
                       info->name, (unsigned long long)cols, info->block);
    if (cols / info->block > UINT64_MAX / info->bytes)
        return sg_fail(err, SEGUE_EFORMAT, "row size: %s: %llu columns overflow 64 bits; the file is damaged",
                       info->name, (unsigned long long)cols);
    *bytes = cols / info->block * info->bytes;
    return SEGUE_OK;
}

segue_status sg_tensor_computable(const struct sg_tensor *t, segue_error *err)
{
    if (sg_storage_info(t->storage)->computable) return SEGUE_OK;
    return sg_fail(
        err, SEGUE_EUNSUPPORTED,
        "read tensor: %s: it uses %s, which is not supported; use a file in another type, for example Q4_K or Q8_0",
        t->name, t->stored_as ? t->stored_as : sg_storage_info(t->storage)->name);
}
