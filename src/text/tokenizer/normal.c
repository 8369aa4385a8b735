/* normal.c: the normalizers of a tokenizer: NFC, a prefix, literal replacement, stripping. A step that changes nothing
 * copies nothing.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

/* Replace all occurrences of step->from, from left to right and without overlap. */
static segue_status replace(struct sg_buf *out, const struct sg_normalizer *step, const char *s, size_t n)
{
    size_t kept = 0;
    for (size_t at = 0; at + step->from_len <= n;) {
        /* only starts that leave space for the whole pattern */
        const char *hit = memchr(s + at, step->from[0], n - at - step->from_len + 1);
        if (!hit) break;
        at = (size_t)(hit - s);
        if (memcmp(hit, step->from, step->from_len) != 0) {
            at++;
            continue;
        }
        SG_TRY(sg_buf_add(out, s + kept, at - kept));
        SG_TRY(sg_buf_add(out, step->to, step->to_len));
        at += step->from_len;
        kept = at;
    }
    return sg_buf_add(out, s + kept, n - kept);
}

/* Remove whitespace at the ends; only *s and *n change. */
static void strip(const struct sg_normalizer *step, const char **s, size_t *n)
{
    uint32_t c;
    while (step->left && *n) {
        size_t len = sg_utf8_get(*s, &c);
        if (!(sg_char_class(c) & SG_CHAR_SPACE)) break;
        *s += len;
        *n -= len;
    }
    while (step->right && *n) {
        size_t len = sg_utf8_back(*s, *n);
        sg_utf8_get(*s + *n - len, &c);
        if (!(sg_char_class(c) & SG_CHAR_SPACE)) break;
        *n -= len;
    }
}

/* Run one step. 1: the whole result is in out; 0: *s and *n are the result. */
static int apply(const struct sg_normalizer *step, struct sg_buf *out, const char **s, size_t *n)
{
    switch (step->kind) {
    case SG_NORM_STRIP:
        strip(step, s, n);
        return 0;
    case SG_NORM_PREPEND:
        if (!*n) return 0;
        sg_buf_add(out, step->to, step->to_len);
        sg_buf_add(out, *s, *n);
        return 1;
    case SG_NORM_NFC:
        if (sg_nfc_sure(*s, *n)) return 0;
        if (sg_nfc(out, *s, *n) != SEGUE_OK && !out->failed) out->failed = SEGUE_EMEMORY;
        return 1;
    case SG_NORM_REPLACE:
        if (*n < step->from_len || !memchr(*s, step->from[0], *n)) return 0;
        replace(out, step, *s, *n);
        return 1;
    }
    return 0;
}

/* The two buffers alternate, since a step reads the result of the one before. */
segue_status sg_normalize(const struct sg_tokenizer *t, const char **text, size_t *len, struct sg_buf out[2],
                          segue_error *err)
{
    unsigned next = 0;
    for (uint32_t i = 0; i < t->norms_n; i++) {
        out[next].len = 0;
        if (!apply(&t->norms[i], &out[next], text, len)) continue;
        /* apply leaves errors in the buffer */
        if (out[next].failed) return sg_no_memory("text", *len, err);
        *text = out[next].data ? out[next].data : "";
        *len = out[next].len;
        next ^= 1;
    }
    return SEGUE_OK;
}
