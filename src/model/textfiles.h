/* textfiles.h: reads the text-related files of a model: tokenizer, chat template, stop tokens,
 * sampling defaults.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_TEXTFILES_H
#define SG_MODEL_TEXTFILES_H

#include "model/model.h"

/* Fill the text fields of m and the sampling fields of m->info. folder: contains the weights.
 * outer, inner: config.json and its text_config, may be NULL. no_text: skip tokenizer and template.
 * Absent files are not an error, damaged ones are. */
segue_status sg_textfiles_read(struct segue_model *m, const char *folder, const json_t *outer,
                               const json_t *inner, int no_text, segue_error *err);

#endif
