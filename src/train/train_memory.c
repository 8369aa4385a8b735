/* train_memory.c: numbers of a trainer, in host memory or in that of a resident unit.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "train/train.h"

segue_status sg_train_new(struct segue_trainer *t, size_t n, const char *what, float **out, segue_error *err)
{
    *out = NULL;
    if (n > SIZE_MAX / 8) return sg_no_memory(what, n, err);
    if (t->resident) return sg_resident_ops(t->resident)->alloc(t->resident, n, out, err);
    *out = sg_alloc_unset(n * sizeof **out);
    return *out ? SEGUE_OK : sg_no_memory(what, n * sizeof **out, err);
}

void sg_train_delete(struct segue_trainer *t, float *p)
{
    if (!t->resident) sg_free_aligned(p);
    else if (p) sg_resident_ops(t->resident)->free(t->resident, p);
}

segue_status sg_train_zero(struct segue_trainer *t, float *p, size_t n, segue_error *err)
{
    if (t->resident) return sg_resident_ops(t->resident)->zero(t->resident, p, n, err);
    memset(p, 0, n * sizeof *p);
    return SEGUE_OK;
}

segue_status sg_train_write(struct segue_trainer *t, float *to, const float *host, size_t n, segue_error *err)
{
    if (t->resident) return sg_resident_ops(t->resident)->write(t->resident, to, host, n * sizeof *to, err);
    memcpy(to, host, n * sizeof *to);
    return SEGUE_OK;
}

segue_status sg_train_read(const struct segue_trainer *t, float *host, const float *from, size_t n, segue_error *err)
{
    if (t->resident) return sg_resident_ops(t->resident)->read(t->resident, host, from, n * sizeof *from, err);
    memcpy(host, from, n * sizeof *from);
    return SEGUE_OK;
}
