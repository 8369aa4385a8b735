/* train_files.c: see train_files.h. Uses the library's reader and writer of safetensors (exception in tests/api/layers.sh).
 * SPDX-License-Identifier: MIT */
#include "train/train_files.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tensor/archive.h"

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

static const struct {
    const char *name;
    segue_param_field field;
} fields[] = {{"value", SEGUE_PARAM_VALUE}, {"moment1", SEGUE_PARAM_MOMENT1}, {"moment2", SEGUE_PARAM_MOMENT2}};

/* All tensors are fp32, so other data is part of the name of a tensor of one number: the id of the run, the number of steps. */
static const char RUN[] = "segue.run.", STEPS[] = "segue.steps.";

segue_status checkpoint_write(const char *folder, const segue_trainer *t, const char *run, segue_error *err)
{
    struct file_tensors list = {0};
    segue_trainer_info info = {.size = sizeof info};
    segue_param_info param = {.size = sizeof param};
    segue_status st = segue_trainer_info_get(t, &info, err);
    *file_tensors_add(&list, out_printf("%s%s", RUN, run), 1, 1) = 1;
    *file_tensors_add(&list, out_printf("%s%llu", STEPS, (unsigned long long)info.steps), 1, 1) = 1;
    for (size_t i = 0; i < 3 * info.params_n && !st; i++) {
        st = segue_trainer_param_info(t, i / 3, &param, err);
        if (st) break;
        float *data = file_tensors_add(&list, out_printf("%s.%s", param.name, fields[i % 3].name), param.rows, param.cols);
        st = segue_trainer_param_get(t, i / 3, fields[i % 3].field, SEGUE_ORDER_MATRIX, data, param.rows * param.cols, err);
    }
    char *path = out_printf("%s/checkpoint.safetensors", folder);
    if (!st) st = sg_make_folders(folder, err);
    if (!st) st = sg_safetensors_write(path, list.items, list.n, err);
    free(path);
    file_tensors_free(&list);
    return st;
}

/* The rest of the name of the tensor that begins with `start`; NULL: none. */
static const char *named(const struct sg_archive *a, const char *start)
{
    for (uint32_t i = 0; i < a->tensors_n; i++)
        if (!strncmp(a->tensors[i].name, start, strlen(start))) return a->tensors[i].name + strlen(start);
    return NULL;
}

static segue_status read_param(const struct sg_archive *a, segue_trainer *t, size_t i, segue_error *err)
{
    segue_param_info param = {.size = sizeof param};
    segue_status st = segue_trainer_param_info(t, i, &param, err);
    for (size_t f = 0; f < 3 && !st; f++) {
        char *name = out_printf("%s.%s", param.name, fields[f].name);
        const struct sg_tensor *from = sg_archive_find(a, name);
        if (!from || from->storage != SG_F32 || from->rows != param.rows || from->cols != param.cols)
            st = out_fail(err, SEGUE_EFORMAT, "train: %.200s: %s is missing or has another shape; remove the file to start again",
                          a->path, name);
        float *data = st ? NULL : out_alloc(param.rows * param.cols * sizeof *data);
        for (size_t r = 0; data && r < param.rows; r++) sg_tensor_row(from, r, 0, param.cols, data + r * param.cols);
        if (!st) st = segue_trainer_param_put(t, i, fields[f].field, SEGUE_ORDER_MATRIX, data, param.rows * param.cols, err);
        free(data);
        free(name);
    }
    return st;
}

static segue_status read_all(const struct sg_archive *a, segue_trainer *t, const char *run, segue_error *err)
{
    segue_trainer_info info = {.size = sizeof info};
    const char *steps = named(a, STEPS), *of = named(a, RUN);
    if (!steps || !of)
        return out_fail(err, SEGUE_EFORMAT, "train: %.200s: is not a checkpoint; remove the file to start again", a->path);
    if (strcmp(of, run) != 0)
        return out_fail(err, SEGUE_EFORMAT, "train: %.200s: was written with other data, model or settings; repeat those, or "
                        "remove the file to start again", a->path);
    segue_status st = segue_trainer_info_get(t, &info, err);
    for (size_t i = 0; i < info.params_n && !st; i++) st = read_param(a, t, i, err);
    return st ? st : segue_trainer_steps_put(t, strtoull(steps, NULL, 10), err);
}

segue_status checkpoint_read(const char *folder, segue_trainer *t, const char *run, segue_error *err)
{
    struct sg_archive *a = NULL;
    char *path = out_printf("%s/checkpoint.safetensors", folder);
    segue_status st = SEGUE_END;
    if (sg_path_kind(path)) {
        st = sg_archive_open(&a, path, err);
        if (!st) st = read_all(a, t, run, err);
    }
    sg_archive_close(a);
    free(path);
    return st;
}
