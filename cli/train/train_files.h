/* train_files.h: files of a training run: the checkpoint, from which a run resumes with the same bits, and the adapter in PEFT's
 * form. Both appear whole or not at all. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_TRAIN_FILES_H
#define SEGUE_CLI_TRAIN_FILES_H

#include "segue_train.h"
#include "term/out.h"

/* FOLDER/checkpoint.safetensors: values and moments of all parameters and the number of steps. run: 32 hexadecimal digits that
 * identify data and settings. The folder is made if it is missing. EIO, EMEMORY. */
segue_status checkpoint_write(const char *folder, const segue_trainer *t, const char *run, segue_error *err);
/* SEGUE_END: there is none. EFORMAT: it is damaged, or of another run. */
segue_status checkpoint_read(const char *folder, segue_trainer *t, const char *run, segue_error *err);
/* FOLDER/adapter_model.safetensors and adapter_config.json. base: the model's path, as a note. */
segue_status adapter_write(const char *folder, const segue_trainer *t, const char *base, segue_error *err);

#endif
