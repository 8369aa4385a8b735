/* buf.c: see buf.h.
 * SPDX-License-Identifier: MIT */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Grows by half, so that n appended bytes cost O(n) copies. The bounds of SIZE_MAX / 4 keep the
 * sums from overflowing. */
segue_status sg_buf_reserve(struct sg_buf *buf, size_t more)
{
    if (buf->failed) return buf->failed;
    if (more > SIZE_MAX / 4 || buf->len > SIZE_MAX / 4) return buf->failed = SEGUE_ELIMIT;
    size_t need = buf->len + more + 1;
    if (buf->limit && need > buf->limit + 1) return buf->failed = SEGUE_ELIMIT;
    if (need <= buf->cap) return SEGUE_OK;
    size_t cap = buf->cap + buf->cap / 2 + 64;
    if (cap < need) cap = need;
    char *data = sg_realloc(buf->data, cap);
    if (!data) return buf->failed = SEGUE_EMEMORY;
    buf->data = data;
    buf->cap = cap;
    return SEGUE_OK;
}

segue_status sg_buf_add(struct sg_buf *buf, const void *bytes, size_t n)
{
    SG_TRY(sg_buf_reserve(buf, n));
    if (n) memcpy(buf->data + buf->len, bytes, n);
    buf->len += n;
    buf->data[buf->len] = 0;
    return SEGUE_OK;
}

segue_status sg_buf_puts(struct sg_buf *buf, const char *s) { return sg_buf_add(buf, s, strlen(s)); }

/* Formats twice: once to measure, once into the buffer. */
segue_status sg_buf_printf(struct sg_buf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    segue_status s = n < 0 ? SEGUE_EINTERNAL : sg_buf_reserve(buf, (size_t)n);
    if (s == SEGUE_OK) {
        vsnprintf(buf->data + buf->len, (size_t)n + 1, format, again);
        buf->len += (size_t)n;
    }
    va_end(again);
    va_end(args);
    return s;
}

/* Resets all fields, also limit and failed. */
void sg_buf_free(struct sg_buf *buf)
{
    sg_free(buf->data);
    *buf = (struct sg_buf){0};
}

segue_status sg_text_out(const char *s, size_t n, char *text, size_t cap, size_t *len, const char *what,
                         segue_error *err)
{
    if (len) *len = n;
    if (!text && cap) return sg_fail(err, SEGUE_EARG, "%s: text is NULL but cap is not 0; pass a buffer or cap 0", what);
    if (n > cap)
        return sg_fail(err, SEGUE_ELIMIT, "%s: buffer too small: %zu bytes needed, %zu given; pass a larger one", what, n, cap);
    if (n) memcpy(text, s, n);
    if (n < cap) text[n] = 0;
    return SEGUE_OK;
}
