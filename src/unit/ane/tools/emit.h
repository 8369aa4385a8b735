/* emit.h: a graph as programs for the tools: the same parts, texts and blobs that the unit loads, one part at a time,
 * or all of them as files. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_EMIT_H
#define SG_UNIT_ANE_EMIT_H

#include "unit/ane/lower/lower.h"
#include "unit/ane/lower/lowerrange.h"

struct sg_ane_emit_opts {
    uint32_t rows;   /* of a dispatch: 1, 32, 64, 128, 256 or 512; 0: 32 */
    uint32_t keys;   /* rows of K and V in a state: a power of two from 32 to 4096; 0: 512 */
    uint32_t layers; /* of every program; 0: as many as fit (lowercut.h) */
    int by_weights;  /* values are divided by powers of two that the weights ask for (lowerrange.h) */
    int sizes_only;  /* no weight is read: blobs have places and sizes, but no bytes */
};
struct sg_ane_emit {
    const struct sg_graph *g;
    struct sg_ane_shape shape;
    struct sg_ane_partition cut;
    struct sg_ane_info info;
    struct sg_ane_range range; /* value NULL: none */
    int sizes_only;
};
/* EARG: a number that no program has. EUNSUPPORTED: an operation without lowering, by name. EMEMORY. The graph must
 * outlive *out. */
segue_status sg_ane_emit_open(struct sg_ane_emit *out, const struct sg_graph *g, const struct sg_ane_emit_opts *o,
                              segue_error *err);
void sg_ane_emit_close(struct sg_ane_emit *e);
/* Part i of e->cut.parts_n; both results are the caller's, also after a failure. */
segue_status sg_ane_emit_part(struct sg_ane_emit *e, uint32_t i, struct sg_mil_program **mil, struct sg_ane_blobs *blobs,
                              segue_error *err);
/* pNN.mil, weights/pNN.bin and manifest.json below `folder`, which is made. Also EIO. */
segue_status sg_ane_emit_folder(struct sg_ane_emit *e, const char *folder, segue_error *err);
/* As Core ML packages: one program is `folder` itself, several are pNN.mlpackage in it. */
segue_status sg_ane_emit_packages(struct sg_ane_emit *e, const char *folder, segue_error *err);

#endif
