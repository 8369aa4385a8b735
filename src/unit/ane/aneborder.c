/* aneborder.c: rows of a run between host memory and the surfaces of the first and the last part, and the operations behind the
 * last part, on the host. See anerun.h.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/anerun.h"

/* --- rows to and from surfaces --- */

segue_status ane_run_value(struct sg_run *run, int32_t value, float **out)
{
    const struct sg_value *v = &run->host.g->values[value];
    size_t bytes;
    SG_TRY(sg_mul((size_t)v->width * sizeof(float), run->rows_n[v->wanted], &bytes, "rows of a run", run->host.err));
    if (!run->host.values[value]) run->host.values[value] = sg_alloc(bytes);
    *out = run->host.values[value];
    return *out ? SEGUE_OK : sg_no_memory("rows of a run", bytes, run->host.err);
}

/* Transposes fp32 rows [n][width] to fp16 channels [width][columns], multiplied by `scale`; columns from n on are zero.
 * EUNSUPPORTED: a value is infinite or NaN in fp16 (all exponent bits set): the engine would turn it into other values. */
static segue_status fp16_from_rows(const float *rows, uint32_t n, uint32_t width, uint32_t columns, float scale, uint16_t *out,
                              segue_error *err)
{
    for (uint32_t c = 0; c < width; c++, out += columns) {
        for (uint32_t t = 0; t < n; t++) {
            out[t] = sg_f16_of_f32(rows[(size_t)t * width + c] * scale);
            if ((out[t] & 0x7c00) == 0x7c00)
                return sg_fail(err, SEGUE_EUNSUPPORTED,
                               "run: ane: row %u, column %u: %g exceeds fp16; use another unit for this model", t, c,
                               (double)rows[(size_t)t * width + c]);
        }
        memset(out + n, 0, (columns - n) * sizeof *out);
    }
    return SEGUE_OK;
}

/* Transposes fp16 channels [width][columns] to fp32 rows [n][width], multiplied by `scale`. Returns how many are not finite.
 * `in` may begin at a later column. */
static uint64_t rows_from_fp16(const uint16_t *in, uint32_t n, uint32_t width, uint32_t columns, float scale, float *rows)
{
    uint64_t infinite = 0;
    for (uint32_t c = 0; c < width; c++, in += columns)
        for (uint32_t t = 0; t < n; t++) {
            infinite += (in[t] & 0x7c00) == 0x7c00;
            rows[(size_t)t * width + c] = sg_f32_of_f16(in[t]) * scale;
        }
    return infinite;
}

/* Results of the last part that are not finite: the only sign of an overflow on an engine that does not count. */
static segue_status results_check(struct sg_run *run, uint64_t infinite)
{
    const struct sg_unit *u = run->program->base.unit;
    if (!sg_ane_ops_of(u->device)->losses) run->overflows += infinite;
    if (!infinite || u->losses == ANE_LOSSES_COUNT) return SEGUE_OK;
    const char *remedy = run->program->on_helper ? "use another unit" : "use out_of_range=fp32, range=weights, or another unit";
    return sg_fail(run->host.err, SEGUE_EUNSUPPORTED, "run: ane: %llu results of a dispatch exceed fp16; %s",
                   (unsigned long long)infinite, remedy);
}

/* With a range plan, value v is stored divided by 2^shift[v], so that it
 * stays within fp16. The channels that pad an input are zeroed: a surface is reused, and its old contents could be NaN. */
segue_status ane_run_copy(struct sg_run *run, const int32_t *values, uint32_t values_n, uint32_t at, uint32_t n,
                          const struct sg_ane_shape *shape, uint32_t column, struct sg_ane_surface *s, int in)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(s);
    const struct sg_graph *g = run->host.g;
    segue_status status = SEGUE_OK;
    void *bytes;
    SG_TRY(ops->lock(s, in, &bytes, NULL, run->host.err));
    uint16_t *channels = bytes;
    for (uint32_t i = 0; i < values_n && status == SEGUE_OK; i++) {
        uint32_t width = g->values[values[i]].width;
        const int8_t *shift = run->program->range.value;
        float scale = shift ? ldexpf(1, shift[values[i]]) : 1, *rows;
        status = ane_run_value(run, values[i], &rows);
        if (status != SEGUE_OK) break;
        rows += (size_t)at * width;
        if (in)
            status = fp16_from_rows(rows, n, width, shape->columns, 1 / scale, channels, run->host.err);
        else
            status = results_check(run, rows_from_fp16(channels + column, n, width, shape->columns, scale, rows));
        channels += (size_t)width * shape->columns;
        run->host_bytes += 2ull * width * n;
    }
    uint16_t *end = (uint16_t *)bytes + (size_t)sg_ane_port_channels(g, values, values_n) * shape->columns;
    if (in && status == SEGUE_OK) memset(channels, 0, (size_t)(end - channels) * sizeof *channels);
    ops->unlock(s);
    return status;
}

segue_status ane_run_row_get(struct sg_run *run, uint32_t at, uint32_t column, const struct sg_ane_shape *shape,
                             struct sg_ane_surface *s)
{
    const struct sg_ane_part *last = ane_run_last(run);
    return ane_run_copy(run, last->out, last->out_n, at, 1, shape, column, s, 0);
}

segue_status ane_run_row_put(struct sg_run *run, uint32_t at, struct sg_ane_surface *s)
{
    const struct sg_ane_shape one = {.rows = 1, .columns = run->program->base.unit->columns};
    const struct sg_ane_part *last = ane_run_last(run);
    return ane_run_copy(run, last->out, last->out_n, at, 1, &one, 0, s, 1);
}

/* --- operations on the host --- */

/* SG_OP_ROWS: the wanted rows of all spans, packed, out[R][width]; or the last one of span `only`. */
static void select_rows(struct sg_run *run, const struct sg_op *op, int only, float *out)
{
    const struct sg_operand *x = &op->in[0];
    uint32_t stride = run->host.g->values[x->value].width, at = 0;
    for (uint32_t s = 0; s < run->common.batch.spans_n; at += run->common.spans[s++].rows) {
        const struct sg_span *span = &run->common.spans[s];
        if (only != ANE_ALL_SPANS && s != (uint32_t)only) continue;
        for (uint32_t i = only == ANE_ALL_SPANS ? 0 : span->wanted_n - 1; i < span->wanted_n; i++, out += x->width)
            memcpy(out, run->host.values[x->value] + (size_t)(at + span->wanted[i]) * stride + x->at, x->width * sizeof *out);
    }
}

/* Adds the adapters of the spans to the rows of a linear operation that select_rows selected. */
static segue_status add_adapters(struct sg_run *run, const struct sg_op *op, int only, float *out)
{
    if (only != ANE_ALL_SPANS) {
        struct sg_span span = run->common.spans[only];
        span.wanted_n = 1;
        return ane_host_lora(&run->host, op, &span, 0, out);
    }
    for (uint32_t s = 0, at = 0; s < run->common.batch.spans_n; at += run->common.spans[s++].wanted_n)
        SG_TRY(ane_host_lora(&run->host, op, &run->common.spans[s], at, out));
    return SEGUE_OK;
}

/* Operations after the last part, on wanted rows only: selection of the rows, final norm, output projection and its LoRA
 * adapters. A batch without wanted rows needs none of them. */
segue_status ane_run_behind(struct sg_run *run, int only)
{
    const struct sg_ane_partition *cut = &run->program->cut[run->all_rows];
    run->host.rows = only == ANE_ALL_SPANS ? run->rows_n[1] : 1;
    for (uint32_t i = 0; i < cut->behind_n && run->host.rows; i++) {
        const struct sg_op *op = &run->host.g->ops[cut->behind[i]];
        float *out;
        SG_TRY(ane_run_value(run, op->out, &out));
        if (op->code == SG_OP_ROWS)
            select_rows(run, op, only, out);
        else
            SG_TRY(ane_host_op(&run->host, op, out));
        SG_TRY(add_adapters(run, op, only, out));
    }
    return SEGUE_OK;
}
