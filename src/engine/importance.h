/* importance.h: computes an importance matrix: runs text through a model and sums the squares of the inputs of its matrices.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_IMPORTANCE_H
#define SG_ENGINE_IMPORTANCE_H

#include "segue.h"

struct sg_importance;

/* The model is compiled for the unit with every input of a matrix as an output. Both outlive the object; the unit is used by
 * no other object meanwhile. context: tokens of a sequence. */
segue_status sg_importance_open(struct sg_importance **out, const segue_model *m, segue_unit *u, uint32_t context,
                                segue_error *err);
void sg_importance_close(struct sg_importance *im);
/* Run tokens[n], n <= context, as a separate sequence and add its squares. */
segue_status sg_importance_add(struct sg_importance *im, const int32_t *tokens, uint32_t n, segue_error *err);
/* Write the sums as a GGUF file (model/quantize/imatrix.h). */
segue_status sg_importance_write(const struct sg_importance *im, const char *path, const char *dataset, uint32_t chunks,
                                 uint32_t chunk, segue_error *err);

#endif
