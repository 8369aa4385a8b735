/* buf.h: a growable byte buffer with an optional size limit, and the copy-out rule of the public
 * text functions.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_BUF_H
#define SG_BASE_BUF_H

#include "base/err.h"

/* Zero-initialise. data is NULL until the first reservation; after a successful add, data[len] is a
 * NUL byte that len does not count. A failed call sets `failed`, leaves data and len unchanged, and
 * makes all later adds fail with the same status, so that a writer can add many pieces and check
 * `failed` once at the end. */
struct sg_buf {
    char *data;              /* owned; freed by sg_buf_free */
    size_t len, cap;         /* bytes used and bytes allocated */
    size_t limit;            /* maximum of len; 0 = unlimited */
    segue_status failed;     /* SEGUE_OK, SEGUE_EMEMORY or SEGUE_ELIMIT: the first failure */
};
/* All return SEGUE_OK, EMEMORY or ELIMIT. */
segue_status sg_buf_add(struct sg_buf *buf, const void *bytes, size_t n);
segue_status sg_buf_puts(struct sg_buf *buf, const char *s);
segue_status sg_buf_printf(struct sg_buf *buf, const char *format, ...) SG_FORMAT(2, 3);
/* Make space for `more` bytes after len, plus the NUL; len does not change. */
segue_status sg_buf_reserve(struct sg_buf *buf, size_t more);
void sg_buf_free(struct sg_buf *buf);

/* Copy n bytes of s to the caller's text[cap] as segue.h specifies: *len (may be NULL) is always
 * set to n. OK: all bytes were copied, with a NUL if it fits. ELIMIT: cap < n, nothing was copied.
 * EARG: text is NULL although cap > 0. `what` names the value in the message. */
segue_status sg_text_out(const char *s, size_t n, char *text, size_t cap, size_t *len, const char *what,
                         segue_error *err);

#endif
