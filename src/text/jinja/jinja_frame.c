/* jinja_frame.c: variables and output. A frame holds the slots of one running scope; assignment targets store into
 * slots or into namespaces. Output goes to st->out, which a capture redirects into a buffer.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/jinja.h"
#include "text/jinja/value/jinja_text.h"

/* A frame whose slots are all MISSING. scope must match the one that sg_frame_enter gets. */
segue_status sg_frame_make(struct sg_jinja *st, const struct sg_jinja_scope *scope, struct sg_jinja_frame *parent,
                           struct sg_jinja_frame **out)
{
    SG_TRY(sg_val_new(st, SG_V_FRAME, sizeof **out + scope->n * sizeof(struct sg_val), out));
    (*out)->parent = parent;
    (*out)->n = scope->n;
    return SEGUE_OK;
}

/* Fill the slots by the recipe of jinja_bind.c. A slot without a value in any place stays MISSING. */
segue_status sg_frame_enter(struct sg_jinja *st, const struct sg_jinja_scope *scope, struct sg_jinja_frame *f)
{
    /* large frames count as work: a loop enters its frame for each item */
    SG_TRY(sg_jinja_step(st, scope->n / 8 + 1));
    for (uint32_t i = 0; i < scope->n; i++) {
        const struct sg_slot_init *l = &scope->loads[i];
        if (l->kind == SG_INIT_PARAM) continue;
        f->slots[i] = (struct sg_val){0};
        if (l->kind == SG_INIT_OUTER) {
            const struct sg_jinja_frame *from = f->parent;
            for (unsigned h = l->hops; h; h--) from = from->parent;
            f->slots[i] = from->slots[l->slot];
        } else if (l->kind == SG_INIT_LOOKUP) {
            const struct sg_jinja_name *name = &st->t->names[l->name];
            /* variables of the caller shadow global functions */
            const struct sg_val *v = sg_dict_name(st->vars, name->s, name->n);
            const struct sg_builtin *g = v ? NULL : st->env->global(name->s, name->n);
            if (v)
                f->slots[i] = *v;
            else if (g)
                f->slots[i] = (struct sg_val){.kind = SG_V_FUNC, .u.func = g};
        }
    }
    return SEGUE_OK;
}

/* A macro may keep the frame alive after its scope has ended; the values in it must not stay alive too. */
void sg_frame_clear(struct sg_jinja_frame *f)
{
    for (size_t i = 0; i < f->n; i++) f->slots[i] = (struct sg_val){0};
}

/* The slot of a NAME or NSREF. */
static struct sg_val *slot_of(struct sg_jinja_frame *f, const struct sg_jinja_node *n)
{
    for (unsigned h = n->hops; h; h--) f = f->parent;
    return &f->slots[n->slot];
}

/* v is unpacked into a TUPLE target by iterating it; the number of items must match. */
segue_status sg_target_assign(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *t, struct sg_val v)
{
    if (t->kind == SG_N_NAME) return *slot_of(f, t) = v, SEGUE_OK;
    if (t->kind == SG_N_NSREF) {
        struct sg_val *at = slot_of(f, t);
        if (at->kind != SG_V_NAMESPACE) return sg_jinja_fail(st, "an attribute can only be set on a namespace");
        if (t->n && t->s[0] == '_')
            return sg_jinja_fail(st, "namespace: a name must not begin with '_'");
        return sg_dict_set_name(st, sg_v_dict(*at), t->s, t->n, v);
    }
    /* a TUPLE; targets may be nested, so each level is counted */
    struct sg_val_iter it;
    struct sg_val item;
    int got;
    SG_TRY(sg_jinja_enter(st));
    SG_TRY(sg_iter_open(st, v, &it));
    for (const struct sg_jinja_node *i = t->a; i; i = i->next) {
        SG_TRY(sg_iter_next(st, &it, &item, &got));
        if (!got) return sg_jinja_fail(st, "too few values to unpack");
        SG_TRY(sg_target_assign(st, f, i, item));
    }
    SG_TRY(sg_iter_next(st, &it, &item, &got));
    if (got) return sg_jinja_fail(st, "too many values to unpack");
    st->level--;
    return SEGUE_OK;
}

/* jinja2 checks all namespaces of a target before it evaluates the value, so the same error comes first here. */
segue_status sg_target_check_namespaces(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *t)
{
    if (t->kind == SG_N_NSREF && slot_of(f, t)->kind != SG_V_NAMESPACE)
        return sg_jinja_fail(st, "an attribute can only be set on a namespace");
    if (t->kind == SG_N_TUPLE)
        for (const struct sg_jinja_node *i = t->a; i; i = i->next) SG_TRY(sg_target_check_namespaces(st, f, i));
    return SEGUE_OK;
}

/* The value of a target after an assignment. A loop with a condition passes this on to its body; a TUPLE target
 * gives a tuple, whatever type was unpacked. */
segue_status sg_target_value(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *t,
                                 struct sg_val *out)
{
    struct sg_list *l = NULL;
    if (t->kind == SG_N_NAME) return *out = *slot_of(f, t), SEGUE_OK;
    SG_TRY(sg_list_make(st, SG_V_TUPLE, 0, &l));
    for (const struct sg_jinja_node *i = t->a; i; i = i->next) {
        struct sg_val v;
        SG_TRY(sg_target_value(st, f, i, &v));
        SG_TRY(sg_list_add(st, l, v));
    }
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

/* Redirect output into c until sg_capture_end. */
void sg_capture_begin(struct sg_jinja *st, struct sg_capture *c)
{
    st->captures++;
    c->buf = sg_val_buf(st);
    c->outer = st->out;
    st->out = &c->buf;
}

/* The buffer is freed in any case. *out is set only if s is OK and the string could be made. */
segue_status sg_capture_end(struct sg_jinja *st, struct sg_capture *c, segue_status s, struct sg_val *out)
{
    st->captures--;
    st->out = c->outer;
    /* from here on the text counts as a heap value */
    st->capture_bytes -= c->buf.len;
    return sg_str_from_buf(st, s, &c->buf, out);
}

/* Append n bytes to the output. Captured bytes are counted, since a capture is memory that no value owns yet. */
segue_status sg_emit(struct sg_jinja *st, const char *s, size_t n)
{
    SG_TRY(sg_put(st, st->out, s, n));
    if (st->captures) st->capture_bytes += n;
    return SEGUE_OK;
}

/* Append str(v). A string needs no copy. */
segue_status sg_emit_value(struct sg_jinja *st, struct sg_val v)
{
    if (v.kind == SG_V_STR) return sg_emit(st, sg_v_str(v)->s, sg_v_str(v)->n);
    size_t was = st->out->len;
    SG_TRY(sg_put_str(st, st->out, v));
    if (st->captures) st->capture_bytes += st->out->len - was;
    return SEGUE_OK;
}
