/* json.c: see json.h. The tables of jansson's objects have a random seed, which it takes from the system before the first object
 * is made. Does not set jansson's global allocation hooks: they belong to the host
 * program.
 * SPDX-License-Identifier: MIT */
#include "tensor/json.h"

#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

/* True if the digits[n] of an integer without sign exceed 64 bits with the sign. */
static int exceeds_64_bits(const char *digits, size_t n, int negative)
{
    uint64_t v = 0, limit = (uint64_t)INT64_MAX + (negative ? 1 : 0);
    for (size_t i = 0; i < n; i++) {
        uint64_t digit = (uint64_t)(digits[i] - '0');
        if (v > (limit - digit) / 10) return 1;
        v = v * 10 + digit;
    }
    return 0;
}

/* Number of bytes of the token at text[0]: a character pair after a backslash, a whole number without its sign, or one
 * character. *integer: it is a number without fraction and exponent. */
static size_t token_length(const char *text, size_t len, int in_string, int *integer)
{
    size_t n = 0;
    *integer = 0;
    if (in_string) return text[0] == '\\' && len > 1 ? 2 : 1;
    while (n < len && text[n] >= '0' && text[n] <= '9') n++;
    if (!n) return 1;
    *integer = n == len || !text[n] || !strchr(".eE", text[n]);
    while (!*integer && n < len && text[n] && strchr("0123456789.eE+-", text[n])) n++;
    return n;
}

/* Copy text[len] with ".0" appended to integers beyond 64 bits. jansson refuses them, but the default model_max_length of
 * transformers is 10^30; as reals they are accepted. */
static void long_integers_to_reals(struct sg_buf *out, const char *text, size_t len)
{
    int in_string = 0, integer;
    for (size_t i = 0, n; i < len; i += n) {
        n = token_length(text + i, len - i, in_string, &integer);
        if (text[i] == '"') in_string = !in_string;
        sg_buf_add(out, text + i, n);
        if (integer && exceeds_64_bits(text + i, n, i > 0 && text[i - 1] == '-')) sg_buf_puts(out, ".0");
    }
}

/* Parse, with a second attempt for a text that has integers beyond 64 bits. */
static segue_status parse(json_t **root, const char *text, size_t len, json_error_t *why)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    struct sg_buf copy = {0};
    *root = json_loadb(text, len, flags, why);
    if (*root || json_error_code(why) != json_error_numeric_overflow) return SEGUE_OK;
    long_integers_to_reals(&copy, text, len);
    segue_status s = copy.failed;
    if (s == SEGUE_OK) *root = json_loadb(copy.data, copy.len, flags, why);
    sg_buf_free(&copy);
    return s;
}

/* Brackets inside of strings do not count. A malformed text may be counted wrongly after the byte where jansson stops. */
int sg_json_too_deep(const char *text, size_t len)
{
    int depth = 0, quoted = 0;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (quoted) {
            i += c == '\\';
            quoted = c != '"';
        } else if (c == '"')
            quoted = 1;
        else if (c == '[' || c == '{') {
            if (++depth > SG_JSON_DEPTH) return 1;
        } else if (c == ']' || c == '}')
            depth--;
    }
    return 0;
}

segue_status sg_json_parse(json_t **out, const char *text, size_t len, const char *what, segue_error *err)
{
    json_error_t why;
    json_t *root;
    if (sg_json_too_deep(text, text ? len : 0))
        return sg_fail(err, SEGUE_EFORMAT, "parse JSON: %s: nested deeper than %d levels; the file is damaged, download it again",
                       what, SG_JSON_DEPTH);
    if (parse(&root, text ? text : "", len, &why) != SEGUE_OK) return sg_no_memory("JSON text", len, err);
    if (!root) {
        if (json_error_code(&why) == json_error_out_of_memory)
            return sg_fail(err, SEGUE_EMEMORY, "parse JSON: %s: out of memory at byte %d; free some memory and try again",
                           what, why.position);
        return sg_fail(err, SEGUE_EFORMAT, "parse JSON: %s: line %d, column %d: %s; the file is damaged, download it again",
                       what, why.line, why.column, why.text);
    }
    *out = root;
    return SEGUE_OK;
}

segue_status sg_json_read(json_t **out, const char *path, size_t limit, segue_error *err)
{
    struct sg_buf text = {0};
    segue_status s = sg_file_read(&text, path, limit, err);
    if (s == SEGUE_OK) s = sg_json_parse(out, text.data, text.len, path, err);
    sg_buf_free(&text);
    return s;
}

/* The type of a value, for error messages. */
static const char *kind_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_NULL:
        return "null";
    default:
        return "a boolean";
    }
}

/* Fails with EFORMAT: the member has the value v, but a value of type `wanted` was expected. */
static segue_status wrong_kind(const char *what, const char *key, const json_t *v, const char *wanted,
                               segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT,
                   "read JSON: %s: member \"%s\" is %s, expected %s; download the file again", what, key,
                   kind_name(v), wanted);
}

/* The member, or NULL when it is absent or null, which configuration files use interchangeably. */
static const json_t *member(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

segue_status sg_json_int(const json_t *o, const char *key, int64_t fallback, int64_t *out, const char *what,
                         segue_error *err)
{
    const json_t *v = member(o, key);
    if (!v) {
        *out = fallback;
    } else if (json_is_integer(v)) {
        *out = json_integer_value(v);
    } else {
        /* Some programs write integers as 1e6 or 32.0. Doubles above 2^53 no longer represent every
         * integer: refuse them. */
        double d = json_is_real(v) ? json_real_value(v) : 0.5;
        if (!(fabs(d) <= 9007199254740992.0) || d != floor(d))
            return wrong_kind(what, key, v, "an integer", err);
        *out = (int64_t)d;
    }
    return SEGUE_OK;
}

segue_status sg_json_real(const json_t *o, const char *key, double fallback, double *out, const char *what,
                          segue_error *err)
{
    const json_t *v = member(o, key);
    if (v && !json_is_number(v)) return wrong_kind(what, key, v, "a number", err);
    *out = v ? json_number_value(v) : fallback;
    return SEGUE_OK;
}

segue_status sg_json_bool(const json_t *o, const char *key, int fallback, int *out, const char *what,
                          segue_error *err)
{
    const json_t *v = member(o, key);
    if (v && !json_is_boolean(v)) return wrong_kind(what, key, v, "true or false", err);
    *out = v ? json_is_true(v) : fallback;
    return SEGUE_OK;
}

segue_status sg_json_text(const json_t *o, const char *key, const char *fallback, const char **out,
                          const char *what, segue_error *err)
{
    const json_t *v = member(o, key);
    if (v && !json_is_string(v)) return wrong_kind(what, key, v, "a string", err);
    *out = v ? json_string_value(v) : fallback;
    return SEGUE_OK;
}
