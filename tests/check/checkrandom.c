/* checkrandom.c: random numbers, adversarial data, guarded memory. The same seed gives the same bytes on every
 * machine. Uses no library: the kernels alone are checked where there are none.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "check.h"

struct check_rng check_rng_of(uint64_t seed, const char *name, uint64_t index)
{
    uint64_t h = seed ^ UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (; *name; name++) h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return (struct check_rng){h ^ (index + 1) * UINT64_C(0x9e3779b97f4a7c15)};
}

uint64_t check_next(struct check_rng *r) /* splitmix64 */
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint32_t check_below(struct check_rng *r, uint32_t n)
{
    return n ? (uint32_t)((check_next(r) >> 32) * n >> 32) : 0;
}

uint32_t check_between(struct check_rng *r, uint32_t a, uint32_t b) { return a + check_below(r, b - a + 1); }

float check_uniform(struct check_rng *r) { return (float)(check_next(r) >> 40) * 0x1p-23f - 1.0f; }

/* Sum of twelve uniform numbers: close enough, and free of the libraries' logarithms. */
float check_normal(struct check_rng *r)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += check_uniform(r);
    return sum * 0.5f;
}

void check_fill(struct check_rng *r, float *x, size_t n, enum check_data kind, float scale)
{
    for (size_t i = 0; i < n; i++) {
        float v = check_normal(r);
        if (kind == CHECK_OUTLIERS && check_below(r, 50) == 0) v *= 100;
        if (kind == CHECK_TINY) v *= 1e-38f;
        if (kind == CHECK_ZEROS && check_below(r, 4)) v = 0;
        if (kind == CHECK_EQUAL) v = 1;
        x[i] = v * scale;
    }
}

enum { GUARD = 64, GUARD_BYTE = 0xa5 };

void *check_guard_new(struct check_guard *g, size_t n, size_t off)
{
    *g = (struct check_guard){sg_alloc_aligned(n + off + 2 * GUARD), n, off};
    if (!g->base) return NULL;
    memset(g->base, GUARD_BYTE, n + off + 2 * GUARD);
    return g->base + GUARD + off;
}

int check_guard_ok(const struct check_guard *g)
{
    for (size_t i = 0; i < GUARD + g->off; i++)
        if (g->base[i] != GUARD_BYTE) return 0;
    for (size_t i = GUARD + g->off + g->n; i < g->n + g->off + 2 * GUARD; i++)
        if (g->base[i] != GUARD_BYTE) return 0;
    return 1;
}

void check_guard_free(struct check_guard *g) { sg_free_aligned(g->base); }
