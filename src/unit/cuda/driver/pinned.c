/* pinned.c: pinned memory of the host for states of other units (struct sg_host_memory): the card's copy engines read and
 * write it without a copy in between, beside whatever the processor does. Taken in slabs, because pinning a page costs more
 * than copying it; pieces that were given back serve again. Nothing is unpinned before the unit closes.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/cu.h"

/* What is gathered before a copy begins: little where the link is at rest. */
enum { FIRST_BYTES = 3 << 20, MOVE_BYTES = 32 << 20 };
enum { PITCH_MOST = 1 << 30, SLAB_MB = 64, ALL_MB = 4096, GRAIN = 4096, HEAD = 64 };

struct piece { /* HEAD bytes in front of what is given out */
    size_t bytes;
    struct piece *next;
};

static int slab_add(struct sg_unit *u, size_t bytes)
{
    struct cu_host *h = &u->pinned;
    size_t size = bytes > (size_t)SLAB_MB << 20 ? bytes : (size_t)SLAB_MB << 20;
    void *p = NULL;
    if (h->slabs_n == CU_HOST_SLABS || h->bytes + size > (size_t)ALL_MB << 20) return 0;
    cu_enter(u);
    cu_result r = u->d.host_alloc(&p, size, CU_HOST_MAPPED);
    cu_leave(u);
    if (r || !p) return 0;
    h->slabs[h->slabs_n++] = (struct cu_host_slab){p, size, 0};
    h->bytes += size;
    return 1;
}

/* Under the lock: from the pieces that came back, where one is not much too large. */
static struct piece *again(struct cu_host *h, size_t bytes)
{
    for (struct piece **at = (struct piece **)&h->free; *at; at = &(*at)->next) {
        struct piece *p = *at;
        if (p->bytes < bytes || p->bytes > bytes + bytes / 2) continue;
        *at = p->next;
        return p;
    }
    return NULL;
}

static void *take(void *owner, size_t bytes)
{
    struct sg_unit *u = owner;
    struct cu_host *h = &u->pinned;
    if (bytes > (size_t)ALL_MB << 20) return NULL;
    bytes = (bytes + HEAD + GRAIN - 1) / GRAIN * GRAIN;
    pthread_mutex_lock(&h->lock);
    struct piece *p = again(h, bytes);
    for (int anew = 0; !p && anew < 2; anew++) {
        struct cu_host_slab *last = h->slabs_n ? &h->slabs[h->slabs_n - 1] : NULL;
        if (last && last->bytes - last->used >= bytes) {
            p = (struct piece *)(void *)(last->memory + last->used);
            last->used += bytes;
            p->bytes = bytes;
        } else if (!slab_add(u, bytes)) {
            break;
        }
    }
    pthread_mutex_unlock(&h->lock);
    return p ? (unsigned char *)p + HEAD : NULL;
}

static void leave(void *owner, void *memory)
{
    struct sg_unit *u = owner;
    struct piece *p = (struct piece *)(void *)((unsigned char *)memory - HEAD);
    (void)cu_moves_over(u, NULL); /* whoever takes it next writes there */
    pthread_mutex_lock(&u->pinned.lock);
    p->next = u->pinned.free;
    u->pinned.free = p;
    pthread_mutex_unlock(&u->pinned.lock);
}

void cu_host_begin(struct sg_unit *u)
{
    pthread_mutex_init(&u->pinned.lock, NULL);
    u->pinned.memory = (struct sg_host_memory){u, take, leave};
}

void cu_host_end(struct sg_unit *u)
{
    for (uint32_t i = 0; i < u->pinned.slabs_n; i++) u->d.host_free(u->pinned.slabs[i].memory);
    u->pinned.slabs_n = 0;
}

const struct sg_host_memory *cu_host(struct sg_unit *u) { return &u->pinned.memory; }

static int is_pinned(struct sg_unit *u, const void *p, size_t n)
{
    const unsigned char *at = p;
    int inside = 0;
    pthread_mutex_lock(&u->pinned.lock);
    for (uint32_t i = 0; i < u->pinned.slabs_n; i++) {
        const struct cu_host_slab *s = &u->pinned.slabs[i];
        inside |= at >= s->memory && at + n <= s->memory + s->bytes;
    }
    pthread_mutex_unlock(&u->pinned.lock);
    return inside;
}

/* --- copies that go on --- */

cu_result cu_moves_begin(struct sg_unit *u)
{
    struct cu_pending_copy l = u->later;
    u->later.n = 0;
    if (!l.n) return 0;
    u->begun = 1;
    if (l.lines > 1) {
        struct cu_lines all = {.bytes = l.n, .lines = l.lines};
        struct cu_lines_end card = {.kind = CU_ON_CARD, .card = l.card, .pitch = l.pitch},
                            host = {.kind = CU_ON_HOST, .host = l.host, .pitch = l.n};
        all.from = l.out ? card : host;
        all.to = l.out ? host : card;
        return u->d.copy_lines(&all, u->copies);
    }
    return l.out ? u->d.to_host(l.host, l.card, l.n, u->copies) : u->d.to_card(l.card, l.host, l.n, u->copies);
}

segue_status cu_moves_over(struct sg_unit *u, segue_error *err)
{
    if (!atomic_exchange(&u->moving, 0)) return SEGUE_OK;
    pthread_mutex_lock(&u->copying);
    cu_enter(u);
    cu_result r = cu_moves_begin(u), s = u->d.stream_wait(u->copies);
    u->begun = 0;
    cu_leave(u);
    pthread_mutex_unlock(&u->copying);
    return cu_check(&u->d, r ? r : s, "copy state", err);
}

/* The copy that has not begun takes this one in: behind it on both sides, or on the host alone and as far from the last line on
 * the card as that is from the one before. */
static int takes_in(struct sg_unit *u, cu_ptr card, const unsigned char *host, size_t n, int out)
{
    struct cu_pending_copy *l = &u->later;
    if (!l->n || l->out != (uint32_t)out || l->host + l->lines * l->n != host) return 0;
    if (l->lines * l->n + n > (size_t)(u->begun ? MOVE_BYTES : FIRST_BYTES)) return 0;
    if (l->lines == 1 && l->card + l->n == card) {
        l->n += n;
        return 1;
    }
    size_t pitch = l->lines == 1 ? (size_t)(card - l->card) : l->pitch;
    if (n != l->n || pitch < n || pitch > PITCH_MOST || card != l->card + l->lines * pitch) return 0;
    l->pitch = pitch;
    l->lines++;
    return 1;
}

/* Transfers of a megabyte lose a fifth to what each one costs (5 us), so neighbours go together. */
static segue_status move_later(struct sg_unit *u, cu_ptr card, void *host, size_t n, int out, segue_error *err)
{
    cu_result r = 0;
    pthread_mutex_lock(&u->copying);
    cu_enter(u);
    if (!takes_in(u, card, host, n, out)) {
        r = cu_moves_begin(u);
        u->later = (struct cu_pending_copy){.host = host, .card = card, .n = n, .lines = 1, .out = (uint32_t)out};
    } else if (u->later.lines > 1 && u->begun && !u->d.stream_ask(u->copies)) { /* rows are gathered while others cross */
        r = cu_moves_begin(u);
    }
    atomic_store(&u->moving, 1);
    cu_leave(u);
    pthread_mutex_unlock(&u->copying);
    return cu_check(&u->d, r, "copy state", err);
}

segue_status cu_moves_go(struct sg_unit *u, segue_error *err)
{
    pthread_mutex_lock(&u->copying);
    cu_enter(u);
    cu_result r = cu_moves_begin(u);
    cu_leave(u);
    pthread_mutex_unlock(&u->copying);
    return cu_check(&u->d, r, "copy state", err);
}

segue_status cu_put(struct sg_unit *u, cu_ptr to, const void *from, size_t n, segue_error *err)
{
    union { const void *in; void *host; } p = {from}; /* only read */
    return is_pinned(u, from, n) ? move_later(u, to, p.host, n, 0, err) : cu_send(u, to, from, n, err);
}

segue_status cu_get(struct sg_unit *u, void *to, cu_ptr from, size_t n, segue_error *err)
{
    return is_pinned(u, to, n) ? move_later(u, from, to, n, 1, err) : cu_fetch(u, to, from, n, err);
}

segue_status cu_state_flush(struct sg_state *s, segue_error *err) { return cu_moves_over(s->base.unit, err); }
