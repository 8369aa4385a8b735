/* unicode.c: UTF-8 decoding, encoding and repair, and character classes from the generated ranges of unicode_tables.h.
 * Independent of the locale and of the C library's character functions.
 * SPDX-License-Identifier: MIT */
#include "text/unicode/unicode.h"

#include "text/unicode/unicode_tables.h"

/* Below U+0100 a direct table; above, a binary search in ranges (first code point << 8 | class). */
unsigned sg_char_class(uint32_t c)
{
    if (c < 256) return unicode_first[c];
    size_t low = 0, high = sizeof unicode_class / sizeof *unicode_class;
    /* invariant: range low starts at or before c, range high after it */
    while (high - low > 1) {
        size_t mid = (low + high) / 2;
        if (unicode_class[mid] >> 8 <= c)
            low = mid;
        else
            high = mid;
    }
    return unicode_class[low] & 255;
}

/* Rejects overlong forms, surrogates and values above U+10FFFF by the range of the second byte. */
enum sg_utf8 sg_utf8_step(const char *s, size_t n, size_t *len)
{
    const unsigned char *b = (const unsigned char *)s;
    *len = 1;
    if (b[0] < 0x80) return SG_UTF8_CHAR;
    /* length by the first byte; 0xc0, 0xc1 and 0xf5 to 0xff never occur in UTF-8 */
    size_t want = b[0] >= 0xc2 && b[0] < 0xe0   ? 2
                  : (b[0] & 0xf0) == 0xe0       ? 3
                  : b[0] >= 0xf0 && b[0] < 0xf5 ? 4
                                                : 0;
    if (!want) return SG_UTF8_BAD;
    unsigned low = b[0] == 0xe0 ? 0xa0 : b[0] == 0xf0 ? 0x90 : 0x80;
    unsigned high = b[0] == 0xed ? 0x9f : b[0] == 0xf4 ? 0x8f : 0xbf;
    for (size_t i = 1; i < want; i++) {
        /* an invalid byte is not part of the bad sequence: it may start the next character */
        *len = i;
        if (i == n) return SG_UTF8_CUT;
        if (b[i] < low || b[i] > high) return SG_UTF8_BAD;
        low = 0x80;
        high = 0xbf;
    }
    *len = want;
    return SG_UTF8_CHAR;
}

/* The text is known to be valid, so the first byte alone determines the length. */
size_t sg_utf8_get(const char *s, uint32_t *c)
{
    const unsigned char *b = (const unsigned char *)s;
    if (b[0] < 0x80) {
        *c = b[0];
        return 1;
    }
    if (b[0] < 0xe0) {
        *c = (b[0] & 31u) << 6 | (b[1] & 63u);
        return 2;
    }
    if (b[0] < 0xf0) {
        *c = (b[0] & 15u) << 12 | (b[1] & 63u) << 6 | (b[2] & 63u);
        return 3;
    }
    *c = (b[0] & 7u) << 18 | (b[1] & 63u) << 12 | (b[2] & 63u) << 6 | (b[3] & 63u);
    return 4;
}

/* c must be a code point other than a surrogate. */
size_t sg_utf8_put(char out[4], uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i; i--, c >>= 6) out[i] = (char)(0x80 | (c & 63));
    /* 0xf00 >> n gives the length bits: c0, e0, f0 for 2, 3, 4 bytes */
    out[0] = (char)((0xf00 >> n & 0xff) | c);
    return n;
}

/* Skips continuation bytes backwards. */
size_t sg_utf8_back(const char *s, size_t at)
{
    size_t n = 1;
    while (n < at && (s[at - n] & 0xc0) == 0x80) n++;
    return n;
}

/* ASCII bytes, the bulk of most texts, skip the decoder. */
size_t sg_utf8_valid(const char *s, size_t n)
{
    size_t at = 0, len;
    while (at < n) {
        if ((unsigned char)s[at] < 0x80) {
            at++;
            continue;
        }
        if (sg_utf8_step(s + at, n - at, &len) != SG_UTF8_CHAR) break;
        at += len;
    }
    return at;
}

/* Each maximal invalid sequence becomes one U+FFFD. */
segue_status sg_utf8_repair(struct sg_buf *out, const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        size_t good = sg_utf8_valid(s + at, n - at), len;
        SG_TRY(sg_buf_add(out, s + at, good));
        at += good;
        if (at == n) break;
        sg_utf8_step(s + at, n - at, &len);
        SG_TRY(sg_buf_add(out, "\xef\xbf\xbd", 3));
        at += len;
    }
    return out->failed;
}
