/* jinja_eval.c: evaluates expression nodes to values. st->line is set to the line of a node before an operation that
 * can fail, for the message. A value that only the C stack holds is safe: garbage is collected between statements only.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/jinja.h"
#include "text/jinja/value/jinja_text.h"

/* The frame that is `hops` scopes further out. */
static struct sg_jinja_frame *frame_at(struct sg_jinja_frame *f, unsigned hops)
{
    while (hops--) f = f->parent;
    return f;
}

/* A slot without a value is an undefined variable, which is an error only when it is used. */
static segue_status eval_name(struct sg_jinja_frame *f, const struct sg_jinja_node *n, struct sg_val *out)
{
    *out = frame_at(f, n->hops)->slots[n->slot];
    if (out->kind == SG_V_MISSING) *out = sg_v_undefined(n, 0);
    return SEGUE_OK;
}

/* A tuple or a list. */
static segue_status eval_items(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                               struct sg_val *out)
{
    struct sg_list *l = NULL;
    SG_TRY(sg_list_make(st, n->kind == SG_N_TUPLE ? SG_V_TUPLE : SG_V_LIST, 0, &l));
    for (const struct sg_jinja_node *i = n->a; i; i = i->next) {
        struct sg_val v;
        SG_TRY(sg_eval_expr(st, f, i, &v));
        SG_TRY(sg_list_add(st, l, v));
    }
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

/* Keys and values alternate in the list n->a. A later equal key replaces the value. */
static segue_status eval_dict(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                              struct sg_val *out)
{
    struct sg_dict *d = NULL;
    SG_TRY(sg_dict_make(st, SG_V_DICT, &d));
    for (const struct sg_jinja_node *i = n->a; i; i = i->next->next) {
        struct sg_val key, value;
        SG_TRY(sg_eval_expr(st, f, i, &key));
        SG_TRY(sg_eval_expr(st, f, i->next, &value));
        SG_TRY(sg_dict_set(st, d, key, value));
    }
    *out = sg_v_of(&d->o);
    return SEGUE_OK;
}

/* `or` and `and` yield an operand, not a bool; the second one is evaluated only if the first does not decide. */
static segue_status eval_logic(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                               struct sg_val *out)
{
    SG_TRY(sg_eval_expr(st, f, n->a, out));
    if (sg_val_true(*out) == (n->kind == SG_N_OR)) return SEGUE_OK;
    return sg_eval_expr(st, f, n->b, out);
}

/* `a if test` without else is undefined when the test is false. */
static segue_status eval_cond(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                              struct sg_val *out)
{
    SG_TRY(sg_eval_expr(st, f, n->a, out));
    if (sg_val_true(*out)) return sg_eval_expr(st, f, n->b, out);
    if (n->c) return sg_eval_expr(st, f, n->c, out);
    *out = sg_v_undefined(NULL, 0);
    return SEGUE_OK;
}

/* One comparison; op as in SG_N_COMPARE. sg_val_order yields 2 for NaN, for which all four orders are false. */
static segue_status compare(struct sg_jinja *st, char op, struct sg_val a, struct sg_val b, int *out)
{
    int c;
    switch (op) {
    case 'e': return sg_val_equal(st, a, b, out);
    case '!': SG_TRY(sg_val_equal(st, a, b, out)); return *out = !*out, SEGUE_OK;
    case 'i': return sg_val_contains(st, a, b, out);
    case 'n': SG_TRY(sg_val_contains(st, a, b, out)); return *out = !*out, SEGUE_OK;
    default: break;
    }
    SG_TRY(sg_val_order(st, a, b, &c));
    *out = op == '<' ? c == -1 : op == '>' ? c == 1 : op == 'l' ? c == -1 || c == 0 : c == 1 || c == 0;
    return SEGUE_OK;
}

/* a < b < c holds if all comparisons hold; it ends at the first that does not. */
static segue_status eval_compare(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                                 struct sg_val *out)
{
    struct sg_val left, right;
    int holds = 1;
    SG_TRY(sg_eval_expr(st, f, n->a, &left));
    for (const struct sg_jinja_node *op = n->b; op && holds; op = op->next) {
        SG_TRY(sg_eval_expr(st, f, op->a, &right));
        SG_TRY(compare(st, (char)op->op, left, right, &holds));
        /* the right operand is the left one of the next comparison */
        left = right;
    }
    *out = sg_v_bool(holds);
    return SEGUE_OK;
}

/* Both operands are evaluated before an error in either type is found. */
static segue_status eval_binary(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                                struct sg_val *out)
{
    struct sg_val a, b;
    SG_TRY(sg_eval_expr(st, f, n->a, &a));
    SG_TRY(sg_eval_expr(st, f, n->b, &b));
    st->line = n->line;
    return sg_val_binary(st, n->op, a, b, out);
}

/* a ~ b ~ c: the text of all operands. */
static segue_status eval_concat(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                                struct sg_val *out)
{
    /* bytes count as heap bytes once the string is made; until then this limit applies */
    struct sg_buf b = {.limit = st->limits.value_bytes};
    segue_status s = SEGUE_OK;
    for (const struct sg_jinja_node *i = n->a; i && s == SEGUE_OK; i = i->next) {
        struct sg_val v;
        s = sg_eval_expr(st, f, i, &v);
        if (s == SEGUE_OK) s = sg_put_str(st, &b, v);
    }
    return sg_str_from_buf(st, s, &b, out);
}

/* Minus goes through subtraction, which reports an overflow: -INT64_MIN does not fit in 64 bits. */
static segue_status eval_sign(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                              struct sg_val *out)
{
    struct sg_val v;
    SG_TRY(sg_eval_expr(st, f, n->a, &v));
    int neg = n->kind == SG_N_NEG;
    if (v.kind == SG_V_FLOAT) return *out = sg_v_float(neg ? -v.u.f : v.u.f), SEGUE_OK;
    if (v.kind != SG_V_INT && v.kind != SG_V_BOOL)
        return sg_jinja_fail(st, "a value of type '%s' has no sign", sg_val_type(v.kind));
    return neg ? sg_val_binary(st, '-', sg_v_int(0), v, out) : (*out = sg_v_int(v.u.i), SEGUE_OK);
}

/* of[key] or of[a:b:c]. */
static segue_status eval_item(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                              struct sg_val *out)
{
    struct sg_val of, key, part[3];
    SG_TRY(sg_eval_expr(st, f, n->a, &of));
    if (n->b->kind != SG_N_SLICE) {
        SG_TRY(sg_eval_expr(st, f, n->b, &key));
        st->line = n->line;
        return sg_val_item(st, of, key, n, out);
    }
    const struct sg_jinja_node *const bounds[] = {n->b->a, n->b->b, n->b->c};
    for (size_t i = 0; i < 3; i++) {
        /* an absent bound is None, as in slice(None, 1) */
        part[i] = sg_v_none();
        if (bounds[i]) SG_TRY(sg_eval_expr(st, f, bounds[i], &part[i]));
    }
    st->line = n->line;
    return sg_val_slice(st, of, part, out);
}

/* Append the items of v to pos, for *v in a call. */
static segue_status append_iterable(struct sg_jinja *st, struct sg_list *pos, struct sg_val v)
{
    struct sg_list *more = NULL;
    SG_TRY(sg_val_to_list(st, v, &more));
    for (size_t i = 0; i < more->n; i++) SG_TRY(sg_list_add(st, pos, more->items[i]));
    return SEGUE_OK;
}

/* Arguments are evaluated in the order of the call. out->pos points into a list of the rendering. */
segue_status sg_eval_args(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *list,
                           struct sg_call_args *out)
{
    struct sg_list *pos = NULL;
    *out = (struct sg_call_args){0};
    if (!list) return SEGUE_OK;
    SG_TRY(sg_list_make(st, SG_V_LIST, 4, &pos));
    for (; list; list = list->next) {
        struct sg_val v;
        SG_TRY(sg_eval_expr(st, f, list->a, &v));
        if ((list->op == 'k' || list->op == 'd') && !out->named)
            SG_TRY(sg_dict_make(st, SG_V_DICT, &out->named));
        /* later keywords replace earlier ones of the same name */
        if (list->op == 'k')
            SG_TRY(sg_dict_set_name(st, out->named, list->s, list->n, v));
        else if (list->op == 'd' && v.kind != SG_V_DICT)
            return sg_jinja_fail(st, "the argument after '**' must be a dict");
        else if (list->op == 'd')
            SG_TRY(sg_dict_merge(st, out->named, v));
        else if (list->op == '*')
            SG_TRY(append_iterable(st, pos, v));
        else
            SG_TRY(sg_list_add(st, pos, v));
    }
    out->pos = pos->items;
    out->pos_n = pos->n;
    return SEGUE_OK;
}

/* Functions, bound methods, macros, the loop of a recursive `for`, and joiners can be called. */
segue_status sg_eval_call(struct sg_jinja *st, struct sg_val callee, const struct sg_call_args *args,
                           struct sg_val *out)
{
    if (callee.kind == SG_V_FUNC) return sg_builtin_call(st, callee.u.func, sg_v_none(), args, out);
    if (callee.kind == SG_V_METHOD) {
        const struct sg_bound_method *m = (const void *)callee.u.o;
        return sg_str_method_call(st, m->func, m->self, args, out);
    }
    if (callee.kind == SG_V_MACRO)
        return sg_macro_call(st, (struct sg_jinja_macro *)(void *)callee.u.o, args, out);
    if (callee.kind == SG_V_LOOP && args->pos_n == 1 && !args->named)
        return sg_loop_recurse(st, sg_v_loop(callee), args->pos[0], out);
    if (callee.kind == SG_V_JOINER) {
        struct sg_val_seq *j = sg_v_seq(callee);
        *out = j->list->items[0];
        /* a joiner is empty at its first call and its separator after that */
        return j->pos++ ? SEGUE_OK : sg_str_borrow(st, "", 0, out);
    }
    if (callee.kind == SG_V_UNDEFINED && callee.u.node && callee.u.node->s)
        return sg_jinja_fail(st, "cannot call '%.*s': it is undefined or not allowed",
                             (int)(callee.u.node->n > 80 ? 80 : callee.u.node->n), callee.u.node->s);
    return sg_jinja_fail(st, "cannot call a value of type '%s'", sg_val_type(callee.kind));
}

/* The callee is evaluated before its arguments, as in Python. */
static segue_status eval_call(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                              struct sg_val *out)
{
    struct sg_val callee;
    struct sg_call_args args;
    SG_TRY(sg_eval_expr(st, f, n->a, &callee));
    SG_TRY(sg_eval_args(st, f, n->b, &args));
    st->line = n->line;
    return sg_eval_call(st, callee, &args, out);
}

/* n: a FILTER or TEST. Its operand n->a is not evaluated here: the blocks of jinja_run.c pass captured output. */
segue_status sg_eval_filter(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                             struct sg_val value, struct sg_val *out)
{
    struct sg_call_args args;
    if (!n->u.func)
        return sg_jinja_fail(st, "there is no %s named '%.*s'", n->kind == SG_N_TEST ? "test" : "filter",
                             (int)(n->n > 40 ? 40 : n->n), n->s);
    SG_TRY(sg_eval_args(st, f, n->b, &args));
    st->line = n->line;
    return sg_builtin_call(st, n->u.func, value, &args, out);
}

/* The node itself, without the bookkeeping of sg_eval_expr. */
static segue_status eval_kind(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                                struct sg_val *out)
{
    struct sg_val v;
    switch (n->kind) {
    case SG_N_TUPLE:
    case SG_N_LIST: return eval_items(st, f, n, out);
    case SG_N_DICT: return eval_dict(st, f, n, out);
    case SG_N_COND: return eval_cond(st, f, n, out);
    case SG_N_OR:
    case SG_N_AND: return eval_logic(st, f, n, out);
    case SG_N_NOT: SG_TRY(sg_eval_expr(st, f, n->a, &v)); return *out = sg_v_bool(!sg_val_true(v)), SEGUE_OK;
    case SG_N_COMPARE: return eval_compare(st, f, n, out);
    case SG_N_BINARY: return eval_binary(st, f, n, out);
    case SG_N_CONCAT: return eval_concat(st, f, n, out);
    case SG_N_NEG:
    case SG_N_POS: return eval_sign(st, f, n, out);
    case SG_N_ATTR:
        SG_TRY(sg_eval_expr(st, f, n->a, &v));
        st->line = n->line;
        return sg_val_attr(st, v, n->s, n->n, n, out);
    case SG_N_ITEM: return eval_item(st, f, n, out);
    case SG_N_CALL: return eval_call(st, f, n, out);
    case SG_N_FILTER:
    case SG_N_TEST: SG_TRY(sg_eval_expr(st, f, n->a, &v)); return sg_eval_filter(st, f, n, v, out);
    default: return sg_jinja_fail(st, "this is not an expression");
    }
}

/* The value of node n in frame f. Constants and names, the bulk of all nodes, need no level of nesting. */
segue_status sg_eval_expr(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                           struct sg_val *out)
{
    if (n->kind == SG_N_CONST) return *out = n->u.value, SEGUE_OK;
    if (n->kind == SG_N_NAME) return sg_jinja_step(st, 1) == SEGUE_OK ? eval_name(f, n, out) : SEGUE_ELIMIT;
    SG_TRY(sg_jinja_enter(st));
    st->line = n->line;
    /* after an error the level is irrelevant: the rendering ends */
    segue_status s = eval_kind(st, f, n, out);
    st->level--;
    return s;
}
