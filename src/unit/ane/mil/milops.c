/* milops.c: see milops.h. The table of all operations of the ane unit. A new operation needs a line here, a
 * rule in milinfer.c when its type rule is new, and its arithmetic in the software NPU
 * (npu/npu_table.c).
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/milops.h"

#include <string.h>

/* Table rows of operations that share arguments and type rule. */
#define UNARY(name)                                      \
    {                                                    \
        name, "x", SG_MIL_T_SAME, SG_MIL_ELEMENTWISE, 16 \
    }
/* epsilon is optional in Core ML; without it engines fail (constraint 11), which the constraint checks report. */
#define UNARY_EPS(name)                                            \
    {                                                              \
        name, "x epsilon!?", SG_MIL_T_SAME, SG_MIL_ELEMENTWISE, 16 \
    }
#define BINARY(name)                                            \
    {                                                           \
        name, "x y", SG_MIL_T_BROADCAST, SG_MIL_ELEMENTWISE, 16 \
    }
#define COMPARE(name)                                         \
    {                                                         \
        name, "x y", SG_MIL_T_COMPARE, SG_MIL_ELEMENTWISE, 16 \
    }
/* reduce_sum and reduce_mean have rows of their own: they need named constants (constraint 13). */
#define REDUCE(name)                                         \
    {                                                        \
        name, "x axes!? keep_dims!?", SG_MIL_T_REDUCE, 0, 16 \
    }
#define UNSUPPORTED(name)                                 \
    {                                                 \
        name, NULL, SG_MIL_T_NONE, SG_MIL_UNSUPPORTED, 16 \
    }

/* Columns: kind, arguments (syntax: struct sg_mil_op_info), type rule, flags, lowest function target.
 * Arguments marked optional are optional in Core ML; the emitter writes all of them, because the private
 * interface was only ever tested with complete lists. */
static const struct sg_mil_op_info ops[] = {
    /* Constants and products. */
    {"const", "", SG_MIL_T_CONST, 0, 16},
    {"conv", "x weight strides!? pad_type!? pad!? dilations!? groups!? bias?", SG_MIL_T_CONV, 0, 16},
    {"matmul", "x y transpose_x!? transpose_y!?", SG_MIL_T_MATMUL, SG_MIL_NAMED_CONSTS, 16},
    {"linear", "x weight bias?", SG_MIL_T_LINEAR, 0, 16},
    {"einsum", "values* equation!", SG_MIL_T_EINSUM, 0, 16},
    /* Elementwise arithmetic and functions. */
    BINARY("add"),
    BINARY("sub"),
    BINARY("mul"),
    BINARY("real_div"),
    BINARY("maximum"),
    BINARY("minimum"),
    BINARY("floor_div"),
    BINARY("pow"),
    UNARY("square"),
    UNARY("sqrt"),
    UNARY("exp"),
    UNARY("exp2"),
    UNARY("abs"),
    UNARY("sign"),
    UNARY("erf"),
    UNARY("ceil"),
    UNARY("floor"),
    UNARY("round"),
    UNARY("atan"),
    UNARY_EPS("rsqrt"),
    UNARY_EPS("log"),
    UNARY_EPS("inverse"),
    {"clip", "x alpha! beta!", SG_MIL_T_SAME, SG_MIL_ELEMENTWISE, 16},
    /* Activations. */
    UNARY("relu"),
    UNARY("relu6"),
    UNARY("sigmoid"),
    UNARY("tanh"),
    UNARY("silu"),
    UNARY("softplus"),
    UNARY("softsign"),
    {"gelu", "x mode!?", SG_MIL_T_SAME, SG_MIL_ELEMENTWISE | SG_MIL_UNCERTAIN, 16},
    {"softmax", "x axis!?", SG_MIL_T_SAME, SG_MIL_NAMED_CONSTS, 16},
    /* Reductions and norms. */
    {"reduce_sum", "x axes!? keep_dims!?", SG_MIL_T_REDUCE, SG_MIL_NAMED_CONSTS, 16},
    {"reduce_mean", "x axes!? keep_dims!?", SG_MIL_T_REDUCE, SG_MIL_NAMED_CONSTS, 16},
    REDUCE("reduce_max"),
    REDUCE("reduce_min"),
    REDUCE("reduce_l2_norm"),
    REDUCE("reduce_l1_norm"),
    REDUCE("reduce_log_sum_exp"),
    REDUCE("reduce_sum_square"),
    REDUCE("reduce_log_sum"),
    {"reduce_argmax", "x axis!? keep_dims!? output_dtype!?", SG_MIL_T_ARG, 0, 16},
    {"reduce_argmin", "x axis!? keep_dims!? output_dtype!?", SG_MIL_T_ARG, 0, 16},
    {"layer_norm", "x axes!? gamma!? beta!? epsilon!?", SG_MIL_T_SAME, SG_MIL_NAMED_CONSTS, 16},
    {"instance_norm", "x gamma!? beta!? epsilon!?", SG_MIL_T_SAME, SG_MIL_NAMED_CONSTS, 16},
    {"l2_norm", "x epsilon!?", SG_MIL_T_SAME, SG_MIL_NAMED_CONSTS, 16},
    {"batch_norm", "x mean! variance! gamma!? beta!? epsilon!?", SG_MIL_T_SAME, SG_MIL_UNCERTAIN | SG_MIL_NAMED_CONSTS,
     16},
    /* Data movement. */
    {"reshape", "x shape!", SG_MIL_T_RESHAPE, 0, 16},
    {"transpose", "x perm!", SG_MIL_T_TRANSPOSE, 0, 16},
    {"expand_dims", "x axes!", SG_MIL_T_EXPAND, 0, 16},
    {"squeeze", "x axes!?", SG_MIL_T_SQUEEZE, 0, 16},
    {"slice_by_size", "x begin! size!", SG_MIL_T_SLICE_SIZE, 0, 16},
    {"slice_by_index", "x begin! end! stride!? begin_mask!? end_mask!? squeeze_mask!?", SG_MIL_T_SLICE_INDEX,
     0, 16},
    {"slice_update", "x update begin! end! stride!? begin_mask!? end_mask!? squeeze_mask!?",
     SG_MIL_T_SLICE_UPDATE, 0, 18},
    {"concat", "values* axis! interleave!?", SG_MIL_T_CONCAT, 0, 16},
    {"split", "x num_splits!? split_sizes!? axis!", SG_MIL_T_SPLIT, SG_MIL_UNCERTAIN, 16},
    {"stack", "values* axis!", SG_MIL_T_STACK, 0, 16},
    {"tile", "x reps!", SG_MIL_T_TILE, 0, 16},
    {"pad", "x pad! mode!? constant_val!?", SG_MIL_T_PAD, 0, 16},
    {"reverse", "x axes!?", SG_MIL_T_SAME, 0, 16},
    {"depth_to_space", "x block_size!", SG_MIL_T_BLOCKS, 0, 16},
    {"space_to_depth", "x block_size!", SG_MIL_T_BLOCKS, 0, 16},
    {"pixel_shuffle", "x upscale_factor!", SG_MIL_T_BLOCKS, 0, 16},
    {"gather", "x indices axis!? batch_dims!? validate_indices!?", SG_MIL_T_GATHER, SG_MIL_UNCERTAIN, 16},
    /* Conversions, comparison and selection. */
    {"cast", "x dtype!", SG_MIL_T_CAST, SG_MIL_ELEMENTWISE, 16},
    {"quantize", "input scale! output_dtype! zero_point!? axis!?", SG_MIL_T_QUANTIZE, 0, 17},
    {"dequantize", "input scale! zero_point!? axis!?", SG_MIL_T_DEQUANTIZE, 0, 17},
    {"select", "cond a b", SG_MIL_T_SELECT, SG_MIL_ELEMENTWISE, 16},
    COMPARE("greater"),
    COMPARE("greater_equal"),
    COMPARE("less"),
    COMPARE("less_equal"),
    COMPARE("equal"),
    COMPARE("not_equal"),
    {"logical_not", "x", SG_MIL_T_SAME, SG_MIL_ELEMENTWISE, 16},
    UNARY("identity"),
    /* Compressed constants; their operands may also be attributes (ios16 form). */
    {"constexpr_affine_dequantize", "quantized_data!? scale!? zero_point!? axis!?", SG_MIL_T_AFFINE, 0, 16},
    {"constexpr_lut_to_dense", "indices!? lut!? shape!? vector_axis!?", SG_MIL_T_PALETTE, 0, 16},
    {"constexpr_sparse_to_dense", "nonzero_data!? mask!? shape!?", SG_MIL_T_SPARSE, 0, 16},
    {"constexpr_blockwise_shift_scale", "data! scale! offset!?", SG_MIL_T_BLOCKWISE, 0, 18},
    /* Attention, sorting, conversion between tensors and tensor_buffers. */
    {"scaled_dot_product_attention", "query key value attn_mask?", SG_MIL_T_ATTENTION, 0, 18},
    {"topk", "x k! axis!? ascending!? sort!? return_indices!? output_indices_dtype!?", SG_MIL_T_TOPK, 0, 16},
    {"argsort", "x axis!? ascending!? output_dtype!?", SG_MIL_T_ARGSORT, 0, 16},
    {"tensor_buffer_to_tensor", "input", SG_MIL_T_UNBUFFER, 0, 17},
    {"tensor_to_tensor_buffer", "input interleave_factors! strides!", SG_MIL_T_BUFFER, 0, 17},
    /* State of Core ML models; the private interface does not have it. */
    {"read_state", NULL, SG_MIL_T_NONE, SG_MIL_UNSUPPORTED | SG_MIL_CORE_ML, 18},
    {"coreml_update_state", NULL, SG_MIL_T_NONE, SG_MIL_UNSUPPORTED | SG_MIL_CORE_ML, 18},
    /* Operations that no known compiler accepts for the engine. They are listed so that the message can say
     * so. */
    UNSUPPORTED("neg"),
    UNSUPPORTED("reciprocal"),
    UNSUPPORTED("mod"),
    UNSUPPORTED("sin"),
    UNSUPPORTED("cos"),
    UNSUPPORTED("tan"),
    UNSUPPORTED("asin"),
    UNSUPPORTED("acos"),
    UNSUPPORTED("sinh"),
    UNSUPPORTED("cosh"),
    UNSUPPORTED("scatter"),
    UNSUPPORTED("scatter_along_axis"),
    UNSUPPORTED("scatter_nd"),
    UNSUPPORTED("one_hot"),
    UNSUPPORTED("band_part"),
    UNSUPPORTED("non_zero"),
    UNSUPPORTED("gru"),
    UNSUPPORTED("lstm"),
    UNSUPPORTED("rnn"),
    UNSUPPORTED("cond"),
    UNSUPPORTED("while_loop"),
    UNSUPPORTED("random_uniform"),
    UNSUPPORTED("random_normal"),
    UNSUPPORTED("random_bernoulli"),
    UNSUPPORTED("random_categorical"),
    UNSUPPORTED("cumsum"),
    UNSUPPORTED("reduce_prod"),
    UNSUPPORTED("logical_and"),
    UNSUPPORTED("logical_or"),
    UNSUPPORTED("logical_xor"),
    UNSUPPORTED("avg_pool"),
    UNSUPPORTED("max_pool"),
    UNSUPPORTED("l2_pool"),
    UNSUPPORTED("gather_along_axis"),
    UNSUPPORTED("gather_nd"),
    UNSUPPORTED("shape"),
    UNSUPPORTED("fill"),
    UNSUPPORTED("range_1d"),
    UNSUPPORTED("conv_transpose"),
    UNSUPPORTED("leaky_relu"),
    UNSUPPORTED("elu"),
    UNSUPPORTED("prelu"),
    UNSUPPORTED("resize_nearest_neighbor"),
    UNSUPPORTED("upsample_bilinear"),
};

/* Linear search; the first character rejects most rows before strlen is called. */
const struct sg_mil_op_info *sg_mil_op_named(const char *kind, size_t n)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ops[i].kind[0] == kind[0] && strlen(ops[i].kind) == n && !memcmp(ops[i].kind, kind, n))
            return &ops[i];
    return NULL;
}

/* Skips i space-separated words of the argument list. */
const char *sg_mil_op_arg(const struct sg_mil_op_info *info, uint32_t i, size_t *n, char *mark)
{
    const char *s = info->args ? info->args : "";
    for (; i && *s; i--) {
        s += strcspn(s, " ");
        s += *s == ' ';
    }
    if (!*s) return NULL;
    *n = strcspn(s, " !?*");
    *mark = s[*n] == ' ' ? 0 : s[*n];
    return s;
}

/* `!?` means constant and optional; the first marker alone would hide the second. */
int sg_mil_op_takes(const struct sg_mil_op_info *info, const char *name, int *constant, int *list,
                    int *optional)
{
    size_t n;
    char mark;
    const char *arg;
    for (uint32_t i = 0; (arg = sg_mil_op_arg(info, i, &n, &mark)); i++) {
        if (strlen(name) != n || memcmp(arg, name, n) != 0) continue;
        *constant = mark == '!';
        *list = mark == '*';
        *optional = mark == '?' || (mark == '!' && arg[n + 1] == '?');
        return 1;
    }
    return 0;
}
