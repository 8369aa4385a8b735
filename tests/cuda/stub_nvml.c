/* stub_nvml.c: replaces libnvidia-ml.so.1 in tests: one GPU with the UUID of the stub driver that uses 50 W.
 * SEGUE_STUB_NVML=deaf: it has no energy counter.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int started;

int nvmlInit_v2(void), nvmlShutdown(void), nvmlDeviceGetHandleByUUID(const char *uuid, void **card),
    nvmlDeviceGetTotalEnergyConsumption(void *card, unsigned long long *mj);

int nvmlInit_v2(void)
{
    started++;
    return 0;
}

int nvmlShutdown(void) { return --started < 0; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **card)
{
    *card = &started;
    return !started || strcmp(uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") != 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void *card, unsigned long long *mj)
{
    const char *set = getenv("SEGUE_STUB_NVML");
    if (card != &started || (set && !strcmp(set, "deaf"))) return 3;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *mj = (unsigned long long)now.tv_sec * 50000 + (unsigned long long)now.tv_nsec / 20000;
    return 0;
}
