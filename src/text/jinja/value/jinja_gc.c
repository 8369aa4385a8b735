/* jinja_gc.c: garbage collection of the values of one rendering: mark and sweep. It runs between outermost
 * statements only, when st->live exceeds st->sweep_at. So a template that builds a text step by step needs
 * memory for the text and not for every intermediate string.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_value.h"

/* Mark an object and put it on the work list. Constants of the template (fixed) are shared by threads and
 * are not marked. */
static void mark_obj(struct sg_jinja_obj **gray, struct sg_jinja_obj *o)
{
    if (!o || o->fixed || o->mark) return;
    o->mark = 1;
    o->gray = *gray;
    *gray = o;
}

/* Mark what a value refers to. SG_V_FUNC points to a static table, not to an object. */
static void mark_val(struct sg_jinja_obj **gray, struct sg_val v)
{
    if (v.kind >= SG_V_STR && v.kind != SG_V_FUNC) mark_obj(gray, v.u.o);
}

/* A running loop refers to its iterable, the items around the current one, and the frames in which its
 * condition and body run. */
static void mark_loop(struct sg_jinja_obj **gray, const struct sg_jinja_loop *l)
{
    const struct sg_val vals[] = {l->it.v, l->current, l->before, l->after, l->changed};
    for (size_t i = 0; i < 5; i++) mark_val(gray, vals[i]);
    mark_obj(gray, (struct sg_jinja_obj *)l->outer);
    mark_obj(gray, (struct sg_jinja_obj *)l->test_frame);
    mark_obj(gray, (struct sg_jinja_obj *)l->lookahead);
}

/* Mark everything that o refers to directly. */
static void mark_inside(struct sg_jinja_obj **gray, struct sg_jinja_obj *o)
{
    void *self = o;
    struct sg_list *list = self;
    struct sg_dict *dict = self;
    struct sg_jinja_frame *frame = self;
    switch (o->kind) {
    case SG_V_STR: mark_obj(gray, ((struct sg_str *)self)->parent); break;
    case SG_V_LIST:
    case SG_V_TUPLE:
        for (size_t i = 0; i < list->n; i++) mark_val(gray, list->items[i]);
        break;
    case SG_V_DICT:
    case SG_V_NAMESPACE:
        for (size_t i = 0; i < dict->n; i++) {
            mark_val(gray, dict->pairs[i].key);
            mark_val(gray, dict->pairs[i].value);
        }
        break;
    case SG_V_ITER:
    case SG_V_CYCLER:
    case SG_V_JOINER: mark_obj(gray, &((struct sg_val_seq *)self)->list->o); break;
    case SG_V_VIEW: mark_obj(gray, &((struct sg_dict_view *)self)->dict->o); break;
    case SG_V_METHOD: mark_val(gray, ((struct sg_bound_method *)self)->self); break;
    case SG_V_MACRO: mark_obj(gray, &((struct sg_jinja_macro *)self)->frame->o); break;
    case SG_V_LOOP: mark_loop(gray, self); break;
    case SG_V_FRAME:
        mark_obj(gray, (struct sg_jinja_obj *)frame->parent);
        for (size_t i = 0; i < frame->n; i++) mark_val(gray, frame->slots[i]);
        break;
    default: break;
    }
}

void sg_val_sweep(struct sg_jinja *st, struct sg_jinja_frame *f)
{
    struct sg_jinja_obj *gray = NULL, **at = &st->objs;
    /* Roots: the frame that runs (its parents through mark_inside), the caller's variables, and the frames
     * and loops registered in st->roots. Values that only the C stack refers to are not roots; the caller
     * must not sweep inside an expression (st->no_sweep). */
    mark_obj(&gray, &f->o);
    mark_obj(&gray, (struct sg_jinja_obj *)st->vars);
    for (struct sg_gc_root *r = st->roots; r; r = r->next) mark_obj(&gray, r->o);
    /* An explicit work list: nesting of values does not use the C stack. */
    while (gray) {
        struct sg_jinja_obj *o = gray;
        gray = o->gray;
        mark_inside(&gray, o);
    }
    while (*at) {
        struct sg_jinja_obj *o = *at;
        if (o->mark) {
            o->mark = 0;
            at = &o->next;
        } else {
            *at = o->next;
            st->live -= o->size;
            sg_val_free(o);
        }
    }
    /* The next collection follows when the live bytes have doubled, and not before 4 MB more: the total
     * cost stays linear in the bytes allocated. */
    st->sweep_at = st->live * 2 + (4 << 20);
}
