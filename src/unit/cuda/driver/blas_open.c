/* blas_open.c: opens cuBLASLt on a thread of its own, since loading the library takes as long as uploading a small model.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/driver/gpu.h"

static void *open_blas(void *arg)
{
    struct sg_unit *u = arg;
    cu_enter(u);
    cu_blas_open(&u->blas);
    cu_leave(u);
    return NULL;
}

/* Without a thread it is opened here. */
void cu_blas_begin(struct sg_unit *u)
{
    u->blas_opening = !pthread_create(&u->blas_thread, NULL, open_blas, u);
    if (!u->blas_opening) cu_blas_open(&u->blas);
}

void cu_blas_finish(struct sg_unit *u)
{
    if (u->blas_opening) pthread_join(u->blas_thread, NULL);
    u->blas_opening = 0;
}
