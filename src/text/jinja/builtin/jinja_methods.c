/* jinja_methods.c: methods of dicts, lists, tuples, ranges and cyclers. Methods that change a value are
 * known by name and refused, as jinja2's ImmutableSandboxedEnvironment does.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* dict.keys, values and items: a view without a copy. */
SG_BUILTIN(m_view)
{
    struct sg_dict_view *v = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_new(st, SG_V_VIEW, sizeof *v, &v));
    v->dict = sg_v_dict(self);
    v->variant = f->variant;
    *out = sg_v_of(&v->o);
    return SEGUE_OK;
}

/* dict.get(key, default=None). An unhashable key is an error. */
SG_BUILTIN(m_get)
{
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_dict_get(st, sg_v_dict(self), in[0], out));
    if (out->kind == SG_V_MISSING) *out = in[1].kind == SG_V_MISSING ? sg_v_none() : in[1];
    return SEGUE_OK;
}

/* A shallow copy of a dict or list. */
SG_BUILTIN(m_copy)
{
    struct sg_list *l = NULL;
    struct sg_dict *d = NULL;
    SG_BUILTIN_UNUSED;
    if (self.kind == SG_V_DICT) {
        SG_TRY(sg_dict_make(st, SG_V_DICT, &d));
        SG_TRY(sg_dict_merge(st, d, self));
        return *out = sg_v_of(&d->o), SEGUE_OK;
    }
    /* the items themselves are shared */
    SG_TRY(sg_val_to_list(st, self, &l));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

/* list.index (an error if the value is missing) and list.count; also of tuples and ranges. Compares
 * all items, each a step. */
SG_BUILTIN(m_index_count)
{
    struct sg_val_iter it;
    struct sg_val v;
    int64_t n = 0;
    int got, same;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_iter_open(st, self, &it));
    for (int64_t i = 0;; i++) {
        SG_TRY(sg_iter_next(st, &it, &v, &got));
        if (!got) break;
        /* equality of Python: 1 == 1.0 == true */
        SG_TRY(sg_val_equal(st, v, in[0], &same));
        if (same && f->variant == 'i') return *out = sg_v_int(i), SEGUE_OK;
        n += same;
    }
    if (f->variant == 'i') return sg_jinja_fail(st, "index: the value is not in the list");
    *out = sg_v_int(n);
    return SEGUE_OK;
}

/* cycler.next returns the current item and advances; cycler.reset starts again. The one builtin
 * object with state. */
SG_BUILTIN(m_cycle)
{
    struct sg_val_seq *c = sg_v_seq(self);
    SG_BUILTIN_UNUSED;
    if (f->variant == 'r') {
        c->pos = 0;
        return *out = sg_v_none(), SEGUE_OK;
    }
    *out = c->list->items[c->pos];
    c->pos = (c->pos + 1) % c->list->n;
    return SEGUE_OK;
}

/* 1: a method of a Python list or dict that changes it. */
static int is_mutating(const char *s, size_t n, int list)
{
    static const char *const lists[] = {"append", "clear",  "pop",    "reverse", "insert",
                                        "sort",   "extend", "remove", NULL};
    static const char *const dicts[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    for (const char *const *p = list ? lists : dicts; *p; p++)
        if (strlen(*p) == n && !memcmp(*p, s, n)) return 1;
    return 0;
}

/* Tuples and ranges have count and index but no copy; hence 3 or 2 entries of lists[]. */
const struct sg_builtin *sg_method_find(struct sg_val v, const char *s, size_t n, int *blocked)
{
    static const struct sg_builtin dicts[] = {{"copy", m_copy, "", 0, 0},
                                           {"get", m_get, "key default", 1, 0},
                                           {"items", m_view, "", 0, 'i'},
                                           {"keys", m_view, "", 0, 'k'},
                                           {"values", m_view, "", 0, 'v'}};
    static const struct sg_builtin lists[] = {{"count", m_index_count, "value", 1, 'c'},
                                           {"index", m_index_count, "value", 1, 'i'},
                                           {"copy", m_copy, "", 0, 0}};
    static const struct sg_builtin cyclers[] = {{"next", m_cycle, "", 0, 'n'}, {"reset", m_cycle, "", 0, 'r'}};
    *blocked = 0;
    if (v.kind == SG_V_STR) return sg_str_method_find(s, n);
    /* a blocked name has no entry in the tables below */
    if (v.kind == SG_V_DICT || v.kind == SG_V_LIST) *blocked = is_mutating(s, n, v.kind == SG_V_LIST);
    if (v.kind == SG_V_DICT) return sg_builtin_search(dicts, 5, s, n);
    if (v.kind == SG_V_LIST || v.kind == SG_V_TUPLE || v.kind == SG_V_RANGE)
        return sg_builtin_search(lists, v.kind == SG_V_LIST ? 3 : 2, s, n);
    return v.kind == SG_V_CYCLER ? sg_builtin_search(cyclers, 2, s, n) : NULL;
}
