/* mil.h: an MIL program in memory: functions, values, operations, constants and references into weight blob
 * files. All three text dialects use this one form; dialect differences, such as `fp16(1)` against
 * `tensor<fp16, []>(1)`, exist only in the parser and the printer. Values are numbered in definition order,
 * parameters first. An operation reads only values with smaller numbers, so the form has no cycles and no
 * forward references. Related headers: milparse.h (text to program), milbuild.h (calls to program),
 * milprint.h (program to text), milinfer.h (types).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MIL_H
#define SG_UNIT_ANE_MIL_H

#include "base/mem.h"

/* Element types. SG_MIL_DTYPES is the number of types and also means "unknown type". */
enum sg_mil_dtype {
    SG_MIL_FP16,
    SG_MIL_FP32,
    SG_MIL_BF16,
    SG_MIL_INT8,
    SG_MIL_UINT8,
    SG_MIL_INT16,
    SG_MIL_UINT16,
    SG_MIL_INT32,
    SG_MIL_UINT32,
    SG_MIL_INT64,
    SG_MIL_UINT64,
    SG_MIL_INT4,
    SG_MIL_UINT4,
    SG_MIL_UINT1,
    SG_MIL_UINT2,
    SG_MIL_UINT3,
    SG_MIL_UINT6,
    SG_MIL_BOOL,
    SG_MIL_STRING,
    SG_MIL_DTYPES
};
/* Type classes; they decide how a literal stores its numbers (see sg_mil_literal). */
enum sg_mil_class { SG_MIL_REAL, SG_MIL_SIGNED, SG_MIL_UNSIGNED, SG_MIL_BOOLEAN, SG_MIL_CHARS };

struct sg_mil_dtype_info {
    const char *name;
    uint8_t bits;  /* bits per packed element; 0 for strings */
    uint8_t blob;  /* data type code in blob records; 0: cannot be stored in a blob */
    uint8_t class; /* enum sg_mil_class */
};
const struct sg_mil_dtype_info *sg_mil_dtype_info(enum sg_mil_dtype d);
/* Looks up a type name of n bytes. Returns SG_MIL_DTYPES when the name is unknown. */
enum sg_mil_dtype sg_mil_dtype_named(const char *name, size_t n);
/* Looks up the data type code of a blob record. Returns SG_MIL_DTYPES when it is unknown. */
enum sg_mil_dtype sg_mil_dtype_from_blob(uint32_t code);

enum { SG_MIL_DIMS = 8, SG_MIL_UNKNOWN = -1 }; /* maximum rank; size of a dimension written as `?` */

/* Memory layout of a tensor_buffer: strides in elements, and interleave factors, one per dimension. */
struct sg_mil_layout {
    int64_t stride[SG_MIL_DIMS], interleave[SG_MIL_DIMS];
};

/* Type of a value: element type, shape and, for a tensor_buffer, its memory layout. */
struct sg_mil_type {
    uint8_t dtype, rank;                /* enum sg_mil_dtype; number of dimensions, 0: scalar */
    int32_t dim[SG_MIL_DIMS];           /* [rank] sizes; SG_MIL_UNKNOWN for `?` */
    const struct sg_mil_layout *buffer; /* NULL: a plain tensor */
};
/* Plain types of rank 0 and of rank <= SG_MIL_DIMS with the sizes dim[rank]. */
struct sg_mil_type sg_mil_scalar(enum sg_mil_dtype d);
struct sg_mil_type sg_mil_tensor(enum sg_mil_dtype d, uint32_t rank, const int64_t *dim);
/* 1: same element type, same shape, and both or neither are a tensor_buffer. Layouts are not compared. */
int sg_mil_type_equal(const struct sg_mil_type *a, const struct sg_mil_type *b);
/* Elements and bytes of a type; types below 8 bits count as packed. Either output may be NULL. EFORMAT: a
 * dimension is unknown or below 1, or the type has more than 2^40 elements. */
segue_status sg_mil_type_size(const struct sg_mil_type *t, uint64_t *elements, uint64_t *bytes,
                              segue_error *err);
/* Number of elements, without checks; call only for types that sg_mil_type_size accepted. */
uint64_t sg_mil_elements(const struct sg_mil_type *t);
/* Writes a type for messages, such as "fp16 [1, 64, 1, 32]", and returns out. */
const char *sg_mil_type_text(const struct sg_mil_type *t, char out[96]);

enum sg_mil_literal_kind { SG_MIL_NUMBERS, SG_MIL_TEXT, SG_MIL_BLOB };
/* A constant: numbers, a string, or a reference to a record in a blob file. Owned by the program's arena. */
struct sg_mil_literal {
    struct sg_mil_type type;
    uint8_t kind;          /* enum sg_mil_literal_kind */
    uint32_t line, column; /* source position, from 1; 0: not parsed from text */
    uint64_t n;            /* numbers: element count, or 1 when all elements are equal; text: bytes */
    union {
        const double *real;   /* [n] class REAL; not yet rounded to the element type */
        const int64_t *whole; /* [n] all other classes; UINT64 as its bit pattern, BOOL as 0 or 1 */
        const char *text;     /* NUL-terminated */
        struct {
            const char *path;
            uint64_t offset;
        } blob; /* path as written, including @model_path/; byte offset of the record header */
    } v;
};

/* An argument is one value, a list of values `(a, b)`, or an inline constant. */
enum sg_mil_arg_kind { SG_MIL_REF, SG_MIL_LIST, SG_MIL_LITERAL };
/* A named argument of an operation. Which union member is valid depends on kind. */
struct sg_mil_arg {
    const char *name;
    uint8_t kind;
    uint32_t n; /* length of refs when kind is SG_MIL_LIST */
    uint32_t line, column;
    union {
        uint32_t ref;         /* value number */
        const uint32_t *refs; /* [n] value numbers */
        const struct sg_mil_literal *literal;
    } v;
};
/* An attribute in square brackets after the arguments: `name`, `val`, or an ios16 constexpr operand. */
struct sg_mil_attr {
    const char *name;
    const struct sg_mil_literal *literal;
};

/* No value, or no operation. */
enum { SG_MIL_NONE = 0xffffffffu };

/* An SSA value: a parameter or one result of an operation. */
struct sg_mil_value {
    const char *name;
    struct sg_mil_type type;
    uint32_t op; /* defining operation; SG_MIL_NONE: a parameter or a materialized inline literal */
    uint32_t line, column;
    const struct sg_mil_literal *given; /* the inline literal that this value materializes, or NULL */
};
/* An operation with its arguments, attributes and results. Results are consecutive values. */
struct sg_mil_op {
    const struct sg_mil_op_info *info; /* entry of the table in milops.c; NULL: unknown operation */
    const char *kind;                  /* as written: "conv" */
    const char *target;                /* target of this operation, such as "ios17"; NULL: the function's */
    struct sg_mil_arg *args;           /* [args_n] in source order */
    struct sg_mil_attr *attrs;         /* [attrs_n] */
    uint32_t args_n, attrs_n;
    uint32_t first, outputs; /* values[first .. first + outputs) */
    uint32_t line, column;
};
/* A function. Owns its lists and the name table; names and literals belong to the program's arena. */
struct sg_mil_function {
    const char *name, *target;   /* "main", "ios16" */
    struct sg_mil_value *values; /* [values_n], the first params_n are parameters */
    struct sg_mil_op *ops;       /* [ops_n] in execution order */
    uint32_t *returns;           /* [returns_n] value numbers of the results */
    uint32_t values_n, values_cap, ops_n, ops_cap, params_n, returns_n;
    uint32_t line, column;
    struct sg_mil_names *names; /* hash table from name to value number */
};
/* Text dialects: program(1.3) with buildInfo, program(1.0), and program(1.3) without buildInfo, which has
 * tensor_buffer and inline constants. VERBOSE is the dialect reported to compile on M1 to M5. See
 * docs/ANE.md, "Programs". */
enum sg_mil_dialect { SG_MIL_MODERN, SG_MIL_VERBOSE, SG_MIL_BUFFER };
/* An entry of buildInfo. The compiler ignores the entries; they are kept for printing. */
struct sg_mil_pair {
    const char *key, *value;
};
/* A whole program. Owns the functions and the arena. */
struct sg_mil_program {
    uint32_t major, minor;
    enum sg_mil_dialect dialect;
    struct sg_mil_pair *info;          /* [info_n] buildInfo */
    struct sg_mil_function *functions; /* [functions_n] */
    uint32_t info_n, functions_n;
    int has_info;          /* 1: the text has buildInfo */
    struct sg_arena arena; /* owns names, arguments, attributes and literals */
};

/* An empty program of version 1.0 (VERBOSE) or 1.3. NULL: out of memory. */
struct sg_mil_program *sg_mil_program_new(enum sg_mil_dialect dialect);
void sg_mil_program_free(struct sg_mil_program *p);
/* Frees the lists of a function. Names and literals stay in the program's arena. */
void sg_mil_function_free(struct sg_mil_function *f);
/* Appends an empty function. Invalidates earlier pointers to functions of the program. NULL: out of memory. */
struct sg_mil_function *sg_mil_function_add(struct sg_mil_program *p, const char *name, const char *target);
const struct sg_mil_function *sg_mil_function_find(const struct sg_mil_program *p, const char *name);
/* Appends a value and returns its number. The name is not copied: it must live in the program's arena.
 * SG_MIL_NONE: out of memory or, with *taken = 1, the name already exists in the function. taken may be
 * NULL. */
uint32_t sg_mil_value_add(struct sg_mil_function *f, const char *name, const struct sg_mil_type *type,
                          uint32_t op, int *taken);
/* Appends a zeroed operation. Invalidates earlier pointers to operations of f. NULL: out of memory. */
struct sg_mil_op *sg_mil_op_add(struct sg_mil_function *f);
/* Number of the value with this name of n bytes, or SG_MIL_NONE. */
uint32_t sg_mil_value_find(const struct sg_mil_function *f, const char *name, size_t n);

/* The argument or attribute with this name; NULL: absent. */
const struct sg_mil_arg *sg_mil_arg_find(const struct sg_mil_op *op, const char *name);
const struct sg_mil_literal *sg_mil_attr_find(const struct sg_mil_op *op, const char *name);
/* The constant that an argument or a value refers to: an inline literal, or the `val` of the const
 * operation that defines it. NULL: absent, a list, or computed at run time. */
const struct sg_mil_literal *sg_mil_arg_literal(const struct sg_mil_function *f, const struct sg_mil_arg *a);
const struct sg_mil_literal *sg_mil_value_literal(const struct sg_mil_function *f, uint32_t value);
/* Type of an argument that is one value or one literal. NULL: absent or a list. */
const struct sg_mil_type *sg_mil_arg_type(const struct sg_mil_function *f, const struct sg_mil_arg *a);
/* Element i of a numeric literal as double or integer. A literal with n = 1 gives the same element for every
 * i. Returns 0 when there is no such element. */
double sg_mil_literal_real(const struct sg_mil_literal *l, uint64_t i);
int64_t sg_mil_literal_int(const struct sg_mil_literal *l, uint64_t i);

#endif
