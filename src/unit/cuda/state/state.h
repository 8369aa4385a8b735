/* state.h: the memory of one sequence on the GPU: K and V rows, recurrent slots, undo buffers, and the logits that its last run
 * kept. Which positions are held, marks, cuts, the busy flag and the checks of get and put are in unit/state_core.h, which this
 * folder completes with memory and copies.
 *
 * A slot is "fixed" when it has one size (CONV, DELTA), in contrast to K and V, which grow by one row per token.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_STATE_H
#define SG_UNIT_CUDA_STATE_H

#include "unit/cuda/compile/program.h"
#include "unit/cuda/state/kv_range.h"
#include "unit/state_core.h"

struct cu_slot {
    struct sg_core_slot core;
    cu_ptr memory;       /* K, V: [capacity][row_bytes], the base of `range`. Fixed: part of the state's `fixed` block */
    cu_ptr alt;          /* fixed: where a lookahead step writes, part of `fixed_alt`; 0: not allocated */
    uint64_t capacity;   /* K, V: positions that `memory` can hold */
    uint64_t issued_end; /* end of the positions that are written when ready_event has happened; 0: no event in this run.
                          * Guarded by core.lock */
    cu_event ready_event; /* recorded after the step of a long pass that writes the slot; created on first use */
    struct cu_kv_range *range; /* K, V: the memory, which forks share; NULL: none yet */
    struct cu_kv_range *old;   /* while the state gets memory of its own: the range before, until the copies are complete */
    int writes;                /* 1: this slot is the one that may write to `range`; see kv_range.h */
};

struct sg_state {
    struct sg_state_core core;
    uint64_t until;         /* length after the current run; UINT64_MAX: not known in advance. Guarded by core.lock */
    cu_ptr fixed, fixed_alt; /* block of all fixed slots; the block that lookahead steps write, 0: not allocated */
    size_t block_bytes;     /* of each of these and of each undo buffer: every fixed slot rounded up to 256 */
    cu_ptr *undo;           /* [core.marks_cap] undo buffers; 0: not allocated */
    uint64_t id;            /* unique in the unit */
    uint64_t version;       /* rises when the contents are changed other than by a run: a lookahead step is then not used */
    struct cu_lane *logits_lane; /* kept logits: the lane whose stream writes them; NULL: none */
    cu_ptr logits_at;       /* kept logits: their address; 0: none */
    cu_ptr logits_copy;     /* memory for a copy; 0: not allocated */
    size_t logits_bytes;
    int gpu_pending;        /* 1: a lookahead step or a copy of logits may still use the memory */
    int clearing;           /* 1: fixed slots are being cleared in the stream `copies` */
};

static inline struct cu_slot *cu_slot_at(const struct sg_state *s, uint32_t i)
{
    return (struct cu_slot *)(void *)sg_core_slot_at(&s->core, i);
}
static inline int cu_is_kv(const struct cu_slot *s) { return sg_slot_grows(&s->core.slot); }
/* Bytes that a fixed slot occupies in its block: kernels and copies prefer addresses that are multiples of 256. */
static inline size_t cu_fixed_stride(const struct cu_slot *s) { return (s->core.fixed_bytes + 255) / 256 * 256; }

/* Storage of K and V as kernels name it. */
static inline enum ck_storage cu_storage_of(enum sg_storage s)
{
    return s == SG_F32 ? CK_KV_F32 : s == SG_F16 ? CK_KV_F16 : s == SG_BF16 ? CK_KV_BF16 : CK_KV_Q8;
}

/* --- memory of slots (slot_memory.c) --- */

segue_status cu_state_copy(struct sg_unit *u, cu_ptr to, cu_ptr from, size_t n, segue_error *err); /* on the GPU, in `copies` */
segue_status cu_state_clear(struct sg_unit *u, cu_ptr to, size_t n, segue_error *err);             /* the same */
segue_status cu_state_wait_copies(struct sg_unit *u, segue_error *err);                            /* both are complete */
segue_status cu_state_alloc_fixed(struct sg_state *s, segue_error *err); /* allocates `fixed`, uninitialised */
segue_status cu_state_alloc_alt(struct sg_state *s, segue_error *err);   /* allocates `fixed_alt` */
void cu_state_set_fixed(struct sg_state *s);                             /* points the fixed slots into both blocks */
segue_status cu_state_alloc_rows(struct sg_state *st, uint64_t rows, segue_error *err); /* first allocation of all K, V slots */
/* The slot has capacity for `rows` positions, at least one, and may write to those from `first` on. Positions before `end` keep
 * their contents. Waits for copies. The caller knows that nothing on the GPU uses the slot. */
segue_status cu_slot_own(struct sg_state *st, struct cu_slot *s, uint64_t first, uint64_t rows, segue_error *err);
/* The same for all K and V slots. EMEMORY: some may have new memory. */
segue_status cu_state_own(struct sg_state *st, uint64_t first, uint64_t rows, segue_error *err);
/* 1: cu_slot_own would do nothing. */
int cu_slot_is_own(struct cu_slot *s, uint64_t first, uint64_t rows);
void cu_slot_share(struct cu_slot *to, struct cu_slot *from); /* for a fork: `to` has no memory yet */
void cu_slot_free(struct sg_state *st, struct cu_slot *s);

/* --- the unit's operations on states (cuda_state.c, state_io.c, cuda_state_transfer.c); see struct sg_unit_ops --- */

segue_status cu_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                          const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
void cu_state_free(struct sg_state *s);
uint64_t cu_state_bytes(const struct sg_state *s);
segue_status cu_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                          enum sg_storage storage, void *out, segue_error *err);
segue_status cu_state_flush(struct sg_state *s, segue_error *err);
segue_status cu_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err);
void cu_peer_prewarm(struct sg_unit *from, struct sg_unit *to);
/* Callback `write` of struct sg_state_core_ops. Copies from pinned memory may be pending when it returns. */
segue_status cu_state_write(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            const void *in, segue_error *err);

/* Before the memory is changed or freed: waits for lookahead steps and clearing, and invalidates the lookahead. */
segue_status cu_state_settle(struct sg_state *s, segue_error *err);

/* For the run that acquired the state: capacity for `rows` more positions, which it may write; `rows` tokens were written. */
segue_status cu_state_reserve(struct sg_state *s, uint64_t rows, segue_error *err);
void cu_state_advance(struct sg_state *s, uint64_t rows);

/* --- reading a state while a run extends it (layer_events.c) --- */

void cu_layer_events_begin(struct sg_state *s, uint64_t end); /* before a run that ends at position `end`; UINT64_MAX: unknown */
/* After each step of a long pass: records an event in `stream` for the slots that the step has written up to position `end`. */
segue_status cu_layer_event_record(const struct cu_step *s, struct sg_state *state, cu_stream stream, uint64_t end,
                                   segue_error *err);
int cu_layer_event_splits(const struct cu_step *s); /* 1: a captured long pass is split into graphs after this step */
/* Waits until the positions before `to` of a slot, or its fixed memory, can be copied. Returns [*first, *end) held then. */
segue_status cu_layer_event_wait(struct sg_state *s, struct cu_slot *slot, uint64_t to, uint64_t *first, uint64_t *end,
                                 segue_error *err);

/* --- logits kept on the GPU until they are requested (kept_logits.c) --- */

void cu_logits_forget(struct sg_state *s);
/* Run number `run` has left logits of the state at address `at` of the lane's value buffer. */
void cu_logits_keep(struct cu_lane *l, struct sg_state *s, cu_ptr at, uint32_t vocab, uint64_t run);
void cu_logits_detach_lane(struct sg_unit *u, struct cu_lane *l); /* before the lane is freed */
/* Before a pass of run `run` over these spans overwrites the buffer: copies the logits that it does not replace. */
segue_status cu_logits_move_out(struct sg_unit *u, struct cu_lane *l, uint64_t run, const struct sg_span *spans, uint32_t n,
                                segue_error *err);
segue_status cu_state_logits(struct sg_state *s, float *out, segue_error *err);

#endif
