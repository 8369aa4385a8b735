/* jinja_lists.c: filters on lists, dicts and other iterables: access, sorting, selection and grouping. Where jinja2
 * returns a generator, so do these: an SG_V_ITER over a list that is complete already. Filters that take an attribute
 * accept a dotted path, "message.role".
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* length and count: len(value). A generator has none. */
SG_BUILTIN(f_length)
{
    size_t n;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_length(st, self, &n));
    *out = sg_v_int((int64_t)n);
    return SEGUE_OK;
}

/* default(value="", boolean): replaces an undefined value; boolean: any false value too. */
SG_BUILTIN(f_default)
{
    SG_BUILTIN_UNUSED;
    *out = self;
    if (self.kind != SG_V_UNDEFINED && !(sg_val_true(in[1]) && !sg_val_true(self))) return SEGUE_OK;
    if (sg_v_given(in[0])) return *out = in[0], SEGUE_OK;
    return sg_str_borrow(st, "", 0, out);
}

/* list(value); a string gives its characters. */
SG_BUILTIN(f_list)
{
    struct sg_list *l = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

/* The first item, or undefined. It consumes one item of a generator. */
SG_BUILTIN(f_first)
{
    struct sg_val_iter it;
    int got;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_iter_open(st, self, &it));
    SG_TRY(sg_iter_next(st, &it, out, &got));
    if (!got) *out = sg_v_undefined(NULL, 0);
    return SEGUE_OK;
}

/* The last item, or undefined. As in jinja2, a generator is refused. */
SG_BUILTIN(f_last)
{
    struct sg_list *l = NULL;
    SG_BUILTIN_UNUSED;
    if (self.kind == SG_V_ITER)
        return sg_jinja_fail(st, "last: a generator cannot be reversed; use |list first");
    /* no copy for the usual case */
    if (self.kind == SG_V_LIST || self.kind == SG_V_TUPLE)
        l = sg_v_list(self);
    else
        SG_TRY(sg_val_to_list(st, self, &l));
    *out = l->n ? l->items[l->n - 1] : sg_v_undefined(NULL, 0);
    return SEGUE_OK;
}

/* Python's type name of reversed(value), which a template can print. */
static const char *reversed_name(int kind)
{
    return kind == SG_V_LIST   ? "list_reverseiterator"
           : kind == SG_V_DICT ? "dict_reversekeyiterator"
                               : "reversed";
}

/* A string is reversed by code points; other values give an iterator over the items in reverse. */
SG_BUILTIN(f_reverse)
{
    struct sg_list *l = NULL;
    struct sg_val part[3] = {sg_v_none(), sg_v_none(), sg_v_int(-1)};
    SG_BUILTIN_UNUSED;
    if (self.kind == SG_V_STR) return sg_val_slice(st, self, part, out);
    SG_TRY(sg_val_to_list(st, self, &l));
    sg_list_reverse(l);
    if (self.kind == SG_V_ITER) return *out = sg_v_of(&l->o), SEGUE_OK;
    return sg_seq_make(st, SG_V_ITER, l, reversed_name(self.kind), out);
}

SG_BUILTIN(f_items)
{
    struct sg_list *l = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    if (self.kind != SG_V_UNDEFINED && self.kind != SG_V_DICT)
        return sg_jinja_fail(st, "items: expected a dict, got '%s'", sg_val_type(self.kind));
    for (size_t i = 0; self.kind == SG_V_DICT && i < sg_v_dict(self)->n; i++) {
        struct sg_val pair;
        SG_TRY(sg_pair_make(st, sg_v_dict(self)->pairs[i].key, sg_v_dict(self)->pairs[i].value, &pair));
        SG_TRY(sg_list_add(st, l, pair));
    }
    return sg_seq_make(st, SG_V_ITER, l, "generator", out);
}

/* item.a.b.0 for the path "a.b.0"; parts of digits are integer keys. fallback, if given, replaces an undefined value
 * at each part. */
static segue_status get_path(struct sg_jinja *st, struct sg_val item, const char *s, size_t n,
                             struct sg_val fallback, struct sg_val *out)
{
    *out = item;
    for (const char *e = s + n;;) {
        const char *dot = memchr(s, '.', (size_t)(e - s)), *end = dot ? dot : e;
        struct sg_val key;
        int64_t index;
        /* "0" is an index, "a0" a name */
        int digits = end > s;
        for (const char *p = s; p < end; p++) digits &= *p >= '0' && *p <= '9';
        if (digits && sg_int_parse(s, (size_t)(end - s), 10, &index) == 1)
            key = sg_v_int(index);
        else
            SG_TRY(sg_str_make(st, s, (size_t)(end - s), &key));
        SG_TRY(sg_val_item(st, *out, key, NULL, out));
        if (sg_v_not_none(fallback) && fallback.kind != SG_V_UNDEFINED && out->kind == SG_V_UNDEFINED)
            *out = fallback;
        if (!dot) return SEGUE_OK;
        s = dot + 1;
    }
}

/* The attribute of item that a filter names: a path, an integer key, or nothing for the item itself. */
static segue_status get_attribute(struct sg_jinja *st, struct sg_val item, struct sg_val attr,
                             struct sg_val fallback, struct sg_val *out)
{
    if (attr.kind == SG_V_STR) return get_path(st, item, sg_v_str(attr)->s, sg_v_str(attr)->n, fallback, out);
    if (!sg_v_given(attr) || attr.kind == SG_V_NONE) return *out = item, SEGUE_OK;
    SG_TRY(sg_val_item(st, item, attr, NULL, out));
    if (sg_v_not_none(fallback) && out->kind == SG_V_UNDEFINED) *out = fallback;
    return SEGUE_OK;
}

/* v, in lower case if fold is set and v is a string: the key of a comparison that ignores case. */
static segue_status fold_case(struct sg_jinja *st, struct sg_val v, int fold, struct sg_val *out)
{
    *out = v;
    if (!fold || v.kind != SG_V_STR) return SEGUE_OK;
    struct sg_buf b = sg_val_buf(st);
    return sg_str_from_buf(st, sg_case_put(st, &b, sg_v_str(v), 0, sg_v_str(v)->n, SG_CASE_LOWER), &b, out);
}

/* The value that item is compared by. fold: ignore case. */
static segue_status sort_key(struct sg_jinja *st, struct sg_val item, struct sg_val attr, int fold,
                             struct sg_val *out)
{
    struct sg_val v;
    SG_TRY(get_attribute(st, item, attr, (struct sg_val){0}, &v));
    return fold_case(st, v, fold, out);
}

/* The key of sort(attribute="a,b"): a list with the value of each path. Also a single key is put into a list,
 * because lists are first compared for equality, as jinja2 does. */
static segue_status multi_sort_key(struct sg_jinja *st, struct sg_val item, struct sg_val attr, int fold,
                              struct sg_val *out)
{
    struct sg_list *l = NULL;
    struct sg_val v;
    SG_TRY(sg_list_make(st, SG_V_LIST, 1, &l));
    *out = sg_v_of(&l->o);
    if (attr.kind != SG_V_STR) {
        SG_TRY(sort_key(st, item, attr, fold, &v));
        return sg_list_add(st, l, v);
    }
    for (const char *s = sg_v_str(attr)->s, *e = s + sg_v_str(attr)->n, *comma = s; comma; s = comma + 1) {
        comma = memchr(s, ',', (size_t)(e - s));
        SG_TRY(get_path(st, item, s, (size_t)((comma ? comma : e) - s), (struct sg_val){0}, &v));
        SG_TRY(fold_case(st, v, fold, &v));
        SG_TRY(sg_list_add(st, l, v));
        if (!comma) break;
    }
    return SEGUE_OK;
}

/* Sort l in place and stably. All keys are computed first, one per item. */
static segue_status sort_by(struct sg_jinja *st, struct sg_list *l, struct sg_val attr, int fold, int reverse,
                            int multi)
{
    struct sg_list *keys = NULL;
    SG_TRY(sg_list_make(st, SG_V_LIST, l->n, &keys));
    for (size_t i = 0; i < l->n; i++) {
        SG_TRY((multi ? multi_sort_key : sort_key)(st, l->items[i], attr, fold, &keys->items[i]));
        /* the list grows with its content, so that it never shows an item that is not set */
        keys->n = i + 1;
    }
    return sg_val_sort(st, keys->items, l->items, l->n, reverse);
}

/* sort(reverse, case_sensitive, attribute): a new list. */
SG_BUILTIN(f_sort)
{
    struct sg_list *l = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    SG_TRY(sort_by(st, l, in[2], !sg_val_true(in[1]), sg_val_true(in[0]), 1));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

/* dictsort(case_sensitive, by="key", reverse): a list of (key, value) tuples. */
SG_BUILTIN(f_dictsort)
{
    struct sg_list *l = NULL;
    struct sg_dict_view view = {.variant = 'i'};
    /* the index of the sort key in a pair */
    int by_value = sg_v_is(in[1], "value", 5);
    SG_BUILTIN_UNUSED;
    if (sg_v_given(in[1]) && !by_value && !sg_v_is(in[1], "key", 3))
        return sg_jinja_fail(st, "dictsort: sort by 'key' or 'value'");
    if (self.kind != SG_V_DICT)
        return sg_jinja_fail(st, "dictsort: expected a dict, got '%s'", sg_val_type(self.kind));
    /* a view on the C stack: it is only iterated here, so it need not be a heap value */
    view.dict = sg_v_dict(self);
    view.o.kind = SG_V_VIEW;
    SG_TRY(sg_val_to_list(st, sg_v_of(&view.o), &l));
    /* the key is item 0 of each pair, the value is item 1 */
    SG_TRY(sort_by(st, l, sg_v_int(by_value), !sg_val_true(in[0]), sg_val_true(in[2]), 0));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

/* The first item of each group of equal ones, in order; case is ignored by default. */
SG_BUILTIN(f_unique)
{
    struct sg_list *from = NULL, *l = NULL;
    struct sg_dict *seen = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &from));
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    SG_TRY(sg_dict_make(st, SG_V_DICT, &seen));
    for (size_t i = 0; i < from->n; i++) {
        struct sg_val key, old;
        SG_TRY(sort_key(st, from->items[i], in[1], !sg_val_true(in[0]), &key));
        SG_TRY(sg_dict_get(st, seen, key, &old));
        /* a key was seen before */
        if (old.kind != SG_V_MISSING) continue;
        SG_TRY(sg_dict_set(st, seen, key, sg_v_none()));
        SG_TRY(sg_list_add(st, l, from->items[i]));
    }
    return sg_seq_make(st, SG_V_ITER, l, "generator", out);
}

/* variant '<' min, '>' max. The first of equal items wins; an empty list gives undefined. */
SG_BUILTIN(f_min_max)
{
    struct sg_list *l = NULL;
    struct sg_val best = {0};
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    *out = sg_v_undefined(NULL, 0);
    for (size_t i = 0; i < l->n; i++) {
        struct sg_val key;
        int c = 0;
        SG_TRY(sort_key(st, l->items[i], in[1], !sg_val_true(in[0]), &key));
        if (i) SG_TRY(sg_val_order(st, key, best, &c));
        /* a later item must be strictly better; NaN (2) never is */
        if (i && c != (f->variant == '<' ? -1 : 1)) continue;
        best = key;
        *out = l->items[i];
    }
    return SEGUE_OK;
}

/* sum(attribute, start=0). */
SG_BUILTIN(f_sum)
{
    struct sg_list *l = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    *out = sg_v_given(in[1]) ? in[1] : sg_v_int(0);
    if (out->kind == SG_V_STR) return sg_jinja_fail(st, "sum: cannot add strings; use |join");
    for (size_t i = 0; i < l->n; i++) {
        struct sg_val v;
        SG_TRY(get_attribute(st, l->items[i], in[0], (struct sg_val){0}, &v));
        /* from the left, so that float sums equal Python's */
        SG_TRY(sg_val_binary(st, '+', *out, v, out));
    }
    return SEGUE_OK;
}

/* join(d="", attribute): the text of all items with d between them. */
SG_BUILTIN(f_join)
{
    struct sg_val_iter it;
    struct sg_val by = in[0], v;
    int got;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_v_given(by) ? sg_val_text(st, by, &by) : sg_str_borrow(st, "", 0, &by));
    SG_TRY(sg_iter_open(st, self, &it));
    struct sg_buf b = {.limit = st->limits.value_bytes};
    segue_status s = SEGUE_OK;
    for (size_t i = 0; s == SEGUE_OK; i++) {
        s = sg_iter_next(st, &it, &v, &got);
        if (s != SEGUE_OK || !got) break;
        /* the separator precedes all items but the first */
        if (i) s = sg_put_str(st, &b, by);
        if (s == SEGUE_OK) s = get_attribute(st, v, in[1], (struct sg_val){0}, &v);
        if (s == SEGUE_OK) s = sg_put_str(st, &b, v);
    }
    return sg_str_from_buf(st, s, &b, out);
}

/* The arguments of a call without the first n positional ones. */
static struct sg_call_args args_after(const struct sg_call_args *args, size_t n)
{
    return args->pos_n > n ? (struct sg_call_args){args->pos + n, args->pos_n - n, args->named}
                           : (struct sg_call_args){NULL, 0, args->named};
}

/* map(attribute=.., default=..), or map("filter", arguments): one result per item. */
SG_BUILTIN(f_map)
{
    struct sg_list *from = NULL, *l = NULL;
    const struct sg_val *attr = args->named ? sg_dict_name(args->named, "attribute", 9) : NULL, *def;
    const struct sg_builtin *call = NULL;
    struct sg_str *name = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    /* as in jinja2, an empty value is not checked further */
    if (!sg_val_true(self)) return sg_seq_make(st, SG_V_ITER, l, "generator", out);
    SG_TRY(sg_val_to_list(st, self, &from));
    SG_TRY(sg_list_make(st, SG_V_LIST, from->n, &l));
    /* attribute= and default= are only read without a filter name */
    def = args->named ? sg_dict_name(args->named, "default", 7) : NULL;
    if (args->pos_n || !attr) {
        if (!args->pos_n) return sg_jinja_fail(st, "map: expected the name of a filter or attribute=");
        SG_TRY(sg_val_expect_str(st, args->pos[0], "the filter of map", &name));
        call = st->env->filter(name->s, name->n);
        if (!call)
            return sg_jinja_fail(st, "map: there is no filter '%.*s'", (int)(name->n > 40 ? 40 : name->n),
                                 name->s);
    } else if (args->named->n > 1 + (def != NULL)) {
        return sg_jinja_fail(st, "map: unknown keyword argument");
    }
    for (size_t i = 0; i < from->n; i++, l->n++) {
        struct sg_call_args rest = args_after(args, 1);
        /* map may name map: each nesting counts as a level */
        SG_TRY(sg_jinja_enter(st));
        if (call)
            SG_TRY(sg_builtin_call(st, call, from->items[i], &rest, &l->items[i]));
        else
            SG_TRY(get_attribute(st, from->items[i], *attr, def ? *def : (struct sg_val){0}, &l->items[i]));
        st->level--;
    }
    return sg_seq_make(st, SG_V_ITER, l, "generator", out);
}

/* select, reject, selectattr, rejectattr. variant: bit 0 = reject, bit 1 = test an attribute of the item. Without a
 * test, the value itself is the condition. */
SG_BUILTIN(f_select)
{
    struct sg_list *from = NULL, *l = NULL;
    const struct sg_builtin *test = NULL;
    /* arguments before the name of the test: the attribute, if any */
    size_t skip = f->variant >> 1;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    if (!sg_val_true(self)) return sg_seq_make(st, SG_V_ITER, l, "generator", out);
    SG_TRY(sg_val_to_list(st, self, &from));
    if (args->pos_n < skip) return sg_jinja_fail(st, "'%s' needs the name of an attribute", f->name);
    /* the name of a test, and after it the arguments of the test */
    if (args->pos_n > skip) {
        struct sg_str *name = NULL;
        SG_TRY(sg_val_expect_str(st, args->pos[skip], "the name of a test", &name));
        test = st->env->test(name->s, name->n);
        if (!test)
            return sg_jinja_fail(st, "there is no test named '%.*s'", (int)(name->n > 40 ? 40 : name->n),
                                 name->s);
        skip++;
    }
    for (size_t i = 0; i < from->n; i++) {
        struct sg_val v = from->items[i], yes;
        struct sg_call_args rest = args_after(args, skip);
        if (f->variant >> 1) SG_TRY(get_attribute(st, v, args->pos[0], (struct sg_val){0}, &v));
        /* without a test: the truth of the value */
        yes = v;
        if (test) SG_TRY(sg_builtin_call(st, test, v, &rest, &yes));
        if (sg_val_true(yes) == !(f->variant & 1)) SG_TRY(sg_list_add(st, l, from->items[i]));
    }
    return sg_seq_make(st, SG_V_ITER, l, "generator", out);
}

/* groupby(attribute): pairs (value, items), sorted by value. Items are compared without case by default, and the
 * pair shows the value of the group's first item. */
SG_BUILTIN(f_groupby)
{
    struct sg_list *l = NULL, *groups = NULL, *group = NULL;
    struct sg_val last = {0};
    int fold = !sg_val_true(in[2]);
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &groups));
    if (sg_v_not_none(in[1])) return sg_jinja_fail(st, "groupby: a default is not supported");
    SG_TRY(sort_by(st, l, in[0], fold, 0, 0));
    for (size_t i = 0; i < l->n; i++) {
        struct sg_val key, real, pair;
        int same = 0;
        SG_TRY(sort_key(st, l->items[i], in[0], fold, &key));
        if (group) SG_TRY(sg_val_equal(st, key, last, &same));
        last = key;
        if (!same) {
            /* without folding: the value that the template sees */
            SG_TRY(sort_key(st, l->items[i], in[0], 0, &real));
            SG_TRY(sg_list_make(st, SG_V_LIST, 0, &group));
            SG_TRY(sg_pair_make(st, real, sg_v_of(&group->o), &pair));
            SG_TRY(sg_list_add(st, groups, pair));
        }
        SG_TRY(sg_list_add(st, group, l->items[i]));
    }
    *out = sg_v_of(&groups->o);
    return SEGUE_OK;
}

/* batch (variant 'b'): rows of n items; slice (variant 's'): n rows of nearly equal length. fill completes short
 * rows. */
SG_BUILTIN(f_batch)
{
    struct sg_list *from = NULL, *rows = NULL, *row = NULL;
    struct sg_val fill = in[1];
    int64_t n;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &from));
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &rows));
    SG_TRY(sg_val_index(st, in[0], "the size", &n));
    if (n < 1) return sg_jinja_fail(st, "'%s' needs a size above zero", f->name);
    /* slice: the first `extra` rows have one item more */
    size_t base = from->n / (size_t)n, extra = from->n % (size_t)n, at = 0;
    size_t count = f->variant == 's' ? (size_t)n : base + (extra != 0);
    for (size_t i = 0; i < count; i++) {
        /* length of this row without filling */
        size_t len = f->variant == 's'             ? base + (i < extra)
                     : at + (size_t)n <= from->n ? (size_t)n
                                                 : from->n - at;
        SG_TRY(sg_list_make(st, SG_V_LIST, len, &row));
        for (size_t k = 0; k < len; k++) row->items[row->n++] = from->items[at++];
        /* slice fills a row by at most one item, batch only the last row */
        int short_one = f->variant == 's' ? i >= extra : len < (size_t)n;
        if (short_one && sg_v_given(fill) && fill.kind != SG_V_NONE)
            for (size_t k = f->variant == 's' ? (size_t)n - 1 : len; k < (size_t)n; k++)
                SG_TRY(sg_list_add(st, row, fill));
        SG_TRY(sg_list_add(st, rows, sg_v_of(&row->o)));
    }
    return sg_seq_make(st, SG_V_ITER, rows, "generator", out);
}

/* attr(name): the attribute of the value; for a dict only methods, never its keys. */
SG_BUILTIN(f_attr)
{
    struct sg_str *name = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_expect_str(st, in[0], "the name of an attribute", &name));
    if (self.kind != SG_V_DICT) return sg_val_attr(st, self, name->s, name->n, NULL, out);
    /* a key of the dict must not shadow its methods here */
    int blocked;
    const struct sg_builtin *m = st->env->method(self, name->s, name->n, &blocked);
    *out = sg_v_undefined(NULL, self.kind);
    return m && !blocked ? sg_val_attr(st, self, name->s, name->n, NULL, out) : SEGUE_OK;
}

/* The table is sorted by name. */
const struct sg_builtin *sg_list_filter_find(const char *s, size_t n)
{
    /* name, function, parameters (NULL: the function reads args), required ones, variant */
    static const struct sg_builtin table[] = {
        {"attr", f_attr, "name", 1, 0},
        {"batch", f_batch, "linecount fill_with", 1, 'b'},
        {"count", f_length, "", 0, 0},
        {"d", f_default, "default_value boolean", 0, 0},
        {"default", f_default, "default_value boolean", 0, 0},
        {"dictsort", f_dictsort, "case_sensitive by reverse", 0, 0},
        {"first", f_first, "", 0, 0},
        {"groupby", f_groupby, "attribute default case_sensitive", 1, 0},
        {"items", f_items, "", 0, 0},
        {"join", f_join, "d attribute", 0, 0},
        {"last", f_last, "", 0, 0},
        {"length", f_length, "", 0, 0},
        {"list", f_list, "", 0, 0},
        {"map", f_map, NULL, 0, 0},
        {"max", f_min_max, "case_sensitive attribute", 0, '>'},
        {"min", f_min_max, "case_sensitive attribute", 0, '<'},
        {"reject", f_select, NULL, 0, 1},
        {"rejectattr", f_select, NULL, 0, 3},
        {"reverse", f_reverse, "", 0, 0},
        {"select", f_select, NULL, 0, 0},
        {"selectattr", f_select, NULL, 0, 2},
        {"slice", f_batch, "slices fill_with", 1, 's'},
        {"sort", f_sort, "reverse case_sensitive attribute", 0, 0},
        {"sum", f_sum, "attribute start", 0, 0},
        {"unique", f_unique, "case_sensitive attribute", 0, 0}};
    return sg_builtin_search(table, sizeof table / sizeof *table, s, n);
}
