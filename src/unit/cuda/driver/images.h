/* images.h: the compiled kernels, embedded by the build (cmake/cuda_unit.cmake generates the definitions): one fat binary per
 * file kernels/k_*.cu, NULL after the last; and the names of these files, such as "k_rows", in the same order.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_IMAGES_H
#define SG_UNIT_CUDA_IMAGES_H

extern const void *const cu_images[];
extern const char *const cu_image_names[];
/* The same for kernels/train/k_train_*.cu, which are loaded when a trainer is opened. */
extern const void *const cu_train_images[];
extern const char *const cu_train_image_names[];

#endif
