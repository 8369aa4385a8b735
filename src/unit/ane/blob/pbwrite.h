/* pbwrite.h: writes protocol buffer messages, as far as a Core ML model needs them. Failures are recorded
 * in the buffer (sg_buf.failed), so callers test once at the end.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_PBWRITE_H
#define SG_UNIT_ANE_PBWRITE_H

#include "base/buf.h"

/* A varint without a tag, for packed repeated fields; and fields with a varint, bytes or a string. */
void sg_pb_varint(struct sg_buf *b, uint64_t v);
void sg_pb_number(struct sg_buf *b, uint32_t field, uint64_t v);
void sg_pb_bytes(struct sg_buf *b, uint32_t field, const void *bytes, size_t n);
void sg_pb_text(struct sg_buf *b, uint32_t field, const char *s);
/* A nested message: everything written between open and close is part of it. close takes what open
 * returned. The length is patched in afterwards as a varint of always five bytes, which readers accept; it
 * must be below 2^35. */
size_t sg_pb_open(struct sg_buf *b, uint32_t field);
void sg_pb_close(struct sg_buf *b, size_t opened);

#endif
