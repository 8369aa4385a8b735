/* nvml.c: energy that the GPU has used, from NVML. The library is opened at the first query and closed with the unit. The GPU
 * is identified by its UUID, because NVML and CUDA number GPUs differently. SPDX-License-Identifier: MIT */
#include "unit/cuda/driver/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int load_symbols(struct cu_nvml *n)
{
    void *found;
#define X(member, symbol, args)        \
    found = dlsym(n->library, symbol); \
    if (!found) return 0;              \
    memcpy(&n->member, &found, sizeof found);
    CU_NVML(X)
#undef X
    return 1;
}

/* nvmlShutdown only if the GPU was found, which implies nvmlInit. */
void cu_nvml_close(struct cu_nvml *n)
{
    if (n->device) n->stop();
    if (n->library) dlclose(n->library);
    n->library = n->device = NULL;
}

/* Finds the GPU by its UUID, written as NVML expects it: GPU-8-4-4-4-12 hexadecimal digits. 1: n->device is set. */
static int find_gpu(struct cu_nvml *n, const unsigned char *uuid)
{
    char text[48] = "GPU-";
    for (int i = 0, at = 4; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text[at++] = '-';
        at += snprintf(text + at, 3, "%02x", uuid[i]);
    }
    if (n->init()) return 0;
    if (!n->get(text, &n->device) && n->device) return 1;
    n->stop();
    n->device = NULL;
    return 0;
}

/* 1: the library is loaded and the GPU was found. */
static int nvml_open(struct cu_nvml *n, const unsigned char *uuid)
{
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (n->library && load_symbols(n) && find_gpu(n, uuid)) return 1;
    cu_nvml_close(n);
    return 0;
}

/* A failed open is repeated with the next query: the library may be busy, and queries are rare. */
segue_status cu_energy(struct sg_unit *u, segue_energy *out, segue_error *err)
{
    unsigned char uuid[16] = {0};
    unsigned long long mj = 0;
    struct cu_nvml *n = &u->nvml;
    pthread_mutex_lock(&u->nvml_lock);
    int open = n->device || (!u->d.uuid(uuid, u->device) && nvml_open(n, uuid)), counts = open && !n->energy(n->device, &mj);
    pthread_mutex_unlock(&u->nvml_lock);
    if (!open)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "measure energy: unit cuda: NVML is not installed or does not list "
                                                  "this GPU; install it");
    if (!counts) return sg_fail(err, SEGUE_EUNSUPPORTED, "measure energy: unit cuda: this GPU has no energy counter; use another "
                                                  "meter");
    out->joules = (double)mj * 1e-3;
    snprintf(out->meter, sizeof out->meter, "nvml");
    return SEGUE_OK;
}
