/* mlpackage.c: see mlpackage.h. The field numbers are those of coremltools' Model.proto, FeatureTypes.proto
 * and MIL.proto; the comment above each function shows the messages that it writes as NAME = FIELD NUMBER {
 * ... }.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/blob/mlpackage.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/num.h"
#include "unit/ane/blob/pbwrite.h"

enum { MULTI_ARRAY_FP16 = 65552 }; /* ArrayDataType FLOAT16 */

/* Operation set and specificationVersion of a function: those of ios18 if its target is that, else those of ios16. */
static int is_ios18(const struct sg_mil_function *f) { return f->target && !strcmp(f->target, "ios18"); }
static const char *opset_of(const struct sg_mil_function *f) { return is_ios18(f) ? "CoreML8" : "CoreML6"; }
static uint32_t specification_of(const struct sg_mil_function *f) { return is_ios18(f) ? 9 : 7; }

/* enum DataType of MIL.proto; 0: no such type. */
static uint32_t type_code(uint32_t dtype)
{
    static const uint8_t codes[SG_MIL_DTYPES] = {
        [SG_MIL_BOOL] = 1,   [SG_MIL_STRING] = 2,  [SG_MIL_FP16] = 10,  [SG_MIL_FP32] = 11,  [SG_MIL_BF16] = 13,
        [SG_MIL_INT8] = 21,  [SG_MIL_INT16] = 22,  [SG_MIL_INT32] = 23, [SG_MIL_INT64] = 24, [SG_MIL_INT4] = 25,
        [SG_MIL_UINT8] = 31, [SG_MIL_UINT16] = 32, [SG_MIL_UINT32] = 33, [SG_MIL_UINT64] = 34, [SG_MIL_UINT4] = 35,
        [SG_MIL_UINT2] = 36, [SG_MIL_UINT1] = 37,  [SG_MIL_UINT6] = 38, [SG_MIL_UINT3] = 39};
    return codes[dtype];
}

/* ValueType { tensorType = 1 { dataType = 1, rank = 2, dimensions = 3 { constant = 1 { size = 1 } } } } */
static void put_type(struct sg_buf *b, uint32_t field, const struct sg_mil_type *t)
{
    size_t value = sg_pb_open(b, field), tensor = sg_pb_open(b, 1);
    sg_pb_number(b, 1, type_code(t->dtype));
    sg_pb_number(b, 2, t->rank);
    for (uint32_t i = 0; i < t->rank; i++) {
        size_t dimension = sg_pb_open(b, 3), constant = sg_pb_open(b, 1);
        sg_pb_number(b, 1, (uint64_t)t->dim[i]);
        sg_pb_close(b, constant);
        sg_pb_close(b, dimension);
    }
    sg_pb_close(b, tensor);
    sg_pb_close(b, value);
}

/* Elements of TensorValue: floats = 1, ints = 2, bools = 3, longInts = 5, each with a packed list = 1; all
 * other types as bytes = 7, little endian. */
static void put_numbers(struct sg_buf *b, const struct sg_mil_literal *l)
{
    uint64_t n = sg_mil_elements(&l->type);
    int is_int = l->type.dtype == SG_MIL_INT32, is_bool = l->type.dtype == SG_MIL_BOOL, is_long = l->type.dtype == SG_MIL_INT64;
    uint32_t field = is_int ? 2 : is_bool ? 3 : is_long ? 5 : l->type.dtype == SG_MIL_FP32 ? 1 : 7;
    size_t values = sg_pb_open(b, field), list = sg_pb_open(b, 1);
    for (uint64_t i = 0; i < n && !b->failed; i++) {
        float real = (float)sg_mil_literal_real(l, i);
        uint16_t half = sg_f16_of_f32(real);
        int64_t v = is_int || is_bool || is_long ? sg_mil_literal_int(l, i) : 0;
        if (is_int || is_bool || is_long)
            sg_pb_varint(b, (uint64_t)v);
        else if (l->type.dtype == SG_MIL_FP16)
            sg_buf_add(b, (uint8_t[]){(uint8_t)half, (uint8_t)(half >> 8)}, 2);
        else if (l->type.dtype == SG_MIL_FP32)
            sg_buf_add(b, &real, sizeof real);
        else
            sg_buf_add(b, (uint8_t[]){(uint8_t)sg_mil_literal_int(l, i)}, 1);
    }
    sg_pb_close(b, list);
    sg_pb_close(b, values);
}

/* Destination of a model. */
struct out {
    struct sg_buf *b;
    int one_file; /* 1: all blobs are in weight.bin */
};

/* Part of a path after the last slash. */
static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Value { type = 2, immediateValue = 3 { tensor = 1 { strings = 4 or numbers } } or
 * blobFileValue = 5 { fileName = 1, offset = 2 } } */
static void put_value(struct out *o, uint32_t field, const struct sg_mil_literal *l)
{
    struct sg_buf *b = o->b;
    size_t value = sg_pb_open(b, field), inner;
    put_type(b, 2, &l->type);
    if (l->kind == SG_MIL_BLOB) {
        inner = sg_pb_open(b, 5);
        size_t name = sg_pb_open(b, 1);
        sg_buf_puts(b, "@model_path/weights/");
        sg_buf_puts(b, o->one_file ? "weight.bin" : last_name(l->v.blob.path));
        sg_pb_close(b, name);
        sg_pb_number(b, 2, l->v.blob.offset);
    } else {
        inner = sg_pb_open(b, 3);
        size_t tensor = sg_pb_open(b, 1);
        if (l->kind == SG_MIL_TEXT) {
            size_t strings = sg_pb_open(b, 4);
            sg_pb_bytes(b, 1, l->v.text, l->n);
            sg_pb_close(b, strings);
        } else
            put_numbers(b, l);
        sg_pb_close(b, tensor);
    }
    sg_pb_close(b, inner);
    sg_pb_close(b, value);
}

/* Entry of the map attributes = 5: { key = 1, value = 2 } */
static void put_attribute(struct out *o, const char *name, const struct sg_mil_literal *l)
{
    struct sg_buf *b = o->b;
    size_t entry = sg_pb_open(b, 5);
    sg_pb_text(b, 1, name);
    put_value(o, 2, l);
    sg_pb_close(b, entry);
}

/* NamedValueType { name = 1, type = 2 } */
static void put_named(struct sg_buf *b, uint32_t field, const struct sg_mil_value *v)
{
    size_t named = sg_pb_open(b, field);
    sg_pb_text(b, 1, v->name);
    put_type(b, 2, &v->type);
    sg_pb_close(b, named);
}

/* Entry of the map inputs = 2: { key = 1, value = 2: Argument { arguments = 1 { name = 1 } } } */
static void put_argument(struct sg_buf *b, const struct sg_mil_function *f, const struct sg_mil_arg *a)
{
    size_t entry = sg_pb_open(b, 2);
    sg_pb_text(b, 1, a->name);
    size_t argument = sg_pb_open(b, 2);
    for (uint32_t i = 0; i < (a->kind == SG_MIL_LIST ? a->n : 1); i++) {
        size_t binding = sg_pb_open(b, 1);
        sg_pb_text(b, 1, f->values[a->kind == SG_MIL_LIST ? a->v.refs[i] : a->v.ref].name);
        sg_pb_close(b, binding);
    }
    sg_pb_close(b, argument);
    sg_pb_close(b, entry);
}

/* Operation { type = 1, inputs = 2, outputs = 3, attributes = 5 } */
static void put_op(struct out *o, const struct sg_mil_function *f, const struct sg_mil_op *op)
{
    struct sg_buf *b = o->b;
    const char *name = f->values[op->first].name;
    struct sg_mil_literal name_literal = {
        .type = sg_mil_scalar(SG_MIL_STRING), .kind = SG_MIL_TEXT, .n = strlen(name), .v.text = name};
    size_t operation = sg_pb_open(b, 3);
    sg_pb_text(b, 1, op->kind);
    for (uint32_t i = 0; i < op->args_n; i++) put_argument(b, f, &op->args[i]);
    for (uint32_t i = 0; i < op->outputs; i++) put_named(b, 3, &f->values[op->first + i]);
    put_attribute(o, "name", &name_literal);
    for (uint32_t i = 0; i < op->attrs_n; i++)
        if (strcmp(op->attrs[i].name, "name") != 0) put_attribute(o, op->attrs[i].name, op->attrs[i].literal);
    sg_pb_close(b, operation);
}

/* Function { inputs = 1, opset = 2, block_specializations = 3 { key, Block { outputs = 2, operations = 3 }
 * } } */
static void put_function(struct out *o, const struct sg_mil_function *f)
{
    struct sg_buf *b = o->b;
    size_t function = sg_pb_open(b, 2);
    for (uint32_t i = 0; i < f->params_n; i++) put_named(b, 1, &f->values[i]);
    sg_pb_text(b, 2, opset_of(f));
    size_t entry = sg_pb_open(b, 3);
    sg_pb_text(b, 1, opset_of(f));
    size_t block = sg_pb_open(b, 2);
    for (uint32_t i = 0; i < f->returns_n; i++) sg_pb_text(b, 2, f->values[f->returns[i]].name);
    for (uint32_t i = 0; i < f->ops_n; i++) put_op(o, f, &f->ops[i]);
    sg_pb_close(b, block);
    sg_pb_close(b, entry);
    sg_pb_close(b, function);
}

/* FeatureDescription { name = 1, type = 3 { multiArrayType = 5 { shape = 1, dataType = 2 } } } */
static void put_feature(struct sg_buf *b, uint32_t field, const struct sg_mil_value *v)
{
    size_t feature = sg_pb_open(b, field);
    sg_pb_text(b, 1, v->name);
    size_t type = sg_pb_open(b, 3), array = sg_pb_open(b, 5), shape = sg_pb_open(b, 1);
    for (uint32_t i = 0; i < v->type.rank; i++) sg_pb_varint(b, (uint64_t)v->type.dim[i]);
    sg_pb_close(b, shape);
    sg_pb_number(b, 2, MULTI_ARRAY_FP16);
    sg_pb_close(b, array);
    sg_pb_close(b, type);
    sg_pb_close(b, feature);
}

/* Checks that the program can be expressed as a Core ML model of this opset. */
static segue_status check_program(const struct sg_mil_program *p, segue_error *err)
{
    const struct sg_mil_function *f = p->functions;
    if (p->functions_n != 1)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "mlpackage: %u functions; a package needs exactly one", p->functions_n);
    for (uint32_t i = 0; i < f->params_n + f->returns_n; i++) {
        const struct sg_mil_value *v = &f->values[i < f->params_n ? i : f->returns[i - f->params_n]];
        if (v->type.dtype != SG_MIL_FP16 || v->type.buffer)
            return sg_fail(err, SEGUE_EUNSUPPORTED, "mlpackage: %.60s: inputs and outputs must be fp16 tensors; cast it",
                           v->name);
    }
    for (uint32_t o = 0; o < f->ops_n; o++)
        for (uint32_t i = 0; i < f->ops[o].args_n; i++)
            if (f->ops[o].args[i].kind == SG_MIL_LITERAL)
                return sg_fail(err, SEGUE_EUNSUPPORTED,
                               "mlpackage: %.60s: argument %.40s is written inline; define it as a named const",
                               f->values[f->ops[o].first].name, f->ops[o].args[i].name);
    return SEGUE_OK;
}

/* Metadata { userDefined = 100 { key = 1, value = 2 } } */
static void put_notes(struct sg_buf *b, const struct sg_mlmodel_note *notes, uint32_t n)
{
    size_t metadata = n ? sg_pb_open(b, 100) : 0;
    for (uint32_t i = 0; i < n; i++) {
        size_t entry = sg_pb_open(b, 100);
        sg_pb_text(b, 1, notes[i].key);
        sg_pb_text(b, 2, notes[i].value);
        sg_pb_close(b, entry);
    }
    if (n) sg_pb_close(b, metadata);
}

/* Model { specificationVersion = 1, description = 2 { input = 1, output = 10, metadata = 100 }, mlProgram = 502 {
 * version = 1, functions = 2 } } */
segue_status sg_mlmodel_write(const struct sg_mil_program *p, int one_file, const struct sg_mlmodel_note *notes,
                              uint32_t notes_n, struct sg_buf *out, segue_error *err)
{
    SG_TRY(check_program(p, err));
    const struct sg_mil_function *f = p->functions;
    sg_pb_number(out, 1, specification_of(f));
    size_t description = sg_pb_open(out, 2);
    for (uint32_t i = 0; i < f->params_n; i++) put_feature(out, 1, &f->values[i]);
    for (uint32_t i = 0; i < f->returns_n; i++) put_feature(out, 10, &f->values[f->returns[i]]);
    put_notes(out, notes, notes_n);
    sg_pb_close(out, description);
    size_t program = sg_pb_open(out, 502);
    sg_pb_number(out, 1, 1);
    size_t entry = sg_pb_open(out, 2);
    sg_pb_text(out, 1, "main");
    put_function(&(struct out){out, one_file}, f);
    sg_pb_close(out, entry);
    sg_pb_close(out, program);
    return out->failed ? sg_no_memory("a Core ML model", out->len, err) : SEGUE_OK;
}

/* Manifest.json. The identifiers may be any two UUIDs; fixed ones make packages reproducible. */
static const char manifest[] =
    "{\n  \"fileFormatVersion\": \"1.0.0\",\n  \"itemInfoEntries\": {\n"
    "    \"5E6E0001-0000-4000-8000-000000000001\": {\"author\": \"com.apple.CoreML\", "
    "\"description\": \"CoreML Model Specification\", \"name\": \"model.mlmodel\", "
    "\"path\": \"com.apple.CoreML/model.mlmodel\"},\n"
    "    \"5E6E0001-0000-4000-8000-000000000002\": {\"author\": \"com.apple.CoreML\", \"description\": \"CoreML Model Weights\", "
    "\"name\": \"weights\", \"path\": \"com.apple.CoreML/weights\"}\n"
    "  },\n  \"rootModelIdentifier\": \"5E6E0001-0000-4000-8000-000000000001\"\n}\n";

segue_status sg_mlpackage_write(const struct sg_mil_program *p, const struct sg_ane_file *files, uint32_t n,
                                const struct sg_mlmodel_note *notes, uint32_t notes_n, const char *folder, segue_error *err)
{
    char path[1024];
    struct sg_buf model = {0};
    if ((size_t)snprintf(path, sizeof path, "%s/Data/com.apple.CoreML/weights", folder) >= sizeof path)
        return sg_fail(err, SEGUE_EARG, "mlpackage: %.60s..: the path is too long; give a shorter one", folder);
    SG_TRY(sg_make_folders(path, err));
    segue_status status = sg_mlmodel_write(p, n == 1, notes, notes_n, &model, err);
    if (status == SEGUE_OK) status = sg_file_write_in(folder, "Data/com.apple.CoreML/model.mlmodel", model.data, model.len, err);
    for (uint32_t i = 0; i < n && status == SEGUE_OK; i++)
        status = sg_file_write_in(path, n == 1 ? "weight.bin" : last_name(files[i].path), files[i].data, files[i].bytes, err);
    if (status == SEGUE_OK) status = sg_file_write_in(folder, "Manifest.json", manifest, sizeof manifest - 1, err);
    sg_buf_free(&model);
    return status;
}
