/* jinja_math.c: + - * / // % ** with the semantics of Python. Integers have 64 bits; a result that does
 * not fit is an error, it is never wrapped and never becomes a float.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "text/jinja/jinja_ast.h"
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* Python's integers are unbounded; here a result beyond 64 bits is an error, never a wrong number. */
static segue_status fail_overflow(struct sg_jinja *st)
{
    return sg_jinja_fail(st, "an integer does not fit in 64 bits");
}

static segue_status fail_zero_division(struct sg_jinja *st) { return sg_jinja_fail(st, "division by zero"); }

/* 1: a + b does not fit; *out is then not set. */
static int add_overflows(int64_t a, int64_t b, int64_t *out)
{
    if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) return 1;
    *out = a + b;
    return 0;
}

/* 1: a * b does not fit. Works on magnitudes: the limit is 2^63 - 1, or 2^63 for a negative
 * product. */
static int mul_overflows(int64_t a, int64_t b, int64_t *out)
{
    uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    int neg = (a < 0) != (b < 0);
    if (x && y > ((uint64_t)INT64_MAX + (neg ? 1 : 0)) / x) return 1;
    *out = neg ? (int64_t)(0 - x * y) : (int64_t)(x * y);
    return 0;
}

/* A negative exponent gives a float, as in Python; 0 ** -1 is a division by zero. */
static segue_status int_power(struct sg_jinja *st, int64_t a, int64_t b, struct sg_val *out)
{
    if (b < 0) {
        if (!a) return fail_zero_division(st);
        return *out = sg_v_float(pow((double)a, (double)b)), SEGUE_OK;
    }
    int64_t r = 1;
    /* Only these bases allow exponents beyond 63; all others overflow within 63 multiplications. */
    if (a == 0 || a == 1 || a == -1)
        return *out = sg_v_int(b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a), SEGUE_OK;
    for (; b > 0; b--)
        if (mul_overflows(r, a, &r)) return fail_overflow(st);
    *out = sg_v_int(r);
    return SEGUE_OK;
}

/* op as in sg_val_binary. / always gives a float; // and % round towards minus infinity. */
static segue_status int_math(struct sg_jinja *st, unsigned op, int64_t a, int64_t b, struct sg_val *out)
{
    int64_t r = 0;
    int over = 0;
    switch (op) {
    case '+': over = add_overflows(a, b, &r); break;
    /* -INT64_MIN does not exist, so b = INT64_MIN is subtracted directly; that fits for a < 0 only. */
    case '-': over = b == INT64_MIN ? a >= 0 || (r = a - b, 0) : add_overflows(a, -b, &r); break;
    case '*': over = mul_overflows(a, b, &r); break;
    case '/':
        if (!b) return fail_zero_division(st);
        return *out = sg_v_float((double)a / (double)b), SEGUE_OK;
    case '*' + 128: return int_power(st, a, b, out);
    default: /* // and % */
        if (!b) return fail_zero_division(st);
        /* INT64_MIN / -1 overflows in C, and so does its remainder. */
        if (b == -1) {
            over = op != '%' && a == INT64_MIN;
            r = op == '%' || over ? 0 : -a;
            break;
        }
        r = op == '%' ? a % b : a / b;
        /* C truncates towards zero. Python's quotient is one less, and the remainder has the sign
         * of b. */
        if (a % b != 0 && (a % b < 0) != (b < 0)) r += op == '%' ? b : -1;
    }
    if (over) return fail_overflow(st);
    *out = sg_v_int(r);
    return SEGUE_OK;
}

/* CPython's float_divmod: the remainder has the sign of b, the quotient is the nearest integer not
 * above a / b, and signed zeros are kept. */
static void float_divmod(double a, double b, double *floor_div, double *mod)
{
    double m = fmod(a, b), d = (a - m) / b;
    if (m != 0) {
        if ((b < 0) != (m < 0)) {
            m += b;
            d -= 1.0;
        }
    } else {
        m = copysign(0.0, b);
    }
    if (d != 0) {
        double f = floor(d);
        *floor_div = d - f > 0.5 ? f + 1.0 : f;
    } else {
        *floor_div = copysign(0.0, a / b);
    }
    *mod = m;
}

/* A complex result of ** and an overflow of ** are errors, as in Python; other operations may give
 * infinities. */
static segue_status float_math(struct sg_jinja *st, unsigned op, double a, double b, struct sg_val *out)
{
    double d, m, r;
    switch (op) {
    case '+': r = a + b; break;
    case '-': r = a - b; break;
    case '*': r = a * b; break;
    case '*' + 128:
        if (a == 0 && b < 0) return fail_zero_division(st);
        if (a < 0 && isfinite(b) && floor(b) != b)
            return sg_jinja_fail(st, "a power of a negative number is not real");
        r = pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b)) return sg_jinja_fail(st, "a number is too large");
        break;
    default:
        if (b == 0) return fail_zero_division(st);
        if (op == '/') {
            r = a / b;
            break;
        }
        float_divmod(a, b, &d, &m);
        r = op == '%' ? m : d;
    }
    *out = sg_v_float(r);
    return SEGUE_OK;
}

/* text * times; a count of zero or less gives an empty text. The size is checked before anything is
 * built. */
static segue_status repeat_str(struct sg_jinja *st, struct sg_val v, int64_t times, struct sg_val *out)
{
    const struct sg_str *s = sg_v_str(v);
    if (times <= 0 || !s->n) return sg_str_borrow(st, "", 0, out);
    if ((uint64_t)times > st->limits.value_bytes / s->n + 1)
        return sg_fail(st->err, SEGUE_ELIMIT,
                       "template: %s line %u: a text of more than %zu bytes is built; correct the "
                       "template",
                       st->t->what, (unsigned)st->line, st->limits.value_bytes);
    struct sg_buf b = sg_val_buf(st);
    segue_status r = SEGUE_OK;
    for (int64_t i = 0; i < times && r == SEGUE_OK; i++) r = sg_put(st, &b, s->s, s->n);
    return sg_str_from_buf(st, r, &b, out);
}

/* One step per item: the list may reach the memory limit long after the steps are used up. */
static segue_status repeat_list(struct sg_jinja *st, struct sg_val v, int64_t times, struct sg_val *out)
{
    struct sg_list *l, *from = sg_v_list(v);
    SG_TRY(sg_list_make(st, v.kind, 0, &l));
    for (int64_t k = 0; k < times && from->n; k++)
        for (size_t i = 0; i < from->n; i++) {
            SG_TRY(sg_jinja_step(st, 1));
            SG_TRY(sg_list_add(st, l, from->items[i]));
        }
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

/* list + list or tuple + tuple, as a new value. */
static segue_status join_lists(struct sg_jinja *st, struct sg_val a, struct sg_val b, struct sg_val *out)
{
    struct sg_list *l, *x = sg_v_list(a), *y = sg_v_list(b);
    SG_TRY(sg_list_make(st, a.kind, x->n + y->n, &l));
    for (size_t i = 0; i < x->n; i++) l->items[l->n++] = x->items[i];
    for (size_t i = 0; i < y->n; i++) l->items[l->n++] = y->items[i];
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

static int is_sequence(struct sg_val v)
{
    return v.kind == SG_V_STR || v.kind == SG_V_LIST || v.kind == SG_V_TUPLE;
}

/* Keeps the Markup flag of a string. */
static segue_status repeat_sequence(struct sg_jinja *st, struct sg_val v, int64_t times, struct sg_val *out)
{
    if (v.kind != SG_V_STR) return repeat_list(st, v, times, out);
    SG_TRY(repeat_str(st, v, times, out));
    out->aux = v.aux;
    return SEGUE_OK;
}

/* Numbers first, then strings and lists: + concatenates, * repeats, % formats. If one side of + is
 * Markup, the other is escaped and the result is Markup. Anything else is an error that names both
 * types, or the undefined name. */
segue_status sg_val_binary(struct sg_jinja *st, unsigned op, struct sg_val a, struct sg_val b,
                           struct sg_val *out)
{
    int a_int = a.kind == SG_V_INT || a.kind == SG_V_BOOL, b_int = b.kind == SG_V_INT || b.kind == SG_V_BOOL;
    if (a_int && b_int) return int_math(st, op, a.u.i, b.u.i, out);
    if ((a_int || a.kind == SG_V_FLOAT) && (b_int || b.kind == SG_V_FLOAT))
        return float_math(st, op, a_int ? (double)a.u.i : a.u.f, b_int ? (double)b.u.i : b.u.f, out);
    if (op == '+' && a.kind == SG_V_STR && b.kind == SG_V_STR && (a.aux || b.aux)) {
        SG_TRY(sg_str_escape(st, a, &a));
        SG_TRY(sg_str_escape(st, b, &b));
        SG_TRY(sg_str_join2(st, a, b, out));
        return out->aux = 1, SEGUE_OK;
    }
    if (op == '+' && a.kind == b.kind && is_sequence(a))
        return a.kind == SG_V_STR ? sg_str_join2(st, a, b, out) : join_lists(st, a, b, out);
    if (op == '*' && is_sequence(a) && b_int) return repeat_sequence(st, a, b.u.i, out);
    if (op == '*' && is_sequence(b) && a_int) return repeat_sequence(st, b, a.u.i, out);
    if (op == '%' && a.kind == SG_V_STR && a.aux)
        return sg_jinja_fail(st, "'%%' is not supported on a Markup string");
    if (op == '%' && a.kind == SG_V_STR) return sg_format_percent(st, sg_v_str(a), b, out);
    struct sg_val u = a.kind == SG_V_UNDEFINED ? a : b;
    const struct sg_jinja_node *n = u.kind == SG_V_UNDEFINED ? u.u.node : NULL;
    if (n && n->s)
        return sg_jinja_fail(st, "'%.*s' is undefined and cannot be an operand of '%c'",
                             (int)(n->n > 80 ? 80 : n->n), n->s, (int)(op > 128 ? op - 128 : op));
    return sg_jinja_fail(st, "types '%s' and '%s' do not support the operator '%c'", sg_val_type(a.kind),
                         sg_val_type(b.kind), (int)(op > 128 ? op - 128 : op));
}
