/* hash.c: wrappers of xxHash and libsodium; see hash.h.
 * SPDX-License-Identifier: MIT */
#include "base/hash.h"

#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"

static_assert(sizeof(crypto_hash_sha256_state) <= sizeof(struct sg_sha256), "sg_sha256 holds libsodium's state");

struct sg_hash sg_hash_bytes(const void *bytes, size_t n, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(bytes, n, seed);
    return (struct sg_hash){h.low64, h.high64};
}

/* Hashes the 32 bytes of both values. */
struct sg_hash sg_hash_join(struct sg_hash a, struct sg_hash b)
{
    struct sg_hash pair[2] = {a, b};
    return sg_hash_bytes(pair, sizeof pair, 1);
}

segue_status sg_hash_file(struct sg_hash *out, int fd, uint64_t size, uint64_t seed, const char *what, const atomic_int *stop,
                          segue_error *err)
{
    enum { PIECE = 1 << 20 };
    uint8_t *piece = sg_alloc(PIECE);
    XXH3_state_t *state = XXH3_createState();
    segue_status s = piece && state ? SEGUE_OK : sg_no_memory(what, PIECE, err);
    if (s == SEGUE_OK) XXH3_128bits_reset_withSeed(state, seed);
    for (uint64_t at = 0; at < size && s == SEGUE_OK;) {
        ssize_t n = pread(fd, piece, size - at < PIECE ? (size_t)(size - at) : PIECE, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            s = sg_fail(err, SEGUE_EIO, "hash file: %s: %s; check the disk", what,
                        n ? strerror(errno) : "the file became shorter");
        else if (stop && atomic_load(stop))
            s = sg_fail(err, SEGUE_ECANCELED, "hash file: %s: canceled", what);
        else
            XXH3_128bits_update(state, piece, (size_t)n);
        at += n > 0 ? (uint64_t)n : 0;
    }
    if (s == SEGUE_OK) {
        XXH128_hash_t h = XXH3_128bits_digest(state);
        *out = (struct sg_hash){h.low64, h.high64};
    }
    XXH3_freeState(state);
    sg_free(piece);
    return s;
}

/* getentropy fails only on systems without a random generator; then the clock and addresses are used instead. */
void sg_random(void *out, size_t n)
{
    if (!getentropy(out, n)) return;
    uint64_t x = sg_now_ns() ^ (uint64_t)(uintptr_t)&n;
    for (size_t i = 0; i < n; i++) {
        x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u + i;
        ((uint8_t *)out)[i] = (uint8_t)(x >> 56);
    }
}

uint64_t sg_hash_keyed(const void *bytes, size_t n, const uint64_t key[2])
{
    static_assert(crypto_shorthash_KEYBYTES == 16 && crypto_shorthash_BYTES == 8, "SipHash has a key of 16 bytes");
    uint64_t h;
    crypto_shorthash((unsigned char *)&h, bytes, n, (const unsigned char *)key);
    return h;
}

void sg_hash_hex(struct sg_hash h, char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.hi, (unsigned long long)h.lo);
}

/* The state is copied in and out of s because libsodium's type has an alignment that struct
 * sg_sha256 does not guarantee. */
void sg_sha256_begin(struct sg_sha256 *s)
{
    crypto_hash_sha256_state st;
    crypto_hash_sha256_init(&st);
    memcpy(s->state, &st, sizeof st);
}

void sg_sha256_add(struct sg_sha256 *s, const void *bytes, size_t n)
{
    crypto_hash_sha256_state st;
    memcpy(&st, s->state, sizeof st);
    crypto_hash_sha256_update(&st, bytes, n);
    memcpy(s->state, &st, sizeof st);
}

void sg_sha256_end(struct sg_sha256 *s, char hex[65])
{
    crypto_hash_sha256_state st;
    unsigned char digest[crypto_hash_sha256_BYTES];
    memcpy(&st, s->state, sizeof st);
    crypto_hash_sha256_final(&st, digest);
    for (size_t i = 0; i < sizeof digest; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}
