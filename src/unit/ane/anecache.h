/* anecache.h: what the unit keeps between starts, in FOLDER/ane: an entry KEY.ENDING is a head and its bytes. Endings:
 * "weights" (a part's weights in fp16, anepart.c), "program" (a text that was compiled: its key has the text, the weights,
 * the profile and the compiler), "packed" (weights as the software engine reads them, npu_packed.c), "sources" (the hashes
 * of the model's bytes, anepart.c; it is no work saved, so hits, misses and written do not count it). A name proves
 * nothing: every byte is held against the head's hash, and whatever does not fit is refused and replaced. An entry that was
 * found whole gets a seal, KEY.ENDING.seal, with its stamp (base/file.h): while that stays, and is exact, the bytes are those
 * that were looked at. One writer at a time; the entries used longest ago go first (base/store.h). One thread writes, others
 * may read the figures. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_ANEKEEP_H
#define SG_UNIT_ANE_ANEKEEP_H

#include <stdatomic.h>

#include "base/file.h"
#include "base/hash.h"

struct sg_ane_cache {
    char *folder;
    uint64_t most;                       /* bytes of all entries */
    atomic_uint_fast64_t hits, misses, refused, written, sealed; /* sealed: hits whose bytes were not looked at again */
    int young_too;                       /* tests: a seal need not wait until an entry's date is SG_FILE_ID_SETTLE_S old */
    atomic_int told;                     /* 1: why holds what was refused or could not be kept first; it then stays */
    char why[508];
};
/* Of the folder given to compile. EMEMORY. */
segue_status sg_ane_cache_open(struct sg_ane_cache **out, const char *folder, uint64_t most, segue_error *err);
void sg_ane_cache_close(struct sg_ane_cache *k);

struct sg_ane_cache_entry {
    struct sg_map map;
    const uint8_t *data;                 /* [bytes], at a multiple of 64; NULL: nothing */
    size_t bytes;
    struct sg_hash hash;                 /* of these bytes */
};
/* 1: found, and every byte is as it was written. k NULL: 0. */
int sg_ane_cache_find(struct sg_ane_cache *k, struct sg_hash key, const char *ending, struct sg_ane_cache_entry *out);
void sg_ane_cache_entry_close(struct sg_ane_cache_entry *e);

struct sg_ane_piece {
    const void *data;
    size_t bytes;
};
/* The pieces one after the other as an entry. What cannot be written is noted in why and is no failure. k NULL:
 * nothing. */
void sg_ane_cache_write(struct sg_ane_cache *k, struct sg_hash key, const char *ending, const struct sg_ane_piece *pieces,
                       uint32_t n);

/* A key grows by what it must tell apart. */
struct sg_hash sg_ane_key(struct sg_hash key, const void *bytes, size_t n);

#endif
