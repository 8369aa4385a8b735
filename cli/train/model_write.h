/* model_write.h: all weights of a trainer as a model that run opens, in the form of the model that was trained: a GGUF file, or
 * a folder as Hugging Face's. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_MODEL_WRITE_H
#define SEGUE_CLI_MODEL_WRITE_H

#include "segue_train.h"
#include "term/out.h"

/* Before training: can what is trained from `base` be written? EUNSUPPORTED: its form has no writer (llama2.c, quantised
 * safetensors). */
segue_status model_can_write(const char *base, segue_error *err);
/* A Llama of a named shape, or of LAYERSxWIDTHxHEADSxKVxFF, with the tokenizer and vocabulary of the GGUF `base`, to begin with:
 * FOLDER/shape.gguf. *path: free it. EARG: no such shape. EUNSUPPORTED: the base is no GGUF. */
segue_status shape_write(const char *folder, const char *shape, const char *base, uint32_t vocab, char **path, segue_error *err);
/* FOLDER/model.gguf with the keys of the base, or FOLDER/model.safetensors with its config and tokenizer files beside it. Trained
 * tensors are fp32; tensors that no operation reads are copied. *path: what to open; free it. */
segue_status model_write(const char *folder, const segue_trainer *t, const char *base, char **path, segue_error *err);

#endif
