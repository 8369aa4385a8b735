/* mil_samples.h: one program in each dialect, from the examples of docs/ANE.md.
 * SPDX-License-Identifier: MIT */
#ifndef TESTS_ANE_MIL_SAMPLES_H
#define TESTS_ANE_MIL_SAMPLES_H

#define CONV_CONSTS \
    "        tensor<string, []> k_pt = const()[name = tensor<string, []>(\"k_pt\"), val = tensor<string, []>(\"valid\")];\n" \
    "        tensor<int32, [2]> k_st = const()[name = tensor<string, []>(\"k_st\"), val = tensor<int32, [2]>([1, 1])];\n" \
    "        tensor<int32, [4]> k_pd = const()[name = tensor<string, []>(\"k_pd\"), val = tensor<int32, [4]>([0, 0, 0, 0])];\n" \
    "        tensor<int32, [2]> k_dl = const()[name = tensor<string, []>(\"k_dl\"), val = tensor<int32, [2]>([1, 1])];\n" \
    "        tensor<int32, []> k_gr = const()[name = tensor<string, []>(\"k_gr\"), val = tensor<int32, []>(1)];\n"
#define CONV_ARGS "conv(dilations = k_dl, groups = k_gr, pad = k_pd, pad_type = k_pt, strides = k_st, "

static const char sample_verbose[] =
    "program(1.0)\n"
    "[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{\"coremlc-version\", \"3505.4.1\"}})]\n"
    "{\n"
    "    func main<ios16>(tensor<fp16, [1, 64, 1, 32]> a_in) {\n" CONV_CONSTS
    "        tensor<fp16, [128, 64, 1, 1]> w1 = const()[name = tensor<string, []>(\"w1\"), val = tensor<fp16, [128, 64, 1, 1]>"
    "(BLOBFILE(path = tensor<string, []>(\"@model_path/weights/w1.bin\"), offset = tensor<uint64, []>(64)))];\n"
    "        tensor<fp16, [64, 128, 1, 1]> w2 = const()[name = tensor<string, []>(\"w2\"), val = tensor<fp16, [64, 128, 1, 1]>"
    "(BLOBFILE(path = tensor<string, []>(\"@model_path/weights/w2.bin\"), offset = tensor<uint64, []>(64)))];\n"
    "        tensor<fp16, [1, 128, 1, 32]> h = " CONV_ARGS "weight = w1, x = a_in)[name = tensor<string, []>(\"h\")];\n"
    "        tensor<fp16, [1, 128, 1, 32]> r = relu(x = h)[name = tensor<string, []>(\"r\")];\n"
    "        tensor<fp16, [1, 64, 1, 32]> z_out = " CONV_ARGS "weight = w2, x = r)[name = tensor<string, []>(\"z_out\")];\n"
    "    } -> (z_out);\n"
    "}\n";

static const char sample_buffer[] =
    "program(1.3)\n"
    "{\n"
    "    func mm<ios18>(tensor_buffer<fp16, shape=[1, 1, 64, 64], strides=[4096, 4096, 64, 1], interleave_factors=[1, 1, 1, 1]> w,\n"
    "                   tensor_buffer<fp16, shape=[1, 1, 64, 32], strides=[2048, 2048, 32, 1], interleave_factors=[1, 1, 1, 1]> x) {\n"
    "        tensor<fp16, [1, 1, 64, 64]> wt = tensor_buffer_to_tensor<ios17>(input = w);\n"
    "        tensor<fp16, [1, 1, 64, 32]> xt = tensor_buffer_to_tensor<ios17>(input = x);\n"
    "        tensor<fp16, [1, 1, 64, 32]> m = matmul(transpose_x = bool(false), transpose_y = bool(false), x = wt, y = xt);\n"
    "        tensor_buffer<fp16, shape=[1, 1, 64, 32], strides=[2048, 2048, 32, 1], interleave_factors=[1, 1, 1, 1]> y = "
    "tensor_to_tensor_buffer<ios17>(input = m, interleave_factors = tensor<uint8, [4]>([1, 1, 1, 1]), strides = tensor<int64, [4]>"
    "([2048, 2048, 32, 1]));\n"
    "    } -> (y);\n"
    "}\n";

static const char sample_modern[] =
    "program(1.3)\n"
    "[buildInfo = dict<string, string>({{\"coremlc-component-MIL\", \"3510.2.1\"}, {\"coremltools-component-milinternal\", \"\"}})]\n"
    "{\n"
    "    func main<ios18>(tensor<fp16, [1, 32, 1, 64]> x, tensor<fp16, [1, 32, 1, 64]> y) {\n"
    "        bool no = const()[name = string(\"no\"), val = bool(false)];\n"
    "        int32 ax = const()[name = string(\"ax\"), val = int32(1)];\n"
    "        tensor<int32, [1]> axes = const()[name = string(\"axes\"), val = tensor<int32, [1]>([1])];\n"
    "        bool keep = const()[name = string(\"keep\"), val = bool(true)];\n"
    "        fp16 half = const()[name = string(\"half\"), val = fp16(-0x1p-1)];\n"
    "        tensor<fp16, [1, 64, 1, 64]> both = concat(axis = ax, interleave = no, values = (x, y))[name = string(\"both\")];\n"
    "        tensor<fp16, [1, 64, 1, 64]> sq = mul(x = both, y = both)[name = string(\"sq\")];\n"
    "        tensor<fp16, [1, 1, 1, 64]> sum = reduce_sum(axes = axes, keep_dims = keep, x = sq)[name = string(\"sum\")];\n"
    "        tensor<fp16, [1, 1, 1, 64]> r = pow(x = sum, y = half)[name = string(\"r\")];\n"
    "        tensor<fp16, [1, 64, 1, 64]> out = mul(x = both, y = r)[name = string(\"out\")];\n"
    "    } -> (out);\n"
    "}\n";

#endif
