/* jinja_expr.c: tokens to expression nodes, by jinja2's grammar and precedence (pow below unary, tests and filters
 * after postfix, `if` without `else`). Refuses nesting that could not be walked; every node lives in the arena.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/jinja.h"

/* A string of the template: never counted, never swept, read by all renderings. */
static segue_status const_str(struct sg_parser *p, const char *s, size_t n, struct sg_node *node)
{
    struct sg_str *str = sg_arena_alloc(&p->t->arena, sizeof *str);
    if (!str) return sg_no_memory("template string", n, p->err);
    *str = (struct sg_str){.o = {.kind = SG_V_STR, .fixed = 1}, .s = s, .n = n};
    for (size_t i = 0; i < n; i++) str->chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    node->u.value = sg_v_of(&str->o);
    return SEGUE_OK;
}

/* "a" "b" is one string, as in Python. */
static segue_status parse_strings(struct sg_parser *p, struct sg_node *node)
{
    struct sg_buf b = {.limit = SG_SOURCE_BYTES};
    segue_status s = SEGUE_OK;
    while (s == SEGUE_OK && p->tok.kind == SG_T_STRING) {
        s = sg_buf_add(&b, p->tok.s, p->tok.n);
        if (s == SEGUE_OK) s = sg_parser_next(p);
    }
    char *copy = s == SEGUE_OK ? sg_arena_strndup(&p->t->arena, b.data, b.len) : NULL;
    if (s == SEGUE_OK)
        s = copy ? const_str(p, copy, b.len, node) : sg_no_memory("template string", b.len, p->err);
    else if (b.failed)
        s = sg_no_memory("template string", b.len, p->err);
    sg_buf_free(&b);
    return s;
}

static segue_status parse_items(struct sg_parser *p, unsigned close, int pairs, struct sg_node **first)
{
    struct sg_node **tail = first;
    SG_TRY(sg_parser_next(p));
    while (!sg_parser_is_op(p, close)) {
        if (tail != first) SG_TRY(sg_parser_want_op(p, ','));
        if (sg_parser_is_op(p, close)) break;
        SG_TRY(sg_parse_expression(p, 1, tail));
        tail = &(*tail)->next;
        if (!pairs) continue;
        SG_TRY(sg_parser_want_op(p, ':'));
        SG_TRY(sg_parse_expression(p, 1, tail));
        tail = &(*tail)->next;
    }
    return sg_parser_next(p);
}

static segue_status parse_name(struct sg_parser *p, int with_ns, struct sg_node *node)
{
    struct sg_token t = p->tok;
    SG_TRY(sg_parser_next(p));
    if (sg_token_is_name(&t, "true") || sg_token_is_name(&t, "True")) return node->u.value = sg_v_bool(1), SEGUE_OK;
    if (sg_token_is_name(&t, "false") || sg_token_is_name(&t, "False"))
        return node->u.value = sg_v_bool(0), SEGUE_OK;
    if (sg_token_is_name(&t, "none") || sg_token_is_name(&t, "None")) return node->u.value = sg_v_none(), SEGUE_OK;
    node->kind = SG_N_NAME;
    node->s = t.s;
    node->n = t.n;
    SG_TRY(sg_parser_name(p, t.s, t.n, &node->name));
    if (!with_ns || !sg_parser_is_op(p, '.')) return SEGUE_OK;
    SG_TRY(sg_parser_next(p));
    node->kind = SG_N_NSREF;
    node->s = p->tok.s;
    node->n = p->tok.n;
    return sg_parser_want(p, SG_T_NAME, "a name after '.'");
}

segue_status sg_parse_primary(struct sg_parser *p, int with_ns, struct sg_node **out)
{
    struct sg_node *node = NULL;
    char buf[64];
    uint32_t line = p->tok.line;
    if (sg_parser_is_op(p, '(')) {
        SG_TRY(sg_parser_enter(p));
        SG_TRY(sg_parser_next(p));
        SG_TRY(sg_parse_tuple(p, 0, 1, NULL, 1, 0, out));
        p->level--;
        return sg_parser_want_op(p, ')');
    }
    SG_TRY(sg_parser_node(p, SG_N_CONST, line, &node));
    *out = node;
    if (p->tok.kind == SG_T_NAME) return parse_name(p, with_ns, node);
    if (p->tok.kind == SG_T_STRING) return parse_strings(p, node);
    if (p->tok.kind == SG_T_INT || p->tok.kind == SG_T_FLOAT) {
        node->u.value = p->tok.kind == SG_T_INT ? sg_v_int(p->tok.i) : sg_v_float(p->tok.f);
        return sg_parser_next(p);
    }
    int dict = sg_parser_is_op(p, '{');
    if (!dict && !sg_parser_is_op(p, '[')) return sg_parser_fail(p, line, "unexpected %s", sg_parser_describe(p, buf));
    SG_TRY(sg_parser_enter(p));
    node->kind = dict ? SG_N_DICT : SG_N_LIST;
    SG_TRY(parse_items(p, dict ? '}' : ']', dict, &node->a));
    p->level--;
    return sg_parser_seal(p, node);
}

/* One argument of a call; *kind: what may still follow (0 positional, 'k', '*', 'd'). */
static segue_status parse_arg(struct sg_parser *p, int *kind, struct sg_node **out)
{
    struct sg_node *arg = NULL;
    struct sg_token ahead = {0};
    int now = 0;
    SG_TRY(sg_parser_node(p, SG_N_ARG, p->tok.line, &arg));
    if (sg_parser_is_op(p, '*'))
        now = '*';
    else if (sg_parser_is_op(p, SG_OP2('*', '*')))
        now = 'd';
    else if (p->tok.kind == SG_T_NAME) {
        SG_TRY(sg_parser_look(p, &ahead));
        if (sg_token_is_op(&ahead, '=')) now = 'k';
    }
    int bad = now == '*' ? *kind == '*' || *kind == 'd' : now ? *kind == 'd' : *kind != 0;
    if (bad) return sg_parser_fail(p, p->tok.line, "invalid order of arguments in a call");
    arg->op = (uint8_t)now;
    if (now == 'k') {
        arg->s = p->tok.s;
        arg->n = p->tok.n;
        SG_TRY(sg_parser_next(p));
    }
    if (now) SG_TRY(sg_parser_next(p));
    if (now != 'k' || *kind == 0) *kind = now;
    SG_TRY(sg_parse_expression(p, 1, &arg->a));
    *out = arg;
    return sg_parser_seal(p, arg);
}

static segue_status parse_args(struct sg_parser *p, struct sg_node **first)
{
    struct sg_node **tail = first;
    int kind = 0;
    SG_TRY(sg_parser_enter(p));
    SG_TRY(sg_parser_want_op(p, '('));
    while (!sg_parser_is_op(p, ')')) {
        if (tail != first) SG_TRY(sg_parser_want_op(p, ','));
        if (sg_parser_is_op(p, ')')) break;
        SG_TRY(parse_arg(p, &kind, tail));
        tail = &(*tail)->next;
    }
    p->level--;
    return sg_parser_next(p);
}

static segue_status parse_call(struct sg_parser *p, struct sg_node *callee, struct sg_node **out)
{
    struct sg_node *node = NULL;
    SG_TRY(sg_parser_node(p, SG_N_CALL, p->tok.line, &node));
    node->a = callee;
    SG_TRY(parse_args(p, &node->b));
    *out = node;
    return sg_parser_seal(p, node);
}

static segue_status slice_part(struct sg_parser *p, struct sg_node **out)
{
    if (sg_parser_is_op(p, ':') || sg_parser_is_op(p, ']') || sg_parser_is_op(p, ',')) return SEGUE_OK;
    return sg_parse_expression(p, 1, out);
}

/* What stands in [..]: an expression or a slice. */
static segue_status parse_subscript(struct sg_parser *p, struct sg_node **out)
{
    struct sg_node *slice = NULL, *first = NULL;
    uint32_t line = p->tok.line;
    int more;
    if (!sg_parser_is_op(p, ':')) {
        SG_TRY(sg_parse_expression(p, 1, &first));
        *out = first;
        if (!sg_parser_is_op(p, ':')) return SEGUE_OK;
    }
    SG_TRY(sg_parser_node(p, SG_N_SLICE, line, &slice));
    slice->a = first;
    SG_TRY(sg_parser_next(p));
    SG_TRY(slice_part(p, &slice->b));
    SG_TRY(sg_parser_skip_op(p, ':', &more));
    if (more) SG_TRY(slice_part(p, &slice->c));
    *out = slice;
    return sg_parser_seal(p, slice);
}

static segue_status parse_access(struct sg_parser *p, struct sg_node *of, struct sg_node **out)
{
    struct sg_node *node = NULL, *key = NULL;
    uint32_t line = p->tok.line;
    int dot = sg_parser_is_op(p, '.');
    SG_TRY(sg_parser_node(p, SG_N_ITEM, line, &node));
    node->a = of;
    *out = node;
    SG_TRY(sg_parser_next(p));
    if (dot && p->tok.kind == SG_T_NAME) {
        node->kind = SG_N_ATTR;
        node->s = p->tok.s;
        node->n = p->tok.n;
        SG_TRY(sg_parser_next(p));
        return sg_parser_seal(p, node);
    }
    if (dot) {
        SG_TRY(sg_parser_node(p, SG_N_CONST, line, &key));
        key->u.value = sg_v_int(p->tok.i);
        node->b = key;
        SG_TRY(sg_parser_want(p, SG_T_INT, "a name or number after '.'"));
        return sg_parser_seal(p, node);
    }
    SG_TRY(sg_parser_enter(p));
    SG_TRY(parse_subscript(p, &node->b));
    p->level--;
    if (sg_parser_is_op(p, ',')) return sg_parser_fail(p, line, "several subscripts are not supported");
    SG_TRY(sg_parser_want_op(p, ']'));
    return sg_parser_seal(p, node);
}

static segue_status parse_postfix(struct sg_parser *p, struct sg_node **node)
{
    for (;;) {
        if (sg_parser_is_op(p, '.') || sg_parser_is_op(p, '['))
            SG_TRY(parse_access(p, *node, node));
        else if (sg_parser_is_op(p, '('))
            SG_TRY(parse_call(p, *node, node));
        else
            return SEGUE_OK;
    }
}

/* The name of a filter or test, which may hold dots. */
static segue_status parse_dotted(struct sg_parser *p, struct sg_node *node)
{
    node->s = p->tok.s;
    node->n = p->tok.n;
    SG_TRY(sg_parser_want(p, SG_T_NAME, "the name of a filter or test"));
    node->op = sg_parser_is_op(p, '.'); /* jinja2 takes such names and then knows none of them */
    while (sg_parser_is_op(p, '.')) {
        SG_TRY(sg_parser_next(p));
        SG_TRY(sg_parser_want(p, SG_T_NAME, "the name of a filter or test"));
    }
    return SEGUE_OK;
}

segue_status sg_parse_filters(struct sg_parser *p, struct sg_node *value, int inline_first,
                              struct sg_node **out)
{
    *out = value;
    while (sg_parser_is_op(p, '|') || inline_first) {
        struct sg_node *node = NULL;
        if (!inline_first) SG_TRY(sg_parser_next(p));
        SG_TRY(sg_parser_node(p, SG_N_FILTER, p->tok.line, &node));
        node->a = *out;
        SG_TRY(parse_dotted(p, node));
        node->u.func = node->op ? NULL : sg_filter_find(node->s, node->n);
        if (sg_parser_is_op(p, '(')) SG_TRY(parse_args(p, &node->b));
        *out = node;
        SG_TRY(sg_parser_seal(p, node));
        inline_first = 0;
    }
    return SEGUE_OK;
}

static segue_status parse_test(struct sg_parser *p, struct sg_node *value, struct sg_node **out)
{
    struct sg_node *node = NULL, *neg = NULL;
    int negated;
    SG_TRY(sg_parser_node(p, SG_N_TEST, p->tok.line, &node));
    SG_TRY(sg_parser_next(p));
    SG_TRY(sg_parser_skip_name(p, "not", &negated));
    node->a = value;
    SG_TRY(parse_dotted(p, node));
    node->u.func = node->op ? NULL : sg_test_find(node->s, node->n);
    int literal = p->tok.kind == SG_T_STRING || p->tok.kind == SG_T_INT || p->tok.kind == SG_T_FLOAT ||
                  sg_parser_is_op(p, '[') || sg_parser_is_op(p, '{');
    int word = p->tok.kind == SG_T_NAME && !sg_parser_is_name(p, "else") && !sg_parser_is_name(p, "or") &&
               !sg_parser_is_name(p, "and");
    if (sg_parser_is_op(p, '('))
        SG_TRY(parse_args(p, &node->b));
    else if (literal || word) {
        if (sg_parser_is_name(p, "is"))
            return sg_parser_fail(p, p->tok.line, "tests cannot be chained with 'is'");
        SG_TRY(sg_parser_node(p, SG_N_ARG, p->tok.line, &node->b));
        SG_TRY(sg_parse_primary(p, 0, &node->b->a));
        SG_TRY(parse_postfix(p, &node->b->a));
        SG_TRY(sg_parser_seal(p, node->b));
    }
    *out = node;
    SG_TRY(sg_parser_seal(p, node));
    if (!negated) return SEGUE_OK;
    SG_TRY(sg_parser_node(p, SG_N_NOT, node->line, &neg));
    neg->a = node;
    *out = neg;
    return sg_parser_seal(p, neg);
}

static segue_status parse_unary(struct sg_parser *p, int with_filter, struct sg_node **out)
{
    int neg = sg_parser_is_op(p, '-');
    if (neg || sg_parser_is_op(p, '+')) {
        struct sg_node *node = NULL;
        SG_TRY(sg_parser_enter(p));
        SG_TRY(sg_parser_node(p, neg ? SG_N_NEG : SG_N_POS, p->tok.line, &node));
        SG_TRY(sg_parser_next(p));
        SG_TRY(parse_unary(p, 0, &node->a));
        SG_TRY(sg_parser_seal(p, node));
        *out = node;
        p->level--;
    } else {
        SG_TRY(sg_parse_primary(p, 0, out));
    }
    SG_TRY(parse_postfix(p, out));
    while (with_filter) {
        if (sg_parser_is_op(p, '|'))
            SG_TRY(sg_parse_filters(p, *out, 0, out));
        else if (sg_parser_is_name(p, "is"))
            SG_TRY(parse_test(p, *out, out));
        else if (sg_parser_is_op(p, '('))
            SG_TRY(parse_call(p, *out, out));
        else
            break;
    }
    return SEGUE_OK;
}

static segue_status binary(struct sg_parser *p, int kind, unsigned op, struct sg_node *a, struct sg_node *b,
                           struct sg_node **out)
{
    struct sg_node *node = NULL;
    SG_TRY(sg_parser_node(p, kind, a->line, &node));
    node->op = (uint8_t)(op > 255 ? (op >> 8) + 128 : op); /* 128 + '/' for //, 128 + '*' for ** */
    node->a = a;
    node->b = b;
    *out = node;
    return sg_parser_seal(p, node);
}

/* Arithmetic by levels: 0 + -, 1 ~, 2 * / // %, 3 **. Left to right on each. */
static segue_status parse_math(struct sg_parser *p, int level, struct sg_node **out)
{
    if (level == 4) return parse_unary(p, 1, out);
    SG_TRY(parse_math(p, level + 1, out));
    struct sg_node **tail = NULL;
    for (;;) {
        static const char *const ops[] = {"+-", "~", "*/%", ""};
        unsigned op = p->tok.op;
        int here = p->tok.kind == SG_T_OP && op && op < 128 && strchr(ops[level], (int)op) != NULL;
        if (level == 2 && sg_parser_is_op(p, SG_OP2('/', '/'))) here = 1;
        if (level == 3 && sg_parser_is_op(p, SG_OP2('*', '*'))) here = 1;
        if (!here) break;
        SG_TRY(sg_parser_next(p));
        struct sg_node *right = NULL;
        SG_TRY(parse_math(p, level + 1, &right));
        if (level != 1) {
            SG_TRY(binary(p, SG_N_BINARY, op, *out, right, out));
        } else if (tail) {
            *tail = right;
            tail = &right->next;
        } else {
            struct sg_node *concat = NULL;
            SG_TRY(sg_parser_node(p, SG_N_CONCAT, (*out)->line, &concat));
            concat->a = *out;
            (*out)->next = right;
            tail = &right->next;
            *out = concat;
        }
    }
    return tail ? sg_parser_seal(p, *out) : SEGUE_OK;
}

/* The comparison that stands here: its first character, 'e' ==, '!' !=, 'l' <=, 'g' >=, 'i' in, 'n' not in; 0 none. */
static segue_status compare_op(struct sg_parser *p, uint8_t *op)
{
    static const struct {
        uint16_t op;
        uint8_t as;
    } table[] = {{'<', '<'},
                 {'>', '>'},
                 {SG_OP2('=', '='), 'e'},
                 {SG_OP2('!', '='), '!'},
                 {SG_OP2('<', '='), 'l'},
                 {SG_OP2('>', '='), 'g'}};
    *op = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (sg_parser_is_op(p, table[i].op)) *op = table[i].as;
    if (sg_parser_is_name(p, "in")) *op = 'i';
    if (sg_parser_is_name(p, "not")) {
        struct sg_token ahead;
        SG_TRY(sg_parser_look(p, &ahead));
        if (!sg_token_is_name(&ahead, "in")) return SEGUE_OK;
        *op = 'n';
        SG_TRY(sg_parser_next(p));
    }
    return *op ? sg_parser_next(p) : SEGUE_OK;
}

static segue_status parse_compare(struct sg_parser *p, struct sg_node **out)
{
    struct sg_node *node = NULL, **tail = NULL;
    uint8_t op;
    SG_TRY(parse_math(p, 0, out));
    for (;;) {
        SG_TRY(compare_op(p, &op));
        if (!op) break;
        if (!node) {
            SG_TRY(sg_parser_node(p, SG_N_COMPARE, (*out)->line, &node));
            node->a = *out;
            tail = &node->b;
            *out = node;
        }
        struct sg_node *arg = NULL;
        SG_TRY(sg_parser_node(p, SG_N_ARG, p->tok.line, &arg));
        arg->op = op;
        SG_TRY(parse_math(p, 0, &arg->a));
        SG_TRY(sg_parser_seal(p, arg));
        *tail = arg;
        tail = &arg->next;
    }
    return node ? sg_parser_seal(p, node) : SEGUE_OK;
}

static segue_status parse_not(struct sg_parser *p, struct sg_node **out)
{
    struct sg_node *node = NULL;
    if (!sg_parser_is_name(p, "not")) return parse_compare(p, out);
    SG_TRY(sg_parser_enter(p));
    SG_TRY(sg_parser_node(p, SG_N_NOT, p->tok.line, &node));
    SG_TRY(sg_parser_next(p));
    SG_TRY(parse_not(p, &node->a));
    p->level--;
    *out = node;
    return sg_parser_seal(p, node);
}

static segue_status parse_logic(struct sg_parser *p, int is_or, struct sg_node **out)
{
    SG_TRY(is_or ? parse_logic(p, 0, out) : parse_not(p, out));
    for (;;) {
        struct sg_node *right = NULL;
        int did;
        SG_TRY(sg_parser_skip_name(p, is_or ? "or" : "and", &did));
        if (!did) return SEGUE_OK;
        SG_TRY(is_or ? parse_logic(p, 0, &right) : parse_not(p, &right));
        SG_TRY(binary(p, is_or ? SG_N_OR : SG_N_AND, 0, *out, right, out));
    }
}

static segue_status parse_cond(struct sg_parser *p, struct sg_node **out)
{
    SG_TRY(parse_logic(p, 1, out));
    for (;;) {
        struct sg_node *node = NULL;
        int did;
        SG_TRY(sg_parser_skip_name(p, "if", &did));
        if (!did) return SEGUE_OK;
        SG_TRY(sg_parser_node(p, SG_N_COND, (*out)->line, &node));
        node->b = *out;
        SG_TRY(parse_logic(p, 1, &node->a));
        SG_TRY(sg_parser_skip_name(p, "else", &did));
        if (did) {
            SG_TRY(sg_parser_enter(p));
            SG_TRY(parse_cond(p, &node->c));
            p->level--;
        }
        *out = node;
        SG_TRY(sg_parser_seal(p, node));
    }
}

segue_status sg_parse_expression(struct sg_parser *p, int with_cond, struct sg_node **out)
{
    return with_cond ? parse_cond(p, out) : parse_logic(p, 1, out);
}

segue_status sg_parse_tuple(struct sg_parser *p, int simple, int with_cond, const char *end, int parens,
                            int with_ns, struct sg_node **out)
{
    struct sg_node *first = NULL, **tail = &first, *tuple = NULL;
    uint32_t line = p->tok.line;
    char buf[64];
    int is_tuple = 0, comma;
    for (;;) {
        if (p->tok.kind == SG_T_VAR_END || p->tok.kind == SG_T_BLOCK_END || sg_parser_is_op(p, ')')) break;
        if (end && sg_parser_is_name(p, end)) break;
        SG_TRY(simple ? sg_parse_primary(p, with_ns, tail) : sg_parse_expression(p, with_cond, tail));
        tail = &(*tail)->next;
        SG_TRY(sg_parser_skip_op(p, ',', &comma));
        if (!comma) break;
        is_tuple = 1;
    }
    if (!is_tuple && first) return *out = first, SEGUE_OK;
    if (!is_tuple && !parens)
        return sg_parser_fail(p, line, "expected an expression, got %s", sg_parser_describe(p, buf));
    SG_TRY(sg_parser_node(p, SG_N_TUPLE, line, &tuple));
    tuple->a = first;
    *out = tuple;
    return sg_parser_seal(p, tuple);
}
