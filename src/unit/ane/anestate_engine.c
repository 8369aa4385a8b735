/* anestate_engine.c: a state on the engine. While runs follow each other the contents stay in surfaces: for each part with
 * slots the surface `now` that a dispatch reads, and the surface `next` that it writes. The host copy is updated on demand. A
 * failed dispatch has written `next` only, so the state is unchanged. See aneunit.h.
 *
 * Layout of a surface, in fp16 elements: the slots of the part one after the other; a channel has `keys` elements. K and V:
 * each of the `elems` elements of a row has a ring of `ring` entries, and position p uses entry p % ring. CONV and DELTA:
 * packed.
 * SPDX-License-Identifier: MIT */
#include "base/num.h"
#include "unit/ane/aneunit.h"

/* `synced` counts for a resident state only; it is set so that a later upload begins with a complete host copy. */
void ane_state_leave(struct sg_state *s)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(s->core.base.unit->device);
    for (uint32_t i = 0; i < s->parts_n; i++) {
        if (s->now[i]) ops->surface_free(s->now[i]);
        if (s->next[i]) ops->surface_free(s->next[i]);
    }
    sg_free(s->now);
    sg_free(s->next);
    s->now = s->next = NULL;
    s->parts_n = 0;
    s->synced = s->core.tokens;
}

/* --- copies between host and engine --- */

/* Index of element i of a slot in the surface; pos is ignored for CONV and DELTA. */
static size_t surface_index(const struct ane_slot *s, uint32_t keys, uint64_t pos, uint32_t i)
{
    size_t first = (size_t)s->channel * keys;
    return sg_slot_grows(&s->core.slot) ? first + (size_t)i * s->ring + pos % s->ring : first + i;
}

/* K and V from position `from` to the end of the sequence. The host has rows of positions, the surface has rings of elements. */
static void copy_rows(struct sg_state *st, const struct ane_slot *s, uint64_t from, int to_engine, uint16_t *surface)
{
    for (uint64_t pos = from; pos < st->core.tokens; pos++) {
        uint16_t *row = ane_row(s, pos);
        for (uint32_t i = 0; i < s->elems; i++) {
            uint16_t *a = &surface[surface_index(s, st->keys, pos, i)];
            if (to_engine)
                *a = row[i];
            else
                row[i] = *a;
        }
    }
    st->copied += 2ull * s->elems * (st->core.tokens > from ? st->core.tokens - from : 0);
}

/* A CONV or DELTA slot: fp32 on the host, fp16 on the engine. */
static void copy_fixed(struct sg_state *st, const struct ane_slot *s, int to_engine, uint16_t *surface)
{
    for (uint32_t i = 0; i < s->elems; i++) {
        uint16_t *a = &surface[surface_index(s, st->keys, 0, i)];
        if (to_engine)
            *a = sg_f16_of_f32(s->fixed[i]);
        else
            s->fixed[i] = sg_f32_of_f16(*a);
    }
    st->copied += 2ull * s->elems;
}

/* All slots of one part. To the host only positions from host_end on are copied; CONV and DELTA slots only if `fixed`. */
static segue_status copy_part(struct sg_state *st, uint32_t part, int fixed, int to_engine, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(st->core.base.unit->device);
    void *bytes;
    uint64_t n;
    if (!st->now[part]) return SEGUE_OK; /* the part has no slots */
    SG_TRY(ops->lock(st->now[part], to_engine, &bytes, &n, err));
    for (uint32_t k = 0; k < st->core.slots_n; k++) {
        struct ane_slot *s = ane_slot_at(st, k);
        if (s->part != part) continue;
        if (sg_slot_grows(&s->core.slot)) copy_rows(st, s, to_engine ? s->ring_first : s->host_end, to_engine, bytes);
        if (s->fixed && fixed) copy_fixed(st, s, to_engine, bytes);
    }
    ops->unlock(st->now[part]);
    return SEGUE_OK;
}

/* Positions from host_end to ring_first are lost when the ring has wrapped past the host copy. The host range then restarts at
 * the ring, since it must not have gaps. */
segue_status ane_state_sync(struct sg_state *s, segue_error *err)
{
    if (!s->parts_n || (s->synced == s->core.tokens && s->fixed_here)) return SEGUE_OK;
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct ane_slot *slot = ane_slot_at(s, i);
        if (!sg_slot_grows(&slot->core.slot)) continue;
        if (slot->host_end < slot->ring_first) {
            slot->core.first = slot->host_end = slot->ring_first;
            ane_rows_trim(slot);
        }
        SG_TRY(ane_rows_own(slot, slot->host_end, s->core.tokens, err));
    }
    /* Memory was reserved for all slots first, so that a failure leaves no slot half copied. */
    for (uint32_t i = 0; i < s->parts_n; i++) SG_TRY(copy_part(s, i, !s->fixed_here, 0, err));
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct ane_slot *slot = ane_slot_at(s, i);
        slot->host_end = sg_slot_grows(&slot->core.slot) ? s->core.tokens : 0;
        slot->core.present = 1;
    }
    s->synced = s->core.tokens;
    s->fixed_here = 1;
    return SEGUE_OK;
}

segue_status ane_state_download(struct sg_state *s, segue_error *err)
{
    SG_TRY(ane_state_sync(s, err));
    ane_state_leave(s);
    return SEGUE_OK;
}

/* --- becoming resident --- */

/* Two surfaces for each part with slots. parts_n counts those that ane_state_leave has to free after a failure. */
static segue_status make_surfaces(struct sg_state *s, const struct sg_ane_partition *cut, uint64_t bytes, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(s->core.base.unit->device);
    s->now = sg_alloc((cut->parts_n + 1) * sizeof *s->now);
    s->next = sg_alloc((cut->parts_n + 1) * sizeof *s->next);
    if (!s->now || !s->next) return sg_no_memory("ane state", 0, err);
    for (s->parts_n = 0; s->parts_n < cut->parts_n;) {
        uint32_t i = s->parts_n++;
        if (!cut->parts[i].slots_n) continue;
        SG_TRY(ops->surface_new(s->core.base.unit->device, bytes, &s->now[i], err));
        SG_TRY(ops->surface_new(s->core.base.unit->device, bytes, &s->next[i], err));
    }
    return SEGUE_OK;
}

/* Assigns part, first channel and ring to each slot. The ring receives the last positions that fit it and that the host has. */
static void set_layout(struct sg_state *s, const struct sg_ane_partition *cut, uint32_t keys)
{
    for (uint32_t i = 0; i < cut->parts_n; i++) {
        uint64_t channel = 0;
        for (uint32_t k = 0; k < cut->parts[i].slots_n; k++) {
            struct ane_slot *slot = ane_slot_at(s, cut->parts[i].slots[k]);
            slot->part = i;
            slot->channel = (uint32_t)channel;
            slot->ring = sg_ane_ring_columns(slot->core.slot.window, keys);
            slot->ring_first = s->core.tokens > slot->ring ? s->core.tokens - slot->ring : 0;
            if (slot->ring_first < slot->core.first) slot->ring_first = slot->core.first;
            channel += sg_ane_slot_channels(&slot->core.slot, keys);
        }
    }
    s->keys = keys;
}

/* Downloads first: another number of keys changes the layout of all surfaces. */
segue_status ane_state_upload(struct sg_state *s, struct sg_program *p, uint32_t keys, uint64_t bytes, segue_error *err)
{
    if (!s->core.slots_n || (s->parts_n && s->keys == keys && s->surface_bytes == bytes)) return SEGUE_OK;
    SG_TRY(ane_state_download(s, err));
    set_layout(s, &p->cut[0], keys);
    s->surface_bytes = bytes;
    segue_status status = make_surfaces(s, &p->cut[0], bytes, err);
    for (uint32_t i = 0; status == SEGUE_OK && i < s->parts_n; i++)
        if (s->now[i]) status = copy_part(s, i, 1, 1, err);
    if (status != SEGUE_OK) ane_state_leave(s);
    return status;
}

/* The lock orders the change with ane_state_get on another thread. */
void ane_state_advance(struct sg_state *s, uint32_t rows)
{
    struct sg_ane_surface **previous = s->now;
    pthread_mutex_lock(&s->core.lock);
    s->now = s->next;
    s->next = previous;
    s->core.tokens += rows;
    s->fixed_here = !s->parts_n;
    for (uint32_t i = 0; s->parts_n && i < s->core.slots_n; i++) {
        struct ane_slot *slot = ane_slot_at(s, i);
        if (!sg_slot_grows(&slot->core.slot)) continue;
        slot->core.end = s->core.tokens;
        if (s->core.tokens > slot->ring_first + slot->ring) slot->ring_first = s->core.tokens - slot->ring;
    }
    pthread_mutex_unlock(&s->core.lock);
}
