/* bytes.h: little-endian numbers in a run of bytes: written behind each other into a buffer, taken off the front of
 * bytes that nobody vouches for. A reader that ran out says so once, at the end: what it gave is zero from there on.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_BYTES_H
#define SG_BASE_BYTES_H

#include <string.h>

#include "base/buf.h"
#include "base/num.h"

struct sg_reader {
    const uint8_t *at;
    size_t left;
    uint32_t bad;            /* 1: more was asked for than there was */
};

static inline struct sg_reader sg_reader_of(const void *bytes, size_t n)
{
    return (struct sg_reader){(const uint8_t *)bytes, n, 0};
}

/* n bytes where they lie (unaligned), or NULL. */
static inline const void *sg_take(struct sg_reader *r, size_t n)
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

static inline uint32_t sg_take_u32(struct sg_reader *r)
{
    const void *p = sg_take(r, 4);
    return p ? sg_le32(p) : 0;
}

static inline uint64_t sg_take_u64(struct sg_reader *r)
{
    const void *p = sg_take(r, 8);
    return p ? sg_le64(p) : 0;
}

/* n items of `size` bytes copied to out; out is left alone when they are not all there. */
static inline void sg_take_into(struct sg_reader *r, void *out, size_t n, size_t size)
{
    if (size && n > SIZE_MAX / size) {
        r->bad = 1;
        return;
    }
    const void *p = sg_take(r, n * size);
    if (p && n && size) memcpy(out, p, n * size);
}

/* A text of at most cap - 1 bytes, NUL-terminated; longer ones are bad. */
static inline void sg_take_text(struct sg_reader *r, char *out, size_t cap)
{
    uint32_t n = sg_take_u32(r);
    const char *p = n < cap ? sg_take(r, n) : NULL;
    if (!p) r->bad = 1;
    if (p) memcpy(out, p, n);
    out[p ? n : 0] = 0;
}

/* 1: everything was there and nothing is left over. */
static inline int sg_reader_done(const struct sg_reader *r) { return !r->bad && !r->left; }

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

static inline void sg_put_text(struct sg_buf *b, const char *s)
{
    size_t n = strlen(s);
    sg_put_u32(b, (uint32_t)n);
    sg_buf_add(b, s, n);
}

#endif
