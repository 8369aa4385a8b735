/* anecache.h: cache of the unit `ane` between starts, in FOLDER/ane. An entry is a file KEY.ENDING: a header and its data.
 * Endings:
 *   "weights"   fp16 weights of a part (anepart.c)
 *   "program"   text of a program that was compiled (anepart.c)
 *   "packed"    weights in the layout of the software NPU (npu/npu_packed.c)
 *   "sources"   hashes of the model's tensors (anepart.c); not counted in hits, misses and written
 * Names are not trusted: the header has the key and a hash of the data, and an entry that does not match is refused and written
 * again. A verified entry gets a stamp file KEY.ENDING.seal with the identity of the file (base/file.h); while that identity is
 * unchanged, the data is not hashed again.
 *
 * One thread finds and writes; other threads may read the counters. Between processes a lock allows one writer at a time.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_ANECACHE_H
#define SG_UNIT_ANE_ANECACHE_H

#include <stdatomic.h>

#include "base/file.h"
#include "base/hash.h"

struct sg_ane_cache {
    char *folder;
    uint64_t bytes_max;                  /* of all entries together; the least recently used are evicted */
    atomic_uint_fast64_t hits, misses;   /* of sg_ane_cache_find */
    atomic_uint_fast64_t refused;        /* entries with a fault; they are misses too */
    atomic_uint_fast64_t written;
    atomic_uint_fast64_t verified;       /* hits whose stamp was valid: the data was not hashed again */
    int verify_young;                    /* for tests: 1 = write a stamp although the entry is younger than SG_FILE_ID_SETTLE_S */
    atomic_int has_problem;              /* 1: `why` is written and does not change any more */
    char why[508];                       /* first entry that was refused or could not be written, and the reason */
};
/* folder: the cache folder given to compile. Creates nothing. EMEMORY. */
segue_status sg_ane_cache_open(struct sg_ane_cache **out, const char *folder, uint64_t bytes_max, segue_error *err);
void sg_ane_cache_close(struct sg_ane_cache *k);

/* An entry that was found, mapped read-only. */
struct sg_ane_cache_entry {
    struct sg_map map;
    const uint8_t *data;                 /* [bytes], aligned to 64 bytes; NULL: none */
    size_t bytes;
    struct sg_hash hash;                 /* of the data */
};
/* 1: found, with the data that was written. 0: *out is empty. k NULL: 0. */
int sg_ane_cache_find(struct sg_ane_cache *k, struct sg_hash key, const char *ending, struct sg_ane_cache_entry *out);
void sg_ane_cache_entry_close(struct sg_ane_cache_entry *e);

struct sg_ane_piece {
    const void *data;
    size_t bytes;
};
/* Writes the pieces, one after the other, as one entry. A failure is recorded in `why`, not returned: the next start does the
 * work again. k NULL: nothing is written. */
void sg_ane_cache_write(struct sg_ane_cache *k, struct sg_hash key, const char *ending, const struct sg_ane_piece *pieces,
                       uint32_t n);

/* A key that also depends on these n bytes. */
struct sg_hash sg_ane_key(struct sg_hash key, const void *bytes, size_t n);

#endif
