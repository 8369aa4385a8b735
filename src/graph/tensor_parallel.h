/* tensor_parallel.h: splits graphs for tensor parallelism over several ranks. Each rank gets a graph with the same ops but
 * fewer heads and columns:
 *  - A linear op is split by the rows of its weight (output columns) where all consumers can work on a part: heads of
 *    attention and of the delta rule, channels of the convolution, the columns between gate and down projection.
 *  - The linear op that consumes a split value is split by the columns of its weight; a `join` then sums the partial results
 *    of all ranks. Bias and residual of such an op are added by rank 0 only.
 *  - The residual stream, norms over whole rows, embeddings and experts are computed by every rank.
 *  - Logits are concatenated by a `join` if the vocabulary size is divisible by the number of ranks.
 * Every run of split columns is divided into equal pieces, the first one for rank 0. The weights of a rank are parts of the
 * original tensors (struct sg_tensor_part): nothing is copied.
 * SPDX-License-Identifier: MIT */
#ifndef SG_GRAPH_TENSOR_PARALLEL_H
#define SG_GRAPH_TENSOR_PARALLEL_H

#include "graph/graph.h"

enum { SG_RANKS_MAX = 16 };              /* ranks of a group */

/* How a state slot is split: the widths of its runs in heads (K, V, DELTA: one run) or in channels
 * (CONV). Every rank has an equal piece of each run. runs_n 0: every rank has the whole slot. */
struct sg_tp_slot {
    uint32_t runs_n, runs[SG_PART_RUNS];
};

/* The split graphs of one model. */
struct sg_tp_graphs {
    uint32_t ranks, graphs_n;        /* number of ranks; number of original graphs */
    struct sg_graph **graphs;        /* [graphs_n][ranks] owned */
    struct sg_tp_slot **slots;       /* [graphs_n][slots_n of that graph] */
    struct sg_tensor **parts;        /* [parts_n] all parts; equal parts of several graphs are one entry */
    uint32_t parts_n, parts_cap;     /* used and allocated entries of parts */
    struct sg_arena arena;           /* owns everything but the graphs */
};

/* Split graphs[graphs_n]. EUNSUPPORTED names what is not divisible by the number of ranks. The
 * tensors of the graphs must outlive the result. */
segue_status sg_tp_graphs_new(const struct sg_graph *const *graphs, uint32_t graphs_n, uint32_t ranks, struct sg_tp_graphs **out,
                           segue_error *err);
void sg_tp_graphs_free(struct sg_tp_graphs *s);

/* How the columns of a value are split (tp_split.c). */
struct sg_tp_split {
    uint32_t n;                      /* number of runs; 0: every rank has the whole value */
    uint32_t from[SG_PART_RUNS + 1]; /* run i is the columns [from[i], from[i + 1]) */
};
/* Sets values[g->values_n]. EUNSUPPORTED when heads or columns are not divisible by `ranks`. */
segue_status sg_tp_split_values(const struct sg_graph *g, uint32_t ranks, struct sg_tp_split *values, segue_error *err);

#endif
