/* k_packed.cuh: packed weights: forms of all kinds, the order of codes in a chunk, and single weights.
 *
 * A block is eight rows by 256 columns, one contiguous copy; a tensor is [group of eight
 * rows][block]. It has up to two bit planes of codes: the low bits (2, 4 or 8 per code), then the
 * high bits (1 or 2); then the scale bytes of the rows, then their factors. A plane is [16-byte
 * piece][row][t][16 bytes] (1-bit planes: 8 bytes) for t = 0 to 3, the lane within a group of four
 * that multiplies these codes (m16n8k32, k_fixed.cuh). Lane t has the codes of blocks of 32 columns
 * 4 (t / 2) to 4 (t / 2) + 3, as 16 words of four codes: word 4 i + 2 m + h has columns
 * 32 (4 (t / 2) + i) + 16 m + 8 (t % 2) + 4 h and the three after it. Low 4-bit planes hold words
 * 2 n and 2 n + 1 in the low and high nibbles of the bytes of word n (with a code book: in its lower
 * and upper half); 2-bit planes words 4 n to 4 n + 3, 1-bit planes words 8 n to 8 n + 7, from the
 * lowest bits on. Symmetric kinds store two's complement codes.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_PACKED_CUH
#define SG_UNIT_CUDA_K_PACKED_CUH

#include "k_common.cuh"

/* How a chunk is scaled. F16: eight fp16 d. F16_MIN: eight d, eight offsets. K32: eight scales and
 * eight minima of 8 bits, factors half2 {d, dmin}. K16: 16 int8 scales, factor d in fp32 (Q3_K: fp16). K8: eight int8 scales,
 * factor half2 {d, 0}. K2: 16 bytes
 * of two nibbles {scale, minimum}, factors half2. E8: eight exponents as factors. PAIRS: 16-bit
 * scales, then as many offsets. */
enum packed_scales { SCALE_F16, SCALE_F16_MIN, SCALE_K32, SCALE_K16, SCALE_K8, SCALE_K2, SCALE_E8, SCALE_PAIRS };

constexpr packed_scales packed_scales_of(int kind)
{
    return kind == CK_P_Q4_1 || kind == CK_P_Q5_1   ? SCALE_F16_MIN
           : kind == CK_P_Q4_K || kind == CK_P_Q5_K ? SCALE_K32
           : kind == CK_P_Q3_K || kind == CK_P_Q6_K ? SCALE_K16
           : kind == CK_P_IQ4_XS                    ? SCALE_K8
           : kind == CK_P_Q2_K                      ? SCALE_K2
           : kind == CK_P_MXFP4                     ? SCALE_E8
           : kind >= CK_P_MLX2                      ? SCALE_PAIRS
                                                    : SCALE_F16;
}
/* Two's complement codes, multiplied as the upper bits of a byte. */
constexpr bool packed_signed(int kind)
{
    return kind == CK_P_Q4_0 || kind == CK_P_Q5_0 || kind == CK_P_Q3_K || kind == CK_P_Q6_K;
}
/* Integer scales and a factor per chunk; scales of 16 columns instead of 32; offsets beside the scales. */
constexpr bool packed_integer(int kind)
{
    return packed_scales_of(kind) == SCALE_K32 || packed_scales_of(kind) == SCALE_K16 || packed_scales_of(kind) == SCALE_K8 ||
           packed_scales_of(kind) == SCALE_K2;
}
constexpr bool packed_fine(int kind) { return packed_scales_of(kind) == SCALE_K16 || packed_scales_of(kind) == SCALE_K2; }
constexpr bool packed_offsets(int kind)
{
    return packed_scales_of(kind) != SCALE_F16 && packed_scales_of(kind) != SCALE_E8 && packed_scales_of(kind) != SCALE_K16 &&
           packed_scales_of(kind) != SCALE_K8;
}

/* Codes are indices of a book of int8. */
constexpr bool packed_book(int kind) { return kind == CK_P_IQ4_NL || kind == CK_P_IQ4_XS || kind == CK_P_MXFP4; }

template <int KIND> struct packed_form;
#define X(kind, low, high, scales, factors)                                 \
    template <> struct packed_form<CK_P_##kind> {                           \
        enum {                                                              \
            LOW = low,                                                      \
            HIGH = high,                                                    \
            SCALES = packed_scales_of(CK_P_##kind),                         \
            SIGNED = packed_signed(CK_P_##kind),                            \
            INTEGER = packed_integer(CK_P_##kind),                          \
            FINE = packed_fine(CK_P_##kind),                                \
            OFFSETS = packed_offsets(CK_P_##kind),                          \
            BOOK = packed_book(CK_P_##kind),                                \
            SHIFT = SIGNED ? 8 - low - high : 0,                            \
            CODES = 32 * (low + high),                                      \
            SCALE_BYTES = scales,                                           \
            FACTOR_BYTES = factors                                          \
        };                                                                  \
    };
CK_PACKED_KINDS(X)
#undef X

/* Code books of four bytes per word: that of IQ4, and twice E2M1. */
template <int KIND> __device__ __forceinline__ uint32_t book_word(int i)
{
    return KIND == CK_P_MXFP4 ? (i == 0   ? 0x03020100u
                                 : i == 1 ? 0x0c080604u
                                 : i == 2 ? 0xfdfeff00u
                                          : 0xf4f8fafcu)
                              : (i == 0   ? 0xbfad9881u
                                 : i == 1 ? 0xf6eaddcfu
                                 : i == 2 ? 0x26190d01u
                                          : 0x71594535u);
}

/* 2^(e - 128), half the scale since the code book is doubled; subnormal for e below 2. */
__device__ __forceinline__ float half_e8m0(uint32_t e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

/* A 16-bit scale of MLX. */
__device__ __forceinline__ float packed_half(uint32_t bits, uint32_t bf16)
{
    __half_raw h;
    h.x = (unsigned short)bits;
    return bf16 ? __uint_as_float(bits << 16) : __half2float(__half(h));
}
__device__ __forceinline__ float fp16_at(const unsigned char *p) { return __half2float(*reinterpret_cast<const __half *>(p)); }

/* Scale and offset of the 16 columns `part` (0 to 15) of a chunk; sc: its scale bytes; f: its factors.
 * Codes of symmetric kinds are signed, so they need no offset. */
template <int KIND>
__device__ __forceinline__ float2 packed_scale(const unsigned char *sc, const unsigned char *f, uint32_t part, uint32_t group,
                                               uint32_t bf16)
{
    constexpr int S = packed_form<KIND>::SCALES;
    uint32_t b = part / 2;
    if (S == SCALE_F16) return make_float2(fp16_at(sc + 2 * b), 0);
    if (S == SCALE_F16_MIN) return make_float2(fp16_at(sc + 2 * b), fp16_at(sc + 16 + 2 * b));
    if (S == SCALE_K32) return make_float2(fp16_at(f) * (float)sc[b], -fp16_at(f + 2) * (float)sc[8 + b]);
    if (S == SCALE_K16) {
        const float d = packed_form<KIND>::FACTOR_BYTES == 2 ? fp16_at(f) : *reinterpret_cast<const float *>(f);
        return make_float2(d * (float)(signed char)sc[part], 0);
    }
    if (S == SCALE_K8) return make_float2(fp16_at(f) * (float)(signed char)sc[b], 0);
    if (S == SCALE_K2) return make_float2(fp16_at(f) * (float)(sc[part] & 15), -fp16_at(f + 2) * (float)(sc[part] >> 4));
    if (S == SCALE_E8) return make_float2(half_e8m0(f[b]), 0);
    uint32_t i = part * 16 / group;
    const uint16_t *p = reinterpret_cast<const uint16_t *>(sc);
    return make_float2(packed_half(p[i], bf16), packed_half(p[CK_PACKED_CHUNK / group + i], bf16));
}

/* Code of row r, column c of a block as a number. */
template <int KIND> __device__ __forceinline__ int packed_code(const unsigned char *block, uint32_t row, uint32_t c)
{
    typedef packed_form<KIND> F;
    uint32_t t = c / 128 * 2 + c / 8 % 2, r = c / 32 % 4 * 4 + c / 16 % 2 * 2 + c / 4 % 2, byte = c % 4, q;
    const unsigned char *low = block + row * 64 + t * 16, *high = block + 256 * F::LOW + (row * 4 + t) * 8 * F::HIGH;
    if (F::LOW == 8)
        q = low[r / 4 * 512 + r % 4 * 4 + byte];
    else if (F::LOW == 2)
        q = low[r / 4 * 4 + byte] >> 2 * (r % 4) & 3;
    else {
        const unsigned char *word = low + r / 8 * 512 + r / 2 % 4 * 4;
        q = F::BOOK ? word[r % 2 * 2 + byte / 2] >> 4 * (byte % 2) & 15 : word[byte] >> 4 * (r % 2) & 15;
    }
    if (F::HIGH == 1) q |= (high[r / 8 * 4 + byte] >> r % 8 & 1) << F::LOW;
    if (F::HIGH == 2) q |= (high[r / 4 * 4 + byte] >> 2 * (r % 4) & 3) << F::LOW;
    if (F::BOOK) return (signed char)(book_word<KIND>((int)(q / 4)) >> 8 * (q % 4));
    return F::SIGNED ? (int)(q << (32 - F::LOW - F::HIGH)) >> (32 - F::LOW - F::HIGH) : (int)q;
}

/* Where a row's bytes of one block are. */
template <int KIND> struct packed_place {
    const unsigned char *block, *scales, *factors;
    __device__ __forceinline__ packed_place(const void *data, uint32_t pitch, uint32_t group, size_t row, uint32_t chunk)
    {
        typedef packed_form<KIND> F;
        uint32_t scale_bytes = F::SCALES == SCALE_PAIRS ? 4 * CK_PACKED_CHUNK / group : F::SCALE_BYTES, r = row % 8;
        block = static_cast<const unsigned char *>(data) + (row - r) * pitch +
                (size_t)chunk * 8 * (F::CODES + scale_bytes + F::FACTOR_BYTES);
        scales = block + 8 * F::CODES + r * scale_bytes;
        factors = block + 8 * (F::CODES + scale_bytes) + r * F::FACTOR_BYTES;
    }
};

/* The codes of one lane in one row of a chunk: its pieces of both planes. */
template <int KIND> struct row_codes {
    typedef packed_form<KIND> F;
    uint4 low[F::LOW / 2 ? F::LOW / 2 : 1], high;
    static __device__ __forceinline__ uint32_t move(uint32_t v, int by) { return by > 0 ? v >> by : v << -by; }
    /* Words 4 i to 4 i + 3 as int8: signed codes are in the upper bits of the bytes; 8-bit codes minus 128. */
    __device__ __forceinline__ void block(int i, uint32_t (&to)[4]) const
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int r = 4 * i + k;
            const uint32_t ones = 0x01010101u;
            if (F::LOW == 8) {
                to[k] = component(low[i], k) ^ 0x80808080u;
                continue;
            }
            if (F::BOOK) {
                uint32_t v = component(low[r / 8], r / 2 % 4) >> (r % 2 ? 16 : 0);
                uint32_t a = __byte_perm(book_word<KIND>(0), book_word<KIND>(1), v & 0x7777u),
                         b = __byte_perm(book_word<KIND>(2), book_word<KIND>(3), v & 0x7777u);
                to[k] = __byte_perm(a, b, (v >> 1 & 0x4444u) | 0x3210u);
                continue;
            }
            uint32_t v = F::LOW == 4 ? component(low[r / 8], r / 2 % 4) : component(low[0], r / 4);
            to[k] = move(v, (F::LOW == 4 ? 4 * (r % 2) : 2 * (r % 4)) - F::SHIFT) & ones * (((1u << F::LOW) - 1) << F::SHIFT);
            if (F::HIGH == 1) to[k] |= move(component(high, r / 8), r % 8 - F::LOW - F::SHIFT) & ones << (F::LOW + F::SHIFT);
            if (F::HIGH == 2)
                to[k] |= move(component(high, r / 4), 2 * (r % 4) - F::LOW - F::SHIFT) & ones * 3 << (F::LOW + F::SHIFT);
        }
    }
};

/* One weight. */
template <int KIND> __device__ float packed_at(const ck_weight &w, size_t row, uint32_t col)
{
    uint32_t group = w.group % CK_GROUP_BF16;
    packed_place<KIND> p(w.data, w.pitch, group, row, col / CK_PACKED_CHUNK);
    float2 s = packed_scale<KIND>(p.scales, p.factors, col % CK_PACKED_CHUNK / 16, group, w.group & CK_GROUP_BF16);
    return fmaf((float)packed_code<KIND>(p.block, row % 8, col % CK_PACKED_CHUNK), s.x, s.y);
}

/* One weight of any packed kind. */
static __device__ __noinline__ float packed_weight_at(const ck_weight &w, size_t row, uint32_t col)
{
    switch (w.kind) {
#define X(kind, low, high, scales, factors) \
    case CK_P_##kind:                       \
        return packed_at<CK_P_##kind>(w, row, col);
        CK_PACKED_KINDS(X)
#undef X
    default:
        return CUDART_NAN_F;
    }
}

#endif
