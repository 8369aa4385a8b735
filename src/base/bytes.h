/* bytes.h: serialisation of little-endian integers, byte arrays and strings: appended to an sg_buf,
 * and read from untrusted bytes with bounds checks. A failed read sets `bad` and returns zero, as
 * do all reads after it, so that a parser can read many fields and check once with sg_reader_done.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_BYTES_H
#define SG_BASE_BYTES_H

#include <string.h>

#include "base/buf.h"
#include "base/num.h"

/* A cursor over bytes that the caller owns and that must outlive it. */
struct sg_reader {
    const uint8_t *at;       /* next unread byte; unaligned */
    size_t left;             /* unread bytes */
    uint32_t bad;            /* 1: a read exceeded the bytes left, or a string did not fit its destination */
};

/* A reader of the n bytes at `bytes`. */
static inline struct sg_reader sg_reader_of(const void *bytes, size_t n)
{
    return (struct sg_reader){(const uint8_t *)bytes, n, 0};
}

/* Consume n bytes. Returns a pointer into the input (unaligned), or NULL when fewer are left. */
static inline const void *sg_reader_bytes(struct sg_reader *r, size_t n)
{
    if (r->bad || n > r->left) {
        r->bad = 1;
        return NULL;
    }
    const uint8_t *p = r->at;
    r->at += n;
    r->left -= n;
    return p;
}

/* Consume an integer; 0 when too few bytes are left. */
static inline uint32_t sg_reader_u32(struct sg_reader *r)
{
    const void *p = sg_reader_bytes(r, 4);
    return p ? sg_le32(p) : 0;
}

static inline uint64_t sg_reader_u64(struct sg_reader *r)
{
    const void *p = sg_reader_bytes(r, 8);
    return p ? sg_le64(p) : 0;
}

/* Copy n items of `size` bytes to out. out is unchanged when they are not all available. */
static inline void sg_reader_array(struct sg_reader *r, void *out, size_t n, size_t size)
{
    if (size && n > SIZE_MAX / size) {
        r->bad = 1;
        return;
    }
    const void *p = sg_reader_bytes(r, n * size);
    if (p && n && size) memcpy(out, p, n * size);
}

/* Read a string (u32 length, then its bytes) into out[cap] and terminate it with NUL. A string of
 * cap bytes or more sets `bad` and gives "". */
static inline void sg_reader_text(struct sg_reader *r, char *out, size_t cap)
{
    uint32_t n = sg_reader_u32(r);
    const char *p = n < cap ? sg_reader_bytes(r, n) : NULL;
    if (!p) r->bad = 1;
    if (p) memcpy(out, p, n);
    out[p ? n : 0] = 0;
}

/* 1 when no read failed and all bytes were consumed: messages with trailing bytes are rejected. */
static inline int sg_reader_done(const struct sg_reader *r) { return !r->bad && !r->left; }

/* Writers. Errors are kept in b->failed. */
static inline void sg_put_u32(struct sg_buf *b, uint32_t x)
{
    const uint8_t bytes[4] = {(uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16), (uint8_t)(x >> 24)};
    sg_buf_add(b, bytes, sizeof bytes);
}

static inline void sg_put_u64(struct sg_buf *b, uint64_t x)
{
    sg_put_u32(b, (uint32_t)x);
    sg_put_u32(b, (uint32_t)(x >> 32));
}

/* u32 length and the bytes, without a NUL; the counterpart of sg_reader_text. */
static inline void sg_put_text(struct sg_buf *b, const char *s)
{
    size_t n = strlen(s);
    sg_put_u32(b, (uint32_t)n);
    sg_buf_add(b, s, n);
}

#endif
