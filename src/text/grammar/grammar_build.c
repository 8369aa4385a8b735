/* grammar_build.c: rules of a grammar while it is read, and their check: rules that match no finite text are removed, so that
 * every state of the automaton can reach an end; left recursion, which would make stacks grow without reading a byte, is
 * refused. SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/grammar/parts.h"

/* --- rules --- */

segue_status sg_build_fail(struct sg_grammar_builder *b, segue_status status, const char *format, ...)
{
    char text[400];
    va_list list;
    if (b->status) return b->status;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return b->status = sg_fail(b->err, status, "%s", text);
}

/* Make room for one more entry of `size` bytes. */
static int grow(struct sg_grammar_builder *b, void **array, uint32_t *cap, uint32_t n, size_t size)
{
    if (b->status) return 0;
    if (n < *cap) return 1;
    uint32_t more = *cap ? *cap * 2 : 4;
    void *p = sg_realloc(*array, more * size);
    if (!p) {
        b->status = sg_no_memory("grammar", more * size, b->err);
        return 0;
    }
    *array = p;
    *cap = more;
    return 1;
}

uint32_t sg_build_rule(struct sg_grammar_builder *b)
{
    if (b->rules_n == SG_GRAMMAR_RULES_MAX)
        sg_build_fail(b, SEGUE_ELIMIT, "grammar: too large: more than %d rules; simplify it", SG_GRAMMAR_RULES_MAX);
    if (!grow(b, (void **)&b->rules, &b->rules_cap, b->rules_n, sizeof *b->rules)) return 0;
    b->rules[b->rules_n] = (struct sg_rule){0};
    return b->rules_n++;
}

static void append(struct sg_grammar_builder *b, uint32_t rule, struct sg_element e)
{
    struct sg_rule *r = &b->rules[rule];
    if (b->elements_n == SG_GRAMMAR_ELEMENTS_MAX)
        sg_build_fail(b, SEGUE_ELIMIT, "grammar: too large: more than %d elements; simplify it", SG_GRAMMAR_ELEMENTS_MAX);
    if (b->status || !grow(b, (void **)&r->elements, &r->cap, r->n, sizeof *r->elements)) return;
    r->elements[r->n++] = e;
    b->elements_n++;
}

void sg_build_bytes(struct sg_grammar_builder *b, uint32_t rule, const struct sg_byte_set *set)
{
    /* Sets repeat soon after each other. */
    uint32_t i = b->sets_n;
    for (uint32_t back = 0; i > 0 && back < 64; back++, i--)
        if (!memcmp(&b->sets[i - 1], set, sizeof *set)) break;
    if (i > 0 && !memcmp(&b->sets[i - 1], set, sizeof *set)) {
        append(b, rule, (struct sg_element){SG_ELEMENT_BYTES, i - 1, 0, 0});
        return;
    }
    if (!grow(b, (void **)&b->sets, &b->sets_cap, b->sets_n, sizeof *b->sets)) return;
    b->sets[b->sets_n++] = *set;
    append(b, rule, (struct sg_element){SG_ELEMENT_BYTES, b->sets_n - 1, 0, 0});
}

void sg_build_byte_range(struct sg_grammar_builder *b, uint32_t rule, uint32_t low, uint32_t high)
{
    struct sg_byte_set set = {{0}};
    for (uint32_t c = low; c <= high && c < 256; c++) set.bits[c / 32] |= UINT32_C(1) << c % 32;
    sg_build_bytes(b, rule, &set);
}

void sg_build_text(struct sg_grammar_builder *b, uint32_t rule, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n && !b->status; i++) sg_build_byte_range(b, rule, (uint8_t)bytes[i], (uint8_t)bytes[i]);
}

void sg_build_call(struct sg_grammar_builder *b, uint32_t rule, uint32_t callee)
{
    append(b, rule, (struct sg_element){SG_ELEMENT_CALL, callee, 0, 0});
}

void sg_build_repeat(struct sg_grammar_builder *b, uint32_t rule, uint32_t callee, uint32_t min, uint32_t max)
{
    append(b, rule, (struct sg_element){SG_ELEMENT_REPEAT, callee, min, max});
}

void sg_build_members(struct sg_grammar_builder *b, uint32_t rule, const struct sg_members *members)
{
    if (!grow(b, (void **)&b->members, &b->members_cap, b->members_n, sizeof *b->members)) {
        sg_free(members->first);
        sg_free(members->next);
        return;
    }
    b->members[b->members_n++] = *members;
    append(b, rule, (struct sg_element){SG_ELEMENT_OBJECT, b->members_n - 1, 0, 0});
}

void sg_build_end(struct sg_grammar_builder *b, uint32_t rule) { append(b, rule, (struct sg_element){SG_ELEMENT_END, 0, 0, 0}); }

void sg_build_repeat_last(struct sg_grammar_builder *b, uint32_t rule, uint32_t min, uint32_t max)
{
    if (b->status) return;
    struct sg_element last = b->rules[rule].elements[b->rules[rule].n - 1];
    uint32_t inner = last.a;
    if (last.op != SG_ELEMENT_CALL) {
        inner = sg_build_rule(b);
        append(b, inner, last);
        sg_build_end(b, inner);
    }
    if (!b->status) b->rules[rule].elements[b->rules[rule].n - 1] = (struct sg_element){SG_ELEMENT_REPEAT, inner, min, max};
}

static void free_members(struct sg_members *members, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        sg_free(members[i].first);
        sg_free(members[i].next);
    }
    sg_free(members);
}

void sg_builder_free(struct sg_grammar_builder *b)
{
    for (uint32_t i = 0; i < b->rules_n; i++) sg_free(b->rules[i].elements);
    sg_free(b->rules);
    sg_free(b->sets);
    free_members(b->members, b->members_n);
    *b = (struct sg_grammar_builder){0};
}

void sg_program_text_free(struct sg_program_text *p)
{
    sg_free(p->elements);
    sg_free(p->alternatives);
    sg_free(p->first);
    sg_free(p->sets);
    free_members(p->members, p->members_n);
    *p = (struct sg_program_text){0};
}

/* --- properties of rules: which are nullable, which are productive --- */

/* Alternatives of all rules, each with the number of calls that do not have the property yet; and for each rule the
 * alternatives that call it. An alternative whose count is 0 gives the property to its rule: linear time. */
struct uses {
    uint32_t *owner, *missing; /* [alternatives_n] */
    uint32_t *first, *list;    /* alternatives that use rule r: list[first[r] .. first[r + 1]) */
    uint32_t *queue;           /* [rules_n] */
    uint32_t alternatives_n;
};

static void uses_free(struct uses *u)
{
    sg_free(u->owner);
    sg_free(u->missing);
    sg_free(u->first);
    sg_free(u->list);
    sg_free(u->queue);
}

/* The rules that element e needs, one after the other: the k-th one, or SG_NO_RULE. `forbidden`: never satisfied. */
static uint32_t need(const struct sg_grammar_builder *b, const struct sg_element *e, int nullable, uint32_t k, int *forbidden)
{
    static const struct sg_byte_set empty;
    *forbidden = 0;
    if (e->op == SG_ELEMENT_BYTES) *forbidden = nullable || !memcmp(&b->sets[e->a], &empty, sizeof empty);
    if (e->op == SG_ELEMENT_CALL || (e->op == SG_ELEMENT_REPEAT && e->min)) return k ? SG_NO_RULE : e->a;
    if (e->op != SG_ELEMENT_OBJECT) return SG_NO_RULE;
    const struct sg_members *m = &b->members[e->a];
    if (nullable) *forbidden = m->required != 0;
    for (uint32_t i = 0; i < m->n && !nullable; i++)
        if (m->required >> i & 1 && !k--) return m->first[i];
    return SG_NO_RULE;
}

/* Pass 0 counts the uses of each rule, pass 1 fills the lists. */
static void scan(const struct sg_grammar_builder *b, struct uses *u, int nullable, int pass)
{
    uint32_t alternative = 0;
    for (uint32_t r = 0; r < b->rules_n; r++)
        for (uint32_t i = 0; i < b->rules[r].n; i++) {
            const struct sg_element *e = &b->rules[r].elements[i];
            int forbidden;
            u->owner[alternative] = r;
            if (e->op == SG_ELEMENT_END) {
                alternative++;
                continue;
            }
            for (uint32_t k = 0, rule; (rule = need(b, e, nullable, k, &forbidden)) != SG_NO_RULE; k++) {
                if (pass)
                    u->list[u->first[rule + 1]++] = alternative;
                else
                    u->first[rule + 2]++;
                u->missing[alternative] += !pass;
            }
            need(b, e, nullable, 0, &forbidden);
            if (forbidden && !pass) u->missing[alternative] |= UINT32_C(1) << 30; /* more than its calls can take away */
        }
}

static segue_status find_property(struct sg_grammar_builder *b, int nullable)
{
    struct uses u = {0};
    uint32_t head = 0, tail = 0, uses_n = 0;
    for (uint32_t r = 0; r < b->rules_n; r++)
        for (uint32_t i = 0; i < b->rules[r].n; i++) u.alternatives_n += b->rules[r].elements[i].op == SG_ELEMENT_END;
    u.owner = sg_alloc((u.alternatives_n + 1) * sizeof *u.owner);
    u.missing = sg_alloc((u.alternatives_n + 1) * sizeof *u.missing);
    u.first = sg_alloc((b->rules_n + 3) * sizeof *u.first);
    u.queue = sg_alloc((b->rules_n + 1) * sizeof *u.queue);
    if (u.owner && u.missing && u.first && u.queue) {
        scan(b, &u, nullable, 0);
        for (uint32_t r = 0; r < b->rules_n; r++) uses_n = u.first[r + 2] += u.first[r + 1];
        u.list = sg_alloc((uses_n + 1) * sizeof *u.list);
    }
    if (!u.list) {
        uses_free(&u);
        return b->status = sg_no_memory("grammar", uses_n * sizeof *u.list, b->err);
    }
    scan(b, &u, nullable, 1); /* first[r + 1] moves to the end of the list of r: first[r] is its begin */
    for (uint32_t a = 0; a < u.alternatives_n; a++) {
        struct sg_rule *r = &b->rules[u.owner[a]];
        uint32_t *has = nullable ? &r->nullable : &r->productive;
        if (!u.missing[a] && !*has) u.queue[tail++] = u.owner[a], *has = 1;
    }
    while (head < tail) {
        uint32_t rule = u.queue[head++];
        for (uint32_t i = u.first[rule]; i < u.first[rule + 1]; i++) {
            struct sg_rule *r = &b->rules[u.owner[u.list[i]]];
            uint32_t *has = nullable ? &r->nullable : &r->productive;
            if (!--u.missing[u.list[i]] && !*has) u.queue[tail++] = u.owner[u.list[i]], *has = 1;
        }
    }
    uses_free(&u);
    return SEGUE_OK;
}

/* --- left recursion --- */

/* One rule on the path of the depth-first search, and where it is in the elements of that rule. */
struct visit {
    uint32_t rule, at, k; /* element; member of an object */
};

static int element_nullable(const struct sg_grammar_builder *b, const struct sg_element *e)
{
    if (e->op == SG_ELEMENT_CALL) return b->rules[e->a].nullable;
    if (e->op == SG_ELEMENT_REPEAT) return !e->min || b->rules[e->a].nullable;
    return e->op == SG_ELEMENT_OBJECT && !b->members[e->a].required;
}

/* The next rule that may be entered from v before a byte is read; SG_NO_RULE: none left. *grows: the stack is deeper then. */
static uint32_t next_left(const struct sg_grammar_builder *b, struct visit *v, uint32_t *grows)
{
    const struct sg_rule *r = &b->rules[v->rule];
    while (v->at < r->n) {
        const struct sg_element *e = &r->elements[v->at];
        uint32_t rule = SG_NO_RULE;
        *grows = 1;
        if ((e->op == SG_ELEMENT_CALL || e->op == SG_ELEMENT_REPEAT) && !v->k) rule = e->a;
        if (e->op == SG_ELEMENT_CALL) *grows = r->elements[v->at + 1].op != SG_ELEMENT_END;
        if (e->op == SG_ELEMENT_OBJECT && v->k < b->members[e->a].n) rule = b->members[e->a].first[v->k];
        if (rule != SG_NO_RULE) {
            v->k++;
            return rule;
        }
        v->k = 0;
        if (e->op != SG_ELEMENT_END && !element_nullable(b, e))
            while (r->elements[v->at].op != SG_ELEMENT_END) v->at++;
        v->at++;
    }
    return SG_NO_RULE;
}

/* Strongly connected components of the "enters before a byte" relation (Tarjan, with an explicit stack): a growing edge inside
 * one of them is left recursion. */
struct search {
    uint32_t *order, *low, *on_stack, *stack, *component; /* component: from 1; 0: not searched */
    struct visit *path;
    uint32_t stack_n, path_n, count, components;
};

static void enter(struct search *s, uint32_t rule)
{
    s->order[rule] = s->low[rule] = ++s->count;
    s->stack[s->stack_n++] = rule;
    s->on_stack[rule] = 1;
    s->path[s->path_n++] = (struct visit){rule, 0, 0};
}

static void search_from(const struct sg_grammar_builder *b, struct search *s, uint32_t root)
{
    enter(s, root);
    while (s->path_n) {
        struct visit *v = &s->path[s->path_n - 1];
        uint32_t grows, rule = next_left(b, v, &grows);
        if (rule != SG_NO_RULE && !s->order[rule]) {
            enter(s, rule);
        } else if (rule != SG_NO_RULE) {
            if (s->on_stack[rule] && s->order[rule] < s->low[v->rule]) s->low[v->rule] = s->order[rule];
        } else {
            uint32_t done = v->rule;
            s->path_n--;
            if (s->path_n && s->low[done] < s->low[s->path[s->path_n - 1].rule])
                s->low[s->path[s->path_n - 1].rule] = s->low[done];
            if (s->low[done] != s->order[done]) continue;
            s->components++;
            do {
                s->on_stack[s->stack[--s->stack_n]] = 0;
                s->component[s->stack[s->stack_n]] = s->components;
            } while (s->stack[s->stack_n] != done);
        }
    }
}

/* 1: no growing edge has both ends in one component. */
static int check_edges(const struct sg_grammar_builder *b, const struct search *s)
{
    for (uint32_t r = 0; r < b->rules_n; r++) {
        struct visit v = {r, 0, 0};
        uint32_t grows, rule;
        while (s->component[r] && (rule = next_left(b, &v, &grows)) != SG_NO_RULE)
            if (grows && s->component[rule] == s->component[r]) return 0;
    }
    return 1;
}

static segue_status check_left(struct sg_grammar_builder *b)
{
    size_t n = b->rules_n + 1;
    struct search s = {.order = sg_alloc(n * 4),
                       .low = sg_alloc(n * 4),
                       .on_stack = sg_alloc(n * 4),
                       .stack = sg_alloc(n * 4),
                       .component = sg_alloc(n * 4),
                       .path = sg_alloc(n * sizeof *s.path)};
    int memory = s.order && s.low && s.on_stack && s.stack && s.component && s.path, ok = 1;
    for (uint32_t r = 0; memory && r < b->rules_n; r++)
        if (!s.order[r] && b->rules[r].productive) search_from(b, &s, r);
    if (memory) ok = check_edges(b, &s);
    sg_free(s.order), sg_free(s.low), sg_free(s.on_stack), sg_free(s.stack), sg_free(s.component), sg_free(s.path);
    if (!memory) return b->status = sg_no_memory("grammar", n * 32, b->err);
    if (ok) return SEGUE_OK;
    return sg_build_fail(b, SEGUE_EUNSUPPORTED,
                         "grammar: a rule begins with itself (left recursion), which is not supported; write the "
                         "repetition with * or +");
}

/* --- the program --- */

/* Copy alternative [from, to) of a rule; 0: it matches no finite text. */
static int alternative_productive(const struct sg_grammar_builder *b, const struct sg_rule *r, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        int forbidden;
        for (uint32_t k = 0, rule; (rule = need(b, &r->elements[i], 0, k, &forbidden)) != SG_NO_RULE; k++)
            if (!b->rules[rule].productive) return 0;
        need(b, &r->elements[i], 0, 0, &forbidden);
        if (forbidden) return 0;
    }
    return 1;
}

static segue_status copy_element(struct sg_grammar_builder *b, struct sg_element *e)
{
    if (e->op != SG_ELEMENT_REPEAT || !b->rules[e->a].nullable) return SEGUE_OK;
    e->min = 0;
    if (e->max != SG_REPEAT_MAX && e->max > 256)
        return sg_build_fail(b, SEGUE_EUNSUPPORTED,
                             "grammar: a repetition of at most %u times of something that may be empty: not "
                             "supported above 256; make it non-empty",
                             e->max);
    return SEGUE_OK;
}

static segue_status flatten(struct sg_grammar_builder *b, struct sg_program_text *out)
{
    uint32_t alternatives_n = 0;
    for (uint32_t r = 0; r < b->rules_n; r++) {
        const struct sg_rule *rule = &b->rules[r];
        out->first[r] = alternatives_n;
        for (uint32_t from = 0, to; from < rule->n; from = to + 1) {
            to = from;
            while (rule->elements[to].op != SG_ELEMENT_END) to++;
            if (!alternative_productive(b, rule, from, to)) continue;
            out->alternatives[alternatives_n++] = out->elements_n;
            for (uint32_t i = from; i <= to; i++) {
                out->elements[out->elements_n] = rule->elements[i];
                SG_TRY(copy_element(b, &out->elements[out->elements_n++]));
            }
        }
    }
    out->first[b->rules_n] = alternatives_n;
    return SEGUE_OK;
}

segue_status sg_build_program(struct sg_grammar_builder *b, uint32_t root, struct sg_program_text *out)
{
    if (!b->status) find_property(b, 1);
    if (!b->status) find_property(b, 0);
    if (!b->status && !b->rules[root].productive)
        sg_build_fail(b, SEGUE_EFORMAT, "grammar: no text can satisfy it; look for contradictions or a recursion without an end");
    if (!b->status) check_left(b);
    *out = (struct sg_program_text){0};
    if (b->status) return b->status;
    out->elements = sg_alloc((b->elements_n + 1) * sizeof *out->elements);
    out->alternatives = sg_alloc((b->elements_n + 1) * sizeof *out->alternatives);
    out->first = sg_alloc((b->rules_n + 1) * sizeof *out->first);
    out->rules_n = b->rules_n;
    segue_status status = SEGUE_OK;
    if (!out->elements || !out->alternatives || !out->first)
        status = sg_no_memory("grammar", b->elements_n * sizeof *out->elements, b->err);
    if (status == SEGUE_OK) status = flatten(b, out);
    if (status != SEGUE_OK) {
        sg_program_text_free(out);
        return b->status = status;
    }
    out->sets = b->sets;
    out->members = b->members;
    out->members_n = b->members_n;
    b->sets = NULL;
    b->members = NULL;
    b->members_n = 0;
    return SEGUE_OK;
}
