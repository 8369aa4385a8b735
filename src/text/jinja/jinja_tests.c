/* jinja_tests.c: the tests behind `is`, and the global functions.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/jinja.h"

/* --- tests --- */

SG_FUNC(t_kind)
{
    int k = self.kind, yes = 0;
    SG_UNUSED;
    switch (f->which) {
    case 'd': yes = k != SG_V_UNDEFINED; break;
    case 'u': yes = k == SG_V_UNDEFINED; break;
    case 'n': yes = k == SG_V_NONE; break;
    case 'b': yes = k == SG_V_BOOL; break;
    case 't': yes = k == SG_V_BOOL && self.u.i; break;
    case 'f': yes = k == SG_V_BOOL && !self.u.i; break;
    case 'i': yes = k == SG_V_INT; break;
    case 'F': yes = k == SG_V_FLOAT; break;
    case 'N': yes = k >= SG_V_BOOL && k <= SG_V_FLOAT; break;
    case 's': yes = k == SG_V_STR; break;
    case 'm': yes = k == SG_V_DICT; break;
    case 'q':
        yes = k >= SG_V_STR && k <= SG_V_DICT;
        yes |= k == SG_V_RANGE || k == SG_V_UNDEFINED;
        break;
    case 'I': yes = sg_val_iterable(self); break;
    case 'c': yes = k == SG_V_UNDEFINED || (k >= SG_V_FUNC && k <= SG_V_LOOP) || k == SG_V_JOINER; break;
    default: yes = k == SG_V_STR && self.aux; /* escaped */
    }
    *out = sg_v_bool(yes);
    return SEGUE_OK;
}

SG_FUNC(t_compare)
{
    int c;
    SG_UNUSED;
    if (f->which == 'e' || f->which == '!') {
        SG_TRY(sg_val_equal(st, self, in[0], &c));
        return *out = sg_v_bool(c == (f->which == 'e')), SEGUE_OK;
    }
    SG_TRY(sg_val_order(st, self, in[0], &c));
    int yes = f->which == '<'   ? c == -1
              : f->which == '>' ? c == 1
              : f->which == 'l' ? c == -1 || c == 0
                                : c == 1 || c == 0;
    *out = sg_v_bool(yes);
    return SEGUE_OK;
}

SG_FUNC(t_modulo)
{
    struct sg_val v;
    int same;
    SG_UNUSED;
    SG_TRY(sg_val_binary(st, '%', self, f->which == 'd' ? in[0] : sg_v_int(2), &v));
    SG_TRY(sg_val_equal(st, v, sg_v_int(f->which == 'o'), &same));
    *out = sg_v_bool(same);
    return SEGUE_OK;
}

SG_FUNC(t_in)
{
    int yes;
    SG_UNUSED;
    SG_TRY(sg_val_contains(st, self, in[0], &yes));
    *out = sg_v_bool(yes);
    return SEGUE_OK;
}

SG_FUNC(t_same)
{
    SG_UNUSED;
    int same = self.kind == in[0].kind;
    if (same && self.kind == SG_V_FLOAT)
        same = 0;
    else if (same && self.kind > SG_V_NONE)
        same = self.u.i == in[0].u.i;
    if (self.kind == SG_V_STR && in[0].kind == SG_V_STR && sg_v_str(self)->n <= 1)
        same = sg_v_is(self, sg_v_str(in[0])->s, sg_v_str(in[0])->n); /* CPython keeps one of each */
    *out = sg_v_bool(same);
    return SEGUE_OK;
}

SG_FUNC(t_case)
{
    struct sg_val text;
    struct sg_args none = {0};
    SG_UNUSED;
    SG_TRY(sg_val_text(st, self, &text));
    return sg_func_call(st, sg_str_method_find(f->which == 'l' ? "islower" : "isupper", 7), text, &none, out);
}

SG_FUNC(t_known)
{
    SG_UNUSED;
    if (self.kind == SG_V_LIST || self.kind == SG_V_DICT)
        return sg_jinja_fail(st, "unhashable type: '%s'", sg_val_type(self.kind));
    if (self.kind != SG_V_STR) return *out = sg_v_bool(0), SEGUE_OK;
    const struct sg_str *s = sg_v_str(self);
    *out = sg_v_bool((f->which == 'f' ? sg_filter_find(s->s, s->n) : sg_test_find(s->s, s->n)) != NULL);
    return SEGUE_OK;
}

const struct sg_func *sg_test_find(const char *s, size_t n)
{
    static const struct sg_func table[] = {{"boolean", t_kind, "", 0, 'b'},
                                           {"callable", t_kind, "", 0, 'c'},
                                           {"defined", t_kind, "", 0, 'd'},
                                           {"divisibleby", t_modulo, "num", 1, 'd'},
                                           {"eq", t_compare, "b", 1, 'e'},
                                           {"==", t_compare, "b", 1, 'e'},
                                           {"equalto", t_compare, "b", 1, 'e'},
                                           {"escaped", t_kind, "", 0, 'E'},
                                           {"even", t_modulo, "", 0, 'v'},
                                           {"false", t_kind, "", 0, 'f'},
                                           {"filter", t_known, "", 0, 'f'},
                                           {"float", t_kind, "", 0, 'F'},
                                           {"ge", t_compare, "b", 1, 'g'},
                                           {">=", t_compare, "b", 1, 'g'},
                                           {"gt", t_compare, "b", 1, '>'},
                                           {">", t_compare, "b", 1, '>'},
                                           {"greaterthan", t_compare, "b", 1, '>'},
                                           {"in", t_in, "seq", 1, 0},
                                           {"integer", t_kind, "", 0, 'i'},
                                           {"iterable", t_kind, "", 0, 'I'},
                                           {"le", t_compare, "b", 1, 'l'},
                                           {"<=", t_compare, "b", 1, 'l'},
                                           {"lower", t_case, "", 0, 'l'},
                                           {"lt", t_compare, "b", 1, '<'},
                                           {"<", t_compare, "b", 1, '<'},
                                           {"lessthan", t_compare, "b", 1, '<'},
                                           {"mapping", t_kind, "", 0, 'm'},
                                           {"ne", t_compare, "b", 1, '!'},
                                           {"!=", t_compare, "b", 1, '!'},
                                           {"none", t_kind, "", 0, 'n'},
                                           {"number", t_kind, "", 0, 'N'},
                                           {"odd", t_modulo, "", 0, 'o'},
                                           {"sameas", t_same, "other", 1, 0},
                                           {"sequence", t_kind, "", 0, 'q'},
                                           {"string", t_kind, "", 0, 's'},
                                           {"test", t_known, "", 0, 't'},
                                           {"true", t_kind, "", 0, 't'},
                                           {"undefined", t_kind, "", 0, 'u'},
                                           {"upper", t_case, "", 0, 'u'}};
    return sg_func_search(table, sizeof table / sizeof *table, s, n);
}

/* --- globals --- */

SG_FUNC(g_raise)
{
    struct sg_val text;
    SG_UNUSED;
    SG_TRY(sg_val_text(st, in[0], &text));
    size_t n = sg_v_str(text)->n;
    return sg_jinja_fail(st, "%.*s", (int)(n > 380 ? 380 : n), sg_v_str(text)->s);
}

SG_FUNC(g_strftime)
{
    struct sg_str *s = NULL;
    SG_UNUSED;
    SG_TRY(sg_val_want_str(st, in[0], "the format of strftime_now", &s));
    return sg_format_time(st, s, out);
}

SG_FUNC(g_range)
{
    int64_t bound[3] = {0, 0, 1};
    struct sg_range *r = NULL;
    SG_UNUSED;
    for (size_t i = 0; i < 3 && in[i].kind != SG_V_MISSING; i++)
        SG_TRY(sg_val_index(st, in[i], "a bound of range", &bound[i]));
    int64_t start = bound[0], stop = bound[1], step = bound[2];
    if (in[1].kind == SG_V_MISSING) {
        start = 0;
        stop = bound[0];
    }
    if (!step) return sg_jinja_fail(st, "range: the step cannot be zero");
    uint64_t span = 0, width = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 ? stop > start : stop < start)
        span = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t n = span ? (span - 1) / width + 1 : 0;
    if (n > 100000) return sg_jinja_fail(st, "range: more than 100000 items; the sandbox blocks that");
    SG_TRY(sg_val_new(st, SG_V_RANGE, sizeof *r, &r));
    r->start = start;
    r->stop = stop;
    r->step = step;
    r->n = (size_t)n;
    *out = sg_v_of(&r->o);
    return SEGUE_OK;
}

/* namespace() and dict(): a mapping or pairs, then keywords */
SG_FUNC(g_mapping)
{
    struct sg_dict *d = NULL;
    SG_UNUSED;
    SG_TRY(sg_dict_make(st, f->which, &d));
    if (args->pos_n > 1) return sg_jinja_fail(st, "'%s' takes one mapping and keywords", f->name);
    if (args->pos_n) SG_TRY(sg_dict_merge(st, d, args->pos[0]));
    if (args->named) SG_TRY(sg_dict_merge(st, d, sg_v_of(&args->named->o)));
    for (size_t i = 0; f->which == SG_V_SPACE && i < d->n; i++)
        if (d->pairs[i].key.kind == SG_V_STR && sg_v_str(d->pairs[i].key)->n &&
            sg_v_str(d->pairs[i].key)->s[0] == '_')
            return sg_jinja_fail(st, "a namespace takes no name that begins with '_'");
    *out = sg_v_of(&d->o);
    return SEGUE_OK;
}

SG_FUNC(g_joiner)
{
    struct sg_list *l = NULL;
    struct sg_val sep = in[0];
    SG_UNUSED;
    if (sep.kind == SG_V_MISSING) SG_TRY(sg_str_borrow(st, ", ", 2, &sep));
    SG_TRY(sg_list_make(st, SG_V_LIST, 1, &l));
    SG_TRY(sg_list_add(st, l, sep));
    return sg_seq_make(st, SG_V_JOINER, l, "Joiner", out);
}

SG_FUNC(g_cycler)
{
    struct sg_list *l = NULL;
    SG_UNUSED;
    if (!args->pos_n || args->named) return sg_jinja_fail(st, "cycler needs values to choose from");
    SG_TRY(sg_list_make(st, SG_V_LIST, args->pos_n, &l));
    for (size_t i = 0; i < args->pos_n; i++) l->items[l->n++] = args->pos[i];
    return sg_seq_make(st, SG_V_CYCLER, l, "Cycler", out);
}

const struct sg_func *sg_global_find(const char *s, size_t n)
{
    static const struct sg_func table[] = {{"raise_exception", g_raise, "message", 1, 0},
                                           {"strftime_now", g_strftime, "format", 1, 0},
                                           {"range", g_range, "start stop step", 1, 0},
                                           {"namespace", g_mapping, NULL, 0, SG_V_SPACE},
                                           {"dict", g_mapping, NULL, 0, SG_V_DICT},
                                           {"joiner", g_joiner, "sep", 0, 0},
                                           {"cycler", g_cycler, NULL, 0, 0}};
    return sg_func_search(table, sizeof table / sizeof *table, s, n);
}
