/* milrewrite.c: see milrewrite.h. The new function takes the slot of the old one in the program while it is
 * built; on failure the old one is put back.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/passes/milrewrite.h"

#include <string.h>

/* The function under construction. */
static struct sg_mil_function *built(const struct sg_mil_rewrite *r)
{
    return &r->b.program->functions[r->b.function];
}
const struct sg_mil_function *sg_mil_rewrite_built(const struct sg_mil_rewrite *r) { return built(r); }

/* Records lack of memory as the first failure. */
static uint32_t no_memory(struct sg_mil_rewrite *r)
{
    if (!r->b.status) r->b.status = sg_no_memory("a pass over a program", 0, &r->b.err);
    return 0;
}

/* New number of an old value. A value that was not built but is read is a defect of the pass. */
static uint32_t map_value(struct sg_mil_rewrite *r, uint32_t value)
{
    uint32_t to = r->map[value];
    if (to == SG_MIL_NONE && !r->b.status)
        r->b.status = sg_fail(&r->b.err, SEGUE_EINTERNAL, "pass: value %.60s is read but was removed", r->f.values[value].name);
    return r->b.status ? 0 : to;
}

/* 1: v12 or k3, a name that the builder generated. Such names are generated again, because they would
 * collide with those of the new function. */
static int is_generated_name(const char *name)
{
    return (*name == 'v' || *name == 'k') && name[1] && strspn(name + 1, "0123456789") == strlen(name + 1);
}

void sg_mil_rewrite_keep_name(struct sg_mil_rewrite *r, const struct sg_mil_op *op)
{
    const char *name = r->f.values[op->first].name;
    if (r->is_result[op->first] || !is_generated_name(name)) sg_mil_build_name(&r->b, name);
}

/* New value of an argument that is not a list. */
static uint32_t map_arg(struct sg_mil_rewrite *r, const struct sg_mil_arg *a)
{
    if (a->kind == SG_MIL_LITERAL) return sg_mil_build_literal(&r->b, NULL, a->v.literal);
    return map_value(r, a->v.ref);
}

uint32_t sg_mil_rewrite_arg(struct sg_mil_rewrite *r, const struct sg_mil_op *op, const char *name)
{
    const struct sg_mil_arg *a = sg_mil_arg_find(op, name);
    return a && a->kind != SG_MIL_LIST ? map_arg(r, a) : SG_MIL_NONE;
}

/* Copies the arguments of op into the arena with all references mapped. 0: out of memory. */
static int copy_args(struct sg_mil_rewrite *r, const struct sg_mil_op *op, struct sg_mil_op *out)
{
    struct sg_arena *arena = &r->b.program->arena;
    out->args = sg_arena_alloc(arena, (op->args_n + 1) * sizeof *out->args);
    if (!out->args) return 0;
    for (uint32_t i = 0; i < op->args_n; i++) {
        struct sg_mil_arg *a = &out->args[i];
        *a = op->args[i];
        if (a->kind != SG_MIL_LIST) {
            uint32_t value = map_arg(r, a);
            a->kind = SG_MIL_REF;
            a->v.ref = value;
            continue;
        }
        uint32_t *refs = sg_arena_alloc(arena, (a->n + 1) * sizeof *refs);
        if (!refs) return 0;
        for (uint32_t k = 0; k < a->n; k++) refs[k] = map_value(r, a->v.refs[k]);
        a->v.refs = refs;
    }
    return 1;
}

/* A const goes through the builder's table, which merges equal ones; anything else is appended. */
void sg_mil_rewrite_copy(struct sg_mil_rewrite *r, const struct sg_mil_op *op)
{
    const struct sg_mil_literal *literal = sg_mil_value_literal(&r->f, op->first);
    if (r->b.status) return;
    if (literal) {
        const char *name = r->f.values[op->first].name;
        r->map[op->first] = sg_mil_build_literal(&r->b, is_generated_name(name) ? NULL : name, literal);
        return;
    }
    struct sg_mil_op copy = *op;
    if (!copy_args(r, op, &copy)) {
        no_memory(r);
        return;
    }
    sg_mil_rewrite_keep_name(r, op);
    uint32_t first = sg_mil_build_append(&r->b, &copy);
    for (uint32_t i = 0; i < op->outputs; i++) r->map[op->first + i] = first + i;
}

void sg_mil_rewrite_replace(struct sg_mil_rewrite *r, const struct sg_mil_op *op, uint32_t value)
{
    r->changes++;
    const char *name = r->f.values[op->first].name;
    if (r->is_result[op->first] && !r->b.status && strcmp(built(r)->values[value].name, name) != 0) {
        sg_mil_build_name(&r->b, name);
        value = sg_mil_build_unary(&r->b, "identity", value);
    }
    r->map[op->first] = value;
}

const struct sg_mil_op *sg_mil_rewrite_def(const struct sg_mil_rewrite *r, uint32_t value, const char *kind)
{
    const struct sg_mil_function *f = built(r);
    if (r->b.status || value >= f->values_n || f->values[value].op == SG_MIL_NONE) return NULL;
    const struct sg_mil_op *op = &f->ops[f->values[value].op];
    return strcmp(op->kind, kind) ? NULL : op;
}

/* The builder creates plain tensors, so the layout of a tensor_buffer is restored afterwards. Layouts are
 * in the arena and can be shared. */
static void copy_params(struct sg_mil_rewrite *r)
{
    for (uint32_t i = 0; i < r->f.params_n; i++) {
        const struct sg_mil_value *v = &r->f.values[i];
        int64_t dim[SG_MIL_DIMS];
        for (uint32_t k = 0; k < v->type.rank; k++) dim[k] = v->type.dim[k];
        r->map[i] = sg_mil_build_input(&r->b, v->name, (enum sg_mil_dtype)v->type.dtype, v->type.rank, dim);
        if (!r->b.status) built(r)->values[r->map[i]].type.buffer = v->type.buffer;
    }
}

/* Parameters, operations and results in order; stops at the first failure, which the builder records.
 * returns receives the new numbers of the results. */
static void run_pass(struct sg_mil_rewrite *r, const struct sg_mil_pass *pass, uint32_t *returns)
{
    for (uint32_t v = 0; v < r->f.values_n; v++) r->map[v] = SG_MIL_NONE;
    for (uint32_t i = 0; i < r->f.returns_n; i++) r->is_result[r->f.returns[i]] = 1;
    (pass->params ? pass->params : copy_params)(r);
    for (uint32_t o = 0; o < r->f.ops_n && !r->b.status; o++) (pass->step ? pass->step : sg_mil_rewrite_copy)(r, &r->f.ops[o]);
    for (uint32_t i = 0; i < r->f.returns_n && !r->b.status; i++) returns[i] = map_value(r, r->f.returns[i]);
    if (pass->returns && !r->b.status) pass->returns(r, returns);
}

segue_status sg_mil_rewrite(struct sg_mil_program *p, uint32_t function, const struct sg_mil_pass *pass, void *ctx,
                            uint64_t *changes, segue_error *err)
{
    struct sg_mil_rewrite r = {.f = p->functions[function], .ctx = ctx}; /* takes the old lists */
    size_t n = (size_t)r.f.values_n + 1;
    uint32_t *value_map = sg_alloc((n + r.f.returns_n) * sizeof *value_map); /* the map, then the results */
    uint8_t *returned = sg_alloc(n);
    if (!value_map || !returned) {
        sg_free(value_map);
        sg_free(returned);
        return sg_no_memory("a pass over a program", n * sizeof *value_map, err);
    }
    r.map = value_map;
    r.is_result = returned;
    p->functions[function] = (struct sg_mil_function){.name = r.f.name, .target = r.f.target};
    r.b = (struct sg_mil_builder){.program = p, .function = function};
    run_pass(&r, pass, value_map + n);
    segue_status status = sg_mil_build_end(&r.b, value_map + n, r.f.returns_n, err);
    struct sg_mil_function done = p->functions[function];
    if (status != SEGUE_OK) p->functions[function] = r.f;
    sg_mil_function_free(status == SEGUE_OK ? &r.f : &done);
    *changes += r.changes;
    sg_free(value_map);
    sg_free(returned);
    return status;
}
