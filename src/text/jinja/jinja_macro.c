/* jinja_macro.c: macros as values, and how the arguments of a call reach the parameter slots. The body runs in
 * jinja_run.c.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/jinja.h"
#include "text/jinja/value/jinja_text.h"

/* Positional arguments fill the parameters from the left, keywords the others; a parameter without argument stays
 * MISSING and gets its default later. The slots after the parameters are caller, kwargs and varargs, as far as the
 * body reads them (bind_macro of jinja_bind.c). EFORMAT for arguments that have no place to go. */
segue_status sg_macro_bind(struct sg_jinja *st, const struct sg_jinja_node *n, const struct sg_call_args *args,
                               struct sg_jinja_frame *f)
{
    size_t at = 0, used = 0, count = 0;
    struct sg_dict *rest = NULL;
    SG_TRY(sg_dict_make(st, SG_V_DICT, &rest));
    for (const struct sg_jinja_node *a = n->a; a; a = a->next) {
        count++;
        if (at < args->pos_n) {
            f->slots[a->slot] = args->pos[at++];
            continue;
        }
        const struct sg_val *v = args->named ? sg_dict_name(args->named, a->s, a->n) : NULL;
        if (v) f->slots[a->slot] = *v;
        used += v != NULL;
    }
    /* used: keywords that a parameter or `caller` has consumed */
    uint32_t slot = (uint32_t)count;
    const struct sg_val *caller = args->named ? sg_dict_name(args->named, "caller", 6) : NULL;
    int implicit_caller = (n->flags & SG_MACRO_CALLER) && !(n->flags & SG_MACRO_EXPLICIT);
    if (implicit_caller) {
        if (caller && caller->kind != SG_V_NONE) f->slots[slot] = *caller;
        used += caller != NULL;
        slot++;
    }
    size_t given = args->named ? args->named->n : 0;
    if (n->flags & SG_MACRO_KWARGS) {
        for (size_t i = 0; i < given; i++) {
            const struct sg_dict_pair *p = &args->named->pairs[i];
            int taken = implicit_caller && sg_v_is(p->key, "caller", 6);
            /* parameter k took a keyword only if no positional argument filled it (k >= at) */
            size_t k = 0;
            for (const struct sg_jinja_node *a = n->a; a && !taken; a = a->next, k++)
                taken = k >= at && sg_v_is(p->key, a->s, a->n);
            if (!taken) SG_TRY(sg_dict_set(st, rest, p->key, p->value));
        }
        f->slots[slot++] = sg_v_of(&rest->o);
    } else if (used < given) {
        return sg_jinja_fail(st, "macro '%.*s' got a keyword argument that it does not declare",
                             (int)(n->n > 60 ? 60 : n->n), n->s ? n->s : "");
    }
    if (n->flags & SG_MACRO_VARARGS) {
        /* the tuple was sized for all remaining arguments, so that filling it cannot fail */
        struct sg_list *more = NULL;
        SG_TRY(sg_list_make(st, SG_V_TUPLE, args->pos_n - at, &more));
        for (; at < args->pos_n; at++) more->items[more->n++] = args->pos[at];
        f->slots[slot] = sg_v_of(&more->o);
    } else if (at < args->pos_n) {
        return sg_jinja_fail(st, "macro '%.*s' takes at most %zu positional arguments, got %zu",
                             (int)(n->n > 60 ? 60 : n->n), n->s ? n->s : "", count, args->pos_n);
    }
    return SEGUE_OK;
}

/* A macro value for node n. f: frame of the definition, whose variables the body reads. */
segue_status sg_macro_make(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                               struct sg_val *out)
{
    struct sg_jinja_macro *m = NULL;
    SG_TRY(sg_val_new(st, SG_V_MACRO, sizeof *m, &m));
    m->node = n;
    m->frame = f;
    *out = sg_v_of(&m->o);
    return SEGUE_OK;
}
