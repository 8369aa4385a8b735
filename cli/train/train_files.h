/* train_files.h: the checkpoint of a training run, from which it resumes with the same bits, and matrices for safetensors.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_TRAIN_FILES_H
#define SEGUE_CLI_TRAIN_FILES_H

#include "segue_train.h"
#include "tensor/archive.h"
#include "term/out.h"

/* fp32 matrices to write; each owns its name and numbers. Zero-initialise. */
struct file_tensors {
    struct sg_st_item *items; /* [n] */
    size_t n;
};
/* A matrix of rows x cols numbers to fill; name is taken over. */
float *file_tensors_add(struct file_tensors *t, char *name, size_t rows, size_t cols);
void file_tensors_free(struct file_tensors *t);

/* FOLDER/checkpoint.state: the state of the trainer (docs/STATE.md). run: 32 hexadecimal digits that identify data and settings.
 * The folder is made if it is missing. EIO, EMEMORY. */
segue_status checkpoint_write(const char *folder, const segue_trainer *t, const char *run, segue_error *err);
/* SEGUE_END: there is none. EFORMAT: it is damaged, or of another run. */
segue_status checkpoint_read(const char *folder, segue_trainer *t, const char *run, segue_error *err);

#endif
