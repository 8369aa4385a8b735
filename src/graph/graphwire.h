/* graphwire.h: serialises graphs and tensors for a unit in another process. Weights are not sent: a
 * tensor refers to a memory region that both processes map. The receiver validates everything: a
 * graph that was read has passed sg_graph_check, and all bytes of a tensor are inside its region.
 * SPDX-License-Identifier: MIT */
#ifndef SG_GRAPH_GRAPHWIRE_H
#define SG_GRAPH_GRAPHWIRE_H

#include "base/bytes.h"
#include "graph/graph.h"

/* A shared memory region. Both sides refer to it by its index in a table. data NULL: unused index. */
struct sg_wire_region {
    const uint8_t *data;
    size_t size;
};

/* A location: index of a region and byte offset in it. */
struct sg_wire_loc {
    uint32_t region;
    uint64_t at;
};

/* The memory areas of a tensor: its data, the scales, and the biases or zeros of MLX, llama2.c and SG_CODED tensors, and the
 * order of the latter. */
enum { SG_LOC_DATA, SG_LOC_SCALES, SG_LOC_BIASES, SG_LOC_ORDER, SG_LOCS };
/* Size in bytes of each area, computed from storage and shape; 0 when the tensor has no such area. */
void sg_tensor_extent(const struct sg_tensor *t, uint64_t bytes[SG_LOCS]);

/* locs: where each area is; entries of absent areas are ignored. Errors are kept in out->failed. */
void sg_wire_tensor_write(struct sg_buf *out, const struct sg_tensor *t, const struct sg_wire_loc locs[SG_LOCS]);
/* Read and validate a tensor. It points into arena and regions, which must outlive it. EFORMAT,
 * EMEMORY. */
segue_status sg_wire_tensor_read(struct sg_reader *in, const struct sg_wire_region *regions, uint32_t regions_n,
                                 struct sg_arena *arena, struct sg_tensor *out, segue_error *err);

/* ids: [g->tensors_n] the id of each tensor, as the receiver knows it. */
void sg_wire_graph_write(struct sg_buf *out, const struct sg_graph *g, const uint32_t *ids);
/* tensors: [tensors_n] indexed by id; NULL entries are unused. They must outlive the graph. */
segue_status sg_wire_graph_read(struct sg_reader *in, const struct sg_tensor *const *tensors, uint32_t tensors_n,
                                struct sg_graph **out, segue_error *err);

/* A list of slots, which describes a state. Reading refuses more than `max`; the caller frees *out
 * with sg_free. */
void sg_wire_slots_write(struct sg_buf *out, const struct sg_slot *slots, uint32_t n);
segue_status sg_wire_slots_read(struct sg_reader *in, uint32_t max, struct sg_slot **out, uint32_t *n,
                                segue_error *err);

#endif
