/* jinja_bind.c: gives each name of a parsed template a slot in a frame, by the rules of jinja2. Each scope is handled
 * in two passes: collect_* finds the names that the scope uses or assigns and declares their slots, bind_* then writes
 * hops and slot into the nodes and opens the inner scopes. Result: struct sg_jinja_scope, the recipe that fills a
 * frame's slots.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/parse/jinja_parse.h"

/* A slot of a scope that is being built; scope NULL = the name has no meaning yet. */
struct slot_ref {
    struct scope_builder *scope;
    uint32_t slot;
};

/* One slot of a scope. kind: SG_INIT_*. */
struct scope_entry {
    uint32_t name, slot;
    uint8_t kind;
    struct slot_ref outer; /* meaning of the name around this scope, restored when the scope ends */
};

/* A scope that is being built; on the C stack, linked to the scope around it. level: scopes around it. */
struct scope_builder {
    struct scope_builder *parent;
    struct sg_jinja_scope *scope;
    struct scope_entry *entries;
    uint32_t n, cap, level;
    struct sg_jinja_parser *p;
    struct slot_ref *current; /* [names_n], shared by all builders: the present meaning of each name */
};

static segue_status collect_list(struct scope_builder *b, const struct sg_jinja_node *list, int in_if);
static segue_status bind_list(struct scope_builder *b, struct sg_jinja_node *list, int soft);
static segue_status bind_node(struct scope_builder *b, struct sg_jinja_node *n, int soft);

/* Add a slot for a name, which shadows its meaning outside until scope_end. kind: SG_INIT_*. */
static segue_status define(struct scope_builder *b, uint32_t name, int kind)
{
    if (b->n == b->cap) {
        uint32_t cap = b->cap ? b->cap * 2 : 8;
        struct scope_entry *grown = sg_arena_alloc(&b->p->t->arena, cap * sizeof *grown);
        if (!grown) return sg_no_memory("template scope", cap * sizeof *grown, b->p->err);
        if (b->n) memcpy(grown, b->entries, b->n * sizeof *grown);
        b->entries = grown;
        b->cap = cap;
    }
    b->entries[b->n] =
        (struct scope_entry){.name = name, .slot = b->n, .kind = (uint8_t)kind, .outer = b->current[name]};
    b->current[name] = (struct slot_ref){b, b->n};
    b->n++;
    return SEGUE_OK;
}

/* A slot that the caller of the scope fills. A slot that the name already has becomes one. */
static segue_status declare_param(struct scope_builder *b, uint32_t name)
{
    if (b->current[name].scope == b) {
        b->entries[b->current[name].slot].kind = SG_INIT_PARAM;
        return SEGUE_OK;
    }
    return define(b, name, SG_INIT_PARAM);
}

/* Declares a name that is read. A name that no scope defines gets a slot in this scope, filled from the template's variables at
 * the first use. */
static segue_status declare_load(struct scope_builder *b, uint32_t name)
{
    return b->current[name].scope ? SEGUE_OK : define(b, name, SG_INIT_LOOKUP);
}

/* A name that is assigned. The slot starts as a copy of the outer variable, if any. in_if: the assignment may not
 * run, so the variable of that name must stay readable. */
static segue_status declare_store(struct scope_builder *b, uint32_t name, int in_if)
{
    if (b->current[name].scope == b) return SEGUE_OK;
    /* a variable of an enclosing scope is visible until it is assigned */
    int outer = b->current[name].scope != NULL;
    return define(b, name, outer ? SG_INIT_OUTER : in_if ? SG_INIT_LOOKUP : SG_INIT_UNDEFINED);
}

/* Declare the names that node n uses in this scope, in the order in which jinja2 visits them. Bodies that open their
 * own scope are skipped here; bind_node handles them. */
static segue_status collect(struct scope_builder *b, const struct sg_jinja_node *n, int in_if)
{
    SG_TRY(sg_parser_check_stack(b->p, n->line));
    switch (n->kind) {
    case SG_N_CONST:
    case SG_N_DATA:
    case SG_N_BREAK:
    case SG_N_CONTINUE:
    case SG_N_GENERATION: return SEGUE_OK;
    case SG_N_NAME: return declare_load(b, n->name);
    case SG_N_NSREF: return declare_load(b, n->name);
    /* the iterable belongs to this scope, target and body to the loop's */
    case SG_N_FOR: return collect(b, n->b, in_if);
    case SG_N_MACRO: return declare_store(b, n->name, in_if);
    case SG_N_CALLBLOCK:
    case SG_N_FILTERBLOCK: return collect(b, n->b, in_if);
    case SG_N_WITH: return collect_list(b, n->b, in_if);
    /* assignments in branches may not run */
    case SG_N_IF:
        SG_TRY(collect(b, n->a, in_if));
        SG_TRY(collect_list(b, n->b, 1));
        SG_TRY(collect_list(b, n->c, 1));
        return collect_list(b, n->d, 1);
    default: break; /* also COND, whose fields a, b, c are in jinja2's order: test, then, else */
    }
    SG_TRY(collect_list(b, n->a, in_if));
    SG_TRY(collect_list(b, n->b, in_if));
    SG_TRY(collect_list(b, n->c, in_if));
    return SEGUE_OK;
}

/* Declare the names of an assignment target. */
static segue_status collect_target(struct scope_builder *b, const struct sg_jinja_node *t, int in_if)
{
    if (t->kind == SG_N_TUPLE) {
        for (const struct sg_jinja_node *i = t->a; i; i = i->next) SG_TRY(collect_target(b, i, in_if));
        return SEGUE_OK;
    }
    if (t->kind == SG_N_NSREF) return declare_load(b, t->name);
    return t->param ? declare_param(b, t->name) : declare_store(b, t->name, in_if);
}

/* Nodes of a list in order. A value is visited before its target, since it is evaluated first. */
static segue_status collect_list(struct scope_builder *b, const struct sg_jinja_node *list, int in_if)
{
    for (; list; list = list->next) {
        if (list->kind == SG_N_SET) {
            SG_TRY(collect(b, list->b, in_if));
            SG_TRY(collect_target(b, list->a, in_if));
        } else if (list->kind == SG_N_SETBLOCK) {
            SG_TRY(collect_target(b, list->a, in_if));
        } else {
            SG_TRY(collect(b, list, in_if));
        }
    }
    return SEGUE_OK;
}

/* Start a scope inside of parent. b is initialized here. */
static segue_status scope_begin(struct scope_builder *b, struct scope_builder *parent)
{
    *b = (struct scope_builder){.parent = parent, .p = parent->p, .current = parent->current, .level = parent->level + 1};
    b->scope = sg_arena_alloc(&b->p->t->arena, sizeof *b->scope);
    return b->scope ? SEGUE_OK : sg_no_memory("template scope", sizeof *b->scope, b->p->err);
}

/* Store the slot recipe in the scope and restore the outer meaning of its names. */
static segue_status scope_end(struct scope_builder *b)
{
    struct sg_slot_init *loads = sg_arena_alloc(&b->p->t->arena, b->n * sizeof *loads);
    if (!loads) return sg_no_memory("template scope", b->n * sizeof *loads, b->p->err);
    b->scope->loads = loads;
    b->scope->n = b->n;
    /* in reverse: a name that was defined twice gets its first outer meaning back */
    for (uint32_t i = b->n; i-- > 0;) {
        const struct scope_entry *e = &b->entries[i];
        loads[i] = (struct sg_slot_init){.kind = e->kind, .name = e->name};
        if (e->kind == SG_INIT_OUTER) {
            /* frames are counted from the parent, since the frame itself is being filled */
            loads[i].hops = (uint16_t)(b->level - 1 - e->outer.scope->level);
            loads[i].slot = e->outer.slot;
        }
        b->current[e->name] = e->outer;
    }
    return SEGUE_OK;
}

/* Write the position of the name's slot into the node. */
static segue_status bind_name(struct scope_builder *b, struct sg_jinja_node *n)
{
    struct slot_ref at = b->current[n->name];
    if (!at.scope) { /* a target that the first pass did not visit: a variable of this scope */
        SG_TRY(define(b, n->name, SG_INIT_UNDEFINED));
        at = b->current[n->name];
    }
    n->hops = (uint16_t)(b->level - at.scope->level);
    n->slot = at.slot;
    return SEGUE_OK;
}

/* 1: a node of list, at any depth, reads the name. Used for caller, kwargs and varargs. */
static int mentions(const struct sg_jinja_node *list, const char *name)
{
    for (; list; list = list->next) {
        if (list->kind == SG_N_NAME && !list->param && list->n == strlen(name) &&
            !memcmp(list->s, name, list->n))
            return 1;
        const struct sg_jinja_node *const children[] = {list->a, list->b, list->c, list->d, list->e};
        for (size_t i = 0; i < 5; i++)
            if (children[i] && mentions(children[i], name)) return 1;
    }
    return 0;
}

/* Up to three scopes: the body, the condition `if` of the loop, and the else part. Slot 0 of the first two is
 * `loop`. */
static segue_status bind_for(struct scope_builder *outer, struct sg_jinja_node *n)
{
    struct scope_builder b;
    uint32_t loop;
    SG_TRY(sg_parser_name_id(outer->p, "loop", 4, &loop));
    SG_TRY(bind_node(outer, n->b, 0));
    SG_TRY(scope_begin(&b, outer));
    SG_TRY(declare_param(&b, loop));
    SG_TRY(collect_target(&b, n->a, 0));
    SG_TRY(collect_list(&b, n->c, 0));
    SG_TRY(bind_list(&b, n->a, 0));
    SG_TRY(bind_list(&b, n->c, 0));
    SG_TRY(scope_end(&b));
    n->u.scopes[0] = b.scope;
    if (n->e) {
        /* the target is declared right after slot 0 in both scopes, so that its slots are the same in both frames */
        SG_TRY(scope_begin(&b, outer));
        SG_TRY(define(&b, loop, SG_INIT_PARAM));
        b.current[loop] = b.entries[0].outer; /* in the condition, `loop` is the outer loop's */
        SG_TRY(collect_target(&b, n->a, 0));
        SG_TRY(collect_list(&b, n->e, 0));
        SG_TRY(bind_list(&b, n->e, 0));
        SG_TRY(scope_end(&b));
        n->u.scopes[1] = b.scope;
    }
    if (n->d) {
        SG_TRY(scope_begin(&b, outer));
        SG_TRY(collect_list(&b, n->d, 0));
        SG_TRY(bind_list(&b, n->d, 0));
        SG_TRY(scope_end(&b));
        n->scope_else = b.scope;
    }
    return SEGUE_OK;
}

/* Bind the body of a macro, call block or generation block. Slots of its frame: the parameters in order, then
 * caller, kwargs and varargs, each only if the body reads it; sg_macro_bind relies on that order. */
static segue_status bind_macro(struct scope_builder *outer, struct sg_jinja_node *n)
{
    static const char *const special[] = {"caller", "kwargs", "varargs"};
    static const uint8_t flags[] = {SG_MACRO_CALLER, SG_MACRO_KWARGS, SG_MACRO_VARARGS};
    struct scope_builder b;
    SG_TRY(scope_begin(&b, outer));
    /* two parameters of one name would share a slot */
    for (struct sg_jinja_node *a = n->a; a; a = a->next) {
        if (b.current[a->name].scope == &b) return sg_parser_fail(b.p, a->line, "two parameters have one name");
        SG_TRY(declare_param(&b, a->name));
    }
    /* slots in the fixed order of `special` */
    for (size_t i = 0; i < 3; i++) {
        uint32_t id;
        SG_TRY(sg_parser_name_id(b.p, special[i], strlen(special[i]), &id));
        /* a parameter of that name takes the place of the special variable */
        int explicit_one = b.current[id].scope == &b, used = mentions(n->c, special[i]);
        if (explicit_one && i == 0) n->flags |= SG_MACRO_EXPLICIT;
        if (!used) continue;
        if (!explicit_one) SG_TRY(declare_param(&b, id));
        if (!explicit_one || i == 0) n->flags |= flags[i];
    }
    for (struct sg_jinja_node *a = n->a; a; a = a->next)
        if (a->a) SG_TRY(collect(&b, a->a, 0));
    SG_TRY(collect_list(&b, n->c, 0));
    for (struct sg_jinja_node *a = n->a; a; a = a->next) {
        SG_TRY(bind_name(&b, a));
        if (a->a) SG_TRY(bind_node(&b, a->a, 0));
    }
    SG_TRY(bind_list(&b, n->c, 0));
    SG_TRY(scope_end(&b));
    n->u.scopes[0] = b.scope;
    return SEGUE_OK;
}

/* Bind a set block, filter block or with statement, which have one scope. Values of with and targets of a set block
 * belong to the scope around it; filters see the variables of the body. */
static segue_status bind_scoped(struct scope_builder *outer, struct sg_jinja_node *n)
{
    struct scope_builder b;
    /* values of `with` are read in the outer scope */
    if (n->kind == SG_N_WITH)
        for (struct sg_jinja_node *v = n->b; v; v = v->next) SG_TRY(bind_node(outer, v, 0));
    if (n->kind == SG_N_SETBLOCK) SG_TRY(bind_list(outer, n->a, 0));
    SG_TRY(scope_begin(&b, outer));
    if (n->kind == SG_N_WITH)
        for (struct sg_jinja_node *t = n->a; t; t = t->next) SG_TRY(collect_target(&b, t, 0));
    if (n->kind != SG_N_WITH && n->b && n->kind == SG_N_FILTERBLOCK) SG_TRY(collect(&b, n->b, 0));
    SG_TRY(collect_list(&b, n->c, 0));
    if (n->kind == SG_N_SETBLOCK && n->b) SG_TRY(collect(&b, n->b, 0));
    if (n->kind == SG_N_WITH)
        SG_TRY(bind_list(&b, n->a, 0));
    else if (n->b)
        SG_TRY(bind_node(&b, n->b, 0));
    SG_TRY(bind_list(&b, n->c, 0));
    SG_TRY(scope_end(&b));
    n->u.scopes[0] = b.scope;
    return SEGUE_OK;
}

/* A filter or test with its operands. An unknown name is an error at once, except inside of `if` (soft), where
 * jinja2 raises it only when the filter runs: templates test for support that way. */
static segue_status bind_func(struct scope_builder *b, struct sg_jinja_node *n, int soft)
{
    if (!n->u.func && !soft)
        return sg_parser_fail(b->p, n->line, "there is no %s named '%.*s'",
                              n->kind == SG_N_TEST ? "test" : "filter", (int)(n->n > 40 ? 40 : n->n), n->s);
    SG_TRY(bind_list(b, n->a, soft));
    return bind_list(b, n->b, soft);
}

/* Bind the names in n and open the scopes of its bodies. soft: see bind_func. */
static segue_status bind_node(struct scope_builder *b, struct sg_jinja_node *n, int soft)
{
    SG_TRY(sg_parser_check_stack(b->p, n->line));
    switch (n->kind) {
    case SG_N_CONST:
    case SG_N_DATA:
    case SG_N_BREAK:
    case SG_N_CONTINUE: return SEGUE_OK;
    case SG_N_NAME:
    case SG_N_NSREF: return bind_name(b, n);
    case SG_N_FOR: return bind_for(b, n);
    case SG_N_MACRO: SG_TRY(bind_name(b, n)); return bind_macro(b, n);
    case SG_N_CALLBLOCK: SG_TRY(bind_node(b, n->b, soft)); return bind_macro(b, n);
    case SG_N_GENERATION: return bind_macro(b, n);
    case SG_N_SETBLOCK:
    case SG_N_FILTERBLOCK:
    case SG_N_WITH: return bind_scoped(b, n);
    case SG_N_FILTER:
    case SG_N_TEST: return bind_func(b, n, soft);
    /* filters in conditions and branches are checked only when they run */
    case SG_N_IF:
    case SG_N_COND: soft = 1; break;
    default: break;
    }
    SG_TRY(bind_list(b, n->a, soft));
    SG_TRY(bind_list(b, n->b, soft));
    SG_TRY(bind_list(b, n->c, soft));
    return bind_list(b, n->d, soft);
}

/* Bind the nodes of a list in order. */
static segue_status bind_list(struct scope_builder *b, struct sg_jinja_node *list, int soft)
{
    for (; list; list = list->next) SG_TRY(bind_node(b, list, soft));
    return SEGUE_OK;
}

/* Bind the whole template, after which no node changes any more. */
segue_status sg_bind_names(struct sg_jinja_parser *p)
{
    struct sg_template *t = p->t;
    uint32_t id;
    /* these must be numbered before `current` is allocated, which has one entry per name */
    static const char *const special[] = {"loop", "caller", "kwargs", "varargs"};
    for (size_t i = 0; i < 4; i++) SG_TRY(sg_parser_name_id(p, special[i], strlen(special[i]), &id));
    struct slot_ref *current = sg_arena_alloc(&t->arena, t->names_n * sizeof *current);
    struct sg_jinja_scope *scope = sg_arena_alloc(&t->arena, sizeof *scope);
    if (!current || !scope) return sg_no_memory("template scopes", t->names_n * sizeof *current, p->err);
    struct scope_builder b = {.p = p, .current = current, .scope = scope};
    SG_TRY(collect_list(&b, t->body, 0));
    SG_TRY(bind_list(&b, t->body, 0));
    SG_TRY(scope_end(&b));
    t->scope = scope;
    return SEGUE_OK;
}
