/* proc_share.c: weights shared with the child process. Weights are not sent: the child maps the model's files by descriptors
 * passed to it, so both processes read the same pages. Tensors in ordinary memory are copied once to shared memory. A region is
 * one such file or piece of memory, a location (struct sg_wire_loc) an offset in it. Both tables are kept, so that a restarted
 * child can receive everything again.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/file.h"
#include "unit/proc/proc.h"

enum { ALIGN = 64 };               /* bytes, of each copied part of a tensor */

/* --- regions --- */

/* The mapped file that contains these bytes and whose descriptor can be passed; NULL: ordinary memory. */
static const struct sg_map *map_of(const struct sg_tensor *t, const uint8_t *at, uint64_t bytes)
{
    for (uint32_t i = 0; i < t->maps_n; i++) {
        const struct sg_map *m = &t->maps[i];
        if (m->fd >= 0 && at >= m->data && at < m->data + m->size && bytes <= m->size - (size_t)(at - m->data)) return m;
    }
    return NULL;
}

/* Enters a region under the lowest free number. */
static segue_status region_new(struct sg_unit *u, struct proc_region fresh, uint32_t *id, segue_error *err)
{
    uint32_t i = 0;
    while (i < u->regions_n && u->regions[i].data) i++;
    if (i == SG_WIRE_REGIONS) return sg_fail(err, SEGUE_ELIMIT, "unit proc: %d mapped files is the limit; close some models", i);
    if (i == u->regions_n) {
        struct proc_region *wider = sg_realloc(u->regions, (i + 1) * sizeof *wider);
        if (!wider) return sg_no_memory("table", (i + 1) * sizeof *wider, err);
        u->regions = wider;
        u->regions_n = i + 1;
    }
    u->regions[i] = fresh;
    *id = i;
    return SEGUE_OK;
}

/* The region of a mapped file: an existing one, or a new one. */
static segue_status region_of_map(struct sg_unit *u, const struct sg_map *m, uint32_t *id, segue_error *err)
{
    for (uint32_t i = 0; i < u->regions_n; i++)
        if (u->regions[i].data == m->data && u->regions[i].size == m->size) {
            *id = i;
            return SEGUE_OK;
        }
    return region_new(u, (struct proc_region){.data = m->data, .size = m->size, .fd = m->fd, .own.fd = -1}, id, err);
}

/* Passes the descriptor to the child, once. */
static segue_status region_send(struct sg_unit *u, uint32_t id, segue_error *err)
{
    struct proc_region *r = &u->regions[id];
    struct sg_reader in;
    if (r->sent) return SEGUE_OK;
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    sg_put_u32(b, id);
    sg_put_u64(b, r->size);
    SG_TRY(proc_call(u, PROC_FIRST, SG_WIRE_REGION, r->fd, 0, &in, err));
    r->sent = 1;
    return SEGUE_OK;
}

/* Drops regions without tensors, here and in the child (unless it is lost). */
static void regions_drop_unused(struct sg_unit *u)
{
    for (uint32_t i = 0; i < u->regions_n; i++) {
        struct proc_region *r = &u->regions[i];
        struct sg_reader in;
        if (!r->data || r->users) continue;
        if (r->sent) {
            sg_put_u32(proc_request(u, PROC_FIRST), i);
            proc_call(u, PROC_FIRST, SG_WIRE_REGION_DROP, -1, 0, &in, NULL);
        }
        sg_shared_free(&r->own);
        *r = (struct proc_region){.own.fd = -1};
    }
}

/* --- tensors --- */

/* The arrays of a tensor. */
static const uint8_t *pointer_of(const struct sg_tensor *t, int spot)
{
    const void *const at[SG_LOCS] = {t->data, t->affine.scales, t->affine.biases, t->coded.order};
    return at[spot];
}

/* 1: the tensor was shared before and is unchanged; *id is its number. */
static int tensor_find(const struct sg_unit *u, const struct sg_tensor *t, uint32_t *id)
{
    for (uint32_t i = 0; i < u->tensors_n; i++)
        if (u->tensors[i].key == t && !memcmp(&u->tensors[i].tensor, t, sizeof *t)) {
            *id = i;
            return 1;
        }
    return 0;
}

/* Enters a tensor under the lowest free number, without locations. */
static segue_status tensor_new(struct sg_unit *u, const struct sg_tensor *t, uint32_t *id, segue_error *err)
{
    uint32_t i = 0;
    while (i < u->tensors_n && u->tensors[i].key) i++;
    if (i == SG_WIRE_TENSORS) return sg_fail(err, SEGUE_ELIMIT, "unit proc: %d tensors is the limit; close some models", i);
    if (i == u->tensors_n) {
        uint32_t want = i + i / 2 + 64;
        struct proc_tensor *wider = sg_realloc(u->tensors, want * sizeof *wider);
        if (!wider) return sg_no_memory("table", want * sizeof *wider, err);
        memset(wider + i, 0, (want - i) * sizeof *wider);
        u->tensors = wider;
        u->tensors_n = want;
    }
    struct proc_tensor *p = &u->tensors[i];
    *p = (struct proc_tensor){.key = t, .tensor = *t};
    for (int k = 0; k < SG_LOCS; k++) p->spots[k].region = UINT32_MAX;
    *id = i;
    return SEGUE_OK;
}

/* Locations of the arrays that are in mapped files. *unmapped grows by the aligned bytes of the others. */
static segue_status locate_in_files(struct sg_unit *u, struct proc_tensor *p, uint64_t *unmapped, segue_error *err)
{
    uint64_t bytes[SG_LOCS];
    sg_tensor_extent(&p->tensor, bytes);
    for (int k = 0; k < SG_LOCS; k++) {
        const uint8_t *at = pointer_of(&p->tensor, k);
        if (!bytes[k]) continue;
        const struct sg_map *m = map_of(&p->tensor, at, bytes[k]);
        if (!m) {
            *unmapped += (bytes[k] + ALIGN - 1) / ALIGN * ALIGN;
            continue;
        }
        SG_TRY(region_of_map(u, m, &p->spots[k].region, err));
        p->spots[k].at = (uint64_t)(at - m->data);
        u->regions[p->spots[k].region].users++;
    }
    return SEGUE_OK;
}

/* Copies the arrays of new tensors that are in no file to one new region. */
static segue_status copy_unmapped(struct sg_unit *u, const uint32_t *ids, uint32_t n, uint64_t unmapped, segue_error *err)
{
    struct proc_region r = {.own.fd = -1};
    uint32_t region;
    uint64_t at = 0;
    if (!unmapped) return SEGUE_OK;
    SG_TRY(sg_shared_new(&r.own, (size_t)unmapped, err));
    r.data = r.own.data;
    r.size = r.own.size;
    r.fd = r.own.fd;
    segue_status status = region_new(u, r, &region, err);
    if (status != SEGUE_OK) {
        sg_shared_free(&r.own);
        return status;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct proc_tensor *p = &u->tensors[ids[i]];
        uint64_t bytes[SG_LOCS];
        sg_tensor_extent(&p->tensor, bytes);
        for (int k = 0; k < SG_LOCS; k++) {
            if (!bytes[k] || p->spots[k].region != UINT32_MAX) continue;
            memcpy(r.own.data + at, pointer_of(&p->tensor, k), (size_t)bytes[k]);
            p->spots[k] = (struct sg_wire_loc){region, at};
            u->regions[region].users++;
            at += (bytes[k] + ALIGN - 1) / ALIGN * ALIGN;
        }
    }
    return SEGUE_OK;
}

/* Frees the number; its regions lose a user. */
static void tensor_forget(struct sg_unit *u, uint32_t id)
{
    struct proc_tensor *p = &u->tensors[id];
    for (int k = 0; k < SG_LOCS; k++)
        if (p->spots[k].region != UINT32_MAX) u->regions[p->spots[k].region].users--;
    *p = (struct proc_tensor){0};
}

/* Also sends the regions: a tensor definition refers to them. */
segue_status proc_tensors_place(struct sg_unit *u, const struct sg_graph *g, uint32_t *ids, segue_error *err)
{
    uint32_t *fresh = sg_alloc(g->tensors_n * sizeof *fresh), fresh_n = 0;
    uint64_t unmapped = 0;
    segue_status status = fresh ? SEGUE_OK : sg_no_memory("table", g->tensors_n * sizeof *fresh, err);
    for (uint32_t i = 0; i < g->tensors_n && status == SEGUE_OK; i++) {
        if (tensor_find(u, g->tensors[i], &ids[i])) continue;
        status = tensor_new(u, g->tensors[i], &ids[i], err);
        if (status == SEGUE_OK) fresh[fresh_n++] = ids[i];
        if (status == SEGUE_OK) status = locate_in_files(u, &u->tensors[ids[i]], &unmapped, err);
    }
    if (status == SEGUE_OK) status = copy_unmapped(u, fresh, fresh_n, unmapped, err);
    for (uint32_t i = 0; i < u->regions_n && status == SEGUE_OK; i++)
        if (u->regions[i].data) status = region_send(u, i, err);
    while (status != SEGUE_OK && fresh_n) tensor_forget(u, fresh[--fresh_n]);
    sg_free(fresh);
    return status;
}

/* A tensor is in use while a program reads it. */
void proc_tensors_drop_unused(struct sg_unit *u)
{
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    struct sg_reader in;
    uint32_t n = 0;
    for (uint32_t i = 0; i < u->tensors_n; i++) n += u->tensors[i].key && !u->tensors[i].users && u->tensors[i].sent;
    sg_put_u32(b, n);
    for (uint32_t i = 0; i < u->tensors_n; i++) {
        if (!u->tensors[i].key || u->tensors[i].users) continue;
        if (u->tensors[i].sent) sg_put_u32(b, i);
        tensor_forget(u, i);
    }
    if (n) proc_call(u, PROC_FIRST, SG_WIRE_TENSOR_DROP, -1, 0, &in, NULL);
    regions_drop_unused(u);
}

void proc_tensors_write(struct sg_unit *u, struct sg_buf *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < u->tensors_n; i++) n += u->tensors[i].key && !u->tensors[i].sent;
    sg_put_u32(b, n);
    for (uint32_t i = 0; i < u->tensors_n; i++) {
        const struct proc_tensor *p = &u->tensors[i];
        if (!p->key || p->sent) continue;
        sg_put_u32(b, i);
        sg_wire_tensor_write(b, &p->tensor, p->spots);
    }
}

void proc_tensors_mark_sent(struct sg_unit *u)
{
    for (uint32_t i = 0; i < u->tensors_n; i++)
        if (u->tensors[i].key) u->tensors[i].sent = 1;
}

/* After a restart: the new child has nothing. */
segue_status proc_regions_share_again(struct sg_unit *u, segue_error *err)
{
    for (uint32_t i = 0; i < u->regions_n; i++) u->regions[i].sent = 0;
    for (uint32_t i = 0; i < u->tensors_n; i++) u->tensors[i].sent = 0;
    for (uint32_t i = 0; i < u->regions_n; i++)
        if (u->regions[i].data) SG_TRY(region_send(u, i, err));
    return SEGUE_OK;
}

void proc_share_free(struct sg_unit *u)
{
    for (uint32_t i = 0; i < u->regions_n; i++) sg_shared_free(&u->regions[i].own);
    sg_free(u->regions);
    sg_free(u->tensors);
}
