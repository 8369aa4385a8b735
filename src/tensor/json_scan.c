/* json_scan.c: see json_scan.h. Never reads beyond text[len].
 * SPDX-License-Identifier: MIT */
#include "tensor/json_scan.h"

#include <string.h>

/* Truncated and damaged files get different messages. */
segue_status sg_scan_fail(const struct sg_json_scan *s, const char *expected, segue_error *err)
{
    if (s->at >= s->len)
        return sg_fail(err, SEGUE_EFORMAT,
                       "read JSON: %s: it ends at byte %zu, expected %s; download it again", s->what,
                       s->base + s->len, expected);
    return sg_fail(err, SEGUE_EFORMAT,
                   "read JSON: %s: byte %zu is 0x%02x, expected %s; the file is damaged", s->what,
                   s->base + s->at, (unsigned char)s->text[s->at], expected);
}

char sg_scan_peek(struct sg_json_scan *s)
{
    for (; s->at < s->len; s->at++) {
        char c = s->text[s->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return c;
    }
    return 0;
}

segue_status sg_scan_char(struct sg_json_scan *s, char c, segue_error *err)
{
    char expected[] = {'\'', c, '\'', 0};
    if (sg_scan_peek(s) != c) return sg_scan_fail(s, expected, err);
    s->at++;
    return SEGUE_OK;
}

segue_status sg_scan_more(struct sg_json_scan *s, char end, int *first, int *more, segue_error *err)
{
    char c = sg_scan_peek(s);
    *more = c != end;
    if (c == end) s->at++;
    else if (!*first) SG_TRY(sg_scan_char(s, ',', err));
    *first = 0;
    return SEGUE_OK;
}

/* Consume four hexadecimal digits. */
static segue_status scan_hex(struct sg_json_scan *s, uint32_t *out, segue_error *err)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        char c = s->at < s->len ? s->text[s->at] : 0;
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return sg_scan_fail(s, "a hex digit", err);
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return SEGUE_OK;
}

/* Encode a code point as UTF-8 in out[4]; returns the number of bytes. For n = 2, 3, 4 bytes, 0xf00
 * >> n gives the marker bits of the lead byte: 0xc0, 0xe0, 0xf0. */
static size_t put_utf8(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 63));
    out[0] = (char)((0xf00u >> n & 0xf0u) | c);
    return n;
}

/* Decode one escape sequence, after the backslash: one code point of up to 4 bytes. \u escapes of
 * surrogates must come in pairs. */
static segue_status scan_escape(struct sg_json_scan *s, char out[4], size_t *n, segue_error *err)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = s->at < s->len ? s->text[s->at] : 0;
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        s->at++;
        out[0] = to[found - from];
        *n = 1;
        return SEGUE_OK;
    }
    if (c != 'u') return sg_scan_fail(s, "an escape", err);
    uint32_t high = 0, low = 0;
    s->at++;
    SG_TRY(scan_hex(s, &high, err));
    if (high >= 0xdc00 && high < 0xe000)
        return sg_scan_fail(s, "a high surrogate before this", err);
    if (high >= 0xd800 && high < 0xdc00) {
        if (s->len - s->at < 2 || s->text[s->at] != '\\' || s->text[s->at + 1] != 'u')
            return sg_scan_fail(s, "a low surrogate", err);
        s->at += 2;
        SG_TRY(scan_hex(s, &low, err));
        if (low < 0xdc00 || low >= 0xe000)
            return sg_scan_fail(s, "a low surrogate before this", err);
        high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    }
    *n = put_utf8(high, out);
    return SEGUE_OK;
}

/* The bytes are not checked to be UTF-8; sg_build_name does that for names. */
segue_status sg_scan_string(struct sg_json_scan *s, char *out, size_t cap, size_t *len, segue_error *err)
{
    size_t n = 0, k;
    SG_TRY(sg_scan_char(s, '"', err));
    for (;; n += k) {
        char piece[4];
        if (s->at >= s->len || (unsigned char)s->text[s->at] < 0x20)
            return sg_scan_fail(s, "the end of a string", err);
        piece[0] = s->text[s->at++];
        k = 1;
        if (piece[0] == '"') break;
        if (piece[0] == '\\') SG_TRY(scan_escape(s, piece, &k, err));
        if (n + k >= cap) return sg_scan_fail(s, "a string below the length limit", err);
        memcpy(out + n, piece, k);
    }
    out[n] = 0;
    *len = n;
    return SEGUE_OK;
}

/* Sizes and offsets are never negative or fractional, so other JSON numbers are refused. */
segue_status sg_scan_uint(struct sg_json_scan *s, uint64_t *out, segue_error *err)
{
    uint64_t v = 0;
    char c = sg_scan_peek(s);
    if (c < '0' || c > '9') return sg_scan_fail(s, "a non-negative integer", err);
    size_t start = s->at;
    for (; s->at < s->len && (c = s->text[s->at]) >= '0' && c <= '9'; s->at++) {
        if (v > (UINT64_MAX - (uint64_t)(c - '0')) / 10) return sg_scan_fail(s, "a number below 2^64", err);
        v = v * 10 + (uint64_t)(c - '0');
    }
    if (s->text[start] == '0' && s->at - start > 1)
        return sg_scan_fail(s, "a number without leading zeros before this", err);
    if (s->at < s->len && s->text[s->at] && strchr(".eE+-", s->text[s->at]))
        return sg_scan_fail(s, "a non-negative integer", err);
    *out = v;
    return SEGUE_OK;
}

/* Consume a string without decoding it. A backslash skips the next byte, whatever it is. */
static segue_status skip_string(struct sg_json_scan *s, segue_error *err)
{
    SG_TRY(sg_scan_char(s, '"', err));
    for (; s->at < s->len; s->at++) {
        char c = s->text[s->at];
        if ((unsigned char)c < 0x20) break;
        if (c == '"') {
            s->at++;
            return SEGUE_OK;
        }
        if (c == '\\') s->at++;
    }
    return sg_scan_fail(s, "the end of a string", err);
}

/* Iterative, with a stack of open brackets: the depth is bounded by the array and cannot overflow
 * the thread's stack. */
segue_status sg_scan_skip(struct sg_json_scan *s, segue_error *err)
{
    char open[32];
    int depth = 0, first = 1, more;
    for (;;) {
        char c = sg_scan_peek(s);
        if (c == '{' || c == '[') {
            if (depth == 32) return sg_scan_fail(s, "at most 32 nesting levels", err);
            open[depth++] = c;
            s->at++;
            first = 1;
        } else if (c == '"') {
            SG_TRY(skip_string(s, err));
        } else {
            size_t start = s->at;
            while (s->at < s->len && s->text[s->at] && strchr("+-.0123456789Eaeflnrstu", s->text[s->at]))
                s->at++;
            if (s->at == start) return sg_scan_fail(s, "a value", err);
        }
        for (more = 0; depth && !more;) {
            char end = open[depth - 1] == '{' ? '}' : ']';
            SG_TRY(sg_scan_more(s, end, &first, &more, err));
            if (!more) depth--;
        }
        if (!depth) return SEGUE_OK;
        if (open[depth - 1] == '{') {
            SG_TRY(skip_string(s, err));
            SG_TRY(sg_scan_char(s, ':', err));
        }
    }
}
