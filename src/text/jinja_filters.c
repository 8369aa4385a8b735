/* jinja_filters.c: the filters of jinja2 that chat templates use. What jinja2 yields lazily is made at once here and
 * wrapped so that it has no length and is used up by walking it.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/jinja.h"

#define FILTER(name)                                                                                              \
    static segue_status name(struct sg_jinja *st, const struct sg_func *f, struct sg_val self, struct sg_val *in, \
                             const struct sg_args *args, struct sg_val *out)
#define UNUSED ((void)st, (void)f, (void)self, (void)in, (void)args, (void)out)

static int given(struct sg_val v) { return v.kind != SG_V_MISSING; }
static int given_value(struct sg_val v) { return v.kind > SG_V_NONE || v.kind == SG_V_UNDEFINED; }

static segue_status as_str(struct sg_jinja *st, struct sg_val v, struct sg_val *keep, struct sg_str **out)
{
    SG_TRY(sg_val_text(st, v, keep));
    *out = sg_v_str(*keep);
    return SEGUE_OK;
}

/* --- texts --- */

/* Filters that are the method of the same name on str(value). */
FILTER(by_method)
{
    struct sg_val text, width = sg_v_int(80);
    struct sg_args own = *args;
    UNUSED;
    SG_TRY(sg_val_text(st, self, &text));
    if (self.kind == SG_V_STR) text = self;
    const char *name = f->which == 't' ? "strip" : f->name;
    if (f->which == 'c' && !own.pos_n && !own.named) own = (struct sg_args){&width, 1, NULL};
    return sg_str_method_call(st, sg_str_method_find(name, strlen(name)), text, &own, out);
}

FILTER(f_title)
{
    struct sg_val keep;
    struct sg_str *s = NULL;
    struct sg_buf b = sg_buf_begin(st);
    segue_status r = SEGUE_OK;
    size_t from = 0;
    UNUSED;
    SG_TRY(as_str(st, self, &keep, &s));
    /* words begin after any of - ( { [ < or whitespace */
    for (const char *p = s->s, *e = p + s->n; r == SEGUE_OK && from < s->n;) {
        const char *q = p;
        uint32_t c = p < e ? sg_char_get(&q) : 0;
        int mark = p < e && ((c < 128 && c && strchr("-({[<", (int)c)) || sg_char_is(c, SG_IS_SPACE));
        if (p < e && !mark) {
            p = q;
            continue;
        }
        size_t to = (size_t)(p - s->s);
        if (to > from) {
            const char *first = s->s + from;
            sg_char_get(&first);
            r = sg_case_put(st, &b, s, from, (size_t)(first - s->s), SG_CASE_UPPER);
            struct sg_str tail = {.s = first, .n = to - (size_t)(first - s->s)};
            if (r == SEGUE_OK) r = sg_case_put(st, &b, &tail, 0, tail.n, SG_CASE_LOWER);
        }
        if (r == SEGUE_OK && mark) r = sg_put(st, &b, p, (size_t)(q - p));
        from = (size_t)(q - s->s);
        p = q;
    }
    return sg_str_take(st, r, &b, out);
}

FILTER(f_string)
{
    UNUSED;
    if (self.kind == SG_V_STR) return *out = self, SEGUE_OK;
    return sg_val_text(st, self, out);
}

FILTER(f_replace)
{
    struct sg_val keep[3];
    UNUSED;
    SG_TRY(sg_val_text(st, self, &keep[0]));
    SG_TRY(sg_val_text(st, in[0], &keep[1]));
    SG_TRY(sg_val_text(st, in[1], &keep[2]));
    struct sg_val pos[3] = {keep[1], keep[2], in[2].kind > SG_V_NONE ? in[2] : sg_v_int(-1)};
    struct sg_args call = {pos, 3, NULL};
    return sg_func_call(st, sg_str_method_find("replace", 7), keep[0], &call, out);
}

/* which 'f': also what is escaped already */
FILTER(f_escape)
{
    UNUSED;
    if (f->which == 'f') self.aux = 0;
    return sg_str_escape(st, self, out);
}

FILTER(f_safe)
{
    UNUSED;
    SG_TRY(sg_val_text(st, self, out));
    out->aux = 1;
    return SEGUE_OK;
}

static segue_status indent_lines(struct sg_jinja *st, struct sg_buf *b, const struct sg_str *s, const struct sg_str *by,
                                 int first, int blank)
{
    /* the text gets a newline at its end; lines are then joined, so that the last one has none */
    const char *p = s->s, *e = p + s->n;
    for (int line = 0;; line++) {
        const char *q = p, *next = p;
        uint32_t c = 0;
        while (q < e) {
            next = q;
            c = sg_char_get(&next);
            if (sg_char_line(c)) break;
            q = next;
        }
        if (line) SG_TRY(sg_put(st, b, "\n", 1));
        if (line ? blank || q > p : first) SG_TRY(sg_put(st, b, by->s, by->n));
        SG_TRY(sg_put(st, b, p, (size_t)(q - p)));
        if (q >= e) return SEGUE_OK;
        p = next;
        if (c == '\r' && p < e && *p == '\n') p++;
    }
}

FILTER(f_indent)
{
    struct sg_str *s = NULL, *by = NULL;
    struct sg_val width = given(in[0]) ? in[0] : sg_v_int(4), space;
    UNUSED;
    SG_TRY(sg_val_want_str(st, self, "what is indented", &s));
    if (width.kind != SG_V_STR) {
        int64_t n;
        SG_TRY(sg_val_index(st, width, "the width of an indent", &n));
        SG_TRY(sg_str_borrow(st, " ", 1, &space));
        SG_TRY(sg_val_binary(st, '*', space, sg_v_int(n), &width));
    }
    by = sg_v_str(width);
    struct sg_buf b = sg_buf_begin(st);
    segue_status r = indent_lines(st, &b, s, by, sg_val_true(in[1]), sg_val_true(in[2]));
    SG_TRY(sg_str_take(st, r, &b, out));
    out->aux = self.aux;
    return SEGUE_OK;
}

FILTER(f_truncate)
{
    struct sg_val part[3] = {sg_v_none(), sg_v_int(0), sg_v_none()}, cut, end;
    struct sg_str *e = NULL;
    int64_t length = 255, leeway = 5;
    size_t size;
    UNUSED;
    SG_TRY(sg_val_length(st, self, &size));
    if (given(in[0])) SG_TRY(sg_val_index(st, in[0], "a length", &length));
    if (given_value(in[3])) SG_TRY(sg_val_index(st, in[3], "leeway", &leeway));
    end = in[2];
    if (!given(end)) SG_TRY(sg_str_borrow(st, "...", 3, &end));
    SG_TRY(sg_val_want_str(st, end, "the end of a truncated text", &e));
    if (length < (int64_t)e->chars || leeway < 0) return sg_jinja_fail(st, "truncate: the length is less than its end mark");
    if ((int64_t)size <= length || (int64_t)size - length <= leeway) return *out = self, SEGUE_OK;
    if (self.kind != SG_V_STR) return sg_jinja_fail(st, "truncate: '%s' is no string", sg_val_type(self.kind));
    part[1] = sg_v_int(length - (int64_t)e->chars);
    SG_TRY(sg_val_slice(st, self, part, &cut));
    if (!sg_val_true(in[1])) { /* drop the last word, if there is more than one */
        struct sg_str *c = sg_v_str(cut);
        size_t n = c->n;
        while (n && c->s[n - 1] != ' ') n--;
        if (n) SG_TRY(sg_str_part(st, cut, 0, n - 1, &cut));
    }
    return sg_val_binary(st, '+', cut, end, out);
}

FILTER(f_wordcount)
{
    struct sg_val keep;
    struct sg_str *s = NULL;
    int64_t n = 0, inside = 0;
    UNUSED;
    SG_TRY(as_str(st, self, &keep, &s));
    SG_TRY(sg_jinja_step(st, s->n / 64));
    for (const char *p = s->s, *e = p + s->n; p < e;) {
        uint32_t c = sg_char_get(&p);
        int word = c == '_' || sg_char_is(c, SG_IS_ALPHA) || sg_char_is(c, SG_IS_NUMERIC);
        n += word && !inside;
        inside = word;
    }
    *out = sg_v_int(n);
    return SEGUE_OK;
}

static segue_status quote_url(struct sg_jinja *st, struct sg_buf *b, struct sg_val v, int query)
{
    struct sg_val keep;
    struct sg_str *s = NULL;
    SG_TRY(as_str(st, v, &keep, &s));
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->s[i];
        char hex[4];
        int plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c && strchr("_.-~", c)) ||
                    (c == '/' && !query);
        snprintf(hex, sizeof hex, "%%%02X", c);
        if (query && c == ' ') SG_TRY(sg_put(st, b, "+", 1));
        else SG_TRY(plain ? sg_put(st, b, s->s + i, 1) : sg_put(st, b, hex, 3));
    }
    return SEGUE_OK;
}

static segue_status quote_pairs(struct sg_jinja *st, struct sg_buf *b, struct sg_val v)
{
    struct sg_dict *d = NULL;
    SG_TRY(sg_dict_make(st, SG_V_DICT, &d));
    SG_TRY(sg_dict_merge(st, d, v));
    for (size_t i = 0; i < d->n; i++) {
        if (i) SG_TRY(sg_put(st, b, "&", 1));
        SG_TRY(quote_url(st, b, d->pairs[i].key, 1));
        SG_TRY(sg_put(st, b, "=", 1));
        SG_TRY(quote_url(st, b, d->pairs[i].value, 1));
    }
    return SEGUE_OK;
}

FILTER(f_urlencode)
{
    struct sg_buf b = sg_buf_begin(st);
    UNUSED;
    int whole = self.kind == SG_V_STR || !sg_val_iterable(self);
    return sg_str_take(st, whole ? quote_url(st, &b, self, 0) : quote_pairs(st, &b, self), &b, out);
}

FILTER(f_format)
{
    struct sg_val keep, tuple;
    struct sg_str *s = NULL;
    struct sg_list *l = NULL;
    UNUSED;
    SG_TRY(as_str(st, self, &keep, &s));
    if (args->pos_n && args->named) return sg_jinja_fail(st, "format: positional and named values cannot be mixed");
    SG_TRY(sg_list_make(st, SG_V_TUPLE, args->pos_n, &l));
    for (size_t i = 0; i < args->pos_n; i++) l->items[l->n++] = args->pos[i];
    tuple = args->named ? sg_v_of(&args->named->o) : sg_v_of(&l->o);
    return sg_format_percent(st, s, tuple, out);
}

static segue_status json_style(struct sg_jinja *st, struct sg_val *in, struct sg_json_style *style)
{
    static const char spaces[] = "                                                                ";
    *style = (struct sg_json_style){.ascii = sg_val_true(in[0]), .sort = sg_val_true(in[3]), .item_sep = ", ",
                                    .item_n = 2, .key_sep = ": ", .key_n = 2};
    if (given_value(in[1])) {
        style->indented = 1;
        style->item_n = 1; /* "," */
        if (in[1].kind == SG_V_STR) {
            style->indent = sg_v_str(in[1])->s;
            style->indent_n = sg_v_str(in[1])->n;
        } else {
            int64_t n;
            SG_TRY(sg_val_index(st, in[1], "indent of tojson", &n));
            if (n > (int64_t)sizeof spaces - 1) return sg_jinja_fail(st, "tojson: an indent of %lld is too wide", (long long)n);
            style->indent = spaces;
            style->indent_n = n > 0 ? (size_t)n : 0;
        }
    }
    if (given_value(in[2])) {
        struct sg_list *two = NULL;
        struct sg_str *s[2];
        SG_TRY(sg_val_to_list(st, in[2], &two));
        if (two->n != 2) return sg_jinja_fail(st, "tojson: separators must be a pair");
        for (size_t i = 0; i < 2; i++) SG_TRY(sg_val_want_str(st, two->items[i], "a separator of tojson", &s[i]));
        style->item_sep = s[0]->s;
        style->item_n = s[0]->n;
        style->key_sep = s[1]->s;
        style->key_n = s[1]->n;
    }
    return SEGUE_OK;
}

FILTER(f_tojson)
{
    struct sg_json_style style;
    UNUSED;
    SG_TRY(json_style(st, in, &style));
    struct sg_buf b = sg_buf_begin(st);
    return sg_str_take(st, sg_put_json(st, &b, self, &style, 0), &b, out);
}

/* --- numbers --- */

FILTER(f_int)
{
    int64_t base = 10, i;
    double d;
    UNUSED;
    *out = given(in[0]) ? in[0] : sg_v_int(0);
    if (given(in[1])) SG_TRY(sg_val_index(st, in[1], "a base", &base));
    if (self.kind == SG_V_INT || self.kind == SG_V_BOOL) return *out = sg_v_int(self.u.i), SEGUE_OK;
    if (self.kind == SG_V_UNDEFINED) return sg_jinja_fail(st, "int: the value is undefined");
    if (self.kind == SG_V_STR) {
        int ok = sg_int_parse(sg_v_str(self)->s, sg_v_str(self)->n, (int)base, &i);
        if (ok < 0) return sg_jinja_fail(st, "an integer does not fit in 64 bits");
        if (ok) return *out = sg_v_int(i), SEGUE_OK;
        if (!sg_float_parse(sg_v_str(self)->s, sg_v_str(self)->n, &d)) return SEGUE_OK;
    } else if (self.kind == SG_V_FLOAT) {
        d = self.u.f;
    } else {
        return SEGUE_OK;
    }
    if (!isfinite(d)) return SEGUE_OK;
    if (d >= 9223372036854775808.0 || d < -9223372036854775808.0)
        return sg_jinja_fail(st, "an integer does not fit in 64 bits");
    *out = sg_v_int((int64_t)d);
    return SEGUE_OK;
}

FILTER(f_float)
{
    double d;
    UNUSED;
    *out = given(in[0]) ? in[0] : sg_v_float(0);
    if (self.kind == SG_V_FLOAT) *out = self;
    else if (self.kind == SG_V_INT || self.kind == SG_V_BOOL) *out = sg_v_float((double)self.u.i);
    else if (self.kind == SG_V_UNDEFINED) return sg_jinja_fail(st, "float: the value is undefined");
    else if (self.kind == SG_V_STR && sg_float_parse(sg_v_str(self)->s, sg_v_str(self)->n, &d)) *out = sg_v_float(d);
    return SEGUE_OK;
}

FILTER(f_abs)
{
    UNUSED;
    if (self.kind == SG_V_FLOAT) return *out = sg_v_float(fabs(self.u.f)), SEGUE_OK;
    if (self.kind != SG_V_INT && self.kind != SG_V_BOOL) return sg_jinja_fail(st, "abs: '%s' is no number", sg_val_type(self.kind));
    if (self.u.i < 0) return sg_val_binary(st, '-', sg_v_int(0), self, out);
    *out = sg_v_int(self.u.i);
    return SEGUE_OK;
}

/* round(int, negative): to tens, half to even. */
static segue_status round_int(struct sg_jinja *st, int64_t v, int64_t places, struct sg_val *out)
{
    int64_t unit = 1;
    if (places >= 0) return *out = sg_v_int(v), SEGUE_OK;
    if (places < -18) return *out = sg_v_int(0), SEGUE_OK;
    while (places++ < 0) unit *= 10;
    int64_t q = v / unit, r = v % unit, twice = llabs(r) * 2;
    if (twice < 0 || twice > unit || (twice == unit && q % 2 != 0)) q += v < 0 ? -1 : 1;
    return sg_val_binary(st, '*', sg_v_int(q), sg_v_int(unit), out);
}

FILTER(f_round)
{
    int64_t places = 0;
    char text[400];
    double d = self.kind == SG_V_FLOAT ? self.u.f : (double)self.u.i;
    UNUSED;
    int how = !given(in[1]) || sg_v_is(in[1], "common", 6) ? 0 : sg_v_is(in[1], "ceil", 4) ? 1 : sg_v_is(in[1], "floor", 5) ? 2 : 3;
    if (how == 3) return sg_jinja_fail(st, "round: the method must be common, ceil or floor");
    if (given(in[0])) SG_TRY(sg_val_index(st, in[0], "the precision of round", &places));
    if (self.kind < SG_V_BOOL || self.kind > SG_V_FLOAT) return sg_jinja_fail(st, "round: '%s' is no number", sg_val_type(self.kind));
    if (how) {
        double unit = pow(10, (double)places), r = how == 1 ? ceil(d * unit) : floor(d * unit);
        if (!isfinite(r)) return sg_jinja_fail(st, "round: the number is not finite");
        *out = sg_v_float(r / unit);
        return SEGUE_OK;
    }
    if (self.kind != SG_V_FLOAT) return round_int(st, self.u.i, places, out);
    if (!isfinite(d) || places > 300) return *out = self, SEGUE_OK;
    if (places >= 0) {
        sg_float_digits(text, sizeof text, 'f', (int)places, d);
        if (!sg_float_parse(text, strlen(text), &d)) d = self.u.f; /* longer than a number can be: has no fraction */
    } else {
        double unit = pow(10, (double)-places);
        d = places < -308 ? copysign(0.0, d) : nearbyint(d / unit) * unit;
    }
    *out = sg_v_float(d);
    return SEGUE_OK;
}

/* --- collections --- */

FILTER(f_length)
{
    size_t n;
    UNUSED;
    SG_TRY(sg_val_length(st, self, &n));
    *out = sg_v_int((int64_t)n);
    return SEGUE_OK;
}

FILTER(f_default)
{
    UNUSED;
    *out = self;
    if (self.kind != SG_V_UNDEFINED && !(sg_val_true(in[1]) && !sg_val_true(self))) return SEGUE_OK;
    if (given(in[0])) return *out = in[0], SEGUE_OK;
    return sg_str_borrow(st, "", 0, out);
}

FILTER(f_list)
{
    struct sg_list *l = NULL;
    UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

FILTER(f_first)
{
    struct sg_iter it;
    int got;
    UNUSED;
    SG_TRY(sg_iter_open(st, self, &it));
    SG_TRY(sg_iter_next(st, &it, out, &got));
    if (!got) *out = sg_v_undefined(NULL, 0);
    return SEGUE_OK;
}

FILTER(f_last)
{
    struct sg_list *l = NULL;
    UNUSED;
    if (self.kind == SG_V_ITER) return sg_jinja_fail(st, "last: a generator cannot be reversed; use |list first");
    if (self.kind == SG_V_LIST || self.kind == SG_V_TUPLE) l = sg_v_list(self);
    else SG_TRY(sg_val_to_list(st, self, &l));
    *out = l->n ? l->items[l->n - 1] : sg_v_undefined(NULL, 0);
    return SEGUE_OK;
}

static const char *reversed_name(int kind)
{
    return kind == SG_V_LIST ? "list_reverseiterator" : kind == SG_V_DICT ? "dict_reversekeyiterator" : "reversed";
}

FILTER(f_reverse)
{
    struct sg_list *l = NULL;
    struct sg_val part[3] = {sg_v_none(), sg_v_none(), sg_v_int(-1)};
    UNUSED;
    if (self.kind == SG_V_STR) return sg_val_slice(st, self, part, out);
    SG_TRY(sg_val_to_list(st, self, &l));
    for (size_t i = 0; i < l->n / 2; i++) {
        struct sg_val v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
    if (self.kind == SG_V_ITER) return *out = sg_v_of(&l->o), SEGUE_OK;
    return sg_seq_make(st, SG_V_ITER, l, reversed_name(self.kind), out);
}

FILTER(f_items)
{
    struct sg_list *l = NULL;
    UNUSED;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    if (self.kind != SG_V_UNDEFINED && self.kind != SG_V_DICT)
        return sg_jinja_fail(st, "items: '%s' is no mapping", sg_val_type(self.kind));
    for (size_t i = 0; self.kind == SG_V_DICT && i < sg_v_dict(self)->n; i++) {
        struct sg_val pair;
        SG_TRY(sg_pair_make(st, sg_v_dict(self)->pairs[i].key, sg_v_dict(self)->pairs[i].value, &pair));
        SG_TRY(sg_list_add(st, l, pair));
    }
    return sg_seq_make(st, SG_V_ITER, l, "generator", out);
}

/* item.a.b.0 by a dotted path; attr none = the item itself. fallback replaces what is undefined. */
static segue_status path_get(struct sg_jinja *st, struct sg_val item, const char *s, size_t n, struct sg_val fallback,
                             struct sg_val *out)
{
    *out = item;
    for (const char *e = s + n;;) {
        const char *dot = memchr(s, '.', (size_t)(e - s)), *end = dot ? dot : e;
        struct sg_val key;
        int64_t index;
        int digits = end > s;
        for (const char *p = s; p < end; p++) digits &= *p >= '0' && *p <= '9';
        if (digits && sg_int_parse(s, (size_t)(end - s), 10, &index) == 1) key = sg_v_int(index);
        else SG_TRY(sg_str_make(st, s, (size_t)(end - s), &key));
        SG_TRY(sg_val_item(st, *out, key, NULL, out));
        if (given_value(fallback) && fallback.kind != SG_V_UNDEFINED && out->kind == SG_V_UNDEFINED) *out = fallback;
        if (!dot) return SEGUE_OK;
        s = dot + 1;
    }
}

static segue_status attr_get(struct sg_jinja *st, struct sg_val item, struct sg_val attr, struct sg_val fallback,
                             struct sg_val *out)
{
    if (attr.kind == SG_V_STR) return path_get(st, item, sg_v_str(attr)->s, sg_v_str(attr)->n, fallback, out);
    if (!given(attr) || attr.kind == SG_V_NONE) return *out = item, SEGUE_OK;
    SG_TRY(sg_val_item(st, item, attr, NULL, out));
    if (given_value(fallback) && out->kind == SG_V_UNDEFINED) *out = fallback;
    return SEGUE_OK;
}

static segue_status fold_case(struct sg_jinja *st, struct sg_val v, int fold, struct sg_val *out)
{
    *out = v;
    if (!fold || v.kind != SG_V_STR) return SEGUE_OK;
    struct sg_buf b = sg_buf_begin(st);
    return sg_str_take(st, sg_case_put(st, &b, sg_v_str(v), 0, sg_v_str(v)->n, SG_CASE_LOWER), &b, out);
}

static segue_status attr_key(struct sg_jinja *st, struct sg_val item, struct sg_val attr, int fold, struct sg_val *out)
{
    struct sg_val v;
    SG_TRY(attr_get(st, item, attr, (struct sg_val){0}, &v));
    return fold_case(st, v, fold, out);
}

/* The sort key of "a,b": a list of both; lists are compared by equality first, so a single one is a list too. */
static segue_status multi_key(struct sg_jinja *st, struct sg_val item, struct sg_val attr, int fold, struct sg_val *out)
{
    struct sg_list *l = NULL;
    struct sg_val v;
    SG_TRY(sg_list_make(st, SG_V_LIST, 1, &l));
    *out = sg_v_of(&l->o);
    if (attr.kind != SG_V_STR) {
        SG_TRY(attr_key(st, item, attr, fold, &v));
        return sg_list_add(st, l, v);
    }
    for (const char *s = sg_v_str(attr)->s, *e = s + sg_v_str(attr)->n, *comma = s; comma; s = comma + 1) {
        comma = memchr(s, ',', (size_t)(e - s));
        SG_TRY(path_get(st, item, s, (size_t)((comma ? comma : e) - s), (struct sg_val){0}, &v));
        SG_TRY(fold_case(st, v, fold, &v));
        SG_TRY(sg_list_add(st, l, v));
        if (!comma) break;
    }
    return SEGUE_OK;
}

static segue_status sort_by(struct sg_jinja *st, struct sg_list *l, struct sg_val attr, int fold, int reverse, int multi)
{
    struct sg_list *keys = NULL;
    SG_TRY(sg_list_make(st, SG_V_LIST, l->n, &keys));
    for (size_t i = 0; i < l->n; i++) {
        SG_TRY((multi ? multi_key : attr_key)(st, l->items[i], attr, fold, &keys->items[i]));
        keys->n = i + 1;
    }
    return sg_val_sort(st, keys->items, l->items, l->n, reverse);
}

FILTER(f_sort)
{
    struct sg_list *l = NULL;
    UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    SG_TRY(sort_by(st, l, in[2], !sg_val_true(in[1]), sg_val_true(in[0]), 1));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

FILTER(f_dictsort)
{
    struct sg_list *l = NULL;
    struct sg_view view = {.which = 'i'};
    int by_value = sg_v_is(in[1], "value", 5);
    UNUSED;
    if (given(in[1]) && !by_value && !sg_v_is(in[1], "key", 3)) return sg_jinja_fail(st, "dictsort: sort by 'key' or 'value'");
    if (self.kind != SG_V_DICT) return sg_jinja_fail(st, "dictsort: '%s' is no mapping", sg_val_type(self.kind));
    view.dict = sg_v_dict(self);
    view.o.kind = SG_V_VIEW;
    SG_TRY(sg_val_to_list(st, sg_v_of(&view.o), &l));
    SG_TRY(sort_by(st, l, sg_v_int(by_value), !sg_val_true(in[0]), sg_val_true(in[2]), 0));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

FILTER(f_unique)
{
    struct sg_list *from = NULL, *l = NULL;
    struct sg_dict *seen = NULL;
    UNUSED;
    SG_TRY(sg_val_to_list(st, self, &from));
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    SG_TRY(sg_dict_make(st, SG_V_DICT, &seen));
    for (size_t i = 0; i < from->n; i++) {
        struct sg_val key, old;
        SG_TRY(attr_key(st, from->items[i], in[1], !sg_val_true(in[0]), &key));
        SG_TRY(sg_dict_get(st, seen, key, &old));
        if (old.kind != SG_V_MISSING) continue;
        SG_TRY(sg_dict_set(st, seen, key, sg_v_none()));
        SG_TRY(sg_list_add(st, l, from->items[i]));
    }
    return sg_seq_make(st, SG_V_ITER, l, "generator", out);
}

FILTER(f_min_max)
{
    struct sg_list *l = NULL;
    struct sg_val best = {0};
    UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    *out = sg_v_undefined(NULL, 0);
    for (size_t i = 0; i < l->n; i++) {
        struct sg_val key;
        int c = 0;
        SG_TRY(attr_key(st, l->items[i], in[1], !sg_val_true(in[0]), &key));
        if (i) SG_TRY(sg_val_order(st, key, best, &c));
        if (i && c != (f->which == '<' ? -1 : 1)) continue;
        best = key;
        *out = l->items[i];
    }
    return SEGUE_OK;
}

FILTER(f_sum)
{
    struct sg_list *l = NULL;
    UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    *out = given(in[1]) ? in[1] : sg_v_int(0);
    if (out->kind == SG_V_STR) return sg_jinja_fail(st, "sum: strings are joined with |join");
    for (size_t i = 0; i < l->n; i++) {
        struct sg_val v;
        SG_TRY(attr_get(st, l->items[i], in[0], (struct sg_val){0}, &v));
        SG_TRY(sg_val_binary(st, '+', *out, v, out));
    }
    return SEGUE_OK;
}

FILTER(f_join)
{
    struct sg_iter it;
    struct sg_val by = in[0], v;
    int got;
    UNUSED;
    SG_TRY(given(by) ? sg_val_text(st, by, &by) : sg_str_borrow(st, "", 0, &by));
    SG_TRY(sg_iter_open(st, self, &it));
    struct sg_buf b = {.limit = st->limits.value_bytes};
    segue_status s = SEGUE_OK;
    for (size_t i = 0; s == SEGUE_OK; i++) {
        s = sg_iter_next(st, &it, &v, &got);
        if (s != SEGUE_OK || !got) break;
        if (i) s = sg_put_str(st, &b, by);
        if (s == SEGUE_OK) s = attr_get(st, v, in[1], (struct sg_val){0}, &v);
        if (s == SEGUE_OK) s = sg_put_str(st, &b, v);
    }
    return sg_str_take(st, s, &b, out);
}

static struct sg_args args_after(const struct sg_args *args, size_t n)
{
    return args->pos_n > n ? (struct sg_args){args->pos + n, args->pos_n - n, args->named} : (struct sg_args){NULL, 0, args->named};
}

FILTER(f_map)
{
    struct sg_list *from = NULL, *l = NULL;
    const struct sg_val *attr = args->named ? sg_dict_name(args->named, "attribute", 9) : NULL, *def;
    const struct sg_func *call = NULL;
    struct sg_str *name = NULL;
    UNUSED;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    if (!sg_val_true(self)) return sg_seq_make(st, SG_V_ITER, l, "generator", out);
    SG_TRY(sg_val_to_list(st, self, &from));
    SG_TRY(sg_list_make(st, SG_V_LIST, from->n, &l));
    def = args->named ? sg_dict_name(args->named, "default", 7) : NULL;
    if (args->pos_n || !attr) {
        if (!args->pos_n) return sg_jinja_fail(st, "map needs a filter or attribute=");
        SG_TRY(sg_val_want_str(st, args->pos[0], "the filter of map", &name));
        call = sg_filter_find(name->s, name->n);
        if (!call) return sg_jinja_fail(st, "map: there is no filter '%.*s'", (int)(name->n > 40 ? 40 : name->n), name->s);
    } else if (args->named->n > 1 + (def != NULL)) {
        return sg_jinja_fail(st, "map: an argument is not understood");
    }
    for (size_t i = 0; i < from->n; i++, l->n++) {
        struct sg_args rest = args_after(args, 1);
        SG_TRY(sg_jinja_enter(st));
        if (call) SG_TRY(sg_func_call(st, call, from->items[i], &rest, &l->items[i]));
        else SG_TRY(attr_get(st, from->items[i], *attr, def ? *def : (struct sg_val){0}, &l->items[i]));
        st->level--;
    }
    return sg_seq_make(st, SG_V_ITER, l, "generator", out);
}

/* select, reject, selectattr, rejectattr; which: bit 0 reject, bit 1 by attribute */
FILTER(f_select)
{
    struct sg_list *from = NULL, *l = NULL;
    const struct sg_func *test = NULL;
    size_t skip = f->which >> 1;
    UNUSED;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    if (!sg_val_true(self)) return sg_seq_make(st, SG_V_ITER, l, "generator", out);
    SG_TRY(sg_val_to_list(st, self, &from));
    if (args->pos_n < skip) return sg_jinja_fail(st, "'%s' needs the name of an attribute", f->name);
    if (args->pos_n > skip) {
        struct sg_str *name = NULL;
        SG_TRY(sg_val_want_str(st, args->pos[skip], "the name of a test", &name));
        test = sg_test_find(name->s, name->n);
        if (!test) return sg_jinja_fail(st, "there is no test named '%.*s'", (int)(name->n > 40 ? 40 : name->n), name->s);
        skip++;
    }
    for (size_t i = 0; i < from->n; i++) {
        struct sg_val v = from->items[i], yes;
        struct sg_args rest = args_after(args, skip);
        if (f->which >> 1) SG_TRY(attr_get(st, v, args->pos[0], (struct sg_val){0}, &v));
        yes = v;
        if (test) SG_TRY(sg_func_call(st, test, v, &rest, &yes));
        if (sg_val_true(yes) == !(f->which & 1)) SG_TRY(sg_list_add(st, l, from->items[i]));
    }
    return sg_seq_make(st, SG_V_ITER, l, "generator", out);
}

FILTER(f_groupby)
{
    struct sg_list *l = NULL, *groups = NULL, *group = NULL;
    struct sg_val last = {0};
    int fold = !sg_val_true(in[2]);
    UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &groups));
    if (given_value(in[1])) return sg_jinja_fail(st, "groupby: a default is not supported");
    SG_TRY(sort_by(st, l, in[0], fold, 0, 0));
    for (size_t i = 0; i < l->n; i++) {
        struct sg_val key, real, pair;
        int same = 0;
        SG_TRY(attr_key(st, l->items[i], in[0], fold, &key));
        if (group) SG_TRY(sg_val_equal(st, key, last, &same));
        last = key;
        if (!same) {
            SG_TRY(attr_key(st, l->items[i], in[0], 0, &real));
            SG_TRY(sg_list_make(st, SG_V_LIST, 0, &group));
            SG_TRY(sg_pair_make(st, real, sg_v_of(&group->o), &pair));
            SG_TRY(sg_list_add(st, groups, pair));
        }
        SG_TRY(sg_list_add(st, group, l->items[i]));
    }
    *out = sg_v_of(&groups->o);
    return SEGUE_OK;
}

/* batch: rows of n; slice: n columns */
FILTER(f_batch)
{
    struct sg_list *from = NULL, *rows = NULL, *row = NULL;
    struct sg_val fill = in[1];
    int64_t n;
    UNUSED;
    SG_TRY(sg_val_to_list(st, self, &from));
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &rows));
    SG_TRY(sg_val_index(st, in[0], "the size", &n));
    if (n < 1) return sg_jinja_fail(st, "'%s' needs a size above zero", f->name);
    size_t base = from->n / (size_t)n, extra = from->n % (size_t)n, at = 0;
    size_t count = f->which == 's' ? (size_t)n : base + (extra != 0);
    for (size_t i = 0; i < count; i++) {
        size_t len = f->which == 's' ? base + (i < extra) : at + (size_t)n <= from->n ? (size_t)n : from->n - at;
        SG_TRY(sg_list_make(st, SG_V_LIST, len, &row));
        for (size_t k = 0; k < len; k++) row->items[row->n++] = from->items[at++];
        int short_one = f->which == 's' ? i >= extra : len < (size_t)n;
        if (short_one && given(fill) && fill.kind != SG_V_NONE)
            for (size_t k = f->which == 's' ? (size_t)n - 1 : len; k < (size_t)n; k++) SG_TRY(sg_list_add(st, row, fill));
        SG_TRY(sg_list_add(st, rows, sg_v_of(&row->o)));
    }
    return sg_seq_make(st, SG_V_ITER, rows, "generator", out);
}

FILTER(f_attr)
{
    struct sg_str *name = NULL;
    struct sg_val none = {0};
    UNUSED;
    SG_TRY(sg_val_want_str(st, in[0], "the name of an attribute", &name));
    if (self.kind != SG_V_DICT) return sg_val_attr(st, self, name->s, name->n, NULL, out);
    int blocked;
    const struct sg_func *m = sg_method_find(self, name->s, name->n, &blocked);
    *out = none.kind ? none : sg_v_undefined(NULL, self.kind);
    return m && !blocked ? sg_val_attr(st, self, name->s, name->n, NULL, out) : SEGUE_OK;
}

const struct sg_func *sg_filter_find(const char *s, size_t n)
{
    static const struct sg_func table[] = {
        {"abs", f_abs, "", 0, 0}, {"attr", f_attr, "name", 1, 0}, {"batch", f_batch, "linecount fill_with", 1, 'b'},
        {"capitalize", by_method, NULL, 0, 0}, {"center", by_method, NULL, 0, 'c'}, {"count", f_length, "", 0, 0},
        {"d", f_default, "default_value boolean", 0, 0}, {"default", f_default, "default_value boolean", 0, 0},
        {"dictsort", f_dictsort, "case_sensitive by reverse", 0, 0}, {"e", f_escape, "", 0, 0},
        {"escape", f_escape, "", 0, 0}, {"first", f_first, "", 0, 0}, {"float", f_float, "default", 0, 0},
        {"forceescape", f_escape, "", 0, 'f'}, {"format", f_format, NULL, 0, 0},
        {"groupby", f_groupby, "attribute default case_sensitive", 1, 0},
        {"indent", f_indent, "width first blank", 0, 0}, {"int", f_int, "default base", 0, 0},
        {"items", f_items, "", 0, 0}, {"join", f_join, "d attribute", 0, 0}, {"last", f_last, "", 0, 0},
        {"length", f_length, "", 0, 0}, {"list", f_list, "", 0, 0}, {"lower", by_method, NULL, 0, 0},
        {"map", f_map, NULL, 0, 0}, {"max", f_min_max, "case_sensitive attribute", 0, '>'},
        {"min", f_min_max, "case_sensitive attribute", 0, '<'}, {"reject", f_select, NULL, 0, 1},
        {"rejectattr", f_select, NULL, 0, 3}, {"replace", f_replace, "old new count", 2, 0},
        {"reverse", f_reverse, "", 0, 0}, {"round", f_round, "precision method", 0, 0}, {"safe", f_safe, "", 0, 0},
        {"select", f_select, NULL, 0, 0}, {"selectattr", f_select, NULL, 0, 2},
        {"slice", f_batch, "slices fill_with", 1, 's'}, {"sort", f_sort, "reverse case_sensitive attribute", 0, 0},
        {"string", f_string, "", 0, 0}, {"sum", f_sum, "attribute start", 0, 0}, {"title", f_title, "", 0, 0},
        {"tojson", f_tojson, "ensure_ascii indent separators sort_keys", 0, 0}, {"trim", by_method, NULL, 0, 't'},
        {"truncate", f_truncate, "length killwords end leeway", 0, 0},
        {"unique", f_unique, "case_sensitive attribute", 0, 0}, {"upper", by_method, NULL, 0, 0},
        {"urlencode", f_urlencode, "", 0, 0}, {"wordcount", f_wordcount, "", 0, 0}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strlen(table[i].name) == n && !memcmp(table[i].name, s, n)) return &table[i];
    return NULL;
}
