/* npu_port.c: the numbers of surfaces: rows with padding in the type of the port, to and from dense fp32. See npu_plan.h.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/npu/npu_plan.h"

/* Returns the elements of a row (the last dimension); *rows: the number of rows. A scalar is one row of
 * one element. */
static uint64_t row_elements(const struct sg_mil_type *t, uint64_t *rows)
{
    uint64_t width = t->rank ? (uint64_t)t->dim[t->rank - 1] : 1;
    *rows = sg_mil_elements(t) / width;
    return width;
}

/* Converts a surface to a dense fp32 value. A row of the surface begins at a multiple of row_bytes.
 * With nan_to_infinity a NaN at an input counts as +infinity. */
void sg_npu_read_port(struct sg_npu_run *r, const struct sg_ane_port *port, const uint8_t *bytes, uint32_t value)
{
    uint64_t rows, width = row_elements(&port->type, &rows);
    float *out = sg_npu_data(r, value);
    for (uint64_t i = 0; i < rows; i++, out += width) {
        const uint8_t *row = bytes + i * port->row_bytes;
        for (uint64_t k = 0; port->type.dtype != SG_MIL_FP16 && k < width; k++)
            out[k] = port->type.dtype == SG_MIL_FP32   ? sg_f32_of_bits(sg_le32(row + 4 * k))
                     : port->type.dtype == SG_MIL_INT8 ? (float)(int8_t)row[k]
                     : port->type.dtype == SG_MIL_BOOL ? (float)(row[k] != 0)
                                                       : (float)row[k];
        if (port->type.dtype == SG_MIL_FP16) r->k->widen((const uint16_t *)(const void *)row, out, width);
        for (uint64_t k = 0; r->profile->nan_to_infinity && k < width; k++)
            if (out[k] != out[k]) {
                out[k] = INFINITY;
                atomic_fetch_or_explicit(&r->flags, SG_NPU_MADE_NAN, memory_order_relaxed);
            }
    }
}

/* Writes a result to its surface. The padding is filled with fp16 NaN (0x7e00), so that a reader of
 * padding is detected. zeros 1: the symptom of an output that an engine does not write. */
void sg_npu_write_port(struct sg_npu_run *r, const struct sg_ane_port *port, uint8_t *bytes, uint64_t surface_bytes,
                       uint32_t value, int zeros)
{
    uint64_t rows, width = row_elements(&port->type, &rows);
    const float *in = sg_npu_data(r, value);
    /* All bytes first; the rows overwrite their part. */
    for (uint64_t i = 0; i + 1 < surface_bytes; i += 2) {
        bytes[i] = 0x00;
        bytes[i + 1] = 0x7e;
    }
    for (uint64_t i = 0; i < rows; i++, in += width) {
        uint8_t *row = bytes + i * port->row_bytes;
        uint32_t each = sg_mil_dtype_info((enum sg_mil_dtype)port->type.dtype)->bits / 8u;
        if (zeros)
            memset(row, 0, width * each);
        else if (port->type.dtype == SG_MIL_FP16)
            r->k->narrow(in, (uint16_t *)(void *)row, width);
        else if (port->type.dtype == SG_MIL_FP32)
            memcpy(row, in, width * sizeof *in);
        else
            /* Integers and bool: the low bytes of an int32, which is little-endian on all supported
             * machines. */
            for (uint64_t k = 0; k < width; k++)
                memcpy(row + each * k, &(int32_t){(int32_t)in[k]}, each < 4 ? each : 4);
    }
}
