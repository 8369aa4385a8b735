/* spec.c: see spec.h. Which keys are valid is up to the unit (sg_spec_only).
 * SPDX-License-Identifier: MIT */
#include "unit/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* EARG at byte `at` of the text. */
static segue_status syntax_error(const char *text, size_t at, const char *why, segue_error *err)
{
    return sg_fail(err, SEGUE_EARG,
                   "unit not opened: '%.80s': at character %zu: %s; write KIND or KIND:key=value,...", text,
                   at + 1, why);
}

/* n bytes of lower case letters, digits and '_': a kind or a key. */
static int is_word(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '_')) return 0;
    return n > 0;
}

/* One part of n bytes at `at`: key=value, or a value alone. */
static segue_status parse_pair(struct sg_unit_spec *out, const char *text, size_t at, size_t n,
                               segue_error *err)
{
    const char *part = text + at, *equals = memchr(part, '=', n);
    size_t key_n = equals ? (size_t)(equals - part) : 0, from = equals ? key_n + 1 : 0;
    if (n == 0) return syntax_error(text, at, "a key is missing", err);
    if (equals && !is_word(part, key_n))
        return syntax_error(text, at, "a key is lower case letters, digits and _", err);
    if (from == n) return syntax_error(text, at + n, "a value is missing", err);
    if (out->pairs_n == sizeof out->pairs / sizeof out->pairs[0]) return syntax_error(text, at, "too many keys", err);
    if (key_n >= sizeof out->pairs[0].key) return syntax_error(text, at, "the key is too long", err);
    if (n - from >= sizeof out->pairs[0].value) return syntax_error(text, at + from, "the value is too long", err);
    for (uint32_t i = 0; i < out->pairs_n; i++)
        if (strlen(out->pairs[i].key) == key_n && memcmp(out->pairs[i].key, part, key_n) == 0)
            return syntax_error(text, at, "the key is given twice", err);
    memcpy(out->pairs[out->pairs_n].key, part, key_n);
    memcpy(out->pairs[out->pairs_n].value, part + from, n - from);
    out->pairs_n++;
    return SEGUE_OK;
}

/* KIND:SPEC: the rest of the text is one value. It fits, since both arrays have the size of the text. */
static segue_status parse_nested(struct sg_unit_spec *out, const char *text, size_t at, size_t n, segue_error *err)
{
    if (out->pairs_n) return syntax_error(text, at, "a nested unit must be the only part", err);
    memcpy(out->pairs[0].value, text + at, n); /* n < sizeof text */
    out->pairs_n = 1;
    return SEGUE_OK;
}

/* Writes *out only when the whole text is valid. */
segue_status sg_spec_parse(struct sg_unit_spec *out, const char *text, segue_error *err)
{
    struct sg_unit_spec spec = {0};
    size_t n = strlen(text), kind_n = strcspn(text, ":");
    if (n >= sizeof spec.text) return syntax_error(text, sizeof spec.text - 1, "the spec is too long", err);
    if (!is_word(text, kind_n)) return syntax_error(text, 0, "a kind is lower case letters, digits and _", err);
    if (kind_n >= sizeof spec.kind) return syntax_error(text, 0, "the kind is too long", err);
    memcpy(spec.text, text, n);
    memcpy(spec.kind, text, kind_n);
    for (size_t at = kind_n + 1; kind_n < n && at <= n;) {
        size_t word = strcspn(text + at, ":=,"), nested = text[at + word] == ':';
        size_t part_n = strcspn(text + at, ",");
        if (nested) {
            SG_TRY(parse_nested(&spec, text, at, n - at, err));
            break;
        }
        SG_TRY(parse_pair(&spec, text, at, part_n, err));
        at += part_n + 1;
    }
    *out = spec;
    return SEGUE_OK;
}

const char *sg_spec_value(const struct sg_unit_spec *s, const char *key)
{
    for (uint32_t i = 0; i < s->pairs_n; i++)
        if (strcmp(s->pairs[i].key, key) == 0) return s->pairs[i].value;
    return NULL;
}

segue_status sg_spec_only(const struct sg_unit_spec *s, const char *const *keys, segue_error *err)
{
    for (uint32_t i = 0; i < s->pairs_n; i++) {
        size_t k = 0;
        while (keys[k] && strcmp(keys[k], s->pairs[i].key) != 0) k++;
        if (keys[k]) continue;
        if (s->pairs[i].key[0])
            return sg_fail(err, SEGUE_EARG, "unit not opened: %s: unknown key '%s'; remove it", s->text,
                           s->pairs[i].key);
        return sg_fail(err, SEGUE_EARG, "unit not opened: %s: '%s' is not key=value; remove it", s->text,
                       s->pairs[i].value);
    }
    return SEGUE_OK;
}

segue_status sg_fault_read(const struct sg_unit_spec *spec, struct sg_fault *out, segue_error *err)
{
    const char *text = sg_spec_value(spec, "fault");
    char *end;
    *out = (struct sg_fault){0};
    if (!text) return SEGUE_OK;
    unsigned long layer = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '.' || !end[1] || strlen(end + 1) >= sizeof out->op || layer > 65535)
        return sg_fail(err, SEGUE_EARG, "open unit: %s: fault=%s; use LAYER.OP", spec->text, text);
    int code = 0;
    while (code < SG_OP_N && strcmp(sg_op_name((enum sg_op_code)code), end + 1) != 0) code++;
    if (code == SG_OP_N)
        return sg_fail(err, SEGUE_EARG, "open unit: %s: fault=%s: no operation has that name; see segue inspect --graph",
                       spec->text, text);
    out->layer = (int)layer;
    snprintf(out->op, sizeof out->op, "%s", end + 1);
    return SEGUE_OK;
}

uint32_t sg_fault_op(const struct sg_fault *f, const struct sg_graph *g)
{
    for (uint32_t i = 0; f->op[0] && i < g->ops_n; i++)
        if (g->ops[i].layer == f->layer && !strcmp(sg_op_name(g->ops[i].code), f->op)) return i;
    return UINT32_MAX;
}
