/* jinja_expr.c: expressions by recursive descent, in the precedence of jinja2, lowest first: `a if b else c`, or, and,
 * not, comparisons, + -, ~, * / // %, **, unary signs, then access, calls, filters and tests. Each function parses from
 * the current token on, stores the subtree in *out and leaves the first token after it current.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/parse/jinja_parse.h"

/* Make node a string constant. The value is marked fixed: it is not counted or freed, and any number of renderings
 * may read it at the same time. s must be in the arena. */
static segue_status const_str(struct sg_jinja_parser *p, const char *s, size_t n, struct sg_jinja_node *node)
{
    struct sg_str *str = sg_arena_alloc(&p->t->arena, sizeof *str);
    if (!str) return sg_no_memory("template string", n, p->err);
    *str = (struct sg_str){.o = {.kind = SG_V_STR, .fixed = 1}, .s = s, .n = n};
    /* code points are the bytes that do not continue a UTF-8 sequence */
    for (size_t i = 0; i < n; i++) str->chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    node->u.value = sg_v_of(&str->o);
    return SEGUE_OK;
}

/* Adjacent string literals are one string, as in Python: "a" "b" is "ab". */
static segue_status parse_strings(struct sg_jinja_parser *p, struct sg_jinja_node *node)
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

/* Items of a list or dict up to the closing bracket; pairs: each item is `key: value`, stored as two nodes in a row.
 * A comma after the last item is allowed. */
static segue_status parse_items(struct sg_jinja_parser *p, unsigned close, int pairs, struct sg_jinja_node **first)
{
    struct sg_jinja_node **tail = first;
    SG_TRY(sg_parser_next(p));
    while (!sg_parser_is_op(p, close)) {
        /* a comma precedes all items but the first */
        if (tail != first) SG_TRY(sg_parser_expect_op(p, ','));
        if (sg_parser_is_op(p, close)) break;
        SG_TRY(sg_parse_expression(p, 1, tail));
        tail = &(*tail)->next;
        if (!pairs) continue;
        SG_TRY(sg_parser_expect_op(p, ':'));
        SG_TRY(sg_parse_expression(p, 1, tail));
        tail = &(*tail)->next;
    }
    return sg_parser_next(p);
}

/* A name or one of the constants true, false, none; node comes in as SG_N_CONST. with_ns: name.attr becomes
 * SG_N_NSREF. */
static segue_status parse_name(struct sg_jinja_parser *p, int with_ns, struct sg_jinja_node *node)
{
    struct sg_jinja_token t = p->tok;
    SG_TRY(sg_parser_next(p));
    if (sg_token_is_name(&t, "true") || sg_token_is_name(&t, "True")) return node->u.value = sg_v_bool(1), SEGUE_OK;
    if (sg_token_is_name(&t, "false") || sg_token_is_name(&t, "False"))
        return node->u.value = sg_v_bool(0), SEGUE_OK;
    if (sg_token_is_name(&t, "none") || sg_token_is_name(&t, "None")) return node->u.value = sg_v_none(), SEGUE_OK;
    node->kind = SG_N_NAME;
    node->s = t.s;
    node->n = t.n;
    SG_TRY(sg_parser_name_id(p, t.s, t.n, &node->name));
    if (!with_ns || !sg_parser_is_op(p, '.')) return SEGUE_OK;
    SG_TRY(sg_parser_next(p));
    node->kind = SG_N_NSREF;
    node->s = p->tok.s;
    node->n = p->tok.n;
    return sg_parser_expect(p, SG_T_NAME, "a name after '.'");
}

/* A literal, a name, a list, a dict, or a tuple or expression in parentheses. */
segue_status sg_parse_primary(struct sg_jinja_parser *p, int with_ns, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL;
    char buf[64];
    uint32_t line = p->tok.line;
    if (sg_parser_is_op(p, '(')) {
        SG_TRY(sg_parser_enter(p));
        SG_TRY(sg_parser_next(p));
        SG_TRY(sg_parse_tuple(p, 0, 1, NULL, 1, 0, out));
        p->level--;
        return sg_parser_expect_op(p, ')');
    }
    /* a constant until the token shows another kind */
    SG_TRY(sg_parser_new_node(p, SG_N_CONST, line, &node));
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
    return sg_parser_finish_node(p, node);
}

/* One argument of a call. *kind: kind of the arguments so far, 0 positional, 'k' keyword, '*', 'd' for **; it
 * decides which may follow. */
static segue_status parse_arg(struct sg_jinja_parser *p, int *kind, struct sg_jinja_node **out)
{
    struct sg_jinja_node *arg = NULL;
    struct sg_jinja_token ahead = {0};
    int now = 0;
    SG_TRY(sg_parser_new_node(p, SG_N_ARG, p->tok.line, &arg));
    if (sg_parser_is_op(p, '*'))
        now = '*';
    else if (sg_parser_is_op(p, SG_OP2('*', '*')))
        now = 'd';
    else if (p->tok.kind == SG_T_NAME) {
        SG_TRY(sg_parser_peek(p, &ahead));
        if (sg_token_is_op(&ahead, '=')) now = 'k';
    }
    /* at most one * and one **; keywords may follow *, but not **; positional arguments come first */
    int bad = now == '*' ? *kind == '*' || *kind == 'd' : now ? *kind == 'd' : *kind != 0;
    if (bad) return sg_parser_fail(p, p->tok.line, "invalid order of arguments in a call");
    arg->op = (uint8_t)now;
    if (now == 'k') {
        /* the name of the keyword; '=' is the next token */
        arg->s = p->tok.s;
        arg->n = p->tok.n;
        SG_TRY(sg_parser_next(p));
    }
    if (now) SG_TRY(sg_parser_next(p));
    /* a keyword after * leaves '*' in place, so that a second * is still refused */
    if (now != 'k' || *kind == 0) *kind = now;
    SG_TRY(sg_parse_expression(p, 1, &arg->a));
    *out = arg;
    return sg_parser_finish_node(p, arg);
}

/* The arguments in parentheses, as a list of SG_N_ARG. */
static segue_status parse_args(struct sg_jinja_parser *p, struct sg_jinja_node **first)
{
    struct sg_jinja_node **tail = first;
    int kind = 0;
    SG_TRY(sg_parser_enter(p));
    SG_TRY(sg_parser_expect_op(p, '('));
    while (!sg_parser_is_op(p, ')')) {
        if (tail != first) SG_TRY(sg_parser_expect_op(p, ','));
        if (sg_parser_is_op(p, ')')) break;
        SG_TRY(parse_arg(p, &kind, tail));
        tail = &(*tail)->next;
    }
    p->level--;
    return sg_parser_next(p);
}

/* A call of the value `callee`, whose parentheses begin at the current token. */
static segue_status parse_call(struct sg_jinja_parser *p, struct sg_jinja_node *callee, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL;
    SG_TRY(sg_parser_new_node(p, SG_N_CALL, p->tok.line, &node));
    node->a = callee;
    SG_TRY(parse_args(p, &node->b));
    *out = node;
    return sg_parser_finish_node(p, node);
}

/* One bound of a slice; *out stays NULL when it is omitted. */
static segue_status slice_part(struct sg_jinja_parser *p, struct sg_jinja_node **out)
{
    if (sg_parser_is_op(p, ':') || sg_parser_is_op(p, ']') || sg_parser_is_op(p, ',')) return SEGUE_OK;
    return sg_parse_expression(p, 1, out);
}

/* The contents of [..]: an expression, or a slice whose omitted bounds are NULL. */
static segue_status parse_subscript(struct sg_jinja_parser *p, struct sg_jinja_node **out)
{
    struct sg_jinja_node *slice = NULL, *first = NULL;
    uint32_t line = p->tok.line;
    int more;
    if (!sg_parser_is_op(p, ':')) {
        SG_TRY(sg_parse_expression(p, 1, &first));
        *out = first;
        if (!sg_parser_is_op(p, ':')) return SEGUE_OK;
    }
    SG_TRY(sg_parser_new_node(p, SG_N_SLICE, line, &slice));
    slice->a = first;
    SG_TRY(sg_parser_next(p));
    SG_TRY(slice_part(p, &slice->b));
    SG_TRY(sg_parser_accept_op(p, ':', &more));
    if (more) SG_TRY(slice_part(p, &slice->c));
    *out = slice;
    return sg_parser_finish_node(p, slice);
}

/* of.name, of.0 or of[..]. */
static segue_status parse_access(struct sg_jinja_parser *p, struct sg_jinja_node *of, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL, *key = NULL;
    uint32_t line = p->tok.line;
    int dot = sg_parser_is_op(p, '.');
    SG_TRY(sg_parser_new_node(p, SG_N_ITEM, line, &node));
    node->a = of;
    *out = node;
    SG_TRY(sg_parser_next(p));
    /* the node was made as ITEM; only a name after the dot makes it ATTR */
    if (dot && p->tok.kind == SG_T_NAME) {
        node->kind = SG_N_ATTR;
        node->s = p->tok.s;
        node->n = p->tok.n;
        SG_TRY(sg_parser_next(p));
        return sg_parser_finish_node(p, node);
    }
    if (dot) {
        /* of.0 is of[0] */
        SG_TRY(sg_parser_new_node(p, SG_N_CONST, line, &key));
        key->u.value = sg_v_int(p->tok.i);
        node->b = key;
        SG_TRY(sg_parser_expect(p, SG_T_INT, "a name or number after '.'"));
        return sg_parser_finish_node(p, node);
    }
    SG_TRY(sg_parser_enter(p));
    SG_TRY(parse_subscript(p, &node->b));
    p->level--;
    if (sg_parser_is_op(p, ',')) return sg_parser_fail(p, line, "several subscripts are not supported");
    SG_TRY(sg_parser_expect_op(p, ']'));
    return sg_parser_finish_node(p, node);
}

/* Any number of accesses and calls after a value, applied from left to right. */
static segue_status parse_postfix(struct sg_jinja_parser *p, struct sg_jinja_node **node)
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

/* The name of a filter or test. Dots are accepted as in jinja2, but no builtin has one in its name. */
static segue_status parse_dotted(struct sg_jinja_parser *p, struct sg_jinja_node *node)
{
    node->s = p->tok.s;
    node->n = p->tok.n;
    SG_TRY(sg_parser_expect(p, SG_T_NAME, "the name of a filter or test"));
    node->op = sg_parser_is_op(p, '.'); /* 1: the caller must not look the name up */
    while (sg_parser_is_op(p, '.')) {
        SG_TRY(sg_parser_next(p));
        SG_TRY(sg_parser_expect(p, SG_T_NAME, "the name of a filter or test"));
    }
    return SEGUE_OK;
}

/* An unknown filter is not an error here: jinja2 raises it only where the filter may run, see bind_func. */
segue_status sg_parse_filters(struct sg_jinja_parser *p, struct sg_jinja_node *value, int inline_first,
                              struct sg_jinja_node **out)
{
    *out = value;
    while (sg_parser_is_op(p, '|') || inline_first) {
        struct sg_jinja_node *node = NULL;
        if (!inline_first) SG_TRY(sg_parser_next(p));
        SG_TRY(sg_parser_new_node(p, SG_N_FILTER, p->tok.line, &node));
        /* the value so far is the operand, so that a|b|c nests to c(b(a)) */
        node->a = *out;
        SG_TRY(parse_dotted(p, node));
        node->u.func = node->op ? NULL : p->env->filter(node->s, node->n);
        if (sg_parser_is_op(p, '(')) SG_TRY(parse_args(p, &node->b));
        *out = node;
        SG_TRY(sg_parser_finish_node(p, node));
        inline_first = 0;
    }
    return SEGUE_OK;
}

/* `value is [not] NAME [argument]`. An argument without parentheses is one primary with its accesses. */
static segue_status parse_test(struct sg_jinja_parser *p, struct sg_jinja_node *value, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL, *neg = NULL;
    int negated;
    SG_TRY(sg_parser_new_node(p, SG_N_TEST, p->tok.line, &node));
    SG_TRY(sg_parser_next(p));
    SG_TRY(sg_parser_accept_name(p, "not", &negated));
    node->a = value;
    SG_TRY(parse_dotted(p, node));
    node->u.func = node->op ? NULL : p->env->test(node->s, node->n);
    /* jinja2 decides by the next token whether an argument follows; these words end the test instead */
    int literal = p->tok.kind == SG_T_STRING || p->tok.kind == SG_T_INT || p->tok.kind == SG_T_FLOAT ||
                  sg_parser_is_op(p, '[') || sg_parser_is_op(p, '{');
    int word = p->tok.kind == SG_T_NAME && !sg_parser_is_name(p, "else") && !sg_parser_is_name(p, "or") &&
               !sg_parser_is_name(p, "and");
    if (sg_parser_is_op(p, '('))
        SG_TRY(parse_args(p, &node->b));
    else if (literal || word) {
        /* jinja2 refuses `a is b is c` too */
        if (sg_parser_is_name(p, "is"))
            return sg_parser_fail(p, p->tok.line, "tests cannot be chained with 'is'");
        SG_TRY(sg_parser_new_node(p, SG_N_ARG, p->tok.line, &node->b));
        SG_TRY(sg_parse_primary(p, 0, &node->b->a));
        SG_TRY(parse_postfix(p, &node->b->a));
        SG_TRY(sg_parser_finish_node(p, node->b));
    }
    *out = node;
    SG_TRY(sg_parser_finish_node(p, node));
    if (!negated) return SEGUE_OK;
    SG_TRY(sg_parser_new_node(p, SG_N_NOT, node->line, &neg));
    neg->a = node;
    *out = neg;
    return sg_parser_finish_node(p, neg);
}

/* A sign, or a primary with its accesses; with_filter: then filters, tests and calls. Filters bind weaker than the
 * sign, so -1|abs is (-1)|abs. */
static segue_status parse_unary(struct sg_jinja_parser *p, int with_filter, struct sg_jinja_node **out)
{
    int neg = sg_parser_is_op(p, '-');
    if (neg || sg_parser_is_op(p, '+')) {
        struct sg_jinja_node *node = NULL;
        SG_TRY(sg_parser_enter(p));
        SG_TRY(sg_parser_new_node(p, neg ? SG_N_NEG : SG_N_POS, p->tok.line, &node));
        SG_TRY(sg_parser_next(p));
        SG_TRY(parse_unary(p, 0, &node->a));
        SG_TRY(sg_parser_finish_node(p, node));
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

/* A node of the two operands a and b. */
static segue_status new_binary(struct sg_jinja_parser *p, int kind, unsigned op, struct sg_jinja_node *a,
                               struct sg_jinja_node *b, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL;
    SG_TRY(sg_parser_new_node(p, kind, a->line, &node));
    node->op = (uint8_t)(op > 255 ? (op >> 8) + 128 : op); /* 128 + '/' for //, 128 + '*' for ** */
    node->a = a;
    node->b = b;
    *out = node;
    return sg_parser_finish_node(p, node);
}

/* Binary operators of one precedence level: 0 + -, 1 ~, 2 * / // %, 3 **. All associate to the left, also **, as in
 * jinja2. */
static segue_status parse_math(struct sg_jinja_parser *p, int level, struct sg_jinja_node **out)
{
    if (level == 4) return parse_unary(p, 1, out);
    SG_TRY(parse_math(p, level + 1, out));
    struct sg_jinja_node **tail = NULL;
    for (;;) {
        static const char *const ops[] = {"+-", "~", "*/%", ""};
        unsigned op = p->tok.op;
        int here = p->tok.kind == SG_T_OP && op && op < 128 && strchr(ops[level], (int)op) != NULL;
        if (level == 2 && sg_parser_is_op(p, SG_OP2('/', '/'))) here = 1;
        if (level == 3 && sg_parser_is_op(p, SG_OP2('*', '*'))) here = 1;
        if (!here) break;
        SG_TRY(sg_parser_next(p));
        struct sg_jinja_node *right = NULL;
        SG_TRY(parse_math(p, level + 1, &right));
        /* ~ collects all its operands in one CONCAT node; tail: end of that list */
        if (level != 1) {
            SG_TRY(new_binary(p, SG_N_BINARY, op, *out, right, out));
        } else if (tail) {
            *tail = right;
            tail = &right->next;
        } else {
            struct sg_jinja_node *concat = NULL;
            SG_TRY(sg_parser_new_node(p, SG_N_CONCAT, (*out)->line, &concat));
            concat->a = *out;
            (*out)->next = right;
            tail = &right->next;
            *out = concat;
        }
    }
    return tail ? sg_parser_finish_node(p, *out) : SEGUE_OK;
}

/* Consume a comparison operator. *op: '<', '>', 'e' ==, '!' !=, 'l' <=, 'g' >=, 'i' in, 'n' not in; 0 = there is
 * none. */
static segue_status compare_op(struct sg_jinja_parser *p, uint8_t *op)
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
        struct sg_jinja_token ahead;
        SG_TRY(sg_parser_peek(p, &ahead));
        /* `not` belongs to this level only as `not in`; otherwise nothing is consumed */
        if (!sg_token_is_name(&ahead, "in")) return SEGUE_OK;
        *op = 'n';
        SG_TRY(sg_parser_next(p));
    }
    return *op ? sg_parser_next(p) : SEGUE_OK;
}

/* A chain of comparisons, a < b < c, is one node with a list of operands, as each operand is evaluated once. */
static segue_status parse_compare(struct sg_jinja_parser *p, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL, **tail = NULL;
    uint8_t op;
    SG_TRY(parse_math(p, 0, out));
    for (;;) {
        SG_TRY(compare_op(p, &op));
        if (!op) break;
        if (!node) {
            SG_TRY(sg_parser_new_node(p, SG_N_COMPARE, (*out)->line, &node));
            node->a = *out;
            /* operands after the first are ARG nodes with their operator */
            tail = &node->b;
            *out = node;
        }
        struct sg_jinja_node *arg = NULL;
        SG_TRY(sg_parser_new_node(p, SG_N_ARG, p->tok.line, &arg));
        arg->op = op;
        SG_TRY(parse_math(p, 0, &arg->a));
        SG_TRY(sg_parser_finish_node(p, arg));
        *tail = arg;
        tail = &arg->next;
    }
    return node ? sg_parser_finish_node(p, node) : SEGUE_OK;
}

/* `not` binds weaker than comparisons: not a == b is not (a == b). */
static segue_status parse_not(struct sg_jinja_parser *p, struct sg_jinja_node **out)
{
    struct sg_jinja_node *node = NULL;
    if (!sg_parser_is_name(p, "not")) return parse_compare(p, out);
    SG_TRY(sg_parser_enter(p));
    SG_TRY(sg_parser_new_node(p, SG_N_NOT, p->tok.line, &node));
    SG_TRY(sg_parser_next(p));
    SG_TRY(parse_not(p, &node->a));
    p->level--;
    *out = node;
    return sg_parser_finish_node(p, node);
}

/* Operands of `or` (is_or) or of `and`, left to right. */
static segue_status parse_logic(struct sg_jinja_parser *p, int is_or, struct sg_jinja_node **out)
{
    SG_TRY(is_or ? parse_logic(p, 0, out) : parse_not(p, out));
    for (;;) {
        struct sg_jinja_node *right = NULL;
        int did;
        SG_TRY(sg_parser_accept_name(p, is_or ? "or" : "and", &did));
        if (!did) return SEGUE_OK;
        SG_TRY(is_or ? parse_logic(p, 0, &right) : parse_not(p, &right));
        SG_TRY(new_binary(p, is_or ? SG_N_OR : SG_N_AND, 0, *out, right, out));
    }
}

/* `a if test else b`; the else part may be absent and may be a condition itself. */
static segue_status parse_cond(struct sg_jinja_parser *p, struct sg_jinja_node **out)
{
    SG_TRY(parse_logic(p, 1, out));
    for (;;) {
        struct sg_jinja_node *node = NULL;
        int did;
        SG_TRY(sg_parser_accept_name(p, "if", &did));
        if (!did) return SEGUE_OK;
        SG_TRY(sg_parser_new_node(p, SG_N_COND, (*out)->line, &node));
        node->b = *out;
        SG_TRY(parse_logic(p, 1, &node->a));
        SG_TRY(sg_parser_accept_name(p, "else", &did));
        if (did) {
            /* the loop handles a chain of `if`; only else recurses */
            SG_TRY(sg_parser_enter(p));
            SG_TRY(parse_cond(p, &node->c));
            p->level--;
        }
        *out = node;
        SG_TRY(sg_parser_finish_node(p, node));
    }
}

/* Without conditions in the iterable of `for`, where `if` begins the loop's condition. */
segue_status sg_parse_expression(struct sg_jinja_parser *p, int with_cond, struct sg_jinja_node **out)
{
    return with_cond ? parse_cond(p, out) : parse_logic(p, 1, out);
}

/* Ends at the first token that is neither an expression nor a comma; the caller checks that token. */
segue_status sg_parse_tuple(struct sg_jinja_parser *p, int simple, int with_cond, const char *end, int parens,
                            int with_ns, struct sg_jinja_node **out)
{
    struct sg_jinja_node *first = NULL, **tail = &first, *tuple = NULL;
    uint32_t line = p->tok.line;
    char buf[64];
    int is_tuple = 0, comma;
    /* a token that cannot begin an expression ends the tuple; it may follow a comma */
    for (;;) {
        if (p->tok.kind == SG_T_VAR_END || p->tok.kind == SG_T_BLOCK_END || sg_parser_is_op(p, ')')) break;
        if (end && sg_parser_is_name(p, end)) break;
        SG_TRY(simple ? sg_parse_primary(p, with_ns, tail) : sg_parse_expression(p, with_cond, tail));
        tail = &(*tail)->next;
        SG_TRY(sg_parser_accept_op(p, ',', &comma));
        if (!comma) break;
        is_tuple = 1;
    }
    /* one expression without a comma is not a tuple */
    if (!is_tuple && first) return *out = first, SEGUE_OK;
    if (!is_tuple && !parens)
        return sg_parser_fail(p, line, "expected an expression, got %s", sg_parser_describe(p, buf));
    SG_TRY(sg_parser_new_node(p, SG_N_TUPLE, line, &tuple));
    tuple->a = first;
    *out = tuple;
    return sg_parser_finish_node(p, tuple);
}
