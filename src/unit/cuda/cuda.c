/* cuda.c: the table of operations of the unit `cuda`: listing the GPUs, opening one GPU (cuda:N) or a group (cuda:A-B), limits
 * of ops, memory footprint, and the measurement of memory bandwidth.
 *
 * Options of the spec: pdl, waves, graphs, stream, part, rest, screen, rank, invariant, packed, prepare, hopper, products; see
 * struct sg_unit in driver/gpu.h.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "unit/cuda/cu.h"
#include "unit/cuda/driver/nvml.h"
#include "unit/cuda/exec/prepare.h"
#include "unit/cuda/issue/issue.h"
#include "unit/cuda/train/cu_train.h"
#include "unit/group/group.h"
#include "unit/spec.h"

enum { MAX_GPUS = 16 }; /* highest index + 1 that a spec may name */

/* Defined at the end of this file; open needs its address. */
extern const struct sg_unit_ops sg_unit_cuda;

/* What is known without a GPU; why: the reason, "" for none. */
static void describe_absent(struct sg_unit_desc *d, const char *why)
{
    *d = (struct sg_unit_desc){.lanes = CU_LANES, .long_rows = CU_DECODE_ROWS, .samples = 1, .streams = 1,
                                .first_runs_slow = 1};
    d->info.size = sizeof d->info;
    d->info.built = 1;
    snprintf(d->info.spec, sizeof d->info.spec, "cuda");
    snprintf(d->info.kind, sizeof d->info.kind, "cuda");
    snprintf(d->info.why, sizeof d->info.why, "%.255s", why);
}

/* Fills the description of one GPU. present 0 when it is too old. */
static cu_result describe_gpu(const struct cu_driver *d, int index, struct sg_unit_desc *out)
{
    cu_device device;
    char name[64] = "";
    int major = 0, minor = 0, sms = 0, version = 0;
    size_t bytes = 0;
    cu_result r = d->get(&device, index);
    if (!r) r = d->name(name, sizeof name, device);
    if (!r) r = d->total(&bytes, device);
    if (!r) r = d->get_attribute(&major, CU_ATTR_MAJOR, device);
    if (!r) r = d->get_attribute(&minor, CU_ATTR_MINOR, device);
    if (!r) r = d->get_attribute(&sms, CU_ATTR_SMS, device);
    if (!r) r = d->version(&version);
    describe_absent(out, "");
    snprintf(out->info.spec, sizeof out->info.spec, "cuda:%d", index);
    if (r) return r;
    snprintf(out->info.features, sizeof out->info.features, "%.40s, capability %d.%d, %d multiprocessors, driver API %d.%d", name,
             major, minor, sms, version / 1000, version % 1000 / 10);
    /* Without green contexts decode and prefill share all multiprocessors. */
    if (!d->resource) cu_partition_note_absent(out);
    out->info.memory_bytes = bytes;
    out->info.present = major >= 8;
    if (major < 8)
        snprintf(out->info.why, sizeof out->info.why, "compute capability %d.%d is not supported; needed is 8.0", major, minor);
    return 0;
}

/* A driver that is missing or has no GPU is not an error: one entry says why. With several GPUs the first entry also names the
 * group of all of them. */
static segue_status cu_list(struct sg_unit_desc *out, size_t cap, size_t *n, segue_error *err)
{
    struct cu_driver d;
    segue_error why = {0};
    int gpus = 0;
    (void)err;
    *n = 1;
    if (cu_driver_open(&d, &why) != SEGUE_OK) {
        if (cap) describe_absent(out, why.text);
        return SEGUE_OK;
    }
    if (d.count(&gpus) || gpus < 1) {
        if (cap) describe_absent(out, "the NVIDIA driver found no GPU");
    } else {
        *n = (size_t)gpus;
        for (int i = 0; i < gpus && (size_t)i < cap; i++)
            if (describe_gpu(&d, i, &out[i])) snprintf(out[i].info.why, sizeof out[i].info.why, "the GPU does not respond");
        size_t len = cap ? strlen(out[0].info.features) : 0;
        if (cap && gpus > 1)
            snprintf(out[0].info.features + len, sizeof out[0].info.features - len, "; all as one: cuda:0-%d", gpus - 1);
    }
    cu_driver_close(&d);
    return SEGUE_OK;
}

/* Also closes a unit that was only partly opened. Streams and memory are freed before their green contexts and the context. */
static void cu_close(struct sg_unit *u)
{
    if (!u) return;
    if (u->ctx) {
        cu_blas_finish(u);
        cu_pool_empty(u);
        cu_enter(u);
        if (u->copies) u->d.stream_sync(u->copies);
        cu_mem_free(u, &u->peer_probe);
        cu_blas_close(&u->blas);
        for (int i = 0; i < 2; i++)
            if (u->staging_events[i]) u->d.event_free(u->staging_events[i]);
        if (u->copies) u->d.stream_free(u->copies);
        if (u->staging) u->d.host_free(u->staging);
        cu_pinned_close(u);
        cu_partition_close(u);
        while (u->modules_n) u->d.module_unload(u->modules[--u->modules_n]);
        cu_leave(u);
        u->d.release(u->device);
    }
    cu_nvml_close(&u->nvml);
    cu_driver_close(&u->d);
    pthread_mutex_destroy(&u->copy_lock);
    pthread_mutex_destroy(&u->pool_lock);
    pthread_mutex_destroy(&u->nvml_lock);
    pthread_mutex_destroy(&u->logits_lock);
    pthread_mutex_destroy(&u->pinned.lock);
    sg_free(u);
}

/* Reads option `key` ("" is the GPU's index) as a number from 0 to `max` into *out, which keeps its value when the option is
 * absent. */
static segue_status parse_number(const struct sg_unit_spec *spec, const char *key, uint32_t max, uint32_t *out, segue_error *err)
{
    const char *text = sg_spec_value(spec, key);
    char *end;
    if (!text) return SEGUE_OK;
    unsigned long n = strtoul(text, &end, 10);
    /* strtoul alone would accept signs and leading spaces. */
    if (*text < '0' || *text > '9' || n > max || *end)
        return sg_fail(err, SEGUE_EARG, "open unit: %s: %s%s%s; give a number from 0 to %u", spec->text, *key ? key : "GPU ",
                       *key ? "=" : "", text, max);
    *out = (uint32_t)n;
    return SEGUE_OK;
}

/* Opens GPU `index`: properties, context, stream and staging buffers of copies, kernels, cuBLASLt, partitions. */
static segue_status open_gpu(struct sg_unit *u, uint32_t index, segue_error *err)
{
    int gpus = 0, value = 0;
    if (u->d.count(&gpus) || (int)index >= gpus)
        return sg_fail(err, SEGUE_EUNIT, "open unit: cuda:%u: there are %d GPUs; `segue units` lists them", index, gpus);
    SG_TRY(cu_check(&u->d, u->d.get(&u->device, (int)index), "open unit", err));
    SG_TRY(cu_check(&u->d, describe_gpu(&u->d, (int)index, &u->desc), "open unit", err));
    if (!u->desc.info.present) return sg_fail(err, SEGUE_EUNIT, "open unit: cuda:%u: %s", index, u->desc.info.why);
    u->d.get_attribute(&value, CU_ATTR_SMS, u->device);
    u->sms = value > 0 ? (uint32_t)value : 1;
    u->d.get_attribute(&value, CU_ATTR_MAJOR, u->device);
    u->major = (uint32_t)value;
    if (!u->hopper && u->major >= 9) u->major = 8;
    u->d.get_attribute(&value, CU_ATTR_SHARED_OPTIN, u->device);
    /* The opt-in limit of shared memory per block, with some left for static shared memory. */
    u->shared_max = value > 65536 ? (uint32_t)value - CU_SHARED_LEFT : 40960;
    /* Only the kernels for compute capability 9.0 wait for their predecessor themselves (griddepcontrol). */
    if (u->major != 9) u->pdl = 0;
    SG_TRY(cu_check(&u->d, u->d.retain(&u->ctx, u->device), "open unit", err));
    cu_enter(u);
    segue_status status = cu_check(&u->d, u->d.stream_new(&u->copies, CU_STREAM_NON_BLOCKING, 0), "open unit", err);
    void *stage = NULL;
    if (status == SEGUE_OK)
        status = cu_check(&u->d, u->d.host_alloc(&stage, 2 * (size_t)CU_STAGING_BYTES, CU_HOST_MAPPED), "open unit", err);
    u->staging = stage;
    for (int i = 0; i < 2 && status == SEGUE_OK; i++)
        status = cu_check(&u->d, u->d.event_new(&u->staging_events[i], CU_EVENT_UNTIMED), "open unit", err);
    if (status == SEGUE_OK) status = cu_kernels_load(u, err);
    if (status == SEGUE_OK) cu_blas_begin(u);
    if (status == SEGUE_OK) cu_partition_open(u);
    cu_leave(u);
    return status;
}

/* Opens one GPU with the options of the spec; see struct sg_unit. A lost GPU at this point is reported as EUNIT: nothing was lost
 * yet. */
static segue_status open_one(struct sg_unit **out, const struct sg_unit_spec *spec, segue_error *err)
{
    static const char *const keys[] = {"",     "pdl",    "waves", "graphs",    "stream", "part",
                                       "rest", "screen", "rank",  "invariant", "packed", "prepare", "hopper",
                                       "products", "fault", NULL};
    uint32_t index = 0;
    struct sg_unit *u;
    SG_TRY(sg_spec_only(spec, keys, err));
    SG_TRY(parse_number(spec, "", MAX_GPUS, &index, err));
    u = sg_alloc(sizeof *u);
    if (!u) return sg_no_memory("unit cuda", sizeof *u, err);
    pthread_mutex_init(&u->copy_lock, NULL);
    pthread_mutex_init(&u->pool_lock, NULL);
    pthread_mutex_init(&u->nvml_lock, NULL);
    pthread_mutex_init(&u->logits_lock, NULL);
    cu_pinned_open(u); /* initialises its lock, so that cu_close can be called from here on */
    u->base.ops = &sg_unit_cuda;
    /* Defaults of the options. */
    u->pdl = u->graphs = u->cluster_fusion = u->packed = u->prepare = u->hopper = 1;
    u->waves = 4;
    u->products = CT_TF32;
    u->stream = 100;
    u->part_sms = CU_PART_AUTO;
    segue_status status = parse_number(spec, "pdl", 1, &u->pdl, err);
    if (status == SEGUE_OK) status = parse_number(spec, "waves", 8, &u->waves, err);
    if (status == SEGUE_OK) status = parse_number(spec, "graphs", 1, &u->graphs, err);
    if (status == SEGUE_OK) status = parse_number(spec, "stream", CU_STREAM_SHARED_MAX >> 10, &u->stream, err);
    if (status == SEGUE_OK) status = parse_number(spec, "part", 1024, &u->part_sms, err);
    if (status == SEGUE_OK) status = parse_number(spec, "rest", 1024, &u->rest_sms, err);
    if (status == SEGUE_OK) status = parse_number(spec, "packed", 2, &u->packed, err);
    if (status == SEGUE_OK) status = parse_number(spec, "screen", 1, &u->screen, err);
    if (status == SEGUE_OK) status = parse_number(spec, "rank", CK_CLUSTERS_MAX, &u->cluster_fusion, err);
    if (status == SEGUE_OK) status = parse_number(spec, "invariant", 1, &u->invariant, err);
    if (status == SEGUE_OK) status = parse_number(spec, "prepare", 2, &u->prepare, err);
    if (status == SEGUE_OK) status = parse_number(spec, "hopper", 1, &u->hopper, err);
    if (status == SEGUE_OK) status = parse_number(spec, "products", CT_VALUES_BF16, &u->products, err);
    if (status == SEGUE_OK) status = sg_fault_read(spec, &u->fault, err);
    if (status == SEGUE_OK && u->invariant && (u->screen || (sg_spec_value(spec, "rank") && u->cluster_fusion)))
        status = sg_fail(err, SEGUE_EUNSUPPORTED,
                         "open unit: %s: screen and rank change results of single rows; use them without invariant", spec->text);
    /* Fusions add in another order than the kernels of several rows. */
    if (u->invariant) u->cluster_fusion = 0;
    /* waves=0 means the fewest. */
    if (!u->waves) u->waves = 1;
    if (status == SEGUE_OK) status = cu_driver_open(&u->d, err);
    if (status == SEGUE_OK) status = open_gpu(u, index, err);
    if (status != SEGUE_OK) {
        /* cu_check reports ELOST, but nothing is open that could be lost. */
        if (status == SEGUE_ELOST && err) err->status = SEGUE_EUNIT;
        cu_close(u);
        return status == SEGUE_ELOST ? SEGUE_EUNIT : status;
    }
    /* The spec as it was given, with its options. */
    snprintf(u->desc.info.spec, sizeof u->desc.info.spec, "%s", spec->text);
    u->desc.invariant = u->invariant;
    *out = u;
    return SEGUE_OK;
}

/* cuda:A-B: one unit per GPU from A to B, joined by sg_group_open, which then owns them. Every GPU must be able to access the
 * memory of every other one. */
static segue_status open_several(struct sg_unit **out, const struct sg_unit_spec *spec, uint32_t first, uint32_t last,
                                 segue_error *err)
{
    struct sg_unit *units[CK_JOIN_RANKS];
    struct sg_unit_spec one = *spec;
    uint32_t n = 0, max = last - first + 1;
    segue_status status = SEGUE_OK;
    /* The candidate filter needs all rows of the output head on one GPU. */
    for (uint32_t k = 0; k < one.pairs_n; k++)
        if (!strcmp(one.pairs[k].key, "screen"))
            return sg_fail(err, SEGUE_EUNSUPPORTED, "open unit: %s: screen is not supported for several GPUs; leave it out",
                           spec->text);
    for (; n < max && status == SEGUE_OK; n++) {
        for (uint32_t k = 0; k < one.pairs_n; k++)
            if (!one.pairs[k].key[0]) snprintf(one.pairs[k].value, sizeof one.pairs[k].value, "%u", first + n);
        /* Options apply to every GPU; errors name the one that failed. */
        snprintf(one.text, sizeof one.text, "cuda:%u", first + n);
        status = open_one(&units[n], &one, err);
    }
    /* The one that failed is closed already. */
    n -= status != SEGUE_OK;
    for (uint32_t a = 0; a < n && status == SEGUE_OK; a++)
        for (uint32_t b = 0; b < n && status == SEGUE_OK; b++)
            if (a != b) status = cu_peer_enable(units[a], units[b], err);
    if (status == SEGUE_OK) return sg_group_open(out, units, n, spec->text, err);
    while (n) cu_close(units[--n]);
    if (status == SEGUE_ELOST && err) err->status = SEGUE_EUNIT;
    return status == SEGUE_ELOST ? SEGUE_EUNIT : status;
}

/* Parses A-B in place of the GPU's index. *several 0: there is no dash. */
static segue_status parse_range(const struct sg_unit_spec *spec, uint32_t *first, uint32_t *last, int *several, segue_error *err)
{
    const char *text = sg_spec_value(spec, ""), *dash = text ? strchr(text, '-') : NULL;
    unsigned a, b;
    int end = 0;
    *several = dash != NULL;
    if (!dash) return SEGUE_OK;
    if (strspn(text, "0123456789-") != strlen(text) || sscanf(text, "%2u-%2u%n", &a, &b, &end) != 2 || text[end] || a >= b ||
        b >= MAX_GPUS || b - a >= CK_JOIN_RANKS)
        return sg_fail(err, SEGUE_EARG, "open unit: %s: %s is not a range of 2 to %d GPUs; write it as 0-1", spec->text, text,
                       (int)CK_JOIN_RANKS);
    *first = a;
    *last = b;
    return SEGUE_OK;
}

/* cuda or cuda:N: one GPU; cuda:A-B: a group of GPUs, split by tensor parallelism (unit/group). */
static segue_status cu_open(struct sg_unit **out, const struct sg_unit_spec *spec, segue_error *err)
{
    uint32_t first = 0, last = 0;
    int several = 0;
    SG_TRY(parse_range(spec, &first, &last, &several, err));
    return several ? open_several(out, spec, first, last, err) : open_one(out, spec, err);
}
/* The description does not change while the unit is open. */
static void cu_describe(const struct sg_unit *u, struct sg_unit_desc *out) { *out = u->desc; }

/* Everything that passes sg_op_check, except for widths that the kernels do not support. */
static segue_status cu_can(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op, segue_error *why)
{
    (void)u;
    SG_TRY(sg_op_check(g, (uint32_t)(op - g->ops), why));
    const struct sg_attend *a = &op->u.attend;
    if (op->code == SG_OP_DELTA && op->u.delta.dk > 256)
        return sg_fail(why, SEGUE_EUNSUPPORTED,
                       "unit cuda: delta (layer %d): keys of width %u are not supported; the limit is 256", op->layer,
                       op->u.delta.dk);
    if (op->code == SG_OP_ATTEND && (a->d > 1024 || a->dv > 1024))
        return sg_fail(why, SEGUE_EUNSUPPORTED,
                       "unit cuda: attend (layer %d): heads of width %u and %u are not supported; the limit is 1024", op->layer,
                       a->d, a->dv);
    return SEGUE_OK;
}

/* scratch: value buffers for the longest pass, and partial sums of fusions. Other buffers are small. */
static void cu_footprint(const struct sg_program *p, uint64_t *own, uint64_t *read, uint64_t *scratch)
{
    if (own) *own = p->weights->bytes;
    if (read) *read = p->read_per_token;
    if (scratch)
        *scratch = ((uint64_t)p->columns[0] * CU_PASS_ROWS + (uint64_t)p->columns[1] * CU_DECODE_ROWS) * sizeof(float) +
                   cu_cluster_sums_bytes(p) + (p->base.unit->graphs ? CU_LANES * cu_graphs_bytes_max(p->fused_n) : 0);
}

/* Reads `bytes` at p four times with eight blocks per multiprocessor; *gb_s: the best rate, with the launch. */
static segue_status read_timed(struct sg_unit *u, cu_ptr p, uint64_t bytes, double *gb_s, segue_error *err)
{
    struct ck_read args = {.data = (const void *)(uintptr_t)p, .n = bytes / 16, .out = (uint32_t *)(uintptr_t)p};
    /* Eight blocks of 512 threads: more than resident threads, so that the memory system is saturated to the end. */
    struct cu_launch l = {u->sms * 8, 1, 1, 512, 1, 1, 0, u->copies, NULL, 0};
    void *list[] = {&args};
    double best = 0;
    for (int i = 0; i < 4; i++) {
        uint64_t start_ns = sg_now_ns();
        SG_TRY(cu_check(&u->d, u->d.launch(&l, u->k.read_all, list, NULL), "measure", err));
        SG_TRY(cu_check(&u->d, u->d.stream_sync(u->copies), "measure", err));
        double rate = (double)bytes / (double)(sg_now_ns() - start_ns); /* bytes per ns = GB/s */
        if (rate > best) best = rate;
    }
    *gb_s = best;
    return SEGUE_OK;
}

/* Measures reading of at least 1 MB. The memory is written first, so that its pages are mapped. */
static segue_status cu_stream_rate(struct sg_unit *u, uint64_t bytes, double *gb_s, segue_error *err)
{
    cu_ptr p;
    if (bytes < 1 << 20) bytes = 1 << 20;
    SG_TRY(cu_mem_alloc(u, bytes, "measure", &p, err));
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    segue_status status = cu_check(&u->d, u->d.memset_d8(p, 7, bytes, u->copies), "measure", err);
    if (status == SEGUE_OK) status = read_timed(u, p, bytes, gb_s, err);
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    cu_mem_free(u, &p);
    return status;
}

/* Units of a group have none: the group is asked. */
static void cu_progress(struct sg_unit *u, const struct sg_progress *progress) { u->progress = progress; }

/* Optional members that are missing: state_at (fixed slots are in GPU memory), weight_get and weight_put, kept and compiles (no
 * weight cache), restart (a lost context cannot be reset in this process). */
const struct sg_unit_ops sg_unit_cuda = {
    .kind = "cuda",
    .list = cu_list,
    .open = cu_open,
    .close = cu_close,
    .describe = cu_describe,
    .can = cu_can,
    .compile = cu_compile,
    .discard = cu_discard,
    .footprint = cu_footprint,
    .start = cu_start,
    .wait = cu_wait_and_prepare,
    .state_new = cu_state_new,
    .state_free = cu_state_free,
    SG_STATE_CORE_MEMBERS,
    .state_bytes = cu_state_bytes,
    .state_get = cu_state_get,
    .state_put = sg_state_core_put,
    .state_transfer = cu_state_transfer,
    .peer_prewarm = cu_peer_prewarm,
    .host = cu_host_memory,
    .state_flush = cu_state_flush,
    .state_logits = cu_state_logits,
    .stream = cu_stream_rate,
    .meter = cu_energy,
    .progress = cu_progress,
    .link_ranks = cu_link_ranks,
    .train_resident = cu_train_open,
};
