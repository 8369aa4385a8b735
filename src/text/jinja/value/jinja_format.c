/* jinja_format.c: '%' formatting and str.format. All conversions share one layout: a value becomes
 * digits or text, then sign, fill and width are put around it. No text of a template is ever used as a
 * format string of printf.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"
#include "text/unicode/unicode.h"

/* A parsed conversion: the fields that % formatting and str.format share. */
struct spec {
    uint32_t fill;
    char align, sign, type; /* align: < > = ^ or 0; sign: + - space */
    int alt, zero;
    char group;               /* , or _ or 0 */
    int64_t width, precision; /* precision -1 = not given */
};

/* Bounds on what one field can write: Python has none. */
enum { MAX_WIDTH = 100000, MAX_PRECISION = 300 };

/* Write prefix and s[n] (chars code points) padded to the width. align: < left, > right, ^ centre,
 * = padding between prefix and digits. */
static segue_status put_aligned(struct sg_jinja *st, struct sg_buf *b, const struct spec *sp,
                                const char *prefix, const char *s, size_t n, size_t chars, char align)
{
    /* width counts code points, not bytes */
    int64_t pad = sp->width - (int64_t)(chars + strlen(prefix)), left;
    if (pad < 0) pad = 0;
    left = align == '<' ? 0 : align == '^' ? pad / 2 : align == '=' ? 0 : pad;
    for (int64_t i = 0; i < left; i++) SG_TRY(sg_put_char(st, b, sp->fill));
    SG_TRY(sg_put(st, b, prefix, strlen(prefix)));
    for (int64_t i = 0; align == '=' && i < pad; i++) SG_TRY(sg_put_char(st, b, sp->fill));
    SG_TRY(sg_put(st, b, s, n));
    for (int64_t i = left; align != '=' && i < pad; i++) SG_TRY(sg_put_char(st, b, sp->fill));
    return SEGUE_OK;
}

/* Insert a separator every few digits from the right; the fraction and the exponent are not
 * grouped. Works from the end, as the text grows in place. */
static void group_digits(char *text, size_t cap, char mark, int every)
{
    size_t n = strspn(text, "0123456789abcdefABCDEF"), rest = strlen(text + n);
    size_t marks = n ? (n - 1) / (size_t)every : 0;
    /* no space: the number stays ungrouped */
    if (n + marks + rest + 1 > cap) return;
    memmove(text + n + marks, text + n, rest + 1);
    for (size_t i = n, to = n + marks, k = 0; i-- > 0; k++) {
        if (k && k % (size_t)every == 0) text[--to] = mark;
        text[--to] = text[i];
    }
}

/* Digits of u in a base from 2 to 16, terminated; out holds at least 65 bytes. */
static void int_digits(uint64_t u, unsigned base, int upper, char *out)
{
    char tmp[72];
    size_t n = 0, k = 0;
    do tmp[n++] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
    while (u /= base);
    while (n) out[k++] = tmp[--n];
    out[k] = 0;
}

/* Conversions d, x, X, o, b. alt: a prefix such as 0x. Groups have 3 digits in base 10 and 4 in
 * others. */
static segue_status put_int(struct sg_jinja *st, struct sg_buf *b, const struct spec *sp, int64_t v)
{
    char text[160], prefix[8] = "";
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    unsigned base = sp->type == 'x' || sp->type == 'X' ? 16 : sp->type == 'o' ? 8 : sp->type == 'b' ? 2 : 10;
    int_digits(u, base, sp->type == 'X', text);
    if (sp->group) group_digits(text, sizeof text, sp->group, base == 10 ? 3 : 4);
    size_t k = 0;
    if (v < 0)
        prefix[k++] = '-';
    else if (sp->sign == '+' || sp->sign == ' ')
        prefix[k++] = sp->sign;
    if (sp->alt && base != 10) {
        prefix[k++] = '0';
        prefix[k++] = sp->type;
    }
    prefix[k] = 0;
    return put_aligned(st, b, sp, prefix, text, strlen(text), strlen(text), sp->align ? sp->align : '>');
}

/* |d| as text by the conversion e, f, g or %; returns its length. cap is at least 330: 309 digits
 * before the point and up to 300 after it are cut by the buffer of 1024 bytes. */
static size_t float_text(const struct spec *sp, double d, char *text, size_t cap)
{
    char type = (char)(sp->type | 32);
    int precision = sp->precision < 0 ? 6 : (int)sp->precision;
    double a = type == '%' ? fabs(d) * 100 : fabs(d);
    if (!isfinite(a))
        snprintf(text, cap, "%s", isnan(a) ? "nan" : "inf");
    else if (sp->type == '%' || type == 'f')
        sg_float_digits(text, cap, 'f', precision, sp->type == '%' ? fabs(d) * 100 : a);
    else if (type == 'e')
        sg_float_digits(text, cap, 'e', precision, a);
    else
        sg_float_digits(text, cap, 'g', precision, a);
    /* E, F, G: upper case, also of "nan" and "inf" */
    if (sp->type >= 'A' && sp->type <= 'Z')
        for (char *p = text; *p; p++) *p = *p >= 'a' && *p <= 'z' ? (char)(*p - 32) : *p;
    size_t n = strlen(text);
    if (sp->type == '%' && n + 1 < cap) {
        text[n++] = '%';
        text[n] = 0;
    }
    return n;
}

/* A float with sign and padding. Without a type and precision it is repr; without a type but with a
 * precision it is like g, with at least one decimal. */
static segue_status put_double(struct sg_jinja *st, struct sg_buf *b, const struct spec *sp, double d)
{
    char text[1024];
    /* the prefix holds the sign, so that padding with '=' can follow it */
    const char *prefix = signbit(d) && !isnan(d) ? "-" : sp->sign == '+' ? "+" : sp->sign == ' ' ? " " : "";
    if (sp->type) {
        float_text(sp, d, text, sizeof text);
    } else if (sp->precision < 0) {
        struct sg_buf digits = {0};
        segue_status s = sg_put_float(st, &digits, fabs(d));
        snprintf(text, sizeof text, "%s", digits.data ? digits.data : "");
        sg_buf_free(&digits);
        SG_TRY(s);
    } else { /* like g, but with a fraction: Python's rule for format without a type */
        struct spec g = *sp;
        g.type = 'g';
        float_text(&g, d, text, sizeof text);
        if (!strpbrk(text, ".eni")) strcat(text, ".0");
    }
    if (sp->group) group_digits(text, sizeof text, sp->group, 3);
    return put_aligned(st, b, sp, prefix, text, strlen(text), strlen(text), sp->align ? sp->align : '>');
}

/* A string cut to the precision (code points) and padded. */
static segue_status put_string(struct sg_jinja *st, struct sg_buf *b, const struct spec *sp, struct sg_val v,
                               char align)
{
    struct sg_str *s = sg_v_str(v);
    size_t chars =
        sp->precision >= 0 && (uint64_t)sp->precision < s->chars ? (size_t)sp->precision : s->chars;
    return put_aligned(st, b, sp, "", s->s, sg_str_byte_offset(s, chars), chars, align);
}

/* %c: a code point, or a string of one character. Surrogates are rejected, as they are not valid in
 * UTF-8. */
static segue_status put_code(struct sg_jinja *st, struct sg_buf *b, const struct spec *sp, struct sg_val v)
{
    char text[5];
    if (v.kind == SG_V_STR && sg_v_str(v)->chars == 1)
        return put_string(st, b, sp, v, sp->align ? sp->align : '>');
    if (v.kind != SG_V_INT || v.u.i < 0 || v.u.i > 0x10ffff || (v.u.i >= 0xd800 && v.u.i < 0xe000))
        return sg_jinja_fail(st, "format: %%c needs a character");
    size_t n = sg_utf8_put(text, (uint32_t)v.u.i);
    return put_aligned(st, b, sp, "", text, n, 1, sp->align ? sp->align : '>');
}

/* str(v), or repr(v), as a string value. */
static segue_status to_text(struct sg_jinja *st, struct sg_val v, int repr, struct sg_val *out)
{
    if (!repr) return sg_val_text(st, v, out);
    struct sg_buf b = sg_val_buf(st);
    return sg_str_from_buf(st, sg_put_repr(st, &b, v), &b, out);
}

/* One conversion of '%' formatting. %d accepts a float and truncates it; %x and %o do not, as in
 * Python. */
static segue_status percent_value(struct sg_jinja *st, struct sg_buf *b, struct spec *sp, struct sg_val v)
{
    int is_int = v.kind == SG_V_INT || v.kind == SG_V_BOOL;
    struct sg_val text;
    switch (sp->type) {
    case 's':
    case 'r':
    case 'a':
        SG_TRY(to_text(st, v, sp->type != 's', &text));
        sp->fill = ' ';
        return put_string(st, b, sp, text, sp->align == '<' ? '<' : '>');
    case 'c': return put_code(st, b, sp, v);
    case 'd':
    case 'i':
    case 'u':
        if (v.kind == SG_V_FLOAT && isfinite(v.u.f) && fabs(v.u.f) < 9e18)
            /* 9e18 is below 2^63, so the cast is defined */
            v = sg_v_int((int64_t)v.u.f), is_int = 1;
        /* fallthrough */
    case 'x':
    case 'X':
    case 'o':
        if (!is_int || sp->precision >= 0)
            return sg_jinja_fail(st, "format: %%%c needs an integer, not '%s'", sp->type,
                                 sg_val_type(v.kind));
        return put_int(st, b, sp, v.u.i);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!is_int && v.kind != SG_V_FLOAT)
            return sg_jinja_fail(st, "format: %%%c needs a number, not '%s'", sp->type, sg_val_type(v.kind));
        return put_double(st, b, sp, is_int ? (double)v.u.i : v.u.f);
    default: return sg_jinja_fail(st, "format: unsupported conversion");
    }
}

/* State of one '%' format: the rest of the text, the values, and how they are consumed. */
struct percent {
    const char *p, *e;
    struct sg_val args;
    size_t at;
    int keyed;
};

/* The next value: an item of a tuple, or the only value. */
static segue_status percent_arg(struct sg_jinja *st, struct percent *pc, struct sg_val *out)
{
    if (pc->args.kind == SG_V_TUPLE && pc->at < sg_v_list(pc->args)->n)
        return *out = sg_v_list(pc->args)->items[pc->at++], SEGUE_OK;
    if (pc->args.kind != SG_V_TUPLE && pc->at++ == 0) return *out = pc->args, SEGUE_OK;
    return sg_jinja_fail(st, "not enough values for a format string");
}

/* A width or precision: '*' takes it from the values, else digits. Bounded, because it decides how
 * much is written. */
static segue_status percent_number(struct sg_jinja *st, struct percent *pc, int64_t max, int64_t *out)
{
    struct sg_val v;
    *out = 0;
    if (pc->p < pc->e && *pc->p == '*') {
        pc->p++;
        SG_TRY(percent_arg(st, pc, &v));
        SG_TRY(sg_val_index(st, v, "a width", out));
    }
    for (; pc->p < pc->e && *pc->p >= '0' && *pc->p <= '9' && *out <= max; pc->p++)
        *out = *out * 10 + (*pc->p - '0');
    return *out > max || *out < -max ? sg_jinja_fail(st, "format: a width or precision is too large")
                                       : SEGUE_OK;
}

/* One conversion after '%': (key), flags, width, precision, length modifier (ignored), type. */
static segue_status percent_one(struct sg_jinja *st, struct sg_buf *b, struct percent *pc)
{
    struct spec sp = {.fill = ' ', .precision = -1};
    struct sg_val v = {0};
    if (pc->p < pc->e && *pc->p == '(') {
        const char *key = ++pc->p;
        /* A key may contain balanced parentheses. */
        for (int depth = 1; pc->p < pc->e && (depth += (*pc->p == '(') - (*pc->p == ')')) > 0;) pc->p++;
        if (pc->p >= pc->e || pc->args.kind != SG_V_DICT)
            return sg_jinja_fail(st, "format: a key needs a mapping");
        const struct sg_val *at = sg_dict_name(sg_v_dict(pc->args), key, (size_t)(pc->p++ - key));
        if (!at) return sg_jinja_fail(st, "format: a key is missing");
        v = *at;
        pc->keyed = 1;
    }
    for (; pc->p < pc->e && *pc->p && strchr("-+ #0", *pc->p); pc->p++) {
        if (*pc->p == '-')
            sp.align = '<';
        else if (*pc->p == '0')
            sp.zero = 1;
        else if (*pc->p == '#')
            sp.alt = 1;
        else if (sp.sign != '+')
            sp.sign = *pc->p;
    }
    SG_TRY(percent_number(st, pc, MAX_WIDTH, &sp.width));
    /* a negative width from '*' means left-aligned */
    if (sp.width < 0) {
        sp.align = '<';
        sp.width = -sp.width;
    }
    if (pc->p < pc->e && *pc->p == '.') {
        pc->p++;
        SG_TRY(percent_number(st, pc, MAX_PRECISION, &sp.precision));
    }
    /* length modifiers of C have no effect */
    while (pc->p < pc->e && (*pc->p == 'l' || *pc->p == 'h' || *pc->p == 'L')) pc->p++;
    if (pc->p >= pc->e) return sg_jinja_fail(st, "format: the format ends within a conversion");
    sp.type = *pc->p++;
    if (sp.type == '%') return sg_put(st, b, "%", 1);
    /* '-' overrides '0' */
    if (sp.zero && !sp.align) {
        sp.align = '=';
        sp.fill = '0';
    }
    if (!v.kind) SG_TRY(percent_arg(st, pc, &v));
    return percent_value(st, b, &sp, v);
}

/* format % args. All values of a tuple must be used, unless the format uses keys. */
segue_status sg_format_percent(struct sg_jinja *st, struct sg_str *format, struct sg_val args,
                               struct sg_val *out)
{
    struct percent pc = {.p = format->s, .e = format->s + format->n, .args = args};
    struct sg_buf b = sg_val_buf(st);
    segue_status r = SEGUE_OK;
    while (pc.p < pc.e && r == SEGUE_OK) {
        const char *p = memchr(pc.p, '%', (size_t)(pc.e - pc.p)), *to = p ? p : pc.e;
        r = sg_put(st, &b, pc.p, (size_t)(to - pc.p));
        pc.p = p ? p + 1 : pc.e;
        if (p && r == SEGUE_OK) r = percent_one(st, &b, &pc);
    }
    size_t n = args.kind == SG_V_TUPLE ? sg_v_list(args)->n
               : args.kind == SG_V_DICT || args.kind == SG_V_LIST || args.kind == SG_V_RANGE ||
                       args.kind == SG_V_UNDEFINED
                   ? 0
                   : 1; /* as in Python, a list or dict may stay unused */
    if (r == SEGUE_OK && pc.at < n && !pc.keyed)
        r = sg_jinja_fail(st, "not all values of a format string are used");
    return sg_str_from_buf(st, r, &b, out);
}

/* A format specification: [[fill]align][sign][#][0][width][grouping][.precision][type]. The fill
 * may be any character. */
static segue_status parse_spec(struct sg_jinja *st, const char *p, const char *e, struct spec *sp)
{
    *sp = (struct spec){.fill = ' ', .precision = -1};
    const char *q = p;
    if (p < e) sg_char_get(&q);
    /* a fill is any character that an alignment follows */
    if (p < e && q < e && strchr("<>=^", *q)) {
        sp->fill = sg_char_get(&p);
        sp->align = *p++;
    } else if (p < e && *p && strchr("<>=^", *p)) {
        sp->align = *p++;
    }
    if (p < e && *p && strchr("+- ", *p)) sp->sign = *p++;
    if (p < e && *p == '#') sp->alt = 1, p++;
    if (p < e && *p == '0') {
        /* 0 is a shorthand for fill 0 and align = */
        if (!sp->align) {
            sp->align = '=';
            sp->fill = '0';
        }
        sp->zero = 1;
        p++;
    }
    for (; p < e && *p >= '0' && *p <= '9' && sp->width <= MAX_WIDTH; p++)
        sp->width = sp->width * 10 + (*p - '0');
    if (p < e && (*p == ',' || *p == '_')) sp->group = *p++;
    if (p < e && *p == '.') {
        sp->precision = 0;
        for (p++; p < e && *p >= '0' && *p <= '9' && sp->precision <= MAX_PRECISION; p++)
            sp->precision = sp->precision * 10 + (*p - '0');
    }
    if (p < e) sp->type = *p++;
    if (p < e || sp->width > MAX_WIDTH || sp->precision > MAX_PRECISION)
        return sg_jinja_fail(st, "format: invalid field specification");
    return SEGUE_OK;
}

/* format(value, spec): the text between p and e is the specification. Without one it is str(value). */
static segue_status put_field(struct sg_jinja *st, struct sg_buf *b, struct sg_val v, const char *p,
                              const char *e)
{
    struct spec sp;
    if (p == e) return sg_put_str(st, b, v);
    SG_TRY(parse_spec(st, p, e, &sp));
    int is_int = v.kind == SG_V_INT || v.kind == SG_V_BOOL;
    int as_float = sp.type && strchr("eEfFgG%", sp.type);
    if (v.kind == SG_V_STR && (!sp.type || sp.type == 's') && !sp.sign && sp.align != '=')
        return put_string(st, b, &sp, v, sp.align ? sp.align : '<');
    if (v.kind == SG_V_STR && sp.zero && (!sp.type || sp.type == 's')) return put_string(st, b, &sp, v, '<');
    /* a bool without a type is text, with an integer type a number */
    if (v.kind == SG_V_BOOL && !sp.type && !sp.sign) {
        SG_TRY(sg_val_text(st, v, &v));
        return put_string(st, b, &sp, v, sp.align ? sp.align : '<');
    }
    if (is_int && sp.type == 'c') return put_code(st, b, &sp, v);
    if (is_int && !as_float && sp.precision < 0 && (!sp.type || strchr("dxXobn", sp.type)))
        return put_int(st, b, &sp, v.u.i);
    if ((is_int && as_float) || (v.kind == SG_V_FLOAT && (as_float || !sp.type)))
        return put_double(st, b, &sp, is_int ? (double)v.u.i : v.u.f);
    return sg_jinja_fail(st, "format: this specification does not apply to a value of type '%s'", sg_val_type(v.kind));
}

/* State of one str.format call: arguments and how fields are numbered. */
struct braces {
    const struct sg_call_args *args;
    size_t next;
    int manual; /* 1: fields have numbers, {0}; 0: they are counted, {}; -1: not known yet */
};

/* The first part of a field name: a keyword, a number, or nothing for the next argument. Automatic
 * and explicit numbers cannot be mixed, as in Python. */
static segue_status field_first(struct sg_jinja *st, struct braces *br, const char *s, size_t n,
                                struct sg_val *out)
{
    int64_t i = -1;
    int digits = n > 0;
    for (size_t k = 0; k < n; k++) digits &= s[k] >= '0' && s[k] <= '9';
    if (n && !digits) {
        const struct sg_val *v = br->args->named ? sg_dict_name(br->args->named, s, n) : NULL;
        if (!v) return sg_jinja_fail(st, "format: '%.*s' is not given", (int)(n > 40 ? 40 : n), s);
        return *out = *v, SEGUE_OK;
    }
    if (br->manual != -1 && br->manual != digits)
        return sg_jinja_fail(st, "format: counted and numbered fields are mixed");
    /* the first field decides */
    br->manual = digits;
    if (!digits)
        i = (int64_t)br->next++;
    else if (sg_int_parse(s, n, 10, &i) != 1)
        i = -1;
    if (i < 0 || (uint64_t)i >= br->args->pos_n)
        return sg_jinja_fail(st, "format: not enough positional values");
    *out = br->args->pos[i];
    return SEGUE_OK;
}

/* A field name such as name.attr[item]: attributes and items by the sandbox's rules, so str.format
 * gives no access that the template does not have. */
static segue_status field_value(struct sg_jinja *st, struct braces *br, const char *p, const char *e,
                                struct sg_val *out)
{
    const char *q = p;
    /* the first part ends at an access */
    while (q < e && *q != '.' && *q != '[') q++;
    SG_TRY(field_first(st, br, p, (size_t)(q - p), out));
    while (q < e) {
        int item = *q++ == '[';
        const char *from = q;
        struct sg_val key;
        int64_t i;
        while (q < e && (item ? *q != ']' : *q != '.' && *q != '[')) q++;
        if (q == from || (item && q == e))
            return sg_jinja_fail(st, "format: an empty or open part of a field name");
        if (!item)
            SG_TRY(sg_val_attr(st, *out, from, (size_t)(q - from), NULL, out));
        else {
            if (sg_int_parse(from, (size_t)(q - from), 10, &i) == 1)
                key = sg_v_int(i);
            else
                SG_TRY(sg_str_make(st, from, (size_t)(q - from), &key));
            SG_TRY(sg_val_item(st, *out, key, NULL, out));
            q++;
        }
    }
    return SEGUE_OK;
}

static segue_status put_braces(struct sg_jinja *st, struct sg_buf *b, const char *p, const char *e,
                               struct braces *br, int depth);

/* The text between { and }: field name, optional !conversion, optional :specification. A
 * specification may contain fields. */
static segue_status put_replacement(struct sg_jinja *st, struct sg_buf *b, const char *p, const char *e,
                                    struct braces *br, int depth)
{
    const char *name = p, *mark = NULL;
    struct sg_val v;
    /* Text in square brackets may contain ! and :, so it is skipped as a whole. */
    while (p < e && *p != '!' && *p != ':')
        p += *p == '[' && memchr(p, ']', (size_t)(e - p)) ? (const char *)memchr(p, ']', (size_t)(e - p)) - p
                                                          : 1;
    const char *name_end = p;
    if (p < e && *p == '!') {
        mark = p + 1;
        p += 2;
    }
    if (p < e && *p != ':') return sg_jinja_fail(st, "format: invalid field specification");
    if (p < e) p++;
    SG_TRY(field_value(st, br, name, name_end, &v));
    if (mark && (mark >= e || !strchr("rsa", *mark) || !*mark))
        return sg_jinja_fail(st, "format: an unknown conversion");
    if (mark) SG_TRY(to_text(st, v, *mark != 's', &v));
    if (p > e) p = e;
    /* a specification without fields needs no buffer */
    if (!memchr(p, '{', (size_t)(e - p))) return put_field(st, b, v, p, e);
    struct sg_buf inner = sg_val_buf(st);
    segue_status r = put_braces(st, &inner, p, e, br, depth + 1);
    if (r == SEGUE_OK)
        r = put_field(st, b, v, inner.data ? inner.data : "", (inner.data ? inner.data : "") + inner.len);
    sg_buf_free(&inner);
    return r;
}

/* Text with fields. depth 0: the format; 1: a specification inside a field. Deeper nesting is an
 * error, as in Python. {{ and }} are literal braces. */
static segue_status put_braces(struct sg_jinja *st, struct sg_buf *b, const char *p, const char *e,
                               struct braces *br, int depth)
{
    if (depth > 1) return sg_jinja_fail(st, "format: fields are nested too deep");
    while (p < e) {
        const char *q = p;
        while (q < e && *q != '{' && *q != '}') q++;
        SG_TRY(sg_put(st, b, p, (size_t)(q - p)));
        if (q >= e) return SEGUE_OK;
        if (q + 1 < e && q[1] == *q) {
            SG_TRY(sg_put(st, b, q, 1));
            p = q + 2;
            continue;
        }
        if (*q == '}') return sg_jinja_fail(st, "format: a single '}'");
        const char *from = ++q;
        /* the matching brace; a specification may contain fields */
        for (int open = 1; q < e && (open += (*q == '{') - (*q == '}')) > 0;) q++;
        if (q >= e) return sg_jinja_fail(st, "format: a '{' is not closed");
        SG_TRY(put_replacement(st, b, from, q, br, depth));
        p = q + 1;
    }
    return SEGUE_OK;
}

/* str.format(*args, **named). */
segue_status sg_format_braces(struct sg_jinja *st, struct sg_str *format, const struct sg_call_args *args,
                              struct sg_val *out)
{
    struct braces br = {.args = args, .manual = -1};
    struct sg_buf b = sg_val_buf(st);
    return sg_str_from_buf(st, put_braces(st, &b, format->s, format->s + format->n, &br, 0), &b, out);
}
