/* countdown.h: one in n, for the fault hooks of development builds.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_COUNTDOWN_H
#define SG_BASE_COUNTDOWN_H

#include <stdatomic.h>

/* 1 exactly when this call takes *left from 1 to 0; 0 stays 0. Any thread. */
static inline int sg_countdown(atomic_ullong *left)
{
    unsigned long long n = atomic_load(left);
    while (n && !atomic_compare_exchange_weak(left, &n, n - 1)) {}
    return n == 1;
}

#endif
