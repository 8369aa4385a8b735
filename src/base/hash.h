/* hash.h: checksums (XXH3-128, fast) and trusted hashes (SHA-256, by libsodium).
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_HASH_H
#define SG_BASE_HASH_H

#include "base/err.h"

struct sg_hash { uint64_t lo, hi; };
struct sg_hash sg_hash_bytes(const void *bytes, size_t n, uint64_t seed);
/* Fold b into a; not commutative. */
struct sg_hash sg_hash_join(struct sg_hash a, struct sg_hash b);
void sg_hash_hex(struct sg_hash h, char out[33]);

struct sg_sha256 { unsigned char state[128]; };
void sg_sha256_begin(struct sg_sha256 *s);
void sg_sha256_add(struct sg_sha256 *s, const void *bytes, size_t n);
void sg_sha256_end(struct sg_sha256 *s, char hex[65]);

#endif
