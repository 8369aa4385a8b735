/* train_adapter.h: writes a trained adapter in the form of PEFT, MLX or GGUF. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_TRAIN_ADAPTER_H
#define SEGUE_CLI_TRAIN_ADAPTER_H

#include "segue_train.h"
#include "term/out.h"

enum adapter_form { ADAPTER_AS_PEFT, ADAPTER_AS_MLX, ADAPTER_AS_GGUF };

/* The form of --adapter-form; NULL: PEFT. EARG: unknown. EUNSUPPORTED: GGUF for a model that is not GGUF. */
segue_status adapter_form_of(const char *name, const char *base, enum adapter_form *out, segue_error *err);
/* PEFT: FOLDER/adapter_model.safetensors and adapter_config.json. MLX: adapters.safetensors and adapter_config.json. GGUF:
 * adapter.gguf. Each file appears whole or not at all. base: the model's path. */
segue_status adapter_write(const char *folder, const segue_trainer *t, const char *base, enum adapter_form form,
                           segue_error *err);

#endif
