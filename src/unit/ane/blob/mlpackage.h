/* mlpackage.h: writes a program as a Core ML package, the public interface to the engine: a folder with
 * Manifest.json, model.mlmodel (an mlprogram of opset CoreML6, for iOS 16 and macOS 13 or later) and blob
 * files below weights/. A single blob file is named weight.bin by convention; several keep their names.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MLPACKAGE_H
#define SG_UNIT_ANE_MLPACKAGE_H

#include "base/buf.h"
#include "unit/ane/device.h"
#include "unit/ane/mil/mil.h"

/* An entry of the model's user-defined metadata. */
struct sg_mlmodel_note {
    const char *key, *value;
};
/* Appends the program's only function, as "main", to out as a Core ML model. Precondition:
 * sg_mil_check_types found no error. one_file: all blobs are in weight.bin. notes: [notes_n], may be NULL.
 * EUNSUPPORTED: more than one
 * function, inputs or outputs that are not fp16 tensors, literals in arguments. EMEMORY. */
segue_status sg_mlmodel_write(const struct sg_mil_program *p, int one_file, const struct sg_mlmodel_note *notes,
                              uint32_t notes_n, struct sg_buf *out, segue_error *err);
/* Writes the package; creates the folder. files: [n] the blob files. Errors as above, EIO, and EARG for a
 * path too long. */
segue_status sg_mlpackage_write(const struct sg_mil_program *p, const struct sg_ane_file *files, uint32_t n,
                                const struct sg_mlmodel_note *notes, uint32_t notes_n, const char *folder, segue_error *err);

#endif
