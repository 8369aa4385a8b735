/* lowerinfo.h: the port `info`: what a dispatch is told beside its rows: rotary angles, masks, where new rows of K
 * and V go, which rows are real. One layout for all parts; the host fills it before each dispatch, and the same
 * surface serves them all. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERINFO_H
#define SG_UNIT_ANE_LOWERINFO_H

#include "unit/ane/lower/lowerring.h"

enum { SG_ANE_KINDS_MAX = 8, SG_ANE_MASKED = -10000 }; /* what a mask adds to a key that is not seen */

/* Channels where each thing begins; UINT32_MAX: not there. */
struct sg_ane_info {
    uint32_t channels;                                   /* padded; 0: the graph needs none */
    uint32_t valid;                                      /* 1 channel: 1 for real rows, 0 for padding */
    uint32_t window[SG_ANE_KINDS_MAX];                       /* each kind of attention's, as the graph has it; then: */
    struct sg_ane_ring ring[SG_ANE_KINDS_MAX];
    uint32_t scatter[SG_ANE_KINDS_MAX]; /* [ring.columns] 1 where a row's K and V go; kinds of equal rings share */
    uint32_t mask[SG_ANE_KINDS_MAX];                         /* [ring.columns] 0 or SG_ANE_MASKED */
    uint32_t fresh[SG_ANE_KINDS_MAX];                        /* [columns of the shape] the same for rows of the dispatch itself, where
                                                          * mask is of the ring before it (sg_ane_ring_reads_old) */
    uint32_t old[SG_ANE_KINDS_MAX], recent[SG_ANE_KINDS_MAX], taps[SG_ANE_KINDS_MAX]; /* [taps - 1] each: what a convolution
                                                          * keeps of its memory and takes of its rows */
    uint32_t masks_n, taps_n, ropes_n;
    uint32_t *rope;                                      /* [ropes_n] pairs of cosines, then pairs of sines */
    struct sg_arena arena;
};
segue_status sg_ane_info_make(struct sg_ane_info *out, const struct sg_graph *g, const struct sg_ane_shape *shape,
                              segue_error *err);
void sg_ane_info_free(struct sg_ane_info *i);
uint32_t sg_ane_info_kind(const struct sg_ane_info *i, uint32_t window); /* its index in mask and the like */
uint32_t sg_ane_info_taps(const struct sg_ane_info *i, uint32_t taps);   /* its index in taps */

/* fp16 [channels][columns] for `n` real rows, the first at position `first`; first + n <= keys unless the shape rolls, or
 * all windows are shorter. */
void sg_ane_info_fill(const struct sg_ane_info *i, const struct sg_graph *g, const struct sg_ane_shape *shape,
                      uint64_t first, uint32_t n, uint16_t *out);
/* out holds what fill left for one row at position `before`: now for the row at `first`. Of places and masks only numbers
 * that differ are written; columns that no program for one row reads stay. Returns how many were written. */
uint64_t sg_ane_info_step(const struct sg_ane_info *i, const struct sg_graph *g, const struct sg_ane_shape *shape,
                          uint64_t before, uint64_t first, uint16_t *out);

#endif
