/* jinja_text.c: values to text as Python writes them: str(), repr(), json.dumps, and numbers from text. Nothing here
 * depends on the locale.
 * SPDX-License-Identifier: MIT */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/jinja/jinja.h"

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

static segue_status put_text(struct sg_jinja *st, struct sg_buf *b, const char *s)
{
    return sg_put(st, b, s, strlen(s));
}

segue_status sg_put_char(struct sg_jinja *st, struct sg_buf *b, uint32_t c)
{
    char text[4];
    return sg_put(st, b, text, sg_char_put(text, c));
}

/* --- numbers --- */

int sg_float_digits(char *out, size_t cap, char kind, int precision, double f)
{
    int n = kind == 'e'   ? snprintf(out, cap, "%.*e", precision, f)
            : kind == 'f' ? snprintf(out, cap, "%.*f", precision, f)
                          : snprintf(out, cap, "%.*g", precision, f);
    const char *point = localeconv()->decimal_point;
    char *at = n > 0 && strcmp(point, ".") != 0 ? strstr(out, point) : NULL;
    if (at) {
        size_t m = strlen(point);
        *at = '.';
        memmove(at + 1, at + m, strlen(at + m) + 1);
        n -= (int)m - 1;
    }
    return n;
}

static double to_double(const char *digits)
{
    char text[128];
    const char *point = localeconv()->decimal_point;
    size_t n = 0;
    for (const char *p = digits; *p && n + 9 < sizeof text; p++) {
        if (*p != '.')
            text[n++] = *p;
        else
            for (const char *q = point; *q && n + 9 < sizeof text; q++) text[n++] = *q;
    }
    text[n] = 0;
    return strtod(text, NULL);
}

/* repr of a float: the fewest digits that read back the same, exponent below 1e-4 and from 1e16 on. */
segue_status sg_put_float(struct sg_jinja *st, struct sg_buf *b, double f)
{
    char e[48], text[64];
    if (isnan(f)) return put_text(st, b, "nan");
    if (isinf(f)) return put_text(st, b, f < 0 ? "-inf" : "inf");
    int precision = 0;
    for (; precision < 17; precision++) {
        sg_float_digits(e, sizeof e, 'e', precision, f);
        if (to_double(e) == f) break;
    }
    const char *mark = strchr(e, 'e');
    int exponent = mark ? atoi(mark + 1) : 0;
    if (exponent < -4 || exponent >= 16) {
        int n = (int)(mark - e);
        snprintf(text, sizeof text, "%.*se%c%02d", n, e, exponent < 0 ? '-' : '+', abs(exponent));
        return put_text(st, b, text);
    }
    int decimals = precision - exponent;
    sg_float_digits(text, sizeof text, 'f', decimals > 1 ? decimals : 1, f);
    return put_text(st, b, text);
}

/* Trim Python's whitespace and copy without single underscores; 0 = does not fit or misplaced underscores. */
static size_t clean_number(const char *s, size_t n, char *out, size_t cap)
{
    const char *e = s + n, *p = s;
    size_t m = 0;
    while (p < e) {
        const char *q = p;
        if (!sg_char_is(sg_char_get(&q), SG_IS_SPACE)) break;
        p = q;
    }
    while (e > p) {
        const char *q = e - 1;
        while (q > p && ((unsigned char)*q & 0xc0) == 0x80) q--;
        const char *r = q;
        if (!sg_char_is(sg_char_get(&r), SG_IS_SPACE)) break;
        e = q;
    }
    for (; p < e; p++) {
        if (*p == '_' && m && p + 1 < e && p[-1] != '_') continue;
        if (*p == '_' || m + 1 >= cap) return 0;
        out[m++] = *p;
    }
    out[m] = 0;
    return m;
}

int sg_float_parse(const char *s, size_t n, double *out)
{
    char text[112];
    size_t m = clean_number(s, n, text, sizeof text), i = 0, digits = 0;
    if (!m) return 0;
    int neg = text[0] == '-';
    if (text[0] == '-' || text[0] == '+') i = 1;
    char low[12] = {0};
    for (size_t k = 0; k < 11 && text[i + k]; k++) low[k] = (char)(text[i + k] | 32);
    if (!strcmp(low, "inf") || !strcmp(low, "infinity")) return *out = neg ? -INFINITY : INFINITY, 1;
    if (!strcmp(low, "nan")) return *out = NAN, 1;
    for (; text[i] >= '0' && text[i] <= '9'; i++) digits++;
    if (text[i] == '.')
        for (i++; text[i] >= '0' && text[i] <= '9'; i++) digits++;
    if (!digits) return 0;
    if (text[i] == 'e' || text[i] == 'E') {
        i++;
        if (text[i] == '-' || text[i] == '+') i++;
        if (text[i] < '0' || text[i] > '9') return 0;
        while (text[i] >= '0' && text[i] <= '9') i++;
    }
    if (i != m) return 0;
    *out = to_double(text);
    return 1;
}

int sg_int_parse(const char *s, size_t n, int base, int64_t *out)
{
    char text[112];
    size_t m = clean_number(s, n, text, sizeof text), i = 0;
    uint64_t v = 0;
    if (!m) return 0;
    int neg = text[0] == '-', over = 0;
    if (text[0] == '-' || text[0] == '+') i = 1;
    char x = text[i] == '0' ? (char)(text[i + 1] | 32) : 0;
    int marked = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 0;
    if (marked && (base == marked || base == 0)) {
        i += 2;
        base = marked;
    }
    if (base == 0) {
        base = 10;
        if (text[i] == '0' && strspn(text + i, "0") != strlen(text + i)) return 0;
    }
    if (i == m) return 0;
    for (; i < m; i++) {
        char c = (char)(text[i] | 32);
        int d = text[i] >= '0' && text[i] <= '9' ? text[i] - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
        if (d >= base) return 0;
        if (v > ((uint64_t)INT64_MAX + 1 - (uint64_t)d) / (uint64_t)base) over = 1;
        v = v * (uint64_t)base + (uint64_t)d;
    }
    if (over || v > (uint64_t)INT64_MAX + (neg ? 1 : 0)) return -1;
    *out = neg ? (int64_t)(0 - v) : (int64_t)v;
    return 1;
}

/* --- str and repr --- */

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
    return put_text(st, b, text);
}

static segue_status repr_str(struct sg_jinja *st, struct sg_buf *b, const struct sg_str *s)
{
    char quote = s->n && memchr(s->s, '\'', s->n) && !memchr(s->s, '"', s->n) ? '"' : '\'';
    SG_TRY(sg_put(st, b, &quote, 1));
    for (const char *p = s->s, *e = p + s->n; p < e;) SG_TRY(repr_char(st, b, sg_char_get(&p), quote));
    return sg_put(st, b, &quote, 1);
}

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

static segue_status repr_view(struct sg_jinja *st, struct sg_buf *b, const struct sg_view *v)
{
    SG_TRY(put_text(st, b,
                    v->which == 'k'   ? "dict_keys(["
                    : v->which == 'v' ? "dict_values(["
                                      : "dict_items(["));
    for (size_t i = 0; i < v->dict->n; i++) {
        const struct sg_pair *p = &v->dict->pairs[i];
        if (i) SG_TRY(sg_put(st, b, ", ", 2));
        if (v->which == 'i') SG_TRY(sg_put(st, b, "(", 1));
        if (v->which != 'v') SG_TRY(sg_put_repr(st, b, p->key));
        if (v->which == 'i') SG_TRY(sg_put(st, b, ", ", 2));
        if (v->which != 'k') SG_TRY(sg_put_repr(st, b, p->value));
        if (v->which == 'i') SG_TRY(sg_put(st, b, ")", 1));
    }
    return sg_put(st, b, "])", 2);
}

static segue_status repr_range(struct sg_jinja *st, struct sg_buf *b, const struct sg_range *r)
{
    char text[96];
    if (r->step == 1)
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start, (long long)r->stop);
    else
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)r->start, (long long)r->stop,
                 (long long)r->step);
    return put_text(st, b, text);
}

static segue_status repr_macro(struct sg_jinja *st, struct sg_buf *b, const struct sg_node *m)
{
    if (m->kind != SG_N_MACRO) return put_text(st, b, "<Macro anonymous>");
    SG_TRY(put_text(st, b, "<Macro '"));
    SG_TRY(sg_put(st, b, m->s, m->n));
    return put_text(st, b, "'>");
}

static segue_status repr_inside(struct sg_jinja *st, struct sg_buf *b, struct sg_val v)
{
    struct sg_val index, length;
    char text[64];
    switch (v.kind) {
    case SG_V_LIST: return repr_list(st, b, sg_v_list(v), "[]");
    case SG_V_TUPLE: return repr_list(st, b, sg_v_list(v), "()");
    case SG_V_DICT: return repr_dict(st, b, sg_v_dict(v));
    case SG_V_SPACE:
        SG_TRY(put_text(st, b, "<Namespace "));
        SG_TRY(repr_dict(st, b, sg_v_dict(v)));
        return sg_put(st, b, ">", 1);
    case SG_V_VIEW: return repr_view(st, b, sg_v_view(v));
    case SG_V_RANGE: return repr_range(st, b, sg_v_range(v));
    case SG_V_MACRO: return repr_macro(st, b, ((struct sg_macro *)(void *)v.u.o)->node);
    case SG_V_LOOP:
        SG_TRY(sg_loop_attr(st, sg_v_loop(v), "index", 5, &index));
        SG_TRY(sg_loop_attr(st, sg_v_loop(v), "length", 6, &length));
        snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)index.u.i, (long long)length.u.i);
        return put_text(st, b, text);
    default: /* Python prints an address here; none is given away */
        snprintf(text, sizeof text, "<%s object>",
                 v.kind == SG_V_ITER ? sg_v_seq(v)->name : sg_val_type(v.kind));
        return put_text(st, b, text);
    }
}

segue_status sg_put_repr(struct sg_jinja *st, struct sg_buf *b, struct sg_val v)
{
    char text[32];
    switch (v.kind) {
    case SG_V_MISSING:
    case SG_V_UNDEFINED: return put_text(st, b, "Undefined");
    case SG_V_NONE: return put_text(st, b, "None");
    case SG_V_BOOL: return put_text(st, b, v.u.i ? "True" : "False");
    case SG_V_INT: snprintf(text, sizeof text, "%lld", (long long)v.u.i); return put_text(st, b, text);
    case SG_V_FLOAT: return sg_put_float(st, b, v.u.f);
    case SG_V_STR:
        if (!v.aux) return repr_str(st, b, sg_v_str(v));
        SG_TRY(put_text(st, b, "Markup("));
        SG_TRY(repr_str(st, b, sg_v_str(v)));
        return sg_put(st, b, ")", 1);
    default: break;
    }
    SG_TRY(sg_jinja_enter(st));
    SG_TRY(repr_inside(st, b, v));
    st->level--;
    return SEGUE_OK;
}

segue_status sg_put_str(struct sg_jinja *st, struct sg_buf *b, struct sg_val v)
{
    if (v.kind == SG_V_STR) return sg_put(st, b, sg_v_str(v)->s, sg_v_str(v)->n);
    if (v.kind <= SG_V_UNDEFINED) return SEGUE_OK;
    return sg_put_repr(st, b, v);
}

segue_status sg_val_text(struct sg_jinja *st, struct sg_val v, struct sg_val *out)
{
    if (v.kind == SG_V_STR) return *out = v, out->aux = 0, SEGUE_OK;
    struct sg_buf b = sg_buf_begin(st);
    return sg_str_take(st, sg_put_str(st, &b, v), &b, out);
}

segue_status sg_str_escape(struct sg_jinja *st, struct sg_val v, struct sg_val *out)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    if (v.kind == SG_V_STR && v.aux) return *out = v, SEGUE_OK;
    SG_TRY(sg_val_text(st, v, &v));
    const struct sg_str *s = sg_v_str(v);
    struct sg_buf b = sg_buf_begin(st);
    segue_status r = SEGUE_OK;
    for (size_t i = 0, plain = 0; i <= s->n && r == SEGUE_OK; i++) {
        const char *at = i < s->n && s->s[i] ? strchr(from, s->s[i]) : NULL;
        if (i < s->n && !at) continue;
        r = sg_put(st, &b, s->s + plain, i - plain);
        if (at && r == SEGUE_OK) r = sg_put(st, &b, to[at - from], strlen(to[at - from]));
        plain = i + 1;
    }
    SG_TRY(sg_str_take(st, r, &b, out));
    out->aux = 1;
    return SEGUE_OK;
}

/* --- JSON --- */

static segue_status json_char(struct sg_jinja *st, struct sg_buf *b, uint32_t c, int ascii)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *at = c && c < 128 ? strchr(from, (int)c) : NULL;
    char text[16];
    if (at) {
        snprintf(text, sizeof text, "\\%c", to[at - from]);
        return put_text(st, b, text);
    }
    if (c >= 0x20 && (c < 0x7f || !ascii)) return sg_put_char(st, b, c);
    if (c == 0x7f) return sg_put_char(st, b, c);
    if (c >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((c - 0x10000) >> 10)),
                 (unsigned)(0xdc00 + (c & 0x3ff)));
    else
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    return put_text(st, b, text);
}

static segue_status json_str(struct sg_jinja *st, struct sg_buf *b, const struct sg_str *s, int ascii)
{
    SG_TRY(sg_put(st, b, "\"", 1));
    for (const char *p = s->s, *e = p + s->n; p < e;) {
        const char *plain = p; /* copy runs that need no escape at once */
        while (p < e && (unsigned char)*p >= 0x20 && *p != '"' && *p != '\\' &&
               ((unsigned char)*p < 0x7f || !ascii))
            p++;
        if (p > plain) SG_TRY(sg_put(st, b, plain, (size_t)(p - plain)));
        if (p < e) SG_TRY(json_char(st, b, sg_char_get(&p), ascii));
    }
    return sg_put(st, b, "\"", 1);
}

static segue_status json_line(struct sg_jinja *st, struct sg_buf *b, const struct sg_json_style *style,
                              size_t level)
{
    if (!style->indented) return SEGUE_OK;
    SG_TRY(sg_put(st, b, "\n", 1));
    for (size_t i = 0; i < level; i++) SG_TRY(sg_put(st, b, style->indent, style->indent_n));
    return SEGUE_OK;
}

static segue_status json_list(struct sg_jinja *st, struct sg_buf *b, const struct sg_list *l,
                              const struct sg_json_style *style, size_t level)
{
    if (!l->n) return sg_put(st, b, "[]", 2);
    SG_TRY(sg_put(st, b, "[", 1));
    for (size_t i = 0; i < l->n; i++) {
        if (i) SG_TRY(sg_put(st, b, style->item_sep, style->item_n));
        SG_TRY(json_line(st, b, style, level + 1));
        SG_TRY(sg_put_json(st, b, l->items[i], style, level + 1));
    }
    SG_TRY(json_line(st, b, style, level));
    return sg_put(st, b, "]", 1);
}

static segue_status json_key(struct sg_jinja *st, struct sg_buf *b, struct sg_val key,
                             const struct sg_json_style *style)
{
    if (key.kind == SG_V_STR) return json_str(st, b, sg_v_str(key), style->ascii);
    if (key.kind < SG_V_NONE || key.kind > SG_V_FLOAT)
        return sg_jinja_fail(st, "tojson: a key of type '%s' cannot be written", sg_val_type(key.kind));
    SG_TRY(sg_put(st, b, "\"", 1));
    SG_TRY(sg_put_json(st, b, key, style, 0));
    return sg_put(st, b, "\"", 1);
}

/* The pairs of a dict in the order of their keys. */
static segue_status sorted_pairs(struct sg_jinja *st, const struct sg_dict *d, struct sg_list **values,
                                 struct sg_list **keys)
{
    SG_TRY(sg_list_make(st, SG_V_LIST, d->n, values));
    SG_TRY(sg_list_make(st, SG_V_LIST, d->n, keys));
    for (size_t i = 0; i < d->n; i++) {
        (*keys)->items[i] = d->pairs[i].key;
        (*values)->items[i] = d->pairs[i].value;
    }
    (*keys)->n = (*values)->n = d->n;
    SG_TRY(sg_val_sort(st, (*keys)->items, (*values)->items, d->n, 0));
    return sg_val_sort(st, (*keys)->items, (*keys)->items, d->n, 0);
}

static segue_status json_dict(struct sg_jinja *st, struct sg_buf *b, const struct sg_dict *d,
                              const struct sg_json_style *style, size_t level)
{
    struct sg_list *values = NULL, *keys = NULL;
    if (!d->n) return sg_put(st, b, "{}", 2);
    if (style->sort) SG_TRY(sorted_pairs(st, d, &values, &keys));
    SG_TRY(sg_put(st, b, "{", 1));
    for (size_t i = 0; i < d->n; i++) {
        if (i) SG_TRY(sg_put(st, b, style->item_sep, style->item_n));
        SG_TRY(json_line(st, b, style, level + 1));
        SG_TRY(json_key(st, b, keys ? keys->items[i] : d->pairs[i].key, style));
        SG_TRY(sg_put(st, b, style->key_sep, style->key_n));
        SG_TRY(sg_put_json(st, b, values ? values->items[i] : d->pairs[i].value, style, level + 1));
    }
    SG_TRY(json_line(st, b, style, level));
    return sg_put(st, b, "}", 1);
}

segue_status sg_put_json(struct sg_jinja *st, struct sg_buf *b, struct sg_val v,
                         const struct sg_json_style *style, size_t level)
{
    segue_status s;
    switch (v.kind) {
    case SG_V_NONE: return put_text(st, b, "null");
    case SG_V_BOOL: return put_text(st, b, v.u.i ? "true" : "false");
    case SG_V_INT: return sg_put_repr(st, b, v);
    case SG_V_FLOAT:
        if (isfinite(v.u.f)) return sg_put_float(st, b, v.u.f);
        return put_text(st, b, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity");
    case SG_V_STR: return json_str(st, b, sg_v_str(v), style->ascii);
    case SG_V_LIST:
    case SG_V_TUPLE:
    case SG_V_DICT: break;
    default:
        return sg_jinja_fail(st, "tojson: a value of type '%s' cannot be written as JSON",
                             sg_val_type(v.kind));
    }
    SG_TRY(sg_jinja_enter(st));
    s = v.kind == SG_V_DICT ? json_dict(st, b, sg_v_dict(v), style, level)
                            : json_list(st, b, sg_v_list(v), style, level);
    st->level--;
    return s;
}
