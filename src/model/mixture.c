/* mixture.c: mixtures of storage types, see mixture.h. The rules are those of llama-quantize (llama-quant.cpp) for models without
 * experts.
 * SPDX-License-Identifier: MIT */
#include "model/mixture.h"

#include <string.h>

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
