/* jinja_strings.c: methods of strings, by characters, as Python has them. SPDX-License-Identifier: MIT */
#include "text/jinja/jinja.h"

static const char *find(const char *s, const char *e, const char *what, size_t m)
{
    for (; m && (size_t)(e - s) >= m; s++) {
        s = memchr(s, *what, (size_t)(e - s) - m + 1);
        if (!s) return NULL;
        if (!memcmp(s, what, m)) return s;
    }
    return m ? NULL : s;
}

static const char *find_last(const char *s, const char *e, const char *what, size_t m)
{
    if ((size_t)(e - s) < m) return NULL;
    for (const char *p = e - m;; p--) {
        if (!memcmp(p, what, m)) return p;
        if (p == s) return NULL;
    }
}

static segue_status search_cost(struct sg_jinja *st, const struct sg_str *s, size_t m)
{
    return sg_jinja_step(st, s->n / 64 * (m / 64 + 1));
}

static segue_status part_of(struct sg_jinja *st, struct sg_val self, const char *from, const char *to,
                            struct sg_val *out)
{
    return sg_str_part(st, self, (size_t)(from - sg_v_str(self)->s), (size_t)(to - from), out);
}

/* --- whole text --- */

SG_FUNC(m_case)
{
    const struct sg_str *s = sg_v_str(self);
    struct sg_buf b = sg_buf_begin(st);
    segue_status r;
    SG_UNUSED;
    if (f->which == 'c') { /* capitalize: the first in title case, the rest lower */
        const char *p = s->s;
        if (s->n) sg_char_get(&p);
        r = sg_case_put(st, &b, s, 0, (size_t)(p - s->s), SG_CASE_TITLE);
        if (r == SEGUE_OK) r = sg_case_put(st, &b, s, (size_t)(p - s->s), s->n, SG_CASE_LOWER);
    } else if (f->which == 't') {
        int inside = 0;
        r = SEGUE_OK;
        for (const char *p = s->s, *e = p + s->n; p < e && r == SEGUE_OK;) {
            const char *q = p;
            uint32_t c = sg_char_get(&q);
            r = sg_case_put(st, &b, s, (size_t)(p - s->s), (size_t)(q - s->s),
                            inside ? SG_CASE_LOWER : SG_CASE_TITLE);
            inside = sg_char_is(c, SG_IS_LOWER) || sg_char_is(c, SG_IS_UPPER) || sg_char_is(c, SG_IS_TITLE);
            p = q;
        }
    } else {
        r = sg_case_put(st, &b, s, 0, s->n, f->which);
    }
    return sg_str_take(st, r, &b, out);
}

static int in_set(const struct sg_str *set, const char *c, size_t n)
{
    return set ? find(set->s, set->s + set->n, c, n) != NULL
               : sg_char_is(sg_char_get(&(const char *){c}), SG_IS_SPACE);
}

/* strip: which bit 0 left, bit 1 right */
SG_FUNC(m_strip)
{
    const struct sg_str *s = sg_v_str(self);
    struct sg_str *set = NULL;
    const char *p = s->s, *e = p + s->n;
    SG_UNUSED;
    if (sg_v_some(in[0])) SG_TRY(sg_val_want_str(st, in[0], "what is stripped", &set));
    SG_TRY(sg_jinja_step(st, s->n / 64 * (set ? set->n / 64 + 1 : 1)));
    while (p < e && (f->which & 1)) {
        const char *q = p;
        sg_char_get(&q);
        if (!in_set(set, p, (size_t)(q - p))) break;
        p = q;
    }
    while (e > p && (f->which & 2)) {
        const char *q = e - 1;
        while (((unsigned char)*q & 0xc0) == 0x80) q--;
        if (!in_set(set, q, (size_t)(e - q))) break;
        e = q;
    }
    return part_of(st, self, p, e, out);
}

SG_FUNC(m_replace)
{
    const struct sg_str *s = sg_v_str(self);
    struct sg_str *old = NULL, *new = NULL;
    int64_t count = -1;
    SG_UNUSED;
    SG_TRY(sg_val_want_str(st, in[0], "what is replaced", &old));
    SG_TRY(sg_val_want_str(st, in[1], "the replacement", &new));
    if (in[2].kind != SG_V_MISSING) SG_TRY(sg_val_index(st, in[2], "the count of replace", &count));
    SG_TRY(search_cost(st, s, old->n));
    struct sg_buf b = sg_buf_begin(st);
    segue_status r = SEGUE_OK;
    const char *p = s->s, *e = p + s->n;
    while (r == SEGUE_OK && count != 0) {
        const char *at = find(p, e, old->s, old->n);
        if (!at) break;
        if (old->n) r = sg_put(st, &b, p, (size_t)(at - p));
        if (r == SEGUE_OK) r = sg_put(st, &b, new->s, new->n);
        p = at + old->n;
        count -= count > 0;
        if (old->n) continue;
        if (p == e) break; /* an empty text stands between all characters and at both ends */
        const char *q = p;
        sg_char_get(&q);
        if (r == SEGUE_OK) r = sg_put(st, &b, p, (size_t)(q - p));
        p = q;
    }
    if (r == SEGUE_OK && p < e) r = sg_put(st, &b, p, (size_t)(e - p));
    return sg_str_take(st, r, &b, out);
}

/* center, ljust, rjust, zfill */
SG_FUNC(m_pad)
{
    const struct sg_str *s = sg_v_str(self);
    struct sg_str *fill = NULL;
    int64_t width = 80;
    SG_UNUSED;
    if (in[0].kind != SG_V_MISSING) SG_TRY(sg_val_index(st, in[0], "a width", &width));
    if (in[1].kind != SG_V_MISSING) SG_TRY(sg_val_want_str(st, in[1], "a fill character", &fill));
    if (fill && fill->chars != 1) return sg_jinja_fail(st, "'%s': the fill must be one character", f->name);
    if (width <= (int64_t)s->chars) return *out = self, SEGUE_OK;
    int64_t pad = width - (int64_t)s->chars, left = f->which == 'l'   ? 0
                                                    : f->which == 'c' ? pad / 2 + (pad & width & 1)
                                                                      : pad;
    size_t sign = f->which == 'z' && s->n && (s->s[0] == '-' || s->s[0] == '+');
    struct sg_buf b = sg_buf_begin(st);
    segue_status r = sg_put(st, &b, s->s, sign);
    for (int64_t i = 0; i < pad && r == SEGUE_OK; i++) {
        if (i == left) r = sg_put(st, &b, s->s + sign, s->n - sign);
        if (r == SEGUE_OK)
            r = fill ? sg_put(st, &b, fill->s, fill->n) : sg_put(st, &b, f->which == 'z' ? "0" : " ", 1);
    }
    if (r == SEGUE_OK && left == pad) r = sg_put(st, &b, s->s + sign, s->n - sign);
    return sg_str_take(st, r, &b, out);
}

SG_FUNC(m_expandtabs)
{
    const struct sg_str *s = sg_v_str(self);
    int64_t width = 8, column = 0;
    SG_UNUSED;
    if (in[0].kind != SG_V_MISSING) SG_TRY(sg_val_index(st, in[0], "a tab width", &width));
    struct sg_buf b = sg_buf_begin(st);
    segue_status r = SEGUE_OK;
    for (const char *p = s->s, *e = p + s->n; p < e && r == SEGUE_OK;) {
        const char *q = p;
        uint32_t c = sg_char_get(&q);
        if (c == '\t') {
            for (int64_t k = width > 0 ? width - column % width : 0; k > 0 && r == SEGUE_OK; k--, column++)
                r = sg_put(st, &b, " ", 1);
        } else {
            r = sg_put(st, &b, p, (size_t)(q - p));
            column = c == '\n' || c == '\r' ? 0 : column + 1;
        }
        p = q;
    }
    return sg_str_take(st, r, &b, out);
}

/* --- search --- */

/* The part of a text that optional start and end leave; *at: its first character. 0 = start lies beyond the end. */
static segue_status window(struct sg_jinja *st, const struct sg_str *s, struct sg_val *bound,
                           const char **from, const char **to, int64_t *at, int *valid)
{
    int64_t n = (int64_t)s->chars, start = 0, stop = n;
    if (sg_v_some(bound[0])) SG_TRY(sg_val_index(st, bound[0], "a start", &start));
    if (sg_v_some(bound[1])) SG_TRY(sg_val_index(st, bound[1], "an end", &stop));
    if (stop > n) stop = n;
    if (stop < 0) stop = stop + n < 0 ? 0 : stop + n;
    if (start < 0) start = start + n < 0 ? 0 : start + n;
    *valid = start <= stop;
    *at = start;
    *from = s->s + sg_str_byte(s, *valid ? (size_t)start : 0);
    *to = s->s + sg_str_byte(s, *valid ? (size_t)stop : 0);
    return SEGUE_OK;
}

/* find, rfind, index, rindex, count */
SG_FUNC(m_find)
{
    const struct sg_str *s = sg_v_str(self);
    struct sg_str *what = NULL;
    const char *p, *e;
    int64_t at, n = 0;
    int valid, last = f->which == 'r' || f->which == 'R';
    SG_UNUSED;
    SG_TRY(sg_val_want_str(st, in[0], "what is searched for", &what));
    SG_TRY(search_cost(st, s, what->n));
    SG_TRY(window(st, s, in + 1, &p, &e, &at, &valid));
    if (f->which == 'c') {
        if (valid && !what->n)
            for (n = 1; p < e; n++) sg_char_get(&p);
        while (valid && what->n && (p = find(p, e, what->s, what->n))) n++, p += what->n;
        return *out = sg_v_int(n), SEGUE_OK;
    }
    const char *hit = !valid ? NULL : last ? find_last(p, e, what->s, what->n) : find(p, e, what->s, what->n);
    if (!hit && (f->which == 'i' || f->which == 'R'))
        return sg_jinja_fail(st, "%s: substring not found", f->name);
    if (!hit) return *out = sg_v_int(-1), SEGUE_OK;
    while (p < hit) {
        sg_char_get(&p);
        at++;
    }
    *out = sg_v_int(at);
    return SEGUE_OK;
}

static int ends_match(const char *p, const char *e, const struct sg_str *w, int at_end)
{
    return (size_t)(e - p) >= w->n && !memcmp(at_end ? e - w->n : p, w->s, w->n);
}

SG_FUNC(m_ends)
{
    const char *p, *e;
    int64_t at;
    int valid, yes = 0, many = in[0].kind == SG_V_TUPLE;
    SG_UNUSED;
    SG_TRY(window(st, sg_v_str(self), in + 1, &p, &e, &at, &valid));
    size_t n = many ? sg_v_list(in[0])->n : 1;
    for (size_t i = 0; i < n && !yes; i++) {
        struct sg_str *w = NULL;
        SG_TRY(sg_val_want_str(st, many ? sg_v_list(in[0])->items[i] : in[0], "a prefix or suffix", &w));
        SG_TRY(sg_jinja_step(st, 1));
        yes = valid && ends_match(p, e, w, f->which == 'e');
    }
    *out = sg_v_bool(yes);
    return SEGUE_OK;
}

SG_FUNC(m_remove)
{
    const struct sg_str *s = sg_v_str(self);
    const char *p = s->s, *e = p + s->n;
    struct sg_str *w = NULL;
    SG_UNUSED;
    SG_TRY(sg_val_want_str(st, in[0], "what is removed", &w));
    if (!w->n || !ends_match(p, e, w, f->which == 'e')) return *out = self, SEGUE_OK;
    return f->which == 'e' ? part_of(st, self, p, e - w->n, out) : part_of(st, self, p + w->n, e, out);
}

/* --- split and join --- */

static segue_status add_part(struct sg_jinja *st, struct sg_list *l, struct sg_val self, const char *p,
                             const char *e)
{
    struct sg_val part;
    SG_TRY(part_of(st, self, p, e, &part));
    return sg_list_add(st, l, part);
}

static const char *next_space(const char *p, const char *e, int want, const char **after)
{
    while (p < e) {
        const char *q = p;
        if (sg_char_is(sg_char_get(&q), SG_IS_SPACE) == want) return *after = q, p;
        p = q;
    }
    *after = e;
    return e;
}

static segue_status split_space(struct sg_jinja *st, struct sg_val self, int64_t most, struct sg_list *l)
{
    const char *p = sg_v_str(self)->s, *e = p + sg_v_str(self)->n, *after;
    for (;;) {
        p = next_space(p, e, 0, &after);
        if (p == e) return SEGUE_OK;
        const char *q = most == 0 ? e : next_space(p, e, 1, &after);
        SG_TRY(add_part(st, l, self, p, q));
        most -= most > 0;
        p = q;
        if (p == e) return SEGUE_OK;
    }
}

/* From the right; parts come out last first. */
static segue_status rsplit_space(struct sg_jinja *st, struct sg_val self, int64_t most, struct sg_list *l)
{
    const char *s = sg_v_str(self)->s, *e = s + sg_v_str(self)->n;
    for (;;) {
        const char *p = e, *q;
        int space = 1;
        while (p > s) { /* back over whitespace */
            q = p - 1;
            while (((unsigned char)*q & 0xc0) == 0x80) q--;
            space = sg_char_is(sg_char_get(&(const char *){q}), SG_IS_SPACE);
            if (!space) break;
            p = q;
        }
        e = p;
        if (e == s) return SEGUE_OK;
        if (most == 0) return add_part(st, l, self, s, e);
        while (p > s) {
            q = p - 1;
            while (((unsigned char)*q & 0xc0) == 0x80) q--;
            if (sg_char_is(sg_char_get(&(const char *){q}), SG_IS_SPACE)) break;
            p = q;
        }
        SG_TRY(add_part(st, l, self, p, e));
        most -= most > 0;
        e = p;
    }
}

static void reverse_list(struct sg_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct sg_val v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

static segue_status split_by(struct sg_jinja *st, struct sg_val self, const struct sg_str *by, int64_t most,
                             int right, struct sg_list *l)
{
    const char *p = sg_v_str(self)->s, *e = p + sg_v_str(self)->n;
    while (most != 0) {
        const char *at = right ? find_last(p, e, by->s, by->n) : find(p, e, by->s, by->n);
        if (!at) break;
        SG_TRY(right ? add_part(st, l, self, at + by->n, e) : add_part(st, l, self, p, at));
        if (right)
            e = at;
        else
            p = at + by->n;
        most -= most > 0;
    }
    return add_part(st, l, self, p, e);
}

SG_FUNC(m_split)
{
    struct sg_list *l = NULL;
    struct sg_str *by = NULL;
    int64_t most = -1;
    int right = f->which == 'r';
    SG_UNUSED;
    if (sg_v_some(in[0])) SG_TRY(sg_val_want_str(st, in[0], "a separator", &by));
    if (in[1].kind != SG_V_MISSING) SG_TRY(sg_val_index(st, in[1], "the count of split", &most));
    if (by && !by->n) return sg_jinja_fail(st, "split: the separator is empty");
    SG_TRY(search_cost(st, sg_v_str(self), by ? by->n : 1));
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    if (by)
        SG_TRY(split_by(st, self, by, most, right, l));
    else
        SG_TRY(right ? rsplit_space(st, self, most, l) : split_space(st, self, most, l));
    if (right) reverse_list(l);
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

SG_FUNC(m_splitlines)
{
    struct sg_list *l = NULL;
    const char *p = sg_v_str(self)->s, *e = p + sg_v_str(self)->n;
    SG_UNUSED;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    SG_TRY(search_cost(st, sg_v_str(self), 1));
    for (const char *q = p, *next; p < e; p = q) {
        uint32_t c = 0;
        for (next = q; q < e; q = next) {
            c = sg_char_get(&next);
            if (sg_char_line(c)) break;
        }
        const char *end = q;
        q = next;
        if (end < e && c == '\r' && q < e && *q == '\n') q++;
        SG_TRY(add_part(st, l, self, p, sg_val_true(in[0]) ? q : end));
    }
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

SG_FUNC(m_partition)
{
    const struct sg_str *s = sg_v_str(self);
    const char *p = s->s, *e = p + s->n;
    struct sg_str *by = NULL;
    struct sg_list *l = NULL;
    SG_UNUSED;
    SG_TRY(sg_val_want_str(st, in[0], "a separator", &by));
    if (!by->n) return sg_jinja_fail(st, "partition: the separator is empty");
    SG_TRY(search_cost(st, s, by->n));
    SG_TRY(sg_list_make(st, SG_V_TUPLE, 3, &l));
    const char *at = f->which == 'r' ? find_last(p, e, by->s, by->n) : find(p, e, by->s, by->n);
    const char *mid = at ? at : f->which == 'r' ? p : e, *after = at ? at + by->n : mid;
    SG_TRY(add_part(st, l, self, p, mid));
    SG_TRY(add_part(st, l, self, mid, after));
    SG_TRY(add_part(st, l, self, after, e));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

SG_FUNC(m_join)
{
    const struct sg_str *by = sg_v_str(self);
    struct sg_iter it;
    struct sg_val v;
    int got;
    SG_UNUSED;
    SG_TRY(sg_iter_open(st, in[0], &it));
    struct sg_buf b = sg_buf_begin(st);
    segue_status r = SEGUE_OK;
    for (size_t i = 0;; i++) {
        struct sg_str *s = NULL;
        r = sg_iter_next(st, &it, &v, &got);
        if (r != SEGUE_OK || !got) break;
        if (i) r = sg_put(st, &b, by->s, by->n);
        if (r == SEGUE_OK) r = sg_val_want_str(st, v, "an item of join", &s);
        if (r == SEGUE_OK) r = sg_put(st, &b, s->s, s->n);
        if (r != SEGUE_OK) break;
    }
    return sg_str_take(st, r, &b, out);
}

SG_FUNC(m_format)
{
    SG_UNUSED;
    return sg_format_braces(st, sg_v_str(self), args, out);
}

/* --- classes of characters --- */

static int char_passes(uint32_t c, char which)
{
    switch (which) {
    case 'a': return sg_char_is(c, SG_IS_ALPHA);
    case 'n': return sg_char_is(c, SG_IS_ALPHA) || sg_char_is(c, SG_IS_NUMERIC);
    case 'd': return sg_char_is(c, SG_IS_DIGIT);
    case 'D': return sg_char_is(c, SG_IS_DECIMAL);
    case 'N': return sg_char_is(c, SG_IS_NUMERIC);
    case 's': return sg_char_is(c, SG_IS_SPACE);
    case 'A': return c < 128;
    default: return sg_char_is(c, SG_IS_PRINTABLE);
    }
}

SG_FUNC(m_is)
{
    const struct sg_str *s = sg_v_str(self);
    int yes = s->n || f->which == 'A' || f->which == 'p';
    SG_UNUSED;
    SG_TRY(search_cost(st, s, 1));
    for (const char *p = s->s, *e = p + s->n; p < e && yes;)
        yes = char_passes(sg_char_get(&p), (char)f->which);
    *out = sg_v_bool(yes);
    return SEGUE_OK;
}

/* islower, isupper, istitle */
SG_FUNC(m_is_case)
{
    const struct sg_str *s = sg_v_str(self);
    int yes = 1, seen = 0, inside = 0;
    SG_UNUSED;
    SG_TRY(search_cost(st, s, 1));
    for (const char *p = s->s, *e = p + s->n; p < e && yes;) {
        uint32_t c = sg_char_get(&p);
        int low = sg_char_is(c, SG_IS_LOWER), up = sg_char_is(c, SG_IS_UPPER),
            title = sg_char_is(c, SG_IS_TITLE);
        if (f->which == 'l')
            yes = !up && !title;
        else if (f->which == 'u')
            yes = !low && !title;
        else
            yes = up || title ? !inside : low ? inside : 1;
        seen |= f->which == 'l' ? low : f->which == 'u' ? up : low || up || title;
        inside = low || up || title;
    }
    *out = sg_v_bool(yes && seen);
    return SEGUE_OK;
}

const struct sg_func *sg_str_method_find(const char *s, size_t n)
{
    static const struct sg_func table[] = {{"capitalize", m_case, "", 0, 'c'},
                                           {"center", m_pad, "width fillchar", 0, 'c'},
                                           {"count", m_find, "sub start end", 1, 'c'},
                                           {"endswith", m_ends, "suffix start end", 1, 'e'},
                                           {"expandtabs", m_expandtabs, "tabsize", 0, 0},
                                           {"find", m_find, "sub start end", 1, 'f'},
                                           {"format", m_format, NULL, 0, 0},
                                           {"index", m_find, "sub start end", 1, 'i'},
                                           {"isalnum", m_is, "", 0, 'n'},
                                           {"isalpha", m_is, "", 0, 'a'},
                                           {"isascii", m_is, "", 0, 'A'},
                                           {"isdecimal", m_is, "", 0, 'D'},
                                           {"isdigit", m_is, "", 0, 'd'},
                                           {"islower", m_is_case, "", 0, 'l'},
                                           {"isnumeric", m_is, "", 0, 'N'},
                                           {"isprintable", m_is, "", 0, 'p'},
                                           {"isspace", m_is, "", 0, 's'},
                                           {"istitle", m_is_case, "", 0, 't'},
                                           {"isupper", m_is_case, "", 0, 'u'},
                                           {"join", m_join, "iterable", 1, 0},
                                           {"ljust", m_pad, "width fillchar", 1, 'l'},
                                           {"lower", m_case, "", 0, SG_CASE_LOWER},
                                           {"lstrip", m_strip, "chars", 0, 1},
                                           {"partition", m_partition, "sep", 1, 0},
                                           {"removeprefix", m_remove, "prefix", 1, 's'},
                                           {"removesuffix", m_remove, "suffix", 1, 'e'},
                                           {"replace", m_replace, "old new count", 2, 0},
                                           {"rfind", m_find, "sub start end", 1, 'r'},
                                           {"rindex", m_find, "sub start end", 1, 'R'},
                                           {"rjust", m_pad, "width fillchar", 1, 'r'},
                                           {"rpartition", m_partition, "sep", 1, 'r'},
                                           {"rsplit", m_split, "sep maxsplit", 0, 'r'},
                                           {"rstrip", m_strip, "chars", 0, 2},
                                           {"split", m_split, "sep maxsplit", 0, 0},
                                           {"splitlines", m_splitlines, "keepends", 0, 0},
                                           {"startswith", m_ends, "prefix start end", 1, 's'},
                                           {"strip", m_strip, "chars", 0, 3},
                                           {"swapcase", m_case, "", 0, SG_CASE_SWAP},
                                           {"title", m_case, "", 0, 't'},
                                           {"upper", m_case, "", 0, SG_CASE_UPPER},
                                           {"zfill", m_pad, "width", 1, 'z'}};
    return sg_func_search(table, sizeof table / sizeof *table, s, n);
}

/* Markup in, Markup out; what is put into it is escaped first. */
segue_status sg_str_method_call(struct sg_jinja *st, const struct sg_func *f, struct sg_val self,
                                const struct sg_args *args, struct sg_val *out)
{
    struct sg_args own = *args;
    struct sg_list *l = NULL;
    struct sg_val pos[SG_PARAMS];
    if (!self.aux || self.kind != SG_V_STR) return sg_func_call(st, f, self, args, out);
    if (f->fn == m_join && args->pos_n == 1) {
        SG_TRY(sg_val_to_list(st, args->pos[0], &l));
        for (size_t i = 0; i < l->n; i++) SG_TRY(sg_str_escape(st, l->items[i], &l->items[i]));
        pos[0] = sg_v_of(&l->o);
        own.pos = pos;
    } else if ((f->fn == m_replace || f->fn == m_pad) && args->pos_n >= 2 && args->pos_n <= SG_PARAMS) {
        memcpy(pos, args->pos, args->pos_n * sizeof *pos);
        SG_TRY(sg_str_escape(st, pos[1], &pos[1]));
        own.pos = pos;
    } else if (f->fn == m_format) {
        return sg_jinja_fail(st, "format: marked strings are not supported");
    }
    SG_TRY(sg_func_call(st, f, self, &own, out));
    if (out->kind == SG_V_STR) out->aux = 1;
    if (out->kind != SG_V_LIST && out->kind != SG_V_TUPLE) return SEGUE_OK;
    for (size_t i = 0; i < sg_v_list(*out)->n; i++) sg_v_list(*out)->items[i].aux = 1;
    return SEGUE_OK;
}
