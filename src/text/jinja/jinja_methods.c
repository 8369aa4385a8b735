/* jinja_methods.c: methods of mappings, lists and cyclers. What would change a value is known and refused, as the sandbox refuses
 * it. SPDX-License-Identifier: MIT */
#include "text/jinja/jinja.h"

SG_FUNC(m_view)
{
    struct sg_view *v = NULL;
    SG_UNUSED;
    SG_TRY(sg_val_new(st, SG_V_VIEW, sizeof *v, &v));
    v->dict = sg_v_dict(self);
    v->which = f->which;
    *out = sg_v_of(&v->o);
    return SEGUE_OK;
}

SG_FUNC(m_get)
{
    SG_UNUSED;
    SG_TRY(sg_dict_get(st, sg_v_dict(self), in[0], out));
    if (out->kind == SG_V_MISSING) *out = in[1].kind == SG_V_MISSING ? sg_v_none() : in[1];
    return SEGUE_OK;
}

SG_FUNC(m_copy)
{
    struct sg_list *l = NULL;
    struct sg_dict *d = NULL;
    SG_UNUSED;
    if (self.kind == SG_V_DICT) {
        SG_TRY(sg_dict_make(st, SG_V_DICT, &d));
        SG_TRY(sg_dict_merge(st, d, self));
        return *out = sg_v_of(&d->o), SEGUE_OK;
    }
    SG_TRY(sg_val_to_list(st, self, &l));
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

SG_FUNC(m_locate)
{
    struct sg_iter it;
    struct sg_val v;
    int64_t n = 0;
    int got, same;
    SG_UNUSED;
    SG_TRY(sg_iter_open(st, self, &it));
    for (int64_t i = 0;; i++) {
        SG_TRY(sg_iter_next(st, &it, &v, &got));
        if (!got) break;
        SG_TRY(sg_val_equal(st, v, in[0], &same));
        if (same && f->which == 'i') return *out = sg_v_int(i), SEGUE_OK;
        n += same;
    }
    if (f->which == 'i') return sg_jinja_fail(st, "index: the value is not in the list");
    *out = sg_v_int(n);
    return SEGUE_OK;
}

SG_FUNC(m_cycle)
{
    struct sg_seq *c = sg_v_seq(self);
    SG_UNUSED;
    if (f->which == 'r') {
        c->pos = 0;
        return *out = sg_v_none(), SEGUE_OK;
    }
    *out = c->list->items[c->pos];
    c->pos = (c->pos + 1) % c->list->n;
    return SEGUE_OK;
}

static int is_mutating(const char *s, size_t n, int list)
{
    static const char *const lists[] = {"append", "clear",  "pop",    "reverse", "insert",
                                        "sort",   "extend", "remove", NULL};
    static const char *const dicts[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    for (const char *const *p = list ? lists : dicts; *p; p++)
        if (strlen(*p) == n && !memcmp(*p, s, n)) return 1;
    return 0;
}

const struct sg_func *sg_method_find(struct sg_val v, const char *s, size_t n, int *blocked)
{
    static const struct sg_func dicts[] = {{"copy", m_copy, "", 0, 0},
                                           {"get", m_get, "key default", 1, 0},
                                           {"items", m_view, "", 0, 'i'},
                                           {"keys", m_view, "", 0, 'k'},
                                           {"values", m_view, "", 0, 'v'}};
    static const struct sg_func lists[] = {{"count", m_locate, "value", 1, 'c'},
                                           {"index", m_locate, "value", 1, 'i'},
                                           {"copy", m_copy, "", 0, 0}};
    static const struct sg_func cyclers[] = {{"next", m_cycle, "", 0, 'n'}, {"reset", m_cycle, "", 0, 'r'}};
    *blocked = 0;
    if (v.kind == SG_V_STR) return sg_str_method_find(s, n);
    if (v.kind == SG_V_DICT || v.kind == SG_V_LIST) *blocked = is_mutating(s, n, v.kind == SG_V_LIST);
    if (v.kind == SG_V_DICT) return sg_func_search(dicts, 5, s, n);
    if (v.kind == SG_V_LIST || v.kind == SG_V_TUPLE || v.kind == SG_V_RANGE)
        return sg_func_search(lists, v.kind == SG_V_LIST ? 3 : 2, s, n);
    return v.kind == SG_V_CYCLER ? sg_func_search(cyclers, 2, s, n) : NULL;
}
