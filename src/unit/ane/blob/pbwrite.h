/* pbwrite.h: writing protocol buffer messages, as much as a Core ML model needs. Failure stays in the buffer
 * (sg_buf.failed). SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_PBWRITE_H
#define SG_UNIT_ANE_PBWRITE_H

#include "base/buf.h"

void sg_pb_varint(struct sg_buf *b, uint64_t v);
void sg_pb_number(struct sg_buf *b, uint32_t field, uint64_t v);
void sg_pb_bytes(struct sg_buf *b, uint32_t field, const void *bytes, size_t n);
void sg_pb_text(struct sg_buf *b, uint32_t field, const char *s);
/* A message inside: what is written between belongs to it. The length, below 2^35, takes five bytes, which readers
 * accept. */
size_t sg_pb_open(struct sg_buf *b, uint32_t field);
void sg_pb_close(struct sg_buf *b, size_t opened);

#endif
