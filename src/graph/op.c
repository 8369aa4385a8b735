/* op.c: names of operations and activations, as the dump and error messages show them.
 * SPDX-License-Identifier: MIT */
#include "graph/graph.h"

/* In the order of enum sg_op_code. */
static const char *const op_names[SG_OP_N] = {
    "embed", "norm", "linear", "rope",  "attend", "conv",    "delta",
    "glu",   "act",  "add",    "scale", "route",  "experts", "rows",
    "join",
};
/* In the order of enum sg_act. */
static const char *const act_names[] = {
    "none", "silu", "gelu", "gelu_tanh", "gelu_quick", "relu", "relu2", "sigmoid", "tanh",
};

const char *sg_op_name(enum sg_op_code code)
{
    return (unsigned)code < SG_OP_N ? op_names[code] : "unknown";
}

const char *sg_act_name(enum sg_act act)
{
    return (size_t)act < sizeof act_names / sizeof *act_names ? act_names[act] : "unknown";
}
