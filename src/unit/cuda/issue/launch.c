/* launch.c: one kernel launch, with programmatic dependent launch (the kernel may start before its predecessor ends) for all
 * but the first of a pass, and clusters where requested. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* The first launch of a pass has no predecessor in it: it must not start before copies of the arguments are complete. */
static segue_status launch(struct cu_pass *p, cu_fn fn, struct cu_launch *l, uint32_t cluster, const void *args)
{
    struct sg_unit *u = p->program->base.unit;
    struct cu_launch_attr attrs[2];
    void *list[] = {(void *)(uintptr_t)args};
    if (!l->grid_x || !l->grid_y || !l->grid_z) return SEGUE_OK;
    l->stream = p->lane->stream;
    l->attrs = attrs;
    /* The kernel may start before its predecessor ends, and waits itself before it reads results. */
    if (u->pdl && p->launches)
        attrs[l->attrs_n++] = (struct cu_launch_attr){.id = CU_LAUNCH_PROGRAMMATIC, .value = {.allowed = 1}};
    if (cluster > 1)
        attrs[l->attrs_n++] = (struct cu_launch_attr){.id = CU_LAUNCH_CLUSTER, .value = {.cluster = {cluster, 1, 1}}};
    p->launches++;
    return cu_check(&u->d, u->d.launch(l, fn, list, NULL), "run", p->err);
}

segue_status cu_launch(struct cu_pass *p, cu_fn fn, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t threads, size_t shared,
                       const void *args)
{
    struct cu_launch l = {gx, gy, gz, threads, 1, 1, (unsigned)shared, NULL, NULL, 0};
    return launch(p, fn, &l, 1, args);
}

segue_status cu_launch_clusters(struct cu_pass *p, cu_fn fn, uint32_t gx, uint32_t cluster, uint32_t threads, size_t shared,
                                const void *args)
{
    struct cu_launch l = {gx, 1, 1, threads, 1, 1, (unsigned)shared, NULL, NULL, 0};
    return launch(p, fn, &l, cluster, args);
}

/* Captured graphs have the addresses of the buffers; their key contains these (struct cu_graph_key). */
segue_status cu_lane_grow(struct cu_pass *p, cu_ptr *buffer, size_t *have, size_t want)
{
    return cu_mem_grow(p->program->base.unit, buffer, have, want, "buffers of a run", p->err);
}
