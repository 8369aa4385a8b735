/* jinja_filters.c: the filters of jinja2 that chat templates use, as far as they are about texts and numbers; those
 * about collections are in jinja_lists.c.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/jinja/jinja.h"

static segue_status as_str(struct sg_jinja *st, struct sg_val v, struct sg_val *keep, struct sg_str **out)
{
    SG_TRY(sg_val_text(st, v, keep));
    *out = sg_v_str(*keep);
    return SEGUE_OK;
}

/* --- texts --- */

/* Filters that are the method of the same name on str(value). */
SG_FUNC(by_method)
{
    struct sg_val text, width = sg_v_int(80);
    struct sg_args own = *args;
    SG_UNUSED;
    SG_TRY(sg_val_text(st, self, &text));
    if (self.kind == SG_V_STR) text = self;
    const char *name = f->which == 't' ? "strip" : f->name;
    if (f->which == 'c' && !own.pos_n && !own.named) own = (struct sg_args){&width, 1, NULL};
    return sg_str_method_call(st, sg_str_method_find(name, strlen(name)), text, &own, out);
}

SG_FUNC(f_title)
{
    struct sg_val keep;
    struct sg_str *s = NULL;
    struct sg_buf b = sg_buf_begin(st);
    segue_status r = SEGUE_OK;
    size_t from = 0;
    SG_UNUSED;
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

SG_FUNC(f_string)
{
    SG_UNUSED;
    if (self.kind == SG_V_STR) return *out = self, SEGUE_OK;
    return sg_val_text(st, self, out);
}

SG_FUNC(f_replace)
{
    struct sg_val keep[3];
    SG_UNUSED;
    SG_TRY(sg_val_text(st, self, &keep[0]));
    SG_TRY(sg_val_text(st, in[0], &keep[1]));
    SG_TRY(sg_val_text(st, in[1], &keep[2]));
    struct sg_val pos[3] = {keep[1], keep[2], in[2].kind > SG_V_NONE ? in[2] : sg_v_int(-1)};
    struct sg_args call = {pos, 3, NULL};
    return sg_func_call(st, sg_str_method_find("replace", 7), keep[0], &call, out);
}

/* which 'f': also what is escaped already */
SG_FUNC(f_escape)
{
    SG_UNUSED;
    if (f->which == 'f') self.aux = 0;
    return sg_str_escape(st, self, out);
}

SG_FUNC(f_safe)
{
    SG_UNUSED;
    SG_TRY(sg_val_text(st, self, out));
    out->aux = 1;
    return SEGUE_OK;
}

static segue_status indent_lines(struct sg_jinja *st, struct sg_buf *b, const struct sg_str *s,
                                 const struct sg_str *by, int first, int blank)
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

SG_FUNC(f_indent)
{
    struct sg_str *s = NULL, *by = NULL;
    struct sg_val width = sg_v_given(in[0]) ? in[0] : sg_v_int(4), space;
    SG_UNUSED;
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

SG_FUNC(f_truncate)
{
    struct sg_val part[3] = {sg_v_none(), sg_v_int(0), sg_v_none()}, cut, end;
    struct sg_str *e = NULL;
    int64_t length = 255, leeway = 5;
    size_t size;
    SG_UNUSED;
    SG_TRY(sg_val_length(st, self, &size));
    if (sg_v_given(in[0])) SG_TRY(sg_val_index(st, in[0], "a length", &length));
    if (sg_v_some(in[3])) SG_TRY(sg_val_index(st, in[3], "leeway", &leeway));
    end = in[2];
    if (!sg_v_given(end)) SG_TRY(sg_str_borrow(st, "...", 3, &end));
    SG_TRY(sg_val_want_str(st, end, "the end of a truncated text", &e));
    if (length < (int64_t)e->chars || leeway < 0)
        return sg_jinja_fail(st, "truncate: the length is less than its end mark");
    if ((int64_t)size <= length || (int64_t)size - length <= leeway) return *out = self, SEGUE_OK;
    if (self.kind != SG_V_STR)
        return sg_jinja_fail(st, "truncate: '%s' is no string", sg_val_type(self.kind));
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

SG_FUNC(f_wordcount)
{
    struct sg_val keep;
    struct sg_str *s = NULL;
    int64_t n = 0, inside = 0;
    SG_UNUSED;
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
        int plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
                    (c && strchr("_.-~", c)) || (c == '/' && !query);
        snprintf(hex, sizeof hex, "%%%02X", c);
        if (query && c == ' ')
            SG_TRY(sg_put(st, b, "+", 1));
        else
            SG_TRY(plain ? sg_put(st, b, s->s + i, 1) : sg_put(st, b, hex, 3));
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

SG_FUNC(f_urlencode)
{
    struct sg_buf b = sg_buf_begin(st);
    SG_UNUSED;
    int whole = self.kind == SG_V_STR || !sg_val_iterable(self);
    return sg_str_take(st, whole ? quote_url(st, &b, self, 0) : quote_pairs(st, &b, self), &b, out);
}

SG_FUNC(f_format)
{
    struct sg_val keep, tuple;
    struct sg_str *s = NULL;
    struct sg_list *l = NULL;
    SG_UNUSED;
    SG_TRY(as_str(st, self, &keep, &s));
    if (args->pos_n && args->named)
        return sg_jinja_fail(st, "format: positional and named values cannot be mixed");
    SG_TRY(sg_list_make(st, SG_V_TUPLE, args->pos_n, &l));
    for (size_t i = 0; i < args->pos_n; i++) l->items[l->n++] = args->pos[i];
    tuple = args->named ? sg_v_of(&args->named->o) : sg_v_of(&l->o);
    return sg_format_percent(st, s, tuple, out);
}

static segue_status json_style(struct sg_jinja *st, struct sg_val *in, struct sg_json_style *style)
{
    static const char spaces[] = "                                                                ";
    *style = (struct sg_json_style){.ascii = sg_val_true(in[0]),
                                    .sort = sg_val_true(in[3]),
                                    .item_sep = ", ",
                                    .item_n = 2,
                                    .key_sep = ": ",
                                    .key_n = 2};
    if (sg_v_some(in[1])) {
        style->indented = 1;
        style->item_n = 1; /* "," */
        if (in[1].kind == SG_V_STR) {
            style->indent = sg_v_str(in[1])->s;
            style->indent_n = sg_v_str(in[1])->n;
        } else {
            int64_t n;
            SG_TRY(sg_val_index(st, in[1], "indent of tojson", &n));
            if (n > (int64_t)sizeof spaces - 1)
                return sg_jinja_fail(st, "tojson: an indent of %lld is too wide", (long long)n);
            style->indent = spaces;
            style->indent_n = n > 0 ? (size_t)n : 0;
        }
    }
    if (sg_v_some(in[2])) {
        struct sg_list *two = NULL;
        struct sg_str *s[2];
        SG_TRY(sg_val_to_list(st, in[2], &two));
        if (two->n != 2) return sg_jinja_fail(st, "tojson: separators must be a pair");
        for (size_t i = 0; i < 2; i++)
            SG_TRY(sg_val_want_str(st, two->items[i], "a separator of tojson", &s[i]));
        style->item_sep = s[0]->s;
        style->item_n = s[0]->n;
        style->key_sep = s[1]->s;
        style->key_n = s[1]->n;
    }
    return SEGUE_OK;
}

SG_FUNC(f_tojson)
{
    struct sg_json_style style;
    SG_UNUSED;
    SG_TRY(json_style(st, in, &style));
    struct sg_buf b = sg_buf_begin(st);
    return sg_str_take(st, sg_put_json(st, &b, self, &style, 0), &b, out);
}

/* --- numbers --- */

SG_FUNC(f_int)
{
    int64_t base = 10, i;
    double d;
    SG_UNUSED;
    *out = sg_v_given(in[0]) ? in[0] : sg_v_int(0);
    if (sg_v_given(in[1])) SG_TRY(sg_val_index(st, in[1], "a base", &base));
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

SG_FUNC(f_float)
{
    double d;
    SG_UNUSED;
    *out = sg_v_given(in[0]) ? in[0] : sg_v_float(0);
    if (self.kind == SG_V_FLOAT)
        *out = self;
    else if (self.kind == SG_V_INT || self.kind == SG_V_BOOL)
        *out = sg_v_float((double)self.u.i);
    else if (self.kind == SG_V_UNDEFINED)
        return sg_jinja_fail(st, "float: the value is undefined");
    else if (self.kind == SG_V_STR && sg_float_parse(sg_v_str(self)->s, sg_v_str(self)->n, &d))
        *out = sg_v_float(d);
    return SEGUE_OK;
}

SG_FUNC(f_abs)
{
    SG_UNUSED;
    if (self.kind == SG_V_FLOAT) return *out = sg_v_float(fabs(self.u.f)), SEGUE_OK;
    if (self.kind != SG_V_INT && self.kind != SG_V_BOOL)
        return sg_jinja_fail(st, "abs: '%s' is no number", sg_val_type(self.kind));
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

SG_FUNC(f_round)
{
    int64_t places = 0;
    char text[400];
    double d = self.kind == SG_V_FLOAT ? self.u.f : (double)self.u.i;
    SG_UNUSED;
    int how = !sg_v_given(in[1]) || sg_v_is(in[1], "common", 6) ? 0
              : sg_v_is(in[1], "ceil", 4)                       ? 1
              : sg_v_is(in[1], "floor", 5)                      ? 2
                                                                : 3;
    if (how == 3) return sg_jinja_fail(st, "round: the method must be common, ceil or floor");
    if (sg_v_given(in[0])) SG_TRY(sg_val_index(st, in[0], "the precision of round", &places));
    if (self.kind < SG_V_BOOL || self.kind > SG_V_FLOAT)
        return sg_jinja_fail(st, "round: '%s' is no number", sg_val_type(self.kind));
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
        if (!sg_float_parse(text, strlen(text), &d))
            d = self.u.f; /* longer than a number can be: has no fraction */
    } else {
        double unit = pow(10, (double)-places);
        d = places < -308 ? copysign(0.0, d) : nearbyint(d / unit) * unit;
    }
    *out = sg_v_float(d);
    return SEGUE_OK;
}

const struct sg_func *sg_func_search(const struct sg_func *table, size_t count, const char *s, size_t n)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == n && !memcmp(table[i].name, s, n)) return &table[i];
    return NULL;
}

const struct sg_func *sg_filter_find(const char *s, size_t n)
{
    static const struct sg_func table[] = {
        {"abs", f_abs, "", 0, 0},
        {"capitalize", by_method, NULL, 0, 0},
        {"center", by_method, NULL, 0, 'c'},
        {"e", f_escape, "", 0, 0},
        {"escape", f_escape, "", 0, 0},
        {"float", f_float, "default", 0, 0},
        {"forceescape", f_escape, "", 0, 'f'},
        {"format", f_format, NULL, 0, 0},
        {"indent", f_indent, "width first blank", 0, 0},
        {"int", f_int, "default base", 0, 0},
        {"lower", by_method, NULL, 0, 0},
        {"replace", f_replace, "old new count", 2, 0},
        {"round", f_round, "precision method", 0, 0},
        {"safe", f_safe, "", 0, 0},
        {"string", f_string, "", 0, 0},
        {"title", f_title, "", 0, 0},
        {"tojson", f_tojson, "ensure_ascii indent separators sort_keys", 0, 0},
        {"trim", by_method, NULL, 0, 't'},
        {"truncate", f_truncate, "length killwords end leeway", 0, 0},
        {"upper", by_method, NULL, 0, 0},
        {"urlencode", f_urlencode, "", 0, 0},
        {"wordcount", f_wordcount, "", 0, 0}};
    const struct sg_func *f = sg_func_search(table, sizeof table / sizeof *table, s, n);
    return f ? f : sg_list_filter_find(s, n);
}
