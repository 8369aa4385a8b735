/* join_all.c: replaces the tensors of all quantised modules of an archive by one tensor each; see join.h.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "tensor/join/join.h"

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
