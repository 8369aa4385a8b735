/* jinja_filters.c: filters on strings and numbers: case, padding, escaping, JSON, conversion and rounding. self is the
 * filtered value; in[] holds the arguments in the order of the parameter names in the table at the end. Results equal
 * those of jinja2's filters of the same name.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* str(v). *text: the string as a value; *out: the same as a struct. */
static segue_status to_str(struct sg_jinja *st, struct sg_val v, struct sg_val *text, struct sg_str **out)
{
    SG_TRY(sg_val_text(st, v, text));
    *out = sg_v_str(*text);
    return SEGUE_OK;
}

/* Filters that equal the method of the same name on str(value). variant 't': trim is strip; 'c': center has the
 * default width 80. */
SG_BUILTIN(f_str_method)
{
    struct sg_val text, width = sg_v_int(80);
    struct sg_call_args call = *args;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_text(st, self, &text));
    /* a string keeps its Markup flag, which sg_val_text drops */
    if (self.kind == SG_V_STR) text = self;
    const char *name = f->variant == 't' ? "strip" : f->name;
    /* without arguments */
    if (f->variant == 'c' && !call.pos_n && !call.named) call = (struct sg_call_args){&width, 1, NULL};
    return sg_str_method_call(st, sg_str_method_find(name, strlen(name)), text, &call, out);
}

/* Title case of each word. Unlike str.title, an apostrophe does not start a word: "don't" becomes "Don't". */
SG_BUILTIN(f_title)
{
    struct sg_val keep;
    struct sg_str *s = NULL;
    struct sg_buf b = sg_val_buf(st);
    segue_status r = SEGUE_OK;
    size_t from = 0;
    SG_BUILTIN_UNUSED;
    SG_TRY(to_str(st, self, &keep, &s));
    /* from: start of the word; the end of the text (p == e) closes the last word like a boundary does */
    for (const char *p = s->s, *e = p + s->n; r == SEGUE_OK && from < s->n;) {
        const char *q = p;
        uint32_t c = p < e ? sg_char_get(&q) : 0;
        int boundary = p < e && ((c < 128 && c && strchr("-({[<", (int)c)) || sg_char_is(c, SG_IS_SPACE));
        if (p < e && !boundary) {
            p = q;
            continue;
        }
        size_t to = (size_t)(p - s->s);
        if (to > from) {
            const char *first = s->s + from;
            sg_char_get(&first);
            r = sg_case_put(st, &b, s, from, (size_t)(first - s->s), SG_CASE_UPPER);
            /* the rest of the word; a temporary string, as sg_case_put takes one */
            struct sg_str tail = {.s = first, .n = to - (size_t)(first - s->s)};
            if (r == SEGUE_OK) r = sg_case_put(st, &b, &tail, 0, tail.n, SG_CASE_LOWER);
        }
        if (r == SEGUE_OK && boundary) r = sg_put(st, &b, p, (size_t)(q - p));
        from = (size_t)(q - s->s);
        p = q;
    }
    return sg_str_from_buf(st, r, &b, out);
}

/* str(value); a string is returned as it is, Markup included. */
SG_BUILTIN(f_string)
{
    SG_BUILTIN_UNUSED;
    if (self.kind == SG_V_STR) return *out = self, SEGUE_OK;
    return sg_val_text(st, self, out);
}

/* replace(old, new, count) on str(value); without count or with None all occurrences are replaced. */
SG_BUILTIN(f_replace)
{
    struct sg_val keep[3];
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_text(st, self, &keep[0]));
    SG_TRY(sg_val_text(st, in[0], &keep[1]));
    SG_TRY(sg_val_text(st, in[1], &keep[2]));
    /* count -1: all occurrences */
    struct sg_val pos[3] = {keep[1], keep[2], in[2].kind > SG_V_NONE ? in[2] : sg_v_int(-1)};
    struct sg_call_args call = {pos, 3, NULL};
    return sg_builtin_call(st, sg_str_method_find("replace", 7), keep[0], &call, out);
}

/* escape and e return Markup unchanged; forceescape (variant 'f') escapes it again. */
SG_BUILTIN(f_escape)
{
    SG_BUILTIN_UNUSED;
    if (f->variant == 'f') self.aux = 0;
    return sg_str_escape(st, self, out);
}

/* str(value) as Markup, which no later operation escapes. */
SG_BUILTIN(f_safe)
{
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_text(st, self, out));
    out->aux = 1;
    return SEGUE_OK;
}

/* Append s with `by` before each line. first: before the first line too; blank: before empty lines too. */
static segue_status indent_lines(struct sg_jinja *st, struct sg_buf *b, const struct sg_str *s,
                                 const struct sg_str *by, int first, int blank)
{
    /* each turn appends one line, without its line end; all line ends become \n */
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
        /* \r\n is one line end */
        if (c == '\r' && p < e && *p == '\n') p++;
    }
}

/* indent(width=4, first, blank). A string as width is the indentation itself. */
SG_BUILTIN(f_indent)
{
    struct sg_str *s = NULL, *by = NULL;
    struct sg_val width = sg_v_given(in[0]) ? in[0] : sg_v_int(4), space;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_expect_str(st, self, "the value of indent", &s));
    /* n spaces */
    if (width.kind != SG_V_STR) {
        int64_t n;
        SG_TRY(sg_val_index(st, width, "the width of an indent", &n));
        SG_TRY(sg_str_borrow(st, " ", 1, &space));
        SG_TRY(sg_val_binary(st, '*', space, sg_v_int(n), &width));
    }
    by = sg_v_str(width);
    struct sg_buf b = sg_val_buf(st);
    segue_status r = indent_lines(st, &b, s, by, sg_val_true(in[1]), sg_val_true(in[2]));
    SG_TRY(sg_str_from_buf(st, r, &b, out));
    /* indented Markup remains Markup */
    out->aux = self.aux;
    return SEGUE_OK;
}

/* truncate(length=255, killwords, end="...", leeway=5), in code points. A text that exceeds the length by at most
 * leeway is not cut. */
SG_BUILTIN(f_truncate)
{
    struct sg_val part[3] = {sg_v_none(), sg_v_int(0), sg_v_none()}, cut, end;
    struct sg_str *e = NULL;
    int64_t length = 255, leeway = 5;
    size_t size;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_length(st, self, &size));
    if (sg_v_given(in[0])) SG_TRY(sg_val_index(st, in[0], "a length", &length));
    if (sg_v_not_none(in[3])) SG_TRY(sg_val_index(st, in[3], "leeway", &leeway));
    end = in[2];
    if (!sg_v_given(end)) SG_TRY(sg_str_borrow(st, "...", 3, &end));
    SG_TRY(sg_val_expect_str(st, end, "the end of a truncated text", &e));
    /* jinja2 asserts this */
    if (length < (int64_t)e->chars || leeway < 0)
        return sg_jinja_fail(st, "truncate: the length is less than that of 'end'");
    if ((int64_t)size <= length || (int64_t)size - length <= leeway) return *out = self, SEGUE_OK;
    if (self.kind != SG_V_STR)
        return sg_jinja_fail(st, "truncate: expected a string, got '%s'", sg_val_type(self.kind));
    part[1] = sg_v_int(length - (int64_t)e->chars);
    SG_TRY(sg_val_slice(st, self, part, &cut));
    if (!sg_val_true(in[1])) { /* drop the last word, if there is more than one */
        struct sg_str *c = sg_v_str(cut);
        size_t n = c->n;
        while (n && c->s[n - 1] != ' ') n--;
        if (n) SG_TRY(sg_str_slice(st, cut, 0, n - 1, &cut));
    }
    return sg_val_binary(st, '+', cut, end, out);
}

/* Runs of letters, digits and underscores, which is \w+ in Python's regular expressions. */
SG_BUILTIN(f_wordcount)
{
    struct sg_val keep;
    struct sg_str *s = NULL;
    int64_t n = 0, inside = 0;
    SG_BUILTIN_UNUSED;
    SG_TRY(to_str(st, self, &keep, &s));
    SG_TRY(sg_jinja_step(st, s->n / 64));
    for (const char *p = s->s, *e = p + s->n; p < e;) {
        uint32_t c = sg_char_get(&p);
        /* a word is counted at its first character */
        int word = c == '_' || sg_char_is(c, SG_IS_ALPHA) || sg_char_is(c, SG_IS_NUMERIC);
        n += word && !inside;
        inside = word;
    }
    *out = sg_v_int(n);
    return SEGUE_OK;
}

/* Append str(v) percent-encoded. query: a part of a query string, where a space is + and / is encoded. */
static segue_status quote_url(struct sg_jinja *st, struct sg_buf *b, struct sg_val v, int query)
{
    struct sg_val keep;
    struct sg_str *s = NULL;
    SG_TRY(to_str(st, v, &keep, &s));
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->s[i];
        char hex[4];
        /* the unreserved characters of RFC 3986 */
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

/* Append the pairs of a dict, or of an iterable of pairs, as a query string: key=value&key=value. */
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

/* A string or number is quoted as a path; dicts and other iterables become a query string. */
SG_BUILTIN(f_urlencode)
{
    struct sg_buf b = sg_val_buf(st);
    SG_BUILTIN_UNUSED;
    /* an iterable that is not a string holds pairs */
    int whole = self.kind == SG_V_STR || !sg_val_iterable(self);
    return sg_str_from_buf(st, whole ? quote_url(st, &b, self, 0) : quote_pairs(st, &b, self), &b, out);
}

/* Python's % operator: "%s is %d"|format(a, b). Keywords give the dict for %(name)s. */
SG_BUILTIN(f_format)
{
    struct sg_val keep, tuple;
    struct sg_str *s = NULL;
    struct sg_list *l = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(to_str(st, self, &keep, &s));
    if (args->pos_n && args->named)
        return sg_jinja_fail(st, "format: positional and named values cannot be mixed");
    SG_TRY(sg_list_make(st, SG_V_TUPLE, args->pos_n, &l));
    for (size_t i = 0; i < args->pos_n; i++) l->items[l->n++] = args->pos[i];
    tuple = args->named ? sg_v_of(&args->named->o) : sg_v_of(&l->o);
    return sg_format_percent(st, s, tuple, out);
}

/* Options of tojson from in[]: ensure_ascii, indent, separators, sort_keys. The strings in style are borrowed from
 * arguments, which live until the call ends. */
static segue_status json_style(struct sg_jinja *st, struct sg_val *in, struct sg_json_style *style)
{
    static const char spaces[] = "                                                                ";
    *style = (struct sg_json_style){.ascii = sg_val_true(in[0]),
                                    .sort = sg_val_true(in[3]),
                                    .item_sep = ", ",
                                    .item_n = 2,
                                    .key_sep = ": ",
                                    .key_n = 2};
    if (sg_v_not_none(in[1])) {
        style->indented = 1;
        style->item_n = 1; /* only "," of ", ": a line break follows it */
        if (in[1].kind == SG_V_STR) {
            style->indent = sg_v_str(in[1])->s;
            style->indent_n = sg_v_str(in[1])->n;
        } else {
            int64_t n;
            SG_TRY(sg_val_index(st, in[1], "indent of tojson", &n));
            /* an indent is a pointer into `spaces`, which bounds it */
            if (n > (int64_t)sizeof spaces - 1)
                return sg_jinja_fail(st, "tojson: an indent of %lld is too wide", (long long)n);
            style->indent = spaces;
            style->indent_n = n > 0 ? (size_t)n : 0;
        }
    }
    if (sg_v_not_none(in[2])) {
        struct sg_list *two = NULL;
        struct sg_str *s[2];
        SG_TRY(sg_val_to_list(st, in[2], &two));
        if (two->n != 2) return sg_jinja_fail(st, "tojson: separators must be a pair");
        for (size_t i = 0; i < 2; i++)
            SG_TRY(sg_val_expect_str(st, two->items[i], "a separator of tojson", &s[i]));
        style->item_sep = s[0]->s;
        style->item_n = s[0]->n;
        style->key_sep = s[1]->s;
        style->key_n = s[1]->n;
    }
    return SEGUE_OK;
}

/* JSON as transformers renders it: not escaped for HTML, and non-ASCII characters kept unless ensure_ascii. */
SG_BUILTIN(f_tojson)
{
    struct sg_json_style style;
    SG_BUILTIN_UNUSED;
    /* in[]: ensure_ascii, indent, separators, sort_keys */
    SG_TRY(json_style(st, in, &style));
    struct sg_buf b = sg_val_buf(st);
    return sg_str_from_buf(st, sg_put_json(st, &b, self, &style, 0), &b, out);
}

/* int(value), or the default (0) when the conversion fails. A string may be a float: "3.7"|int is 3. */
SG_BUILTIN(f_int)
{
    int64_t base = 10, i;
    double d;
    SG_BUILTIN_UNUSED;
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
    /* *out is the default already */
    if (!isfinite(d)) return SEGUE_OK;
    /* 2^63 is the first double above INT64_MAX; -2^63 is INT64_MIN itself */
    if (d >= 9223372036854775808.0 || d < -9223372036854775808.0)
        return sg_jinja_fail(st, "an integer does not fit in 64 bits");
    *out = sg_v_int((int64_t)d);
    return SEGUE_OK;
}

/* float(value), or the default (0.0) when the conversion fails. */
SG_BUILTIN(f_float)
{
    double d;
    SG_BUILTIN_UNUSED;
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

/* abs(value). Minus goes through subtraction, which reports that -INT64_MIN does not fit. */
SG_BUILTIN(f_abs)
{
    SG_BUILTIN_UNUSED;
    if (self.kind == SG_V_FLOAT) return *out = sg_v_float(fabs(self.u.f)), SEGUE_OK;
    if (self.kind != SG_V_INT && self.kind != SG_V_BOOL)
        return sg_jinja_fail(st, "abs: expected a number, got '%s'", sg_val_type(self.kind));
    if (self.u.i < 0) return sg_val_binary(st, '-', sg_v_int(0), self, out);
    *out = sg_v_int(self.u.i);
    return SEGUE_OK;
}

/* round() of an integer: with negative places to a multiple of 10^-places, half to even. */
static segue_status round_int(struct sg_jinja *st, int64_t v, int64_t places, struct sg_val *out)
{
    int64_t unit = 1;
    if (places >= 0) return *out = sg_v_int(v), SEGUE_OK;
    /* 10^18 is the largest power of ten in int64_t */
    if (places < -18) return *out = sg_v_int(0), SEGUE_OK;
    while (places++ < 0) unit *= 10;
    /* twice < 0: the doubling overflowed, so the remainder is more than half */
    int64_t q = v / unit, r = v % unit, twice = llabs(r) * 2;
    if (twice < 0 || twice > unit || (twice == unit && q % 2 != 0)) q += v < 0 ? -1 : 1;
    return sg_val_binary(st, '*', sg_v_int(q), sg_v_int(unit), out);
}

/* round(precision=0, method="common"). The result of a float is a float; an integer stays one with "common". */
SG_BUILTIN(f_round)
{
    int64_t places = 0;
    char text[400];
    double d = self.kind == SG_V_FLOAT ? self.u.f : (double)self.u.i;
    SG_BUILTIN_UNUSED;
    /* 0 common, 1 ceil, 2 floor, 3 unknown */
    int how = !sg_v_given(in[1]) || sg_v_is(in[1], "common", 6) ? 0
              : sg_v_is(in[1], "ceil", 4)                       ? 1
              : sg_v_is(in[1], "floor", 5)                      ? 2
                                                                : 3;
    if (how == 3) return sg_jinja_fail(st, "round: the method must be common, ceil or floor");
    if (sg_v_given(in[0])) SG_TRY(sg_val_index(st, in[0], "the precision of round", &places));
    if (self.kind < SG_V_BOOL || self.kind > SG_V_FLOAT)
        return sg_jinja_fail(st, "round: expected a number, got '%s'", sg_val_type(self.kind));
    /* as in jinja2, which multiplies, rounds and divides */
    if (how) {
        double unit = pow(10, (double)places), r = how == 1 ? ceil(d * unit) : floor(d * unit);
        if (!isfinite(r)) return sg_jinja_fail(st, "round: the number is not finite");
        *out = sg_v_float(r / unit);
        return SEGUE_OK;
    }
    if (self.kind != SG_V_FLOAT) return round_int(st, self.u.i, places, out);
    if (!isfinite(d) || places > 300) return *out = self, SEGUE_OK;
    /* Python rounds the decimal digits of the exact value, half to even: print with that many digits and read back */
    if (places >= 0) {
        sg_float_digits(text, sizeof text, 'f', (int)places, d);
        if (!sg_float_parse(text, strlen(text), &d))
            d = self.u.f; /* longer than a number can be: has no fraction */
    } else {
        /* half to even, the default rounding mode of nearbyint */
        double unit = pow(10, (double)-places);
        d = places < -308 ? copysign(0.0, d) : nearbyint(d / unit) * unit;
    }
    *out = sg_v_float(d);
    return SEGUE_OK;
}

/* The table is sorted by name. Then the filters of jinja_lists.c. */
const struct sg_builtin *sg_filter_find(const char *s, size_t n)
{
    /* name, function, parameters (NULL: the function reads args), required ones, variant */
    static const struct sg_builtin table[] = {
        {"abs", f_abs, "", 0, 0},
        {"capitalize", f_str_method, NULL, 0, 0},
        {"center", f_str_method, NULL, 0, 'c'},
        {"e", f_escape, "", 0, 0},
        {"escape", f_escape, "", 0, 0},
        {"float", f_float, "default", 0, 0},
        {"forceescape", f_escape, "", 0, 'f'},
        {"format", f_format, NULL, 0, 0},
        {"indent", f_indent, "width first blank", 0, 0},
        {"int", f_int, "default base", 0, 0},
        {"lower", f_str_method, NULL, 0, 0},
        {"replace", f_replace, "old new count", 2, 0},
        {"round", f_round, "precision method", 0, 0},
        {"safe", f_safe, "", 0, 0},
        {"string", f_string, "", 0, 0},
        {"title", f_title, "", 0, 0},
        {"tojson", f_tojson, "ensure_ascii indent separators sort_keys", 0, 0},
        {"trim", f_str_method, NULL, 0, 't'},
        {"truncate", f_truncate, "length killwords end leeway", 0, 0},
        {"upper", f_str_method, NULL, 0, 0},
        {"urlencode", f_urlencode, "", 0, 0},
        {"wordcount", f_wordcount, "", 0, 0}};
    const struct sg_builtin *f = sg_builtin_search(table, sizeof table / sizeof *table, s, n);
    return f ? f : sg_list_filter_find(s, n);
}
