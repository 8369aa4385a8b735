/* milrun.h: runs the programs of a folder in order on a device. Inputs are taken by name from a file of
 * tensors or from outputs of earlier programs. For the tools.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILRUN_H
#define SG_UNIT_ANE_MILRUN_H

#include "tensor/archive.h"
#include "unit/ane/device.h"
#include "unit/ane/tools/milfolder.h"

struct sg_mil_results {
    struct sg_st_item *items; /* [n] all outputs in fp32, for sg_safetensors_write; leading dimensions beyond rank 4 are
                               * merged */
    uint32_t n, cap;
    uint64_t evaluate_ns; /* measured time of all dispatches */
    struct sg_arena arena;
};
/* Runs all programs and appends their outputs. in may be NULL. EARG: an input without a tensor, or of
 * another size; the text names it. Results of programs before a failure are kept. */
segue_status sg_mil_run_folder(struct sg_ane_device *d, const struct sg_mil_folder *f,
                               const struct sg_archive *in, struct sg_mil_results *out, segue_error *err);
void sg_mil_results_free(struct sg_mil_results *r);

/* Copy between packed fp32 and a surface, which has the port's element type and padded rows. EARG: the
 * surface is too small. */
segue_status sg_ane_surface_put(const struct sg_ane_port *port, struct sg_ane_surface *s, const float *in,
                                segue_error *err);
segue_status sg_ane_surface_get(const struct sg_ane_port *port, struct sg_ane_surface *s, float *out,
                                segue_error *err);

#endif
