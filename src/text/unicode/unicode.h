/* unicode.h: UTF-8, character classes and NFC, with the same results as the `tokenizers` library.
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
    SG_CHAR_DIGIT = 32, /* digits of the Digits splitter, from a newer Unicode version than NUMBER */
    SG_CHAR_UNSURE = 64 /* NFC may change it or combine it with the character before it */
};
/* SG_CHAR_* of a code point, combined. */
unsigned sg_char_class(uint32_t c);

/* Decode one step at s (n > 0 bytes): a character (*len bytes), a character that is cut off by the end (*len = n), or
 * invalid bytes (*len: as many as one U+FFFD replaces, by the rule of the WHATWG and of Rust). */
enum sg_utf8 { SG_UTF8_CHAR, SG_UTF8_CUT, SG_UTF8_BAD };
enum sg_utf8 sg_utf8_step(const char *s, size_t n, size_t *len);
/* Decode one character of valid UTF-8; returns its length. */
size_t sg_utf8_get(const char *s, uint32_t *c);
size_t sg_utf8_put(char out[4], uint32_t c);
/* Bytes of the character that ends just before s + at (valid UTF-8, at > 0). */
size_t sg_utf8_back(const char *s, size_t at);
/* Length of the longest valid prefix of s. */
size_t sg_utf8_valid(const char *s, size_t n);
/* Append s to out with U+FFFD for each invalid sequence. */
segue_status sg_utf8_repair(struct sg_buf *out, const char *s, size_t n);

/* 1: the valid UTF-8 text is in NFC; 0: it may not be, and sg_nfc must be run. */
int sg_nfc_sure(const char *s, size_t n);
/* Append NFC of the valid UTF-8 text s. EMEMORY, ELIMIT of the buffer. */
segue_status sg_nfc(struct sg_buf *out, const char *s, size_t n);

#endif
