/* packfile.h: packed weights in the cache folder: one entry (FOLDER/cpu/KEY.pack) for each set of weights and layouts,
 * and beside it KEY.seal, which says whose bytes the entry was last found to hold.
 *
 * The key is a hash of SG_PACK_LAYOUT, of sg_weight_cache.weights, and of name, shape, storage and permutation of every tensor
 * and window of every packed item: it names an entry. What proves that an entry belongs to these weights is the hash of
 * all their bytes, taken before and after packing and written into it. On the next start they are hashed again, unless
 * the seal holds the stamp of the same files and that stamp is exact (base/file.h). The packed bytes are checked against
 * the entry's own hashes at every start, in pieces, by all threads. Anything that does not fit is refused and replaced.
 * An entry also proves that every weight was found finite.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_PACKFILE_H
#define SG_UNIT_CPU_PACKFILE_H

#include "unit/cpu/cpu_types.h"

/* A run of bytes that is hashed at once, by one thread. */
struct sg_piece { const uint8_t *data; size_t bytes; };
enum { SG_PIECE_BYTES = 1 << 20 };

/* All bytes of the weights of some graphs, in order: tensors[i] owns pieces [before[i], before[i + 1]). */
struct sg_sources {
    const struct sg_tensor **tensors;    /* [n] */
    uint32_t *before;                    /* [n + 1] */
    uint32_t n;
    struct sg_piece *pieces;             /* [before[n]] */
    struct sg_hash *hashes, *again;      /* [before[n]] taken before and after packing */
};
segue_status sg_sources_list(struct sg_sources *out, const struct sg_graph *const *graphs, uint32_t n,
                             segue_error *err);
void sg_sources_free(struct sg_sources *s);

/* Cuts [data, data + bytes) into pieces; out NULL: only counts. */
uint32_t sg_pieces_cut(const void *data, uint64_t bytes, struct sg_piece *out);

struct sg_hash sg_pack_key(const struct sg_pack_set *set, const struct sg_sources *src, const struct sg_weight_cache *keep);

/* Map the entry with `total` bytes of packed data: OK and *data (in set->map), or why there is none that may be used:
 * EIO: there is none; EFORMAT: it was refused; EMEMORY. */
segue_status sg_packfile_map(struct sg_pack_set *set, struct sg_cpu_unit *u, struct sg_sources *src,
                             const struct sg_weight_cache *keep, uint64_t total, const uint8_t **data, segue_error *err);
/* Write `total` bytes at set->data, whose sources' hashes are known, as an entry. */
segue_status sg_packfile_write(const struct sg_pack_set *set, struct sg_cpu_unit *u, const struct sg_sources *src,
                               const struct sg_weight_cache *keep, uint64_t total, const uint8_t *data, segue_error *err);

#endif
