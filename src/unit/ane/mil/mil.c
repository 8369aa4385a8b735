/* mil.c: element types, growable lists and the name table of MIL programs (see mil.h). This file knows
 * neither the text grammar nor what an operation computes.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/mil.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"

/* --- types --- */

/* Columns: name, bits per element, blob data type code, class. The codes are those of MILBlob's
 * BlobDataType.hpp (coremltools). Types with code 0 cannot be stored in a weight file. */
static const struct sg_mil_dtype_info dtypes[SG_MIL_DTYPES] = {
    [SG_MIL_FP16] = {"fp16", 16, 1, SG_MIL_REAL},          [SG_MIL_FP32] = {"fp32", 32, 2, SG_MIL_REAL},
    [SG_MIL_BF16] = {"bf16", 16, 5, SG_MIL_REAL},          [SG_MIL_INT8] = {"int8", 8, 4, SG_MIL_SIGNED},
    [SG_MIL_UINT8] = {"uint8", 8, 3, SG_MIL_UNSIGNED},     [SG_MIL_INT16] = {"int16", 16, 6, SG_MIL_SIGNED},
    [SG_MIL_UINT16] = {"uint16", 16, 7, SG_MIL_UNSIGNED},  [SG_MIL_INT32] = {"int32", 32, 14, SG_MIL_SIGNED},
    [SG_MIL_UINT32] = {"uint32", 32, 15, SG_MIL_UNSIGNED}, [SG_MIL_INT64] = {"int64", 64, 0, SG_MIL_SIGNED},
    [SG_MIL_UINT64] = {"uint64", 64, 0, SG_MIL_UNSIGNED},  [SG_MIL_INT4] = {"int4", 4, 8, SG_MIL_SIGNED},
    [SG_MIL_UINT4] = {"uint4", 4, 11, SG_MIL_UNSIGNED},    [SG_MIL_UINT1] = {"uint1", 1, 9, SG_MIL_UNSIGNED},
    [SG_MIL_UINT2] = {"uint2", 2, 10, SG_MIL_UNSIGNED},    [SG_MIL_UINT3] = {"uint3", 3, 12, SG_MIL_UNSIGNED},
    [SG_MIL_UINT6] = {"uint6", 6, 13, SG_MIL_UNSIGNED},    [SG_MIL_BOOL] = {"bool", 8, 0, SG_MIL_BOOLEAN},
    [SG_MIL_STRING] = {"string", 0, 0, SG_MIL_CHARS},
};

const struct sg_mil_dtype_info *sg_mil_dtype_info(enum sg_mil_dtype d) { return &dtypes[d]; }

/* A linear search is enough: there are 19 types. */
enum sg_mil_dtype sg_mil_dtype_named(const char *name, size_t n)
{
    for (int d = 0; d < SG_MIL_DTYPES; d++)
        if (strlen(dtypes[d].name) == n && !memcmp(dtypes[d].name, name, n)) return (enum sg_mil_dtype)d;
    return SG_MIL_DTYPES;
}

/* Code 0 is never valid: in the table above it marks types without a code. */
enum sg_mil_dtype sg_mil_dtype_from_blob(uint32_t code)
{
    for (int d = 0; code && d < SG_MIL_DTYPES; d++)
        if (dtypes[d].blob == code) return (enum sg_mil_dtype)d;
    return SG_MIL_DTYPES;
}

struct sg_mil_type sg_mil_scalar(enum sg_mil_dtype d) { return (struct sg_mil_type){.dtype = (uint8_t)d}; }

/* A size outside 0..2^31-1 becomes SG_MIL_UNKNOWN, which sg_mil_type_size rejects later. */
struct sg_mil_type sg_mil_tensor(enum sg_mil_dtype d, uint32_t rank, const int64_t *dim)
{
    struct sg_mil_type t = {.dtype = (uint8_t)d, .rank = (uint8_t)rank};
    for (uint32_t i = 0; i < rank; i++)
        t.dim[i] = dim[i] > INT32_MAX || dim[i] < 0 ? SG_MIL_UNKNOWN : (int32_t)dim[i];
    return t;
}

/* Only the used part of dim[] is compared; the rest is undefined. */
int sg_mil_type_equal(const struct sg_mil_type *a, const struct sg_mil_type *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && !a->buffer == !b->buffer &&
           !memcmp(a->dim, b->dim, a->rank * sizeof *a->dim);
}

uint64_t sg_mil_elements(const struct sg_mil_type *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++) n *= (uint64_t)t->dim[i];
    return n;
}

/* The element limit is tested after each multiplication, so the product cannot wrap around. */
segue_status sg_mil_type_size(const struct sg_mil_type *t, uint64_t *elements, uint64_t *bytes,
                              segue_error *err)
{
    uint64_t n = 1, max = (uint64_t)1 << 40;
    char text[96];
    for (uint32_t i = 0; i < t->rank; i++) {
        if (t->dim[i] < 1)
            return sg_fail(err, SEGUE_EFORMAT,
                           "type: %s: a dimension is not known or not positive; write every dimension as a number "
                           "above 0",
                           sg_mil_type_text(t, text));
        n *= (uint64_t)t->dim[i]; /* n <= 2^40 and dim < 2^31: the product fits 64 bits */
        if (n > max)
            return sg_fail(err, SEGUE_EFORMAT, "type: %s: more than 2^40 elements; make it smaller",
                           sg_mil_type_text(t, text));
    }
    if (elements) *elements = n;
    if (bytes) *bytes = (n * dtypes[t->dtype].bits + 7) / 8;
    return SEGUE_OK;
}

/* A dimension takes at most 12 bytes (", 2147483647"), so the loop stops at 84 and the buffer cannot
 * overflow. Further dimensions are left out: the text is for messages only. */
const char *sg_mil_type_text(const struct sg_mil_type *t, char out[96])
{
    size_t at = (size_t)snprintf(out, 96, "%s [", dtypes[t->dtype].name);
    for (uint32_t i = 0; i < t->rank && at < 84; i++)
        at += (size_t)(t->dim[i] < 0 ? snprintf(out + at, 96 - at, "%s?", i ? ", " : "")
                                     : snprintf(out + at, 96 - at, "%s%d", i ? ", " : "", (int)t->dim[i]));
    snprintf(out + at, 96 - at, "]");
    return out;
}

/* Hash table from value name to value number: open addressing with linear probing, at most half full. The
 * names are stored in the values, so a slot is only the number. */
struct sg_mil_names {
    uint32_t *slots;    /* [cap] value number + 1; 0: free */
    uint32_t cap, used; /* cap is a power of two */
    uint64_t key[2];    /* random, since names come from files */
};

/* Slot that holds the name of n bytes, or the free slot where it would be inserted. The table is never
 * full, so the probe always ends. */
static uint32_t find_slot(const struct sg_mil_function *f, const char *name, size_t n)
{
    const struct sg_mil_names *t = f->names;
    uint32_t at = (uint32_t)sg_hash_keyed(name, n, t->key) & (t->cap - 1);
    while (t->slots[at]) {
        const char *other = f->values[t->slots[at] - 1].name;
        if (!strncmp(other, name, n) && !other[n]) break;
        at = (at + 1) & (t->cap - 1);
    }
    return at;
}

/* Makes space for one more name; rehashes all names when the table is half full. 0: out of memory or too
 * many names; the table is then unchanged. */
static int names_grow(struct sg_mil_function *f)
{
    struct sg_mil_names *t = f->names;
    if (!t) {
        if (!(t = f->names = sg_alloc(sizeof *t))) return 0;
        sg_random(t->key, sizeof t->key);
    }
    if (t->used * 2 < t->cap) return 1;
    if (t->cap >= 1u << 30) return 0;
    /* The new table replaces the old one before the names are inserted, because find_slot uses it. */
    uint32_t cap = t->cap ? t->cap * 2 : 64, *old = t->slots, old_cap = t->cap;
    uint32_t *slots = sg_alloc(cap * sizeof *slots);
    if (!slots) return 0;
    t->slots = slots;
    t->cap = cap;
    for (uint32_t i = 0; i < old_cap; i++)
        if (old[i])
            t->slots[find_slot(f, f->values[old[i] - 1].name, strlen(f->values[old[i] - 1].name))] = old[i];
    sg_free(old);
    return 1;
}

/* A function without values may have no table yet, or an empty one after a failed allocation. */
uint32_t sg_mil_value_find(const struct sg_mil_function *f, const char *name, size_t n)
{
    if (!f->names || !f->names->cap) return SG_MIL_NONE;
    uint32_t found = f->names->slots[find_slot(f, name, n)];
    return found ? found - 1 : SG_MIL_NONE;
}

struct sg_mil_program *sg_mil_program_new(enum sg_mil_dialect dialect)
{
    struct sg_mil_program *p = sg_alloc(sizeof *p);
    if (!p) return NULL;
    p->major = 1;
    p->minor = dialect == SG_MIL_VERBOSE ? 0 : 3;
    p->dialect = dialect;
    p->has_info = dialect != SG_MIL_BUFFER; /* printed with it */
    return p;
}

void sg_mil_function_free(struct sg_mil_function *f)
{
    if (f->names) sg_free(f->names->slots);
    sg_free(f->names);
    sg_free(f->values);
    sg_free(f->ops);
    sg_free(f->returns);
}

void sg_mil_program_free(struct sg_mil_program *p)
{
    if (!p) return;
    for (uint32_t i = 0; i < p->functions_n; i++) sg_mil_function_free(&p->functions[i]);
    sg_free(p->functions);
    sg_arena_free(&p->arena);
    sg_free(p);
}

/* Programs have few functions, so the list grows one by one. */
struct sg_mil_function *sg_mil_function_add(struct sg_mil_program *p, const char *name, const char *target)
{
    struct sg_mil_function *more = sg_realloc(p->functions, (p->functions_n + (size_t)1) * sizeof *more);
    if (!more) return NULL;
    p->functions = more;
    memset(&more[p->functions_n], 0, sizeof *more);
    more[p->functions_n].name = name;
    more[p->functions_n].target = target;
    return &more[p->functions_n++];
}

const struct sg_mil_function *sg_mil_function_find(const struct sg_mil_program *p, const char *name)
{
    for (uint32_t i = 0; i < p->functions_n; i++)
        if (!strcmp(p->functions[i].name, name)) return &p->functions[i];
    return NULL;
}

/* Makes space for element n of a list by doubling. Returns the list, possibly moved; NULL: out of memory,
 * and the old list stays valid. */
static void *grow_list(void *list, uint32_t n, uint32_t *cap, size_t each)
{
    if (n < *cap) return list;
    if (*cap >= 1u << 28) return NULL;
    uint32_t more = *cap ? *cap * 2 : 32;
    void *p = sg_realloc(list, more * each);
    if (p) *cap = more;
    return p;
}

/* Both allocations are made before anything is changed, so a failure leaves the function as it was. */
uint32_t sg_mil_value_add(struct sg_mil_function *f, const char *name, const struct sg_mil_type *type,
                          uint32_t op, int *taken)
{
    if (taken) *taken = 0;
    void *values = grow_list(f->values, f->values_n, &f->values_cap, sizeof *f->values);
    if (!values) return SG_MIL_NONE;
    f->values = values;
    if (!names_grow(f)) return SG_MIL_NONE;
    uint32_t slot = find_slot(f, name, strlen(name));
    if (f->names->slots[slot]) {
        if (taken) *taken = 1;
        return SG_MIL_NONE;
    }
    f->values[f->values_n] = (struct sg_mil_value){.name = name, .type = *type, .op = op};
    f->names->slots[slot] = ++f->values_n;
    f->names->used++;
    return f->values_n - 1;
}

/* Zeroed, so that the caller sets only the fields that it uses. */
struct sg_mil_op *sg_mil_op_add(struct sg_mil_function *f)
{
    void *ops = grow_list(f->ops, f->ops_n, &f->ops_cap, sizeof *f->ops);
    if (!ops) return NULL;
    f->ops = ops;
    memset(&f->ops[f->ops_n], 0, sizeof *f->ops);
    return &f->ops[f->ops_n++];
}

/* Operations have few arguments and attributes; a linear search is faster than a table. */
const struct sg_mil_arg *sg_mil_arg_find(const struct sg_mil_op *op, const char *name)
{
    for (uint32_t i = 0; i < op->args_n; i++)
        if (!strcmp(op->args[i].name, name)) return &op->args[i];
    return NULL;
}

const struct sg_mil_literal *sg_mil_attr_find(const struct sg_mil_op *op, const char *name)
{
    for (uint32_t i = 0; i < op->attrs_n; i++)
        if (!strcmp(op->attrs[i].name, name)) return op->attrs[i].literal;
    return NULL;
}

/* constexpr_* results are not literals: they are computed when the program is compiled. */
const struct sg_mil_literal *sg_mil_value_literal(const struct sg_mil_function *f, uint32_t value)
{
    uint32_t op = f->values[value].op;
    if (f->values[value].given) return f->values[value].given;
    return op == SG_MIL_NONE || strcmp(f->ops[op].kind, "const") != 0 ? NULL
                                                                      : sg_mil_attr_find(&f->ops[op], "val");
}

const struct sg_mil_literal *sg_mil_arg_literal(const struct sg_mil_function *f, const struct sg_mil_arg *a)
{
    if (!a || a->kind == SG_MIL_LIST) return NULL;
    return a->kind == SG_MIL_LITERAL ? a->v.literal : sg_mil_value_literal(f, a->v.ref);
}

const struct sg_mil_type *sg_mil_arg_type(const struct sg_mil_function *f, const struct sg_mil_arg *a)
{
    if (!a || a->kind == SG_MIL_LIST) return NULL;
    return a->kind == SG_MIL_LITERAL ? &a->v.literal->type : &f->values[a->v.ref].type;
}

/* 1: the numbers of the literal are doubles (v.real). */
static int is_real(const struct sg_mil_literal *l) { return dtypes[l->type.dtype].class == SG_MIL_REAL; }

/* UINT64 is stored as its bit pattern, so it needs a conversion of its unsigned value. */
double sg_mil_literal_real(const struct sg_mil_literal *l, uint64_t i)
{
    if (!l || l->kind != SG_MIL_NUMBERS || !l->n) return 0;
    if (l->n == 1) i = 0;
    if (i >= l->n) return 0;
    return is_real(l)                       ? l->v.real[i]
           : l->type.dtype == SG_MIL_UINT64 ? (double)(uint64_t)l->v.whole[i]
                                            : (double)l->v.whole[i];
}

/* A real outside the int64 range gives 0, because the conversion would be undefined. */
int64_t sg_mil_literal_int(const struct sg_mil_literal *l, uint64_t i)
{
    if (!l || l->kind != SG_MIL_NUMBERS || !l->n) return 0;
    if (l->n == 1) i = 0;
    if (i >= l->n) return 0;
    if (!is_real(l)) return l->v.whole[i];
    double v = l->v.real[i];
    return v >= -9e18 && v <= 9e18 ? (int64_t)v : 0;
}
