/* jinja_run.c: runs statement nodes. *jump is set to SG_N_BREAK or SG_N_CONTINUE by these statements; every list of
 * statements ends then, up to the innermost loop. Frames that only the C stack refers to are registered in st->roots,
 * because a collection may start before any statement.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/jinja.h"
#include "text/jinja/value/jinja_text.h"

static segue_status run_statements(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *list, int *jump);

/* The condition of a loop. It assigns the item to the loop's target in a separate frame, so that the body's
 * variables are not touched when loop.length evaluates the condition ahead. */
static segue_status loop_filter(struct sg_jinja *st, struct sg_jinja_loop *l, struct sg_val *item, int *pass)
{
    struct sg_val ok;
    SG_TRY(sg_target_assign(st, l->test_frame, l->node->a, *item));
    SG_TRY(sg_eval_expr(st, l->test_frame, l->node->e, &ok));
    *pass = sg_val_true(ok);
    return *pass ? sg_target_value(st, l->test_frame, l->node->a, item) : SEGUE_OK;
}

/* One iteration of a loop. *done = 1 when the body ran to its end; if that never happens, the else part runs. */
static segue_status run_iteration(struct sg_jinja *st, struct sg_jinja_loop *l, struct sg_jinja_frame *f, struct sg_val item,
                               int *done, int *jump)
{
    const struct sg_jinja_node *n = l->node;
    l->index0++;
    l->before = l->current;
    l->current = item;
    /* slot 0 is `loop`, see bind_for */
    f->slots[0] = sg_v_of(&l->o);
    SG_TRY(sg_target_assign(st, f, n->a, item));
    /* slots that are not parameters are set again in each iteration; slot 0 and the target are parameters */
    SG_TRY(sg_frame_enter(st, n->u.scopes[0], f));
    SG_TRY(run_statements(st, f, n->c, jump));
    if (!*jump) *done = 1;
    return SEGUE_OK;
}

/* All iterations. An item that was fetched ahead, for loop.last or loop.nextitem, comes first. */
static segue_status run_iterations(struct sg_jinja *st, struct sg_jinja_loop *l, struct sg_jinja_frame *f, int *done)
{
    for (;;) {
        struct sg_val item = l->after;
        int jump = 0;
        l->after = (struct sg_val){0};
        if (item.kind == SG_V_MISSING) SG_TRY(sg_loop_next(st, l, &item));
        if (item.kind == SG_V_MISSING) return SEGUE_OK;
        SG_TRY(run_iteration(st, l, f, item, done, &jump));
        if (jump == SG_N_BREAK) return SEGUE_OK;
    }
}

/* A `for` over items. depth0: nesting of recursive calls, for loop.depth. *jump is only set by the else part, whose
 * break belongs to the outer loop. */
static segue_status run_for(struct sg_jinja *st, struct sg_jinja_frame *outer, const struct sg_jinja_node *n,
                            struct sg_val items, int64_t depth0, int *jump)
{
    struct sg_jinja_loop *l = NULL;
    struct sg_jinja_frame *f = NULL;
    int done = 0;
    SG_TRY(sg_val_new(st, SG_V_LOOP, sizeof *l, &l));
    /* only the loop and its frame need roots: all other values are reachable from them */
    struct sg_gc_root root = {st->roots, &l->o}, inner;
    SG_TRY(sg_iter_open(st, items, &l->it));
    l->node = n;
    l->filter = n->e ? loop_filter : NULL;
    l->outer = outer;
    l->index0 = -1;
    l->length = -1;
    l->depth0 = depth0;
    st->roots = &root;
    /* errors must pass the reset of st->roots below, as the roots are on this C stack */
    segue_status s = sg_frame_make(st, n->u.scopes[0], outer, &f);
    if (s == SEGUE_OK && n->e) s = sg_frame_make(st, n->u.scopes[1], outer, &l->test_frame);
    if (s == SEGUE_OK && n->e) s = sg_frame_enter(st, n->u.scopes[1], l->test_frame);
    if (s == SEGUE_OK) {
        inner = (struct sg_gc_root){&root, &f->o};
        st->roots = &inner;
        s = run_iterations(st, l, f, &done);
        sg_frame_clear(f);
    }
    st->roots = root.next;
    if (s != SEGUE_OK || done || !n->d) return s;
    SG_TRY(sg_frame_make(st, n->scope_else, outer, &f));
    SG_TRY(sg_frame_enter(st, n->scope_else, f));
    s = run_statements(st, f, n->d, jump);
    sg_frame_clear(f);
    return s;
}

/* Run the loop again over items and return its output as a string. No collection may run meanwhile: the caller is
 * inside an expression, whose values only the C stack holds. */
segue_status sg_loop_recurse(struct sg_jinja *st, struct sg_jinja_loop *loop, struct sg_val items,
                              struct sg_val *out)
{
    struct sg_capture c;
    int jump = 0;
    /* op 1: the loop is marked recursive */
    if (!loop->node->op) return sg_jinja_fail(st, "cannot call loop: the loop is not marked 'recursive'");
    SG_TRY(sg_jinja_enter(st));
    sg_capture_begin(st, &c);
    /* a call is part of an expression, whose values only the C stack holds */
    st->no_sweep++;
    segue_status s = run_for(st, loop->outer, loop->node, items, loop->depth0 + 1, &jump);
    st->no_sweep--;
    st->level--;
    return sg_capture_end(st, &c, s, out);
}

/* Defaults are evaluated in the macro's frame, so that they may use parameters to their left. */
static segue_status macro_run(struct sg_jinja *st, const struct sg_jinja_node *n, struct sg_jinja_frame *f)
{
    int jump = 0;
    for (const struct sg_jinja_node *a = n->a; a; a = a->next)
        if (f->slots[a->slot].kind == SG_V_MISSING && a->a)
            SG_TRY(sg_eval_expr(st, f, a->a, &f->slots[a->slot]));
    return run_statements(st, f, n->c, &jump);
}

/* The output of the body as a string. The depth is checked separately from the nesting, for a clear message. */
segue_status sg_macro_call(struct sg_jinja *st, struct sg_jinja_macro *m, const struct sg_call_args *args,
                            struct sg_val *out)
{
    struct sg_capture c;
    struct sg_jinja_frame *f = NULL;
    const struct sg_jinja_node *n = m->node;
    if (++st->macro_depth > st->limits.depth)
        return sg_fail(st->err, SEGUE_ELIMIT,
                       "template: %s line %u: macros call each other more than %u levels deep; "
                       "correct the template",
                       st->t->what, (unsigned)st->line, (unsigned)st->limits.depth);
    SG_TRY(sg_jinja_enter(st));
    SG_TRY(sg_frame_make(st, n->u.scopes[0], m->frame, &f));
    SG_TRY(sg_macro_bind(st, n, args, f));
    SG_TRY(sg_frame_enter(st, n->u.scopes[0], f));
    sg_capture_begin(st, &c);
    st->no_sweep++;
    segue_status s = macro_run(st, n, f);
    st->no_sweep--;
    st->level--;
    st->macro_depth--;
    return sg_capture_end(st, &c, s, out);
}

/* The body becomes a macro that the callee gets as the keyword argument `caller`. */
static segue_status run_call_block(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n)
{
    struct sg_val caller, callee, v;
    struct sg_call_args args;
    SG_TRY(sg_macro_make(st, f, n, &caller));
    SG_TRY(sg_eval_expr(st, f, n->b->a, &callee));
    SG_TRY(sg_eval_args(st, f, n->b->b, &args));
    /* caller is passed like any keyword */
    if (!args.named) SG_TRY(sg_dict_make(st, SG_V_DICT, &args.named));
    SG_TRY(sg_dict_set_name(st, args.named, "caller", 6, caller));
    st->line = n->line;
    SG_TRY(sg_eval_call(st, callee, &args, &v));
    return sg_emit_value(st, v);
}

/* Run the body as a macro without parameters and print its output. */
static segue_status run_generation(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n)
{
    struct sg_val macro, v;
    struct sg_call_args none = {0};
    SG_TRY(sg_macro_make(st, f, n, &macro));
    SG_TRY(sg_macro_call(st, (struct sg_jinja_macro *)(void *)macro.u.o, &none, &v));
    return sg_emit_value(st, v);
}

/* The body of a set or filter block in a separate scope. *out: its output, after the filters of the tag. */
static segue_status run_capture_block(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                                 struct sg_val *out, int *jump)
{
    struct sg_capture c;
    struct sg_jinja_frame *inner = NULL;
    SG_TRY(sg_frame_make(st, n->u.scopes[0], f, &inner));
    SG_TRY(sg_frame_enter(st, n->u.scopes[0], inner));
    /* the body may start a collection; the filters after it are expressions, which do not */
    struct sg_gc_root root = {st->roots, &inner->o};
    st->roots = &root;
    sg_capture_begin(st, &c);
    segue_status s = run_statements(st, inner, n->c, jump);
    st->roots = root.next;
    SG_TRY(sg_capture_end(st, &c, s, out));
    if (*jump || !n->b) return SEGUE_OK;
    /* node a|b|c holds b in its operand and so on; the innermost filter has no operand and gets the output */
    const struct sg_jinja_node *chain[64];
    size_t depth = 0;
    for (const struct sg_jinja_node *i = n->b; i && depth < 64; i = i->a) chain[depth++] = i;
    if (depth == 64) return sg_jinja_fail(st, "too many filters in a row");
    while (depth--) SG_TRY(sg_eval_filter(st, inner, chain[depth], *out, out));
    return SEGUE_OK;
}

/* Values are evaluated in the outer frame, before any target of this statement is visible. */
static segue_status run_with(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n, int *jump)
{
    struct sg_jinja_frame *inner = NULL;
    SG_TRY(sg_frame_make(st, n->u.scopes[0], f, &inner));
    SG_TRY(sg_frame_enter(st, n->u.scopes[0], inner));
    /* linked below: until then no statement runs that could collect */
    struct sg_gc_root root = {st->roots, &inner->o};
    const struct sg_jinja_node *v = n->b;
    for (const struct sg_jinja_node *t = n->a; t; t = t->next, v = v->next) {
        struct sg_val value;
        SG_TRY(sg_eval_expr(st, f, v, &value));
        SG_TRY(sg_target_assign(st, inner, t, value));
    }
    st->roots = &root;
    segue_status s = run_statements(st, inner, n->c, jump);
    st->roots = root.next;
    sg_frame_clear(inner);
    return s;
}

/* The first branch whose condition is true; IF nodes of elif are in the list n->c. */
static segue_status run_if(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n, int *jump)
{
    struct sg_val v;
    SG_TRY(sg_eval_expr(st, f, n->a, &v));
    if (sg_val_true(v)) return run_statements(st, f, n->b, jump);
    for (const struct sg_jinja_node *i = n->c; i; i = i->next) {
        SG_TRY(sg_eval_expr(st, f, i->a, &v));
        if (sg_val_true(v)) return run_statements(st, f, i->b, jump);
    }
    return run_statements(st, f, n->d, jump);
}

/* One statement. An expression in a list of statements is printed. */
static segue_status run_statement(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n, int *jump)
{
    struct sg_val v;
    st->line = n->line;
    switch (n->kind) {
    case SG_N_DATA: return sg_emit(st, n->s, n->n);
    case SG_N_IF: return run_if(st, f, n, jump);
    case SG_N_FOR: SG_TRY(sg_eval_expr(st, f, n->b, &v)); return run_for(st, f, n, v, 0, jump);
    case SG_N_SET:
        SG_TRY(sg_target_check_namespaces(st, f, n->a));
        SG_TRY(sg_eval_expr(st, f, n->b, &v));
        return sg_target_assign(st, f, n->a, v);
    case SG_N_SETBLOCK:
        SG_TRY(run_capture_block(st, f, n, &v, jump));
        return *jump ? SEGUE_OK : sg_target_assign(st, f, n->a, v);
    case SG_N_FILTERBLOCK:
        SG_TRY(run_capture_block(st, f, n, &v, jump));
        return *jump ? SEGUE_OK : sg_emit_value(st, v);
    case SG_N_MACRO:
        SG_TRY(sg_macro_make(st, f, n, &v));
        f->slots[n->slot] = v;
        return SEGUE_OK;
    case SG_N_CALLBLOCK: return run_call_block(st, f, n);
    case SG_N_GENERATION: return run_generation(st, f, n);
    case SG_N_WITH: return run_with(st, f, n, jump);
    case SG_N_BREAK:
    case SG_N_CONTINUE: *jump = n->kind; return SEGUE_OK;
    default: SG_TRY(sg_eval_expr(st, f, n, &v)); return sg_emit_value(st, v);
    }
}

/* A list of statements, up to the first jump. The only place that starts a garbage collection: between statements no
 * value is in use that roots, frames and variables do not reach. */
static segue_status run_statements(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *list, int *jump)
{
    if (!list) return SEGUE_OK;
    SG_TRY(sg_jinja_enter(st));
    for (; list && !*jump; list = list->next) {
        SG_TRY(sg_jinja_step(st, 1));
        /* no_sweep: an expression further up holds values on the C stack */
        if (st->live > st->sweep_at && !st->no_sweep) sg_val_sweep(st, f);
        SG_TRY(run_statement(st, f, list, jump));
    }
    st->level--;
    return SEGUE_OK;
}

/* The template's top level. break and continue cannot occur outside of loops, the parser refuses them. */
segue_status sg_run_body(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *body)
{
    int jump = 0;
    return run_statements(st, f, body, &jump);
}
