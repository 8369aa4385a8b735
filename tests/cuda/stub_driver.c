/* stub_driver.c: stands in for libcuda.so.1 in tests: memory is the host's, copies copy, kernels do nothing.
 * The environment variable SEGUE_STUB makes it fail: old (driver), none (no GPU), memory (the card is full),
 * launch (every launch fails), lost (launches work, waiting finds the GPU gone). Built with STUB_SHORT it
 * lacks a function. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

enum { OLD = 803, NO_MEMORY = 2, LAUNCH = 719, LOST = 719, CARD_BYTES = 1 << 30 };

static int alive;

static int mode(const char *name)
{
    const char *set = getenv("SEGUE_STUB");
    return set && !strcmp(set, name);
}

int stub_alive(void);
int stub_alive(void) { return alive; }

#define API(name, args, body) \
    int name args;            \
    int name args { body return 0; }
#define UNUSED(x) (void)(x);

API(cuInit, (unsigned f), UNUSED(f) if (mode("old")) return OLD;)
API(cuDriverGetVersion, (int *v), *v = 12080;)
API(cuDeviceGetCount, (int *n), *n = mode("none") ? 0 : 1;)
API(cuDeviceGet, (int *card, int i), *card = i;)
API(cuDeviceGetName, (char *name, int cap, int card), UNUSED(card) strncpy(name, "stub", (size_t)cap);)
API(cuDeviceTotalMem_v2, (size_t * n, int card), UNUSED(card) *n = CARD_BYTES;)
API(cuDeviceGetAttribute, (int *v, int which, int card),
    UNUSED(card) *v = which == 75   ? 9
                      : which == 76 ? 0
                      : which == 97 ? 232448
                                    : 4;)
API(cuDevicePrimaryCtxRetain, (void **c, int card), UNUSED(card) *c = &alive; alive++;)
API(cuDevicePrimaryCtxRelease_v2, (int card), UNUSED(card) alive--;)
API(cuCtxPushCurrent_v2, (void *c), UNUSED(c))
API(cuCtxPopCurrent_v2, (void **c), *c = NULL;)
API(cuModuleLoadData, (void **m, const void *image), UNUSED(image) *m = &alive; alive++;)
API(cuModuleUnload, (void *m), UNUSED(m) alive--;)
API(cuModuleGetFunction, (void **f, void *m, const char *name), UNUSED(m) UNUSED(name) *f = &alive;)
API(cuFuncSetAttribute, (void *f, int which, int v), UNUSED(f) UNUSED(which) UNUSED(v))
API(cuMemGetInfo_v2, (size_t * unused, size_t *all), *unused = *all = CARD_BYTES;)
API(cuMemAlloc_v2, (unsigned long long *p, size_t n), if (mode("memory")) return NO_MEMORY;
    *p = (unsigned long long)calloc(1, n); alive++;)
API(cuMemFree_v2, (unsigned long long p), free((void *)p); alive--;)
API(cuMemHostAlloc, (void **p, size_t n, unsigned f), UNUSED(f) *p = calloc(1, n); alive++;)
API(cuMemFreeHost, (void *p), free(p); alive--;)
API(cuMemHostGetDevicePointer_v2, (unsigned long long *p, void *h, unsigned f),
    UNUSED(f) *p = (unsigned long long)h;)
API(cuMemcpyHtoDAsync_v2, (unsigned long long to, const void *from, size_t n, void *s),
    UNUSED(s) memcpy((void *)to, from, n);)
API(cuMemcpyDtoHAsync_v2, (void *to, unsigned long long from, size_t n, void *s),
    UNUSED(s) memcpy(to, (const void *)from, n);)
API(cuMemcpyDtoDAsync_v2, (unsigned long long to, unsigned long long from, size_t n, void *s),
    UNUSED(s) memcpy((void *)to, (const void *)from, n);)
API(cuMemsetD8Async, (unsigned long long to, unsigned char v, size_t n, void *s),
    UNUSED(s) memset((void *)to, v, n);)
API(cuCtxGetStreamPriorityRange, (int *least, int *greatest), *least = 0; *greatest = -5;)
API(cuStreamCreateWithPriority, (void **s, unsigned f, int p), UNUSED(f) UNUSED(p) *s = &alive; alive++;)
API(cuStreamDestroy_v2, (void *s), UNUSED(s) alive--;)
API(cuStreamSynchronize, (void *s), UNUSED(s) if (mode("lost")) return LOST;)
API(cuStreamQuery, (void *s), UNUSED(s) if (mode("lost")) return LOST;)
API(cuEventCreate, (void **e, unsigned f), UNUSED(f) *e = &alive; alive++;)
API(cuEventDestroy_v2, (void *e), UNUSED(e) alive--;)
API(cuEventRecord, (void *e, void *s), UNUSED(e) UNUSED(s))
API(cuEventSynchronize, (void *e), UNUSED(e))
API(cuEventQuery, (void *e), UNUSED(e))
API(cuStreamWaitEvent, (void *s, void *e, unsigned f), UNUSED(s) UNUSED(e) UNUSED(f))
API(cuCtxSynchronize, (void), )
API(cuEventElapsedTime, (float *ms, void *a, void *b), UNUSED(a) UNUSED(b) *ms = 1;)
API(cuStreamBeginCapture_v2, (void *s, int m), UNUSED(s) UNUSED(m))
API(cuStreamEndCapture, (void *s, void **g), UNUSED(s) *g = &alive; alive++;)
API(cuGraphInstantiateWithFlags, (void **e, void *g, unsigned long long f), UNUSED(g) UNUSED(f) *e = &alive;
    alive++;)
API(cuGraphDestroy, (void *g), UNUSED(g) alive--;)
API(cuGraphExecDestroy, (void *e), UNUSED(e) alive--;)
API(cuGraphLaunch, (void *e, void *s), UNUSED(e) UNUSED(s) if (mode("launch")) return LAUNCH;)
API(cuLaunchKernelEx, (const void *l, void *f, void **a, void **x),
    UNUSED(l) UNUSED(f) UNUSED(a) UNUSED(x) if (mode("launch")) return LAUNCH;)
#ifndef STUB_SHORT
API(cuGetErrorName, (int r, const char **text), UNUSED(r) *text = "STUB_ERROR";)
#endif
