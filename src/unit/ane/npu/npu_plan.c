/* npu_plan.c: makes plans: operands, constants in the forms that operations read, memory for values,
 * ports. See npu_plan.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/npu/npu_plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/tools/explain.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milops.h"
#include "unit/ane/rules/rules.h"

static const uint64_t memory_max = (uint64_t)1 << 31;        /* floats for the values of one function */

/* --- constants --- */

/* 1: handlers read this argument as a value: every argument that may vary at run time, and the listed
 * constant vectors. Parameters such as axis stay literals. */
static int is_operand(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *name)
{
    static const char *const vectors[] = {"gamma", "beta", "mean", "variance", "scale", "zero_point"};
    int constant, list, optional;
    if (sg_mil_is_const_value(f, op->first)) return 0;
    if (!sg_mil_op_takes(op->info, name, &constant, &list, &optional)) return 0;
    if (!constant) return 1;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        if (!strcmp(vectors[i], name)) return strcmp(op->kind, "clip") != 0;
    return 0;
}

/* Turns inline operands into values, so that handlers find only references. The names have a dot, which
 * an identifier of the text cannot have. */
static segue_status name_literals(struct sg_npu_plan *plan, struct sg_mil_program *p, segue_error *err)
{
    struct sg_mil_function *f = plan->f;
    for (uint32_t o = 0; o < f->ops_n; o++)
        for (uint32_t i = 0; i < f->ops[o].args_n; i++) {
            struct sg_mil_arg *a = &f->ops[o].args[i];
            if (a->kind != SG_MIL_LITERAL || !is_operand(f, &f->ops[o], a->name)) continue;
            const struct sg_mil_literal *l = a->v.literal;
            char *name = sg_arena_printf(&p->arena, "%u.%u", o, i);
            int taken;
            uint32_t v = name ? sg_mil_value_add(f, name, &l->type, SG_MIL_NONE, &taken) : SG_MIL_NONE;
            if (v == SG_MIL_NONE) return sg_no_memory("a program", 0, err);
            a->kind = SG_MIL_REF;
            a->v.ref = v;
            f->values[v].given = l;
        }
    return SEGUE_OK;
}

/* Number literal with the elements of a blob literal, in the arena of the program. */
static segue_status literal_of_blob(struct sg_npu_plan *plan, struct sg_mil_program *p, const struct sg_mil_literal *blob,
                                    const struct sg_ane_source *source, const struct sg_mil_literal **out, segue_error *err)
{
    const void *data;
    uint64_t n = sg_mil_elements(&blob->type);
    SG_TRY(sg_npu_decode(plan, blob, source->files, source->files_n, 0, &data, err));
    struct sg_mil_literal *l = sg_arena_alloc(&p->arena, sizeof *l);
    double *real = sg_arena_alloc(&p->arena, (size_t)n * sizeof *real);
    if (!l || !real) return sg_no_memory("a constant", (size_t)n * sizeof *real, err);
    for (uint64_t i = 0; i < n; i++) real[i] = (double)((const float *)data)[i];
    *l = (struct sg_mil_literal){
        .type = blob->type, .kind = SG_MIL_NUMBERS, .line = blob->line, .column = blob->column, .n = n, .v.real = real};
    *out = l;
    return SEGUE_OK;
}

/* Replaces parameters whose numbers are stored in a blob file (epsilon of a norm, bounds of clip) by number
 * literals. Handlers read parameters as literals and would take the default for a blob. EUNSUPPORTED: too long. */
static segue_status inline_blobs(struct sg_npu_plan *plan, struct sg_mil_program *p, const struct sg_ane_source *source,
                                 segue_error *err)
{
    struct sg_mil_function *f = plan->f;
    for (uint32_t o = 0; o < f->ops_n; o++) {
        struct sg_mil_op *op = &f->ops[o];
        for (uint32_t i = 0; i < op->args_n && !sg_mil_is_const_value(f, op->first); i++) {
            struct sg_mil_arg *a = &op->args[i];
            const struct sg_mil_literal *l = is_operand(f, op, a->name) ? NULL : sg_mil_arg_literal(f, a);
            if (!l || l->kind != SG_MIL_BLOB) continue;
            if (sg_mil_elements(&l->type) > 2 * SG_MIL_DIMS)
                return sg_fail(err, SEGUE_EUNSUPPORTED, "%s: argument %s: a list of this length in a blob file is not "
                               "supported; write it in the text", op->kind, a->name);
            SG_TRY(literal_of_blob(plan, p, l, source, &a->v.literal, err));
            a->kind = SG_MIL_LITERAL;
        }
    }
    return SEGUE_OK;
}

/* Upper bound of the number of values that name_literals adds. */
static uint32_t inline_count(const struct sg_mil_function *f)
{
    uint32_t n = 0;
    for (uint32_t o = 0; o < f->ops_n; o++)
        for (uint32_t i = 0; i < f->ops[o].args_n; i++) n += f->ops[o].args[i].kind == SG_MIL_LITERAL;
    return n;
}

/* The form in which an operation reads an operand. Products widen fp16 when they pack an operand, so
 * their constants stay fp16, which halves the memory; a weight of a convolution without groups is
 * stored in the packed order at once. */
static uint8_t wanted_by(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *arg)
{
    if (!strcmp(op->kind, "conv") && !strcmp(arg, "weight"))
        return sg_mil_const_int(f, op, "groups", 1) == 1 ? SG_NPU_WANT_PACKED : SG_NPU_WANT_HALF;
    if (!strcmp(op->kind, "linear") && !strcmp(arg, "weight")) return SG_NPU_WANT_HALF;
    return !strcmp(op->kind, "matmul") ? SG_NPU_WANT_HALF : SG_NPU_WANT_FLOAT;
}

/* Collects the forms that the readers of each value need. A returned value is written to a surface from
 * fp32. */
static void collect_wanted(struct sg_npu_plan *plan)
{
    const struct sg_mil_function *f = plan->f;
    for (uint32_t o = 0; o < f->ops_n; o++)
        for (uint32_t i = 0; i < f->ops[o].args_n; i++) {
            const struct sg_mil_arg *a = &f->ops[o].args[i];
            if (a->kind == SG_MIL_LITERAL || !is_operand(f, &f->ops[o], a->name)) continue;
            uint8_t how = wanted_by(f, &f->ops[o], a->name);
            for (uint32_t r = 0; r < (a->kind == SG_MIL_LIST ? a->n : 1); r++)
                plan->slots[a->kind == SG_MIL_LIST ? a->v.refs[r] : a->v.ref].wanted |= how;
        }
    for (uint32_t r = 0; r < f->returns_n; r++) plan->slots[f->returns[r]].wanted |= SG_NPU_WANT_FLOAT;
}

/* Packs fp16 [m][k] as [m / mr][k][mr], which is the order in which a tile reads it; the rows that fill
 * the last block are zero. The target is the shared buffer if the value is in it. */
static segue_status pack_weight(struct sg_npu_plan *plan, uint32_t v, const uint16_t *half, segue_error *err)
{
    const struct sg_mil_type *t = &plan->f->values[v].type;
    uint64_t mr = sg_npu_kernels_here()->mr, m = (uint64_t)t->dim[0], k = plan->slots[v].n / m, blocks = (m + mr - 1) / mr;
    uint16_t *packed = sg_npu_packed_dest(plan, v);
    if (!packed) packed = sg_arena_alloc(&plan->arena, (size_t)(blocks * k * mr) * sizeof *packed);
    if (!packed) return sg_no_memory("a weight", (size_t)(blocks * k * mr) * sizeof *packed, err);
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t j = 0; j < k; j++) packed[(i / mr * k + j) * mr + i % mr] = half[i * k + j];
    plan->slots[v].packed = packed;
    return SEGUE_OK;
}

/* Decodes a constant (literal l) or a compressed one (operation expr) of n elements into the arena of
 * `into`, as fp16 bits or as fp32. */
static segue_status read_constant(struct sg_npu_plan *into, const struct sg_mil_literal *l, const struct sg_mil_op *expr,
                                  uint64_t n, const struct sg_ane_file *files, uint32_t files_n, int half, const void **out,
                                  segue_error *err)
{
    float *numbers;
    if (l) return sg_npu_decode(into, l, files, files_n, half, out, err);
    SG_TRY(sg_npu_expand(into, expr, files, files_n, &numbers, err));
    *out = numbers;
    if (!half) return SEGUE_OK;
    uint16_t *h = sg_arena_alloc(&into->arena, (size_t)n * sizeof *h);
    if (!h) return sg_no_memory("a constant", (size_t)n * sizeof *h, err);
    for (uint64_t i = 0; i < n; i++) h[i] = sg_f16_of_f32(numbers[i]);
    *out = h;
    return SEGUE_OK;
}

/* Makes constant v in the form that its readers want. When they want several, fp32 is used for all of them.
 * A weight to be packed is decoded into a temporary arena, which is freed here. */
static segue_status make_constant(struct sg_npu_plan *plan, uint32_t v, const struct sg_mil_literal *l,
                                  const struct sg_mil_op *expr, const struct sg_ane_file *files,
                                  uint32_t files_n, segue_error *err)
{
    struct sg_npu_slot *s = &plan->slots[v];
    struct sg_npu_plan temporary = {.f = plan->f, .garbage = plan->garbage};
    int is_half = plan->f->values[v].type.dtype == SG_MIL_FP16, packs = is_half && s->wanted == SG_NPU_WANT_PACKED;
    /* half: fp16 bits are enough, because no reader wants fp32. */
    int half = is_half && !(s->wanted & SG_NPU_WANT_FLOAT);
    const void *data = NULL;
    if (!s->wanted || s->packed || s->half) return SEGUE_OK;
    segue_status status = read_constant(packs ? &temporary : plan, l, expr, s->n, files, files_n, half, &data, err);
    if (status == SEGUE_OK && packs)
        status = pack_weight(plan, v, data, err);
    else if (half)
        s->half = data;
    else
        s->data = data;
    sg_arena_free(&temporary.arena);
    return status;
}

/* Bytes of the operands of a compressed constant, in arguments or attributes. */
static uint64_t stored_bytes(const struct sg_mil_function *f, const struct sg_mil_op *expr)
{
    uint64_t sum = 0, bytes;
    for (uint32_t i = 0; i < expr->args_n + expr->attrs_n; i++) {
        const struct sg_mil_literal *l = i < expr->args_n ? sg_mil_arg_literal(f, &expr->args[i])
                                                          : expr->attrs[i - expr->args_n].literal;
        if (l && l->kind != SG_MIL_TEXT && sg_mil_type_size(&l->type, NULL, &bytes, NULL) == SEGUE_OK) sum += bytes;
    }
    return sum;
}

/* All constants of the function. weight_bytes is the size that the engine would read, so shared
 * constants count too. */
static segue_status make_constants(struct sg_npu_plan *plan, const struct sg_ane_file *files, uint32_t files_n,
                                   segue_error *err)
{
    const struct sg_mil_function *f = plan->f;
    for (uint32_t v = 0; v < f->values_n; v++) {
        const struct sg_mil_literal *l = sg_mil_value_literal(f, v);
        uint32_t op = f->values[v].op;
        const struct sg_mil_op *expr =
            !l && op != SG_MIL_NONE && sg_mil_is_const_value(f, v) ? &f->ops[op] : NULL;
        /* Computed values and strings have no elements to decode. */
        if ((!l && !expr) || (l && l->kind == SG_MIL_TEXT)) continue;
        SG_TRY(make_constant(plan, v, l, expr, files, files_n, err));
        if (expr && plan->slots[v].wanted)
            plan->weight_bytes += stored_bytes(f, expr);
        else if (plan->slots[v].wanted && f->values[v].type.dtype != SG_MIL_STRING)
            plan->weight_bytes +=
                (plan->slots[v].n * sg_mil_dtype_info((enum sg_mil_dtype)f->values[v].type.dtype)->bits + 7) /
                8;
    }
    return SEGUE_OK;
}

/* --- memory of computed values: first fit in the order of execution --- */

/* Offsets and sizes are in floats, multiples of 16 (64 bytes). */
struct free_block {
    uint64_t at, n;
};
struct free_list {
    struct free_block *list;     /* [n] sorted by offset; adjacent blocks are merged */
    uint32_t n, cap;
    uint64_t end;                /* size of the memory so far */
};

/* The offset of n floats: in the first free block that is large enough, or at the end. */
static uint64_t block_alloc(struct free_list *h, uint64_t n)
{
    n = (n + 15) / 16 * 16;
    for (uint32_t i = 0; i < h->n; i++) {
        if (h->list[i].n < n) continue;
        uint64_t at = h->list[i].at;
        h->list[i].at += n;
        h->list[i].n -= n;
        if (!h->list[i].n) memmove(&h->list[i], &h->list[i + 1], (--h->n - i) * sizeof *h->list);
        return at;
    }
    h->end += n;
    return h->end - n;
}

/* Returns a block to the list and merges it with its neighbours. 0: out of memory. */
static int block_free(struct free_list *h, uint64_t at, uint64_t n)
{
    n = (n + 15) / 16 * 16;
    if (h->n + 1 >= h->cap) {
        uint32_t cap = h->cap ? h->cap * 2 : 64;
        void *more = sg_realloc(h->list, cap * sizeof *h->list);
        if (!more) return 0;
        h->list = more;
        h->cap = cap;
    }
    /* Position in the sorted list; then the block before it, and the block after it, are merged if they
     * touch. */
    uint32_t i = 0;
    while (i < h->n && h->list[i].at < at) i++;
    if (i && h->list[i - 1].at + h->list[i - 1].n == at) {
        h->list[i - 1].n += n;
        i--;
    } else {
        memmove(&h->list[i + 1], &h->list[i], (h->n++ - i) * sizeof *h->list);
        h->list[i] = (struct free_block){at, n};
    }
    if (i + 1 < h->n && h->list[i].at + h->list[i].n == h->list[i + 1].at) {
        h->list[i].n += h->list[i + 1].n;
        memmove(&h->list[i + 1], &h->list[i + 2], (--h->n - i - 1) * sizeof *h->list);
    }
    return 1;
}

/* Finds for each value the operation that reads it last, and the values that share memory: the result
 * of a reshape and similar operations has the elements of its operand, unless that is a constant. The
 * lifetime is recorded at the root. A result that no operation reads lives as long as its own
 * operation; returned values live after the last one. */
static void find_lifetimes(struct sg_npu_plan *plan)
{
    const struct sg_mil_function *f = plan->f;
    for (uint32_t v = 0; v < f->values_n; v++) plan->slots[v].root = v;
    for (uint32_t o = 0; o < f->ops_n; o++) {
        const struct sg_mil_op *op = &f->ops[o];
        for (uint32_t i = 0; i < op->args_n; i++)
            /* An argument is one reference or a list of them. */
            for (uint32_t r = 0; op->args[i].kind != SG_MIL_LITERAL &&
                                 r < (op->args[i].kind == SG_MIL_LIST ? op->args[i].n : 1);
                 r++) {
                uint32_t v = op->args[i].kind == SG_MIL_LIST ? op->args[i].v.refs[r] : op->args[i].v.ref;
                plan->slots[plan->slots[v].root].last = o;
            }
        for (uint32_t i = 0; i < op->outputs; i++) plan->slots[op->first + i].last = o;
        /* Views name their operand x or input. */
        const struct sg_mil_arg *from = sg_mil_is_view(op) ? sg_mil_arg_find(op, "x") : NULL;
        if (sg_mil_is_view(op) && !from) from = sg_mil_arg_find(op, "input");
        if (from && from->kind == SG_MIL_REF && !plan->slots[from->v.ref].data)
            plan->slots[op->first].root = plan->slots[from->v.ref].root;
    }
    for (uint32_t r = 0; r < f->returns_n; r++) plan->slots[plan->slots[f->returns[r]].root].last = f->ops_n;
}

/* Assigns offsets in the order of execution. The results of an operation are allocated before its
 * operands are freed, so they never overlap. Parameters come first: they are written before any
 * operation runs. ELIMIT: more than memory_max floats. */
static segue_status assign_offsets(struct sg_npu_plan *plan, segue_error *err)
{
    const struct sg_mil_function *f = plan->f;
    struct free_list blocks = {0};
    uint32_t *next = sg_alloc((f->ops_n + (size_t)1) * sizeof *next),
             *chain = sg_alloc((f->values_n + (size_t)1) * sizeof *chain);
    int good = next && chain;
    for (uint32_t v = 0; good && v < f->params_n; v++) plan->slots[v].at = block_alloc(&blocks, plan->slots[v].n);
    /* next[o]: list of the computed values whose last reader is operation o; chain links the values,
     * numbered from 1. */
    for (uint32_t v = 0; good && v < f->values_n; v++)
        if (plan->slots[v].root == v && !plan->slots[v].data && !plan->slots[v].half && !plan->slots[v].packed &&
            plan->slots[v].last < f->ops_n && !sg_mil_is_const_value(f, v) &&
            (v < f->params_n || f->values[v].op != SG_MIL_NONE)) {
            chain[v] = next[plan->slots[v].last];
            next[plan->slots[v].last] = v + 1;
        }
    for (uint32_t o = 0; good && o < f->ops_n; o++) {
        for (uint32_t i = 0; i < f->ops[o].outputs; i++) {
            uint32_t v = f->ops[o].first + i;
            if (plan->slots[v].root == v && !sg_mil_is_const_value(f, v))
                plan->slots[v].at = block_alloc(&blocks, plan->slots[v].n);
        }
        for (uint32_t v = next[o]; good && v; v = chain[v - 1])
            good = block_free(&blocks, plan->slots[v - 1].at, plan->slots[v - 1].n);
        if (blocks.end > memory_max) break;
    }
    plan->memory = blocks.end;
    sg_free(next);
    sg_free(chain);
    sg_free(blocks.list);
    if (!good) return sg_no_memory("a program's plan", 0, err);
    if (plan->memory > memory_max)
        return sg_fail(err, SEGUE_ELIMIT,
                       "program: function %.60s: its values need %llu bytes at once, the maximum is %llu; split it",
                       f->name, (unsigned long long)plan->memory * 4, (unsigned long long)memory_max * 4);
    return SEGUE_OK;
}

/* 1: the operation only moves numbers, so what it lost was lost before. */
static int moves_only(const struct sg_mil_op *op)
{
    static const char *const kinds[] = {"transpose", "slice_by_size", "slice_by_index", "concat", "split", "tile", "pad"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(op->kind, kinds[i])) return 1;
    return sg_mil_is_view(op);
}

/* Marks the operations whose relative error matters: products, and those whose results enter a product, possibly moved
 * before. The results of others, such as the square of an epsilon, may be negligible where they are added. */
static segue_status find_to_product(struct sg_npu_plan *plan, segue_error *err)
{
    const struct sg_mil_function *f = plan->f;
    plan->to_product = sg_arena_alloc(&plan->arena, f->ops_n + (size_t)1);
    if (!plan->to_product) return sg_no_memory("a program's plan", f->ops_n, err);
    for (uint32_t o = f->ops_n; o-- > 0;) {
        const struct sg_mil_op *op = &f->ops[o];
        int product = !strcmp(op->kind, "conv") || !strcmp(op->kind, "matmul") || !strcmp(op->kind, "linear");
        if (product) plan->to_product[o] = 1;
        if (!product && !(plan->to_product[o] && moves_only(op))) continue;
        for (uint32_t i = 0; i < op->args_n; i++)
            for (uint32_t r = 0; op->args[i].kind != SG_MIL_LITERAL && r < (op->args[i].kind == SG_MIL_LIST ? op->args[i].n : 1);
                 r++) {
                uint32_t v = op->args[i].kind == SG_MIL_LIST ? op->args[i].v.refs[r] : op->args[i].v.ref;
                if (f->values[v].op != SG_MIL_NONE) plan->to_product[f->values[v].op] = 1;
            }
    }
    return SEGUE_OK;
}

/* --- ports and costs --- */

/* Ports sorted by name, which is the order in which engines bind them (constraint 3). With equal_sizes
 * (constraint 2) each surface is as large as the largest. values: [n] the values of the ports; NULL:
 * the parameters. */
static segue_status make_ports(struct sg_npu_plan *plan, const uint32_t *values, uint32_t n,
                               const struct sg_ane_profile *profile, struct sg_ane_port **ports,
                               uint32_t **order, segue_error *err)
{
    uint64_t max = 0;
    *ports = sg_arena_alloc(&plan->arena, n * sizeof **ports);
    *order = sg_arena_alloc(&plan->arena, n * sizeof **order);
    if (!*ports || !*order) return sg_no_memory("a program's ports", 0, err);
    for (uint32_t i = 0; i < n; i++) { /* insertion by name: there are few */
        uint32_t v = values ? values[i] : i, at = i;
        for (; at && strcmp(plan->f->values[(*order)[at - 1]].name, plan->f->values[v].name) > 0; at--)
            (*order)[at] = (*order)[at - 1];
        (*order)[at] = v;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_mil_value *v = &plan->f->values[(*order)[i]];
        struct sg_ane_port *p = &(*ports)[i];
        *p = (struct sg_ane_port){.name = v->name, .type = v->type};
        sg_ane_port_sizes(&v->type, profile, &p->row_bytes, &p->surface_bytes);
        if (p->surface_bytes > max) max = p->surface_bytes;
        plan->activation_bytes += p->surface_bytes;
    }
    for (uint32_t i = 0; profile->equal_sizes && i < n; i++) (*ports)[i].surface_bytes = max;
    return SEGUE_OK;
}

/* Operations are looked up before anything is decoded, so that an unknown one is reported quickly.
 * Shared constants are acquired before the others are decoded: those that are complete need no
 * decoding. */
segue_status sg_npu_plan_make(struct sg_npu_plan *plan, struct sg_mil_program *p, struct sg_mil_function *f,
                              const struct sg_ane_profile *profile, const struct sg_ane_source *source,
                              struct sg_npu_weight_cache *cache, int garbage, segue_error *err)
{
    /* slots is allocated once name_literals has added its values; `values` is an upper bound. */
    size_t values = (size_t)f->values_n + inline_count(f);
    *plan = (struct sg_npu_plan){.f = f, .garbage = garbage != 0, .fault = SG_MIL_NONE};
    segue_status status = name_literals(plan, p, err);
    if (status == SEGUE_OK) status = inline_blobs(plan, p, source, err);
    if (status == SEGUE_OK) {
        plan->slots = sg_alloc((values + 1) * sizeof *plan->slots);
        plan->handlers = sg_alloc((f->ops_n + (size_t)1) * sizeof(sg_npu_handler *));
        if (!plan->slots || !plan->handlers) status = sg_no_memory("a program", values, err);
    }
    for (uint32_t v = 0; status == SEGUE_OK && v < f->values_n; v++) {
        plan->slots[v].n = sg_mil_elements(&f->values[v].type);
        if (!strcmp(f->values[v].name, SG_ANE_FAULT)) plan->fault = v;
    }
    for (uint32_t o = 0; status == SEGUE_OK && o < f->ops_n; o++) {
        int nothing = 0;
        plan->handlers[o] = sg_npu_handler_of(&f->ops[o], &nothing);
        if (sg_mil_is_const_value(f, f->ops[o].first)) {
            plan->handlers[o] = NULL; /* its result was decoded with the other constants */
            continue;
        }
        if (!plan->handlers[o] && !nothing)
            status = sg_fail(
                err, SEGUE_EUNSUPPORTED,
                "program: function %.60s: the software NPU does not support %s; use other operations",
                f->name, f->ops[o].kind);
        plan->flops += sg_mil_flops(f, &f->ops[o]);
        if (sg_mil_is_int8_product(f, &f->ops[o])) plan->int8_flops += sg_mil_flops(f, &f->ops[o]);
    }
    if (status == SEGUE_OK) collect_wanted(plan);
    if (status == SEGUE_OK) status = sg_npu_packed_acquire(plan, cache, source, err);
    if (status == SEGUE_OK) status = make_constants(plan, source->files, source->files_n, err);
    if (status == SEGUE_OK) sg_npu_packed_publish(plan, source);
    if (status == SEGUE_OK) find_lifetimes(plan);
    if (status == SEGUE_OK) status = assign_offsets(plan, err);
    if (status == SEGUE_OK) status = find_to_product(plan, err);
    if (status == SEGUE_OK)
        status = make_ports(plan, NULL, f->params_n, profile, &plan->inputs, &plan->input_values, err);
    if (status == SEGUE_OK)
        status =
            make_ports(plan, f->returns, f->returns_n, profile, &plan->outputs, &plan->output_values, err);
    if (status != SEGUE_OK) sg_npu_plan_free(plan);
    return status;
}

/* Shared constants are released; all others are in the arena. */
void sg_npu_plan_free(struct sg_npu_plan *plan)
{
    sg_free(plan->slots);
    sg_free(plan->handlers);
    sg_arena_free(&plan->arena);
    sg_npu_packed_release(plan);
    *plan = (struct sg_npu_plan){0};
}

/* Forms that only one of the plans has are not compared. */
const char *sg_npu_plan_differs(const struct sg_npu_plan *a, const struct sg_npu_plan *b)
{
    uint64_t mr = sg_npu_kernels_here()->mr;
    for (uint32_t v = 0; v < a->f->values_n; v++) {
        const struct sg_npu_slot *x = &a->slots[v], *y = &b->slots[v];
        uint64_t rows = x->packed ? (uint64_t)a->f->values[v].type.dim[0] : 1, n = x->n / rows * ((rows + mr - 1) / mr * mr);
        if ((x->packed && y->packed && memcmp(x->packed, y->packed, n * sizeof *x->packed)) ||
            (x->half && y->half && memcmp(x->half, y->half, x->n * sizeof *x->half)) ||
            (x->data && y->data && memcmp(x->data, y->data, x->n * sizeof *x->data)))
            return a->f->values[v].name;
    }
    return NULL;
}
