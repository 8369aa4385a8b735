/* nvml.c: energy that the GPU has used, from NVML. The library is opened at the first query and closed with the unit. The GPU
 * is identified by its UUID, because NVML and CUDA number GPUs differently. SPDX-License-Identifier: MIT */
#include "unit/cuda/driver/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int find_all(struct cu_nvml *n)
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

void cu_nvml_close(struct cu_nvml *n)
{
    if (n->card) n->stop();
    if (n->library) dlclose(n->library);
    n->library = n->card = NULL;
}

static int find_card(struct cu_nvml *n, const unsigned char *uuid)
{
    char text[48] = "GPU-";
    for (int i = 0, at = 4; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text[at++] = '-';
        at += snprintf(text + at, 3, "%02x", uuid[i]);
    }
    if (n->init()) return 0;
    if (!n->get(text, &n->card) && n->card) return 1;
    n->stop();
    n->card = NULL;
    return 0;
}

static int nvml_open(struct cu_nvml *n, const unsigned char *uuid)
{
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (n->library && find_all(n) && find_card(n, uuid)) return 1;
    cu_nvml_close(n);
    return 0;
}

segue_status cu_energy(struct sg_unit *u, double *joules, segue_error *err)
{
    unsigned char uuid[16] = {0};
    unsigned long long mj = 0;
    struct cu_nvml *n = &u->nvml;
    pthread_mutex_lock(&u->nvml_lock);
    int there = n->card || (!u->d.uuid(uuid, u->card) && nvml_open(n, uuid)), counts = there && !n->energy(n->card, &mj);
    pthread_mutex_unlock(&u->nvml_lock);
    if (!there)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "energy not measured: unit cuda: NVML is not there or does not know the GPU");
    if (!counts) return sg_fail(err, SEGUE_EUNSUPPORTED, "energy not measured: unit cuda: this GPU does not count it");
    *joules = (double)mj * 1e-3;
    return SEGUE_OK;
}
