/* rule_table.c: the constraints of docs/ANE.md that a program can break, as a table: for each one a program within the limit,
 * which runs, and one beyond it, which refuse mode refuses by its number and faithful mode runs with the symptom of the chip. A
 * second table names the test of every number.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "npu_rig.h"
#include "unit/ane/blob/blob.h"

/* The symptom of the program beyond the limit in faithful mode. */
enum shows { NO, X1D, INVALID, ZEROS, SWAPPED, LAST, UNMASKED, GARBAGE, INFINITE, HANGS, CRASHES, SLOW, ORDERED, BREAKS };
/* A function: parameters, body, results, target. bare 1: no buildInfo; a text with tensor_buffer never has it. */
struct rule_case { const char *params, *body, *results, *target; int bare; float value; };

/* Constants that rows name, because texts with buildInfo name those of products, softmax and norms; see text_of. */
#undef AXIS
#define AXIS(n) "axis = k" n
#define PRELUDE "int32 k1 = const()[val = int32(1)]; int32 k3 = const()[val = int32(3)]; bool off = const()[val = bool(false)]; " \
    "bool on = const()[val = bool(true)]; tensor<int32, [1]> l1 = const()[val = tensor<int32, [1]>([1])]; " \
    "tensor<int32, [1]> l3 = const()[val = tensor<int32, [1]>([3])]; fp16 small = const()[val = fp16(0x1p-10)];"
#define SAME(shape, op) {T(shape) " a", T(shape) " z = " op ";", "z", NULL, 0, 0}
#define ONE(op) SAME("1, 32, 1, 32", op)
#define WIDE(type, shape) {"tensor<" type ", [" shape "]> a", T(shape) " z = cast(x = a, dtype = string(\"fp16\"));", "z", NULL, 0, 0}
#define WEIGHT(shape) T(shape) " w = const()[val = " T(shape) "(0x1p-5)]; "
#define BLOB(shape, at) T(shape) " w = const()[val = " T(shape) "(BLOBFILE(path = string(\"@model_path/w.bin\"), offset = uint64(" at ")))]; "
#define SCALED(at) {ABC " a", BLOB("1, 32, 1, 1", at) ABC " z = mul(x = a, y = w);", "z", NULL, 0, 0}
#define CONCAT(out, list, rest) {ABC " a", T(out) " z = concat(values = (" list "), " rest ");", "z", NULL, 0, 0}
#define BUFFER(row) "tensor_buffer<fp16, shape=[1, 1, 32, 32], strides=[" row "], interleave_factors=[1, 1, 1, 1]> a", \
    T("1, 1, 32, 32") " b = tensor_buffer_to_tensor<ios17>(input = a); " T("1, 1, 32, 32") " z = relu(x = b);"
#define KERNEL(in, k, out) {T("1, 32, " in) " a", WEIGHT("32, 32, " k) T("1, 32, " out) " y = " CONV("x = a, weight = w") ";" HEAD, "z", NULL, 0, 0}
#define TALL(rows) {ABC " a", WEIGHT(rows ", 32, 1, 1") T("1, " rows ", 1, 32") " z = " CONV("x = a, weight = w") ";", "z", NULL, 0, 0}
#define GROUPS(in, n) {ABC " a", WEIGHT("32, " in ", 1, 1") ABC " z = conv(strides = tensor<int32, [2]>([1, 1]), pad_type = string(\"valid\"), " \
    "pad = tensor<int32, [4]>([0, 0, 0, 0]), dilations = tensor<int32, [2]>([1, 1]), groups = int32(" n "), x = a, weight = w);", "z", NULL, 0, 0}
#define COMPUTED(batch, channels, groups) {T(batch ", 32, 1, 32") " a, " T("1, 32, 1, 32") " v", T("32, 32, 1, 1") \
    " u = reshape(x = v, shape = tensor<int32, [4]>([32, 32, 1, 1])); " T("32, " channels ", 1, 1") " w = slice_by_size(x = u, begin = " \
    "tensor<int32, [4]>([0, 0, 0, 0]), size = tensor<int32, [4]>([32, " channels ", 1, 1])); " T(batch ", 32, 1, 32") \
    " z = conv(strides = tensor<int32, [2]>([1, 1]), pad_type = string(\"valid\"), pad = tensor<int32, [4]>([0, 0, 0, 0]), " \
    "dilations = tensor<int32, [2]>([1, 1]), groups = int32(" groups "), x = a, weight = w);", "z", NULL, 0, 0}
#define PRODUCT(deep, n) {T("1, 1, " deep ", 32, 32") " a", T("1, 1, " deep ", 32, " n) " w = const()[val = " T("1, 1, " deep ", 32, " n) "(0)]; " \
    T("1, 1, " deep ", 32, " n) " m = matmul(x = a, y = w, transpose_x = off, transpose_y = off); " \
    T("1, 1, " deep ", 32, 32") " z = slice_by_size(x = m, begin = tensor<int32, [5]>([0, 0, 0, 0, 0]), size = tensor<int32, [5]>([1, 1, " deep ", 32, 32]));", "z", NULL, 0, 0}
#define ARGMAX(n) {T("1, 32, 1, " n) " a", "tensor<int32, [1, 32, 1, 1]> i = reduce_argmax(x = a, " AXIS("3") ", keep_dims = bool(true)); " \
    T("1, 32, 1, " n) " z = relu(x = a);", "z", NULL, 0, 0}
#define TILE(n, out) {ABC " a", T(out) " z = tile(x = a, reps = tensor<int32, [4]>([1, 1, 1, " n "]));", "z", NULL, 0, 0}
#define PAD(out, n, list) {ABC " a", T(out) " z = pad(x = a, pad = tensor<int32, [" n "]>([" list "]), mode = string(\"constant\"), constant_val = fp16(0));", "z", NULL, 0, 0}
#define TURN(n) {T("1, " n ", 1, 32") " a", T(n ", 1, 1, 32") " z = transpose(x = a, perm = tensor<int32, [4]>([1, 0, 2, 3]));", "z", NULL, 0, 0}
#define NORM(n) {T("1, 1, 1, " n) " a", T("1, 1, 1, " n) " z = layer_norm(x = a, axes = l3, epsilon = small);", "z", NULL, 0, 0}
#define ATTEND(mask) {T("1, 2, 32, 32") " a", T("1, 2, 32, 32") " z = scaled_dot_product_attention(query = a, key = a, value = a" mask ");", "z", NULL, 0, 0}
#define ATTEND_FOR(target) {T("1, 32, 32, 32") " a", T("1, 32, 32, 32") " z = scaled_dot_product_attention(query = a, key = a, value = a);", "z", target, 0, 0}
#define MEAN(target) {ABC " a", T("1, 1, 1, 32") " m = reduce_mean(x = a, axes = l1, keep_dims = on); " \
    ABC " z = sub(x = a, y = m);", "z", target, 0, 0}
#define CONSTANT(rows) {T("1, 1, " rows ", 8192") " a", T("1, 1, 8192, 32") " w = const()[val = " T("1, 1, 8192, 32") "(0x1p-10)]; " \
    T("1, 1, " rows ", 32") " z = matmul(x = a, y = w, transpose_x = off, transpose_y = off);", "z", NULL, 0, 0}
#define LUT(name) "tensor<uint4, [32, 1, 1, 1]> i = const()[val = tensor<uint4, [32, 1, 1, 1]>(3)]; " T("1, 1, 1, 1, 16, 1") \
    " l = const()[val = " T("1, 1, 1, 1, 16, 1") "(0.5)]; " name

static const struct row { uint32_t constraint; const char *profile; enum shows shows; struct rule_case good, bad; } rows[] = {
    {1, "strict", X1D, SAME("1, 32, 1, 32", "relu(x = a)"), SAME("1, 32, 1, 16", "relu(x = a)")},
    {1, "m5", X1D, {"tensor<fp32, [1, 32, 1, 32]> a", ABC " y = cast(x = a, dtype = string(\"fp16\")); " T("1, 32, 1, 64") " z = tile(x = y, reps = tensor<int32, [4]>([1, 1, 1, 2]));", "z", NULL, 0, 0},
     {"tensor<fp32, [1, 32, 1, 8]> a", T("1, 32, 1, 8") " y = cast(x = a, dtype = string(\"fp16\")); "
      T("1, 32, 1, 64") " z = tile(x = y, reps = tensor<int32, [4]>([1, 1, 1, 8]));", "z", NULL, 0, 0}},
    {1, "m5", X1D, SAME("1, 32, 1, 64", "relu(x = a)"), SAME("1, 32, 1, 32", "relu(x = a)")},
    {3, "strict", SWAPPED, {ABC " a, " ABC " b", ABC " z = sub(x = a, y = b);", "z", NULL, 0, 0}, {ABC " b, " ABC " a", ABC " z = sub(x = a, y = b);", "z", NULL, 0, 0}},
    {3, "strict", ORDERED, {ABC " a", RELU("y", "a") RELU("z", "a"), "y, z", NULL, 0, 0}, {ABC " a", RELU("y", "a") RELU("z", "a"), "z, y", NULL, 0, 0}},
    {4, "m1", ZEROS, {ABC " a, " T("1, 64, 1, 32") " b", RELU("y", "a") T("1, 64, 1, 32") " z = relu(x = b);", "z, y", NULL, 0, 0},
     {T("1, 64, 1, 32") " a, " ABC " b", RELU("y", "b") T("1, 64, 1, 32") " z = relu(x = a);", "z, y", NULL, 0, 0}},
    {4, "m1", ZEROS, {ABC " a", RELU("y", "a") T("1, 64, 1, 32") " z = tile(x = a, reps = tensor<int32, [4]>([1, 2, 1, 1]));", "z, y", NULL, 0, 0},
     {ABC " a", RELU("y", "a") T("1, 64, 1, 32") " z = tile(x = a, reps = tensor<int32, [4]>([1, 2, 1, 1]));", "y, z", NULL, 0, 0}},
    {9, "ieee", NO, CONCAT("1, 64, 1, 32", "a, a", AXIS("1") ", interleave = bool(false)"), CONCAT("1, 64, 1, 32", "a, a", "axis = int32(-3), interleave = bool(false)")},
    {9, "ieee", NO, CONCAT("1, 64, 1, 32", "a, a", AXIS("1") ", interleave = bool(false)"), CONCAT("1, 64, 1, 32", "a, a", AXIS("1"))},
    {9, "strict", NO, CONCAT("1, 64, 1, 32", "a, a", AXIS("1") ", interleave = bool(false)"), CONCAT("1, 32, 1, 32", "a", AXIS("1") ", interleave = bool(false)")},
    {9, "ieee", NO, {ABC " a, " T("1, 64, 1, 32") " b", T("1, 96, 1, 32") " z = concat(values = (a, b), " AXIS("1") ", interleave = bool(false));", "z", NULL, 0, 0},
     {ABC " a, " T("1, 64, 1, 64") " b", T("1, 96, 1, 32") " z = concat(values = (a, b), " AXIS("1") ", interleave = bool(false));", "z", NULL, 0, 0}},
    {10, "strict", NO, ONE("tanh(x = a)"), ONE("gelu(x = a, mode = string(\"EXACT\"))")},
    {10, "ieee", NO, ONE("mul(x = a, y = fp16(-1.0))"), ONE("neg(x = a)")},
    {10, "ieee", NO, ONE("inverse(x = a, epsilon = fp16(0x1p-20))"), ONE("reciprocal(x = a)")},
    {10, "ieee", NO, ONE("exp2(x = a)"), ONE("frobnicate(x = a)")},
    {10, "ieee", NO, ONE("cast(x = a, dtype = string(\"fp16\"))"), {ABC " a", "tensor<int32, [1, 32, 1, 32]> y = cast(x = a, dtype = string(\"int32\")); " ABC " z = relu(x = a);", "z", NULL, 0, 0}},
    {10, "strict", NO, {ABC " a", T("1, 16, 1, 32") " s, " T("1, 16, 1, 32") " t = split(x = a, num_splits = int32(2), " AXIS("1") "); "
      ABC " z = concat(values = (t, s), " AXIS("1") ", interleave = bool(false));", "z", NULL, 0, 0},
     {ABC " a", T("1, 16, 1, 32") " s, " T("1, 16, 1, 32") " t = split(x = a, num_splits = int32(2), " AXIS("1") "); " T("1, 16, 1, 32") " p = softmax(x = s, " AXIS("3") "); "
      T("1, 16, 1, 1") " q = matmul(x = p, y = t, transpose_x = off, transpose_y = on); " T("1, 16, 1, 32") " r = mul(x = p, y = q); "
      ABC " z = concat(values = (r, p), " AXIS("1") ", interleave = bool(false));", "z", NULL, 0, 0}},
    {10, "m4", NO, ONE("tanh(x = a)"), ONE("gather(x = a, indices = tensor<int32, [32]>(5), " AXIS("1") ")")},
    {10, "strict", NO, ONE("tanh(x = a)"),
     {ABC " a", "tensor<int32, [1, 32, 1, 1]> j = reduce_argmax(x = a, " AXIS("3") ", keep_dims = bool(true)); tensor<int32, [32]> i = reshape(x = j, shape = tensor<int32, [1]>([32])); "
      ABC " z = gather(x = a, indices = i, " AXIS("1") ");", "z", NULL, 0, 0}},
    {11, "ieee", NO, ONE("rsqrt(x = a, epsilon = fp16(0x1p-20))"), ONE("rsqrt(x = a)")},
    {11, "ieee", NO, ONE("log(x = a, epsilon = fp16(0x1p-20))"), ONE("log(x = a)")},
    {11, "ieee", NO, ONE("inverse(x = a, epsilon = fp16(0x1p-20))"), ONE("inverse(x = a)")},
    {12, "ieee", NO, {ABC " a", WEIGHT("32, 32, 1, 1") ABC " z = " CONV("x = a, weight = w") ";", "z", NULL, 0, 0},
     {ABC " a", WEIGHT("32, 32, 1, 1") T("32") " b = const()[val = " T("32") "(1)]; " ABC " z = " CONV("x = a, weight = w, bias = b") ";", "z", NULL, 0, 0}},
    {12, "m1", NO, {ABC " a", WEIGHT("32, 32, 1, 1") T("32") " b = const()[val = " T("32") "(BLOBFILE(path = string(\"@model_path/w.bin\"), offset = uint64(64)))]; "
      ABC " z = " CONV("x = a, weight = w, bias = b") ";", "z", NULL, 0, 0},
     {ABC " a", WEIGHT("32, 32, 1, 1") T("32") " b = const()[val = " T("32") "(1)]; " ABC " z = " CONV("x = a, weight = w, bias = b") ";", "z", NULL, 0, 0}},
    {12, "strict", NO, {ABC " a", WEIGHT("32, 32, 1, 1") ABC " z = " CONV("x = a, weight = w") ";", "z", NULL, 0, 0},
     {ABC " a", WEIGHT("32, 32, 1, 1") T("32") " b = const()[val = " T("32") "(BLOBFILE(path = string(\"@model_path/w.bin\"), offset = uint64(64)))]; "
      ABC " z = " CONV("x = a, weight = w, bias = b") ";", "z", NULL, 0, 0}},
    {13, "ieee", NO, {ABC " a", "int32 k = const()[val = int32(3)]; " ABC " z = softmax(x = a, axis = k);", "z", NULL, 0, 0},
     {ABC " a", ABC " z = softmax(x = a, axis = int32(3));", "z", NULL, 0, 0}},
    {13, "ieee", NO, {ABC " a", "bool f = const()[val = bool(false)]; " WEIGHT("1, 32, 32, 32") T("1, 32, 1, 32") " z = matmul(x = a, y = w, transpose_x = f, transpose_y = f);", "z", NULL, 0, 0},
     {ABC " a", "bool f = const()[val = bool(false)]; " WEIGHT("1, 32, 32, 32") T("1, 32, 1, 32") " z = matmul(x = a, y = w, transpose_x = f, transpose_y = bool(false));", "z", NULL, 0, 0}},
    {13, "strict", NO, {ABC " a", "tensor<int32, [1]> k = const()[val = tensor<int32, [1]>([1])]; bool t = const()[val = bool(true)]; "
      T("1, 1, 1, 32") " m = reduce_sum(x = a, axes = k, keep_dims = t); " ABC " z = sub(x = a, y = m);", "z", NULL, 0, 0},
     {ABC " a", "tensor<int32, [1]> k = const()[val = tensor<int32, [1]>([1])]; " T("1, 1, 1, 32") " m = reduce_sum(x = a, axes = k, keep_dims = bool(true)); "
      ABC " z = sub(x = a, y = m);", "z", NULL, 0, 0}},
    {14, "ieee", UNMASKED, ATTEND(""), ATTEND(", attn_mask = a")},
    {15, "ieee", GARBAGE, SCALED("64"), SCALED("128")},
    {15, "ieee", GARBAGE, SCALED("64"), SCALED("0")},
    {15, "ieee", GARBAGE, SCALED("64"), SCALED("96")},
    {15, "ieee", GARBAGE, SCALED("64"), SCALED("1000000")},
    {15, "ieee", GARBAGE, SCALED("64"), {ABC " a", BLOB("1, 64, 1, 1", "64") T("1, 32, 1, 1") " v = slice_by_size(x = w, begin = "
      "tensor<int32, [4]>([0, 32, 0, 0]), size = tensor<int32, [4]>([1, 32, 1, 1])); " ABC " z = mul(x = a, y = v);", "z", NULL, 0, 0}},
    {17, "ieee", NO, ONE("identity(x = a)"), {ABC " a", ABC " z = identity(x = a);", "a", NULL, 0, 0}},
    {17, "ieee", NO, ONE("relu(x = a)"), {ABC " a", RELU("z", "a") RELU("z", "a"), "z", NULL, 0, 0}},
    {17, "ieee", NO, ONE("relu(x = a)"), {ABC " a", WEIGHT("1, 32, 1, 32") RELU("z", "a"), "w", NULL, 0, 0}},
    {20, "m1", SLOW, SAME("1, 2048, 1, 2048", "relu(x = a)"), SAME("1, 2048, 1, 2080", "relu(x = a)")},
    {23, "strict", NO, ONE("relu(x = a)"), WIDE("fp32", "1, 32, 1, 32")},
    {23, "ieee", NO, WIDE("fp32", "1, 32, 1, 32"), WIDE("bf16", "1, 32, 1, 32")},
    {24, "ieee", NO, {T("1, 32, 1, 64") " a", "tensor<bool, [1, 32, 1, 64]> z = greater(x = a, y = a);", "z", NULL, 0, 0}, WIDE("int32", "1, 32, 1, 32")},
    {24, "m4", NO, {"tensor_buffer<int8, shape=[1, 32, 1, 64], strides=[2048, 64, 64, 1], interleave_factors=[1, 1, 1, 1]> a",
      "tensor<int8, [1, 32, 1, 64]> b = tensor_buffer_to_tensor<ios17>(input = a); " T("1, 32, 1, 64") " z = cast(x = b, dtype = string(\"fp16\"));", "z", NULL, 0, 0},
     {T("1, 32, 1, 64") " a", "tensor<int8, [1, 32, 1, 64]> z = cast(x = a, dtype = string(\"int8\"));", "z", NULL, 0, 0}},
    {24, "strict", NO, SAME("1, 32, 1, 64", "relu(x = a)"), WIDE("int8", "1, 32, 1, 64")},
    {24, "m1", NO, ONE("relu(x = a)"), {"tensor_buffer<fp16, shape=[1, 32, 1, 32], strides=[1024, 32, 32, 1], "
      "interleave_factors=[1, 1, 1, 1]> a", ABC " b = tensor_buffer_to_tensor<ios17>(input = a); " ABC " z = relu(x = b);", "z", NULL, 0, 0}},
    {25, "ieee", NO, {ABC " a", LUT(T("32, 1, 1, 1") " w = constexpr_lut_to_dense(indices = i, lut = l); ") T("1, 32, 1, 1")
      " v = reshape(x = w, shape = tensor<int32, [4]>([1, 32, 1, 1])); " ABC " z = mul(x = a, y = v);", "z", NULL, 0, 0}, WIDE("int4", "1, 32, 1, 128")},
    {25, "ieee", NO, ONE("relu(x = a)"), WIDE("uint4", "1, 32, 1, 128")},
    {26, "m1", ZEROS, SAME("1, 32, 1, 32", "relu(x = a)"), SAME("1, 33, 1, 32", "relu(x = a)")},
    {27, "m1", NO, SAME("1, 32, 1, 16384", "relu(x = a)"), SAME("1, 32, 1, 16416", "relu(x = a)")},
    {27, "m2", NO, SAME("1, 1, 16384, 32", "relu(x = a)"), SAME("1, 1, 16385, 32", "relu(x = a)")},
    {27, "m4", NO, SAME("1, 32, 1, 65536", "relu(x = a)"), SAME("1, 32, 1, 65568", "relu(x = a)")},
    {27, "m4", NO, SAME("1, 65536, 1, 32", "relu(x = a)"), SAME("1, 65537, 1, 32", "relu(x = a)")},
    {27, "m4", NO, SAME("65536, 1, 1, 32", "relu(x = a)"), SAME("65537, 1, 1, 32", "relu(x = a)")},
    {27, "ieee", NO, SAME("1, 1, 2, 2, 32", "relu(x = a)"), SAME("1, 1, 1, 2, 2, 32", "relu(x = a)")},
    {28, "m1", NO, KERNEL("1, 64", "1, 13", "1, 52"), KERNEL("1, 64", "1, 14", "1, 51")},
    {28, "m4", NO, KERNEL("1, 64", "1, 15", "1, 50"), KERNEL("1, 64", "1, 16", "1, 49")},
    {28, "m4", NO, KERNEL("29, 32", "29, 1", "1, 32"), KERNEL("30, 32", "30, 1", "1, 32")},
    {28, "ieee", NO, GROUPS("8", "4"), GROUPS("10", "3")},
    {28, "ieee", NO, COMPUTED("1", "32", "1"), COMPUTED("1", "16", "2")},
    {28, "ieee", NO, PRODUCT("1", "32"), PRODUCT("2", "32")},
    {28, "ieee", NO, ARGMAX("2048"), ARGMAX("2080")},
    {28, "strict", NO, TILE("3", "1, 32, 1, 96"), TILE("5", "1, 32, 1, 160")},
    {28, "ieee", NO, PAD("1, 32, 1, 64", "2", "0, 32"), PAD("1, 64, 1, 32", "6", "0, 32, 0, 0, 0, 0")},
    {28, "m2", NO, TURN("16384"), TURN("16416")},
    {28, "ieee", NO, NORM("10208"), NORM("10240")},
    {29, "m1", INFINITE, {ABC " a", T("1, 32, 1, 16") " s = slice_by_size(x = a, begin = tensor<int32, [4]>([0, 0, 0, 16]), size = tensor<int32, [4]>([1, 32, 1, 16])); "
      ABC " z = tile(x = s, reps = tensor<int32, [4]>([1, 1, 1, 2]));", "z", NULL, 0, 4092}, {NULL, NULL, NULL, NULL, 0, 4096}},
    {30, "m1", INFINITE, {ABC " a", T("32, 32, 1, 1") " w = const()[val = " T("32, 32, 1, 1") "(1)]; " ABC " z = " CONV("x = a, weight = w") ";", "z", NULL, 0, 1023.5f},
     {NULL, NULL, NULL, NULL, 0, 1024}},
    {31, "strict", LAST, {ABC " a", RELU("x", "a") RELU("y", "a"), "x, y", NULL, 0, 0}, {ABC " a", RELU("x", "a") RELU("y", "a") RELU("z", "a"), "x, y, z", NULL, 0, 0}},
    {33, "strict", INVALID, SAME("1, 32, 1, 256", "softmax(x = a, " AXIS("3") ")"), SAME("1, 32, 1, 288", "softmax(x = a, " AXIS("3") ")")},
    {35, "ieee", CRASHES, COMPUTED("1", "32", "1"), COMPUTED("2", "32", "1")},
    {36, "m1", HANGS, SAME("1, 16384", "relu(x = a)"), SAME("1, 16416", "relu(x = a)")},
    {37, "strict", NO, TALL("16384"), TALL("16416")},
    {42, "strict", NO, MEAN("ios16"), MEAN("ios18")},
    {43, "m4", X1D, {BUFFER("1024, 1024, 32, 1"), "z", NULL, 0, 0}, {BUFFER("1056, 1056, 33, 1"), "z", NULL, 0, 0}},
    {4, "m1", ZEROS, {ABC " a", RELU("y", "a") RELU("z", "a"), "y, z", NULL, 0, 0}, {ABC " a", RELU("y", "a") RELU("z", "a"), "z, y", NULL, 0, 0}},
    {49, "m2", NO, CONSTANT("64"), CONSTANT("128")},
    {50, "m4", INVALID, ONE("relu(x = a)"), {ABC " state", RELU("z", "state"), "z", NULL, 0, 0}},
    {51, "m4", NO, ONE("relu(x = a)"), {ABC " a", RELU("z", "a"), "z", NULL, 1, 0}},
    {52, "m1", NO, ONE("relu(x = a)"), {ABC " a", LUT(T("32, 1, 1, 1") " w = constexpr_lut_to_dense(indices = i, lut = l); ") T("1, 32, 1, 1")
      " v = reshape(x = w, shape = tensor<int32, [4]>([1, 32, 1, 1])); " ABC " z = mul(x = a, y = v);", "z", NULL, 0, 0}},
    {53, "ieee", NO, ONE("clip(x = a, alpha = fp16(-1), beta = fp16(1))"), ONE("clip(x = a, alpha = fp16(-1), beta = fp32(1))")},
    {54, "m3", BREAKS, ONE("relu(x = a)"), {ABC " a", ABC " z = tile(x = a, reps = tensor<int32, [4]>([1, 1, 1, 1]));", "z", NULL, 0, 0}},
    {55, "m3", ZEROS, {ABC " a", T("32, 32, 1, 1") " w = const()[val = " T("32, 32, 1, 1") "(1)]; " ABC " z = " CONV("x = a, weight = w") ";", "z", NULL, 0, 0},
     COMPUTED("1", "32", "1")},
    {56, "m4", SLOW, ONE("tanh(x = a)"), ONE("atan(x = a)")},
    {0, "ieee", NO, ONE("slice_update(x = a, update = a, begin = tensor<int32, [4]>([0, 0, 0, 0]), end = tensor<int32, [4]>([1, 32, 1, 32]))"),
     {ABC " a", ABC " z = slice_update(x = a, update = a, begin = tensor<int32, [4]>([0, 0, 0, 0]), end = tensor<int32, [4]>([1, 32, 1, 32]));", "z", "ios16", 0, 0}},
    {0, "strict", NO, ATTEND_FOR("ios18"), ATTEND_FOR("ios16")},
    {0, "ieee", NO, ONE("relu(x = a)"), {ABC " a", T("1, 32, 1, 33") " z = relu(x = a);", "z", NULL, 0, 0}},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Every number of the constraint table: by rows of the table above, by another test, or why no test is possible. */
static const struct { uint32_t number; const char *by; } held[] = {
    {1, "rows; ane_npu_rules surfaces"}, {2, "ane_npu_rules surfaces"}, {3, "rows; ane_npu_rules ports_by_name; ane_apple bound_by_name"}, {4, "rows"},
    {5, "ane_npu_rules budgets_and_restart"}, {6, "ane_npu_rules budgets_and_restart"}, {7, "-: time only"}, {8, "ane_npu_rules weights_are_frozen; ane_weights"},
    {9, "rows"}, {10, "rows"}, {11, "rows"}, {12, "rows"}, {13, "rows"}, {14, "rows"}, {15, "rows; ane_npu_rules weights_are_frozen; ane_weight_blob"},
    {16, "ane_apple whole_sequence"}, {17, "rows"}, {18, "-: its cause is not known"}, {19, "-: sources differ, no limit"}, {20, "rows"}, {21, "ane_npu_rules simulated_time"},
    {22, "-: speed only"}, {23, "rows"}, {24, "rows"}, {25, "rows"}, {26, "rows"}, {27, "rows"}, {28, "rows"}, {29, "rows"}, {30, "rows"}, {31, "rows"},
    {32, "-: a race of a route that is not used"}, {33, "rows"}, {34, "-: time of a compile"}, {35, "rows"}, {36, "rows"}, {37, "rows"}, {38, "-: time of a compile"},
    {39, "-: about terminals"}, {40, "ane_npu_rules failures_to_order"}, {41, "-: Core ML"}, {42, "rows"}, {43, "rows; ane_npu_rules surfaces"},
    {44, "ane_apple whole_sequence"}, {45, "-: what a killed process leaves"}, {46, "ane_npu_rules failures_to_order; ane_apple hang_is_bounded"},
    {47, "ane_apple each_failure"}, {48, "-: time after a pause"}, {49, "rows"}, {50, "rows"}, {51, "rows"}, {52, "rows"}, {53, "rows"}, {54, "rows"}, {55, "rows"}, {56, "rows"}};

static const char *text_of(const struct rule_case *s, const struct rule_case *otherwise, char out[4096])
{
    const struct rule_case *of = s->body ? s : otherwise;
    int bare = of->bare || strstr(of->params, "tensor_buffer");
    snprintf(out, 4096, "program(1.3)\n%s{\nfunc main<%s>(%s) {\n%s\n%s\n} -> (%s);\n}\n",
             bare ? "" : "[buildInfo = dict<string, string>({{\"a\", \"b\"}})]\n", of->target ? of->target : "ios18", of->params, PRELUDE, of->body,
             of->results);
    return out;
}

static uint8_t blob_bytes[256];
static struct sg_ane_file blob = {"w.bin", blob_bytes, 0};

/* A blob file with 32 elements of value 2. */
static int make_blob(void **state)
{
    struct sg_buf file = {0};
    uint16_t two[32];
    uint64_t at;
    (void)state;
    for (int i = 0; i < 32; i++) two[i] = 0x4000;
    if (sg_blob_begin(&file, NULL) || sg_blob_add(&file, SG_MIL_FP16, two, sizeof two, 0, &at, NULL) || file.len > sizeof blob_bytes) return -1;
    memcpy(blob_bytes, file.data, file.len);
    blob.bytes = file.len;
    sg_buf_free(&file);
    return 0;
}

static void check_text(const char *text, const char *profile, struct sg_mil_faults *faults)
{
    struct sg_mil_program *p = NULL;
    struct sg_mil_fault fault;
    struct sg_ane_profile limits;
    segue_error err;
    assert_int_equal(sg_ane_profile_named(&limits, profile, &err), SEGUE_OK);
    if (sg_mil_parse(&p, text, strlen(text), "t", &fault, &err)) {
        struct sg_mil_loc at = {fault.line, fault.column, fault.constraint, 0, "-"};
        sg_mil_fault_add(faults, &at, "%s", fault.text);
        return;
    }
    sg_ane_check(p, &limits, &blob, 1, faults);
    sg_mil_program_free(p);
}

/* The first program has no findings; the second has exactly the one of the rule, at its position in the text. */
static void each_rule_has_two_sides(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *row = &rows[i];
        struct sg_mil_faults good = {0}, bad = {0};
        char text[4096];
        check_text(text_of(&row->good, NULL, text), row->profile, &good);
        for (uint32_t k = 0; k < good.n; k++)
            if (!good.list[k].advice || good.list[k].constraint == row->constraint * (row->shows == SLOW))
                fail_msg("row %zu (constraint %u): refused: %u %s\n%s", i, row->constraint, good.list[k].constraint, good.list[k].text, text);
        check_text(text_of(&row->bad, &row->good, text), row->profile, &bad);
        uint32_t found = 0, others = 0, advice = row->shows == SLOW || row->shows == INFINITE;
        for (uint32_t k = 0; k < bad.n; k++) {
            if (bad.list[k].advice != advice) continue;
            bad.list[k].constraint == row->constraint ? found++ : others++;
            assert_true(bad.list[k].line > 0 && bad.list[k].column > 0 && bad.list[k].op[0]);
        }
        if ((!found && row->constraint != 30) || others || (advice && bad.refusals))
            fail_msg("row %zu: constraint %u: found %u times, %u others\n%s", i, row->constraint, found, others, text);
        sg_mil_faults_free(&good);
        sg_mil_faults_free(&bad);
    }
}

static int names(const segue_error *err, uint32_t constraint)
{
    char word[32];
    snprintf(word, sizeof word, "constraint %u", constraint);
    const char *at = strstr(err->text, word);
    return at && (at[strlen(word)] < '0' || at[strlen(word)] > '9');
}

static void load_and_fill(struct rig *g, const struct row *row, const struct rule_case *side, segue_error *err)
{
    char text[4096];
    if (rig_load(g, text_of(side, &row->good, text), &blob, 1, err)) fail_msg("%s: %s\n%s", row->profile, err->text, text);
    for (uint32_t k = 0; k < g->in_n; k++) rig_fill(g, k, side->value != 0 ? side->value : 0.5f);
    if (row->shows == UNMASKED)
        for (int k = 0; k < 2048; k++) bytes_of(g, g->in[0])[k] = sg_f16_of_f32((float)(k * 7 % 13 - 6) / 4);
}

/* Refuse mode: the first program runs; the second is refused, and the message names the rule. */
static void refused_by_number(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *row = &rows[i];
        struct sg_npu_opts o = options(row->profile, 0);
        struct rig g;
        segue_error err;
        char text[4096];
        rig_open(&g, &o);
        load_and_fill(&g, row, &row->good, &err);
        if (rig_run(&g, &err)) fail_msg("row %zu: constraint %u: %s", i, row->constraint, err.text);
        rig_unload(&g);
        segue_status s = rig_load(&g, text_of(&row->bad, &row->good, text), &blob, 1, &err);
        if (row->shows == INFINITE) {
            rig_fill(&g, 0, row->bad.value);
            s = rig_run(&g, &err);
        }
        if (row->shows == SLOW)
            assert_int_equal(s, SEGUE_OK);
        else if ((s != SEGUE_EUNSUPPORTED && s != SEGUE_EFORMAT) || !names(&err, row->constraint))
            fail_msg("row %zu: constraint %u: status %d: %s", i, row->constraint, s, s ? err.text : "");
        rig_close(&g);
    }
}

static void expect_numbers(struct rig *g, const struct row *row, size_t i)
{
    float first = sg_f32_of_f16(bytes_of(g, g->out[0])[9]), last = sg_f32_of_f16(bytes_of(g, g->out[g->out_n - 1])[9]);
    int good = 1;
    if (row->shows == ZEROS) good = first == 0 && last == 0;
    if (row->shows == LAST) good = first == 0 && last == 0.5f;
    if (row->shows == GARBAGE) good = sg_f32_of_f16(bytes_of(g, g->out[0])[31 * 32 + 9]) != 1;
    if (row->shows == INFINITE) good = isinf(first);
    if (!good) fail_msg("row %zu: constraint %u: %g, %g", i, row->constraint, (double)first, (double)last);
}

/* An engine that binds by sorted names exchanges two inputs whose names are not declared in that order. */
static void expect_swapped(struct rig *g, segue_error *err)
{
    rig_fill(g, 0, 7);                                   /* intended for b */
    rig_fill(g, 1, 5);                                   /* intended for a */
    assert_int_equal(rig_run(g, err), SEGUE_OK);
    assert_true(sg_f32_of_f16(bytes_of(g, g->out[0])[9]) == 2);
}

static void expect_unmasked(struct rig *g, const struct row *row, segue_error *err)
{
    uint16_t masked[2048];
    assert_int_equal(rig_run(g, err), SEGUE_OK);
    memcpy(masked, bytes_of(g, g->out[0]), sizeof masked);
    rig_unload(g);
    load_and_fill(g, row, &row->good, err);
    assert_int_equal(rig_run(g, err), SEGUE_OK);
    assert_memory_equal(masked, bytes_of(g, g->out[0]), sizeof masked);
}

static void expect_crash(struct rig *g, const struct row *row, segue_error *err)
{
    char text[4096];
    assert_int_equal(rig_load(g, text_of(&row->bad, &row->good, text), &blob, 1, err), SEGUE_EUNIT);
    assert_true(names(err, row->constraint));
    assert_int_equal(rig_load(g, text_of(&row->good, NULL, text), &blob, 1, err), SEGUE_EUNIT);
    assert_true(names(err, 40));                         /* the service restarts */
    assert_int_equal(rig_load(g, text, &blob, 1, err), SEGUE_OK);
}

/* Faithful mode: the second program shows the symptom of the chip. */
static void symptoms_of_the_chip(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *row = &rows[i];
        struct sg_npu_opts o = options(row->profile, 1);
        struct rig g;
        segue_error err;
        char text[4096];
        rig_open(&g, &o);
        if (row->shows == CRASHES) {
            expect_crash(&g, row, &err);
        } else if (row->shows == NO) {
            segue_status s = rig_load(&g, text_of(&row->bad, &row->good, text), &blob, 1, &err);
            if ((s != SEGUE_EUNSUPPORTED && s != SEGUE_EFORMAT) || !names(&err, row->constraint)) fail_msg("row %zu: constraint %u: status %d", i, row->constraint, s);
        } else {
            load_and_fill(&g, row, &row->bad, &err);
            if (row->shows == BREAKS) {
                if (rig_run(&g, &err)) fail_msg("row %zu: %s", i, err.text);
                assert_int_equal(rig_run(&g, &err), SEGUE_EUNIT);        /* the first call works, every later one fails */
                assert_true(names(&err, row->constraint) && strstr(err.text, "0x1d"));
            } else if (row->shows == X1D || row->shows == INVALID) {
                assert_int_equal(rig_run(&g, &err), SEGUE_EUNIT);
                assert_non_null(strstr(err.text, row->shows == X1D ? "0x1d" : "InvalidMILProgram"));
            } else if (row->shows == HANGS) {
                assert_int_equal(rig_run(&g, &err), SEGUE_ELOST);
            } else if (row->shows == SWAPPED) {
                expect_swapped(&g, &err);
            } else if (row->shows == UNMASKED) {
                expect_unmasked(&g, row, &err);
            } else {
                if (rig_run(&g, &err)) fail_msg("row %zu: constraint %u: %s", i, row->constraint, err.text);
                expect_numbers(&g, row, i);
            }
        }
        rig_close(&g);
    }
}

/* Every number from 1 to 56 has an entry; those "by rows" have rows; every rule of the checker has a test. */
static void every_number_has_a_test(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 56; n++) {
        const char *by = NULL;
        uint32_t count = 0;
        for (size_t i = 0; i < sizeof held / sizeof *held; i++)
            if (held[i].number == n) by = held[i].by;
        for (size_t i = 0; i < ROWS; i++) count += rows[i].constraint == n;
        if (!by) fail_msg("constraint %u has no line", n);
        if (!strncmp(by, "rows", 4) != (count > 0)) fail_msg("constraint %u: %s, %u rows", n, by, count);
        if ((by[0] == '-' || n == 21) != !sg_ane_rule_find(n)) fail_msg("constraint %u: %s, and the list of rules says otherwise", n, by);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_rule_has_two_sides), cmocka_unit_test(refused_by_number),
                                       cmocka_unit_test(symptoms_of_the_chip), cmocka_unit_test(every_number_has_a_test)};
    return cmocka_run_group_tests(tests, make_blob, NULL);
}
