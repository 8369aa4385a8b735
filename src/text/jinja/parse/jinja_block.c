/* jinja_block.c: text, printed expressions and statement tags. A statement parser starts after the name of its tag and
 * ends at the '%}' of its closing tag, which the caller consumes. Output: lists of nodes chained by next.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/parse/jinja_parse.h"

static segue_status parse_block(struct sg_jinja_parser *p, const char *const *ends, struct sg_jinja_node **first,
                                const char *tag, uint32_t line);

/* The body of a statement, after the rest of its opening tag, up to a tag whose name is in ends (NULL-terminated).
 * That name is the current token afterwards. tag, line: the opening tag, for the message when its end is missing. */
static segue_status parse_statements(struct sg_jinja_parser *p, const char *const *ends, struct sg_jinja_node **first,
                                     const char *tag, uint32_t line)
{
    /* jinja2 allows a colon before '%}', as in Python */
    if (sg_parser_is_op(p, ':')) SG_TRY(sg_parser_next(p));
    SG_TRY(sg_parser_expect(p, SG_T_BLOCK_END, "'%}'"));
    SG_TRY(sg_parser_enter(p));
    SG_TRY(parse_block(p, ends, first, tag, line));
    p->level--;
    return SEGUE_OK;
}

/* parse_statements with one possible end, which is consumed. */
static segue_status parse_until(struct sg_jinja_parser *p, const char *end, struct sg_jinja_node **first, const char *tag,
                                uint32_t line)
{
    const char *const ends[] = {end, NULL};
    SG_TRY(parse_statements(p, ends, first, tag, line));
    return sg_parser_next(p);
}

/* Check that t can be assigned to and set the param flag of its names. with_ns: ns.attr is allowed. param: 0 a
 * target of set, 1 of with, 2 of for. */
static segue_status check_target(struct sg_jinja_parser *p, struct sg_jinja_node *t, int with_ns, int param)
{
    if (t->kind == SG_N_TUPLE) {
        for (struct sg_jinja_node *i = t->a; i; i = i->next) SG_TRY(check_target(p, i, with_ns, param));
        return SEGUE_OK;
    }
    if (t->kind != SG_N_NAME && !(t->kind == SG_N_NSREF && with_ns))
        return sg_parser_fail(p, t->line, "this cannot be assigned to");
    /* `with` may bind the name loop, even inside a loop: it opens a separate scope */
    if (t->kind == SG_N_NAME && t->n == 4 && !memcmp(t->s, "loop", 4) && (param == 2 || (!param && p->loops)))
        return sg_parser_fail(p, t->line, "the name 'loop' belongs to the loop and cannot be assigned to");
    t->param = param != 0;
    return SEGUE_OK;
}

/* {% set a, b = value %}, or {% set a | filter %}..{% endset %}, whose value is the output of the body. */
static segue_status parse_set(struct sg_jinja_parser *p, uint32_t line, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL;
    SG_TRY(sg_parser_new_node(p, SG_N_SET, line, &node));
    SG_TRY(sg_parse_tuple(p, 1, 1, NULL, 0, 1, &node->a));
    SG_TRY(check_target(p, node->a, 1, 0));
    *out = node;
    /* the value may be a tuple without parentheses */
    if (sg_parser_is_op(p, '=')) {
        SG_TRY(sg_parser_next(p));
        SG_TRY(sg_parse_tuple(p, 0, 1, NULL, 0, 0, &node->b));
        return sg_parser_finish_node(p, node);
    }
    node->kind = SG_N_SETBLOCK;
    SG_TRY(sg_parse_filters(p, NULL, 0, &node->b));
    SG_TRY(parse_until(p, "endset", &node->c, "set", line));
    return sg_parser_finish_node(p, node);
}

/* {% for target in iterable if test recursive %} body {% else %} body {% endfor %}. */
static segue_status parse_for(struct sg_jinja_parser *p, uint32_t line, struct sg_jinja_node **out)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct sg_jinja_node *node = NULL;
    SG_TRY(sg_parser_new_node(p, SG_N_FOR, line, &node));
    SG_TRY(sg_parse_tuple(p, 1, 1, "in", 0, 0, &node->a));
    SG_TRY(check_target(p, node->a, 0, 2));
    if (!sg_parser_is_name(p, "in"))
        return sg_parser_fail(p, p->tok.line, "expected 'in' after the names of 'for'");
    SG_TRY(sg_parser_next(p));
    /* without conditional expressions: an `if` after the iterable is the test of the loop */
    SG_TRY(sg_parse_tuple(p, 0, 0, "recursive", 0, 0, &node->b));
    if (sg_parser_is_name(p, "if")) {
        SG_TRY(sg_parser_next(p));
        SG_TRY(sg_parse_expression(p, 1, &node->e));
    }
    if (sg_parser_is_name(p, "recursive")) {
        node->op = 1;
        SG_TRY(sg_parser_next(p));
    }
    /* break and continue are allowed in the body, but not in the else part */
    p->loops++;
    SG_TRY(parse_statements(p, ends, &node->c, "for", line));
    p->loops--;
    if (sg_parser_is_name(p, "else")) {
        SG_TRY(sg_parser_next(p));
        SG_TRY(parse_until(p, "endfor", &node->d, "for", line));
    } else {
        SG_TRY(sg_parser_next(p));
    }
    *out = node;
    return sg_parser_finish_node(p, node);
}

/* {% if %} with any number of elif and at most one else. The elif branches are IF nodes in the list c of the first. */
static segue_status parse_if(struct sg_jinja_parser *p, uint32_t line, struct sg_jinja_node **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct sg_jinja_node *node = NULL, *at = NULL, **tail;
    SG_TRY(sg_parser_new_node(p, SG_N_IF, line, &node));
    tail = &node->c;
    /* at: the branch that is being parsed */
    for (at = node;;) {
        /* the condition, without `a if b` */
        SG_TRY(sg_parse_tuple(p, 0, 0, NULL, 0, 0, &at->a));
        SG_TRY(parse_statements(p, ends, &at->b, "if", line));
        SG_TRY(sg_parser_finish_node(p, at));
        int elif = sg_parser_is_name(p, "elif"), els = sg_parser_is_name(p, "else");
        SG_TRY(sg_parser_next(p));
        if (els) SG_TRY(parse_until(p, "endif", &node->d, "if", line));
        if (!elif) break;
        SG_TRY(sg_parser_new_node(p, SG_N_IF, p->tok.line, &at));
        *tail = at;
        tail = &at->next;
    }
    *out = node;
    return sg_parser_finish_node(p, node);
}

/* The parameters of a macro or call block: (a, b=1). They become NAME nodes with the default in a. */
static segue_status parse_signature(struct sg_jinja_parser *p, struct sg_jinja_node **first)
{
    struct sg_jinja_node **tail = first;
    int defaults = 0;
    SG_TRY(sg_parser_expect_op(p, '('));
    while (!sg_parser_is_op(p, ')')) {
        if (tail != first) SG_TRY(sg_parser_expect_op(p, ','));
        struct sg_jinja_node *arg = NULL;
        SG_TRY(sg_parser_new_node(p, SG_N_NAME, p->tok.line, &arg));
        arg->param = 1;
        arg->s = p->tok.s;
        arg->n = p->tok.n;
        SG_TRY(sg_parser_expect(p, SG_T_NAME, "the name of a parameter"));
        SG_TRY(sg_parser_name_id(p, arg->s, arg->n, &arg->name));
        if (sg_parser_is_op(p, '=')) {
            SG_TRY(sg_parser_next(p));
            SG_TRY(sg_parse_expression(p, 1, &arg->a));
            defaults = 1;
        } else if (defaults) {
            return sg_parser_fail(p, arg->line, "a parameter without default follows one with a default");
        }
        SG_TRY(sg_parser_finish_node(p, arg));
        /* appended only when complete: finish_node reads its children */
        *tail = arg;
        tail = &arg->next;
    }
    return sg_parser_next(p);
}

/* {% macro name(parameters) %} body {% endmacro %}. */
static segue_status parse_macro(struct sg_jinja_parser *p, uint32_t line, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL;
    SG_TRY(sg_parser_new_node(p, SG_N_MACRO, line, &node));
    node->s = p->tok.s;
    node->n = p->tok.n;
    SG_TRY(sg_parser_expect(p, SG_T_NAME, "the name of the macro"));
    /* the macro is a variable of the scope around it */
    SG_TRY(sg_parser_name_id(p, node->s, node->n, &node->name));
    SG_TRY(parse_signature(p, &node->a));
    uint32_t loops = p->loops;
    /* the body runs when the macro is called, so it cannot leave a loop around its definition */
    p->loops = 0;
    SG_TRY(parse_until(p, "endmacro", &node->c, "macro", line));
    p->loops = loops;
    *out = node;
    return sg_parser_finish_node(p, node);
}

/* {% call(parameters) callee(arguments) %} body {% endcall %}: the body is a macro that callee gets as `caller`. */
static segue_status parse_call_block(struct sg_jinja_parser *p, uint32_t line, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL;
    SG_TRY(sg_parser_new_node(p, SG_N_CALLBLOCK, line, &node));
    if (sg_parser_is_op(p, '(')) SG_TRY(parse_signature(p, &node->a));
    SG_TRY(sg_parse_expression(p, 1, &node->b));
    /* the callee gets `caller`, so it must be called here */
    if (node->b->kind != SG_N_CALL) return sg_parser_fail(p, line, "expected a call in 'call'");
    uint32_t loops = p->loops;
    p->loops = 0;
    SG_TRY(parse_until(p, "endcall", &node->c, "call", line));
    p->loops = loops;
    *out = node;
    return sg_parser_finish_node(p, node);
}

/* {% filter NAME | NAME %} body {% endfilter %}. */
static segue_status parse_filter_block(struct sg_jinja_parser *p, uint32_t line, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL;
    SG_TRY(sg_parser_new_node(p, SG_N_FILTERBLOCK, line, &node));
    SG_TRY(sg_parse_filters(p, NULL, 1, &node->b));
    SG_TRY(parse_until(p, "endfilter", &node->c, "filter", line));
    *out = node;
    return sg_parser_finish_node(p, node);
}

/* {% with a = 1, b = 2 %} body {% endwith %}. Targets and values are two lists of equal length. */
static segue_status parse_with(struct sg_jinja_parser *p, uint32_t line, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL, **targets, **values;
    SG_TRY(sg_parser_new_node(p, SG_N_WITH, line, &node));
    targets = &node->a;
    values = &node->b;
    while (p->tok.kind != SG_T_BLOCK_END) {
        if (node->a) SG_TRY(sg_parser_expect_op(p, ','));
        SG_TRY(sg_parse_tuple(p, 1, 1, NULL, 0, 0, targets));
        SG_TRY(check_target(p, *targets, 0, 1));
        SG_TRY(sg_parser_expect_op(p, '='));
        SG_TRY(sg_parse_expression(p, 1, values));
        targets = &(*targets)->next;
        values = &(*values)->next;
    }
    SG_TRY(parse_until(p, "endwith", &node->c, "with", line));
    *out = node;
    return sg_parser_finish_node(p, node);
}

/* The body is bound and run like a macro without parameters, so that break and continue cannot leave it. */
static segue_status parse_generation(struct sg_jinja_parser *p, uint32_t line, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL;
    uint32_t loops = p->loops;
    p->loops = 0;
    SG_TRY(sg_parser_new_node(p, SG_N_GENERATION, line, &node));
    SG_TRY(parse_until(p, "endgeneration", &node->c, "generation", line));
    p->loops = loops;
    *out = node;
    return sg_parser_finish_node(p, node);
}

/* The caller has checked that a loop is open. */
static segue_status parse_break(struct sg_jinja_parser *p, uint32_t line, struct sg_jinja_node **out)
{
    return sg_parser_new_node(p, SG_N_BREAK, line, out);
}

static segue_status parse_continue(struct sg_jinja_parser *p, uint32_t line, struct sg_jinja_node **out)
{
    return sg_parser_new_node(p, SG_N_CONTINUE, line, out);
}

/* {% print a, b %}: each expression becomes a statement. */
static segue_status parse_print(struct sg_jinja_parser *p, uint32_t line, struct sg_jinja_node **out)
{
    struct sg_jinja_node **tail = out;
    *out = NULL;
    while (p->tok.kind != SG_T_BLOCK_END) {
        if (*out) SG_TRY(sg_parser_expect_op(p, ','));
        SG_TRY(sg_parse_expression(p, 1, tail));
        tail = &(*tail)->next;
    }
    (void)line;
    return SEGUE_OK;
}

/* One tag. The current token is its name. */
static segue_status parse_statement(struct sg_jinja_parser *p, struct sg_jinja_node **out)
{
    static const struct {
        const char *tag;
        segue_status (*parse)(struct sg_jinja_parser *, uint32_t, struct sg_jinja_node **);
    } tags[] = {{"set", parse_set},         {"if", parse_if},
                {"for", parse_for},         {"macro", parse_macro},
                {"call", parse_call_block}, {"filter", parse_filter_block},
                {"with", parse_with},       {"generation", parse_generation},
                {"break", parse_break},      {"continue", parse_continue},
                {"print", parse_print}};
    uint32_t line = p->tok.line;
    if (p->tok.kind != SG_T_NAME) return sg_parser_fail(p, line, "expected the name of a tag after '{%%'");
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!sg_parser_is_name(p, tags[i].tag)) continue;
        /* p->loops is 0 inside of macros */
        if ((tags[i].parse == parse_break || tags[i].parse == parse_continue) && !p->loops)
            return sg_parser_fail(p, line, "'%s' is used outside of a loop", tags[i].tag);
        /* after an error open_tag is not restored: the message has been written and parsing ends */
        const char *outer = p->open_tag;
        p->open_tag = tags[i].tag;
        SG_TRY(sg_parser_next(p));
        SG_TRY(tags[i].parse(p, line, out));
        p->open_tag = outer;
        return SEGUE_OK;
    }
    return sg_parser_fail(p, line, "unknown tag '%.*s'%s%s%s", (int)(p->tok.n > 40 ? 40 : p->tok.n), p->tok.s,
                          p->open_tag ? "; open is '" : "", p->open_tag ? p->open_tag : "",
                          p->open_tag ? "'" : "");
}

/* 1: the current token is one of ends, which may be NULL. */
static int at_end(const struct sg_jinja_parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (sg_parser_is_name(p, *ends)) return 1;
    return 0;
}

/* Nodes up to a tag in ends, whose name is then current; ends NULL: up to the end of the template. */
static segue_status parse_block(struct sg_jinja_parser *p, const char *const *ends, struct sg_jinja_node **first,
                                const char *tag, uint32_t line)
{
    struct sg_jinja_node **tail = first;
    for (;;) {
        uint32_t here = p->tok.line;
        if (p->tok.kind == SG_T_EOF) {
            if (!ends) return SEGUE_OK;
            return sg_parser_fail(p, here, "the template ends, but '%s' of line %u is still open", tag,
                                  (unsigned)line);
        }
        if (p->tok.kind == SG_T_DATA) {
            SG_TRY(sg_parser_new_node(p, SG_N_DATA, here, tail));
            (*tail)->s = p->tok.s;
            (*tail)->n = p->tok.n;
            SG_TRY(sg_parser_next(p));
        } else if (p->tok.kind == SG_T_VAR_BEGIN) {
            SG_TRY(sg_parser_next(p));
            SG_TRY(sg_parse_tuple(p, 0, 1, NULL, 0, 0, tail));
            SG_TRY(sg_parser_expect(p, SG_T_VAR_END, "'}}'"));
        } else {
            SG_TRY(sg_parser_next(p));
            /* the caller consumes the tag */
            if (at_end(p, ends)) return SEGUE_OK;
            SG_TRY(parse_statement(p, tail));
            SG_TRY(sg_parser_expect(p, SG_T_BLOCK_END, "'%}'"));
        }
        /* a print tag adds several nodes or none */
        while (*tail) tail = &(*tail)->next;
    }
}

/* The first token must be read before any parser function may look at the current one. */
segue_status sg_parse_body(struct sg_jinja_parser *p)
{
    SG_TRY(sg_parser_next(p));
    return parse_block(p, NULL, &p->t->body, "", 0);
}
