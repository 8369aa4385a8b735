/* blob.h: weight blob files, byte for byte: a header of 64 bytes, and for each blob a record of 64 bytes and
 * its data, both at multiples of 64. What MIL calls the offset of a blob is the place of its record. Little
 * endian; any bytes may be read. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_BLOB_H
#define SG_UNIT_ANE_BLOB_H

#include "base/buf.h"
#include "unit/ane/mil/mil.h"

struct sg_blob {
    enum sg_mil_dtype dtype;
    uint64_t record;        /* where its record stands: MIL's offset */
    uint64_t offset, bytes; /* of the data in the file */
    uint64_t padding_bits;  /* unused ones at the end of sub-byte types */
    const uint8_t *data;    /* in the file */
};

/* The blob whose record stands at `record` of a file of n bytes. EFORMAT, with the offset and both numbers:
 * no header, wrong version, unaligned, beyond the end, no sentinel, unknown type, data outside the file or on
 * top of its record. */
segue_status sg_blob_at(struct sg_blob *out, const uint8_t *file, size_t n, uint64_t record, const char *name,
                        segue_error *err);
/* Walk all blobs, *i from 0 to the header's count - 1, in file order; *record carries the place (start with
 * 0). SEGUE_END after the last. Also EFORMAT: fewer records than the header counts. */
segue_status sg_blob_next(struct sg_blob *out, const uint8_t *file, size_t n, uint32_t *i, uint64_t *record,
                          const char *name, segue_error *err);

/* Writing: begin, add each, and the file is whole after every add. *record: for MIL's offset. EMEMORY,
 * ELIMIT. */
segue_status sg_blob_begin(struct sg_buf *file, segue_error *err);
segue_status sg_blob_add(struct sg_buf *file, enum sg_mil_dtype d, const void *data, uint64_t bytes,
                         uint64_t padding_bits, uint64_t *record, segue_error *err);
/* The same without a file: *length (0 at the start) grows as the file would. */
void sg_blob_measure(uint64_t *length, uint64_t bytes, uint64_t *record);

#endif
