/* images.h: the kernels as the build made them: fat binaries, one per file of kernels, NULL at the end; and the
 * names of those files, "k_rows", in the same order.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_IMAGES_H
#define SG_UNIT_CUDA_IMAGES_H

extern const void *const cu_images[];
extern const char *const cu_image_names[];

#endif
