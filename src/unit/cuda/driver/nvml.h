/* nvml.h: see nvml.c. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_NVML_H
#define SG_UNIT_CUDA_NVML_H

#include "unit/cuda/driver/gpu.h"

/* Joules since the driver was loaded; a GPU renews the figure some ten times a second. EUNSUPPORTED says why not. */
segue_status cu_energy(struct sg_unit *u, double *joules, segue_error *err);
void cu_nvml_close(struct cu_nvml *n);

#endif
