/* jinja_strings.c: methods of str, part 1: case, stripping, replacing, padding, searching, joining and format; part 2
 * is jinja_strsplit.c. self is always a string. Offsets that templates see count code points, pointers inside count
 * bytes.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* upper, lower, swapcase (variant: SG_CASE_*), capitalize ('c'), title ('t': a letter after a cased letter is lower,
 * any other is title case). */
SG_BUILTIN(m_case)
{
    const struct sg_str *s = sg_v_str(self);
    struct sg_buf b = sg_val_buf(st);
    segue_status r;
    SG_BUILTIN_UNUSED;
    if (f->variant == 'c') { /* capitalize: the first in title case, the rest lower */
        const char *p = s->s;
        if (s->n) sg_char_get(&p);
        r = sg_case_put(st, &b, s, 0, (size_t)(p - s->s), SG_CASE_TITLE);
        if (r == SEGUE_OK) r = sg_case_put(st, &b, s, (size_t)(p - s->s), s->n, SG_CASE_LOWER);
    } else if (f->variant == 't') {
        int inside = 0;
        r = SEGUE_OK;
        /* inside: the character before was cased, so that this one continues a word */
        for (const char *p = s->s, *e = p + s->n; p < e && r == SEGUE_OK;) {
            const char *q = p;
            uint32_t c = sg_char_get(&q);
            r = sg_case_put(st, &b, s, (size_t)(p - s->s), (size_t)(q - s->s),
                            inside ? SG_CASE_LOWER : SG_CASE_TITLE);
            inside = sg_char_is(c, SG_IS_LOWER) || sg_char_is(c, SG_IS_UPPER) || sg_char_is(c, SG_IS_TITLE);
            p = q;
        }
    } else {
        r = sg_case_put(st, &b, s, 0, s->n, f->variant);
    }
    return sg_str_from_buf(st, r, &b, out);
}

/* 1: the character c of n bytes is in set; without a set, it is whitespace. */
static int in_set(const struct sg_str *set, const char *c, size_t n)
{
    return set ? sg_find_range(set->s, set->s + set->n, c, n) != NULL
               : sg_char_is(sg_char_get(&(const char *){c}), SG_IS_SPACE);
}

/* strip, lstrip, rstrip. variant: bit 0 = left, bit 1 = right. The argument is a set of characters. */
SG_BUILTIN(m_strip)
{
    const struct sg_str *s = sg_v_str(self);
    struct sg_str *set = NULL;
    const char *p = s->s, *e = p + s->n;
    SG_BUILTIN_UNUSED;
    if (sg_v_not_none(in[0])) SG_TRY(sg_val_expect_str(st, in[0], "the characters of strip", &set));
    /* a step per 64 bytes of text, times 64 bytes of the set */
    SG_TRY(sg_jinja_step(st, s->n / 64 * (set ? set->n / 64 + 1 : 1)));
    while (p < e && (f->variant & 1)) {
        const char *q = p;
        sg_char_get(&q);
        if (!in_set(set, p, (size_t)(q - p))) break;
        p = q;
    }
    while (e > p && (f->variant & 2)) {
        const char *q = e - 1;
        /* back to the first byte of the character */
        while (((unsigned char)*q & 0xc0) == 0x80) q--;
        if (!in_set(set, q, (size_t)(e - q))) break;
        e = q;
    }
    return sg_str_slice_ptr(st, self, p, e, out);
}

/* replace(old, new, count): count < 0 or absent replaces all occurrences. */
SG_BUILTIN(m_replace)
{
    const struct sg_str *s = sg_v_str(self);
    struct sg_str *old = NULL, *new = NULL;
    int64_t count = -1;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_expect_str(st, in[0], "the text to replace", &old));
    SG_TRY(sg_val_expect_str(st, in[1], "the replacement", &new));
    if (in[2].kind != SG_V_MISSING) SG_TRY(sg_val_index(st, in[2], "the count of replace", &count));
    SG_TRY(sg_str_search_cost(st, s, old->n));
    struct sg_buf b = sg_val_buf(st);
    segue_status r = SEGUE_OK;
    const char *p = s->s, *e = p + s->n;
    while (r == SEGUE_OK && count != 0) {
        const char *at = sg_find_range(p, e, old->s, old->n);
        if (!at) break;
        /* an empty `old` matches at p itself */
        if (old->n) r = sg_put(st, &b, p, (size_t)(at - p));
        if (r == SEGUE_OK) r = sg_put(st, &b, new->s, new->n);
        /* continue after the match: matches do not overlap */
        p = at + old->n;
        count -= count > 0;
        if (old->n) continue;
        if (p == e) break; /* an empty `old` matches between all characters and at both ends */
        const char *q = p;
        sg_char_get(&q);
        if (r == SEGUE_OK) r = sg_put(st, &b, p, (size_t)(q - p));
        p = q;
    }
    if (r == SEGUE_OK && p < e) r = sg_put(st, &b, p, (size_t)(e - p));
    return sg_str_from_buf(st, r, &b, out);
}

/* center, ljust, rjust, zfill to a width in code points. variant: first letter of the name. */
SG_BUILTIN(m_pad)
{
    const struct sg_str *s = sg_v_str(self);
    struct sg_str *fill = NULL;
    int64_t width = 80;
    SG_BUILTIN_UNUSED;
    if (in[0].kind != SG_V_MISSING) SG_TRY(sg_val_index(st, in[0], "a width", &width));
    if (in[1].kind != SG_V_MISSING) SG_TRY(sg_val_expect_str(st, in[1], "a fill character", &fill));
    if (fill && fill->chars != 1) return sg_jinja_fail(st, "'%s': the fill must be one character", f->name);
    if (width <= (int64_t)s->chars) return *out = self, SEGUE_OK;
    /* left: padding before the text; center puts the odd space where CPython does */
    int64_t pad = width - (int64_t)s->chars, left = f->variant == 'l'   ? 0
                                                    : f->variant == 'c' ? pad / 2 + (pad & width & 1)
                                                                      : pad;
    /* zfill keeps a sign in front of the zeros */
    size_t sign = f->variant == 'z' && s->n && (s->s[0] == '-' || s->s[0] == '+');
    struct sg_buf b = sg_val_buf(st);
    segue_status r = sg_put(st, &b, s->s, sign);
    for (int64_t i = 0; i < pad && r == SEGUE_OK; i++) {
        /* the text follows the left part of the padding */
        if (i == left) r = sg_put(st, &b, s->s + sign, s->n - sign);
        if (r == SEGUE_OK)
            r = fill ? sg_put(st, &b, fill->s, fill->n) : sg_put(st, &b, f->variant == 'z' ? "0" : " ", 1);
    }
    if (r == SEGUE_OK && left == pad) r = sg_put(st, &b, s->s + sign, s->n - sign);
    return sg_str_from_buf(st, r, &b, out);
}

/* Each tab becomes spaces up to the next multiple of the width (8); a line break restarts the column. */
SG_BUILTIN(m_expandtabs)
{
    const struct sg_str *s = sg_v_str(self);
    int64_t width = 8, column = 0;
    SG_BUILTIN_UNUSED;
    if (in[0].kind != SG_V_MISSING) SG_TRY(sg_val_index(st, in[0], "a tab width", &width));
    struct sg_buf b = sg_val_buf(st);
    segue_status r = SEGUE_OK;
    for (const char *p = s->s, *e = p + s->n; p < e && r == SEGUE_OK;) {
        const char *q = p;
        uint32_t c = sg_char_get(&q);
        if (c == '\t') {
            for (int64_t k = width > 0 ? width - column % width : 0; k > 0 && r == SEGUE_OK; k--, column++)
                r = sg_put(st, &b, " ", 1);
        } else {
            r = sg_put(st, &b, p, (size_t)(q - p));
            /* columns are code points */
            column = c == '\n' || c == '\r' ? 0 : column + 1;
        }
        p = q;
    }
    return sg_str_from_buf(st, r, &b, out);
}

/* The part of s between the optional bounds start and end, in code points; negative ones count from the end. *from,
 * *to: that part; *at: index of its first character; *valid 0 = start is after the end. */
static segue_status search_bounds(struct sg_jinja *st, const struct sg_str *s, struct sg_val *bounds,
                           const char **from, const char **to, int64_t *at, int *valid)
{
    int64_t n = (int64_t)s->chars, start = 0, stop = n;
    if (sg_v_not_none(bounds[0])) SG_TRY(sg_val_index(st, bounds[0], "a start", &start));
    if (sg_v_not_none(bounds[1])) SG_TRY(sg_val_index(st, bounds[1], "an end", &stop));
    /* the clamping of Python slices; start is not clamped to n */
    if (stop > n) stop = n;
    if (stop < 0) stop = stop + n < 0 ? 0 : stop + n;
    if (start < 0) start = start + n < 0 ? 0 : start + n;
    *valid = start <= stop;
    *at = start;
    *from = s->s + sg_str_byte_offset(s, *valid ? (size_t)start : 0);
    *to = s->s + sg_str_byte_offset(s, *valid ? (size_t)stop : 0);
    return SEGUE_OK;
}

/* find, rfind ('r'), index ('i'), rindex ('R'), count ('c'). find yields -1 without a match, index fails. */
SG_BUILTIN(m_find)
{
    const struct sg_str *s = sg_v_str(self);
    struct sg_str *what = NULL;
    const char *p, *e;
    int64_t at, n = 0;
    int valid, last = f->variant == 'r' || f->variant == 'R';
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_expect_str(st, in[0], "the text to search", &what));
    SG_TRY(sg_str_search_cost(st, s, what->n));
    SG_TRY(search_bounds(st, s, in + 1, &p, &e, &at, &valid));
    if (f->variant == 'c') {
        if (valid && !what->n)
            /* an empty text occurs before each character and at the end */
            for (n = 1; p < e; n++) sg_char_get(&p);
        while (valid && what->n && (p = sg_find_range(p, e, what->s, what->n))) n++, p += what->n;
        return *out = sg_v_int(n), SEGUE_OK;
    }
    /* pointer to the match, converted to a code point index below */
    const char *hit = !valid ? NULL : last ? sg_find_last_range(p, e, what->s, what->n) : sg_find_range(p, e, what->s, what->n);
    if (!hit && (f->variant == 'i' || f->variant == 'R'))
        return sg_jinja_fail(st, "%s: substring not found", f->name);
    if (!hit) return *out = sg_v_int(-1), SEGUE_OK;
    /* byte offset of the match to code points */
    while (p < hit) {
        sg_char_get(&p);
        at++;
    }
    *out = sg_v_int(at);
    return SEGUE_OK;
}

/* 1: [p, e) starts with w, or ends with it (at_end). */
static int has_affix(const char *p, const char *e, const struct sg_str *w, int at_end)
{
    return (size_t)(e - p) >= w->n && !memcmp(at_end ? e - w->n : p, w->s, w->n);
}

/* startswith and endswith (variant 'e'); a tuple of texts means any of them. */
SG_BUILTIN(m_affix)
{
    const char *p, *e;
    int64_t at;
    int valid, yes = 0, many = in[0].kind == SG_V_TUPLE;
    SG_BUILTIN_UNUSED;
    SG_TRY(search_bounds(st, sg_v_str(self), in + 1, &p, &e, &at, &valid));
    size_t n = many ? sg_v_list(in[0])->n : 1;
    for (size_t i = 0; i < n && !yes; i++) {
        struct sg_str *w = NULL;
        SG_TRY(sg_val_expect_str(st, many ? sg_v_list(in[0])->items[i] : in[0], "a prefix or suffix", &w));
        SG_TRY(sg_jinja_step(st, 1));
        /* each alternative is checked for its type, even after a start beyond the end */
        yes = valid && has_affix(p, e, w, f->variant == 'e');
    }
    *out = sg_v_bool(yes);
    return SEGUE_OK;
}

/* removeprefix and removesuffix (variant 'e'). */
SG_BUILTIN(m_remove)
{
    const struct sg_str *s = sg_v_str(self);
    const char *p = s->s, *e = p + s->n;
    struct sg_str *w = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_expect_str(st, in[0], "the text to remove", &w));
    if (!w->n || !has_affix(p, e, w, f->variant == 'e')) return *out = self, SEGUE_OK;
    return f->variant == 'e' ? sg_str_slice_ptr(st, self, p, e - w->n, out) : sg_str_slice_ptr(st, self, p + w->n, e, out);
}

/* self.join(items). All items must be strings, as in Python; the filter join accepts any values. */
SG_BUILTIN(m_join)
{
    const struct sg_str *by = sg_v_str(self);
    struct sg_val_iter it;
    struct sg_val v;
    int got;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_iter_open(st, in[0], &it));
    struct sg_buf b = sg_val_buf(st);
    segue_status r = SEGUE_OK;
    for (size_t i = 0;; i++) {
        struct sg_str *s = NULL;
        r = sg_iter_next(st, &it, &v, &got);
        if (r != SEGUE_OK || !got) break;
        if (i) r = sg_put(st, &b, by->s, by->n);
        if (r == SEGUE_OK) r = sg_val_expect_str(st, v, "an item of join", &s);
        if (r == SEGUE_OK) r = sg_put(st, &b, s->s, s->n);
        if (r != SEGUE_OK) break;
    }
    return sg_str_from_buf(st, r, &b, out);
}

/* str.format with braces. */
SG_BUILTIN(m_format)
{
    SG_BUILTIN_UNUSED;
    return sg_format_braces(st, sg_v_str(self), args, out);
}

/* The table is sorted by name. Then the methods of jinja_strsplit.c. */
const struct sg_builtin *sg_str_method_find(const char *s, size_t n)
{
    /* name, function, parameters (NULL: the function reads args), required ones, variant */
    static const struct sg_builtin table[] = {
        {"capitalize", m_case, "", 0, 'c'},
        {"center", m_pad, "width fillchar", 0, 'c'},
        {"count", m_find, "sub start end", 1, 'c'},
        {"endswith", m_affix, "suffix start end", 1, 'e'},
        {"expandtabs", m_expandtabs, "tabsize", 0, 0},
        {"find", m_find, "sub start end", 1, 'f'},
        {"format", m_format, NULL, 0, 0},
        {"index", m_find, "sub start end", 1, 'i'},
        {"join", m_join, "iterable", 1, 0},
        {"ljust", m_pad, "width fillchar", 1, 'l'},
        {"lower", m_case, "", 0, SG_CASE_LOWER},
        {"lstrip", m_strip, "chars", 0, 1},
        {"removeprefix", m_remove, "prefix", 1, 's'},
        {"removesuffix", m_remove, "suffix", 1, 'e'},
        {"replace", m_replace, "old new count", 2, 0},
        {"rfind", m_find, "sub start end", 1, 'r'},
        {"rindex", m_find, "sub start end", 1, 'R'},
        {"rjust", m_pad, "width fillchar", 1, 'r'},
        {"rstrip", m_strip, "chars", 0, 2},
        {"startswith", m_affix, "prefix start end", 1, 's'},
        {"strip", m_strip, "chars", 0, 3},
        {"swapcase", m_case, "", 0, SG_CASE_SWAP},
        {"title", m_case, "", 0, 't'},
        {"upper", m_case, "", 0, SG_CASE_UPPER},
        {"zfill", m_pad, "width", 1, 'z'}};
    const struct sg_builtin *f = sg_builtin_search(table, sizeof table / sizeof *table, s, n);
    return f ? f : sg_str_split_method_find(s, n);
}

/* Plain strings call the method directly. With Markup as self, arguments that become part of the result are escaped
 * first, and strings in the result are marked as Markup. */
segue_status sg_str_method_call(struct sg_jinja *st, const struct sg_builtin *f, struct sg_val self,
                                const struct sg_call_args *args, struct sg_val *out)
{
    struct sg_call_args call = *args;
    struct sg_list *l = NULL;
    struct sg_val pos[SG_PARAMS];
    if (!self.aux || self.kind != SG_V_STR) return sg_builtin_call(st, f, self, args, out);
    /* escape each item; plain items are text, Markup items stay as they are */
    if (f->fn == m_join && args->pos_n == 1) {
        SG_TRY(sg_val_to_list(st, args->pos[0], &l));
        for (size_t i = 0; i < l->n; i++) SG_TRY(sg_str_escape(st, l->items[i], &l->items[i]));
        pos[0] = sg_v_of(&l->o);
        call.pos = pos;
    } else if ((f->fn == m_replace || f->fn == m_pad) && args->pos_n >= 2 && args->pos_n <= SG_PARAMS) {
        memcpy(pos, args->pos, args->pos_n * sizeof *pos);
        /* the replacement or the fill character */
        SG_TRY(sg_str_escape(st, pos[1], &pos[1]));
        call.pos = pos;
    } else if (f->fn == m_format) {
        return sg_jinja_fail(st, "format: not supported on a Markup string; format a plain string first");
    }
    SG_TRY(sg_builtin_call(st, f, self, &call, out));
    if (out->kind == SG_V_STR) out->aux = 1;
    /* split and partition return parts of the Markup string */
    if (out->kind != SG_V_LIST && out->kind != SG_V_TUPLE) return SEGUE_OK;
    for (size_t i = 0; i < sg_v_list(*out)->n; i++) sg_v_list(*out)->items[i].aux = 1;
    return SEGUE_OK;
}
