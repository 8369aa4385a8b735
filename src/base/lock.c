/* lock.c: see lock.h.
 * SPDX-License-Identifier: MIT */
#include "base/lock.h"

#include "base/mem.h"

segue_status sg_lock_init(pthread_mutex_t *lock, pthread_cond_t *changed, const char *what, segue_error *err)
{
    if (pthread_mutex_init(lock, NULL)) return sg_no_memory(what, sizeof *lock, err);
    if (!pthread_cond_init(changed, NULL)) return SEGUE_OK;
    pthread_mutex_destroy(lock);
    return sg_no_memory(what, sizeof *changed, err);
}

void sg_lock_destroy(pthread_mutex_t *lock, pthread_cond_t *changed)
{
    pthread_cond_destroy(changed);
    pthread_mutex_destroy(lock);
}
