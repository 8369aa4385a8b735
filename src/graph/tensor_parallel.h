/* tensor_parallel.h: graphs dealt to ranks that compute them together (tensor parallel). Each rank's graph is the whole's, op for op, with
 * fewer heads and columns: a product's rows are dealt where all that reads them can go on with a share (heads of attention and of
 * the delta rule, channels of the convolution, columns between gate and down); the product behind takes its share of the weight's
 * columns, and a `join` sums what the ranks have. Bias and residual of such a product are rank 0's. The residual stream, norms
 * over whole rows, embeddings and experts are the same on every rank; logits are joined side by side where the vocabulary
 * divides. Which columns are whose: each run of a value's (or slot's) columns is cut into equal pieces, rank 0 first. Weights are
 * parts of the whole's tensors (struct sg_tensor_part): nothing is copied. SPDX-License-Identifier: MIT */
#ifndef SG_GRAPH_TENSOR_PARALLEL_H
#define SG_GRAPH_TENSOR_PARALLEL_H

#include "graph/graph.h"

enum { SG_RANKS_MOST = 16 };

/* Of a slot: widths of its runs, in heads (K, V, DELTA: one run) or channels (CONV). One run of 0: every rank has all of it. */
struct sg_tp_slot {
    uint32_t runs_n, runs[SG_PART_RUNS];
};

struct sg_tp_graphs {
    uint32_t ranks, graphs_n;
    struct sg_graph **graphs;        /* [graphs_n][ranks] */
    struct sg_tp_slot **slots;    /* [graphs_n][slots_n of that graph] */
    struct sg_tensor **parts;        /* the same part in two graphs of a rank is one */
    uint32_t parts_n, parts_cap;
    struct sg_arena arena;           /* owns all but the graphs */
};

/* EUNSUPPORTED names what does not divide, and by what. The graphs' tensors must outlive the shares. */
segue_status sg_tp_graphs_new(const struct sg_graph *const *graphs, uint32_t graphs_n, uint32_t ranks, struct sg_tp_graphs **out,
                           segue_error *err);
void sg_tp_graphs_free(struct sg_tp_graphs *s);

/* tp_split.c: which values of a graph are dealt, and in which runs. */
struct sg_tp_split {
    uint32_t n;                      /* runs; 0: every rank has the whole value */
    uint32_t from[SG_PART_RUNS + 1]; /* run i is columns [from[i], from[i + 1]) */
};
segue_status sg_tp_split_values(const struct sg_graph *g, uint32_t ranks, struct sg_tp_split *values, segue_error *err);

#endif
