/* textfiles.h: what stands beside the weights and is about text: tokenizer, chat template, stop tokens,
 * sampling defaults.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_TEXTFILES_H
#define SG_MODEL_TEXTFILES_H

#include "model/model.h"

/* Fills the text part of m and the sampling part of m->info. folder: where the weights lie; config (may be
 * NULL): config.json, its inner part. no_text: tokenizer and template are left alone. Absent files are no
 * error. */
segue_status sg_textfiles_read(struct segue_model *m, const char *folder, const json_t *outer,
                               const json_t *inner, int no_text, segue_error *err);

#endif
