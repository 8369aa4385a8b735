/* buf.h: a growing run of bytes with an upper bound.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_BUF_H
#define SG_BASE_BUF_H

#include "base/err.h"

/* Zero-initialise. data[len] is always a NUL once anything was added. A failed add sets `failed` and leaves the bytes
 * alone, so a writer may add many times and ask once. */
struct sg_buf {
    char *data;
    size_t len, cap;
    size_t limit;            /* bytes at most; 0 = no bound */
    segue_status failed;     /* SEGUE_OK, SEGUE_EMEMORY or SEGUE_ELIMIT: the first failure */
};
segue_status sg_buf_add(struct sg_buf *buf, const void *bytes, size_t n);
segue_status sg_buf_puts(struct sg_buf *buf, const char *s);
segue_status sg_buf_printf(struct sg_buf *buf, const char *format, ...) SG_FORMAT(2, 3);
segue_status sg_buf_reserve(struct sg_buf *buf, size_t more);   /* room for `more` bytes beyond len */
void sg_buf_free(struct sg_buf *buf);

/* Hand text out by the rule of segue.h: *len = n always; copy and OK when it fits, else ELIMIT. */
segue_status sg_text_out(const char *s, size_t n, char *text, size_t cap, size_t *len, const char *what,
                         segue_error *err);

#endif
