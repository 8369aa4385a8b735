/* jinja_bind.c: which name means which slot. jinja2 decides that when it compiles, and the rules show: a name stored
 * anywhere in a scope belongs to it, and starts as the outer one's value, as the caller's variable, or as nothing,
 * depending on whether its first mention is a plain store. One pass collects the names of a scope, a second one binds
 * its nodes and descends. Must agree with jinja2's idtracking, quirks included.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/jinja.h"

struct bound {
    struct binding *scope;
    uint32_t slot;
};

struct entry {
    uint32_t name, slot;
    uint8_t kind;
    struct bound outer; /* what the name meant outside; scope NULL = nothing */
};

struct binding {
    struct binding *parent;
    struct sg_scope *scope;
    struct entry *entries;
    uint32_t n, cap, level;
    struct sg_parser *p;
    struct bound *now; /* [names]: what each name means here */
};

static segue_status visit_list(struct binding *b, const struct sg_node *list, int in_if);
static segue_status bind_list(struct binding *b, struct sg_node *list, int soft);
static segue_status bind_node(struct binding *b, struct sg_node *n, int soft);

static segue_status define(struct binding *b, uint32_t name, int kind)
{
    if (b->n == b->cap) {
        uint32_t cap = b->cap ? b->cap * 2 : 8;
        struct entry *grown = sg_arena_alloc(&b->p->t->arena, cap * sizeof *grown);
        if (!grown) return sg_no_memory("template scope", cap * sizeof *grown, b->p->err);
        if (b->n) memcpy(grown, b->entries, b->n * sizeof *grown);
        b->entries = grown;
        b->cap = cap;
    }
    b->entries[b->n] =
        (struct entry){.name = name, .slot = b->n, .kind = (uint8_t)kind, .outer = b->now[name]};
    b->now[name] = (struct bound){b, b->n};
    b->n++;
    return SEGUE_OK;
}

static segue_status note_param(struct binding *b, uint32_t name)
{
    if (b->now[name].scope == b) {
        b->entries[b->now[name].slot].kind = SG_LOAD_PARAM;
        return SEGUE_OK;
    }
    return define(b, name, SG_LOAD_PARAM);
}

static segue_status note_load(struct binding *b, uint32_t name)
{
    return b->now[name].scope ? SEGUE_OK : define(b, name, SG_LOAD_RESOLVE);
}

static segue_status note_store(struct binding *b, uint32_t name, int in_if)
{
    if (b->now[name].scope == b) return SEGUE_OK;
    int outer = b->now[name].scope != NULL;
    return define(b, name, outer ? SG_LOAD_ALIAS : in_if ? SG_LOAD_RESOLVE : SG_LOAD_UNDEFINED);
}

/* Names that node n mentions in this scope itself, in jinja2's order. */
static segue_status visit(struct binding *b, const struct sg_node *n, int in_if)
{
    switch (n->kind) {
    case SG_N_CONST:
    case SG_N_DATA:
    case SG_N_BREAK:
    case SG_N_CONTINUE:
    case SG_N_GENERATION: return SEGUE_OK;
    case SG_N_NAME: return note_load(b, n->name);
    case SG_N_NSREF: return note_load(b, n->name);
    case SG_N_FOR: return visit(b, n->b, in_if);
    case SG_N_MACRO: return note_store(b, n->name, in_if);
    case SG_N_CALLBLOCK:
    case SG_N_FILTERBLOCK: return visit(b, n->b, in_if);
    case SG_N_WITH: return visit_list(b, n->b, in_if);
    case SG_N_IF:
        SG_TRY(visit(b, n->a, in_if));
        SG_TRY(visit_list(b, n->b, 1));
        SG_TRY(visit_list(b, n->c, 1));
        return visit_list(b, n->d, 1);
    case SG_N_COND: /* fields in jinja2's order: test, then, else */
    default: break;
    }
    SG_TRY(visit_list(b, n->a, in_if));
    SG_TRY(visit_list(b, n->b, in_if));
    SG_TRY(visit_list(b, n->c, in_if));
    return SEGUE_OK;
}

static segue_status visit_target(struct binding *b, const struct sg_node *t, int in_if)
{
    if (t->kind == SG_N_TUPLE) {
        for (const struct sg_node *i = t->a; i; i = i->next) SG_TRY(visit_target(b, i, in_if));
        return SEGUE_OK;
    }
    if (t->kind == SG_N_NSREF) return note_load(b, t->name);
    return t->param ? note_param(b, t->name) : note_store(b, t->name, in_if);
}

static segue_status visit_list(struct binding *b, const struct sg_node *list, int in_if)
{
    for (; list; list = list->next) {
        if (list->kind == SG_N_SET) {
            SG_TRY(visit(b, list->b, in_if));
            SG_TRY(visit_target(b, list->a, in_if));
        } else if (list->kind == SG_N_SETBLOCK) {
            SG_TRY(visit_target(b, list->a, in_if));
        } else {
            SG_TRY(visit(b, list, in_if));
        }
    }
    return SEGUE_OK;
}

static segue_status begin(struct binding *b, struct binding *parent)
{
    *b = (struct binding){.parent = parent, .p = parent->p, .now = parent->now, .level = parent->level + 1};
    b->scope = sg_arena_alloc(&b->p->t->arena, sizeof *b->scope);
    return b->scope ? SEGUE_OK : sg_no_memory("template scope", sizeof *b->scope, b->p->err);
}

/* Write the scope's loads down and give the names their outer meaning back. */
static segue_status finish(struct binding *b)
{
    struct sg_load *loads = sg_arena_alloc(&b->p->t->arena, b->n * sizeof *loads);
    if (!loads) return sg_no_memory("template scope", b->n * sizeof *loads, b->p->err);
    b->scope->loads = loads;
    b->scope->n = b->n;
    for (uint32_t i = b->n; i-- > 0;) {
        const struct entry *e = &b->entries[i];
        loads[i] = (struct sg_load){.kind = e->kind, .name = e->name};
        if (e->kind == SG_LOAD_ALIAS) {
            loads[i].hops = (uint16_t)(b->level - 1 - e->outer.scope->level);
            loads[i].slot = e->outer.slot;
        }
        b->now[e->name] = e->outer;
    }
    return SEGUE_OK;
}

static segue_status bind_name(struct binding *b, struct sg_node *n)
{
    struct bound at = b->now[n->name];
    if (!at.scope) { /* only reached by targets that no pass noted; they belong here */
        SG_TRY(define(b, n->name, SG_LOAD_UNDEFINED));
        at = b->now[n->name];
    }
    n->hops = (uint16_t)(b->level - at.scope->level);
    n->slot = at.slot;
    return SEGUE_OK;
}

/* 1 when some expression of list, at any depth, reads the name. */
static int reads(const struct sg_node *list, const char *name)
{
    for (; list; list = list->next) {
        if (list->kind == SG_N_NAME && !list->param && list->n == strlen(name) &&
            !memcmp(list->s, name, list->n))
            return 1;
        const struct sg_node *const kids[] = {list->a, list->b, list->c, list->d, list->e};
        for (size_t i = 0; i < 5; i++)
            if (kids[i] && reads(kids[i], name)) return 1;
    }
    return 0;
}

static segue_status bind_for(struct binding *outer, struct sg_node *n)
{
    struct binding b;
    uint32_t loop;
    SG_TRY(sg_parser_name(outer->p, "loop", 4, &loop));
    SG_TRY(bind_node(outer, n->b, 0));
    SG_TRY(begin(&b, outer));
    SG_TRY(note_param(&b, loop));
    SG_TRY(visit_target(&b, n->a, 0));
    SG_TRY(visit_list(&b, n->c, 0));
    SG_TRY(bind_list(&b, n->a, 0));
    SG_TRY(bind_list(&b, n->c, 0));
    SG_TRY(finish(&b));
    n->u.scopes[0] = b.scope;
    if (n->e) {
        /* target slots: 1.. in both frames, as the target is noted right after what comes first */
        SG_TRY(begin(&b, outer));
        SG_TRY(define(&b, loop, SG_LOAD_PARAM));
        b.now[loop] = b.entries[0].outer; /* `loop` in the test means what it means outside */
        SG_TRY(visit_target(&b, n->a, 0));
        SG_TRY(visit_list(&b, n->e, 0));
        SG_TRY(bind_list(&b, n->e, 0));
        SG_TRY(finish(&b));
        n->u.scopes[1] = b.scope;
    }
    if (n->d) {
        SG_TRY(begin(&b, outer));
        SG_TRY(visit_list(&b, n->d, 0));
        SG_TRY(bind_list(&b, n->d, 0));
        SG_TRY(finish(&b));
        n->scope_else = b.scope;
    }
    return SEGUE_OK;
}

/* Slots of a macro's frame: its parameters in order, then caller, kwargs, varargs as far as used. */
static segue_status bind_macro(struct binding *outer, struct sg_node *n)
{
    static const char *const special[] = {"caller", "kwargs", "varargs"};
    static const uint8_t flags[] = {SG_MACRO_CALLER, SG_MACRO_KWARGS, SG_MACRO_VARARGS};
    struct binding b;
    SG_TRY(begin(&b, outer));
    for (struct sg_node *a = n->a; a; a = a->next) {
        if (b.now[a->name].scope == &b) return sg_parser_fail(b.p, a->line, "two parameters have one name");
        SG_TRY(note_param(&b, a->name));
    }
    for (size_t i = 0; i < 3; i++) {
        uint32_t id;
        SG_TRY(sg_parser_name(b.p, special[i], strlen(special[i]), &id));
        int explicit_one = b.now[id].scope == &b, used = reads(n->c, special[i]);
        if (explicit_one && i == 0) n->flags |= SG_MACRO_EXPLICIT;
        if (!used) continue;
        if (!explicit_one) SG_TRY(note_param(&b, id));
        if (!explicit_one || i == 0) n->flags |= flags[i];
    }
    for (struct sg_node *a = n->a; a; a = a->next)
        if (a->a) SG_TRY(visit(&b, a->a, 0));
    SG_TRY(visit_list(&b, n->c, 0));
    for (struct sg_node *a = n->a; a; a = a->next) {
        SG_TRY(bind_name(&b, a));
        if (a->a) SG_TRY(bind_node(&b, a->a, 0));
    }
    SG_TRY(bind_list(&b, n->c, 0));
    SG_TRY(finish(&b));
    n->u.scopes[0] = b.scope;
    return SEGUE_OK;
}

/* set and filter blocks, with: one scope around a body; what: targets inside it. */
static segue_status bind_scoped(struct binding *outer, struct sg_node *n)
{
    struct binding b;
    if (n->kind == SG_N_WITH)
        for (struct sg_node *v = n->b; v; v = v->next) SG_TRY(bind_node(outer, v, 0));
    if (n->kind == SG_N_SETBLOCK) SG_TRY(bind_list(outer, n->a, 0));
    SG_TRY(begin(&b, outer));
    if (n->kind == SG_N_WITH)
        for (struct sg_node *t = n->a; t; t = t->next) SG_TRY(visit_target(&b, t, 0));
    if (n->kind != SG_N_WITH && n->b && n->kind == SG_N_FILTERBLOCK) SG_TRY(visit(&b, n->b, 0));
    SG_TRY(visit_list(&b, n->c, 0));
    if (n->kind == SG_N_SETBLOCK && n->b) SG_TRY(visit(&b, n->b, 0));
    if (n->kind == SG_N_WITH)
        SG_TRY(bind_list(&b, n->a, 0));
    else if (n->b)
        SG_TRY(bind_node(&b, n->b, 0));
    SG_TRY(bind_list(&b, n->c, 0));
    SG_TRY(finish(&b));
    n->u.scopes[0] = b.scope;
    return SEGUE_OK;
}

static segue_status bind_func(struct binding *b, struct sg_node *n, int soft)
{
    if (!n->u.func && !soft)
        return sg_parser_fail(b->p, n->line, "there is no %s named '%.*s'",
                              n->kind == SG_N_TEST ? "test" : "filter", (int)(n->n > 40 ? 40 : n->n), n->s);
    SG_TRY(bind_list(b, n->a, soft));
    return bind_list(b, n->b, soft);
}

static segue_status bind_node(struct binding *b, struct sg_node *n, int soft)
{
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
    case SG_N_IF:
    case SG_N_COND: soft = 1; break;
    default: break;
    }
    SG_TRY(bind_list(b, n->a, soft));
    SG_TRY(bind_list(b, n->b, soft));
    SG_TRY(bind_list(b, n->c, soft));
    return bind_list(b, n->d, soft);
}

static segue_status bind_list(struct binding *b, struct sg_node *list, int soft)
{
    for (; list; list = list->next) SG_TRY(bind_node(b, list, soft));
    return SEGUE_OK;
}

segue_status sg_bind_names(struct sg_parser *p)
{
    struct sg_template *t = p->t;
    uint32_t id;
    /* all names that binding itself may look up exist before the table is made */
    static const char *const own[] = {"loop", "caller", "kwargs", "varargs"};
    for (size_t i = 0; i < 4; i++) SG_TRY(sg_parser_name(p, own[i], strlen(own[i]), &id));
    struct bound *now = sg_arena_alloc(&t->arena, t->names_n * sizeof *now);
    struct sg_scope *scope = sg_arena_alloc(&t->arena, sizeof *scope);
    if (!now || !scope) return sg_no_memory("template scopes", t->names_n * sizeof *now, p->err);
    struct binding b = {.p = p, .now = now, .scope = scope};
    SG_TRY(visit_list(&b, t->body, 0));
    SG_TRY(bind_list(&b, t->body, 0));
    SG_TRY(finish(&b));
    t->scope = scope;
    return SEGUE_OK;
}
