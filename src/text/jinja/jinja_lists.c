/* jinja_lists.c: the filters of jinja2 about lists, mappings and what can be walked. What jinja2 yields lazily is made
 * at once here and wrapped so that it has no length and is used up by walking it.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/jinja.h"

SG_FUNC(f_length)
{
    size_t n;
    SG_UNUSED;
    SG_TRY(sg_val_length(st, self, &n));
    *out = sg_v_int((int64_t)n);
    return SEGUE_OK;
}

SG_FUNC(f_default)
{
    SG_UNUSED;
    *out = self;
    if (self.kind != SG_V_UNDEFINED && !(sg_val_true(in[1]) && !sg_val_true(self))) return SEGUE_OK;
    if (sg_v_given(in[0])) return *out = in[0], SEGUE_OK;
    return sg_str_borrow(st, "", 0, out);
}

SG_FUNC(f_list)
{
    struct sg_list *l = NULL;
    SG_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

SG_FUNC(f_first)
{
    struct sg_iter it;
    int got;
    SG_UNUSED;
    SG_TRY(sg_iter_open(st, self, &it));
    SG_TRY(sg_iter_next(st, &it, out, &got));
    if (!got) *out = sg_v_undefined(NULL, 0);
    return SEGUE_OK;
}

SG_FUNC(f_last)
{
    struct sg_list *l = NULL;
    SG_UNUSED;
    if (self.kind == SG_V_ITER)
        return sg_jinja_fail(st, "last: a generator cannot be reversed; use |list first");
    if (self.kind == SG_V_LIST || self.kind == SG_V_TUPLE)
        l = sg_v_list(self);
    else
        SG_TRY(sg_val_to_list(st, self, &l));
    *out = l->n ? l->items[l->n - 1] : sg_v_undefined(NULL, 0);
    return SEGUE_OK;
}

static const char *reversed_name(int kind)
{
    return kind == SG_V_LIST   ? "list_reverseiterator"
           : kind == SG_V_DICT ? "dict_reversekeyiterator"
                               : "reversed";
}

SG_FUNC(f_reverse)
{
    struct sg_list *l = NULL;
    struct sg_val part[3] = {sg_v_none(), sg_v_none(), sg_v_int(-1)};
    SG_UNUSED;
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

SG_FUNC(f_items)
{
    struct sg_list *l = NULL;
    SG_UNUSED;
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
static segue_status path_get(struct sg_jinja *st, struct sg_val item, const char *s, size_t n,
                             struct sg_val fallback, struct sg_val *out)
{
    *out = item;
    for (const char *e = s + n;;) {
        const char *dot = memchr(s, '.', (size_t)(e - s)), *end = dot ? dot : e;
        struct sg_val key;
        int64_t index;
        int digits = end > s;
        for (const char *p = s; p < end; p++) digits &= *p >= '0' && *p <= '9';
        if (digits && sg_int_parse(s, (size_t)(end - s), 10, &index) == 1)
            key = sg_v_int(index);
        else
            SG_TRY(sg_str_make(st, s, (size_t)(end - s), &key));
        SG_TRY(sg_val_item(st, *out, key, NULL, out));
        if (sg_v_some(fallback) && fallback.kind != SG_V_UNDEFINED && out->kind == SG_V_UNDEFINED)
            *out = fallback;
        if (!dot) return SEGUE_OK;
        s = dot + 1;
    }
}

static segue_status attr_get(struct sg_jinja *st, struct sg_val item, struct sg_val attr,
                             struct sg_val fallback, struct sg_val *out)
{
    if (attr.kind == SG_V_STR) return path_get(st, item, sg_v_str(attr)->s, sg_v_str(attr)->n, fallback, out);
    if (!sg_v_given(attr) || attr.kind == SG_V_NONE) return *out = item, SEGUE_OK;
    SG_TRY(sg_val_item(st, item, attr, NULL, out));
    if (sg_v_some(fallback) && out->kind == SG_V_UNDEFINED) *out = fallback;
    return SEGUE_OK;
}

static segue_status fold_case(struct sg_jinja *st, struct sg_val v, int fold, struct sg_val *out)
{
    *out = v;
    if (!fold || v.kind != SG_V_STR) return SEGUE_OK;
    struct sg_buf b = sg_buf_begin(st);
    return sg_str_take(st, sg_case_put(st, &b, sg_v_str(v), 0, sg_v_str(v)->n, SG_CASE_LOWER), &b, out);
}

static segue_status attr_key(struct sg_jinja *st, struct sg_val item, struct sg_val attr, int fold,
                             struct sg_val *out)
{
    struct sg_val v;
    SG_TRY(attr_get(st, item, attr, (struct sg_val){0}, &v));
    return fold_case(st, v, fold, out);
}

/* The sort key of "a,b": a list of both; lists are compared by equality first, so a single one is a list too. */
static segue_status multi_key(struct sg_jinja *st, struct sg_val item, struct sg_val attr, int fold,
                              struct sg_val *out)
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

static segue_status sort_by(struct sg_jinja *st, struct sg_list *l, struct sg_val attr, int fold, int reverse,
                            int multi)
{
    struct sg_list *keys = NULL;
    SG_TRY(sg_list_make(st, SG_V_LIST, l->n, &keys));
    for (size_t i = 0; i < l->n; i++) {
        SG_TRY((multi ? multi_key : attr_key)(st, l->items[i], attr, fold, &keys->items[i]));
        keys->n = i + 1;
    }
    return sg_val_sort(st, keys->items, l->items, l->n, reverse);
}

SG_FUNC(f_sort)
{
    struct sg_list *l = NULL;
    SG_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    SG_TRY(sort_by(st, l, in[2], !sg_val_true(in[1]), sg_val_true(in[0]), 1));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

SG_FUNC(f_dictsort)
{
    struct sg_list *l = NULL;
    struct sg_view view = {.which = 'i'};
    int by_value = sg_v_is(in[1], "value", 5);
    SG_UNUSED;
    if (sg_v_given(in[1]) && !by_value && !sg_v_is(in[1], "key", 3))
        return sg_jinja_fail(st, "dictsort: sort by 'key' or 'value'");
    if (self.kind != SG_V_DICT)
        return sg_jinja_fail(st, "dictsort: '%s' is no mapping", sg_val_type(self.kind));
    view.dict = sg_v_dict(self);
    view.o.kind = SG_V_VIEW;
    SG_TRY(sg_val_to_list(st, sg_v_of(&view.o), &l));
    SG_TRY(sort_by(st, l, sg_v_int(by_value), !sg_val_true(in[0]), sg_val_true(in[2]), 0));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

SG_FUNC(f_unique)
{
    struct sg_list *from = NULL, *l = NULL;
    struct sg_dict *seen = NULL;
    SG_UNUSED;
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

SG_FUNC(f_min_max)
{
    struct sg_list *l = NULL;
    struct sg_val best = {0};
    SG_UNUSED;
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

SG_FUNC(f_sum)
{
    struct sg_list *l = NULL;
    SG_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    *out = sg_v_given(in[1]) ? in[1] : sg_v_int(0);
    if (out->kind == SG_V_STR) return sg_jinja_fail(st, "sum: strings are joined with |join");
    for (size_t i = 0; i < l->n; i++) {
        struct sg_val v;
        SG_TRY(attr_get(st, l->items[i], in[0], (struct sg_val){0}, &v));
        SG_TRY(sg_val_binary(st, '+', *out, v, out));
    }
    return SEGUE_OK;
}

SG_FUNC(f_join)
{
    struct sg_iter it;
    struct sg_val by = in[0], v;
    int got;
    SG_UNUSED;
    SG_TRY(sg_v_given(by) ? sg_val_text(st, by, &by) : sg_str_borrow(st, "", 0, &by));
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
    return args->pos_n > n ? (struct sg_args){args->pos + n, args->pos_n - n, args->named}
                           : (struct sg_args){NULL, 0, args->named};
}

SG_FUNC(f_map)
{
    struct sg_list *from = NULL, *l = NULL;
    const struct sg_val *attr = args->named ? sg_dict_name(args->named, "attribute", 9) : NULL, *def;
    const struct sg_func *call = NULL;
    struct sg_str *name = NULL;
    SG_UNUSED;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    if (!sg_val_true(self)) return sg_seq_make(st, SG_V_ITER, l, "generator", out);
    SG_TRY(sg_val_to_list(st, self, &from));
    SG_TRY(sg_list_make(st, SG_V_LIST, from->n, &l));
    def = args->named ? sg_dict_name(args->named, "default", 7) : NULL;
    if (args->pos_n || !attr) {
        if (!args->pos_n) return sg_jinja_fail(st, "map needs a filter or attribute=");
        SG_TRY(sg_val_want_str(st, args->pos[0], "the filter of map", &name));
        call = sg_filter_find(name->s, name->n);
        if (!call)
            return sg_jinja_fail(st, "map: there is no filter '%.*s'", (int)(name->n > 40 ? 40 : name->n),
                                 name->s);
    } else if (args->named->n > 1 + (def != NULL)) {
        return sg_jinja_fail(st, "map: an argument is not understood");
    }
    for (size_t i = 0; i < from->n; i++, l->n++) {
        struct sg_args rest = args_after(args, 1);
        SG_TRY(sg_jinja_enter(st));
        if (call)
            SG_TRY(sg_func_call(st, call, from->items[i], &rest, &l->items[i]));
        else
            SG_TRY(attr_get(st, from->items[i], *attr, def ? *def : (struct sg_val){0}, &l->items[i]));
        st->level--;
    }
    return sg_seq_make(st, SG_V_ITER, l, "generator", out);
}

/* select, reject, selectattr, rejectattr; which: bit 0 reject, bit 1 by attribute */
SG_FUNC(f_select)
{
    struct sg_list *from = NULL, *l = NULL;
    const struct sg_func *test = NULL;
    size_t skip = f->which >> 1;
    SG_UNUSED;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &l));
    if (!sg_val_true(self)) return sg_seq_make(st, SG_V_ITER, l, "generator", out);
    SG_TRY(sg_val_to_list(st, self, &from));
    if (args->pos_n < skip) return sg_jinja_fail(st, "'%s' needs the name of an attribute", f->name);
    if (args->pos_n > skip) {
        struct sg_str *name = NULL;
        SG_TRY(sg_val_want_str(st, args->pos[skip], "the name of a test", &name));
        test = sg_test_find(name->s, name->n);
        if (!test)
            return sg_jinja_fail(st, "there is no test named '%.*s'", (int)(name->n > 40 ? 40 : name->n),
                                 name->s);
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

SG_FUNC(f_groupby)
{
    struct sg_list *l = NULL, *groups = NULL, *group = NULL;
    struct sg_val last = {0};
    int fold = !sg_val_true(in[2]);
    SG_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &l));
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &groups));
    if (sg_v_some(in[1])) return sg_jinja_fail(st, "groupby: a default is not supported");
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
SG_FUNC(f_batch)
{
    struct sg_list *from = NULL, *rows = NULL, *row = NULL;
    struct sg_val fill = in[1];
    int64_t n;
    SG_UNUSED;
    SG_TRY(sg_val_to_list(st, self, &from));
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &rows));
    SG_TRY(sg_val_index(st, in[0], "the size", &n));
    if (n < 1) return sg_jinja_fail(st, "'%s' needs a size above zero", f->name);
    size_t base = from->n / (size_t)n, extra = from->n % (size_t)n, at = 0;
    size_t count = f->which == 's' ? (size_t)n : base + (extra != 0);
    for (size_t i = 0; i < count; i++) {
        size_t len = f->which == 's'             ? base + (i < extra)
                     : at + (size_t)n <= from->n ? (size_t)n
                                                 : from->n - at;
        SG_TRY(sg_list_make(st, SG_V_LIST, len, &row));
        for (size_t k = 0; k < len; k++) row->items[row->n++] = from->items[at++];
        int short_one = f->which == 's' ? i >= extra : len < (size_t)n;
        if (short_one && sg_v_given(fill) && fill.kind != SG_V_NONE)
            for (size_t k = f->which == 's' ? (size_t)n - 1 : len; k < (size_t)n; k++)
                SG_TRY(sg_list_add(st, row, fill));
        SG_TRY(sg_list_add(st, rows, sg_v_of(&row->o)));
    }
    return sg_seq_make(st, SG_V_ITER, rows, "generator", out);
}

SG_FUNC(f_attr)
{
    struct sg_str *name = NULL;
    struct sg_val none = {0};
    SG_UNUSED;
    SG_TRY(sg_val_want_str(st, in[0], "the name of an attribute", &name));
    if (self.kind != SG_V_DICT) return sg_val_attr(st, self, name->s, name->n, NULL, out);
    int blocked;
    const struct sg_func *m = sg_method_find(self, name->s, name->n, &blocked);
    *out = none.kind ? none : sg_v_undefined(NULL, self.kind);
    return m && !blocked ? sg_val_attr(st, self, name->s, name->n, NULL, out) : SEGUE_OK;
}

const struct sg_func *sg_list_filter_find(const char *s, size_t n)
{
    static const struct sg_func table[] = {{"attr", f_attr, "name", 1, 0},
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
    return sg_func_search(table, sizeof table / sizeof *table, s, n);
}
