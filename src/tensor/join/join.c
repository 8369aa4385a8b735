/* join.c: replaces the tensors of quantised modules by one tensor each; see join.h.
 * SPDX-License-Identifier: MIT */
#include "tensor/join/join.h"

#include <string.h>

int sg_join_path(const char *name, const char *ending, char path[SG_JOIN_PATH])
{
    size_t n = strlen(name), k = strlen(ending);
    if (n <= k || n > SG_NAME_MAX || strcmp(name + n - k, ending)) return 0;
    memcpy(path, name, n - k);
    path[n - k] = 0;
    return 1;
}

const struct sg_tensor *sg_join_part(const struct sg_module_join *j, const char *path, const char *suffix)
{
    char name[SG_JOIN_PATH];
    size_t n = strlen(path), k = strlen(suffix);
    if (n + k >= sizeof name) return NULL;
    memcpy(name, path, n);
    memcpy(name + n, suffix, k + 1);
    return sg_archive_find(j->a, name);
}

void sg_join_take(struct sg_module_join *j, const struct sg_tensor *part)
{
    if (part) j->joined[part - j->a->tensors] = 1;
}

/* Replace the archive's tensors by the list without the merged ones. The new index is built first, so that a failure leaves
 * the archive unchanged. Takes ownership of the list on success. */
static segue_status replace_list(struct sg_module_join *j, segue_error *err)
{
    struct sg_archive *a = j->a, next = *a;
    struct sg_build b = {.a = &next};
    next.tensors = j->list;
    next.tensors_n = 0;
    next.by_name = next.meta_by_key = NULL;
    for (uint32_t i = 0; i < a->tensors_n; i++)
        if (!j->joined[i]) j->list[next.tensors_n++] = j->list[i];
    segue_status s = sg_build_finish(&b, err);
    if (s != SEGUE_OK) {
        sg_free(next.by_name);
        sg_free(next.meta_by_key);
        return s;
    }
    sg_free(a->tensors);
    sg_free(a->by_name);
    sg_free(a->meta_by_key);
    *a = next;
    return SEGUE_OK;
}

segue_status sg_archive_join(struct sg_archive *a, const json_t *config, segue_error *err)
{
    if (a->format != SG_FORMAT_SAFETENSORS || !a->tensors_n) return SEGUE_OK;
    struct sg_module_join j = {a, sg_alloc(a->tensors_n * sizeof *j.list), sg_alloc(a->tensors_n), config};
    segue_status s = j.list && j.joined ? SEGUE_OK : sg_no_memory(a->path, a->tensors_n * sizeof *j.list, err);
    if (s == SEGUE_OK) memcpy(j.list, a->tensors, a->tensors_n * sizeof *j.list);
    for (uint32_t i = 0; s == SEGUE_OK && i < a->tensors_n; i++) {
        s = sg_join_mlx(&j, i, err);
        if (s == SEGUE_OK) s = sg_join_torch(&j, i, err);
    }
    if (s == SEGUE_OK) s = replace_list(&j, err);
    if (s != SEGUE_OK) sg_free(j.list);
    sg_free(j.joined);
    return s;
}
