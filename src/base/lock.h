/* lock.h: a mutex with the condition that is signalled when what it guards changes.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_LOCK_H
#define SG_BASE_LOCK_H

#include <pthread.h>

#include "base/err.h"

/* Initialises both or none. EMEMORY; what: the owner, for the error. */
segue_status sg_lock_init(pthread_mutex_t *lock, pthread_cond_t *changed, const char *what, segue_error *err);
void sg_lock_destroy(pthread_mutex_t *lock, pthread_cond_t *changed);

#endif
