/* graphwire.h: graphs and tensors as bytes, for a unit that computes in another process. A graph is plain data: its ops,
 * values and slots are lists of 32-bit words. Weights are not sent: a tensor says where its bytes lie in a region of
 * memory that both sides can see. What comes in is believed in nothing: after `take` a graph has passed
 * sg_graph_check, and every byte that a tensor can be read at lies inside its region.
 * SPDX-License-Identifier: MIT */
#ifndef SG_GRAPH_GRAPHWIRE_H
#define SG_GRAPH_GRAPHWIRE_H

#include "base/bytes.h"
#include "graph/graph.h"

/* Bytes that both sides can see, under a number that both use. data NULL: the number is free. */
struct sg_lent {
    const uint8_t *data;
    size_t size;
};

/* Where something lies: a region's number and an offset in it. */
struct sg_spot {
    uint32_t region;
    uint64_t at;
};

/* A tensor's bytes, and an MLX or llama2.c tensor's scales and biases. */
enum { SG_SPOT_DATA, SG_SPOT_SCALES, SG_SPOT_BIASES, SG_SPOTS };
/* Bytes of each, as the storage and shape say; 0 where there are none. */
void sg_tensor_extent(const struct sg_tensor *t, uint64_t bytes[SG_SPOTS]);

void sg_wire_tensor_put(struct sg_buf *out, const struct sg_tensor *t, const struct sg_spot spots[SG_SPOTS]);
/* Name and pointers live as long as arena and regions. EFORMAT, EMEMORY. */
segue_status sg_wire_tensor_take(struct sg_reader *in, const struct sg_lent *regions, uint32_t regions_n,
                                 struct sg_arena *arena, struct sg_tensor *out, segue_error *err);

/* ids: [tensors_n] the number of each tensor of the graph. */
void sg_wire_graph_put(struct sg_buf *out, const struct sg_graph *g, const uint32_t *ids);
/* tensors: [tensors_n] by number, NULL = there is none. The tensors outlive the graph. */
segue_status sg_wire_graph_take(struct sg_reader *in, const struct sg_tensor *const *tensors, uint32_t tensors_n,
                                struct sg_graph **out, segue_error *err);

/* Slots by themselves: a state is made of them. At most `most`; *out is memory of sg_alloc. */
void sg_wire_slots_put(struct sg_buf *out, const struct sg_slot *slots, uint32_t n);
segue_status sg_wire_slots_take(struct sg_reader *in, uint32_t most, struct sg_slot **out, uint32_t *n,
                                segue_error *err);

#endif
