/* blob.h: weight blob files (coremltools MILBlob storage format, version 2, little endian): a header of 64
 * bytes, then for each blob a metadata record of 64 bytes and its data, both aligned to 64. The `offset` of
 * a BLOBFILE in MIL is that of the metadata record, not of the data. Files may be hostile: every field is
 * checked before use.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_BLOB_H
#define SG_UNIT_ANE_BLOB_H

#include "base/buf.h"
#include "unit/ane/mil/mil.h"

/* A blob of a file in memory. */
struct sg_blob {
    enum sg_mil_dtype dtype;
    uint64_t record;        /* offset of the metadata record, as in MIL */
    uint64_t offset, bytes; /* of the data in the file */
    uint64_t padding_bits;  /* unused bits at the end of the data, for types below 8 bits */
    const uint8_t *data;    /* points into the file */
};

/* The blob whose record is at offset `record` of a file of n bytes. name: for messages. EFORMAT, with
 * offset and values: no header, wrong version, unaligned, beyond the end, no sentinel, unknown type, data
 * outside the file or overlapping the record. */
segue_status sg_blob_at(struct sg_blob *out, const uint8_t *file, size_t n, uint64_t record, const char *name,
                        segue_error *err);
/* Iterates over the blobs in file order; start with *i = 0 and *record = 0. SEGUE_END after the last one.
 * EFORMAT also when the file has fewer records than its header says. */
segue_status sg_blob_next(struct sg_blob *out, const uint8_t *file, size_t n, uint32_t *i, uint64_t *record,
                          const char *name, segue_error *err);

/* Writing: begin, then add each blob. The file is valid after every add. *record: offset to use in MIL.
 * EMEMORY, ELIMIT. */
segue_status sg_blob_begin(struct sg_buf *file, segue_error *err);
segue_status sg_blob_add(struct sg_buf *file, enum sg_mil_dtype d, const void *data, uint64_t bytes,
                         uint64_t padding_bits, uint64_t *record, segue_error *err);
/* Computes the offsets that sg_blob_add would give, without data. *length: of the file so far, 0 at the
 * start. */
void sg_blob_measure(uint64_t *length, uint64_t bytes, uint64_t *record);

#endif
