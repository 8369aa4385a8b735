/* jinja_run.c: statements: output, branches, loops, assignments, macros. `break` and `continue` travel in `jump`,
 * which holds the node kind until the loop has seen it.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/jinja.h"

static segue_status run_list(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *list, int *jump);

/* --- frames --- */

segue_status sg_frame_make(struct sg_jinja *st, const struct sg_scope *scope, struct sg_frame *parent,
                           struct sg_frame **out)
{
    SG_TRY(sg_val_new(st, SG_V_FRAME, sizeof **out + scope->n * sizeof(struct sg_val), out));
    (*out)->parent = parent;
    (*out)->n = scope->n;
    return SEGUE_OK;
}

segue_status sg_frame_enter(struct sg_jinja *st, const struct sg_scope *scope, struct sg_frame *f)
{
    SG_TRY(sg_jinja_step(st, scope->n / 8 + 1));
    for (uint32_t i = 0; i < scope->n; i++) {
        const struct sg_load *l = &scope->loads[i];
        if (l->kind == SG_LOAD_PARAM) continue;
        f->slots[i] = (struct sg_val){0};
        if (l->kind == SG_LOAD_ALIAS) {
            const struct sg_frame *from = f->parent;
            for (unsigned h = l->hops; h; h--) from = from->parent;
            f->slots[i] = from->slots[l->slot];
        } else if (l->kind == SG_LOAD_RESOLVE) {
            const struct sg_name *name = &st->t->names[l->name];
            const struct sg_val *v = sg_dict_name(st->vars, name->s, name->n);
            const struct sg_func *g = v ? NULL : sg_global_find(name->s, name->n);
            if (v)
                f->slots[i] = *v;
            else if (g)
                f->slots[i] = (struct sg_val){.kind = SG_V_FUNC, .u.func = g};
        }
    }
    return SEGUE_OK;
}

static void frame_leave(struct sg_frame *f)
{
    for (size_t i = 0; i < f->n; i++) f->slots[i] = (struct sg_val){0};
}

/* --- assignment --- */

static struct sg_val *slot_of(struct sg_frame *f, const struct sg_node *n)
{
    for (unsigned h = n->hops; h; h--) f = f->parent;
    return &f->slots[n->slot];
}

static segue_status assign(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *t, struct sg_val v)
{
    if (t->kind == SG_N_NAME) return *slot_of(f, t) = v, SEGUE_OK;
    if (t->kind == SG_N_NSREF) {
        struct sg_val *at = slot_of(f, t);
        if (at->kind != SG_V_SPACE) return sg_jinja_fail(st, "an attribute can only be set on a namespace");
        if (t->n && t->s[0] == '_')
            return sg_jinja_fail(st, "a namespace takes no name that begins with '_'");
        return sg_dict_set_name(st, sg_v_dict(*at), t->s, t->n, v);
    }
    struct sg_iter it;
    struct sg_val item;
    int got;
    SG_TRY(sg_jinja_enter(st));
    SG_TRY(sg_iter_open(st, v, &it));
    for (const struct sg_node *i = t->a; i; i = i->next) {
        SG_TRY(sg_iter_next(st, &it, &item, &got));
        if (!got) return sg_jinja_fail(st, "too few values to unpack");
        SG_TRY(assign(st, f, i, item));
    }
    SG_TRY(sg_iter_next(st, &it, &item, &got));
    if (got) return sg_jinja_fail(st, "too many values to unpack");
    st->level--;
    return SEGUE_OK;
}

/* jinja2 looks at all namespaces of a target before it evaluates the value. */
static segue_status check_spaces(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *t)
{
    if (t->kind == SG_N_NSREF && slot_of(f, t)->kind != SG_V_SPACE)
        return sg_jinja_fail(st, "an attribute can only be set on a namespace");
    if (t->kind == SG_N_TUPLE)
        for (const struct sg_node *i = t->a; i; i = i->next) SG_TRY(check_spaces(st, f, i));
    return SEGUE_OK;
}

/* --- captured output --- */

struct capture {
    struct sg_buf buf, *outer;
};

static void capture_begin(struct sg_jinja *st, struct capture *c)
{
    st->captures++;
    c->buf = sg_buf_begin(st);
    c->outer = st->out;
    st->out = &c->buf;
}

static segue_status capture_end(struct sg_jinja *st, struct capture *c, segue_status s, struct sg_val *out)
{
    st->captures--;
    st->out = c->outer;
    st->held -= c->buf.len;
    return sg_str_take(st, s, &c->buf, out);
}

static segue_status emit(struct sg_jinja *st, const char *s, size_t n)
{
    SG_TRY(sg_put(st, st->out, s, n));
    if (st->captures) st->held += n;
    return SEGUE_OK;
}

static segue_status emit_value(struct sg_jinja *st, struct sg_val v)
{
    if (v.kind == SG_V_STR) return emit(st, sg_v_str(v)->s, sg_v_str(v)->n);
    size_t was = st->out->len;
    SG_TRY(sg_put_str(st, st->out, v));
    if (st->captures) st->held += st->out->len - was;
    return SEGUE_OK;
}

/* --- loops --- */

/* What was assigned to a target, as a value: a loop with a condition hands tuples on, whatever was unpacked. */
static segue_status target_value(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *t,
                                 struct sg_val *out)
{
    struct sg_list *l = NULL;
    if (t->kind == SG_N_NAME) return *out = *slot_of(f, t), SEGUE_OK;
    SG_TRY(sg_list_make(st, SG_V_TUPLE, 0, &l));
    for (const struct sg_node *i = t->a; i; i = i->next) {
        struct sg_val v;
        SG_TRY(target_value(st, f, i, &v));
        SG_TRY(sg_list_add(st, l, v));
    }
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

/* The next item that passes the loop's condition; kind MISSING = none. */
static segue_status loop_pull(struct sg_jinja *st, struct sg_loop *l, struct sg_val *out)
{
    const struct sg_node *n = l->node;
    int got;
    if (l->rest) {
        *out = l->rest_pos < l->rest->n ? l->rest->items[l->rest_pos++] : (struct sg_val){0};
        return SEGUE_OK;
    }
    for (;;) {
        struct sg_val ok;
        SG_TRY(sg_iter_next(st, &l->it, out, &got));
        if (!got) return *out = (struct sg_val){0}, SEGUE_OK;
        if (!n->e) return SEGUE_OK;
        SG_TRY(assign(st, l->test, n->a, *out));
        SG_TRY(sg_jinja_eval(st, l->test, n->e, &ok));
        if (sg_val_true(ok)) return target_value(st, l->test, n->a, out);
    }
}

static segue_status loop_peek(struct sg_jinja *st, struct sg_loop *l)
{
    return l->after.kind == SG_V_MISSING ? loop_pull(st, l, &l->after) : SEGUE_OK;
}

static segue_status loop_length(struct sg_jinja *st, struct sg_loop *l)
{
    size_t n;
    if (l->length >= 0) return SEGUE_OK;
    if (!l->node->e && sg_val_has_length(l->it.v)) {
        SG_TRY(sg_val_length(st, l->it.v, &n));
        l->length = (int64_t)n;
        return SEGUE_OK;
    }
    struct sg_list *rest = NULL;
    struct sg_val v;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &rest));
    for (;;) {
        SG_TRY(loop_pull(st, l, &v));
        if (v.kind == SG_V_MISSING) break;
        SG_TRY(sg_list_add(st, rest, v));
    }
    l->rest = rest;
    l->rest_pos = 0;
    l->length = (int64_t)rest->n + l->index0 + 1 + (l->after.kind != SG_V_MISSING);
    return SEGUE_OK;
}

static segue_status loop_cycle(struct sg_jinja *st, const struct sg_func *f, struct sg_val self,
                               struct sg_val *in, const struct sg_args *args, struct sg_val *out)
{
    (void)f;
    (void)in;
    if (!args->pos_n || args->named) return sg_jinja_fail(st, "loop.cycle needs values to choose from");
    *out = args->pos[(size_t)sg_v_loop(self)->index0 % args->pos_n];
    return SEGUE_OK;
}

static segue_status loop_changed(struct sg_jinja *st, const struct sg_func *f, struct sg_val self,
                                 struct sg_val *in, const struct sg_args *args, struct sg_val *out)
{
    struct sg_list *now = NULL;
    struct sg_loop *l = sg_v_loop(self);
    int same = 0;
    (void)f;
    (void)in;
    SG_TRY(sg_list_make(st, SG_V_TUPLE, args->pos_n, &now));
    for (size_t i = 0; i < args->pos_n; i++) now->items[now->n++] = args->pos[i];
    if (l->changed.kind != SG_V_MISSING) SG_TRY(sg_val_equal(st, l->changed, sg_v_of(&now->o), &same));
    if (!same) l->changed = sg_v_of(&now->o);
    *out = sg_v_bool(!same);
    return SEGUE_OK;
}

static segue_status loop_method(struct sg_jinja *st, struct sg_loop *l, const struct sg_func *f,
                                struct sg_val *out)
{
    struct sg_method *m = NULL;
    SG_TRY(sg_val_new(st, SG_V_METHOD, sizeof *m, &m));
    m->self = sg_v_of(&l->o);
    m->func = f;
    *out = sg_v_of(&m->o);
    return SEGUE_OK;
}

segue_status sg_loop_attr(struct sg_jinja *st, struct sg_loop *l, const char *s, size_t n, struct sg_val *out)
{
    static const struct sg_func cycle = {"cycle", loop_cycle, NULL, 0, 0},
                                changed = {"changed", loop_changed, NULL, 0, 0};
    static const char *const names[] = {"index",    "index0",    "first",    "last",     "length",
                                        "revindex", "revindex0", "previtem", "nextitem", "depth",
                                        "depth0",   "cycle",     "changed"};
    size_t i = 0;
    while (i < 13 && (strlen(names[i]) != n || memcmp(names[i], s, n) != 0)) i++;
    *out = (struct sg_val){0};
    if (i >= 4 && i <= 6) SG_TRY(loop_length(st, l));
    if (i == 3 || i == 8) SG_TRY(loop_peek(st, l));
    switch (i) {
    case 0: *out = sg_v_int(l->index0 + 1); break;
    case 1: *out = sg_v_int(l->index0); break;
    case 2: *out = sg_v_bool(l->index0 == 0); break;
    case 3: *out = sg_v_bool(l->after.kind == SG_V_MISSING); break;
    case 4: *out = sg_v_int(l->length); break;
    case 5: *out = sg_v_int(l->length - l->index0); break;
    case 6: *out = sg_v_int(l->length - l->index0 - 1); break;
    case 7: *out = l->index0 == 0 ? sg_v_undefined(NULL, 0) : l->before; break;
    case 8: *out = l->after.kind == SG_V_MISSING ? sg_v_undefined(NULL, 0) : l->after; break;
    case 9: *out = sg_v_int(l->depth0 + 1); break;
    case 10: *out = sg_v_int(l->depth0); break;
    case 11: return loop_method(st, l, &cycle, out);
    case 12: return loop_method(st, l, &changed, out);
    default: break;
    }
    return SEGUE_OK;
}

/* One round; *done: the body ran to its end. */
static segue_status loop_round(struct sg_jinja *st, struct sg_loop *l, struct sg_frame *f, struct sg_val item,
                               int *done, int *jump)
{
    const struct sg_node *n = l->node;
    l->index0++;
    l->before = l->current;
    l->current = item;
    f->slots[0] = sg_v_of(&l->o);
    SG_TRY(assign(st, f, n->a, item));
    SG_TRY(sg_frame_enter(st, n->u.scopes[0], f));
    SG_TRY(run_list(st, f, n->c, jump));
    if (!*jump) *done = 1;
    return SEGUE_OK;
}

static segue_status loop_rounds(struct sg_jinja *st, struct sg_loop *l, struct sg_frame *f, int *done)
{
    for (;;) {
        struct sg_val item = l->after;
        int jump = 0;
        l->after = (struct sg_val){0};
        if (item.kind == SG_V_MISSING) SG_TRY(loop_pull(st, l, &item));
        if (item.kind == SG_V_MISSING) return SEGUE_OK;
        SG_TRY(loop_round(st, l, f, item, done, &jump));
        if (jump == SG_N_BREAK) return SEGUE_OK;
    }
}

static segue_status run_for(struct sg_jinja *st, struct sg_frame *outer, const struct sg_node *n,
                            struct sg_val items, int64_t depth0, int *jump)
{
    struct sg_loop *l = NULL;
    struct sg_frame *f = NULL;
    int done = 0;
    SG_TRY(sg_val_new(st, SG_V_LOOP, sizeof *l, &l));
    struct sg_root root = {st->roots, &l->o}, inner;
    SG_TRY(sg_iter_open(st, items, &l->it));
    l->node = n;
    l->outer = outer;
    l->index0 = -1;
    l->length = -1;
    l->depth0 = depth0;
    st->roots = &root;
    segue_status s = sg_frame_make(st, n->u.scopes[0], outer, &f);
    if (s == SEGUE_OK && n->e) s = sg_frame_make(st, n->u.scopes[1], outer, &l->test);
    if (s == SEGUE_OK && n->e) s = sg_frame_enter(st, n->u.scopes[1], l->test);
    if (s == SEGUE_OK) {
        inner = (struct sg_root){&root, &f->o};
        st->roots = &inner;
        s = loop_rounds(st, l, f, &done);
        frame_leave(f);
    }
    st->roots = root.next;
    if (s != SEGUE_OK || done || !n->d) return s;
    SG_TRY(sg_frame_make(st, n->scope_else, outer, &f));
    SG_TRY(sg_frame_enter(st, n->scope_else, f));
    s = run_list(st, f, n->d, jump);
    frame_leave(f);
    return s;
}

segue_status sg_jinja_recurse(struct sg_jinja *st, struct sg_loop *loop, struct sg_val items,
                              struct sg_val *out)
{
    struct capture c;
    int jump = 0;
    if (!loop->node->op) return sg_jinja_fail(st, "the loop is called, but not marked 'recursive'");
    SG_TRY(sg_jinja_enter(st));
    capture_begin(st, &c);
    st->pending++;
    segue_status s = run_for(st, loop->outer, loop->node, items, loop->depth0 + 1, &jump);
    st->pending--;
    st->level--;
    return capture_end(st, &c, s, out);
}

/* --- macros --- */

static segue_status macro_bind(struct sg_jinja *st, const struct sg_node *n, const struct sg_args *args,
                               struct sg_frame *f)
{
    size_t at = 0, used = 0, count = 0;
    struct sg_dict *rest = NULL;
    SG_TRY(sg_dict_make(st, SG_V_DICT, &rest));
    for (const struct sg_node *a = n->a; a; a = a->next) {
        count++;
        if (at < args->pos_n) {
            f->slots[a->slot] = args->pos[at++];
            continue;
        }
        const struct sg_val *v = args->named ? sg_dict_name(args->named, a->s, a->n) : NULL;
        if (v) f->slots[a->slot] = *v;
        used += v != NULL;
    }
    uint32_t slot = (uint32_t)count;
    const struct sg_val *caller = args->named ? sg_dict_name(args->named, "caller", 6) : NULL;
    int own_caller = (n->flags & SG_MACRO_CALLER) && !(n->flags & SG_MACRO_EXPLICIT);
    if (own_caller) {
        if (caller && caller->kind != SG_V_NONE) f->slots[slot] = *caller;
        used += caller != NULL;
        slot++;
    }
    size_t given = args->named ? args->named->n : 0;
    if (n->flags & SG_MACRO_KWARGS) {
        for (size_t i = 0; i < given; i++) {
            const struct sg_pair *p = &args->named->pairs[i];
            int taken = own_caller && sg_v_is(p->key, "caller", 6);
            size_t k = 0;
            for (const struct sg_node *a = n->a; a && !taken; a = a->next, k++)
                taken = k >= at && sg_v_is(p->key, a->s, a->n);
            if (!taken) SG_TRY(sg_dict_set(st, rest, p->key, p->value));
        }
        f->slots[slot++] = sg_v_of(&rest->o);
    } else if (used < given) {
        return sg_jinja_fail(st, "macro '%.*s' is called with a keyword it does not have",
                             (int)(n->n > 60 ? 60 : n->n), n->s ? n->s : "");
    }
    if (n->flags & SG_MACRO_VARARGS) {
        struct sg_list *more = NULL;
        SG_TRY(sg_list_make(st, SG_V_TUPLE, args->pos_n - at, &more));
        for (; at < args->pos_n; at++) more->items[more->n++] = args->pos[at];
        f->slots[slot] = sg_v_of(&more->o);
    } else if (at < args->pos_n) {
        return sg_jinja_fail(st, "macro '%.*s' takes at most %zu arguments, %zu are given",
                             (int)(n->n > 60 ? 60 : n->n), n->s ? n->s : "", count, args->pos_n);
    }
    return SEGUE_OK;
}

static segue_status macro_run(struct sg_jinja *st, const struct sg_node *n, struct sg_frame *f)
{
    int jump = 0;
    for (const struct sg_node *a = n->a; a; a = a->next)
        if (f->slots[a->slot].kind == SG_V_MISSING && a->a)
            SG_TRY(sg_jinja_eval(st, f, a->a, &f->slots[a->slot]));
    return run_list(st, f, n->c, &jump);
}

segue_status sg_jinja_macro(struct sg_jinja *st, struct sg_macro *m, const struct sg_args *args,
                            struct sg_val *out)
{
    struct capture c;
    struct sg_frame *f = NULL;
    const struct sg_node *n = m->node;
    if (++st->calls > st->limits.depth)
        return sg_fail(st->err, SEGUE_ELIMIT,
                       "template: %s line %u: macros call each other more than %u levels deep; "
                       "correct the template",
                       st->t->what, (unsigned)st->line, (unsigned)st->limits.depth);
    SG_TRY(sg_jinja_enter(st));
    SG_TRY(sg_frame_make(st, n->u.scopes[0], m->frame, &f));
    SG_TRY(macro_bind(st, n, args, f));
    SG_TRY(sg_frame_enter(st, n->u.scopes[0], f));
    capture_begin(st, &c);
    st->pending++;
    segue_status s = macro_run(st, n, f);
    st->pending--;
    st->level--;
    st->calls--;
    return capture_end(st, &c, s, out);
}

static segue_status make_macro(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                               struct sg_val *out)
{
    struct sg_macro *m = NULL;
    SG_TRY(sg_val_new(st, SG_V_MACRO, sizeof *m, &m));
    m->node = n;
    m->frame = f;
    *out = sg_v_of(&m->o);
    return SEGUE_OK;
}

static segue_status run_call_block(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n)
{
    struct sg_val caller, callee, v;
    struct sg_args args;
    SG_TRY(make_macro(st, f, n, &caller));
    SG_TRY(sg_jinja_eval(st, f, n->b->a, &callee));
    SG_TRY(sg_jinja_args(st, f, n->b->b, &args));
    if (!args.named) SG_TRY(sg_dict_make(st, SG_V_DICT, &args.named));
    SG_TRY(sg_dict_set_name(st, args.named, "caller", 6, caller));
    st->line = n->line;
    SG_TRY(sg_jinja_call(st, callee, &args, n->b, &v));
    return emit_value(st, v);
}

static segue_status run_generation(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n)
{
    struct sg_val macro, v;
    struct sg_args none = {0};
    SG_TRY(make_macro(st, f, n, &macro));
    SG_TRY(sg_jinja_macro(st, (struct sg_macro *)(void *)macro.u.o, &none, &v));
    return emit_value(st, v);
}

/* --- blocks with captured text --- */

static segue_status run_captured(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n,
                                 struct sg_val *out, int *jump)
{
    struct capture c;
    struct sg_frame *inner = NULL;
    SG_TRY(sg_frame_make(st, n->u.scopes[0], f, &inner));
    SG_TRY(sg_frame_enter(st, n->u.scopes[0], inner));
    struct sg_root root = {st->roots, &inner->o};
    st->roots = &root;
    capture_begin(st, &c);
    segue_status s = run_list(st, inner, n->c, jump);
    st->roots = root.next;
    SG_TRY(capture_end(st, &c, s, out));
    if (*jump || !n->b) return SEGUE_OK;
    /* filters are chained from the inside out; the innermost has no value of its own */
    const struct sg_node *chain[64];
    size_t depth = 0;
    for (const struct sg_node *i = n->b; i && depth < 64; i = i->a) chain[depth++] = i;
    if (depth == 64) return sg_jinja_fail(st, "too many filters in a row");
    while (depth--) SG_TRY(sg_jinja_filter(st, inner, chain[depth], *out, out));
    return SEGUE_OK;
}

static segue_status run_with(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n, int *jump)
{
    struct sg_frame *inner = NULL;
    SG_TRY(sg_frame_make(st, n->u.scopes[0], f, &inner));
    SG_TRY(sg_frame_enter(st, n->u.scopes[0], inner));
    struct sg_root root = {st->roots, &inner->o};
    const struct sg_node *v = n->b;
    for (const struct sg_node *t = n->a; t; t = t->next, v = v->next) {
        struct sg_val value;
        SG_TRY(sg_jinja_eval(st, f, v, &value));
        SG_TRY(assign(st, inner, t, value));
    }
    st->roots = &root;
    segue_status s = run_list(st, inner, n->c, jump);
    st->roots = root.next;
    frame_leave(inner);
    return s;
}

static segue_status run_if(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n, int *jump)
{
    struct sg_val v;
    SG_TRY(sg_jinja_eval(st, f, n->a, &v));
    if (sg_val_true(v)) return run_list(st, f, n->b, jump);
    for (const struct sg_node *i = n->c; i; i = i->next) {
        SG_TRY(sg_jinja_eval(st, f, i->a, &v));
        if (sg_val_true(v)) return run_list(st, f, i->b, jump);
    }
    return run_list(st, f, n->d, jump);
}

static segue_status run_one(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n, int *jump)
{
    struct sg_val v;
    st->line = n->line;
    switch (n->kind) {
    case SG_N_DATA: return emit(st, n->s, n->n);
    case SG_N_IF: return run_if(st, f, n, jump);
    case SG_N_FOR: SG_TRY(sg_jinja_eval(st, f, n->b, &v)); return run_for(st, f, n, v, 0, jump);
    case SG_N_SET:
        SG_TRY(check_spaces(st, f, n->a));
        SG_TRY(sg_jinja_eval(st, f, n->b, &v));
        return assign(st, f, n->a, v);
    case SG_N_SETBLOCK:
        SG_TRY(run_captured(st, f, n, &v, jump));
        return *jump ? SEGUE_OK : assign(st, f, n->a, v);
    case SG_N_FILTERBLOCK:
        SG_TRY(run_captured(st, f, n, &v, jump));
        return *jump ? SEGUE_OK : emit_value(st, v);
    case SG_N_MACRO:
        SG_TRY(make_macro(st, f, n, &v));
        f->slots[n->slot] = v;
        return SEGUE_OK;
    case SG_N_CALLBLOCK: return run_call_block(st, f, n);
    case SG_N_GENERATION: return run_generation(st, f, n);
    case SG_N_WITH: return run_with(st, f, n, jump);
    case SG_N_BREAK:
    case SG_N_CONTINUE: *jump = n->kind; return SEGUE_OK;
    default: SG_TRY(sg_jinja_eval(st, f, n, &v)); return emit_value(st, v);
    }
}

static segue_status run_list(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *list, int *jump)
{
    if (!list) return SEGUE_OK;
    SG_TRY(sg_jinja_enter(st));
    for (; list && !*jump; list = list->next) {
        SG_TRY(sg_jinja_step(st, 1));
        if (st->live > st->sweep_at && !st->pending) sg_val_sweep(st, f);
        SG_TRY(run_one(st, f, list, jump));
    }
    st->level--;
    return SEGUE_OK;
}

segue_status sg_jinja_run(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *body)
{
    int jump = 0;
    return run_list(st, f, body, &jump);
}
