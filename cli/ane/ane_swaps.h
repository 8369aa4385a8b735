/* ane_swaps.h: what a change of all weights costs on the Neural Engine, here its software NPU. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ANE_SWAPS_H
#define SEGUE_CLI_ANE_SWAPS_H

#include "segue.h"

/* Sides of a weight matrix whose program is to change. */
struct ane_swap_matrix { uint32_t inner, outer; };
/* One change of all matrices. */
struct ane_swap {
    uint64_t compiles, loads, bytes; /* bytes: of weights that were written */
    double ms, simulated_ms;         /* measured on this machine; of the chip's compiles and loads */
};
/* Programs with weights as constants of convolutions, for `tokens` columns: compiles them again with other weights, or reloads
 * them with other blob files, on a device that is assumed to use those. profile: of a chip, such as m4. */
segue_status ane_swap_recompile(const struct ane_swap_matrix *list, unsigned n, unsigned tokens, const char *profile,
                               struct ane_swap *out, segue_error *err);
segue_status ane_swap_reload(const struct ane_swap_matrix *list, unsigned n, unsigned tokens, const char *profile,
                            struct ane_swap *out, segue_error *err);
/* Weights as inputs: *out has bytes and ms; simulated_ms becomes the time of writing them at the bandwidth of the chip's
 * surfaces. */
segue_status ane_swap_inputs(const char *profile, struct ane_swap *out, segue_error *err);

#endif
