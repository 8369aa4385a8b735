/* kv_fit.c: see kv_fit.h.
 * SPDX-License-Identifier: MIT */
#include "unit/kv/kv_fit.h"

#include <math.h>

#include "base/num.h"

#define F16_TOP 65520.0f /* rounds to infinity */
#define F16_FEW 0x1p-20f
#define Q8_TOP 127.0f

/* The largest magnitude as an integer: of floats without their sign, larger bits are larger numbers, and NaN is above infinity.
 * Integers, because compilers make vectors of them. */
static float top_of(const float *x, size_t n)
{
    int32_t top = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)(sg_bits_of_f32(x[i]) & 0x7fffffff);
        top = bits > top ? bits : top;
    }
    return sg_f32_of_bits((uint32_t)top);
}

enum sg_kv_fit sg_kv_fit(const float *x, size_t n, enum sg_storage storage)
{
    if (storage != SG_F16 && storage != SG_Q8_0) return SG_KV_FITS;
    float top = top_of(x, n) / (storage == SG_Q8_0 ? Q8_TOP : 1.0f);
    if (isnan(top)) return SG_KV_NAN;
    if (top >= F16_TOP) return SG_KV_INFINITE;
    return top != 0 && top < F16_FEW ? SG_KV_LOST : SG_KV_FITS;
}

int sg_kv_count_fits(const struct sg_kv_count *c)
{
    return !c->heads[SG_KV_NAN] && !c->heads[SG_KV_INFINITE] && 2 * c->heads[SG_KV_LOST] <= c->all;
}

/* NaN first: no storage holds it, so it is not the storage that has to change. */
segue_status sg_kv_fit_fail(const char *unit, const struct sg_op *attend, int is_v, const struct sg_kv_count *c,
                            enum sg_storage storage, segue_error *err)
{
    const char *name = is_v ? "V" : "K", *kind = storage == SG_Q8_0 ? "q8" : "f16";
    unsigned long long all = c->all;
    if (c->heads[SG_KV_NAN])
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "run: %s: %s of layer %d: %llu of %llu heads of rows are NaN before they are stored; check the model file "
                       "and adapters, or compare with --unit ref", unit, name, attend->layer,
                       (unsigned long long)c->heads[SG_KV_NAN], all);
    int infinite = c->heads[SG_KV_INFINITE] != 0;
    return sg_fail(err, SEGUE_EUNSUPPORTED,
                   "run: %s: %s of layer %d: %llu of %llu heads of rows are %s %s, the storage of K and V; use --kv bf16 or f32",
                   unit, name, attend->layer, (unsigned long long)c->heads[infinite ? SG_KV_INFINITE : SG_KV_LOST], all,
                   infinite ? "beyond the largest number of" : "too small for", kind);
}
