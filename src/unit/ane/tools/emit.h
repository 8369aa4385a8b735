/* emit.h: programs of a graph for the command-line tools: the same parts, texts and blobs that the unit
 * loads, part by part or all of them as files.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_EMIT_H
#define SG_UNIT_ANE_EMIT_H

#include "unit/ane/analysis/value_range.h"
#include "unit/ane/lower/lower.h"
#include "unit/ane/lower/lowerhead.h"

struct sg_ane_emit_opts {
    uint32_t rows;   /* rows of a dispatch: 1, 32, 64, 128, 256 or 512; 0: 32 */
    uint32_t keys;   /* columns of the state: a power of two from 32 to 4096; 0: 512 */
    uint32_t layers; /* layers per program; 0: by the default rule (partition.h) */
    int by_weights;  /* 1: scale values by powers of two from a range analysis (value_range.h) */
    int sizes_only;  /* 1: do not read weights; blobs have offsets and sizes but no data */
    enum sg_ane_storage storage; /* of matrices */
    int head;        /* 1: also a program with the output head and the greedy choice (lowerhead.h), after the others */
    uint32_t columns; /* of ports, at least: sg_ane_row_columns of the chip; 0: SG_ANE_PAD */
    int flush;        /* 1: the chip reads subnormal numbers of matrices as 0, so matrices of many are refused */
};
/* An open graph. Fields may be read by the caller. */
struct sg_ane_emit {
    const struct sg_graph *g;
    struct sg_ane_shape shape;
    struct sg_ane_partition cut;
    struct sg_ane_info info;
    struct sg_ane_range range; /* all NULL without by_weights */
    int sizes_only;
    enum sg_ane_storage storage;
    int flush;
    uint32_t columns;          /* of ports, at least */
    struct sg_ane_head head;   /* linear NULL: no program for it */
};
/* Partitions a graph, which must outlive *out. EARG: rows or keys that no program can have. EUNSUPPORTED:
 * an operation that cannot be lowered; the text names it. EMEMORY. */
segue_status sg_ane_emit_open(struct sg_ane_emit *out, const struct sg_graph *g, const struct sg_ane_emit_opts *o,
                              segue_error *err);
void sg_ane_emit_close(struct sg_ane_emit *e);
/* Programs: e->cut.parts_n, and that of the head. */
uint32_t sg_ane_emit_count(const struct sg_ane_emit *e);
/* 1: the program of the head contains the operation. */
int sg_ane_emit_has(const struct sg_ane_emit *e, const struct sg_op *op);
/* Lowers program i. The caller frees *mil (may be NULL) and *blobs, also after a failure. */
segue_status sg_ane_emit_part(struct sg_ane_emit *e, uint32_t i, struct sg_mil_program **mil, struct sg_ane_blobs *blobs,
                              segue_error *err);
/* Writes pNN.mil, weights/pNN.bin and manifest.json below `folder`, which is created. Errors of
 * sg_ane_emit_part, EIO. */
segue_status sg_ane_emit_folder(struct sg_ane_emit *e, const char *folder, segue_error *err);
/* Writes Core ML packages: a single program as `folder` itself, several as pNN.mlpackage in it. */
segue_status sg_ane_emit_packages(struct sg_ane_emit *e, const char *folder, segue_error *err);

#endif
