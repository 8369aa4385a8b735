/* probe_model.h: models of random weights that `segue calibrate` measures and `segue train --shape` begins with.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PROBE_MODEL_H
#define SEGUE_CLI_PROBE_MODEL_H

#include "segue.h"
#include "tensor/archive.h"

/* delta_heads > 0: every layer has so many delta matrices of 128 x 128 in place of attention. head_width 0: width / heads. */
struct probe_shape {
    uint32_t layers, width, ff, heads, kv_heads, vocab, delta_heads, head_width;
};

/* Write a llama or qwen35 model without tokenizer as GGUF; rows repeat, so that encoding takes little time. */
segue_status probe_model_write(const char *path, const struct probe_shape *shape, enum sg_storage storage, segue_error *err);
/* The same with the tokenizer of a GGUF file; shape.vocab is to be its vocabulary. */
segue_status probe_model_write_with(const char *path, const struct probe_shape *shape, enum sg_storage storage,
                                    const struct sg_archive *tokenizer, segue_error *err);

/* A new folder below $TMPDIR, or /tmp, and the path of a model in it. */
struct probe_folder {
    char *folder, *path;
};
/* command: for the error. EIO. */
segue_status probe_folder_open(struct probe_folder *out, const char *command, segue_error *err);
/* Remove both. Also after a failed open. */
void probe_folder_close(struct probe_folder *f);

#endif
