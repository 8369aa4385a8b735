/* pinned.c: heap of pinned host memory for the states of other units (struct sg_host_memory). GPU copy engines access it
 * directly, in parallel to the CPU. It is allocated in slabs, since pinning a page costs more than copying it; freed blocks
 * are kept in a list for reuse. Slabs are released when the unit is closed. SPDX-License-Identifier: MIT */
#include "unit/cuda/driver/gpu.h"

/* Slab size; max. size of all slabs; rounding of blocks; bytes of the header before each block. */
enum { SLAB_MB = 64, MAX_MB = 4096, GRAIN = 4096, HEAD = 64 };

/* Header of a block, in the HEAD bytes before the memory that is returned. */
struct cu_pinned_block {
    size_t bytes;                  /* with the header, a multiple of GRAIN */
    struct cu_pinned_block *next;  /* in the list of freed blocks */
};

/* Under the lock. 0: the limits are reached, or the driver cannot pin more. */
static int slab_add(struct sg_unit *u, size_t bytes)
{
    struct cu_pinned *h = &u->pinned;
    size_t size = bytes > (size_t)SLAB_MB << 20 ? bytes : (size_t)SLAB_MB << 20;
    void *p = NULL;
    if (h->slabs_n == CU_PINNED_SLABS || h->bytes + size > (size_t)MAX_MB << 20) return 0;
    cu_enter(u);
    cu_result r = u->d.host_alloc(&p, size, CU_HOST_MAPPED);
    cu_leave(u);
    if (r || !p) return 0;
    h->slabs[h->slabs_n++] = (struct cu_pinned_slab){p, size, 0};
    h->bytes += size;
    return 1;
}

/* Under the lock: takes a freed block that is large enough, but at most 1.5 times the requested size; NULL: there is none. */
static struct cu_pinned_block *find_free(struct cu_pinned *h, size_t bytes)
{
    for (struct cu_pinned_block **at = (struct cu_pinned_block **)&h->free; *at; at = &(*at)->next) {
        struct cu_pinned_block *p = *at;
        if (p->bytes < bytes || p->bytes > bytes + bytes / 2) continue;
        *at = p->next;
        return p;
    }
    return NULL;
}

/* `take` of struct sg_host_memory. A freed block first, then the end of the newest slab, then a new slab. What remains of older
 * slabs is lost, at most one block size each. */
static void *pinned_alloc(void *owner, size_t bytes)
{
    struct sg_unit *u = owner;
    struct cu_pinned *h = &u->pinned;
    if (bytes > (size_t)MAX_MB << 20) return NULL;
    bytes = (bytes + HEAD + GRAIN - 1) / GRAIN * GRAIN;
    pthread_mutex_lock(&h->lock);
    struct cu_pinned_block *p = find_free(h, bytes);
    /* Twice: the second time with a new slab. */
    for (int tries = 0; !p && tries < 2; tries++) {
        struct cu_pinned_slab *last = h->slabs_n ? &h->slabs[h->slabs_n - 1] : NULL;
        if (last && last->bytes - last->used >= bytes) {
            p = (struct cu_pinned_block *)(void *)(last->memory + last->used);
            last->used += bytes;
            p->bytes = bytes;
        } else if (!slab_add(u, bytes)) {
            break;
        }
    }
    pthread_mutex_unlock(&h->lock);
    return p ? (unsigned char *)p + HEAD : NULL;
}

/* `leave` of struct sg_host_memory. Waits for pending copies, since the next owner of the block writes to it. */
static void pinned_free(void *owner, void *memory)
{
    struct sg_unit *u = owner;
    struct cu_pinned_block *p = (struct cu_pinned_block *)(void *)((unsigned char *)memory - HEAD);
    (void)cu_copies_wait(u, NULL);
    pthread_mutex_lock(&u->pinned.lock);
    p->next = u->pinned.free;
    u->pinned.free = p;
    pthread_mutex_unlock(&u->pinned.lock);
}

void cu_pinned_open(struct sg_unit *u)
{
    pthread_mutex_init(&u->pinned.lock, NULL);
    u->pinned.memory = (struct sg_host_memory){.owner = u, .take = pinned_alloc, .leave = pinned_free};
}

/* All blocks are freed by then: states that used them do not outlive the unit. */
void cu_pinned_close(struct sg_unit *u)
{
    for (uint32_t i = 0; i < u->pinned.slabs_n; i++) u->d.host_free(u->pinned.slabs[i].memory);
    u->pinned.slabs_n = 0;
}

const struct sg_host_memory *cu_host_memory(struct sg_unit *u) { return &u->pinned.memory; }
