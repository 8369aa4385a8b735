/* kv_fit.h: K and V beyond the range of their storage. f16 holds 2^-24 to 65,504, and q8 has f16 scales; a model whose K or V
 * are outside, which no other number of it shows, would give infinite or wrong results without an error.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_KV_FIT_H
#define SG_UNIT_KV_FIT_H

#include "graph/graph.h"

enum sg_kv_fit { SG_KV_FITS, SG_KV_INFINITE, SG_KV_LOST, SG_KV_NAN, SG_KV_FIT_N };
/* x [n] one head of a row. INFINITE: a number is beyond the largest of the storage. LOST: the largest one is below 2^-20, where
 * f16 has less than 5 bits; a row of zeros fits. NAN: one is NaN, whatever the others are. */
enum sg_kv_fit sg_kv_fit(const float *x, size_t n, enum sg_storage storage);
/* Heads of rows of K or V of an attend op, by their fit; heads[SG_KV_FITS] is not counted. */
struct sg_kv_count {
    uint64_t heads[SG_KV_FIT_N];
    uint64_t all;
};
/* 1: none is infinite or NaN, and at most half of them are lost; small rows among larger ones change no result. */
int sg_kv_count_fits(const struct sg_kv_count *c);
/* The error of a run whose heads of K (is_v 0) or V do not fit. */
segue_status sg_kv_fit_fail(const char *unit, const struct sg_op *attend, int is_v, const struct sg_kv_count *c,
                            enum sg_storage storage, segue_error *err);
/* Before anything runs, and for units whose kernels do not count: EUNSUPPORTED if the usual number of a K or V that is a product
 * of a norm's result, without a bias, would be outside of the range, by 16 rows of its matrix. unit: for the error. */
segue_status sg_kv_estimate(const char *unit, const struct sg_graph *g, enum sg_storage storage, segue_error *err);

#endif
