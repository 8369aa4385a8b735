/* sm_partition.c: decode and prefill at the same time on one GPU. Stream priorities are not enough: the kernels of a token
 * hold shared memory on every multiprocessor while they wait for each other, and the blocks of large products do not fit next
 * to them (measured: prefill 3 times slower, decode 1.24 times). So while both run, each uses its own set of multiprocessors
 * (a green context of the driver); alone, each uses all of them. By default the two sets do not overlap. Where "part" and
 * "rest" overlap, prefill has the higher priority in its set. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "unit/cuda/driver/gpu.h"

static const uint64_t RECENT_NS = 3000000; /* longer than the host work between two tokens */

/* Creates the green context of a lane kind from a set of multiprocessors. */
static cu_result create_part(struct sg_unit *u, struct cu_resource *r, uint32_t kind)
{
    void *desc = NULL;
    cu_result bad = u->d.resource_desc(&desc, r, 1);
    if (!bad) bad = u->d.green_new(&u->partition.green[kind], desc, u->device, CU_GREEN_DEFAULT_STREAM);
    if (bad) u->partition.green[kind] = NULL;
    u->partition.sms[kind] = r->sms;
    return bad;
}

/* Appends a note to the unit's features, once. */
void cu_partition_note_absent(struct sg_unit_desc *d)
{
    size_t n = strlen(d->info.features);
    if (!strstr(d->info.features, "not partitioned"))
        snprintf(d->info.features + n, sizeof d->info.features - n, ", not partitioned: stream priorities only");
}

/* "part" multiprocessors for decode, the rest for prefill. With "rest" prefill gets the last `rest_sms` ones of the whole GPU,
 * which may overlap with the other set. Without support everything stays as it is: no green context. */
static void split_gpu(struct sg_unit *u)
{
    struct cu_resource all = {0}, few = {0}, rest = {0}, other = {0};
    unsigned n = 1;
    if (!u->part_sms || u->part_sms >= u->sms || !u->d.resource) return;
    if (u->d.resource(u->device, &all, CU_RESOURCE_SMS) || u->d.resource_split(&few, &n, &all, &rest, 0, u->part_sms)) return;
    if (u->rest_sms && u->rest_sms < u->sms && u->d.resource_split(&other, &n, &all, &rest, 0, u->sms - u->rest_sms))
        return;
    if (!n || !few.sms || !rest.sms || create_part(u, &few, CU_LANE_DECODE) || create_part(u, &rest, CU_LANE_PREFILL))
        cu_partition_close(u);
}

/* The default partition was measured on 132 multiprocessors; other GPUs get the same fractions. */
void cu_partition_open(struct sg_unit *u)
{
    if (u->part_sms == CU_PART_AUTO) {
        u->part_sms = u->sms * CU_PART_SMS / CU_PART_OF_SMS;
        u->rest_sms = u->sms * CU_REST_SMS / CU_PART_OF_SMS;
    }
    split_gpu(u);
    if (u->part_sms && !u->partition.green[CU_LANE_DECODE]) cu_partition_note_absent(&u->desc);
}

/* Also after a split that failed halfway. */
void cu_partition_close(struct sg_unit *u)
{
    for (int i = 0; i < CU_LANES; i++) {
        if (u->partition.green[i]) u->d.green_free(u->partition.green[i]);
        u->partition.green[i] = NULL;
    }
}

/* Streams of a green context run only on its multiprocessors. */
cu_result cu_partition_stream(struct sg_unit *u, uint32_t kind, cu_stream *out, int priority)
{
    *out = NULL;
    return u->partition.green[kind] ? u->d.green_stream(out, u->partition.green[kind], CU_STREAM_NON_BLOCKING, priority) : 0;
}

void cu_partition_run_begin(struct sg_unit *u, uint32_t kind)
{
    if (kind == CU_LANE_PREFILL)
        atomic_fetch_add(&u->partition.prefills, 1u);
    else
        atomic_store(&u->partition.decode_ns, sg_now_ns());
}

void cu_partition_run_end(struct sg_unit *u, uint32_t kind)
{
    if (kind == CU_LANE_PREFILL)
        atomic_fetch_sub(&u->partition.prefills, 1u);
    else
        atomic_store(&u->partition.decode_ns, sg_now_ns());
}

/* Decode asks whether a prefill run is in progress. Prefill runs are long, so they ask whether a token was decoded within the
 * last RECENT_NS: between two tokens of an interactive decode no run is in progress. */
int cu_partition_active(struct sg_unit *u, uint32_t kind)
{
    if (kind == CU_LANE_DECODE) return atomic_load(&u->partition.prefills) != 0;
    uint64_t last = atomic_load(&u->partition.decode_ns);
    return last && sg_now_ns() - last < RECENT_NS;
}
