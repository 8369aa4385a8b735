/* deadline.h: waiting for a condition until a time of the monotonic clock. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_DEADLINE_H
#define SG_ENGINE_DEADLINE_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* macOS has no clock attribute for condition variables. It uses the real-time clock, so a clock change shifts a deadline. */
#if defined(__APPLE__)
#define SG_DEADLINE_CLOCK CLOCK_REALTIME
static inline void sg_cond_init(pthread_cond_t *c) { pthread_cond_init(c, NULL); }
#else
#define SG_DEADLINE_CLOCK CLOCK_MONOTONIC
static inline void sg_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
}
#endif

/* *until = now + timeout_ns, which is limited to a year. */
static inline void sg_deadline(struct timespec *until, uint64_t timeout_ns)
{
    const uint64_t second = 1000000000u, year = 365 * 86400 * second;
    clock_gettime(SG_DEADLINE_CLOCK, until);
    uint64_t ns = (timeout_ns < year ? timeout_ns : year) + (uint64_t)until->tv_nsec;
    until->tv_sec += (time_t)(ns / second);
    until->tv_nsec = (long)(ns % second);
}

/* 1: the time is up. */
static inline int sg_cond_wait(pthread_cond_t *c, pthread_mutex_t *lock, const struct timespec *until)
{
    return pthread_cond_timedwait(c, lock, until) != 0;
}

#endif
