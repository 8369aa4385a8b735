/* countdown.h: fires once on the n-th call. Used by the fault injection of development builds.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_COUNTDOWN_H
#define SG_BASE_COUNTDOWN_H

#include <stdatomic.h>

/* Decrement *left unless it is 0. Returns 1 only for the call that takes it from 1 to 0.
 * Thread-safe. */
static inline int sg_countdown(atomic_ullong *left)
{
    unsigned long long n = atomic_load(left);
    while (n && !atomic_compare_exchange_weak(left, &n, n - 1)) {}
    return n == 1;
}

#endif
