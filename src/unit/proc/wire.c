/* wire.c: encoding of descriptions and statuses. Requests are encoded in proc_*.c and decoded in serve_*.c.
 * SPDX-License-Identifier: MIT */
#include "unit/proc/wire.h"

/* Texts, memory, then numbers; sg_wire_desc_take reads the same order. */
void sg_wire_desc_put(struct sg_buf *out, const struct sg_unit_desc *d)
{
    const segue_unit_info *i = &d->info;
    const char *const texts[] = {i->spec, i->kind, i->features, i->why, d->kernels};
    const uint32_t numbers[] = {i->built,    i->present,   i->simulated, d->lanes, d->rows_max,
                                d->samples, d->reference, d->streams,   d->half,  d->select_late, d->invariant,
                                d->kv,       d->fits_kv};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) sg_put_text(out, texts[k]);
    sg_put_u64(out, i->memory_bytes);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) sg_put_u32(out, numbers[k]);
}

segue_status sg_wire_desc_take(struct sg_reader *in, struct sg_unit_desc *out, segue_error *err)
{
    struct sg_unit_desc d = {.info.size = sizeof d.info};
    segue_unit_info *i = &d.info;
    sg_reader_text(in, i->spec, sizeof i->spec);
    sg_reader_text(in, i->kind, sizeof i->kind);
    sg_reader_text(in, i->features, sizeof i->features);
    sg_reader_text(in, i->why, sizeof i->why);
    sg_reader_text(in, d.kernels, sizeof d.kernels);
    i->memory_bytes = sg_reader_u64(in);
    uint32_t *const numbers[] = {&i->built,  &i->present,  &i->simulated, &d.lanes, &d.rows_max,
                                 &d.samples, &d.reference, &d.streams,    &d.half,  &d.select_late, &d.invariant,
                                 &d.kv,      &d.fits_kv};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) *numbers[k] = sg_reader_u32(in);
    if (in->bad || i->built > 1 || i->present > 1 || i->simulated > 1 || d.samples > 1 || d.reference > 1 ||
        d.streams > 1 || d.half > 2 || d.select_late > 1 || d.invariant > 2 || d.kv > SG_KV_NOT_Q8 ||
        d.fits_kv > 1)
        return sg_fail(err, SEGUE_EFORMAT, "message refused: the description of a unit is damaged");
    *out = d;
    return SEGUE_OK;
}

void sg_wire_status_put(struct sg_buf *out, segue_status status, const segue_error *why)
{
    sg_put_u32(out, (uint32_t)status);
    sg_put_text(out, status == SEGUE_OK ? "" : why->text);
}

/* Positive values and unknown errors are invalid. */
segue_status sg_wire_status_take(struct sg_reader *in, segue_status *status, segue_error *why)
{
    char text[sizeof why->text];
    int32_t remote = (int32_t)sg_reader_u32(in);
    sg_reader_text(in, text, sizeof text);
    if (in->bad || remote > SEGUE_OK || remote < SEGUE_EINTERNAL)
        return sg_fail(why, SEGUE_EFORMAT, "message refused: the reply has no status");
    *status = (segue_status)remote;
    if (remote) sg_fail(why, (segue_status)remote, "%s", text);
    return SEGUE_OK;
}

void sg_wire_counters(struct sg_result *r, uint64_t *out[SG_WIRE_COUNTERS])
{
    uint64_t *const list[] = {&r->ns,         &r->dispatches, &r->weight_bytes, &r->state_bytes,
                              &r->host_bytes, &r->helper_ns,  &r->columns,    &r->overflows,
                              &r->underflows, &r->layout_ops};
    for (int i = 0; i < SG_WIRE_COUNTERS; i++) out[i] = list[i];
}
