/* train_files.c: see train_files.h. Uses the library's writer of safetensors (exception in tests/api/layers.sh).
 * SPDX-License-Identifier: MIT */
#include "train/train_files.h"

#include <stdlib.h>

#include "base/file.h"

float *file_tensors_add(struct file_tensors *t, char *name, size_t rows, size_t cols)
{
    t->items = out_realloc(t->items, (t->n + 1) * sizeof *t->items);
    float *data = out_alloc(rows * cols * sizeof *data);
    t->items[t->n++] = (struct sg_st_item){.name = name, .storage = SG_F32, .rank = 2, .shape = {rows, cols}, .data = data};
    return data;
}

void file_tensors_free(struct file_tensors *t)
{
    for (size_t i = 0; i < t->n; i++) free((void *)(uintptr_t)t->items[i].name), free((void *)(uintptr_t)t->items[i].data);
    free(t->items);
}

/* --- checkpoints --- */

segue_status checkpoint_write(const char *folder, const segue_trainer *t, const char *run, segue_error *err)
{
    char *path = out_printf("%s/checkpoint.state", folder);
    segue_status st = sg_make_folders(folder, err);
    if (!st) st = segue_trainer_save(t, path, run, err);
    free(path);
    return st;
}

segue_status checkpoint_read(const char *folder, segue_trainer *t, const char *run, segue_error *err)
{
    char *path = out_printf("%s/checkpoint.state", folder);
    segue_status st = sg_path_kind(path) ? segue_trainer_load(t, path, run, err) : SEGUE_END;
    free(path);
    return st;
}
