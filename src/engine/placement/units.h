/* units.h: an opened unit as the engine holds it: counted references, and the order in which threads enter
 * it. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_UNITS_H
#define SG_ENGINE_UNITS_H

#include <pthread.h>
#include <stdatomic.h>

#include "unit/unit.h"

struct sg_unit_waiter {
    struct sg_unit_waiter *next;
    uint32_t is_long;
};

struct segue_unit {
    atomic_uint references;
    struct sg_unit *unit;
    struct sg_unit_desc desc; /* as opened */
    pthread_mutex_t lock;     /* of the fields below */
    pthread_cond_t changed;
    struct sg_unit_waiter *first; /* who waits, first come first served; each node lives on its thread's stack */
    uint32_t running;      /* lanes in use, <= desc.lanes */
    uint32_t longs;        /* of them by long runs, < desc.lanes where there are several */
};

struct segue_unit *
sg_unit_share(struct segue_unit *u); /* one more reference; segue_unit_close gives it back */

/* Serve the unit that the other side names to it, until it closes. fd, a connected local socket, is taken over. */
segue_status sg_unit_serve(int fd, segue_error *err);

/* Wait for a lane; every call into the unit's table happens between enter and leave, but for get and put on a
 * state. cancel (may be NULL) is looked at while waiting: ECANCELED, and no lane is held. */
segue_status sg_unit_enter(struct segue_unit *u, const atomic_int *cancel, segue_error *err);
/* 1: entered. 0: somebody else works there or waits. */
int sg_unit_try_enter(struct segue_unit *u);
void sg_unit_leave(struct segue_unit *u);
/* The same for a run with a span of so many rows: of several lanes one stays free for those that are short, which pass by
 * the long ones that wait for another. */
segue_status sg_unit_enter_run(struct segue_unit *u, uint32_t rows, const atomic_int *cancel, segue_error *err);
void sg_unit_leave_run(struct segue_unit *u, uint32_t rows);

#endif
