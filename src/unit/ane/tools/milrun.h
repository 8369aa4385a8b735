/* milrun.h: the programs of a folder run one after the other on a device, inputs taken by name from a file of
 * tensors or from the outputs of earlier programs. For the tools. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILRUN_H
#define SG_UNIT_ANE_MILRUN_H

#include "tensor/archive.h"
#include "unit/ane/device.h"
#include "unit/ane/tools/milfolder.h"

struct sg_mil_results {
    struct sg_st_item *
        items; /* [n] every output, fp32, ready for sg_safetensors_write; ranks above 4 are merged in front */
    uint32_t n, cap;
    uint64_t evaluate_ns; /* of all dispatches, measured */
    struct sg_arena arena;
};
/* EARG: an input without a tensor, or of another size, by name. Results of programs that ran before a failure
 * are kept. */
segue_status sg_mil_run_folder(struct sg_ane_device *d, const struct sg_mil_folder *f,
                               const struct sg_archive *in, struct sg_mil_results *out, segue_error *err);
void sg_mil_results_free(struct sg_mil_results *r);

/* Numbers to and from a surface bound to a port: packed fp32 outside, the port's type and padded rows inside.
 */
segue_status sg_ane_surface_put(const struct sg_ane_port *port, struct sg_ane_surface *s, const float *in,
                                segue_error *err);
segue_status sg_ane_surface_get(const struct sg_ane_port *port, struct sg_ane_surface *s, float *out,
                                segue_error *err);

#endif
