/* aneprogram.c: programs of the unit `ane`. A graph is cut into parts once, at compile. The parts are lowered, compiled and
 * loaded for one shape (rows, keys, LoRA rank) when a run first needs that shape. Such a set of engine programs stays loaded
 * until it is the least recently used one and its entry is needed. See aneunit.h.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "unit/ane/aneunit.h"
#include "unit/ane/npu/npu.h"
#include "unit/finite.h"

/* Unloads the programs of a set and frees it. NULL is allowed, and a set whose loading failed. */
static void set_free(struct sg_program *p, struct ane_set *set)
{
    if (!set) return;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    for (uint32_t i = 0; set->programs && i < p->cut[0].parts_n; i++)
        if (set->programs[i]) ops->unload(set->programs[i]);
    for (uint32_t i = 0; set->wide && i < p->cut[0].parts_n; i++)
        if (set->wide[i]) sg_ane_ops_of(set->wide[i])->unload(set->wide[i]);
    sg_free(set->programs);
    sg_free(set->wide);
    sg_free(set->layout_ops);
    sg_ane_info_free(&set->info);
    sg_free(set);
}

/* Blobs may point into mapped cache entries, so they are freed before the entries are closed. Also for a program that
 * program_init left incomplete. */
void ane_discard(struct sg_program *p)
{
    if (!p) return;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    for (struct sg_program **at = &p->base.unit->programs; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    for (int i = 0; i < ANE_SETS; i++) set_free(p, p->sets[i]);
    ane_head_drop(p);
    for (uint32_t i = 0; p->blobs && i <= p->cut[0].parts_n; i++) sg_ane_blobs_free(&p->blobs[i]);
    for (uint32_t i = 0; p->cache_entries && i <= p->cut[0].parts_n; i++) sg_ane_cache_entry_close(&p->cache_entries[i]);
    sg_free(p->cache_entries);
    sg_free(p->source_hashes);
    sg_ane_cache_close(p->cache);
    for (int i = 0; i < 2; i++)
        if (p->x[i]) ops->surface_free(p->x[i]);
    if (p->info) ops->surface_free(p->info);
    for (int i = 0; i < ANE_LORAS; i++) ane_lora_free(p, &p->loras[i]);
    sg_free(p->blobs);
    sg_ane_range_free(&p->range);
    sg_ane_partition_free(&p->cut[0]);
    sg_ane_partition_free(&p->cut[1]);
    sg_free(p);
}

/* Checks the graph and its weights, cuts the graph twice (see sg_program.cut), and opens the cache. Nothing is compiled here.
 * NaN or infinity in a weight is refused, because the engine hides them in its results. */
static segue_status program_init(struct sg_unit *u, const struct sg_graph *g, const struct sg_weight_cache *keep,
                                 struct sg_program *p, segue_error *err)
{
    p->base = (struct sg_program_base){u->base.ops, u, g};
    SG_TRY(sg_graph_check(g, err));
    SG_TRY(sg_weights_finite(g, err));
    for (uint32_t i = 0; i < g->ops_n; i++) SG_TRY(u->base.ops->can(u, g, &g->ops[i], err));
    for (int i = 0; i < 2; i++) SG_TRY(sg_ane_partition_make(&p->cut[i], g, u->layers, i, err));
    uint32_t fault = sg_fault_op(&u->fault, g);
    for (int i = 0; i < 2 && fault < g->ops_n; i++) sg_ane_partition_set_fault(&p->cut[i], fault);
    if (u->head && g->vocab) SG_TRY(sg_ane_head_of(&p->head, g, &p->cut[0], err));
    if (u->by_weights) SG_TRY(sg_ane_range_make(&p->range, g, err));
    for (int i = 0; u->by_weights && i < 2; i++) sg_ane_partition_set_range(&p->cut[i], &p->range);
    p->blobs = sg_alloc((p->cut[0].parts_n + 1) * sizeof *p->blobs);
    p->cache_entries = sg_alloc((p->cut[0].parts_n + 1) * sizeof *p->cache_entries);
    if (!p->blobs || !p->cache_entries) return sg_no_memory("program of ane", 0, err);
    if (keep) SG_TRY(sg_ane_cache_open(&p->cache, keep->folder, keep->bytes_max, err));
    if (keep) SG_TRY(ane_sources_hash(p, keep, err));
    for (uint32_t i = 0; i <= p->cut[0].parts_n; i++) {
        snprintf(p->blobs[i].path, sizeof p->blobs[i].path, "weights/p%02u.bin", i);
        if (i == p->cut[0].parts_n) snprintf(p->blobs[i].path, sizeof p->blobs[i].path, "weights/head.bin");
        p->blobs[i].storage = u->storage;
        p->blobs[i].flush = u->profile.flush_products != 0;
    }
    return SEGUE_OK;
}

/* All programs or none: after a failure those that were made before are discarded. */
segue_status ane_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n,
                         const struct sg_weight_cache *keep, struct sg_program **programs, segue_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        programs[i] = sg_alloc(sizeof **programs);
        if (programs[i]) {
            programs[i]->base.unit = u;
            programs[i]->next = u->programs;
            u->programs = programs[i];
        }
        segue_status status = programs[i] ? program_init(u, graphs[i], keep, programs[i], err)
                                          : sg_no_memory("program of ane", sizeof **programs, err);
        if (status == SEGUE_OK) continue;
        for (i++; i; i--) {
            ane_discard(programs[i - 1]);
            programs[i - 1] = NULL;
        }
        return status;
    }
    return SEGUE_OK;
}

/* --- sets --- */

static void raise_to(uint64_t *a, uint64_t b)
{
    if (b > *a) *a = b;
}

/* Surface sizes of a loaded set: the maximum over all parts for each role. One surface of a role then fits every part. */
static segue_status set_measure(struct sg_program *p, struct ane_set *set, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    for (uint32_t i = 0; i < p->cut[0].parts_n; i++) {
        const struct sg_ane_port *ports[2];
        uint32_t n[2];
        SG_TRY(ops->ports(set->programs[i], 0, &ports[0], &n[0], &ports[1], &n[1], err));
        for (int side = 0; side < 2; side++)
            for (uint32_t k = 0; k < n[side]; k++) {
                enum sg_ane_role role = sg_ane_role_of(ports[side][k].name);
                uint64_t *const of[] = {[SG_ANE_X] = &set->border_bytes, [SG_ANE_INFO] = &set->info_bytes,
                                        [SG_ANE_STATE] = &set->state_bytes, [SG_ANE_LORA] = &set->lora_bytes};
                raise_to(of[role], ports[side][k].surface_bytes);
            }
    }
    return SEGUE_OK;
}

void ane_sets_drop(struct sg_program *p)
{
    for (int i = 0; i < ANE_SETS; i++) {
        set_free(p, p->sets[i]);
        p->sets[i] = NULL;
    }
}

/* Programs that the cache folder knows to be compiled load again without a compile. */
segue_status ane_restart(struct sg_unit *u, segue_error *err)
{
    if (!sg_ane_ops_of(u->device)->software)
        return sg_fail(err, SEGUE_ELIMIT, "compile: ane: the compile budget of this process is used up; restart the process");
    for (struct sg_program *p = u->programs; p; p = p->next) {
        ane_sets_drop(p);
        ane_head_drop(p);
    }
    return sg_npu_restart(u->device, err);
}

/* Loads all parts for one shape. When a budget of the engine runs out before the last part, all programs are unloaded, the
 * engine is restarted, and all parts are loaded once more; a second failure is final. The programs of this set are not yet in
 * p->sets, so they are unloaded here. */
static segue_status set_fill(struct sg_program *p, struct ane_set *set, segue_error *err)
{
    struct sg_ane_device *d = p->base.unit->device;
    set->programs = sg_alloc((p->cut[0].parts_n + 1) * sizeof *set->programs);
    set->layout_ops = sg_alloc((p->cut[0].parts_n + 1) * sizeof *set->layout_ops);
    if (!set->programs || !set->layout_ops) return sg_no_memory("programs of ane", 0, err);
    SG_TRY(sg_ane_info_make(&set->info, p->base.graph, &set->shape, err));
    for (uint32_t i = 0; i < p->cut[0].parts_n; i++) {
        segue_status status = ane_part_load(p, set, i, d, &set->programs[i], err);
        if (status == SEGUE_ELIMIT) {
            for (uint32_t k = 0; k < i; k++) sg_ane_ops_of(p->base.unit->device)->unload(set->programs[k]);
            memset(set->programs, 0, p->cut[0].parts_n * sizeof *set->programs);
            SG_TRY(ane_restart(p->base.unit, err));
            for (i = 0; i < p->cut[0].parts_n; i++) SG_TRY(ane_part_load(p, set, i, d, &set->programs[i], err));
            break;
        }
        SG_TRY(status);
    }
    return set_measure(p, set, err);
}

/* Replaces a surface by a zeroed one of `bytes`; NULL in *s: there was none. */
static segue_status surface_replace(struct sg_program *p, struct sg_ane_surface **s, uint64_t bytes, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    if (*s) ops->surface_free(*s);
    *s = NULL;
    return ops->surface_new(p->base.unit->device, bytes, s, err);
}

/* Grows the surfaces x and info of the program to the needs of this set; they never shrink. With a profile of equal sizes
 * (constraint 2: all inputs and all outputs of a program have equal surface sizes) all roles get the largest size. A new info
 * surface is empty, which info_keys 0 records. */
static segue_status grow_surfaces(struct sg_program *p, struct ane_set *set, segue_error *err)
{
    uint64_t x = set->border_bytes, info = set->info_bytes;
    if (p->base.unit->profile.equal_sizes) {
        raise_to(&x, info);
        raise_to(&x, set->state_bytes);
        raise_to(&x, set->lora_bytes);
        raise_to(&x, p->surface_bytes);
        info = set->state_bytes = set->lora_bytes = x;
    }
    if (x > p->surface_bytes) {
        for (int i = 0; i < 2; i++) SG_TRY(surface_replace(p, &p->x[i], x, err));
        p->surface_bytes = x;
    }
    if (info > p->info_bytes) {
        SG_TRY(surface_replace(p, &p->info, info, err));
        p->info_bytes = info;
        p->info_keys = 0;
    }
    return SEGUE_OK;
}

/* Entry of the least recently used set; NULL when none is loaded. */
static struct ane_set **lru_set(struct sg_program *p)
{
    struct ane_set **found = NULL;
    for (int i = 0; i < ANE_SETS; i++)
        if (p->sets[i] && (!found || p->sets[i]->used < (*found)->used)) found = &p->sets[i];
    return found;
}

/* A free entry of p->sets. Evicts the least recently used sets of this program while no entry is free, or while the device
 * would have more than ANE_LOADED_MAX programs loaded (constraint 6: an engine refuses to load beyond a number per process). */
static struct ane_set **free_set_entry(struct sg_program *p)
{
    struct sg_ane_device *d = p->base.unit->device;
    struct sg_ane_counters c;
    /* With no set left in this program the loop ends: other programs of the unit are not evicted. */
    for (;;) {
        struct ane_set **evicted = lru_set(p), **free_entry = NULL;
        for (int i = 0; i < ANE_SETS; i++)
            if (!p->sets[i]) free_entry = &p->sets[i];
        sg_ane_ops_of(d)->count(d, &c);
        if (free_entry && (!evicted || c.loaded + p->cut[0].parts_n <= ANE_LOADED_MAX)) return free_entry;
        set_free(p, *evicted);
        *evicted = NULL;
    }
}

/* A set that cannot be loaded is freed; the entry stays free. The surfaces are grown last, because the sizes of ports are known
 * only after a load. */
segue_status ane_set_of(struct sg_program *p, const struct sg_ane_shape *shape, int all_rows, struct ane_set **out,
                        segue_error *err)
{
    for (int i = 0; i < ANE_SETS; i++) {
        struct ane_set *s = p->sets[i];
        if (!s || s->all_rows != all_rows || s->shape.rows != shape->rows || s->shape.keys != shape->keys ||
            s->shape.rank != shape->rank)
            continue;
        s->used = ++p->uses;
        *out = s;
        return grow_surfaces(p, s, err);
    }
    struct ane_set *set = sg_alloc(sizeof *set), **at = free_set_entry(p);
    if (!set) return sg_no_memory("programs of ane", sizeof *set, err);
    set->shape = *shape;
    set->all_rows = all_rows;
    segue_status status = set_fill(p, set, err);
    if (status == SEGUE_OK) status = grow_surfaces(p, set, err);
    if (status != SEGUE_OK) {
        set_free(p, set);
        return status;
    }
    set->used = ++p->uses;
    *out = *at = set;
    return SEGUE_OK;
}
