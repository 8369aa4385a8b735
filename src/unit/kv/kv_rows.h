/* kv_rows.h: K or V of a state as rows in the canonical layout and one storage, in reference-counted blocks that forks share
 * (kv_blocks.h). Where the state will be handed to a unit that takes rows over (struct sg_host_memory, attachable), its blocks
 * are parts of one piece of that unit's memory, so that the rows follow each other.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_KV_ROWS_H
#define SG_UNIT_KV_ROWS_H

#include "unit/kv/kv_blocks.h"
#include "unit/unit.h"

struct sg_row_piece;                 /* memory of the first positions, shared with the blocks in it */
/* Of one slot. Zeroed: no rows; sg_rows_init sets the rest. */
struct sg_rows {
    struct sg_block_table table;
    uint32_t block_tokens;
    size_t row_bytes;
    const struct sg_host_memory *host;   /* NULL: ordinary memory */
    uint64_t expected;               /* positions that the first piece is for */
    struct sg_row_piece *piece;      /* with the blocks made last; NULL: not made yet, or none */
    uint64_t creating;               /* index of the block that the table asks for */
};

/* host: of struct sg_state_opts; tokens: expected length, 0: not known. Where a sliding window (0: none) will drop rows, which
 * cannot be taken over then, they have ordinary memory. Allocates nothing. */
void sg_rows_init(struct sg_rows *r, uint32_t block_tokens, size_t row_bytes, uint32_t window, const struct sg_host_memory *host,
                  uint64_t tokens);
void sg_rows_free(struct sg_rows *r);
/* The row of a position whose block exists. */
unsigned char *sg_rows_at(const struct sg_rows *r, uint64_t pos);
/* Makes the blocks of positions [from, to) exist with these rows as their only user. lock: as in kv_blocks.h. */
segue_status sg_rows_own(struct sg_rows *r, uint64_t from, uint64_t to, pthread_mutex_t *lock, segue_error *err);
/* Releases the blocks outside of positions [first, end). */
void sg_rows_trim(struct sg_rows *r, uint64_t first, uint64_t end);
/* Fork: `to`, without rows, refers to all blocks of `from`; its own have ordinary memory. */
segue_status sg_rows_share(struct sg_rows *to, const struct sg_rows *from, segue_error *err);
uint64_t sg_rows_bytes(const struct sg_rows *r);
/* Address of positions [from, to), which are held, if they follow each other in the memory of `host`; else NULL. Afterwards these
 * rows do not change: a block is copied before it is written to. */
const void *sg_rows_export(struct sg_rows *r, uint64_t from, uint64_t to);
/* For a unit's state_rows: exports, or with out NULL only asks. EUNSUPPORTED: there is no address, or `storage` is not `own`. */
segue_status sg_rows_pass(struct sg_rows *r, uint64_t from, uint64_t to, enum sg_storage storage, enum sg_storage own,
                          const char *unit, uint32_t slot, const void **out, segue_error *err);

#endif
