/* milparse.c: see milparse.h. Statements, functions and the program by recursive descent. The grammar has no
 * unbounded nesting, so the depth of calls is constant whatever the input.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "unit/ane/mil/milops.h"
#include "unit/ane/mil/milparser.h"

/* A name that is already defined; gives its value number. References to later values are errors, which also
 * excludes cycles. */
static uint32_t parse_ref(struct sg_mil_parser *p)
{
    if (p->token.kind != SG_MIL_NAME) {
        sg_mil_unexpected(p, "a name or a constant");
        return 0;
    }
    uint32_t value = sg_mil_value_find(p->f, p->token.at, p->token.n);
    if (value == SG_MIL_NONE)
        sg_mil_parse_error(p, &p->token, 0,
                           "\"%.*s\" is not defined above; define a value before its use",
                           (int)(p->token.n < 60 ? p->token.n : 60), p->token.at);
    sg_mil_next_token(p);
    return value;
}

/* 1: the next tokens begin a literal. A type name may also be a variable, so a parenthesis must follow it. */
static int at_literal(const struct sg_mil_parser *p)
{
    if (sg_mil_is_name(p, "tensor")) return 1;
    if (p->token.kind != SG_MIL_NAME || sg_mil_dtype_named(p->token.at, p->token.n) == SG_MIL_DTYPES) return 0;
    struct sg_mil_lexer ahead = p->lexer; /* a copy: looks ahead without consuming */
    struct sg_mil_token next = sg_mil_lexer_next(&ahead);
    return next.kind == SG_MIL_PUNCT && next.punct == '(';
}

/* VALUE of the grammar: a list of names in parentheses, a literal, or a name. */
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

/* `(NAME = VALUE, ...)`. Collected in the parser first and copied into the arena when the number is known.
 * The quadratic search for duplicates is bounded by SG_MIL_ARGS_MAX. */
static void parse_args(struct sg_mil_parser *p, struct sg_mil_op *op)
{
    uint32_t n = 0;
    sg_mil_expect(p, '(');
    while (!p->failed && !sg_mil_is_punct(p, ')')) {
        if (n == SG_MIL_ARGS_MAX) {
            sg_mil_parse_error(p, &p->token, 0, "more than %d arguments", SG_MIL_ARGS_MAX);
            break;
        }
        struct sg_mil_token at = p->token; /* position of the name, for messages */
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

/* `[NAME = LITERAL, ...]`, optional; collected like the arguments. */
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

/* Adds a value to the function, with the position of its name. A duplicate name breaks constraint 17. */
static void define_value(struct sg_mil_parser *p, const struct sg_mil_token *at, const char *id,
                         const struct sg_mil_type *t, uint32_t op)
{
    int taken = 0;
    if (p->failed) return;
    uint32_t value = sg_mil_value_add(p->f, id, t, op, &taken);
    if (taken)
        sg_mil_parse_error(p, at, 17, "the name %.60s is taken; names must be unique within a function", id);
    if (value == SG_MIL_NONE && !taken) sg_mil_parse_no_memory(p);
    if (p->failed) return;
    p->f->values[value].line = at->line;
    p->f->values[value].column = at->column;
}

enum { OUTPUTS_MAX = 64 }; /* results of a statement */

/* `OP<TARGET>(...)[...];`. An unknown operation is accepted here; the type check reports it with its
 * constraint. */
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

/* `TYPE NAME, ... = OPERATION`. The results are defined after the arguments were read, so an operation
 * cannot read its own results. */
static void parse_statement(struct sg_mil_parser *p)
{
    struct sg_mil_token at[OUTPUTS_MAX], start = p->token;
    const char *ids[OUTPUTS_MAX];
    struct sg_mil_type types[OUTPUTS_MAX];
    uint32_t n = 0;
    p->op = NULL; /* messages name no operation until its first result is known */
    if (++p->ops_n > SG_MIL_OPS_MAX) sg_mil_parse_error(p, &start, 0, "more than %d operations", SG_MIL_OPS_MAX);
    /* Types and names of the results; at[] has the position of each name. */
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
    struct sg_mil_op parsed = {.line = start.line, .column = start.column, .outputs = n};
    parse_operation(p, &parsed);
    if (p->failed) return;
    parsed.first = p->f->values_n;
    uint32_t index = p->f->ops_n;
    struct sg_mil_op *op = sg_mil_op_add(p->f);
    if (!op) {
        sg_mil_parse_no_memory(p);
        return;
    }
    *op = parsed;
    for (uint32_t i = 0; i < n; i++) define_value(p, &at[i], ids[i], &types[i], index);
}

/* `(TYPE NAME, ...)`: the parameters are the first values of the function. */
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

/* `-> (NAME, ...);` after the body. */
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
        /* The test above stops the parser, so refs[] cannot overflow. */
        if (!p->failed) p->refs[n++] = parse_ref(p);
        if (!sg_mil_accept(p, ',')) break;
    }
    sg_mil_expect(p, ')');
    sg_mil_expect(p, ';');
    if (p->failed) return;
    /* A function without results breaks constraint 17. */
    if (!n) sg_mil_parse_error(p, &p->token, 17, "function %.60s returns nothing", p->f->name);
    p->f->returns = sg_alloc(n * sizeof *p->f->returns);
    if (!p->f->returns) {
        sg_mil_parse_no_memory(p);
        return;
    }
    memcpy(p->f->returns, p->refs, n * sizeof *p->refs);
    p->f->returns_n = n;
}

/* `func NAME<TARGET>(...) { ... } -> (...);` */
static void parse_function(struct sg_mil_parser *p)
{
    struct sg_mil_token at = p->token;
    p->op = NULL; /* messages up to the first statement name no operation */
    sg_mil_expect_name(p, "func");
    const char *id = sg_mil_parse_name(p, "a function's name");
    sg_mil_expect(p, '<');
    const char *target = sg_mil_parse_name(p, "a target");
    sg_mil_expect(p, '>');
    if (!p->failed && sg_mil_function_find(p->program, id))
        sg_mil_parse_error(p, &at, 17, "two functions are named %.60s", id);
    /* Programs are known to have a few functions; the limit bounds the search for duplicates. */
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
    /* The body is complete: messages about the results name no operation. */
    p->op = NULL;
    parse_returns(p);
}

/* `[buildInfo = dict<K, V>({{"a", "b"}, ...})]`: the entries are stored for printing and not checked. */
static void parse_build_info(struct sg_mil_parser *p)
{
    struct sg_mil_pair pairs[64];
    uint32_t n = 0;
    uint64_t len;
    sg_mil_expect(p, '[');
    sg_mil_parse_name(p, "an attribute's name"); /* any name is accepted */
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
        /* The failed state is tested before pairs[n] is written. */
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

/* `program(1.0)`: the lexer returns the version as one NUMBER token. */
static void parse_version(struct sg_mil_parser *p)
{
    sg_mil_expect_name(p, "program");
    sg_mil_expect(p, '(');
    unsigned v[2] = {0, 0};
    char copy[16] = ""; /* the token as a C string for sscanf; a longer one is not a version */
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

/* The dialect follows from the header: version 1.0 is verbose, later versions are modern with buildInfo and
 * buffer without. */
static void parse_program(struct sg_mil_parser *p)
{
    sg_mil_next_token(p);
    parse_version(p);
    int info = sg_mil_is_punct(p, '['); /* buildInfo is optional */
    p->program->has_info = info;
    if (info) parse_build_info(p);
    sg_mil_expect(p, '{');
    while (!p->failed && !sg_mil_is_punct(p, '}')) parse_function(p);
    sg_mil_expect(p, '}');
    if (!p->failed && p->token.kind != SG_MIL_END) sg_mil_unexpected(p, "the end of the text");
    if (!p->failed && !p->program->functions_n) sg_mil_parse_error(p, &p->token, 0, "a program without a function");
    p->program->dialect = p->program->minor == 0 ? SG_MIL_VERBOSE : info ? SG_MIL_MODERN : SG_MIL_BUFFER;
}

/* The parser state is too large for the stack (lists of 4096 references), so it is allocated. */
segue_status sg_mil_parse(struct sg_mil_program **out, const char *text, size_t n, const char *name_of_text,
                          struct sg_mil_fault *fault, segue_error *err)
{
    struct sg_mil_fault local_fault;
    if (n > SG_MIL_TEXT_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "MIL text: %.80s: %zu bytes, more than the limit of %d; split the program",
                       name_of_text, n, SG_MIL_TEXT_MAX);
    struct sg_mil_parser *p = sg_alloc(sizeof *p);
    if (!p || !(p->program = sg_mil_program_new(SG_MIL_VERBOSE))) {
        sg_free(p);
        return sg_no_memory("MIL text", sizeof *p, err);
    }
    /* The parser always has a fault to write to. */
    p->fault = fault ? fault : &local_fault;
    *p->fault = (struct sg_mil_fault){0};
    sg_mil_lexer_init(&p->lexer, text, n);
    parse_program(p);
    segue_status status = !p->failed ? SEGUE_OK : p->no_memory ? SEGUE_EMEMORY : SEGUE_EFORMAT;
    /* On success the program passes to the caller; otherwise it is freed with everything parsed so far. */
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
