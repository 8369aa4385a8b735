/* milbuild.c: see milbuild.h. Strings and operands are copied into the program's arena. After a failure,
 * functions return value 0, which callers may pass on, because later calls do nothing.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/milbuild.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/mil/milops.h"

/* Slot of the table of constants. */
struct sg_mil_interned {
    struct sg_hash hash; /* 128 bits over type and contents; equal hashes count as equal constants */
    uint32_t value;      /* value number + 1; 0: free */
};

/* The function under construction. Valid only until a function is added to the program. */
static struct sg_mil_function *function_of(const struct sg_mil_builder *b)
{
    return &b->program->functions[b->function];
}

/* Records lack of memory unless a failure was recorded before; returns the value number 0. */
static uint32_t no_memory(struct sg_mil_builder *b)
{
    if (!b->status) b->status = sg_no_memory("MIL program", 0, &b->err);
    return 0;
}

/* Copy in the program's arena; NULL after any failure. */
static void *arena_copy(struct sg_mil_builder *b, const void *bytes, size_t n)
{
    void *copy = b->status ? NULL : sg_arena_alloc(&b->program->arena, n);
    if (copy && n) memcpy(copy, bytes, n);
    if (!copy) no_memory(b);
    return copy;
}

static const char *arena_text(struct sg_mil_builder *b, const char *s) { return arena_copy(b, s, strlen(s) + 1); }

/* The index of the function is known before it is added: it is appended to the list. */
void sg_mil_build_begin(struct sg_mil_builder *b, struct sg_mil_program *p, const char *function,
                        const char *target)
{
    *b = (struct sg_mil_builder){.program = p, .function = p->functions_n};
    const char *usual = p->dialect == SG_MIL_VERBOSE ? "ios16" : "ios18";
    const char *name = arena_text(b, function), *target_copy = arena_text(b, target ? target : usual);
    if (b->status) return;
    if (sg_mil_function_find(p, name))
        b->status = sg_fail(&b->err, SEGUE_EARG,
                            "MIL program: two functions are named %.60s; rename one", name);
    else if (!sg_mil_function_add(p, name, target_copy))
        no_memory(b);
}

/* A function without results is an error, because no engine accepts it (constraint 17). */
segue_status sg_mil_build_end(struct sg_mil_builder *b, const uint32_t *returns, uint32_t n, segue_error *err)
{
    sg_free(b->interned);
    b->interned = NULL;
    if (!b->status && !n)
        b->status = sg_fail(&b->err, SEGUE_EARG, "MIL program: %.60s returns nothing", function_of(b)->name);
    if (!b->status) {
        struct sg_mil_function *f = function_of(b);
        f->returns = sg_alloc(n * sizeof *returns);
        if (f->returns) {
            memcpy(f->returns, returns, n * sizeof *returns);
            f->returns_n = n;
        } else
            no_memory(b);
    }
    return b->status ? sg_fail(err, b->status, "%s", b->err.text) : SEGUE_OK;
}

const struct sg_mil_type *sg_mil_build_type(const struct sg_mil_builder *b, uint32_t value)
{
    static const struct sg_mil_type none = {.dtype = SG_MIL_FP16};
    return b->status || value >= function_of(b)->values_n ? &none : &function_of(b)->values[value].type;
}

/* The pointer is kept until the next operation, which copies the string. */
void sg_mil_build_name(struct sg_mil_builder *b, const char *name) { b->next_name = name; }

/* Parameters must be the first values of a function, so none can follow an operation. */
uint32_t sg_mil_build_input(struct sg_mil_builder *b, const char *name, enum sg_mil_dtype d, uint32_t rank,
                            const int64_t *dim)
{
    const char *copy = arena_text(b, name);
    if (b->status) return 0;
    struct sg_mil_type t = sg_mil_tensor(d, rank, dim);
    struct sg_mil_function *f = function_of(b);
    int taken; /* set by sg_mil_value_add, which is not called after an operation */
    uint32_t value = f->ops_n ? SG_MIL_NONE : sg_mil_value_add(f, copy, &t, SG_MIL_NONE, &taken);
    if (value == SG_MIL_NONE) {
        if (f->ops_n || taken)
            b->status = sg_fail(&b->err, SEGUE_EARG, "MIL program: input %.60s: %s", name,
                                f->ops_n ? "inputs must be added before operations" : "the name is taken");
        return no_memory(b);
    }
    f->params_n = f->values_n;
    return value;
}

/* Infers the types of an operation whose arguments are in the arena, and appends it with its values. The
 * first value has the given name, further ones NAME_1, NAME_2, ... Failed inference is a defect of the
 * caller, hence EINTERNAL. */
static uint32_t append(struct sg_mil_builder *b, struct sg_mil_op *op, const char *name)
{
    struct sg_mil_function *f = function_of(b);
    struct sg_mil_type types[SG_MIL_OUTPUTS_MAX];
    segue_error why;
    op->first = f->values_n;
    if (sg_mil_infer(f, op, types, &why)) {
        b->status = sg_fail(&b->err, SEGUE_EINTERNAL, "MIL program: %s %.60s: %s", op->kind, name, why.text);
        return 0;
    }
    uint32_t index = f->ops_n;
    /* The operation is added before its values, because they refer to it by number. */
    struct sg_mil_op *slot = sg_mil_op_add(f);
    if (!slot) return no_memory(b);
    *slot = *op;
    for (uint32_t i = 0; i < op->outputs; i++) {
        int taken;
        const char *copy = i ? sg_arena_printf(&b->program->arena, "%s_%u", name, i) : name;
        uint32_t value = copy ? sg_mil_value_add(f, copy, &types[i], index, &taken) : SG_MIL_NONE;
        if (value == SG_MIL_NONE && copy && taken)
            b->status =
                sg_fail(&b->err, SEGUE_EARG, "MIL program: the name %.60s is taken; choose another", copy);
        if (value == SG_MIL_NONE) return no_memory(b);
    }
    return op->first;
}

/* Next unused name LETTER NUMBER; *n is the counter of that letter. */
static const char *unique_name(struct sg_mil_builder *b, char letter, uint32_t *n)
{
    char name[16];
    do snprintf(name, sizeof name, "%c%u", letter, (*n)++);
    while (sg_mil_value_find(function_of(b), name, strlen(name)) != SG_MIL_NONE);
    return arena_text(b, name);
}

/* The pending name is used up even when the operation fails. */
uint32_t sg_mil_build_append(struct sg_mil_builder *b, const struct sg_mil_op *op)
{
    struct sg_mil_op copy = *op;
    if (b->status) return 0;
    const char *name = b->next_name ? arena_text(b, b->next_name) : unique_name(b, 'v', &b->values);
    b->next_name = NULL;
    return name ? append(b, &copy, name) : no_memory(b);
}

/* Names and lists of the operands are copied into the arena, so callers may pass temporaries. */
uint32_t sg_mil_build_op(struct sg_mil_builder *b, const char *kind, const struct sg_mil_operand *operands,
                         uint32_t n, uint32_t outputs)
{
    if (b->status) return 0;
    struct sg_mil_op op = {.info = sg_mil_op_named(kind, strlen(kind)), .args_n = n, .outputs = outputs};
    op.kind = op.info ? op.info->kind : arena_text(b, kind);
    op.args = sg_arena_alloc(&b->program->arena, n * sizeof *op.args);
    if (!op.args) return no_memory(b);
    for (uint32_t i = 0; i < n; i++) {
        struct sg_mil_arg *a = &op.args[i];
        a->name = arena_text(b, operands[i].name);
        a->kind = operands[i].list ? SG_MIL_LIST : SG_MIL_REF;
        a->n = operands[i].n;
        if (operands[i].list)
            a->v.refs = arena_copy(b, operands[i].list, operands[i].n * sizeof *operands[i].list);
        else
            a->v.ref = operands[i].value;
    }
    return sg_mil_build_append(b, &op);
}

/* Appends a const operation with a copy of the literal. What the literal points to is already in the arena. */
static uint32_t add_const(struct sg_mil_builder *b, const char *name, const struct sg_mil_literal *literal)
{
    struct sg_mil_op op = {.info = sg_mil_op_named("const", 5), .kind = "const", .attrs_n = 1, .outputs = 1};
    struct sg_mil_attr val = {.name = "val", .literal = arena_copy(b, literal, sizeof *literal)};
    op.attrs = arena_copy(b, &val, sizeof val);
    if (b->status) return 0;
    if (!name && !(name = unique_name(b, 'k', &b->consts))) return no_memory(b);
    return append(b, &op, name);
}

/* Makes space for one more constant; the table is rehashed when it is half full. 0: out of memory. */
static int intern_grow(struct sg_mil_builder *b)
{
    if (b->interned_n * 2 < b->interned_cap) return 1;
    uint32_t cap = b->interned_cap ? b->interned_cap * 2 : 64;
    struct sg_mil_interned *more = sg_alloc(cap * sizeof *more);
    if (!more) return 0;
    for (uint32_t i = 0; i < b->interned_cap; i++) {
        if (b->interned[i].value == 0) continue; /* free */
        uint32_t at = (uint32_t)b->interned[i].hash.lo & (cap - 1);
        while (more[at].value) at = (at + 1) & (cap - 1);
        more[at] = b->interned[i];
    }
    sg_free(b->interned);
    b->interned = more;
    b->interned_cap = cap;
    return 1;
}

/* Returns the const with this type and contents, and appends it when there is none. bytes[n] is what is
 * hashed besides the type: the numbers, the text, or offset and path of a blob. The contents are copied
 * only for a new constant. */
static uint32_t intern_const(struct sg_mil_builder *b, const char *name, struct sg_mil_literal *l, const void *bytes,
                             size_t n)
{
    if (b->status) return 0;
    segue_error why;
    if (sg_mil_type_size(&l->type, NULL, NULL, &why)) {
        b->status = sg_fail(&b->err, SEGUE_EARG, "MIL program: a constant: %s", why.text);
        return 0;
    }
    /* 2 bytes: dtype and rank, which are adjacent */
    struct sg_hash h = sg_hash_join(sg_hash_bytes(&l->type.dtype, 2, 1),
                                    sg_hash_bytes(l->type.dim, l->type.rank * sizeof *l->type.dim, 2));
    h = sg_hash_join(h, sg_hash_bytes(bytes, n, l->kind));
    if (!intern_grow(b)) return no_memory(b);
    /* Linear probing; ends at the first free slot, where a new constant is entered below. */
    uint32_t at = (uint32_t)h.lo & (b->interned_cap - 1);
    for (; b->interned[at].value; at = (at + 1) & (b->interned_cap - 1))
        if (b->interned[at].hash.lo == h.lo && b->interned[at].hash.hi == h.hi) return b->interned[at].value - 1;
    /* A new constant: copy what the literal points to. A blob has only its path. */
    const void *copy = l->kind == SG_MIL_BLOB ? l : arena_copy(b, bytes, n);
    if (l->kind == SG_MIL_TEXT)
        l->v.text = copy;
    else if (l->kind == SG_MIL_BLOB)
        l->v.blob.path = arena_text(b, l->v.blob.path);
    else if (sg_mil_dtype_info((enum sg_mil_dtype)l->type.dtype)->class == SG_MIL_REAL)
        l->v.real = copy;
    else
        l->v.whole = copy;
    uint32_t value = add_const(b, name, l);
    if (b->status) return 0;
    b->interned[at] = (struct sg_mil_interned){h, value + 1};
    b->interned_n++;
    return value;
}

uint32_t sg_mil_build_real_tensor(struct sg_mil_builder *b, enum sg_mil_dtype d, uint32_t rank, const int64_t *dim,
                                  const double *v, uint64_t n)
{
    struct sg_mil_literal l = {.type = sg_mil_tensor(d, rank, dim), .kind = SG_MIL_NUMBERS, .n = n};
    return intern_const(b, NULL, &l, v, n * sizeof *v);
}

uint32_t sg_mil_build_int_tensor(struct sg_mil_builder *b, enum sg_mil_dtype d, uint32_t rank, const int64_t *dim,
                                 const int64_t *v, uint64_t n)
{
    struct sg_mil_literal l = {.type = sg_mil_tensor(d, rank, dim), .kind = SG_MIL_NUMBERS, .n = n};
    return intern_const(b, NULL, &l, v, n * sizeof *v);
}

/* Scalars are tensors of rank 0. */
uint32_t sg_mil_build_real(struct sg_mil_builder *b, double v)
{
    return sg_mil_build_real_tensor(b, SG_MIL_FP16, 0, NULL, &v, 1);
}
uint32_t sg_mil_build_int(struct sg_mil_builder *b, int64_t v)
{
    return sg_mil_build_int_tensor(b, SG_MIL_INT32, 0, NULL, &v, 1);
}

/* Axes, shapes and permutations are int32 vectors. */
uint32_t sg_mil_build_ints(struct sg_mil_builder *b, const int64_t *v, uint32_t n)
{
    int64_t dim = n;
    return sg_mil_build_int_tensor(b, SG_MIL_INT32, 1, &dim, v, n);
}

/* Any value other than 0 is true. */
uint32_t sg_mil_build_bool(struct sg_mil_builder *b, int v)
{
    int64_t truth = v != 0;
    return sg_mil_build_int_tensor(b, SG_MIL_BOOL, 0, NULL, &truth, 1);
}

uint32_t sg_mil_build_text(struct sg_mil_builder *b, const char *v)
{
    struct sg_mil_literal l = {.type = sg_mil_scalar(SG_MIL_STRING), .kind = SG_MIL_TEXT, .n = strlen(v)};
    return intern_const(b, NULL, &l, v, strlen(v) + 1);
}

/* Numbers of every class are 8 bytes each (double or int64_t), so one expression covers both. */
uint32_t sg_mil_build_literal(struct sg_mil_builder *b, const char *name, const struct sg_mil_literal *literal)
{
    struct sg_mil_literal l = *literal;
    if (b->status) return 0;
    if (name && !(name = arena_text(b, name))) return 0;
    if (l.kind != SG_MIL_BLOB) return intern_const(b, name, &l, l.v.text, l.kind == SG_MIL_TEXT ? l.n + 1 : l.n * 8);
    /* A blob is identified by offset and path, which together are unique. */
    struct sg_buf id = {0};
    sg_buf_printf(&id, "%llu %s", (unsigned long long)l.v.blob.offset, l.v.blob.path);
    uint32_t value = id.failed ? no_memory(b) : intern_const(b, name, &l, id.data, id.len);
    sg_buf_free(&id);
    return value;
}

/* Not interned: every weight has a separate record and a name that the caller chose. */
uint32_t sg_mil_build_blob(struct sg_mil_builder *b, const char *name, enum sg_mil_dtype d, uint32_t rank,
                           const int64_t *dim, const char *path, uint64_t offset)
{
    if (b->status) return 0;
    struct sg_mil_literal l = {.type = sg_mil_tensor(d, rank, dim), .kind = SG_MIL_BLOB};
    l.v.blob.path = sg_arena_printf(&b->program->arena, "@model_path/%s", path);
    l.v.blob.offset = offset;
    const char *copy = arena_text(b, name);
    return l.v.blob.path && copy ? add_const(b, copy, &l) : no_memory(b);
}

/* One operation with a single result; ARG is one of its operands. */
#define OP(kind, ...)                                                \
    sg_mil_build_op(b, kind, (struct sg_mil_operand[]){__VA_ARGS__}, \
                    sizeof((struct sg_mil_operand[]){__VA_ARGS__}) / sizeof(struct sg_mil_operand), 1)
#define ARG(n, v)             \
    {                         \
        .name = n, .value = v \
    }

/* Operations with the operands x, or x and y. */
uint32_t sg_mil_build_unary(struct sg_mil_builder *b, const char *kind, uint32_t x)
{
    return OP(kind, ARG("x", x));
}
uint32_t sg_mil_build_binary(struct sg_mil_builder *b, const char *kind, uint32_t x, uint32_t y)
{
    return OP(kind, ARG("x", x), ARG("y", y));
}

/* The constants of an operation are appended before it. These macros keep a name set with sg_mil_build_name
 * for the operation itself. */
#define SAVE_NAME(b)                    \
    const char *name_ = (b)->next_name; \
    (b)->next_name = NULL
#define RESTORE_NAME(b) (b)->next_name = name_

/* All seven arguments are given, because compilers require them in the modern and verbose dialects. A bias
 * is not possible (constraint 12). */
uint32_t sg_mil_build_conv(struct sg_mil_builder *b, uint32_t x, uint32_t weight, int64_t groups)
{
    static const int64_t ones[2] = {1, 1}, zeros[4] = {0, 0, 0, 0};
    SAVE_NAME(b);
    uint32_t kind = sg_mil_build_text(b, "valid"), one = sg_mil_build_ints(b, ones, 2),
             pad = sg_mil_build_ints(b, zeros, 4);
    uint32_t group = sg_mil_build_int(b, groups);
    RESTORE_NAME(b);
    return OP("conv", ARG("dilations", one), ARG("groups", group), ARG("pad", pad), ARG("pad_type", kind),
              ARG("strides", one), ARG("weight", weight), ARG("x", x));
}

/* The transposes are named constants, as constraint 13 requires. */
uint32_t sg_mil_build_matmul(struct sg_mil_builder *b, uint32_t x, uint32_t y, int transpose_x,
                             int transpose_y)
{
    SAVE_NAME(b);
    uint32_t tx = sg_mil_build_bool(b, transpose_x), ty = sg_mil_build_bool(b, transpose_y);
    RESTORE_NAME(b);
    return OP("matmul", ARG("transpose_x", tx), ARG("transpose_y", ty), ARG("x", x), ARG("y", y));
}

uint32_t sg_mil_build_reshape(struct sg_mil_builder *b, uint32_t x, uint32_t rank, const int64_t *shape)
{
    SAVE_NAME(b);
    uint32_t to = sg_mil_build_ints(b, shape, rank);
    RESTORE_NAME(b);
    return OP("reshape", ARG("shape", to), ARG("x", x));
}

uint32_t sg_mil_build_transpose(struct sg_mil_builder *b, uint32_t x, uint32_t rank, const int64_t *perm)
{
    SAVE_NAME(b);
    uint32_t order = sg_mil_build_ints(b, perm, rank);
    RESTORE_NAME(b);
    return OP("transpose", ARG("perm", order), ARG("x", x));
}

/* slice_by_size: begin and size are constants with one number per axis. */
uint32_t sg_mil_build_slice(struct sg_mil_builder *b, uint32_t x, uint32_t rank, const int64_t *begin,
                            const int64_t *size)
{
    SAVE_NAME(b);
    uint32_t from = sg_mil_build_ints(b, begin, rank), n = sg_mil_build_ints(b, size, rank);
    RESTORE_NAME(b);
    return OP("slice_by_size", ARG("begin", from), ARG("size", n), ARG("x", x));
}

/* axis and interleave are named constants, as constraint 9 requires. */
uint32_t sg_mil_build_concat(struct sg_mil_builder *b, const uint32_t *values, uint32_t n, int64_t axis)
{
    SAVE_NAME(b);
    uint32_t at = sg_mil_build_int(b, axis), interleave = sg_mil_build_bool(b, 0);
    RESTORE_NAME(b);
    return OP("concat", ARG("axis", at), ARG("interleave", interleave),
              {.name = "values", .list = values, .n = n});
}

uint32_t sg_mil_build_softmax(struct sg_mil_builder *b, uint32_t x, int64_t axis)
{
    SAVE_NAME(b);
    uint32_t at = sg_mil_build_int(b, axis);
    RESTORE_NAME(b);
    return OP("softmax", ARG("axis", at), ARG("x", x));
}

/* keep_dims is always true: shapes stay of rank 4, the rank that all engines support at ports. */
uint32_t sg_mil_build_reduce(struct sg_mil_builder *b, const char *kind, uint32_t x, int64_t axis)
{
    SAVE_NAME(b);
    uint32_t axes = sg_mil_build_ints(b, &axis, 1), keep = sg_mil_build_bool(b, 1);
    RESTORE_NAME(b);
    return OP(kind, ARG("axes", axes), ARG("keep_dims", keep), ARG("x", x));
}
