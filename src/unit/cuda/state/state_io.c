/* state_io.c: reads and writes the slots of a state from the host. Rows are converted on the host when the requested storage
 * differs from the state's. Rows may be read while a run extends the state (layer_events.c). The checks of ranges and storages
 * are in unit/state_core.c. SPDX-License-Identifier: MIT */
#include "unit/cuda/state/state.h"

/* n rows from one storage to another, through fp32, on the host. */
static segue_status convert(const struct sg_slot *slot, const char *from, enum sg_storage a, char *to, enum sg_storage b,
                            uint64_t n, segue_error *err)
{
    size_t from_bytes = sg_slot_row_bytes(slot, a), to_bytes = sg_slot_row_bytes(slot, b);
    float *row = sg_alloc((size_t)slot->heads * slot->width * sizeof *row);
    if (!row) return sg_no_memory("a row of state", from_bytes, err);
    for (uint64_t r = 0; r < n; r++) sg_slot_convert(slot, a, from + r * from_bytes, b, to + r * to_bytes, row);
    sg_free(row);
    return SEGUE_OK;
}

/* Positions [from, to) of a K or V slot. In the state's own storage the copy may still be pending on return. */
static segue_status get_rows(struct sg_state *st, const struct cu_slot *s, uint64_t from, uint64_t to, enum sg_storage storage,
                             void *out, segue_error *err)
{
    struct sg_unit *u = st->core.base.unit;
    size_t bytes = (size_t)(to - from) * s->core.row_bytes;
    cu_ptr at = s->memory + from * s->core.row_bytes;
    if (storage == st->core.storage) return bytes ? cu_copy_out(u, out, at, bytes, err) : SEGUE_OK;
    char *rows = sg_alloc(bytes);
    if (!rows) return sg_no_memory("rows of state", bytes, err);
    segue_status status = bytes ? cu_copy_to_host(u, rows, at, bytes, err) : SEGUE_OK;
    if (status == SEGUE_OK) status = convert(&s->core.slot, rows, st->core.storage, out, storage, to - from, err);
    sg_free(rows);
    return status;
}

/* 1: no fixed slot follows in the block, so nothing will be merged into a pending copy of this one. */
static int is_last_fixed(const struct sg_state *st, const struct cu_slot *s)
{
    return s->memory + cu_fixed_stride(s) == st->fixed + st->block_bytes;
}

/* The core's lock is not held while copying: a run that advances the state would wait for the copy. */
segue_status cu_state_get(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage, void *out,
                          segue_error *err)
{
    struct sg_core_slot *core = NULL;
    uint64_t first, end;
    SG_TRY(sg_state_core_slot(&st->core, slot, storage, "get", &core, err));
    struct cu_slot *s = cu_slot_at(st, slot);
    SG_TRY(cu_layer_event_wait(st, s, to, &first, &end, err));
    if (!cu_is_kv(s)) {
        SG_TRY(cu_copy_out(st->core.base.unit, out, s->memory, s->core.fixed_bytes, err));
        return is_last_fixed(st, s) ? cu_copies_flush(st->core.base.unit, err) : SEGUE_OK;
    }
    SG_TRY(sg_state_core_check_get(&st->core, slot, from, to, first, end, err));
    return get_rows(st, s, from, to, storage, out, err);
}

/* Rows in another storage are converted into a temporary buffer, so their copy is complete on return. */
static segue_status write_rows(struct sg_state *st, struct cu_slot *s, uint64_t from, uint64_t to, enum sg_storage storage,
                               const void *in, segue_error *err)
{
    struct sg_unit *u = st->core.base.unit;
    size_t bytes = (size_t)(to - from) * s->core.row_bytes;
    SG_TRY(cu_slot_own(st, s, from, to, err));
    if (!bytes) return SEGUE_OK;
    cu_ptr at = s->memory + from * s->core.row_bytes;
    if (storage == st->core.storage) return cu_copy_in(u, at, in, bytes, err);
    char *rows = sg_alloc(bytes);
    if (!rows) return sg_no_memory("rows of state", bytes, err);
    segue_status status = convert(&s->core.slot, in, storage, rows, st->core.storage, to - from, err);
    if (status == SEGUE_OK) status = cu_copy_to_gpu(u, at, rows, bytes, err);
    sg_free(rows);
    return status;
}

/* The core has settled the state before. */
segue_status cu_state_write(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            const void *in, segue_error *err)
{
    struct cu_slot *s = cu_slot_at(st, slot);
    if (cu_is_kv(s)) return write_rows(st, s, from, to, storage, in, err);
    SG_TRY(cu_copy_in(st->core.base.unit, s->memory, in, s->core.fixed_bytes, err));
    return is_last_fixed(st, s) ? cu_copies_flush(st->core.base.unit, err) : SEGUE_OK;
}

/* Waits for all pending copies of the unit, not only those of this state. */
segue_status cu_state_flush(struct sg_state *s, segue_error *err) { return cu_copies_wait(s->core.base.unit, err); }
