/* pbwrite.c: see pbwrite.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/blob/pbwrite.h"

#include <string.h>

enum { VARINT = 0, BYTES = 2, LENGTH_BYTES = 5 }; /* wire types; bytes reserved for the length of a message */

/* Seven bits per byte, least significant first; the high bit marks that more bytes follow. */
void sg_pb_varint(struct sg_buf *b, uint64_t v)
{
    uint8_t out[10];
    size_t n = 0;
    do {
        out[n] = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        n++;
        v >>= 7;
    } while (v);
    sg_buf_add(b, out, n);
}

/* The tag of a field: its number and wire type. */
static void put_tag(struct sg_buf *b, uint32_t field, uint32_t kind) { sg_pb_varint(b, (uint64_t)field << 3 | kind); }

void sg_pb_number(struct sg_buf *b, uint32_t field, uint64_t v)
{
    put_tag(b, field, VARINT);
    sg_pb_varint(b, v);
}

void sg_pb_bytes(struct sg_buf *b, uint32_t field, const void *bytes, size_t n)
{
    put_tag(b, field, BYTES);
    sg_pb_varint(b, n);
    sg_buf_add(b, bytes, n);
}

void sg_pb_text(struct sg_buf *b, uint32_t field, const char *s) { sg_pb_bytes(b, field, s, strlen(s)); }

size_t sg_pb_open(struct sg_buf *b, uint32_t field)
{
    static const uint8_t placeholder[LENGTH_BYTES];
    put_tag(b, field, BYTES);
    sg_buf_add(b, placeholder, sizeof placeholder);
    return b->len;
}

/* The continuation bit is set in the first four bytes even when the remaining bits are 0. */
void sg_pb_close(struct sg_buf *b, size_t opened)
{
    if (b->failed) return;
    uint64_t n = b->len - opened;
    uint8_t *at = (uint8_t *)b->data + opened - LENGTH_BYTES;
    for (int i = 0; i < LENGTH_BYTES; i++) at[i] = (uint8_t)((n >> (7 * i) & 0x7f) | (i < LENGTH_BYTES - 1 ? 0x80 : 0));
}
