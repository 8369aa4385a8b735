/* aneprogram.c: programs of the unit `ane`: a graph is cut once; its parts are lowered, compiled and loaded for a
 * number of rows and keys when a run first wants them. A few such sets stay loaded, the one used longest ago goes.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>

#include <string.h>

#include "unit/ane/aneunit.h"
#include "unit/ane/npu/npu.h"
#include "unit/finite.h"

/* Unloads the programs of a set. */
static void set_free(struct sg_program *p, struct ane_set *set)
{
    if (!set) return;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    for (uint32_t i = 0; set->programs && i < p->cut[0].parts_n; i++)
        if (set->programs[i]) ops->unload(set->programs[i]);
    sg_free(set->programs);
    sg_ane_info_free(&set->info);
    sg_free(set);
}

/* Blobs may borrow cache entries, so they are freed before the entries are closed. */
void ane_discard(struct sg_program *p)
{
    if (!p) return;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    for (struct sg_program **at = &p->base.unit->first; *at; at = &(*at)->after)
        if (*at == p) {
            *at = p->after;
            break;
        }
    for (int i = 0; i < ANE_SETS; i++) set_free(p, p->sets[i]);
    for (uint32_t i = 0; p->blobs && i < p->cut[0].parts_n; i++) sg_ane_blobs_free(&p->blobs[i]);
    for (uint32_t i = 0; p->kept && i < p->cut[0].parts_n; i++) sg_ane_cache_entry_close(&p->kept[i]);
    sg_free(p->kept);
    sg_free(p->sources);
    sg_ane_cache_close(p->keep);
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

/* Checks the graph, cuts it twice (cut[1] writes outputs of all rows), and opens the cache.
 * Nothing is compiled here. */
static segue_status fill(struct sg_unit *u, const struct sg_graph *g, const struct sg_weight_cache *keep, struct sg_program *p,
                         segue_error *err)
{
    p->base = (struct sg_program_base){u->base.ops, u, g};
    SG_TRY(sg_graph_check(g, err));
    SG_TRY(sg_weights_finite(g, err));
    for (uint32_t i = 0; i < g->ops_n; i++) SG_TRY(u->base.ops->can(u, g, &g->ops[i], err));
    for (int i = 0; i < 2; i++) SG_TRY(sg_ane_partition_make(&p->cut[i], g, u->layers, i, err));
    if (u->by_weights) SG_TRY(sg_ane_range_make(&p->range, g, err));
    for (int i = 0; u->by_weights && i < 2; i++) sg_ane_partition_set_range(&p->cut[i], &p->range);
    p->blobs = sg_alloc((p->cut[0].parts_n + 1) * sizeof *p->blobs);
    p->kept = sg_alloc((p->cut[0].parts_n + 1) * sizeof *p->kept);
    if (!p->blobs || !p->kept) return sg_no_memory("program of ane", 0, err);
    if (keep) SG_TRY(sg_ane_cache_open(&p->keep, keep->folder, keep->most, err));
    if (keep) SG_TRY(ane_sources_hash(p, keep, err));
    for (uint32_t i = 0; i < p->cut[0].parts_n; i++)
        snprintf(p->blobs[i].path, sizeof p->blobs[i].path, "weights/p%02u.bin", i);
    return SEGUE_OK;
}

segue_status ane_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, const struct sg_weight_cache *keep,
                         struct sg_program **programs, segue_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        programs[i] = sg_alloc(sizeof **programs);
        if (programs[i]) {
            programs[i]->base.unit = u;
            programs[i]->after = u->first;
            u->first = programs[i];
        }
        segue_status status = programs[i] ? fill(u, graphs[i], keep, programs[i], err)
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

static void most(uint64_t *a, uint64_t b)
{
    if (b > *a) *a = b;
}

/* Largest surface size per role (border, info, state, adapters) over all parts of a set. */
static segue_status measure(struct sg_program *p, struct ane_set *set, segue_error *err)
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
                most(of[role], ports[side][k].surface_bytes);
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

/* Unloads the programs of all models of the unit and resets the budgets. Only the software engine
 * can do this in the same process. */
segue_status ane_restart(struct sg_unit *u, segue_error *err)
{
    if (!sg_ane_ops_of(u->device)->software)
        return sg_fail(err, SEGUE_ELIMIT, "compile: ane: the compiles of this process are spent; start it again");
    for (struct sg_program *p = u->first; p; p = p->after) ane_sets_drop(p);
    return sg_npu_restart(u->device, err);
}

/* Loads all parts for one shape. When a budget runs out on the way, everything is unloaded, the
 * engine is restarted, and all parts are loaded once more. */
static segue_status set_fill(struct sg_program *p, struct ane_set *set, segue_error *err)
{
    set->programs = sg_alloc((p->cut[0].parts_n + 1) * sizeof *set->programs);
    if (!set->programs) return sg_no_memory("programs of ane", 0, err);
    SG_TRY(sg_ane_info_make(&set->info, p->base.graph, &set->shape, err));
    for (uint32_t i = 0; i < p->cut[0].parts_n; i++) {
        segue_status status = ane_part_load(p, set, i, err);
        if (status == SEGUE_ELIMIT) { /* a budget is spent */
            for (uint32_t k = 0; k < i; k++) sg_ane_ops_of(p->base.unit->device)->unload(set->programs[k]);
            memset(set->programs, 0, p->cut[0].parts_n * sizeof *set->programs);
            SG_TRY(ane_restart(p->base.unit, err));
            for (i = 0; i < p->cut[0].parts_n; i++) SG_TRY(ane_part_load(p, set, i, err));
            break;
        }
        SG_TRY(status);
    }
    return measure(p, set, err);
}

static segue_status surface(struct sg_program *p, struct sg_ane_surface **s, uint64_t bytes, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    if (*s) ops->surface_free(*s);
    *s = NULL;
    return ops->surface_new(p->base.unit->device, bytes, s, err);
}

/* Grows the border and info surfaces of the program to the needs of this set. Where the profile
 * wants equal sizes (constraint 2), all of them get the largest. A new info surface invalidates
 * its cached contents (info_keys). */
static segue_status ready_surfaces(struct sg_program *p, struct ane_set *set, segue_error *err)
{
    uint64_t x = set->border_bytes, info = set->info_bytes;
    if (p->base.unit->profile.equal_sizes) {
        most(&x, info);
        most(&x, set->state_bytes);
        most(&x, set->lora_bytes);
        most(&x, p->surface_bytes);
        info = set->state_bytes = set->lora_bytes = x;
    }
    if (x > p->surface_bytes) {
        for (int i = 0; i < 2; i++) SG_TRY(surface(p, &p->x[i], x, err));
        p->surface_bytes = x;
    }
    if (info > p->info_bytes) {
        SG_TRY(surface(p, &p->info, info, err));
        p->info_bytes = info;
        p->info_keys = 0;
    }
    return SEGUE_OK;
}

/* The least recently used set; NULL when none is loaded. */
static struct ane_set **oldest(struct sg_program *p)
{
    struct ane_set **found = NULL;
    for (int i = 0; i < ANE_SETS; i++)
        if (p->sets[i] && (!found || p->sets[i]->used < (*found)->used)) found = &p->sets[i];
    return found;
}

/* A free entry of the set cache. Evicts the least recently used sets while the engine has too many
 * programs loaded (constraint 6) or no entry is free. */
static struct ane_set **place_of(struct sg_program *p)
{
    struct sg_ane_device *d = p->base.unit->device;
    struct sg_ane_counters c;
    for (;;) {
        struct ane_set **gone = oldest(p), **free_one = NULL;
        for (int i = 0; i < ANE_SETS; i++)
            if (!p->sets[i]) free_one = &p->sets[i];
        sg_ane_ops_of(d)->count(d, &c);
        if (free_one && (!gone || c.loaded + p->cut[0].parts_n <= ANE_LOADED_MAX)) return free_one;
        set_free(p, *gone);
        *gone = NULL;
    }
}

segue_status ane_set_of(struct sg_program *p, const struct sg_ane_shape *shape, int kept, struct ane_set **out,
                        segue_error *err)
{
    for (int i = 0; i < ANE_SETS; i++) {
        struct ane_set *s = p->sets[i];
        if (!s || s->shape.rows != shape->rows || s->shape.keys != shape->keys || s->shape.rank != shape->rank || s->kept != kept)
            continue;
        s->used = ++p->uses;
        *out = s;
        return ready_surfaces(p, s, err);
    }
    struct ane_set *set = sg_alloc(sizeof *set), **at = place_of(p);
    if (!set) return sg_no_memory("programs of ane", sizeof *set, err);
    set->shape = *shape;
    set->kept = kept;
    segue_status status = set_fill(p, set, err);
    if (status == SEGUE_OK) status = ready_surfaces(p, set, err);
    if (status != SEGUE_OK) {
        set_free(p, set);
        return status;
    }
    set->used = ++p->uses;
    *out = *at = set;
    return SEGUE_OK;
}
