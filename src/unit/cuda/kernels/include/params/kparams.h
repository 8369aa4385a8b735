/* kparams.h: the contract between the host code of the cuda unit and its kernels: one plain struct of arguments per kernel,
 * passed by value as a __grid_constant__ parameter, and the constants that both sides size launches with. Included by C and
 * CUDA; declares no functions. Activations are fp32 unless stated; a row of x or y is one token, a row of a weight one output
 * feature. Pointers are GPU memory owned by the host's program, state or lane. By subject: kparams_base.h, kparams_state.h,
 * kparams_product.h, kparams_cluster.h.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KPARAMS_H
#define SG_UNIT_CUDA_KPARAMS_H

#include "kparams_base.h"
#include "kparams_state.h"
#include "kparams_product.h"
#include "kparams_cluster.h"

#endif
