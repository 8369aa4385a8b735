/* jinja_text.c: str() and repr() of values, HTML escaping, and the functions through which all text is
 * written.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/jinja_ast.h"
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"
#include "text/unicode/unicode.h"

/* Each write counts as its bytes plus 16, and 64 of these are one step: long loops of short writes
 * are bounded like long texts. The count is carried over in st->bytes and charged in units of 4096. */
segue_status sg_put(struct sg_jinja *st, struct sg_buf *b, const char *s, size_t n)
{
    st->bytes += n + 16; /* a step for every four short writes, or 64 bytes */
    if (st->bytes >= 4096) {
        SG_TRY(sg_jinja_step(st, st->bytes / 64));
        st->bytes = 0;
    }
    if (sg_buf_add(b, s, n) == SEGUE_OK) return SEGUE_OK;
    if (b->failed == SEGUE_EMEMORY) return sg_no_memory("template text", b->len + n, st->err);
    return sg_fail(st->err, SEGUE_ELIMIT,
                   "template: %s line %u: a text grows beyond %zu bytes; shorten the request or "
                   "correct the template",
                   st->t->what, (unsigned)st->line, b->limit);
}

/* For constants: s ends with NUL. */
segue_status sg_put_cstr(struct sg_jinja *st, struct sg_buf *b, const char *s)
{
    return sg_put(st, b, s, strlen(s));
}

/* One code point as UTF-8. */
segue_status sg_put_char(struct sg_jinja *st, struct sg_buf *b, uint32_t c)
{
    char text[4];
    return sg_put(st, b, text, sg_utf8_put(text, c));
}

/* repr(float): the shortest decimal that reads back as the same double, found by trying precisions
 * 1 to 17. As in Python, the exponent form is used below 1e-4 and from 1e16 on, and a plain number
 * has at least one decimal. */
segue_status sg_put_float(struct sg_jinja *st, struct sg_buf *b, double f)
{
    char e[48], text[64];
    if (isnan(f)) return sg_put_cstr(st, b, "nan");
    if (isinf(f)) return sg_put_cstr(st, b, f < 0 ? "-inf" : "inf");
    int precision = 0;
    for (; precision < 17; precision++) {
        sg_float_digits(e, sizeof e, 'e', precision, f);
        if (sg_float_of_digits(e) == f) break;
    }
    const char *mark = strchr(e, 'e');
    int exponent = mark ? atoi(mark + 1) : 0;
    if (exponent < -4 || exponent >= 16) {
        int n = (int)(mark - e);
        snprintf(text, sizeof text, "%.*se%c%02d", n, e, exponent < 0 ? '-' : '+', abs(exponent));
        return sg_put_cstr(st, b, text);
    }
    int decimals = precision - exponent;
    sg_float_digits(text, sizeof text, 'f', decimals > 1 ? decimals : 1, f);
    return sg_put_cstr(st, b, text);
}

/* Python's escapes in a string literal: quote, backslash, \n, \r, \t, and \x, \u or \U for
 * characters that are not printable. */
static segue_status repr_char(struct sg_jinja *st, struct sg_buf *b, uint32_t c, char quote)
{
    char text[12];
    if (c == (uint32_t)quote || c == '\\') {
        SG_TRY(sg_put(st, b, "\\", 1));
        return sg_put_char(st, b, c);
    }
    if (c == '\n') return sg_put(st, b, "\\n", 2);
    if (c == '\r') return sg_put(st, b, "\\r", 2);
    if (c == '\t') return sg_put(st, b, "\\t", 2);
    if (sg_char_is(c, SG_IS_PRINTABLE)) return sg_put_char(st, b, c);
    snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    return sg_put_cstr(st, b, text);
}

/* Single quotes, unless the string has single and no double quotes. */
static segue_status repr_str(struct sg_jinja *st, struct sg_buf *b, const struct sg_str *s)
{
    char quote = s->n && memchr(s->s, '\'', s->n) && !memchr(s->s, '"', s->n) ? '"' : '\'';
    SG_TRY(sg_put(st, b, &quote, 1));
    for (const char *p = s->s, *e = p + s->n; p < e;) SG_TRY(repr_char(st, b, sg_char_get(&p), quote));
    return sg_put(st, b, &quote, 1);
}

/* marks: "[]" or "()". A tuple of one item has a trailing comma. */
static segue_status repr_list(struct sg_jinja *st, struct sg_buf *b, const struct sg_list *l,
                              const char *marks)
{
    SG_TRY(sg_put(st, b, marks, 1));
    for (size_t i = 0; i < l->n; i++) {
        if (i) SG_TRY(sg_put(st, b, ", ", 2));
        SG_TRY(sg_put_repr(st, b, l->items[i]));
    }
    if (*marks == '(' && l->n == 1) SG_TRY(sg_put(st, b, ",", 1));
    return sg_put(st, b, marks + 1, 1);
}

static segue_status repr_dict(struct sg_jinja *st, struct sg_buf *b, const struct sg_dict *d)
{
    SG_TRY(sg_put(st, b, "{", 1));
    for (size_t i = 0; i < d->n; i++) {
        if (i) SG_TRY(sg_put(st, b, ", ", 2));
        SG_TRY(sg_put_repr(st, b, d->pairs[i].key));
        SG_TRY(sg_put(st, b, ": ", 2));
        SG_TRY(sg_put_repr(st, b, d->pairs[i].value));
    }
    return sg_put(st, b, "}", 1);
}

/* dict_keys([...]), dict_values([...]) or dict_items([(k, v), ...]). */
static segue_status repr_view(struct sg_jinja *st, struct sg_buf *b, const struct sg_dict_view *v)
{
    SG_TRY(sg_put_cstr(st, b,
                    v->variant == 'k'   ? "dict_keys(["
                    : v->variant == 'v' ? "dict_values(["
                                      : "dict_items(["));
    for (size_t i = 0; i < v->dict->n; i++) {
        const struct sg_dict_pair *p = &v->dict->pairs[i];
        if (i) SG_TRY(sg_put(st, b, ", ", 2));
        if (v->variant == 'i') SG_TRY(sg_put(st, b, "(", 1));
        if (v->variant != 'v') SG_TRY(sg_put_repr(st, b, p->key));
        if (v->variant == 'i') SG_TRY(sg_put(st, b, ", ", 2));
        if (v->variant != 'k') SG_TRY(sg_put_repr(st, b, p->value));
        if (v->variant == 'i') SG_TRY(sg_put(st, b, ")", 1));
    }
    return sg_put(st, b, "])", 2);
}

/* The step is written only if it is not 1. */
static segue_status repr_range(struct sg_jinja *st, struct sg_buf *b, const struct sg_val_range *r)
{
    char text[96];
    if (r->step == 1)
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start, (long long)r->stop);
    else
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)r->start, (long long)r->stop,
                 (long long)r->step);
    return sg_put_cstr(st, b, text);
}

/* A macro by name; call and generation blocks are anonymous. */
static segue_status repr_macro(struct sg_jinja *st, struct sg_buf *b, const struct sg_jinja_node *m)
{
    if (m->kind != SG_N_MACRO) return sg_put_cstr(st, b, "<Macro anonymous>");
    SG_TRY(sg_put_cstr(st, b, "<Macro '"));
    SG_TRY(sg_put(st, b, m->s, m->n));
    return sg_put_cstr(st, b, "'>");
}

/* Values that contain others, and objects. The caller has counted one level of nesting. */
static segue_status repr_inside(struct sg_jinja *st, struct sg_buf *b, struct sg_val v)
{
    char text[64];
    switch (v.kind) {
    case SG_V_LIST: return repr_list(st, b, sg_v_list(v), "[]");
    case SG_V_TUPLE: return repr_list(st, b, sg_v_list(v), "()");
    case SG_V_DICT: return repr_dict(st, b, sg_v_dict(v));
    case SG_V_NAMESPACE:
        SG_TRY(sg_put_cstr(st, b, "<Namespace "));
        SG_TRY(repr_dict(st, b, sg_v_dict(v)));
        return sg_put(st, b, ">", 1);
    case SG_V_VIEW: return repr_view(st, b, sg_v_view(v));
    case SG_V_RANGE: return repr_range(st, b, sg_v_range(v));
    case SG_V_MACRO: return repr_macro(st, b, ((struct sg_jinja_macro *)(void *)v.u.o)->node);
    case SG_V_LOOP:
        SG_TRY(sg_loop_length(st, sg_v_loop(v)));
        snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)sg_v_loop(v)->index0 + 1,
                 (long long)sg_v_loop(v)->length);
        return sg_put_cstr(st, b, text);
    /* Python prints an address here. It is left out: it would differ per run and tell an attacker
     * about the address space. */
    default: /* Python prints an address here; none is given away */
        snprintf(text, sizeof text, "<%s object>",
                 v.kind == SG_V_ITER ? sg_v_seq(v)->name : sg_val_type(v.kind));
        return sg_put_cstr(st, b, text);
    }
}

/* Scalars and strings directly; the rest one level deeper. Values that contain themselves end at
 * the nesting limit. */
segue_status sg_put_repr(struct sg_jinja *st, struct sg_buf *b, struct sg_val v)
{
    char text[32];
    switch (v.kind) {
    case SG_V_MISSING:
    case SG_V_UNDEFINED: return sg_put_cstr(st, b, "Undefined");
    case SG_V_NONE: return sg_put_cstr(st, b, "None");
    case SG_V_BOOL: return sg_put_cstr(st, b, v.u.i ? "True" : "False");
    case SG_V_INT: snprintf(text, sizeof text, "%lld", (long long)v.u.i); return sg_put_cstr(st, b, text);
    case SG_V_FLOAT: return sg_put_float(st, b, v.u.f);
    case SG_V_STR:
        if (!v.aux) return repr_str(st, b, sg_v_str(v));
        SG_TRY(sg_put_cstr(st, b, "Markup("));
        SG_TRY(repr_str(st, b, sg_v_str(v)));
        return sg_put(st, b, ")", 1);
    default: break;
    }
    SG_TRY(sg_jinja_enter(st));
    SG_TRY(repr_inside(st, b, v));
    st->level--;
    return SEGUE_OK;
}

/* str(v): strings as they are, undefined and missing as empty text, all else as repr. */
segue_status sg_put_str(struct sg_jinja *st, struct sg_buf *b, struct sg_val v)
{
    if (v.kind == SG_V_STR) return sg_put(st, b, sg_v_str(v)->s, sg_v_str(v)->n);
    if (v.kind <= SG_V_UNDEFINED) return SEGUE_OK;
    return sg_put_repr(st, b, v);
}

/* The result is never Markup: callers that need the flag copy it themselves. */
segue_status sg_val_text(struct sg_jinja *st, struct sg_val v, struct sg_val *out)
{
    if (v.kind == SG_V_STR) return *out = v, out->aux = 0, SEGUE_OK;
    struct sg_buf b = sg_val_buf(st);
    return sg_str_from_buf(st, sg_put_str(st, &b, v), &b, out);
}

/* markupsafe.escape: Markup is returned as it is, so that nothing is escaped twice. Quotes become
 * numeric references. */
segue_status sg_str_escape(struct sg_jinja *st, struct sg_val v, struct sg_val *out)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    if (v.kind == SG_V_STR && v.aux) return *out = v, SEGUE_OK;
    SG_TRY(sg_val_text(st, v, &v));
    const struct sg_str *s = sg_v_str(v);
    struct sg_buf b = sg_val_buf(st);
    segue_status r = SEGUE_OK;
    for (size_t i = 0, plain = 0; i <= s->n && r == SEGUE_OK; i++) {
        const char *at = i < s->n && s->s[i] ? strchr(from, s->s[i]) : NULL;
        if (i < s->n && !at) continue;
        r = sg_put(st, &b, s->s + plain, i - plain);
        if (at && r == SEGUE_OK) r = sg_put(st, &b, to[at - from], strlen(to[at - from]));
        /* Runs without special characters are copied at once; i == s->n flushes the last run. */
        plain = i + 1;
    }
    SG_TRY(sg_str_from_buf(st, r, &b, out));
    out->aux = 1;
    return SEGUE_OK;
}
