/* packfile.h: packed weights in the cache folder. Each set of weights and layouts has one entry,
 * FOLDER/cpu/KEY.pack, and beside it KEY.seal, the stamp of the source files for which the entry was
 * last verified.
 *
 * KEY is a hash of SG_PACK_LAYOUT, of sg_weight_cache.weights, and of name, shape, storage and
 * permutation of every tensor and row range of every packed item. It names an entry. What proves that
 * an entry belongs to the weights is the hash of all their bytes, taken before and after packing and
 * stored in the entry. At the next start the sources are hashed again, unless the stamp names the same
 * files and their file ids are exact (base/file.h). The packed bytes are compared with the entry's own
 * hashes at every start, in pieces, by all threads. An entry that fails any check is refused and
 * replaced. An entry also proves that all weights are finite, because packing checks that.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_PACKFILE_H
#define SG_UNIT_CPU_PACKFILE_H

#include "unit/cpu/cpu_types.h"

/* Bytes that one thread hashes in one piece. */
struct sg_hash_piece { const uint8_t *data; size_t bytes; };
enum { SG_HASH_PIECE_BYTES = 1 << 20 };

/* All bytes of the weights of some graphs, in order. Tensor i has pieces [pieces_before[i],
 * pieces_before[i + 1]). */
struct sg_weight_sources {
    const struct sg_tensor **tensors;    /* [n] */
    uint32_t *pieces_before;                    /* [n + 1] */
    uint32_t n;
    struct sg_hash_piece *pieces;             /* [pieces_before[n]] */
    struct sg_hash *hashes, *hashes_after;      /* [pieces_before[n]] hashes taken before and after packing */
};
/* Lists the tensors of the graphs and their pieces. Hashes are not computed yet. EMEMORY. */
segue_status sg_weight_sources_list(struct sg_weight_sources *out, const struct sg_graph *const *graphs, uint32_t n,
                             segue_error *err);
void sg_weight_sources_free(struct sg_weight_sources *s);

/* Divides [data, data + bytes) into pieces and returns their number; out NULL: only counts. */
uint32_t sg_hash_pieces(const void *data, uint64_t bytes, struct sg_hash_piece *out);

/* The key of the entry for this set. */
struct sg_hash sg_pack_key(const struct sg_pack_set *set, const struct sg_weight_sources *src,
                           const struct sg_weight_cache *cache);

/* Maps the entry with `total` bytes of packed data; *data points into set->map. EIO: there is no entry;
 * EFORMAT: it was refused; EMEMORY. */
segue_status sg_packfile_map(struct sg_pack_set *set, struct sg_cpu_unit *u, struct sg_weight_sources *src,
                             const struct sg_weight_cache *cache, uint64_t total, const uint8_t **data, segue_error *err);
/* Writes `total` bytes of packed data as an entry. The hashes of the sources must be known. */
segue_status sg_packfile_write(const struct sg_pack_set *set, struct sg_cpu_unit *u, const struct sg_weight_sources *src,
                               const struct sg_weight_cache *cache, uint64_t total, const uint8_t *data, segue_error *err);

#endif
