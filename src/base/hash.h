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

/* --- hash tables over the content of files: their keys are random, so that no file can contain texts chosen to collide --- */

void sg_random(void *out, size_t n);   /* n random bytes from the system, at most 256 */
/* SipHash-2-4 of n bytes. */
uint64_t sg_hash_keyed(const void *bytes, size_t n, const uint64_t key[2]);
/* Pair-multiply-shift (Thorup, "High Speed Hashing for Integers and Strings", 2015): any two different pairs collide with
 * probability 2^-32 for a random key. */
static inline uint32_t sg_hash_pair(uint32_t a, uint32_t b, const uint64_t key[3])
{
    return (uint32_t)(((key[0] + b) * (key[1] + a) + key[2]) >> 32);
}

/* Incremental SHA-256: begin, add any number of times, end. The state is that of libsodium, opaque
 * here. */
struct sg_sha256 { unsigned char state[128]; };
void sg_sha256_begin(struct sg_sha256 *s);
void sg_sha256_add(struct sg_sha256 *s, const void *bytes, size_t n);
void sg_sha256_end(struct sg_sha256 *s, char hex[65]);   /* 64 hex digits in lower case and a NUL */

#endif
