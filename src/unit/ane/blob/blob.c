/* blob.c: see blob.h. Header: u32 blob count, u32 version. Record: u32 sentinel, u32 data type code, u64
 * data bytes, u64 absolute data offset, u64 padding bits. All other bytes are 0.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/blob/blob.h"

#include <string.h>

#include "base/num.h"

enum { ALIGN = 64, HEADER = 64, RECORD = 64, VERSION = 2 };
static const uint32_t sentinel = 0xDEADBEEFu; /* first word of every record */

static uint64_t align64(uint64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* Checks size and version of a file. */
static segue_status check_header(const uint8_t *file, size_t n, const char *name, segue_error *err)
{
    if (n < HEADER)
        return sg_fail(err, SEGUE_EFORMAT,
                       "blob file: %.80s: %zu bytes, less than a header of %d; write it again", name, n,
                       HEADER);
    if (sg_le32(file + 4) != VERSION)
        return sg_fail(err, SEGUE_EFORMAT,
                       "blob file: %.80s: offset 4: version %u instead of %d; not a supported format", name,
                       sg_le32(file + 4), VERSION);
    return SEGUE_OK;
}

/* Subtractions instead of additions in the bounds: record, offset and size come from the file and could
 * overflow a sum. */
segue_status sg_blob_at(struct sg_blob *out, const uint8_t *file, size_t n, uint64_t record, const char *name,
                        segue_error *err)
{
    SG_TRY(check_header(file, n, name, err));
    unsigned long long at = record;
    if (record % ALIGN)
        return sg_fail(err, SEGUE_EFORMAT,
                       "blob file: %.80s: offset %llu: not a multiple of %d; give the offset of the metadata record",
                       name, at, ALIGN);
    if (record < HEADER || record > n || n - record < RECORD)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "blob file: %.80s: offset %llu: a record of %d bytes does not fit a file of %zu; give the offset of the "
            "metadata record, 64 for the first",
            name, at, RECORD, n);
    const uint8_t *r = file + record;
    if (sg_le32(r) != sentinel)
        return sg_fail(err, SEGUE_EFORMAT,
                       "blob file: %.80s: offset %llu: 0x%08x instead of the sentinel 0xdeadbeef; give the offset of the "
                       "metadata record, not of the data",
                       name, at, sg_le32(r));
    struct sg_blob b = {.dtype = sg_mil_dtype_from_blob(sg_le32(r + 4)),
                        .record = record,
                        .bytes = sg_le64(r + 8),
                        .offset = sg_le64(r + 16),
                        .padding_bits = sg_le64(r + 24)};
    if (b.dtype == SG_MIL_DTYPES)
        return sg_fail(err, SEGUE_EFORMAT, "blob file: %.80s: offset %llu: unknown data type code %u",
                       name, at + 4, sg_le32(r + 4));
    if (b.offset % ALIGN || b.offset < HEADER || b.offset > n || b.bytes > n - b.offset)
        return sg_fail(err, SEGUE_EFORMAT,
                       "blob file: %.80s: offset %llu: data of %llu bytes at %llu, in a file of %zu; "
                       "unaligned or outside of the file",
                       name, at + 8, (unsigned long long)b.bytes, (unsigned long long)b.offset, n);
    if (b.offset < record + RECORD && b.offset + b.bytes > record)
        return sg_fail(err, SEGUE_EFORMAT, "blob file: %.80s: offset %llu: the data overlap the record",
                       name, at + 16);
    if (b.padding_bits > 7)
        return sg_fail(err, SEGUE_EFORMAT, "blob file: %.80s: offset %llu: %llu padding bits; at most 7",
                       name, at + 24, (unsigned long long)b.padding_bits);
    b.data = file + b.offset;
    *out = b;
    return SEGUE_OK;
}

/* The next record follows the end of the data or of this record, whichever is later, so the iteration
 * always advances. */
segue_status sg_blob_next(struct sg_blob *out, const uint8_t *file, size_t n, uint32_t *i, uint64_t *record,
                          const char *name, segue_error *err)
{
    if (!*record) {
        SG_TRY(check_header(file, n, name, err));
        *record = HEADER;
    }
    if (*i >= sg_le32(file)) return SEGUE_END;
    SG_TRY(sg_blob_at(out, file, n, *record, name, err));
    uint64_t end = out->offset + out->bytes, record_end = *record + RECORD;
    *record = align64(end > record_end ? end : record_end);
    ++*i;
    return SEGUE_OK;
}

/* Store little endian, whatever the host's byte order. */
static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (8 * i));
}

static void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

/* Reports why writing to the buffer failed. */
static segue_status blob_failed(const struct sg_buf *file, segue_error *err)
{
    return sg_fail(err, file->failed, "blob file: writing: %s",
                   file->failed == SEGUE_ELIMIT ? "the file exceeds its limit; split the program"
                                                : "out of memory; free some memory");
}

segue_status sg_blob_begin(struct sg_buf *file, segue_error *err)
{
    uint8_t header[HEADER] = {0};
    put32(header + 4, VERSION);
    sg_buf_add(file, header, sizeof header);
    return file->failed ? blob_failed(file, err) : SEGUE_OK;
}

/* The count in the header is increased last, when everything else has been written. */
segue_status sg_blob_add(struct sg_buf *file, enum sg_mil_dtype d, const void *data, uint64_t bytes,
                         uint64_t padding_bits, uint64_t *record, segue_error *err)
{
    static const uint8_t zeros[ALIGN];
    uint8_t r[RECORD] = {0};
    uint64_t at = align64(file->len);
    if (at > file->len) sg_buf_add(file, zeros, (size_t)(at - file->len));
    put32(r, sentinel);
    put32(r + 4, sg_mil_dtype_info(d)->blob);
    put64(r + 8, bytes);
    put64(r + 16, at + RECORD);
    put64(r + 24, padding_bits);
    sg_buf_add(file, r, sizeof r);
    sg_buf_add(file, data, (size_t)bytes);
    if (file->failed) return blob_failed(file, err);
    uint8_t *count = (uint8_t *)file->data;
    put32(count, sg_le32(count) + 1);
    *record = at;
    return SEGUE_OK;
}

void sg_blob_measure(uint64_t *length, uint64_t bytes, uint64_t *record)
{
    *record = align64(*length ? *length : HEADER);
    *length = *record + RECORD + bytes;
}
