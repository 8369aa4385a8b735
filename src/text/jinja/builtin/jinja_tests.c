/* jinja_tests.c: the tests of `value is test`, as jinja2 defines them.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* Tests of the type. variant: one letter per test, see the table. `number` includes bool, `integer`
 * does not; `sequence` is what has a length and items, which includes undefined. */
SG_BUILTIN(t_kind)
{
    int k = self.kind, yes = 0;
    SG_BUILTIN_UNUSED;
    switch (f->variant) {
    case 'd': yes = k != SG_V_UNDEFINED; break;
    case 'u': yes = k == SG_V_UNDEFINED; break;
    case 'n': yes = k == SG_V_NONE; break;
    case 'b': yes = k == SG_V_BOOL; break;
    case 't': yes = k == SG_V_BOOL && self.u.i; break;
    case 'f': yes = k == SG_V_BOOL && !self.u.i; break;
    case 'i': yes = k == SG_V_INT; break;
    case 'F': yes = k == SG_V_FLOAT; break;
    /* number: bool, int and float */
    case 'N': yes = k >= SG_V_BOOL && k <= SG_V_FLOAT; break;
    case 's': yes = k == SG_V_STR; break;
    case 'm': yes = k == SG_V_DICT; break;
    /* sequence */
    case 'q':
        yes = k >= SG_V_STR && k <= SG_V_DICT;
        yes |= k == SG_V_RANGE || k == SG_V_UNDEFINED;
        break;
    case 'I': yes = sg_val_iterable(self); break;
    /* callable; a cycler has methods but cannot be called */
    case 'c': yes = k == SG_V_UNDEFINED || (k >= SG_V_FUNC && k <= SG_V_LOOP) || k == SG_V_JOINER; break;
    default: yes = k == SG_V_STR && self.aux; /* escaped */
    }
    *out = sg_v_bool(yes);
    return SEGUE_OK;
}

/* eq, ne, lt, le, gt, ge. An order test with NaN (c == 2) is false. */
SG_BUILTIN(t_compare)
{
    int c;
    SG_BUILTIN_UNUSED;
    if (f->variant == 'e' || f->variant == '!') {
        SG_TRY(sg_val_equal(st, self, in[0], &c));
        return *out = sg_v_bool(c == (f->variant == 'e')), SEGUE_OK;
    }
    SG_TRY(sg_val_order(st, self, in[0], &c));
    int yes = f->variant == '<'   ? c == -1
              : f->variant == '>' ? c == 1
              : f->variant == 'l' ? c == -1 || c == 0
                                : c == 1 || c == 0;
    *out = sg_v_bool(yes);
    return SEGUE_OK;
}

/* odd, even and divisibleby: % as in Python, so a zero divisor or a string is an error. */
SG_BUILTIN(t_modulo)
{
    struct sg_val v;
    int same;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_binary(st, '%', self, f->variant == 'd' ? in[0] : sg_v_int(2), &v));
    SG_TRY(sg_val_equal(st, v, sg_v_int(f->variant == 'o'), &same));
    *out = sg_v_bool(same);
    return SEGUE_OK;
}

/* Same semantics as the operator `in`. */
SG_BUILTIN(t_in)
{
    int yes;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_contains(st, self, in[0], &yes));
    *out = sg_v_bool(yes);
    return SEGUE_OK;
}

/* sameas: identity. Heap values are the same object, None and bools are singletons. Floats are
 * never the same object; integers compare by value, as small ones do in CPython. */
SG_BUILTIN(t_same)
{
    SG_BUILTIN_UNUSED;
    int same = self.kind == in[0].kind;
    /* compares pointers or integers, which share the union */
    if (same && self.kind == SG_V_FLOAT)
        same = 0;
    else if (same && self.kind > SG_V_NONE)
        same = self.u.i == in[0].u.i;
    /* CPython has one object for each string of at most one Latin-1 character. */
    if (self.kind == SG_V_STR && in[0].kind == SG_V_STR && sg_v_str(self)->n <= 1)
        same = sg_v_is(self, sg_v_str(in[0])->s, sg_v_str(in[0])->n);
    *out = sg_v_bool(same);
    return SEGUE_OK;
}

/* lower and upper: str(value).islower() or isupper(). */
SG_BUILTIN(t_case)
{
    struct sg_val text;
    struct sg_call_args none = {0};
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_text(st, self, &text));
    return sg_builtin_call(st, sg_str_method_find(f->variant == 'l' ? "islower" : "isupper", 7), text, &none, out);
}

/* The tests `filter` and `test`: does a builtin of this name exist. An unhashable value is an
 * error, as it is a dict lookup in jinja2. */
SG_BUILTIN(t_known)
{
    SG_BUILTIN_UNUSED;
    if (self.kind == SG_V_LIST || self.kind == SG_V_DICT)
        return sg_jinja_fail(st, "unhashable type: '%s'", sg_val_type(self.kind));
    if (self.kind != SG_V_STR) return *out = sg_v_bool(0), SEGUE_OK;
    const struct sg_str *s = sg_v_str(self);
    *out = sg_v_bool((f->variant == 'f' ? st->env->filter(s->s, s->n) : st->env->test(s->s, s->n)) != NULL);
    return SEGUE_OK;
}

/* Tests that share a function have different letters in `variant`. */
const struct sg_builtin *sg_test_find(const char *s, size_t n)
{
    static const struct sg_builtin table[] = {
        {"boolean", t_kind, "", 0, 'b'},
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
    return sg_builtin_search(table, sizeof table / sizeof *table, s, n);
}
