/* jinja_eval.c: expressions. Each level of nodes counts as a step and as depth; a value that only the C stack knows
 * is safe because nothing is swept while an expression is open.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/jinja.h"

static struct sg_frame *frame_at(struct sg_frame *f, unsigned hops)
{
    while (hops--) f = f->parent;
    return f;
}

static segue_status eval_name(struct sg_frame *f, const struct sg_node *n, struct sg_val *out)
{
    *out = frame_at(f, n->hops)->slots[n->slot];
    if (out->kind == SG_V_MISSING) *out = sg_v_undefined(n, 0);
    return SEGUE_OK;
}

static segue_status eval_items(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                               struct sg_val *out)
{
    struct sg_list *l = NULL;
    SG_TRY(sg_list_make(st, n->kind == SG_N_TUPLE ? SG_V_TUPLE : SG_V_LIST, 0, &l));
    for (const struct sg_node *i = n->a; i; i = i->next) {
        struct sg_val v;
        SG_TRY(sg_jinja_eval(st, f, i, &v));
        SG_TRY(sg_list_add(st, l, v));
    }
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

static segue_status eval_dict(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                              struct sg_val *out)
{
    struct sg_dict *d = NULL;
    SG_TRY(sg_dict_make(st, SG_V_DICT, &d));
    for (const struct sg_node *i = n->a; i; i = i->next->next) {
        struct sg_val key, value;
        SG_TRY(sg_jinja_eval(st, f, i, &key));
        SG_TRY(sg_jinja_eval(st, f, i->next, &value));
        SG_TRY(sg_dict_set(st, d, key, value));
    }
    *out = sg_v_of(&d->o);
    return SEGUE_OK;
}

static segue_status eval_logic(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                               struct sg_val *out)
{
    SG_TRY(sg_jinja_eval(st, f, n->a, out));
    if (sg_val_true(*out) == (n->kind == SG_N_OR)) return SEGUE_OK;
    return sg_jinja_eval(st, f, n->b, out);
}

static segue_status eval_cond(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                              struct sg_val *out)
{
    SG_TRY(sg_jinja_eval(st, f, n->a, out));
    if (sg_val_true(*out)) return sg_jinja_eval(st, f, n->b, out);
    if (n->c) return sg_jinja_eval(st, f, n->c, out);
    *out = sg_v_undefined(NULL, 0);
    return SEGUE_OK;
}

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

static segue_status eval_compare(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                                 struct sg_val *out)
{
    struct sg_val left, right;
    int holds = 1;
    SG_TRY(sg_jinja_eval(st, f, n->a, &left));
    for (const struct sg_node *op = n->b; op && holds; op = op->next) {
        SG_TRY(sg_jinja_eval(st, f, op->a, &right));
        SG_TRY(compare(st, (char)op->op, left, right, &holds));
        left = right;
    }
    *out = sg_v_bool(holds);
    return SEGUE_OK;
}

static segue_status eval_binary(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                                struct sg_val *out)
{
    struct sg_val a, b;
    SG_TRY(sg_jinja_eval(st, f, n->a, &a));
    SG_TRY(sg_jinja_eval(st, f, n->b, &b));
    st->line = n->line;
    return sg_val_binary(st, n->op, a, b, out);
}

static segue_status eval_concat(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                                struct sg_val *out)
{
    struct sg_buf b = {.limit = st->limits.value_bytes};
    segue_status s = SEGUE_OK;
    for (const struct sg_node *i = n->a; i && s == SEGUE_OK; i = i->next) {
        struct sg_val v;
        s = sg_jinja_eval(st, f, i, &v);
        if (s == SEGUE_OK) s = sg_put_str(st, &b, v);
    }
    return sg_str_take(st, s, &b, out);
}

static segue_status eval_sign(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                              struct sg_val *out)
{
    struct sg_val v;
    SG_TRY(sg_jinja_eval(st, f, n->a, &v));
    int neg = n->kind == SG_N_NEG;
    if (v.kind == SG_V_FLOAT) return *out = sg_v_float(neg ? -v.u.f : v.u.f), SEGUE_OK;
    if (v.kind != SG_V_INT && v.kind != SG_V_BOOL)
        return sg_jinja_fail(st, "a value of type '%s' has no sign", sg_val_type(v.kind));
    return neg ? sg_val_binary(st, '-', sg_v_int(0), v, out) : (*out = sg_v_int(v.u.i), SEGUE_OK);
}

static segue_status eval_item(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                              struct sg_val *out)
{
    struct sg_val of, key, part[3];
    SG_TRY(sg_jinja_eval(st, f, n->a, &of));
    if (n->b->kind != SG_N_SLICE) {
        SG_TRY(sg_jinja_eval(st, f, n->b, &key));
        st->line = n->line;
        return sg_val_item(st, of, key, n, out);
    }
    const struct sg_node *const bounds[] = {n->b->a, n->b->b, n->b->c};
    for (size_t i = 0; i < 3; i++) {
        part[i] = sg_v_none();
        if (bounds[i]) SG_TRY(sg_jinja_eval(st, f, bounds[i], &part[i]));
    }
    st->line = n->line;
    return sg_val_slice(st, of, part, out);
}

/* --- calls --- */

static segue_status add_star(struct sg_jinja *st, struct sg_list *pos, struct sg_val v)
{
    struct sg_list *more = NULL;
    SG_TRY(sg_val_to_list(st, v, &more));
    for (size_t i = 0; i < more->n; i++) SG_TRY(sg_list_add(st, pos, more->items[i]));
    return SEGUE_OK;
}

segue_status sg_jinja_args(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *list,
                           struct sg_args *out)
{
    struct sg_list *pos = NULL;
    *out = (struct sg_args){0};
    if (!list) return SEGUE_OK;
    SG_TRY(sg_list_make(st, SG_V_LIST, 4, &pos));
    for (; list; list = list->next) {
        struct sg_val v;
        SG_TRY(sg_jinja_eval(st, f, list->a, &v));
        if ((list->op == 'k' || list->op == 'd') && !out->named)
            SG_TRY(sg_dict_make(st, SG_V_DICT, &out->named));
        if (list->op == 'k')
            SG_TRY(sg_dict_set_name(st, out->named, list->s, list->n, v));
        else if (list->op == 'd' && v.kind != SG_V_DICT)
            return sg_jinja_fail(st, "what follows '**' must be a dict");
        else if (list->op == 'd')
            SG_TRY(sg_dict_merge(st, out->named, v));
        else if (list->op == '*')
            SG_TRY(add_star(st, pos, v));
        else
            SG_TRY(sg_list_add(st, pos, v));
    }
    out->pos = pos->items;
    out->pos_n = pos->n;
    return SEGUE_OK;
}

static segue_status bind_one(struct sg_jinja *st, const struct sg_func *f, const struct sg_pair *p,
                             struct sg_val *in)
{
    const struct sg_str *key = sg_v_str(p->key);
    size_t at = 0;
    for (const char *w = f->params; *w; at++) {
        size_t n = strcspn(w, " ");
        if (key->n == n && !memcmp(key->s, w, n)) {
            if (in[at].kind != SG_V_MISSING)
                return sg_jinja_fail(st, "'%s' got two values for '%.*s'", f->name, (int)n, w);
            in[at] = p->value;
            return SEGUE_OK;
        }
        w += n + (w[n] == ' ');
    }
    return sg_jinja_fail(st, "'%s' has no parameter '%.*s'", f->name, (int)(key->n > 40 ? 40 : key->n),
                         key->s);
}

segue_status sg_func_call(struct sg_jinja *st, const struct sg_func *f, struct sg_val self,
                          const struct sg_args *args, struct sg_val *out)
{
    struct sg_val in[SG_PARAMS] = {{0}};
    if (!f->params) return f->fn(st, f, self, in, args, out);
    size_t most = *f->params != 0;
    for (const char *p = f->params; *p; p++) most += *p == ' ';
    if (args->pos_n > most)
        return sg_jinja_fail(st, "'%s' takes at most %zu arguments, %zu are given", f->name, most,
                             args->pos_n);
    for (size_t i = 0; i < args->pos_n; i++) in[i] = args->pos[i];
    for (size_t i = 0; args->named && i < args->named->n; i++)
        SG_TRY(bind_one(st, f, &args->named->pairs[i], in));
    for (size_t i = 0; i < f->least; i++)
        if (in[i].kind == SG_V_MISSING)
            return sg_jinja_fail(st, "'%s' needs at least %u arguments", f->name, f->least);
    return f->fn(st, f, self, in, args, out);
}

segue_status sg_jinja_call(struct sg_jinja *st, struct sg_val callee, const struct sg_args *args,
                           const struct sg_node *node, struct sg_val *out)
{
    (void)node;
    if (callee.kind == SG_V_FUNC) return sg_func_call(st, callee.u.func, sg_v_none(), args, out);
    if (callee.kind == SG_V_METHOD) {
        const struct sg_method *m = (const void *)callee.u.o;
        return sg_str_method_call(st, m->func, m->self, args, out);
    }
    if (callee.kind == SG_V_MACRO)
        return sg_jinja_macro(st, (struct sg_macro *)(void *)callee.u.o, args, out);
    if (callee.kind == SG_V_LOOP && args->pos_n == 1 && !args->named)
        return sg_jinja_recurse(st, sg_v_loop(callee), args->pos[0], out);
    if (callee.kind == SG_V_JOINER) {
        struct sg_seq *j = sg_v_seq(callee);
        *out = j->list->items[0];
        return j->pos++ ? SEGUE_OK : sg_str_borrow(st, "", 0, out);
    }
    if (callee.kind == SG_V_UNDEFINED && callee.u.node && callee.u.node->s)
        return sg_jinja_fail(st, "'%.*s' is undefined or not allowed and cannot be called",
                             (int)(callee.u.node->n > 80 ? 80 : callee.u.node->n), callee.u.node->s);
    return sg_jinja_fail(st, "a value of type '%s' cannot be called", sg_val_type(callee.kind));
}

static segue_status eval_call(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                              struct sg_val *out)
{
    struct sg_val callee;
    struct sg_args args;
    SG_TRY(sg_jinja_eval(st, f, n->a, &callee));
    SG_TRY(sg_jinja_args(st, f, n->b, &args));
    st->line = n->line;
    return sg_jinja_call(st, callee, &args, n, out);
}

segue_status sg_jinja_filter(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                             struct sg_val value, struct sg_val *out)
{
    struct sg_args args;
    if (!n->u.func)
        return sg_jinja_fail(st, "there is no %s named '%.*s'", n->kind == SG_N_TEST ? "test" : "filter",
                             (int)(n->n > 40 ? 40 : n->n), n->s);
    SG_TRY(sg_jinja_args(st, f, n->b, &args));
    st->line = n->line;
    return sg_func_call(st, n->u.func, value, &args, out);
}

static segue_status eval_inside(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
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
    case SG_N_NOT: SG_TRY(sg_jinja_eval(st, f, n->a, &v)); return *out = sg_v_bool(!sg_val_true(v)), SEGUE_OK;
    case SG_N_COMPARE: return eval_compare(st, f, n, out);
    case SG_N_BINARY: return eval_binary(st, f, n, out);
    case SG_N_CONCAT: return eval_concat(st, f, n, out);
    case SG_N_NEG:
    case SG_N_POS: return eval_sign(st, f, n, out);
    case SG_N_ATTR:
        SG_TRY(sg_jinja_eval(st, f, n->a, &v));
        st->line = n->line;
        return sg_val_attr(st, v, n->s, n->n, n, out);
    case SG_N_ITEM: return eval_item(st, f, n, out);
    case SG_N_CALL: return eval_call(st, f, n, out);
    case SG_N_FILTER:
    case SG_N_TEST: SG_TRY(sg_jinja_eval(st, f, n->a, &v)); return sg_jinja_filter(st, f, n, v, out);
    default: return sg_jinja_fail(st, "this cannot stand here");
    }
}

segue_status sg_jinja_eval(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                           struct sg_val *out)
{
    if (n->kind == SG_N_CONST) return *out = n->u.value, SEGUE_OK;
    if (n->kind == SG_N_NAME) return sg_jinja_step(st, 1) == SEGUE_OK ? eval_name(f, n, out) : SEGUE_ELIMIT;
    SG_TRY(sg_jinja_enter(st));
    st->line = n->line;
    segue_status s = eval_inside(st, f, n, out);
    st->level--;
    return s;
}
