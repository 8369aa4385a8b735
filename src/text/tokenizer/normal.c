/* normal.c: the normalizers of a tokenizer: NFC, a prefix, literal replacement, stripping. A step that changes nothing
 * copies nothing.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

segue_status sg_text_spend(uint64_t *budget, uint64_t n, segue_error *err)
{
    if (n > *budget)
        return sg_fail(
            err, SEGUE_ELIMIT,
            "tokenize: the steps of the model's tokenizer make the text more than 64 times as long; use another model");
    *budget -= n;
    return SEGUE_OK;
}

/* Replace all occurrences of step->from, from left to right and without overlap. */
static segue_status replace(struct sg_buf *out, const struct sg_normalizer *step, const char *s, size_t n, uint64_t *budget,
                            segue_error *err)
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
        SG_TRY(sg_text_spend(budget, at - kept + step->to_len, err));
        sg_buf_add(out, s + kept, at - kept);
        if (sg_buf_add(out, step->to, step->to_len)) return sg_no_memory("text", n, err);
        at += step->from_len;
        kept = at;
    }
    SG_TRY(sg_text_spend(budget, n - kept, err));
    return sg_buf_add(out, s + kept, n - kept) ? sg_no_memory("text", n, err) : SEGUE_OK;
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

/* Run one step. *changed = 1: the whole result is in out; 0: *s and *n are the result. */
static segue_status apply(const struct sg_normalizer *step, struct sg_buf *out, const char **s, size_t *n, uint64_t *budget,
                          int *changed, segue_error *err)
{
    *changed = 0;
    switch (step->kind) {
    case SG_NORM_STRIP:
        strip(step, s, n);
        return SEGUE_OK;
    case SG_NORM_PREPEND:
        if (!*n) return SEGUE_OK;
        SG_TRY(sg_text_spend(budget, step->to_len + *n, err));
        sg_buf_add(out, step->to, step->to_len);
        sg_buf_add(out, *s, *n);
        break;
    case SG_NORM_NFC:
        if (sg_nfc_sure(*s, *n)) return SEGUE_OK;
        if (sg_nfc(out, *s, *n) != SEGUE_OK && !out->failed) out->failed = SEGUE_EMEMORY;
        SG_TRY(sg_text_spend(budget, out->len, err));
        break;
    case SG_NORM_REPLACE:
        if (*n < step->from_len || !memchr(*s, step->from[0], *n)) return SEGUE_OK;
        SG_TRY(replace(out, step, *s, *n, budget, err));
        break;
    }
    *changed = 1;
    return out->failed ? sg_no_memory("text", *n, err) : SEGUE_OK;
}

/* The two buffers alternate, since a step reads the result of the one before. */
segue_status sg_normalize(const struct sg_tokenizer *t, const char **text, size_t *len, struct sg_buf out[2],
                          uint64_t *budget, segue_error *err)
{
    unsigned next = 0;
    for (uint32_t i = 0; i < t->norms_n; i++) {
        int changed;
        out[next].len = 0;
        SG_TRY(apply(&t->norms[i], &out[next], text, len, budget, &changed, err));
        if (!changed) continue;
        *text = out[next].data ? out[next].data : "";
        *len = out[next].len;
        next ^= 1;
    }
    return SEGUE_OK;
}
