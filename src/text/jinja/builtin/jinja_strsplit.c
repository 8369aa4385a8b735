/* jinja_strsplit.c: methods of str that split, and those that test the class of all characters; with
 * helpers for jinja_strings.c. All work on code points.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* An empty text is found at s. */
const char *sg_find_range(const char *s, const char *e, const char *what, size_t m)
{
    return sg_find_bytes(s, (size_t)(e - s), what, m);
}

/* Compares backwards from the end. An empty text is found at e. */
const char *sg_find_last_range(const char *s, const char *e, const char *what, size_t m)
{
    if ((size_t)(e - s) < m) return NULL;
    for (const char *p = e - m;; p--) {
        if (!memcmp(p, what, m)) return p;
        if (p == s) return NULL;
    }
}

/* Worst case of a search is n times m comparisons of bytes; 64 by 64 of them are one step. */
segue_status sg_str_search_cost(struct sg_jinja *st, const struct sg_str *s, size_t m)
{
    return sg_jinja_step(st, s->n / 64 * (m / 64 + 1));
}

/* from and to must be at character boundaries. */
segue_status sg_str_slice_ptr(struct sg_jinja *st, struct sg_val self, const char *from, const char *to,
                            struct sg_val *out)
{
    return sg_str_slice(st, self, (size_t)(from - sg_v_str(self)->s), (size_t)(to - from), out);
}

/* Append self[p, e) to a list, sharing the bytes of long parts. */
static segue_status add_slice(struct sg_jinja *st, struct sg_list *l, struct sg_val self, const char *p,
                             const char *e)
{
    struct sg_val part;
    SG_TRY(sg_str_slice_ptr(st, self, p, e, &part));
    return sg_list_add(st, l, part);
}

/* First character from p on that is whitespace (want 1) or is not (want 0); e = none. *after:
 * end of that character. */
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

/* split() without a separator: runs of whitespace separate, and there are no empty parts.
 * max_splits < 0: no limit; at the limit the rest is one part, with trailing whitespace kept as in
 * Python. */
static segue_status split_space(struct sg_jinja *st, struct sg_val self, int64_t max_splits, struct sg_list *l)
{
    const char *p = sg_v_str(self)->s, *e = p + sg_v_str(self)->n, *after;
    for (;;) {
        /* skip whitespace */
        p = next_space(p, e, 0, &after);
        if (p == e) return SEGUE_OK;
        /* the part ends at whitespace, or takes the rest */
        const char *q = max_splits == 0 ? e : next_space(p, e, 1, &after);
        SG_TRY(add_slice(st, l, self, p, q));
        max_splits -= max_splits > 0;
        p = q;
        if (p == e) return SEGUE_OK;
    }
}

/* rsplit() without a separator, from the right; the parts are appended last first. */
static segue_status rsplit_space(struct sg_jinja *st, struct sg_val self, int64_t max_splits, struct sg_list *l)
{
    const char *s = sg_v_str(self)->s, *e = s + sg_v_str(self)->n;
    for (;;) {
        const char *p = e, *q;
        int space = 1;
        while (p > s) { /* back over whitespace */
            q = p - 1;
            /* back to the first byte of the character */
            while (((unsigned char)*q & 0xc0) == 0x80) q--;
            space = sg_char_is(sg_char_get(&(const char *){q}), SG_IS_SPACE);
            if (!space) break;
            p = q;
        }
        e = p;
        if (e == s) return SEGUE_OK;
        /* the rest is one part; leading whitespace is kept */
        if (max_splits == 0) return add_slice(st, l, self, s, e);
        while (p > s) {
            q = p - 1;
            while (((unsigned char)*q & 0xc0) == 0x80) q--;
            if (sg_char_is(sg_char_get(&(const char *){q}), SG_IS_SPACE)) break;
            p = q;
        }
        /* [p, e): the last word */
        SG_TRY(add_slice(st, l, self, p, e));
        max_splits -= max_splits > 0;
        e = p;
    }
}

/* Split by a separator, from the left or from the right (parts last first). Empty parts are kept. */
static segue_status split_by(struct sg_jinja *st, struct sg_val self, const struct sg_str *by, int64_t max_splits,
                             int right, struct sg_list *l)
{
    const char *p = sg_v_str(self)->s, *e = p + sg_v_str(self)->n;
    while (max_splits != 0) {
        const char *at = right ? sg_find_last_range(p, e, by->s, by->n) : sg_find_range(p, e, by->s, by->n);
        if (!at) break;
        SG_TRY(right ? add_slice(st, l, self, at + by->n, e) : add_slice(st, l, self, p, at));
        if (right)
            e = at;
        else
            p = at + by->n;
        /* a negative count never reaches 0 */
        max_splits -= max_splits > 0;
    }
    return add_slice(st, l, self, p, e);
}

/* split and rsplit. An empty separator is an error, as in Python. */
SG_BUILTIN(m_split)
{
    struct sg_list *l = NULL;
    struct sg_str *by = NULL;
    int64_t max_splits = -1;
    int right = f->variant == 'r';
    SG_BUILTIN_UNUSED;
    if (sg_v_not_none(in[0])) SG_TRY(sg_val_expect_str(st, in[0], "a separator", &by));
    if (in[1].kind != SG_V_MISSING) SG_TRY(sg_val_index(st, in[1], "the count of split", &max_splits));
    if (by && !by->n) return sg_jinja_fail(st, "split: the separator is empty");
    SG_TRY(sg_str_search_cost(st, sg_v_str(self), by ? by->n : 1));
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    if (by)
        SG_TRY(split_by(st, self, by, max_splits, right, l));
    else
        SG_TRY(right ? rsplit_space(st, self, max_splits, l) : split_space(st, self, max_splits, l));
    /* rsplit found the parts from the right */
    if (right) sg_list_reverse(l);
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

/* Line ends of sg_char_line; \r\n counts as one. An argument that is true keeps them. */
SG_BUILTIN(m_splitlines)
{
    struct sg_list *l = NULL;
    const char *p = sg_v_str(self)->s, *e = p + sg_v_str(self)->n;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    SG_TRY(sg_str_search_cost(st, sg_v_str(self), 1));
    for (const char *q = p, *next; p < e; p = q) {
        uint32_t c = 0;
        for (next = q; q < e; q = next) {
            c = sg_char_get(&next);
            if (sg_char_line(c)) break;
        }
        /* end: of the line without its line end; q: start of the next one */
        const char *end = q;
        q = next;
        if (end < e && c == '\r' && q < e && *q == '\n') q++;
        SG_TRY(add_slice(st, l, self, p, sg_val_true(in[0]) ? q : end));
    }
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

/* partition and rpartition: a tuple of three. Without a hit, rpartition puts the text last and
 * partition first. */
SG_BUILTIN(m_partition)
{
    const struct sg_str *s = sg_v_str(self);
    const char *p = s->s, *e = p + s->n;
    struct sg_str *by = NULL;
    struct sg_list *l = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_expect_str(st, in[0], "a separator", &by));
    if (!by->n) return sg_jinja_fail(st, "partition: the separator is empty");
    SG_TRY(sg_str_search_cost(st, s, by->n));
    SG_TRY(sg_list_make(st, SG_V_TUPLE, 3, &l));
    const char *at = f->variant == 'r' ? sg_find_last_range(p, e, by->s, by->n) : sg_find_range(p, e, by->s, by->n);
    /* [mid, after): the separator, empty without a match */
    const char *mid = at ? at : f->variant == 'r' ? p : e, *after = at ? at + by->n : mid;
    SG_TRY(add_slice(st, l, self, p, mid));
    SG_TRY(add_slice(st, l, self, mid, after));
    SG_TRY(add_slice(st, l, self, after, e));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

/* variant: one letter per class, see the table. */
static int char_passes(uint32_t c, char variant)
{
    switch (variant) {
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

/* isalpha and so on: true if all characters are of the class. The empty string is only ascii and
 * printable. */
SG_BUILTIN(m_all_chars)
{
    const struct sg_str *s = sg_v_str(self);
    int yes = s->n || f->variant == 'A' || f->variant == 'p';
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_str_search_cost(st, s, 1));
    for (const char *p = s->s, *e = p + s->n; p < e && yes;)
        yes = char_passes(sg_char_get(&p), (char)f->variant);
    *out = sg_v_bool(yes);
    return SEGUE_OK;
}

/* islower, isupper, istitle: at least one cased character, and none of the wrong case. istitle:
 * upper or title case starts a word, lower case continues it. */
SG_BUILTIN(m_all_case)
{
    const struct sg_str *s = sg_v_str(self);
    int yes = 1, seen = 0, inside = 0;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_str_search_cost(st, s, 1));
    for (const char *p = s->s, *e = p + s->n; p < e && yes;) {
        uint32_t c = sg_char_get(&p);
        int low = sg_char_is(c, SG_IS_LOWER), up = sg_char_is(c, SG_IS_UPPER),
            title = sg_char_is(c, SG_IS_TITLE);
        if (f->variant == 'l')
            yes = !up && !title;
        else if (f->variant == 'u')
            yes = !low && !title;
        else
            yes = up || title ? !inside : low ? inside : 1;
        /* a character of the right case occurred */
        seen |= f->variant == 'l' ? low : f->variant == 'u' ? up : low || up || title;
        inside = low || up || title;
    }
    *out = sg_v_bool(yes && seen);
    return SEGUE_OK;
}

/* Methods that jinja_strings.c does not have; variant: one letter per class or direction. */
const struct sg_builtin *sg_str_split_method_find(const char *s, size_t n)
{
    static const struct sg_builtin table[] = {
        {"isalnum", m_all_chars, "", 0, 'n'},
        {"isalpha", m_all_chars, "", 0, 'a'},
        {"isascii", m_all_chars, "", 0, 'A'},
        {"isdecimal", m_all_chars, "", 0, 'D'},
        {"isdigit", m_all_chars, "", 0, 'd'},
        {"islower", m_all_case, "", 0, 'l'},
        {"isnumeric", m_all_chars, "", 0, 'N'},
        {"isprintable", m_all_chars, "", 0, 'p'},
        {"isspace", m_all_chars, "", 0, 's'},
        {"istitle", m_all_case, "", 0, 't'},
        {"isupper", m_all_case, "", 0, 'u'},
        {"partition", m_partition, "sep", 1, 0},
        {"rpartition", m_partition, "sep", 1, 'r'},
        {"rsplit", m_split, "sep maxsplit", 0, 'r'},
        {"split", m_split, "sep maxsplit", 0, 0},
        {"splitlines", m_splitlines, "keepends", 0, 0}};
    return sg_builtin_search(table, sizeof table / sizeof *table, s, n);
}
