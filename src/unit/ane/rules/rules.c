/* rules.c: see rules.h. The table of constraints, the check of blobs, and the traversal of a program with
 * the checks of values, inputs and outputs. The checks of single operations are in oprules.c.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/rules/rules.h"

#include <stdlib.h>
#include <string.h>

#include "unit/ane/blob/blob.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/rules/oprules.h"

/* Ascending numbers. Numbers without a row cannot be checked or are not constraints on a program
 * (docs/ANE.md). */
static const struct sg_ane_rule rules[] = {
    {1, SG_ANE_FAILS, 's',
     "a surface holds channels x padded rows, at least 16 KiB; rows of inputs and outputs are whole 64 "
     "bytes",
     SG_ANE_ALL, "OR IM ES SP"},
    {2, SG_ANE_FAILS, 's', "all input surfaces have the same size, and all output surfaces have the same size",
     0, "OR"},
    {3, SG_ANE_PERMUTES, 't', "inputs and outputs are declared in the alphabetical order of their names",
     0, "OR H"},
    {4, SG_ANE_ZEROS, 't', "inputs are in ascending order of size, outputs in descending order",
     SG_ANE_H13, "IK"},
    {5, SG_ANE_REFUSES, 'p', "the number of compiles per process is limited",
     SG_ANE_ALL, "MX OR IM AL"},
    {6, SG_ANE_REFUSES, 'p', "the number of programs loaded at the same time is limited",
     SG_ANE_ALL, "AG IM"},
    {8, SG_ANE_DISTORTS, 'p', "weights are frozen when a program is compiled",
     SG_ANE_ALL, "MX OR"},
    {9, SG_ANE_REFUSES, 't', "concat has a constant axis of 0 or more, and interleave; in strict two values or more",
     SG_ANE_ALL, "OR AL AG"},
    {10, SG_ANE_REFUSES, 't', "the engine supports the operation",
     SG_ANE_ALL, "IM OR"},
    {11, SG_ANE_REFUSES, 't', "rsqrt, log and inverse have epsilon",
     SG_ANE_ALL, "IM H"},
    {12, SG_ANE_REFUSES, 't', "conv has no bias, or one from a blob file",
     SG_ANE_ALL, "OR H"},
    {13, SG_ANE_REFUSES, 't',
     "constants of matmul, softmax, reduce_sum, reduce_mean and norms are named; small integer constants are "
     "in the text",
     SG_ANE_ALL, "OR IM"},
    {14, SG_ANE_IGNORES_MASK, 't', "scaled_dot_product_attention has no mask",
     SG_ANE_ALL, "OR MX"},
    {15, SG_ANE_DISTORTS, 'b', "a blob's offset is that of its metadata record, and the record is valid",
     SG_ANE_H13 | SG_ANE_H14 | SG_ANE_H15, "OR CT"},
    {16, SG_ANE_REFUSES, 'p', "the text is passed as NSData, the weights as an NSDictionary",
     SG_ANE_ALL, "OR"},
    {17, SG_ANE_REFUSES, 't', "results are computed by operations, names are unique",
     SG_ANE_ALL, "OR IM"},
    {20, SG_ANE_SLOW, 't', "the operands and results of an operation fit the engine's memory",
     SG_ANE_ALL, "MX AG"},
    {23, SG_ANE_REFUSES, 't',
     "values are fp16; inputs and outputs may be fp32, through casts, where the compiler allows it",
     SG_ANE_H13 | SG_ANE_H14, "MX IM"},
    {24, SG_ANE_REFUSES, 't', "inputs and outputs are fp16, fp32 or bool; int8 in buffers",
     SG_ANE_ALL, "IM SP"},
    {25, SG_ANE_REFUSES, 't', "4-bit types are used in compressed constants only",
     SG_ANE_ALL, "IM"},
    {26, SG_ANE_ZEROS, 't', "channels of inputs and outputs are a multiple of 32",
     SG_ANE_H13, "IK"},
    {27, SG_ANE_REFUSES, 't', "dimensions and rank are bounded",
     SG_ANE_ALL, "AG IM"},
    {28, SG_ANE_REFUSES, 't', "kernels, groups, products, transposes, pads, tiles and axes of argmax are bounded",
     SG_ANE_ALL, "AG"},
    {29, SG_ANE_DISTORTS, 'r', "slices of the last axis that do not begin at 0 hold values up to 4094",
     SG_ANE_H13 | SG_ANE_H14, "AG"},
    {30, SG_ANE_DISTORTS, 'r', "products stay below 32768",
     SG_ANE_H13, "AG"},
    {31, SG_ANE_LAST_ONLY, 't', "a program has at most two outputs",
     0, "MX"},
    {33, SG_ANE_INVALID, 't', "the axis of softmax is a power of two",
     SG_ANE_H15, "ES"},
    {35, SG_ANE_CRASHES, 't', "a convolution with computed weights has a batch of 1",
     SG_ANE_ALL, "AG"},
    {36, SG_ANE_HANGS, 't', "elementwise operations on [1, N] have a small N",
     SG_ANE_H13, "AG"},
    {37, SG_ANE_REFUSES, 't', "dimensions of outputs are at most 16384; larger heads are split",
     0, "AL"},
    {40, SG_ANE_REFUSES, 'p', "after a failed compile the service is given time to restart",
     SG_ANE_ALL, "AG ES"},
    {42, SG_ANE_REFUSES, 't', "no reduce_mean in functions for ios18",
     0, "ES"},
    {43, SG_ANE_FAILS, 's', "surfaces are multiples of 16 KiB, rows multiples of 64 bytes",
     SG_ANE_ALL, "SP"},
    {44, SG_ANE_REFUSES, 'p', "compiled files are kept until the program is unloaded",
     SG_ANE_ALL, "SP"},
    {46, SG_ANE_HANGS, 'p', "an evaluate may never return",
     SG_ANE_ALL, "SP"},
    {47, SG_ANE_REFUSES, 'p', "selectors have the known encodings",
     SG_ANE_ALL, "SP"},
    {49, SG_ANE_REFUSES, 't', "no product of 128 rows with a constant of 8192 rows",
     SG_ANE_H13 | SG_ANE_H14, "H"},
    {50, SG_ANE_INVALID, 't', "no input is named state",
     SG_ANE_ALL, "H"},
    {51, SG_ANE_REFUSES, 't', "a text without tensor_buffer has buildInfo",
     SG_ANE_ALL, "H"},
    {52, SG_ANE_REFUSES, 't', "no constexpr operations; packages for Core ML may have them",
     SG_ANE_ALL, "H"},
    {53, SG_ANE_REFUSES, 't', "the bounds of clip have the type of its operand",
     SG_ANE_ALL, "H"},
    {54, SG_ANE_BREAKS, 't', "no tile: after such a program has run, later evaluates of the process fail",
     SG_ANE_H15, "R"},
    {55, SG_ANE_IGNORES_WEIGHTS, 't', "weights of a convolution are constants",
     SG_ANE_H15, "R"},
    {56, SG_ANE_DISTORTS, 't', "no atan: errors reach 0.04 to 0.12 where its argument is reduced",
     SG_ANE_ALL, "AG H"},
};

const char *sg_ane_chip_name(uint32_t i)
{
    static const char *const names[] = {"H13", "H14", "H15", "H16", "H17"};
    return names[i];
}

const char *sg_ane_symptom_text(enum sg_ane_symptom symptom)
{
    static const char *const texts[] = {"refuses", "fails with 0x1d", "fails as an invalid program", "returns zeros",
                                        "binds in another order", "returns only the last output", "ignores the mask",
                                        "ignores the weights", "computes other values", "does not return",
                                        "fails later calls with 0x1d", "ends the compiler service", "is slower"};
    return texts[symptom];
}

size_t sg_ane_rule_count(void) { return sizeof rules / sizeof *rules; }
const struct sg_ane_rule *sg_ane_rule_at(size_t i) { return &rules[i]; }

/* The numbers have gaps, so the table cannot be indexed. */
const struct sg_ane_rule *sg_ane_rule_find(uint32_t number)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].number == number) return &rules[i];
    return NULL;
}

/* n rounded up to a multiple of `to`; unchanged when that is 0. */
static uint64_t rounded(uint64_t n, uint64_t to) { return to ? (n + to - 1) / to * to : n; }

/* A row is the last dimension; all others count as rows. A tensor_buffer has the row stride that it
 * declares. */
void sg_ane_port_sizes(const struct sg_mil_type *t, const struct sg_ane_profile *profile, uint64_t *row_bytes,
                       uint64_t *surface_bytes)
{
    uint64_t each = sg_mil_dtype_info((enum sg_mil_dtype)t->dtype)->bits / 8u, rows = 1;
    uint64_t last = t->rank ? (uint64_t)t->dim[t->rank - 1] : 1;
    for (uint32_t i = 0; i + 1 < t->rank; i++) rows *= (uint64_t)t->dim[i];
    *row_bytes = t->buffer && t->rank > 1 ? (uint64_t)t->buffer->stride[t->rank - 2] * each
                                          : rounded(last * (each ? each : 1), profile->row_bytes);
    *surface_bytes = rounded(rows * *row_bytes, profile->surface_bytes);
}

/* Paths in MIL begin with @model_path/, which stands for the folder of the program. */
const struct sg_ane_file *sg_ane_file_of(const struct sg_ane_file *files, uint32_t files_n,
                                         const char *mil_path)
{
    static const char prefix[] = "@model_path/";
    if (!strncmp(mil_path, prefix, sizeof prefix - 1)) mil_path += sizeof prefix - 1;
    for (uint32_t i = 0; i < files_n; i++)
        if (!strcmp(files[i].path, mil_path)) return &files[i];
    return NULL;
}

/* 1: a whole record begins at the offset and the data follow it, whatever size and place it has: newer compilers read no
 * more of it. */
static int has_record(const struct sg_mil_literal *l, const struct sg_ane_file *file, uint64_t bytes)
{
    uint64_t at = l->v.blob.offset;
    return at % 64 == 0 && at >= 64 && at < file->bytes && file->bytes - at >= 64 && file->bytes - at - 64 >= bytes &&
           !memcmp(file->data + at, "\xef\xbe\xad\xde", 4);
}

/* Checks one blob reference. A size that does not match the type usually means an offset into the wrong
 * record. */
static void check_blob(const struct sg_mil_literal *l, const char *op, const struct sg_ane_profile *profile,
                       const struct sg_ane_file *files, uint32_t files_n, struct sg_mil_faults *faults)
{
    struct sg_mil_loc at = {.line = l->line, .column = l->column, .constraint = 15, .op = op};
    const struct sg_ane_file *file = sg_ane_file_of(files, files_n, l->v.blob.path);
    struct sg_blob b;
    segue_error err;
    uint64_t bytes;
    at.advice = file && profile->blobs_unchecked && sg_mil_type_size(&l->type, NULL, &bytes, NULL) == SEGUE_OK &&
                has_record(l, file, bytes);
    if (!file)
        sg_mil_fault_add(faults, &at, "%s: no such blob file", l->v.blob.path);
    else if (sg_blob_at(&b, file->data, file->bytes, l->v.blob.offset, file->path, &err))
        sg_mil_fault_add(faults, &at, "%s", err.text);
    /* The type was checked before, so a failure to compute its size cannot hide a mismatch. */
    else if (sg_mil_type_size(&l->type, NULL, &bytes, &err) == SEGUE_OK &&
             (b.dtype != l->type.dtype || b.bytes != bytes)) {
        char text[96];
        sg_mil_fault_add(faults, &at, "declared as %s, %llu bytes; the record has %s, %llu bytes",
                         sg_mil_type_text(&l->type, text), (unsigned long long)bytes,
                         sg_mil_dtype_info(b.dtype)->name, (unsigned long long)b.bytes);
    }
}

/* References are in attributes (const, ios16 constexpr) and in inline arguments (buffer dialect). */
void sg_ane_check_blobs(const struct sg_mil_program *p, const struct sg_ane_profile *profile, const struct sg_ane_file *files,
                        uint32_t files_n, struct sg_mil_faults *faults)
{
    for (uint32_t i = 0; i < p->functions_n; i++) {
        const struct sg_mil_function *f = &p->functions[i];
        for (uint32_t o = 0; o < f->ops_n; o++) {
            const struct sg_mil_op *op = &f->ops[o];
            const char *name = f->values[op->first].name;
            for (uint32_t a = 0; a < op->attrs_n; a++)
                if (op->attrs[a].literal->kind == SG_MIL_BLOB)
                    check_blob(op->attrs[a].literal, name, profile, files, files_n, faults);
            for (uint32_t a = 0; a < op->args_n; a++)
                if (op->args[a].kind == SG_MIL_LITERAL && op->args[a].v.literal->kind == SG_MIL_BLOB)
                    check_blob(op->args[a].v.literal, name, profile, files, files_n, faults);
        }
    }
}

/* All inputs or all outputs of a function. */
struct port_list {
    struct sg_ane_check *c;
    const uint32_t *values; /* [n] value numbers; NULL: 0..n-1, the parameters */
    uint32_t n;
    int out; /* 1: outputs */
};

/* Value number of port i. */
static uint32_t value_of(const struct port_list *b, uint32_t i) { return b->values ? b->values[i] : i; }

/* Position of port i, for a diagnostic. */
static struct sg_mil_loc port_loc(const struct port_list *b, uint32_t i, uint32_t constraint)
{
    const struct sg_mil_value *v = &b->c->f->values[value_of(b, i)];
    return (struct sg_mil_loc){
        .line = v->line, .column = v->column, .constraint = constraint, .op = v->name};
}

/* Element type of an input or output: constraint 24, for fp32 constraint 23. int8 inputs are accepted in
 * buffers, and in plain tensors unless the profile refuses what the sources disagree about. */
static void check_port_type(const struct port_list *b, uint32_t i)
{
    const struct sg_ane_profile *profile = b->c->profile;
    const struct sg_mil_type *t = &b->c->f->values[value_of(b, i)].type;
    const char *what = b->out ? "output" : "input",
               *dtype = sg_mil_dtype_info((enum sg_mil_dtype)t->dtype)->name;
    struct sg_mil_loc at = port_loc(b, i, 24);
    if (t->buffer && !profile->buffers)
        sg_mil_fault_add(b->c->faults, &at,
                         "%s is a tensor_buffer, which the compiler of %s does not know; declare a tensor",
                         what, profile->name);
    if (t->dtype == SG_MIL_FP16 || t->dtype == SG_MIL_BOOL) return;
    if (t->dtype == SG_MIL_INT4 || t->dtype == SG_MIL_UINT4 || t->dtype == SG_MIL_BF16)
        return; /* check_value reports these: constraints 25 and 23 */
    if (t->dtype == SG_MIL_INT8 && !b->out && (t->buffer ? profile->buffers : !profile->doubted_refused))
        return;
    if (t->dtype == SG_MIL_FP32) {
        at.constraint = 23;
        if (profile->fp32_refused)
            sg_mil_fault_add(
                b->c->faults, &at,
                "%s is fp32, and casts to fp16 fail on some engines; convert outside and declare fp16", what);
        return;
    }
    sg_mil_fault_add(b->c->faults, &at, "%s is %s; declare fp16", what, dtype);
}

/* Shape and layout of one input or output: constraints 1, 43, 26, 37 and 27. The row size must be a
 * multiple of the alignment even though surfaces are padded: sources disagree whether engines read short
 * rows packed or padded, and with whole rows both are the same bytes. */
static void check_port(const struct port_list *b, uint32_t i)
{
    const struct sg_ane_profile *profile = b->c->profile;
    const struct sg_mil_type *t = &b->c->f->values[value_of(b, i)].type;
    uint64_t each = sg_mil_dtype_info((enum sg_mil_dtype)t->dtype)->bits / 8u;
    check_port_type(b, i);
    if (!t->rank || !each) return;
    uint64_t last = (uint64_t)t->dim[t->rank - 1] * each;
    struct sg_mil_loc at = port_loc(b, i, 1);
    at.advice = !profile->short_rows_refused;
    if (!t->buffer && last % profile->row_bytes)
        sg_mil_fault_add(b->c->faults, &at,
                         "rows of %llu bytes; pad the last dimension to a multiple of %u, so that packed and "
                         "padded rows are "
                         "the same",
                         (unsigned long long)last, (unsigned)(profile->row_bytes / each));
    /* A tensor_buffer has explicit strides, which must describe contiguous rows of whole 64 bytes. */
    at.advice = 0;
    at.constraint = 43;
    if (t->buffer && t->rank > 1 &&
        ((uint64_t)t->buffer->stride[t->rank - 2] * each % 64 || t->buffer->stride[t->rank - 1] != 1))
        sg_mil_fault_add(b->c->faults, &at,
                         "row stride of %lld elements, element stride of %lld; rows must be multiples of 64 bytes, "
                         "elements contiguous",
                         (long long)t->buffer->stride[t->rank - 2],
                         (long long)t->buffer->stride[t->rank - 1]);
    at.constraint = 26;
    if (t->rank == 4 && t->dim[1] % (int32_t)profile->channels)
        sg_mil_fault_add(b->c->faults, &at, "%d channels; pad them to a multiple of %u", (int)t->dim[1],
                         profile->channels);
    /* Large outputs, such as logits, must be split. */
    at.constraint = 37;
    for (uint32_t d = 0; b->out && profile->head_rows && d < t->rank; d++)
        if ((uint32_t)t->dim[d] > profile->head_rows)
            sg_mil_fault_add(b->c->faults, &at,
                             "an output dimension of %d; all compilers accept up to %u: split the output into blocks",
                             (int)t->dim[d], profile->head_rows);
    /* Advice only: other ranks compile on some systems. */
    at.constraint = 27;
    at.advice = 1;
    if (t->rank != 4)
        sg_mil_fault_add(b->c->faults, &at, "input or output of rank %u; only rank 4 is known to work on all engines",
                         t->rank);
}

/* Each port alone, then its size and name against its predecessor: constraints 2 (advice, because surfaces
 * can be enlarged), 4 and 3. Sizes are those of padded rows without the minimum surface size, which would
 * make small ports equal. */
static void check_ports(const struct port_list *b)
{
    const struct sg_ane_profile *profile = b->c->profile;
    uint64_t before = 0, row, bytes; /* before: size of the previous port */
    for (uint32_t i = 0; i < b->n; i++) {
        const struct sg_mil_value *v = &b->c->f->values[value_of(b, i)];
        check_port(b, i);
        /* A profile with nothing but the row alignment: no minimum size. */
        sg_ane_port_sizes(&v->type, &(struct sg_ane_profile){.row_bytes = profile->row_bytes}, &row, &bytes);
        struct sg_mil_loc at = port_loc(b, i, 2);
        const char *what = b->out ? "outputs" : "inputs";
        at.advice = 1;
        if (i && profile->equal_sizes && bytes != before)
            sg_mil_fault_add(b->c->faults, &at,
                             "%llu bytes next to %llu; give all %s surfaces of the largest size",
                             (unsigned long long)bytes, (unsigned long long)before, what);
        at.advice = 0;
        at.constraint = 4;
        if (i && profile->size_order && (b->out ? bytes > before : bytes < before))
            sg_mil_fault_add(b->c->faults, &at, "%llu bytes after %llu; declare %s in %s order of size",
                             (unsigned long long)bytes, (unsigned long long)before, what,
                             b->out ? "descending" : "ascending");
        if (i && profile->size_order && bytes == before && strcmp(b->c->f->values[value_of(b, i - 1)].name, v->name) >= 0)
            sg_mil_fault_add(b->c->faults, &at, "as large as %.60s; declare %s of one size in alphabetical order",
                             b->c->f->values[value_of(b, i - 1)].name, what);
        at.constraint = 3;
        if (i && profile->sorted_names && strcmp(b->c->f->values[value_of(b, i - 1)].name, v->name) >= 0)
            sg_mil_fault_add(b->c->faults, &at, "declared after %.60s; declare %s in alphabetical order",
                             b->c->f->values[value_of(b, i - 1)].name, what);
        before = bytes;
    }
}

/* Results must be computed by an operation (constraint 17), and their number is limited (31). */
static void check_returns(struct sg_ane_check *c)
{
    const struct sg_mil_function *f = c->f;
    for (uint32_t i = 0; i < f->returns_n; i++) {
        const struct sg_mil_value *v = &f->values[f->returns[i]];
        struct sg_mil_loc at = {.line = v->line, .column = v->column, .constraint = 17, .op = v->name};
        /* A result must not be a parameter or a constant. */
        if (v->op == SG_MIL_NONE || sg_mil_is_const_value(f, f->returns[i]))
            sg_mil_fault_add(c->faults, &at,
                             "the result is an input or a constant; pass it through identity");
    }
    struct sg_mil_loc at = {.line = f->line, .column = f->column, .constraint = 31, .op = f->name};
    if (c->profile->outputs && f->returns_n > c->profile->outputs)
        sg_mil_fault_add(c->faults, &at, "%u outputs, more than %u; pack them into one", f->returns_n,
                         c->profile->outputs);
}

/* Rank, dimensions and element type of one value: constraints 27, 23 and 25. The last two of three or more
 * dimensions are H and W, with a smaller limit on some chips. Constants are exempt: lookup tables of
 * compressed weights have rank 6. */
static void check_value(struct sg_ane_check *c, const struct sg_mil_value *v, int constant)
{
    struct sg_mil_loc at = {.line = v->line, .column = v->column, .constraint = 27, .op = v->name};
    const struct sg_mil_type *t = &v->type;
    if (t->rank > 5 && !constant)
        sg_mil_fault_add(c->faults, &at, "rank %u; at most 5", t->rank);
    for (uint32_t i = 0; i < t->rank && !constant; i++) {
        uint32_t max = t->rank >= 3 && i + 2 >= t->rank ? c->profile->dim_w : c->profile->dim_c;
        if ((uint32_t)t->dim[i] > max) {
            sg_mil_fault_add(c->faults, &at, "dimension %u is %d, more than %u; split it", i, (int)t->dim[i],
                             max);
            break;
        }
    }
    at.constraint = 23;
    if (t->dtype == SG_MIL_BF16)
        sg_mil_fault_add(c->faults, &at, "bf16 is not supported by the engine; convert to fp16");
    at.constraint = 25;
    if ((t->dtype == SG_MIL_INT4 || t->dtype == SG_MIL_UINT4) && !constant)
        sg_mil_fault_add(c->faults, &at,
                         "a 4-bit tensor that is not a constant; only compressed constants may have 4 bits");
}

/* Constraint 51: a text without buildInfo is known from a route that has buffers only. */
static void check_info(struct sg_ane_check *c)
{
    struct sg_mil_loc at = {.line = c->f->line, .column = c->f->column, .constraint = 51, .op = c->f->name};
    if (!c->profile->info_needed || c->p->has_info) return;
    for (uint32_t i = 0; i < c->f->params_n; i++)
        if (c->f->values[i].type.buffer) return;
    sg_mil_fault_add(c->faults, &at, "buildInfo is missing in front of the function; add it, or use tensor_buffer");
}

/* Constraint 50. Before the checks of ports, whose symptoms are seen only in programs that compile. */
static void check_state_name(struct sg_ane_check *c)
{
    for (uint32_t i = 0; i < c->f->params_n; i++) {
        struct port_list b = {c, NULL, c->f->params_n, 0};
        struct sg_mil_loc at = port_loc(&b, i, 50);
        at.advice = !c->profile->state_refused;
        if (!strcmp(c->f->values[i].name, "state"))
            sg_mil_fault_add(c->faults, &at, "an input named state, which is also a type of MIL, is refused; rename it");
    }
}

/* The operations of each function are scanned first, because some constraints depend on which operations
 * are combined. */
void sg_ane_check_rules(const struct sg_mil_program *p, const struct sg_ane_profile *profile,
                        struct sg_mil_faults *faults)
{
    for (uint32_t i = 0; i < p->functions_n; i++) {
        const struct sg_mil_function *f = &p->functions[i];
        /* A function without a target counts as ios16, the smallest operation set. */
        struct sg_ane_check c = {
            p, f, profile, faults, f->target && !strncmp(f->target, "ios", 3) ? atoi(f->target + 3) : 16, 0};
        for (uint32_t o = 0; o < f->ops_n; o++) {
            if (!strcmp(f->ops[o].kind, "matmul")) c.has |= SG_ANE_HAS_MATMUL;
            if (!strcmp(f->ops[o].kind, "softmax")) c.has |= SG_ANE_HAS_SOFTMAX;
        }
        check_info(&c);
        check_state_name(&c);
        for (uint32_t v = 0; v < f->values_n; v++)
            check_value(&c, &f->values[v],
                        f->values[v].op != SG_MIL_NONE && !strcmp(f->ops[f->values[v].op].kind, "const"));
        for (uint32_t o = 0; o < f->ops_n; o++) sg_ane_check_op(&c, &f->ops[o]);
        check_ports(&(struct port_list){&c, NULL, f->params_n, 0});
        check_ports(&(struct port_list){&c, f->returns, f->returns_n, 1});
        check_returns(&c);
    }
}

/* The order of the findings is that of the checks, not of the text. */
void sg_ane_check(const struct sg_mil_program *p, const struct sg_ane_profile *profile,
                  const struct sg_ane_file *files, uint32_t files_n, struct sg_mil_faults *faults)
{
    sg_mil_check_types(p, faults);
    if (faults->refusals) return; /* the other checks rely on valid shapes and arguments */
    sg_ane_check_rules(p, profile, faults);
    if (files) sg_ane_check_blobs(p, profile, files, files_n, faults);
}
