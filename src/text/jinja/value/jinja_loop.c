/* jinja_loop.c: attributes and methods of the variable `loop` of a running `for`.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_value.h"

/* loop.cycle(a, b, ...): the argument at the current index modulo their number. */
static segue_status loop_cycle(struct sg_jinja *st, const struct sg_builtin *f, struct sg_val self,
                               struct sg_val *in, const struct sg_call_args *args, struct sg_val *out)
{
    (void)f;
    (void)in;
    if (!args->pos_n || args->named) return sg_jinja_fail(st, "loop.cycle: expected at least one positional value");
    *out = args->pos[(size_t)sg_v_loop(self)->index0 % args->pos_n];
    return SEGUE_OK;
}

/* loop.changed(x, ...): true if the arguments differ from those of the last call in this loop; true for the
 * first call. */
static segue_status loop_changed(struct sg_jinja *st, const struct sg_builtin *f, struct sg_val self,
                                 struct sg_val *in, const struct sg_call_args *args, struct sg_val *out)
{
    struct sg_list *now = NULL;
    struct sg_jinja_loop *l = sg_v_loop(self);
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

/* Attributes in the order of names[]. last and nextitem fetch one item ahead; length, revindex and
 * revindex0 may fetch all (sg_loop_length). previtem and nextitem are undefined at the ends. */
segue_status sg_loop_attr(struct sg_jinja *st, struct sg_jinja_loop *l, const char *s, size_t n, struct sg_val *out)
{
    static const struct sg_builtin cycle = {"cycle", loop_cycle, NULL, 0, 0},
                                changed = {"changed", loop_changed, NULL, 0, 0};
    static const char *const names[] = {"index",    "index0",    "first",    "last",     "length",
                                        "revindex", "revindex0", "previtem", "nextitem", "depth",
                                        "depth0",   "cycle",     "changed"};
    size_t i = 0;
    while (i < 13 && (strlen(names[i]) != n || memcmp(names[i], s, n) != 0)) i++;
    *out = (struct sg_val){0};
    /* Errors of fetching, such as a failing loop condition, are errors of the attribute. */
    if (i >= 4 && i <= 6) SG_TRY(sg_loop_length(st, l));
    if (i == 3 || i == 8) SG_TRY(sg_loop_peek(st, l));
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
    case 11: return sg_method_make(st, sg_v_of(&l->o), &cycle, out);
    case 12: return sg_method_make(st, sg_v_of(&l->o), &changed, out);
    default: break;
    }
    return SEGUE_OK;
}
