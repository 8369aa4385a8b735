/* lowerinfo.h: the port `info`: the inputs of a dispatch other than its rows: rotary angles, masks, the
 * columns for new rows of K and V, and which rows are not padding. All parts share one layout, so the host
 * fills one surface per dispatch for all of them.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERINFO_H
#define SG_UNIT_ANE_LOWERINFO_H

#include "unit/ane/analysis/kv_ring.h"

/* Maximum kinds of attention or convolution, and what the mask adds to the score of an invisible key: not
 * -infinity, because engines turn inf - inf into 0, which would make a fully masked row valid. */
enum { SG_ANE_KINDS_MAX = 8, SG_ANE_MASKED = -10000 };

/* Layout of the port: the first channel of each item, with its number of channels in brackets; UINT32_MAX:
 * absent. A kind of attention is a distinct window, a kind of convolution a distinct number of taps. */
struct sg_ane_info {
    uint32_t channels;                         /* of the port, padded; 0: the graph needs no port */
    uint32_t valid;                            /* [1] 1 for real rows, 0 for padding */
    uint32_t window[SG_ANE_KINDS_MAX];         /* window of each kind of attention, as in the graph; not a channel */
    struct sg_ane_ring ring[SG_ANE_KINDS_MAX]; /* its ring in the state */
    uint32_t scatter[SG_ANE_KINDS_MAX]; /* [ring.columns] 1 where K and V of a row are stored; equal rings share it */
    uint32_t mask[SG_ANE_KINDS_MAX];    /* [ring.columns] 0 or SG_ANE_MASKED for the rows in the ring */
    uint32_t fresh[SG_ANE_KINDS_MAX];   /* [columns] the same for the rows of the dispatch, when mask is for the ring
                                         * before the dispatch (sg_ane_ring_reads_old) */
    uint32_t taps[SG_ANE_KINDS_MAX];    /* taps of each kind of convolution; not a channel */
    uint32_t old[SG_ANE_KINDS_MAX];     /* [taps - 1] selects remembered rows that stay in the state */
    uint32_t recent[SG_ANE_KINDS_MAX];  /* [taps - 1] selects rows of the dispatch that enter the state */
    uint32_t masks_n, taps_n, ropes_n;  /* kinds of attention, of convolution; rotary tables of the graph */
    uint32_t *rope;                     /* [ropes_n] first channel: [pairs] cosines, then [pairs] sines */
    struct sg_arena arena;
};
/* Lays out the port for all operations of the graph that run on the engine. EUNSUPPORTED: more kinds than
 * fit. */
segue_status sg_ane_info_make(struct sg_ane_info *out, const struct sg_graph *g, const struct sg_ane_shape *shape,
                              segue_error *err);
void sg_ane_info_free(struct sg_ane_info *i);
/* Index of the kind with this window, or with these taps; the number of kinds when there is none. */
uint32_t sg_ane_info_kind(const struct sg_ane_info *i, uint32_t window);
uint32_t sg_ane_info_taps(const struct sg_ane_info *i, uint32_t taps);

/* Writes the port, fp16 [channels][columns], for n real rows at positions first, first + 1, ... first + n
 * <= keys unless the shape rolls or all windows are shorter than keys. */
void sg_ane_info_fill(const struct sg_ane_info *i, const struct sg_graph *g, const struct sg_ane_shape *shape,
                      uint64_t first, uint32_t n, uint16_t *out);
/* Updates a port that was filled for the single row at position `before` to the row at `first`, faster than
 * filling it again: of scatter and masks only changed elements are written, and only column 0. Returns the
 * number of elements written. */
uint64_t sg_ane_info_step(const struct sg_ane_info *i, const struct sg_graph *g, const struct sg_ane_shape *shape,
                          uint64_t before, uint64_t first, uint16_t *out);

#endif
