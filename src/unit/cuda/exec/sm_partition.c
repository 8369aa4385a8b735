/* sm_partition.c: reading beside writing on one GPU. Streams of different priority are not enough: a token's kernels hold shared
 * memory of every multiprocessor while they wait for each other, and a large product finds no room beside them (reading took 3
 * times as long, writing 1.24). So while both are at work each keeps to a part of the multiprocessors (green contexts of the
 * driver), and takes all of them when the other rests. By default nothing is in both parts; where they overlap reading goes first
 * in its own, and writing also has what is left there. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "unit/cuda/cu.h"

static const uint64_t LATELY_NS = 3000000; /* between two tokens of one who takes them as they come */

static cu_result part_new(struct sg_unit *u, struct cu_resource *r, uint32_t kind)
{
    void *desc = NULL;
    cu_result bad = u->d.resource_desc(&desc, r, 1);
    if (!bad) bad = u->d.green_new(&u->share.green[kind], desc, u->card, CU_GREEN_DEFAULT_STREAM);
    if (bad) u->share.green[kind] = NULL;
    u->share.sms[kind] = r->sms;
    return bad;
}

void cu_share_say(struct sg_unit_desc *d)
{
    size_t n = strlen(d->info.features);
    if (!strstr(d->info.features, "not parted"))
        snprintf(d->info.features + n, sizeof d->info.features - n, ", not parted: priorities alone");
}

static void part_card(struct sg_unit *u)
{
    struct cu_resource all = {0}, few = {0}, rest = {0}, other = {0};
    unsigned n = 1;
    if (!u->part || u->part >= u->sms || !u->d.resource) return;
    if (u->d.resource(u->card, &all, CU_RESOURCE_SMS) || u->d.resource_split(&few, &n, &all, &rest, 0, u->part)) return;
    if (u->rest && u->rest < u->sms && u->d.resource_split(&other, &n, &all, &rest, 0, u->sms - u->rest))
        return; /* the last ones of all, whatever the other part has */
    if (!n || !few.sms || !rest.sms || part_new(u, &few, CU_LANE_FEW) || part_new(u, &rest, CU_LANE_MANY)) cu_share_close(u);
}

void cu_share_open(struct sg_unit *u)
{
    if (u->part == CU_UNSAID) {
        u->part = u->sms * CU_PART / CU_PARTED;
        u->rest = u->sms * CU_REST / CU_PARTED;
    }
    part_card(u);
    if (u->part && !u->share.green[CU_LANE_FEW]) cu_share_say(&u->desc);
}

void cu_share_close(struct sg_unit *u)
{
    for (int i = 0; i < CU_LANES; i++) {
        if (u->share.green[i]) u->d.green_free(u->share.green[i]);
        u->share.green[i] = NULL;
    }
}

cu_result cu_share_stream(struct sg_unit *u, uint32_t kind, cu_stream *out, int priority)
{
    *out = NULL;
    return u->share.green[kind] ? u->d.green_stream(out, u->share.green[kind], CU_STREAM_NON_BLOCKING, priority) : 0;
}

void cu_share_begin(struct sg_unit *u, uint32_t kind)
{
    if (kind == CU_LANE_MANY) atomic_fetch_add(&u->share.reading, 1u);
    else atomic_store(&u->share.wrote_ns, sg_now_ns());
}

void cu_share_end(struct sg_unit *u, uint32_t kind)
{
    if (kind == CU_LANE_MANY) atomic_fetch_sub(&u->share.reading, 1u);
    else atomic_store(&u->share.wrote_ns, sg_now_ns());
}

int cu_share_wanted(struct sg_unit *u, uint32_t kind)
{
    if (kind == CU_LANE_FEW) return atomic_load(&u->share.reading) != 0;
    uint64_t last = atomic_load(&u->share.wrote_ns);
    return last && sg_now_ns() - last < LATELY_NS;
}
