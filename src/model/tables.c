/* tables.c: looks up a role in a family's tables of tensors. The last row of a role is valid, so a family's table only lists
 * differences from the shared one.
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
