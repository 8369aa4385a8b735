/* mlpackage.h: a program as a Core ML package, the public route to the engine: a folder with Manifest.json,
 * model.mlmodel (an mlprogram of opset CoreML6, iOS 16 and macOS 13 on) and its blob files below weights/: a single one is
 * weight.bin, as everywhere, several keep their names.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MLPACKAGE_H
#define SG_UNIT_ANE_MLPACKAGE_H

#include "base/buf.h"
#include "unit/ane/device.h"
#include "unit/ane/mil/mil.h"

/* The program's only function, as "main", appended as a Core ML model. Types must have been checked. one_file: blobs lie
 * in weight.bin. EUNSUPPORTED: more than one function, inputs that are no fp16 tensors, literals in arguments.
 * EMEMORY. */
segue_status sg_mlmodel_write(const struct sg_mil_program *p, int one_file, struct sg_buf *out, segue_error *err);
/* Makes the folder. files: [n] the blob files. Also EIO, EARG. */
segue_status sg_mlpackage_write(const struct sg_mil_program *p, const struct sg_ane_file *files, uint32_t n,
                                const char *folder, segue_error *err);

#endif
