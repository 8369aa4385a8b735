/* mil.h: a MIL program in memory: functions, values, operations, constants, references into blob files. One
 * form for all three dialects; whether a scalar is written `fp16(1)` or `tensor<fp16, []>(1)` is the
 * printer's business. Values are numbered in the order of their definition, parameters first, and an
 * operation reads only values with smaller numbers: the form holds no cycle and no forward reference. Next:
 * milparse.h (text to program), milbuild.h (calls to program), milprint.h (program to text), milinfer.h
 * (types). SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MIL_H
#define SG_UNIT_ANE_MIL_H

#include "base/mem.h"

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
enum sg_mil_class { SG_MIL_REAL, SG_MIL_SIGNED, SG_MIL_UNSIGNED, SG_MIL_TRUTH, SG_MIL_CHARACTERS };

struct sg_mil_dtype_info {
    const char *name;
    uint8_t bits;  /* of one element where it is packed; 0 for strings */
    uint8_t blob;  /* data type code in blob files; 0 = none */
    uint8_t class; /* enum sg_mil_class */
};
const struct sg_mil_dtype_info *sg_mil_dtype_info(enum sg_mil_dtype d);
enum sg_mil_dtype sg_mil_dtype_named(const char *name, size_t n); /* SG_MIL_DTYPES: none */
enum sg_mil_dtype sg_mil_dtype_of_blob(uint32_t code);

enum { SG_MIL_DIMS = 8, SG_MIL_UNKNOWN = -1 };

/* Of tensor_buffer: strides in elements, and interleave factors. */
struct sg_mil_layout {
    int64_t stride[SG_MIL_DIMS], interleave[SG_MIL_DIMS];
};

struct sg_mil_type {
    uint8_t dtype, rank;                /* rank 0: a scalar */
    int32_t dim[SG_MIL_DIMS];           /* [rank]; SG_MIL_UNKNOWN for `?` */
    const struct sg_mil_layout *buffer; /* NULL: a tensor */
};
struct sg_mil_type sg_mil_scalar(enum sg_mil_dtype d);
struct sg_mil_type sg_mil_tensor(enum sg_mil_dtype d, uint32_t rank,
                                 const int64_t *dim); /* rank <= SG_MIL_DIMS */
int sg_mil_type_equal(const struct sg_mil_type *a,
                      const struct sg_mil_type *b); /* layouts are not compared */
/* Elements and bytes (packed below 8 bits). EFORMAT: a dimension is not known or the product is over 2^40. */
segue_status sg_mil_type_size(const struct sg_mil_type *t, uint64_t *elements, uint64_t *bytes,
                              segue_error *err);
uint64_t sg_mil_elements(const struct sg_mil_type *t); /* of a type that was sized before */
const char *sg_mil_type_text(const struct sg_mil_type *t,
                             char out[96]); /* "fp16 [1, 64, 1, 32]"; returns out */

enum sg_mil_literal_kind { SG_MIL_NUMBERS, SG_MIL_TEXT, SG_MIL_BLOB };
struct sg_mil_literal {
    struct sg_mil_type type;
    uint8_t kind;
    uint32_t line, column; /* 0: not from a text */
    uint64_t n;            /* numbers: elements, or 1 for all alike; text: bytes */
    union {
        const double *real;   /* [n] classes REAL; rounded to the type when they are used */
        const int64_t *whole; /* [n] other classes; UINT64 as its bits, BOOL as 0 or 1 */
        const char *text;     /* NUL-terminated */
        struct {
            const char *path;
            uint64_t offset;
        } blob; /* path as written, with @model_path/; offset of the record */
    } v;
};

enum sg_mil_arg_kind { SG_MIL_REF, SG_MIL_LIST, SG_MIL_LITERAL };
struct sg_mil_arg {
    const char *name;
    uint8_t kind;
    uint32_t n; /* refs */
    uint32_t line, column;
    union {
        uint32_t ref;
        const uint32_t *refs; /* [n] */
        const struct sg_mil_literal *literal;
    } v;
};
struct sg_mil_attr {
    const char *name;
    const struct sg_mil_literal *literal;
};

enum { SG_MIL_NONE = 0xffffffffu };

struct sg_mil_value {
    const char *name;
    struct sg_mil_type type;
    uint32_t op; /* that makes it; SG_MIL_NONE: a parameter, or a literal that stood inline */
    uint32_t line, column;
    const struct sg_mil_literal *given; /* the literal that stood inline; NULL */
};
struct sg_mil_op {
    const struct sg_mil_op_info *info; /* milops.h; NULL: an operation that the table does not know */
    const char *kind;                  /* as written: "conv" */
    const char *target;                /* of the operation itself, "ios17"; NULL */
    struct sg_mil_arg *args;           /* [args_n] in written order */
    struct sg_mil_attr *attrs;         /* [attrs_n] */
    uint32_t args_n, attrs_n;
    uint32_t first, outputs; /* values[first .. first + outputs) */
    uint32_t line, column;
};
struct sg_mil_function {
    const char *name, *target;   /* "main", "ios16" */
    struct sg_mil_value *values; /* [values_n], the first params_n are parameters */
    struct sg_mil_op *ops;       /* [ops_n] in order of execution */
    uint32_t *returns;           /* [returns_n] */
    uint32_t values_n, values_cap, ops_n, ops_cap, params_n, returns_n;
    uint32_t line, column;
    struct sg_mil_names *names; /* name -> value */
};
enum sg_mil_dialect { SG_MIL_MODERN, SG_MIL_VERBOSE, SG_MIL_BUFFER }; /* docs/ANE.md, "Programs" */
struct sg_mil_pair {
    const char *key, *value;
};
struct sg_mil_program {
    uint32_t major, minor;
    enum sg_mil_dialect dialect;
    struct sg_mil_pair *info;          /* [info_n] buildInfo */
    struct sg_mil_function *functions; /* [functions_n] */
    uint32_t info_n, functions_n;
    struct sg_arena arena; /* names, arguments, literals */
};

struct sg_mil_program *sg_mil_program_new(enum sg_mil_dialect dialect); /* NULL: out of memory */
void sg_mil_program_free(struct sg_mil_program *p);
void sg_mil_function_free(struct sg_mil_function *f); /* its lists; names and literals are the program's */
/* A new, empty function at the end; earlier pointers into functions become stale. NULL: out of memory. */
struct sg_mil_function *sg_mil_function_add(struct sg_mil_program *p, const char *name, const char *target);
const struct sg_mil_function *sg_mil_function_find(const struct sg_mil_program *p, const char *name);
/* Append a value or an operation. SG_MIL_NONE: out of memory. Names are kept by pointer: memory of the
 * program's arena. A name that exists already gives SG_MIL_NONE with *taken = 1. */
uint32_t sg_mil_value_add(struct sg_mil_function *f, const char *name, const struct sg_mil_type *type,
                          uint32_t op, int *taken);
struct sg_mil_op *sg_mil_op_add(struct sg_mil_function *f);
uint32_t sg_mil_value_find(const struct sg_mil_function *f, const char *name, size_t n); /* SG_MIL_NONE */

const struct sg_mil_arg *sg_mil_arg_find(const struct sg_mil_op *op, const char *name); /* NULL */
const struct sg_mil_literal *sg_mil_attr_find(const struct sg_mil_op *op, const char *name);
/* The literal of an argument: inline, or of the const that it names; NULL when it is computed. */
const struct sg_mil_literal *sg_mil_arg_literal(const struct sg_mil_function *f, const struct sg_mil_arg *a);
const struct sg_mil_literal *sg_mil_value_literal(const struct sg_mil_function *f, uint32_t value);
/* The type of an argument that is one value or literal. */
const struct sg_mil_type *sg_mil_arg_type(const struct sg_mil_function *f, const struct sg_mil_arg *a);
/* Number i of a literal (the first one where all are alike), as double or integer; 0 where there is none. */
double sg_mil_literal_real(const struct sg_mil_literal *l, uint64_t i);
int64_t sg_mil_literal_whole(const struct sg_mil_literal *l, uint64_t i);

#endif
