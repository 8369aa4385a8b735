/* stub_driver.c: replaces libcuda.so.1 in tests. Device memory is host memory, copies copy, kernels do nothing. Environment:
 *   SEGUE_STUB=old      the driver is too old          none     it has no GPU
 *              memory   all allocations fail           launch   all launches fail
 *              lost     synchronisation reports a lost GPU      lost:N   so does every call after the N-th launch
 *              once:N   the N-th call fails, no other  from:N   the N-th call and all after it fail
 *              late     copies and fills are executed when something waits for them
 *              apart    no peer access between GPUs    mapless  no tensor map can be made
 *              whole    the GPU cannot be partitioned
 *              graphs:N there is memory for N - 1 captured graphs
 *              alloc:N  allocations fail from the N-th on although memory is free, as if another process used it
 *   SEGUE_STUB_MB=N     memory of a GPU in MB; default 1024
 *   SEGUE_STUB_LOG=1    a line on stderr at the first launch
 * Functions that free never fail, so stub_alive counts leaks. Built with STUB_SHORT one required function is missing, with
 * STUB_PARTLESS all functions of green contexts, as in drivers before 12.4.
 * SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLD = 803, BAD_VALUE = 1, NO_MEMORY = 2, GONE = 719 };

static atomic_int alive, gone, crossings, graphs;
static atomic_long calls, launches, allocations;
static atomic_size_t used;

static int mode(const char *name)
{
    const char *set = getenv("SEGUE_STUB");
    return set && !strcmp(set, name);
}

/* N of "name:N"; 0: another mode. */
static long number(const char *name)
{
    const char *set = getenv("SEGUE_STUB");
    size_t n = strlen(name);
    return set && !strncmp(set, name, n) && set[n] == ':' ? atol(set + n + 1) : 0;
}

/* Launches by kernel name; kernels of equal names in several modules are one entry. */
static struct kernel {
    char name[40];
    atomic_int launches;
    unsigned blocks; /* of the last launch */
} kernels[512];
static int kernels_n;
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER; /* guards both */

static struct kernel *kernel_of(const char *name)
{
    pthread_mutex_lock(&kernels_lock);
    int i = 0;
    while (i < kernels_n && strcmp(kernels[i].name, name)) i++;
    if (i == kernels_n && i < 511) strncpy(kernels[kernels_n++].name, name, sizeof kernels[i].name - 1);
    pthread_mutex_unlock(&kernels_lock);
    return &kernels[i];
}

int stub_alive(void), stub_launches(void), stub_crossings(void), stub_launches_of(const char *name),
    stub_blocks_of(const char *name);
void stub_reset(void), stub_watch(void (*see)(const char *name, const void *args));
/* Executes training kernels, where it is linked in (emulate/emulate.cpp). */
__attribute__((weak)) void stub_emulate(const char *name, const unsigned *launch, const void *args);
static void (*watcher)(const char *name, const void *args);
void stub_watch(void (*see)(const char *name, const void *args)) { watcher = see; }
int stub_alive(void) { return alive; }
int stub_used_mb(void);
int stub_used_mb(void) { return (int)(used >> 20); }
int stub_launches(void) { return (int)launches; }
int stub_crossings(void) { return crossings; }
int stub_graphs(void) { return graphs; }
int stub_launches_of(const char *name) { return kernel_of(name)->launches; }
int stub_blocks_of(const char *name) { return (int)kernel_of(name)->blocks; }
void stub_reset(void)
{
    calls = launches = allocations = 0;
    gone = crossings = 0;
    for (int i = 0; i < kernels_n; i++) kernels[i].launches = 0;
}

/* What the GPU claims to be, from SEGUE_STUB_CARD="major,minor,shared memory of a block,multiprocessors"; an H100 by default. */
static int claim(int which)
{
    int v[4] = {9, 0, 232448, 132};
    const char *card = getenv("SEGUE_STUB_CARD");
    if (card && sscanf(card, "%d,%d,%d,%d", &v[0], &v[1], &v[2], &v[3]) != 4) abort();
    return v[which];
}

static size_t card_bytes(void)
{
    const char *mb = getenv("SEGUE_STUB_MB");
    return (size_t)(mb ? atol(mb) : 1024) << 20;
}

/* Called first by every function that may fail: 0, or the error that the mode requests. */
static int fault(void)
{
    calls++;
    if (number("lost") && gone) return GONE;
    if (number("once") == calls) return GONE;
    return number("from") && calls >= number("from") ? GONE : 0;
}

static int launch(void)
{
    if (!launches++ && getenv("SEGUE_STUB_LOG")) fprintf(stderr, "stub: launch\n");
    if (number("lost") && launches >= number("lost")) gone = 1;
    return mode("launch") || gone ? GONE : 0;
}

/* Header of an allocation of device memory, in the 64 bytes before it. */
struct block {
    size_t n;
    struct block *next;
};
static struct block *all_blocks;
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list above */

static int is_allocated(unsigned long long p, size_t n)
{
    int found = 0;
    pthread_mutex_lock(&blocks_lock);
    for (const struct block *r = all_blocks; r && !found; r = r->next) {
        unsigned long long begin = (unsigned long long)r + 64;
        found = p >= begin && p + n <= begin + r->n;
    }
    pthread_mutex_unlock(&blocks_lock);
    return found;
}

static int take(unsigned long long *p, size_t n)
{
    if (mode("memory") || (number("alloc") && ++allocations >= number("alloc")) || n > card_bytes() - used) return NO_MEMORY;
    struct block *block = calloc(1, n + 64);
    if (!block) return NO_MEMORY;
    if (stub_emulate) memset(block, 0xff, n + 64); /* not a number, until a kernel writes it */
    pthread_mutex_lock(&blocks_lock);
    *block = (struct block){n, all_blocks};
    all_blocks = block;
    pthread_mutex_unlock(&blocks_lock);
    used += n;
    alive++;
    *p = (unsigned long long)((char *)block + 64);
    return 0;
}

static void give(unsigned long long p)
{
    struct block *block = (struct block *)(void *)((char *)p - 64), **at = &all_blocks;
    pthread_mutex_lock(&blocks_lock);
    while (*at != block) at = &(*at)->next;
    *at = block->next;
    pthread_mutex_unlock(&blocks_lock);
    used -= block->n;
    alive--;
    free(block);
}

/* Copies and fills that mode "late" delays, in the order of the calls. */
enum { LATER = 4096 };
static struct pending {
    void *to;
    const void *from; /* NULL: a fill */
    size_t n;
    int value;
} pending[LATER];
static int later_n;
static pthread_mutex_t copy_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list above */

static void catch_up_now(void)
{
    for (int i = 0; i < later_n; i++) {
        if (pending[i].from) memcpy(pending[i].to, pending[i].from, pending[i].n);
        else memset(pending[i].to, pending[i].value, pending[i].n);
    }
    later_n = 0;
}

static void catch_up(void)
{
    pthread_mutex_lock(&copy_lock);
    catch_up_now();
    pthread_mutex_unlock(&copy_lock);
}

static void transfer(void *to, const void *from, size_t n, int value)
{
    pthread_mutex_lock(&copy_lock);
    if (later_n == LATER) catch_up_now();
    pending[later_n++] = (struct pending){to, from, n, value};
    if (!mode("late")) catch_up_now();
    pthread_mutex_unlock(&copy_lock);
}

/* Every stream has another address. */
static void *new_stream(void)
{
    static char streams[64];
    static unsigned n;
    alive++;
    return &streams[n++ % sizeof streams];
}

#define API(name, args, body) \
    int name args;            \
    int name args { int failed = fault(); if (failed) return failed; body return 0; }
#define FREES(name, args, body) \
    int name args;              \
    int name args { body return 0; }
#define UNUSED(x) (void)(x);

API(cuInit, (unsigned f), UNUSED(f) if (mode("old")) return OLD;)
API(cuDriverGetVersion, (int *v), *v = 12080;)
API(cuDeviceGetCount, (int *n), *n = mode("none") ? 0 : 2;)
API(cuDeviceGet, (int *card, int i), *card = i;)
API(cuDeviceGetName, (char *name, int cap, int card), UNUSED(card) strncpy(name, "stub", (size_t)cap);)
API(cuDeviceTotalMem_v2, (size_t * n, int card), UNUSED(card) *n = card_bytes();)
API(cuDeviceGetAttribute, (int *v, int which, int card),
    UNUSED(card) *v = which == 75   ? claim(0)
                      : which == 76 ? claim(1)
                      : which == 97 ? claim(2)
                      : which == 16 ? claim(3)
                                    : 4;)
API(cuDeviceCanAccessPeer, (int *can, int a, int b), UNUSED(a) UNUSED(b) *can = !mode("apart");)
API(cuDeviceGetUuid, (unsigned char *u, int card), UNUSED(card) for (int i = 0; i < 16; i++) u[i] = (unsigned char)i;)
API(cuDevicePrimaryCtxRetain, (void **c, int card), UNUSED(card) *c = &alive; alive++;)
FREES(cuDevicePrimaryCtxRelease_v2, (int card), UNUSED(card) alive--;)
FREES(cuCtxPushCurrent_v2, (void *c), UNUSED(c))
FREES(cuCtxPopCurrent_v2, (void **c), *c = NULL;)
API(cuModuleLoadData, (void **m, const void *image), UNUSED(image) *m = &alive; alive++;)
FREES(cuModuleUnload, (void *m), UNUSED(m) alive--;)
API(cuModuleGetFunction, (void **f, void *m, const char *name), UNUSED(m) *f = kernel_of(name);)
/* 8: dynamic shared memory, which a GPU refuses above its limit. */
API(cuFuncSetAttribute, (void *f, int which, int v), UNUSED(f) if (which == 8 && v > claim(2)) return BAD_VALUE;)
API(cuMemGetInfo_v2, (size_t * unused, size_t *all), *all = card_bytes(); *unused = *all - used;)
API(cuMemAlloc_v2, (unsigned long long *p, size_t n), return take(p, n);)
FREES(cuMemFree_v2, (unsigned long long p), catch_up(); give(p);)
API(cuMemHostAlloc, (void **p, size_t n, unsigned f), UNUSED(f) *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096); /* as
    whole pages */ if (!*p) return NO_MEMORY; memset(*p, 0, n); alive++;)
FREES(cuMemFreeHost, (void *p), catch_up(); free(p); alive--;)
API(cuMemHostGetDevicePointer_v2, (unsigned long long *p, void *h, unsigned f),
    UNUSED(f) *p = (unsigned long long)h;)
API(cuMemcpyHtoDAsync_v2, (unsigned long long to, const void *from, size_t n, void *s),
    UNUSED(s) transfer((void *)to, from, n, 0);)
API(cuMemcpyDtoHAsync_v2, (void *to, unsigned long long from, size_t n, void *s),
    UNUSED(s) transfer(to, (const void *)from, n, 0);)
struct end {
    size_t at_byte, at_line;
    int kind; /* 1: the host's memory, 2: the card's */
    char *host;
    unsigned long long card;
    void *array;
    size_t pitch;
};
struct lines {
    struct end from, to;
    size_t bytes, n;
};
static char *line(const struct end *e, size_t i) { return (e->kind == 1 ? e->host : (char *)e->card) + i * e->pitch; }
API(cuMemcpy2DAsync_v2, (const struct lines *l, void *s),
    UNUSED(s) if (l->from.pitch < l->bytes || l->to.pitch < l->bytes || l->from.kind + l->to.kind != 3) return BAD_VALUE;
    for (size_t i = 0; i < l->n; i++) transfer(line(&l->to, i), line(&l->from, i), l->bytes, 0);)
API(cuMemcpyDtoDAsync_v2, (unsigned long long to, unsigned long long from, size_t n, void *s),
    UNUSED(s) if (!is_allocated(to, n) || !is_allocated(from, n)) return BAD_VALUE;
    transfer((void *)to, (const void *)from, n, 0);)
API(cuMemcpyPeerAsync, (unsigned long long to, void *a, unsigned long long from, void *b, size_t n, void *s),
    UNUSED(a) UNUSED(b) UNUSED(s) crossings++; transfer((void *)to, (const void *)from, n, 0);)
API(cuCtxEnablePeerAccess, (void *c, unsigned f), UNUSED(c) UNUSED(f))
API(cuMemsetD8Async, (unsigned long long to, unsigned char v, size_t n, void *s),
    UNUSED(s) transfer((void *)to, NULL, n, v);)
API(cuCtxGetStreamPriorityRange, (int *least, int *greatest), *least = 0; *greatest = -5;)
API(cuStreamCreateWithPriority, (void **s, unsigned f, int p), UNUSED(f) UNUSED(p) *s = new_stream();)
FREES(cuStreamDestroy_v2, (void *s), UNUSED(s) alive--;)
API(cuStreamSynchronize, (void *s), UNUSED(s) catch_up(); if (mode("lost")) return GONE;)
API(cuStreamQuery, (void *s), UNUSED(s) if (mode("lost")) return GONE;)
API(cuEventCreate, (void **e, unsigned f), UNUSED(f) *e = &alive; alive++;)
FREES(cuEventDestroy_v2, (void *e), UNUSED(e) alive--;)
API(cuEventRecord, (void *e, void *s), UNUSED(e) UNUSED(s))
API(cuEventSynchronize, (void *e), UNUSED(e) catch_up(); if (mode("lost")) return GONE;)
API(cuEventQuery, (void *e), UNUSED(e))
API(cuStreamWaitEvent, (void *s, void *e, unsigned f), UNUSED(s) UNUSED(e) UNUSED(f))
API(cuCtxSynchronize, (void), catch_up();)
API(cuEventElapsedTime, (float *ms, void *a, void *b), UNUSED(a) UNUSED(b) *ms = 1;)
API(cuStreamBeginCapture_v2, (void *s, int m), UNUSED(s) UNUSED(m))
API(cuStreamEndCapture, (void *s, void **g), UNUSED(s) *g = &alive; alive++;)
API(cuGraphInstantiateWithFlags, (void **e, void *g, unsigned long long f), UNUSED(g) UNUSED(f)
    if (number("graphs") && graphs >= number("graphs") - 1) return NO_MEMORY; *e = &alive; alive++; graphs++;)
FREES(cuGraphDestroy, (void *g), UNUSED(g) alive--;)
FREES(cuGraphExecDestroy, (void *e), UNUSED(e) alive--; graphs--;)
API(cuGraphLaunch, (void *e, void *s), UNUSED(e) UNUSED(s) return launch();)
API(cuLaunchKernelEx, (const void *l, void *f, void **a, void **x),
    UNUSED(x) ((struct kernel *)f)->launches++;
    ((struct kernel *)f)->blocks = *(const unsigned *)l;
    /* Of the launch: blocks and threads in three dimensions, then dynamic shared memory. */
    if (((const unsigned *)l)[6] > (unsigned)claim(2)) return BAD_VALUE;
    if (((const unsigned *)l)[1] > 65535 || ((const unsigned *)l)[2] > 65535) return BAD_VALUE;
    if (watcher) watcher(((struct kernel *)f)->name, *a);
    if (stub_emulate) stub_emulate(((struct kernel *)f)->name, l, *a);
    return launch();)
/* The checks of the driver: 4-byte elements, up to five dimensions, strides in multiples of 16 bytes, boxes of at most 256, and
 * rows of at most 128 bytes with a swizzle of 128. */
static int is_map(const void *map, int type, unsigned rank, const void *p, const unsigned long long *dims,
                  const unsigned long long *strides, const unsigned *box, int swizzle)
{
    int good = !mode("mapless") && type == 3 && rank && rank <= 5 && (size_t)map % 64 == 0 && (size_t)p % 16 == 0;
    for (unsigned i = 0; good && i < rank; i++)
        good = dims[i] && box[i] && box[i] <= 256 && (i + 1 == rank || (strides[i] % 16 == 0 && strides[i] < 1ULL << 40));
    return good && (swizzle != 3 || box[0] * 4 <= 128);
}
API(cuTensorMapEncodeTiled,
    (void *map, int type, unsigned rank, void *p, const void *dims, const void *strides, const unsigned *box,
     const unsigned *steps, int interleave, int swizzle, int l2, int fill),
    UNUSED(steps) UNUSED(interleave) UNUSED(l2) UNUSED(fill)
    if (!is_map(map, type, rank, p, dims, strides, box, swizzle)) return BAD_VALUE;
    memset(map, 0, 128);)
#ifndef STUB_PARTLESS
API(cuDeviceGetDevResource, (int card, void *r, int type), UNUSED(card) UNUSED(r) UNUSED(type) return mode("whole") ? 801 : 0;)
/* The number of multiprocessors is word 24 of the resource. */
API(cuDevSmResourceSplitByCount, (void *parts, unsigned *n, const void *all, void *rest, unsigned f, unsigned least),
    UNUSED(all) UNUSED(f) *n = 1; ((unsigned *)parts)[24] = least; ((unsigned *)rest)[24] = 132 - least;)
API(cuDevResourceGenerateDesc, (void **desc, void *r, unsigned n), UNUSED(r) UNUSED(n) *desc = &alive;)
API(cuGreenCtxCreate, (void **g, void *desc, int card, unsigned f), UNUSED(desc) UNUSED(card) UNUSED(f) *g = &alive; alive++;)
FREES(cuGreenCtxDestroy, (void *g), UNUSED(g) alive--;)
API(cuGreenCtxStreamCreate, (void **s, void *g, unsigned f, int p), UNUSED(g) UNUSED(f) UNUSED(p) *s = new_stream();)
#endif
#ifndef STUB_SHORT
FREES(cuGetErrorName, (int r, const char **text), UNUSED(r) *text = "STUB_ERROR";)
#endif
