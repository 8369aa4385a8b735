/* state_io.c: reads and writes slots of a state from the host. Rows are converted on the host when the requested storage
 * differs. Rows may be read while a run extends the state (layer_events.c). SPDX-License-Identifier: MIT */
#include "unit/cuda/state/state.h"
#include "unit/state_validate.h"

static segue_status slot_of(struct sg_state *s, uint32_t slot, enum sg_storage storage, const char *verb, struct cu_slot **out,
                            segue_error *err)
{
    if (slot >= s->slots_n)
        return sg_fail(err, SEGUE_EARG, "%s state: cuda: slot %u of %u; give a smaller one", verb, slot, s->slots_n);
    *out = &s->slots[slot];
    int known = cu_is_kv(*out) ? sg_slot_row_bytes(&(*out)->slot, storage) || !(*out)->row_bytes : storage == SG_F32;
    if (!known)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "%s state: cuda: slot %u in storage %d; take f32%s", verb, slot, (int)storage,
                       cu_is_kv(*out) ? ", f16, bf16 or q8" : "");
    return SEGUE_OK;
}

/* n rows from one storage to another on the host. */
static segue_status convert(const struct sg_slot *slot, const char *from, enum sg_storage a, char *to, enum sg_storage b,
                            uint64_t n, segue_error *err)
{
    size_t x = sg_slot_row_bytes(slot, a), y = sg_slot_row_bytes(slot, b);
    float *row = sg_alloc((size_t)slot->heads * slot->width * sizeof *row);
    if (!row) return sg_no_memory("a row of state", x, err);
    for (uint64_t r = 0; r < n; r++) {
        sg_slot_decode(slot, a, from + r * x, row);
        sg_slot_encode(slot, b, row, to + r * y);
    }
    sg_free(row);
    return SEGUE_OK;
}

static segue_status get_rows(struct sg_state *st, const struct cu_slot *s, uint64_t from, uint64_t to, enum sg_storage storage,
                             void *out, segue_error *err)
{
    size_t bytes = (size_t)(to - from) * s->row_bytes;
    cu_ptr at = s->memory + from * s->row_bytes;
    if (storage == st->storage) return bytes ? cu_copy_out(st->base.unit, out, at, bytes, err) : SEGUE_OK;
    char *own = sg_alloc(bytes);
    if (!own) return sg_no_memory("rows of state", bytes, err);
    segue_status status = bytes ? cu_copy_to_host(st->base.unit, own, at, bytes, err) : SEGUE_OK;
    if (status == SEGUE_OK) status = convert(&s->slot, own, st->storage, out, storage, to - from, err);
    sg_free(own);
    return status;
}

/* Of the fixed slots: what follows does not lie behind it. */
static int is_last_fixed(const struct sg_state *st, const struct cu_slot *s)
{
    return s->memory + (s->fixed_bytes + 255) / 256 * 256 == st->fixed + st->fixed_bytes;
}

segue_status cu_state_get(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage, void *out,
                          segue_error *err)
{
    struct cu_slot *s = NULL;
    SG_TRY(slot_of(st, slot, storage, "get", &s, err));
    uint64_t first, end;
    SG_TRY(cu_layer_event_wait(st, s, to, &first, &end, err));
    if (!cu_is_kv(s)) {
        SG_TRY(cu_copy_out(st->base.unit, out, s->memory, s->fixed_bytes, err));
        return is_last_fixed(st, s) ? cu_copies_flush(st->base.unit, err) : SEGUE_OK;
    }
    if (from > to || to > end || (from < to && from < first))
        return sg_fail(err, SEGUE_EARG,
                       "get state: cuda: slot %u: rows [%llu, %llu) of [%llu, %llu); ask for those that are held", slot,
                       (unsigned long long)from, (unsigned long long)to, (unsigned long long)first, (unsigned long long)end);
    return get_rows(st, s, from, to, storage, out, err);
}

/* Every slot has what a sequence of that many rows may ask for. */
static segue_status validate_coverage(struct sg_state *s, uint64_t rows, segue_error *err)
{
    SG_TRY(cu_copies_wait(s->base.unit, err));
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct cu_slot *slot = &s->slots[i];
        struct sg_slot_coverage held = {"cuda",    &slot->slot,    slot->first,
                                        slot->end, slot->has_data, sg_slot_first_needed(&slot->slot, rows)};
        SG_TRY(sg_slot_coverage(&held, rows, err));
    }
    cu_state_trim_marks(s, 0);
    cu_state_truncate(s, rows);
    return SEGUE_OK;
}

static segue_status put_rows(struct sg_state *st, struct cu_slot *s, uint64_t from, uint64_t to, enum sg_storage storage,
                             const void *in, segue_error *err)
{
    struct sg_unit *u = st->base.unit;
    if (s->first == s->end) s->first = s->end = from;
    if (from > to || from > s->end || to < s->first)
        return sg_fail(err, SEGUE_EARG, "put state: cuda: rows [%llu, %llu) beside [%llu, %llu); leave no gap",
                       (unsigned long long)from, (unsigned long long)to, (unsigned long long)s->first,
                       (unsigned long long)s->end);
    SG_TRY(cu_slot_grow(st, s, to, err));
    size_t bytes = (size_t)(to - from) * s->row_bytes;
    segue_status status = SEGUE_OK;
    if (storage == st->storage) {
        if (bytes) status = cu_copy_in(u, s->memory + from * s->row_bytes, in, bytes, err);
    } else {
        char *own = sg_alloc(bytes);
        status = own ? convert(&s->slot, in, storage, own, st->storage, to - from, err)
                     : sg_no_memory("rows of state", bytes, err);
        if (status == SEGUE_OK && bytes) status = cu_copy_to_gpu(u, s->memory + from * s->row_bytes, own, bytes, err);
        sg_free(own);
    }
    if (status != SEGUE_OK) return status;
    if (from < s->first) s->first = from;
    if (to > s->end) s->end = to;
    return SEGUE_OK;
}

segue_status cu_state_put(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage, const void *in,
                          segue_error *err)
{
    struct cu_slot *s = NULL;
    if (st->busy) return sg_fail(err, SEGUE_EARG, "put state: cuda: a run is using the state; wait for it");
    SG_TRY(cu_state_settle(st, err));
    if (slot == UINT32_MAX) return validate_coverage(st, to, err);
    SG_TRY(slot_of(st, slot, storage, "put", &s, err));
    if (cu_is_kv(s)) return put_rows(st, s, from, to, storage, in, err);
    SG_TRY(cu_copy_in(st->base.unit, s->memory, in, s->fixed_bytes, err));
    s->has_data = 1;
    return is_last_fixed(st, s) ? cu_copies_flush(st->base.unit, err) : SEGUE_OK;
}
