/* nvml.h: energy counter of the GPU, from the NVIDIA Management Library.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_NVML_H
#define SG_UNIT_CUDA_NVML_H

#include "unit/cuda/driver/gpu.h"

/* Joules since the driver was loaded; GPUs update the counter about ten times per second. EUNSUPPORTED: no NVML, or the GPU has
 * no counter. Any thread. */
segue_status cu_energy(struct sg_unit *u, segue_energy *out, segue_error *err);
/* When the unit is closed; also if it was never opened. */
void cu_nvml_close(struct cu_nvml *n);

#endif
