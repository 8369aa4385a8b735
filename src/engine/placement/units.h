/* units.h: an opened unit as the engine holds it: reference count, and the queue of threads that wait to use it.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_UNITS_H
#define SG_ENGINE_UNITS_H

#include <pthread.h>
#include <stdatomic.h>

#include "unit/unit.h"

/* A thread that waits for a lane; on its stack. */
struct sg_unit_waiter {
    struct sg_unit_waiter *next;
    uint32_t is_long; /* 1: for a run of more than desc.long_rows tokens */
};

struct segue_unit {
    atomic_uint references;
    struct sg_unit *unit;     /* owned */
    struct sg_unit_desc desc; /* as reported when it was opened */
    pthread_mutex_t lock;     /* guards the fields below */
    pthread_cond_t changed;
    struct sg_unit_waiter *first; /* in order of arrival */
    uint32_t running;             /* lanes in use, at most desc.lanes */
    uint32_t long_running;        /* of them by long runs, less than desc.lanes when there are several lanes */
};

/* Adds a reference, which segue_unit_close releases. */
struct segue_unit *sg_unit_share(struct segue_unit *u);

/* 1: a unit of the list that may be used without being named: present, real, validated on a device. */
int sg_unit_unnamed(const char *spec);

/* Child process of the unit `proc`: opens the unit that the peer names and serves it until the peer closes. fd: a connected
 * local socket, closed by this call. */
segue_status sg_unit_serve(int fd, segue_error *err);

/* Waits for a lane. Every call into the unit's table happens between enter and leave, except get and put on a state.
 * ECANCELED: *cancel was set while waiting; no lane is held. cancel may be NULL. */
segue_status sg_unit_enter(struct segue_unit *u, const atomic_int *cancel, segue_error *err);
/* 1: entered. 0: no lane is free, or another thread waits. */
int sg_unit_try_enter(struct segue_unit *u);
void sg_unit_leave(struct segue_unit *u);
/* The same for a run whose longest span has `rows` tokens. One of several lanes is reserved for short runs (decode), which
 * may overtake waiting long ones (prefill). */
segue_status sg_unit_enter_run(struct segue_unit *u, uint32_t rows, const atomic_int *cancel, segue_error *err);
void sg_unit_leave_run(struct segue_unit *u, uint32_t rows);

#endif
