/* unicode.h: UTF-8, character classes and NFC, exactly as the `tokenizers` library has them.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_UNICODE_H
#define SG_TEXT_UNICODE_H

#include "base/buf.h"

enum {
    SG_CHAR_LETTER = 1,
    SG_CHAR_MARK = 2,
    SG_CHAR_NUMBER = 4,
    SG_CHAR_SPACE = 8,
    SG_CHAR_WORD = 16,  /* \w of whole-word added tokens */
    SG_CHAR_DIGIT = 32, /* what the Digits splitter takes: a newer Unicode version than NUMBER */
    SG_CHAR_UNSURE = 64 /* NFC may change it or join it with what stands before */
};
unsigned sg_char_class(uint32_t c);

/* What stands at s (n > 0 bytes): a character (*len bytes), the start of one that is cut off by the end (*len
 * = n), or bytes that cannot be one (*len: as many as one U+FFFD stands for, by the rule of the WHATWG and of
 * Rust). */
enum sg_utf8 { SG_UTF8_CHAR, SG_UTF8_CUT, SG_UTF8_BAD };
enum sg_utf8 sg_utf8_step(const char *s, size_t n, size_t *len);
/* Decode one character of valid UTF-8; returns its length. */
size_t sg_utf8_get(const char *s, uint32_t *c);
size_t sg_utf8_put(char out[4], uint32_t c);
/* Bytes of the character that ends just before s + at (valid UTF-8, at > 0). */
size_t sg_utf8_back(const char *s, size_t at);
/* Length of the longest valid start of s. */
size_t sg_utf8_valid(const char *s, size_t n);
/* Append s to out with U+FFFD for every piece that is not UTF-8. */
segue_status sg_utf8_repair(struct sg_buf *out, const char *s, size_t n);

/* 1: the valid UTF-8 text certainly is in NFC already. */
int sg_nfc_sure(const char *s, size_t n);
/* Append NFC of the valid UTF-8 text s. EMEMORY, ELIMIT of the buffer. */
segue_status sg_nfc(struct sg_buf *out, const char *s, size_t n);

#endif
