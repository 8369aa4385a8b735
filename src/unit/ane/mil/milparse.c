/* milparse.c: see milparse.h: statements, functions and the program, by recursive descent without recursion:
 * nothing in the grammar nests without bound. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "unit/ane/mil/milops.h"
#include "unit/ane/mil/milparser.h"

/* --- statements --- */

static uint32_t parse_ref(struct sg_mil_parser *p)
{
    if (p->token.kind != SG_MIL_NAME) {
        sg_mil_unexpected(p, "a name or a constant");
        return 0;
    }
    uint32_t value = sg_mil_value_find(p->f, p->token.at, p->token.n);
    if (value == SG_MIL_NONE)
        sg_mil_parse_error(p, &p->token, 0,
                      "\"%.*s\" is not defined above; operations read what stands before them",
                      (int)(p->token.n < 60 ? p->token.n : 60), p->token.at);
    sg_mil_next_token(p);
    return value;
}

static int at_literal(const struct sg_mil_parser *p)
{
    if (sg_mil_is_name(p, "tensor")) return 1;
    if (p->token.kind != SG_MIL_NAME || sg_mil_dtype_named(p->token.at, p->token.n) == SG_MIL_DTYPES) return 0;
    struct sg_mil_lexer ahead = p->lexer; /* `bool` may be a variable as well */
    struct sg_mil_token next = sg_mil_lexer_next(&ahead);
    return next.kind == SG_MIL_PUNCT && next.punct == '(';
}

static void parse_arg_value(struct sg_mil_parser *p, struct sg_mil_arg *a)
{
    if (sg_mil_accept(p, '(')) {
        a->kind = SG_MIL_LIST;
        while (!p->failed && !sg_mil_is_punct(p, ')')) {
            if (a->n == SG_MIL_LIST_MAX)
                sg_mil_parse_error(p, &p->token, 0, "more than %d values in a list", SG_MIL_LIST_MAX);
            if (!p->failed) p->refs[a->n++] = parse_ref(p);
            if (!sg_mil_accept(p, ',')) break;
        }
        sg_mil_expect(p, ')');
        a->v.refs = sg_mil_arena_copy(p, p->refs, a->n * sizeof *p->refs);
    } else if (at_literal(p)) {
        a->kind = SG_MIL_LITERAL;
        a->v.literal = sg_mil_parse_literal(p);
    } else {
        a->kind = SG_MIL_REF;
        a->v.ref = parse_ref(p);
    }
}

static void parse_args(struct sg_mil_parser *p, struct sg_mil_op *op)
{
    uint32_t n = 0;
    sg_mil_expect(p, '(');
    while (!p->failed && !sg_mil_is_punct(p, ')')) {
        if (n == SG_MIL_ARGS_MAX) {
            sg_mil_parse_error(p, &p->token, 0, "more than %d arguments", SG_MIL_ARGS_MAX);
            break;
        }
        struct sg_mil_token at = p->token;
        struct sg_mil_arg *a = &p->args[n];
        *a = (struct sg_mil_arg){
            .name = sg_mil_parse_name(p, "an argument's name"), .line = at.line, .column = at.column};
        for (uint32_t i = 0; i < n; i++)
            if (!strcmp(p->args[i].name, a->name))
                sg_mil_parse_error(p, &at, 0, "argument %.60s is given twice", a->name);
        sg_mil_expect(p, '=');
        parse_arg_value(p, a);
        n++;
        if (!sg_mil_accept(p, ',')) break;
    }
    sg_mil_expect(p, ')');
    op->args = sg_mil_arena_copy(p, p->args, n * sizeof *p->args);
    op->args_n = n;
}

static void parse_attrs(struct sg_mil_parser *p, struct sg_mil_op *op)
{
    uint32_t n = 0;
    if (!sg_mil_accept(p, '[')) return;
    while (!p->failed && !sg_mil_is_punct(p, ']')) {
        if (n == SG_MIL_ATTRS_MAX) {
            sg_mil_parse_error(p, &p->token, 0, "more than %d attributes", SG_MIL_ATTRS_MAX);
            break;
        }
        struct sg_mil_token at = p->token;
        p->attrs[n].name = sg_mil_parse_name(p, "an attribute's name");
        for (uint32_t i = 0; i < n; i++)
            if (!strcmp(p->attrs[i].name, p->attrs[n].name))
                sg_mil_parse_error(p, &at, 0, "attribute %.60s is given twice", p->attrs[n].name);
        sg_mil_expect(p, '=');
        p->attrs[n++].literal = sg_mil_parse_literal(p);
        if (!sg_mil_accept(p, ',')) break;
    }
    sg_mil_expect(p, ']');
    op->attrs = sg_mil_arena_copy(p, p->attrs, n * sizeof *p->attrs);
    op->attrs_n = n;
}

/* Define the name at the word before; duplicates are constraint 17. */
static void define_value(struct sg_mil_parser *p, const struct sg_mil_token *at, const char *id,
                   const struct sg_mil_type *t, uint32_t op)
{
    int taken = 0;
    if (p->failed) return;
    uint32_t value = sg_mil_value_add(p->f, id, t, op, &taken);
    if (taken)
        sg_mil_parse_error(p, at, 17, "the name %.60s is taken; every name of a function must be its own", id);
    if (value == SG_MIL_NONE && !taken) {
        sg_mil_parse_no_memory(p);
    }
    if (p->failed) return;
    p->f->values[value].line = at->line;
    p->f->values[value].column = at->column;
}

enum { OUTPUTS_MAX = 64 };

static void parse_operation(struct sg_mil_parser *p, struct sg_mil_op *op)
{
    op->kind = sg_mil_parse_name(p, "an operation");
    op->info = sg_mil_op_named(op->kind, strlen(op->kind));
    if (sg_mil_accept(p, '<')) {
        op->target = sg_mil_parse_name(p, "a target");
        sg_mil_expect(p, '>');
    }
    parse_args(p, op);
    parse_attrs(p, op);
    sg_mil_expect(p, ';');
}

static void parse_statement(struct sg_mil_parser *p)
{
    struct sg_mil_token at[OUTPUTS_MAX], start = p->token;
    const char *ids[OUTPUTS_MAX];
    struct sg_mil_type types[OUTPUTS_MAX];
    uint32_t n = 0;
    p->op = NULL;
    if (++p->ops_n > SG_MIL_OPS_MAX) sg_mil_parse_error(p, &start, 0, "more than %d operations", SG_MIL_OPS_MAX);
    do {
        if (n == OUTPUTS_MAX) {
            sg_mil_parse_error(p, &start, 0, "more than %d results", OUTPUTS_MAX);
            break;
        }
        types[n] = sg_mil_parse_type(p);
        at[n] = p->token;
        ids[n] = sg_mil_parse_name(p, "a name");
        p->op = ids[0];
        n++;
    } while (sg_mil_accept(p, ','));
    sg_mil_expect(p, '=');
    struct sg_mil_op made = {.line = start.line, .column = start.column, .outputs = n};
    parse_operation(p, &made);
    if (p->failed) return;
    made.first = p->f->values_n;
    uint32_t index = p->f->ops_n;
    struct sg_mil_op *op = sg_mil_op_add(p->f);
    if (!op) {
        sg_mil_parse_no_memory(p);
        return;
    }
    *op = made;
    for (uint32_t i = 0; i < n; i++) define_value(p, &at[i], ids[i], &types[i], index);
}

/* --- functions --- */

static void parse_params(struct sg_mil_parser *p)
{
    sg_mil_expect(p, '(');
    while (!p->failed && !sg_mil_is_punct(p, ')')) {
        struct sg_mil_type t = sg_mil_parse_type(p);
        struct sg_mil_token at = p->token;
        const char *id = sg_mil_parse_name(p, "a parameter's name");
        define_value(p, &at, id, &t, SG_MIL_NONE);
        if (!sg_mil_accept(p, ',')) break;
    }
    sg_mil_expect(p, ')');
    p->f->params_n = p->f->values_n;
}

static void parse_returns(struct sg_mil_parser *p)
{
    uint32_t n = 0;
    if (p->token.kind != SG_MIL_ARROW)
        sg_mil_unexpected(p, "->");
    else
        sg_mil_next_token(p);
    sg_mil_expect(p, '(');
    while (!p->failed && !sg_mil_is_punct(p, ')')) {
        if (n == SG_MIL_LIST_MAX) sg_mil_parse_error(p, &p->token, 0, "more than %d results", SG_MIL_LIST_MAX);
        if (!p->failed) p->refs[n++] = parse_ref(p);
        if (!sg_mil_accept(p, ',')) break;
    }
    sg_mil_expect(p, ')');
    sg_mil_expect(p, ';');
    if (p->failed) return;
    if (!n) sg_mil_parse_error(p, &p->token, 17, "function %.60s returns nothing", p->f->name);
    p->f->returns = sg_alloc(n * sizeof *p->f->returns);
    if (!p->f->returns) {
        sg_mil_parse_no_memory(p);
        return;
    }
    memcpy(p->f->returns, p->refs, n * sizeof *p->refs);
    p->f->returns_n = n;
}

static void parse_function(struct sg_mil_parser *p)
{
    struct sg_mil_token at = p->token;
    p->op = NULL;
    sg_mil_expect_name(p, "func");
    const char *id = sg_mil_parse_name(p, "a function's name");
    sg_mil_expect(p, '<');
    const char *target = sg_mil_parse_name(p, "a target");
    sg_mil_expect(p, '>');
    if (!p->failed && sg_mil_function_find(p->program, id))
        sg_mil_parse_error(p, &at, 17, "two functions are named %.60s", id);
    if (!p->failed && p->program->functions_n >= 256) sg_mil_parse_error(p, &at, 0, "more than 256 functions");
    if (p->failed) return;
    p->f = sg_mil_function_add(p->program, id, target);
    if (!p->f) {
        sg_mil_parse_no_memory(p);
        return;
    }
    p->f->line = at.line;
    p->f->column = at.column;
    parse_params(p);
    sg_mil_expect(p, '{');
    while (!p->failed && !sg_mil_is_punct(p, '}')) parse_statement(p);
    sg_mil_expect(p, '}');
    p->op = NULL;
    parse_returns(p);
}

/* `[buildInfo = dict<K, V>({{"a", "b"}, ...})]`: the values are kept, not judged. */
static void parse_build_info(struct sg_mil_parser *p)
{
    struct sg_mil_pair pairs[64];
    uint32_t n = 0;
    uint64_t len;
    sg_mil_expect(p, '[');
    sg_mil_parse_name(p, "an attribute's name");
    sg_mil_expect(p, '=');
    sg_mil_expect_name(p, "dict");
    sg_mil_expect(p, '<');
    sg_mil_parse_type(p);
    sg_mil_expect(p, ',');
    sg_mil_parse_type(p);
    sg_mil_expect(p, '>');
    sg_mil_expect(p, '(');
    sg_mil_expect(p, '{');
    while (!p->failed && !sg_mil_is_punct(p, '}')) {
        if (n == sizeof pairs / sizeof *pairs)
            sg_mil_parse_error(p, &p->token, 0, "more than 64 entries of buildInfo");
        sg_mil_expect(p, '{');
        if (p->failed) break;
        pairs[n].key = sg_mil_parse_string(p, &len);
        sg_mil_expect(p, ',');
        pairs[n++].value = sg_mil_parse_string(p, &len);
        sg_mil_expect(p, '}');
        if (!sg_mil_accept(p, ',')) break;
    }
    sg_mil_expect(p, '}');
    sg_mil_expect(p, ')');
    sg_mil_expect(p, ']');
    p->program->info = sg_mil_arena_copy(p, pairs, n * sizeof *pairs);
    p->program->info_n = n;
}

/* `program(1.0)`: the version is one number to the lexer. */
static void parse_version(struct sg_mil_parser *p)
{
    sg_mil_expect_name(p, "program");
    sg_mil_expect(p, '(');
    unsigned v[2] = {0, 0};
    char copy[16] = "";
    int used = 0;
    if (p->token.kind == SG_MIL_NUMBER && p->token.n < sizeof copy) memcpy(copy, p->token.at, p->token.n);
    if (sscanf(copy, "%4u.%4u%n", &v[0], &v[1], &used) != 2 || copy[used])
        sg_mil_unexpected(p, "a version such as 1.0");
    if (!p->failed && v[0] != 1)
        sg_mil_parse_error(p, &p->token, 0, "program version %u.%u; 1.x is known", v[0], v[1]);
    p->program->major = v[0];
    p->program->minor = v[1];
    sg_mil_next_token(p);
    sg_mil_expect(p, ')');
}

static void parse_program(struct sg_mil_parser *p)
{
    sg_mil_next_token(p);
    parse_version(p);
    int info = sg_mil_is_punct(p, '[');
    if (info) parse_build_info(p);
    sg_mil_expect(p, '{');
    while (!p->failed && !sg_mil_is_punct(p, '}')) parse_function(p);
    sg_mil_expect(p, '}');
    if (!p->failed && p->token.kind != SG_MIL_END) sg_mil_unexpected(p, "the end of the text");
    if (!p->failed && !p->program->functions_n) sg_mil_parse_error(p, &p->token, 0, "a program without a function");
    p->program->dialect = p->program->minor == 0 ? SG_MIL_VERBOSE : info ? SG_MIL_MODERN : SG_MIL_BUFFER;
}

segue_status sg_mil_parse(struct sg_mil_program **out, const char *text, size_t n, const char *name_of_text,
                          struct sg_mil_fault *fault, segue_error *err)
{
    struct sg_mil_fault own;
    if (n > SG_MIL_TEXT_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "MIL text: %.80s: %zu bytes, more than %d; cut the program",
                       name_of_text, n, SG_MIL_TEXT_MAX);
    struct sg_mil_parser *p = sg_alloc(sizeof *p);
    if (!p || !(p->program = sg_mil_program_new(SG_MIL_VERBOSE))) {
        sg_free(p);
        return sg_no_memory("MIL text", sizeof *p, err);
    }
    p->fault = fault ? fault : &own;
    *p->fault = (struct sg_mil_fault){0};
    sg_mil_lexer_init(&p->lexer, text, n);
    parse_program(p);
    segue_status status = !p->failed ? SEGUE_OK : p->no_memory ? SEGUE_EMEMORY : SEGUE_EFORMAT;
    if (status == SEGUE_OK)
        *out = p->program;
    else {
        char rule[24] = "";
        if (p->fault->constraint) snprintf(rule, sizeof rule, "constraint %u: ", p->fault->constraint);
        sg_fail(err, status, "MIL text: %.80s:%u:%u: %s%s", name_of_text, p->fault->line, p->fault->column, rule,
                p->fault->text);
        sg_mil_program_free(p->program);
    }
    sg_free(p->reals);
    sg_free(p->ints);
    sg_free(p);
    return status;
}
