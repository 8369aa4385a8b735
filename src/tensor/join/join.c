/* join.c: the names of the tensors of a quantised module; see join.h.
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
