/* state_core.h: the part of a state that is the same in every unit: which positions each slot holds, undo marks, cuts, the
 * checks of get and put, the busy flag. A unit's struct sg_state begins with struct sg_state_core, a unit's slot with struct
 * sg_core_slot. The memory itself belongs to the unit, which is called through struct sg_state_core_ops.
 *
 * The functions with the signature of a member of struct sg_unit_ops go into the unit's table directly.
 *
 * Threads: a state is changed by one thread at a time, between runs or by the one run that acquired it. Beside that run one
 * other thread may get. `lock` guards busy, tokens and first, end of the slots against that thread; it is a leaf: no other lock
 * is taken while it is held. Errors name the unit.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_STATE_CORE_H
#define SG_UNIT_STATE_CORE_H

#include <pthread.h>

#include "unit/unit.h"

/* One slot of a state. Positions outside of [first, end) have no valid contents. */
struct sg_core_slot {
    struct sg_slot slot;
    size_t row_bytes;                /* K, V: bytes of one position in the state's storage; else 0 */
    size_t fixed_bytes;              /* CONV, DELTA: bytes of the whole slot, fp32; else 0 */
    uint64_t first, end;             /* K, V: positions [first, end) are held; else 0 */
    int present;                     /* CONV, DELTA: 1 = written by a run or a put */
};

/* A point to which the state can go back. K and V need no copy: positions before `tokens` are kept until the mark is dropped. */
struct sg_undo_mark {
    uint32_t number;                 /* as returned by mark; rises with every mark of the state */
    uint32_t buffer;                 /* undo buffer of the unit with the copy, below marks_cap; no two marks share one */
    uint64_t tokens;                 /* length of the sequence at the mark */
};

struct sg_state_core {
    struct sg_state_base base;
    const struct sg_state_core_ops *ops;
    pthread_mutex_t lock;
    pthread_cond_t changed;          /* busy, tokens, or first or end of a slot changed */
    int busy;                        /* 1: a run has acquired the state */
    enum sg_storage storage;         /* of K and V */
    const struct sg_host_memory *host;   /* as in struct sg_state_opts */
    uint64_t tokens;                 /* length of the sequence */
    uint32_t slots_n, marks_n, marks_cap, marks_next;
    void *slots;                     /* [slots_n] of slot_size bytes; use sg_core_slot_at */
    size_t slot_size;
    struct sg_undo_mark *marks;      /* [marks_cap]: marks_n alive, rising numbers; entries after them own the free buffers */
    size_t fixed_bytes;              /* of all slots together */
};

/* What a unit implements. NULL is allowed where "optional" is written. */
struct sg_state_core_ops {
    const char *unit;                /* named in errors */
    uint32_t block_tokens;           /* K, V: positions per block, in which memory is released; 0: never while the state lives */
    size_t slot_size;                /* of the unit's slot struct, which begins with struct sg_core_slot */
    size_t state_size;               /* of the unit's struct sg_state; 0: the unit does not use sg_state_core_new */
    int fork_shares;                 /* 1: `copy` shares K and V, so that a fork needs no memory for its tokens in advance */

    /* Allocates the memory of a new state, whose core is complete. With state_size only. */
    segue_status (*init)(struct sg_state *s, const struct sg_state_opts *o, segue_error *err);
    /* Copy all recurrent slots into or from undo buffer m->buffer, which the unit allocates when it needs it. */
    segue_status (*undo_save)(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err);
    segue_status (*undo_restore)(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err);
    /* The buffer is not needed any more; optional. A unit that keeps the memory for the next mark frees it with the state. */
    void (*undo_release)(struct sg_state *s, uint32_t buffer);

    /* Before a cut or a put changes the state: wait for device work that still uses it; optional. */
    segue_status (*settle)(struct sg_state *s, segue_error *err);
    /* Before a filled state is validated: all copies that a put left pending are complete; optional. */
    segue_status (*flush)(struct sg_state *s, segue_error *err);
    /* Zero all recurrent slots; optional when the unit has none. */
    segue_status (*clear)(struct sg_state *s, segue_error *err);
    /* tokens, first or end were reduced: release memory outside of [first, end) of each slot; optional. */
    void (*trim)(struct sg_state *s);
    /* Write positions [from, to) of a K or V slot, or a whole recurrent slot, from the canonical layout. The range and the
     * storage were checked; first, end and present are updated by the core afterwards. */
    segue_status (*write)(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage, const void *in,
                          segue_error *err);
    /* Fork: copy or share the contents of all slots. `to` is a new state of the same slots; the core copies first, end,
     * present and tokens afterwards. */
    segue_status (*copy)(struct sg_state *to, struct sg_state *from, segue_error *err);

    /* K, V: the first position that is held anywhere, or that the token after `tokens` tokens attends to. Optional: `first`,
     * and the window of the slot. */
    uint64_t (*first_held)(const struct sg_state *s, uint32_t slot);
    uint64_t (*first_needed)(const struct sg_state *s, uint32_t slot, uint64_t tokens);
};

static inline struct sg_state_core *sg_state_core_of(struct sg_state *s) { return (struct sg_state_core *)(void *)s; }
static inline const struct sg_state_core *sg_state_core_of_const(const struct sg_state *s)
{
    return (const struct sg_state_core *)(const void *)s;
}
static inline struct sg_core_slot *sg_core_slot_at(const struct sg_state_core *c, uint32_t i)
{
    return (struct sg_core_slot *)(void *)((char *)c->slots + i * c->slot_size);
}
/* For reading beside a get, which may move rows to the host: the lock is no part of what const protects. */
static inline pthread_mutex_t *sg_state_core_lock_of(const struct sg_state_core *c)
{
    return (pthread_mutex_t *)(uintptr_t)&c->lock;
}
/* 1: the slot grows by one row per token (K, V). 0: it has one size (CONV, DELTA). */
static inline int sg_slot_grows(const struct sg_slot *s) { return s->kind == SG_SLOT_K || s->kind == SG_SLOT_V; }

/* --- life --- */

/* Allocates a state and fills its core, then calls `init`. After a failure the unit's state_free is called. storage: of K and V
 * when o is NULL. Errors: those of sg_state_core_init and of `init`. */
segue_status sg_state_core_new(const struct sg_state_core_ops *ops, struct sg_unit *u, const struct sg_slot *slots,
                               uint32_t slots_n, const struct sg_state_opts *o, enum sg_storage storage,
                               struct sg_state **out, segue_error *err);
/* Fills a zeroed core: sizes, slots (zeroed after the core's part), marks. o NULL: `storage`, 8 marks. EUNSUPPORTED: a storage
 * that no K or V has. After a failure sg_state_core_free is still to be called. */
segue_status sg_state_core_init(struct sg_state_core *c, const struct sg_state_core_ops *ops, struct sg_unit *u,
                                const struct sg_slot *slots, uint32_t slots_n, const struct sg_state_opts *o,
                                enum sg_storage storage, segue_error *err);
/* Releases marks and everything that init allocated; not the struct, which the unit frees. */
void sg_state_core_free(struct sg_state_core *c);
segue_status sg_state_core_fork(struct sg_state *s, struct sg_state **out, segue_error *err);
/* EUNSUPPORTED: slots or storage differ. EARG: a run uses one of them. On success the marks of both are forgotten. */
segue_status sg_state_core_check_transfer(struct sg_state *to, struct sg_state *from, segue_error *err);

/* --- marks and cuts: members of struct sg_unit_ops --- */

segue_status sg_state_core_mark(struct sg_state *s, uint32_t *mark, segue_error *err);
segue_status sg_state_core_back(struct sg_state *s, uint32_t mark, segue_error *err);
void sg_state_core_drop(struct sg_state *s, uint32_t mark);
segue_status sg_state_core_cut(struct sg_state *s, uint64_t tokens, segue_error *err);
void sg_state_core_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *tokens);

/* --- get and put --- */

/* Member of struct sg_unit_ops. */
segue_status sg_state_core_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                               const void *in, segue_error *err);
/* EARG when a run has acquired the state, which nothing may write to then. */
segue_status sg_state_core_check_idle(struct sg_state_core *c, segue_error *err);
/* For a unit's get. The slot exists and can be read in that storage; verb ("get") goes into the error. */
segue_status sg_state_core_slot(const struct sg_state_core *c, uint32_t slot, enum sg_storage storage, const char *verb,
                                struct sg_core_slot **out, segue_error *err);
/* Under the lock: waits until no run is busy or, for K and V, positions before `to` are held. Releases the lock meanwhile. */
void sg_state_core_wait(struct sg_state_core *c, const struct sg_core_slot *s, uint64_t to);
/* EARG unless [from, to) lies within [first, end). */
segue_status sg_state_core_check_get(const struct sg_state_core *c, uint32_t slot, uint64_t from, uint64_t to, uint64_t first,
                                     uint64_t end, segue_error *err);

/* --- runs --- */

/* EARG when another run has acquired the state. */
segue_status sg_state_core_acquire(struct sg_state_core *c, segue_error *err);
void sg_state_core_release(struct sg_state_core *c);
/* The states of all spans (NULL ones are skipped): all of them or none. */
segue_status sg_state_core_acquire_all(const struct sg_span *spans, uint32_t spans_n, segue_error *err);
void sg_state_core_release_all(const struct sg_span *spans, uint32_t spans_n);
/* The lock is held by the caller. advance: a run has written `n` more tokens to every slot. retain: drops positions at and
 * after `tokens`, and those that neither the next token nor the oldest mark attends to. advance ends with retain. */
void sg_state_core_advance(struct sg_state_core *c, uint64_t n);
void sg_state_core_retain(struct sg_state_core *c);
/* For struct sg_batch_rules. */
uint64_t sg_state_core_tokens(const struct sg_state *s);
const struct sg_slot *sg_state_core_slot_info(const struct sg_state *s, uint32_t i);

/* The members of struct sg_unit_ops that the core implements whole, for the initialiser of a unit's table. */
#define SG_STATE_CORE_MEMBERS                                                                                                    \
    .state_fork = sg_state_core_fork, .state_mark = sg_state_core_mark, .state_back = sg_state_core_back,                        \
    .state_drop = sg_state_core_drop, .state_cut = sg_state_core_cut, .state_held = sg_state_core_held

#endif
