/* tables.c: looking up a row in a family's tables of tensors: of two tables with the same role the later one counts, so that a
 * family says only where it differs from the shared table.
 * SPDX-License-Identifier: MIT */
#include "model/family.h"

const struct sg_tensor_row *sg_tensor_find(const struct sg_family *f, enum sg_role role)
{
    const struct sg_tensor_row *found = NULL;
    for (size_t t = 0; f->tensors[t]; t++)
        for (const struct sg_tensor_row *r = f->tensors[t]; r->role != SG_ROLE_NONE; r++)
            if (r->role == role) found = r;
    return found;
}
