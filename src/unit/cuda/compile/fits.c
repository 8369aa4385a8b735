/* fits.c: checks whether weights or a state fit into the free GPU memory, and suggests what would fit; see fits.h.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/compile/fits.h"

#include <stdio.h>

#include "unit/cuda/compile/lane.h"

/* GRAIN: cuMemAlloc reserves memory in units of 2 MB. */
enum { SKIP_QUERY_PART = 16, ROWS_STEP = 64, GRAIN = 2 << 20 };
static const uint64_t WORK = (uint64_t)96 << 20; /* buffers of passes and scratch, about */

/* Free bytes including the pool of state memory, which is emptied before an allocation fails, without those that captured graphs
 * may still take. UINT64_MAX: the query failed. */
static uint64_t query_free_bytes(struct sg_unit *u, uint64_t *all)
{
    size_t unused = 0, total = 0;
    cu_enter(u);
    cu_result r = u->d.mem_info(&unused, &total);
    cu_leave(u);
    *all = total;
    pthread_mutex_lock(&u->pool_lock);
    uint64_t pooled = u->pool_bytes;
    pthread_mutex_unlock(&u->pool_lock);
    uint64_t graphs = atomic_load(&u->graphs_reserved), left = unused + pooled;
    return r ? UINT64_MAX : left > graphs ? left - graphs : 0;
}

/* Bytes of a state: fixed slots, K and V of one token, rounding of allocations. */
struct cu_state_size {
    uint64_t fixed, row, grains;
};

/* Every slot may round its allocation up to GRAIN. */
static struct cu_state_size state_size_of(const struct sg_slot *slots, uint32_t n, enum sg_storage kv)
{
    struct cu_state_size s = {0, 0, (uint64_t)n * GRAIN};
    for (uint32_t i = 0; i < n; i++) {
        s.fixed += sg_slot_fixed_bytes(&slots[i]);
        s.row += sg_slot_row_bytes(&slots[i], kv);
    }
    return s;
}

/* Tokens of a state that fit into `bytes`. */
static uint64_t rows_in(struct cu_state_size s, uint64_t bytes)
{
    if (bytes < s.fixed + s.grains || !s.row) return 0;
    return (bytes - s.fixed - s.grains) / s.row / ROWS_STEP * ROWS_STEP;
}

/* cuMemGetInfo takes longer than all other steps of creating a small state. While states are small against the last known free
 * memory (a 16th of it), the estimate is reduced instead of querying again. */
segue_status cu_state_fits(struct sg_unit *u, const struct sg_slot *slots, uint32_t n, enum sg_storage kv, uint64_t rows,
                           int full, segue_error *err)
{
    struct cu_state_size s = state_size_of(slots, n, kv);
    uint64_t known = atomic_load(&u->free_estimate), share = known / SKIP_QUERY_PART;
    if (!full && s.fixed + s.grains < share && rows < (share - s.fixed - s.grains) / (s.row + 1)) {
        atomic_store(&u->free_estimate, known - s.fixed - s.grains - rows * s.row);
        return SEGUE_OK;
    }
    uint64_t all, unused = query_free_bytes(u, &all), fit = rows_in(s, unused),
                  narrow = rows_in(state_size_of(slots, n, SG_Q8_0), unused);
    atomic_store(&u->free_estimate, unused == UINT64_MAX ? 0 : unused);
    if (!full && (s.row == 0 || rows <= (unused - (unused < s.fixed ? unused : s.fixed)) / s.row)) return SEGUE_OK;
    char advice[112] = "no context fits";
    if (fit && fit < rows && kv != SG_Q8_0 && narrow > fit)
        snprintf(advice, sizeof advice, "a context of %llu tokens fits, of %llu with K and V as q8", (unsigned long long)fit,
                 (unsigned long long)narrow);
    else if (fit && fit < rows)
        snprintf(advice, sizeof advice, "a context of %llu tokens fits", (unsigned long long)fit);
    return sg_fail(err, SEGUE_EMEMORY,
                   "new state: unit cuda: %llu MB for %llu tokens, %llu MB free of %llu on the GPU; %s; use that, or end "
                   "other programs on the GPU",
                   (unsigned long long)((s.fixed + s.row * rows) >> 20), (unsigned long long)rows,
                   (unsigned long long)(unused >> 20), (unsigned long long)(all >> 20), advice);
}

/* A storage: bytes per 32 numbers, and per row. */
struct cu_storage_size {
    const char *advice;
    uint32_t part, row;
};

/* Bytes of all tensors with matrices converted to a storage, except where the file's storage is smaller. part 0: as they are. */
static uint64_t weight_bytes_as(const struct sg_graph *g, struct cu_storage_size s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < g->tensors_n; i++) {
        const struct sg_tensor *t = g->tensors[i];
        uint64_t as = s.part && t->rank >= 2 && t->cols % 32 == 0 ? t->rows * (t->cols / 32 * s.part + s.row) : t->bytes;
        bytes += as < t->bytes ? as : t->bytes;
    }
    return bytes;
}

/* Suggests the smallest change first. A storage counts as fitting only if a context of at least ROWS_STEP tokens fits beside it.
 * Q4_0 loses more precision and is suggested only when neither of the others fits. */
segue_status cu_weights_fit(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, int full, segue_error *err)
{
    static const struct cu_storage_size storages[] = {{"use --storage fp8", 32, 4},
                                                      {"quantize it to q8_0", 34, 0},
                                                      {"quantize it to q4_0", 20, 0}};
    if (!n) return SEGUE_OK;
    const struct sg_graph *g = graphs[0];
    uint64_t all, unused = query_free_bytes(u, &all), bytes = weight_bytes_as(g, (struct cu_storage_size){0}), least = 0;
    if (!full && bytes <= unused) return SEGUE_OK;
    char advice[160] = "no storage fits; use another unit";
    int len = 0;
    for (size_t i = 0; i < sizeof storages / sizeof *storages && !(i == 2 && len); i++) {
        uint64_t as = weight_bytes_as(g, storages[i]) + WORK + (u->graphs ? CU_LANES * cu_graphs_bytes_max(g->ops_n) : 0),
                 rows = as < unused ? rows_in(state_size_of(g->slots, g->slots_n, SG_F16), unused - as) : 0;
        if (as >= unused || (g->slots_n && !rows)) continue;
        least = !len || rows < least ? rows : least;
        len += snprintf(advice + len, sizeof advice - (size_t)len, "%s%s", len ? ", or " : "", storages[i].advice);
    }
    if (len)
        snprintf(advice + len, sizeof advice - (size_t)len, ": that leaves memory for a context of %llu tokens",
                 (unsigned long long)least);
    return sg_fail(err, SEGUE_EMEMORY, "load weights: unit cuda: %llu MB of weights, %llu MB free of %llu on the GPU; %s",
                   (unsigned long long)(bytes >> 20), (unsigned long long)(unused >> 20), (unsigned long long)(all >> 20),
                   advice);
}
