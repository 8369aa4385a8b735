/* hash.h: XXH3-128 for checksums and cache keys (fast, no protection against forged input) and
 * SHA-256 for downloads.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_HASH_H
#define SG_BASE_HASH_H

#include <stdatomic.h>

#include "base/err.h"

/* A 128-bit value; compare both halves. */
struct sg_hash { uint64_t lo, hi; };
struct sg_hash sg_hash_bytes(const void *bytes, size_t n, uint64_t seed);
/* Combine two hashes. The order matters: join(a, b) differs from join(b, a). */
struct sg_hash sg_hash_join(struct sg_hash a, struct sg_hash b);
/* The hash of bytes [0, size) of an open file, read piece by piece without mapping it: equal to sg_hash_bytes of them with
 * this seed. ECANCELED: *stop became 1. EIO: the file is shorter or cannot be read; what names it in the message. */
segue_status sg_hash_file(struct sg_hash *out, int fd, uint64_t size, uint64_t seed, const char *what, const atomic_int *stop,
                          segue_error *err);
void sg_hash_hex(struct sg_hash h, char out[33]);   /* 32 hex digits, hi first, and a NUL */

/* Incremental SHA-256: begin, add any number of times, end. The state is that of libsodium, opaque
 * here. */
struct sg_sha256 { unsigned char state[128]; };
void sg_sha256_begin(struct sg_sha256 *s);
void sg_sha256_add(struct sg_sha256 *s, const void *bytes, size_t n);
void sg_sha256_end(struct sg_sha256 *s, char hex[65]);   /* 64 hex digits in lower case and a NUL */

#endif
