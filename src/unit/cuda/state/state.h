/* state.h: the state of a sequence in GPU memory: K and V rows, recurrent (fixed) slots, undo marks, and the logits that its last
 * run kept. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_STATE_H
#define SG_UNIT_CUDA_STATE_H

#include "unit/cuda/compile/program.h"

/* A slot: K or V rows that grow with the sequence, or fixed memory (convolution, delta rule). */
struct cu_slot {
    struct sg_slot slot;
    size_t row_bytes, fixed_bytes; /* exactly one is not 0 */
    cu_ptr memory;       /* K/V: [capacity][row_bytes]. Fixed: part of the state's `fixed` block */
    cu_ptr alt;          /* fixed: where a lookahead step writes, part of `fixed_alt`; 0: not allocated */
    uint64_t capacity;   /* K/V: rows that fit */
    uint64_t first, end; /* K/V: rows held */
    uint64_t issued_end; /* end of the rows after ready_event; 0: no event in this run */
    cu_event ready_event; /* recorded after the step of a long pass that writes the slot; created on first use */
    int has_data;        /* fixed: a run or a put has written it */
    int shared_block;    /* K/V: memory is part of the state's shared_block */
};
/* An undo mark: a copy of the fixed slots, and the number of rows. */
struct cu_mark {
    uint32_t number;
    uint64_t rows;
    cu_ptr copy;
};
struct sg_state {
    struct sg_state_base base;
    pthread_mutex_t lock;   /* guards busy, rows, until and each slot's first, end and issued_end */
    pthread_cond_t changed; /* signalled when rows arrive or the run ends */
    int busy;               /* 1: a run uses it */
    enum sg_storage storage; /* of K and V */
    uint64_t rows;
    uint64_t until;         /* rows after the current run; UINT64_MAX: not known in advance */
    uint32_t slots_n, marks_n, marks_cap, marks_next;
    struct cu_slot *slots;
    struct cu_mark *marks;  /* oldest first */
    size_t fixed_bytes;     /* of all fixed slots, each rounded up to 256 */
    cu_ptr fixed, fixed_alt; /* block of all fixed slots; the block that lookahead steps write */
    struct cu_slot_block { cu_ptr memory; size_t bytes; uint32_t slots; } shared_block; /* K/V slots that have not grown yet */
    uint64_t id;            /* unique in the unit */
    uint64_t version;       /* grows when the contents are changed other than by a run */
    struct cu_lane *logits_lane; /* kept logits: lane whose buffer holds them, NULL: the state's copy does; */
    cu_ptr logits_at;       /* their address, 0: none; */
    cu_ptr logits_copy;     /* memory for a copy, 0: not allocated */
    size_t logits_bytes;
    int gpu_pending;        /* 1: a lookahead step or a copy of logits may still use the memory */
    int clearing;           /* 1: fixed slots are being cleared in the stream of copies */
};

static inline int cu_is_kv(const struct cu_slot *s) { return s->slot.kind == SG_SLOT_K || s->slot.kind == SG_SLOT_V; }

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
void cu_slot_init(struct sg_state *st, struct cu_slot *s, const struct sg_slot *slot);
segue_status cu_state_alloc_rows(struct sg_state *st, uint64_t rows, segue_error *err); /* first allocation of all K/V slots */
segue_status cu_slot_grow(struct sg_state *st, struct cu_slot *s, uint64_t rows, segue_error *err); /* keeps the rows held */
/* the same; fixed slots: nothing */
segue_status cu_slot_reserve(struct sg_state *s, uint32_t slot, uint64_t rows, segue_error *err);
void cu_slot_free(struct sg_state *st, struct cu_slot *s);

/* --- the unit's operations on states (cuda_state.c, state_io.c, cuda_state_transfer.c); see struct sg_unit_ops --- */

segue_status cu_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                          const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
void cu_state_free(struct sg_state *s);
segue_status cu_state_fork(struct sg_state *s, struct sg_state **out, segue_error *err);
segue_status cu_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err);
segue_status cu_state_back(struct sg_state *s, uint32_t mark, segue_error *err);
void cu_state_drop(struct sg_state *s, uint32_t mark);
segue_status cu_state_cut(struct sg_state *s, uint64_t rows, segue_error *err);
void cu_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows);
uint64_t cu_state_bytes(const struct sg_state *s);
segue_status cu_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                          enum sg_storage storage, void *out, segue_error *err);
segue_status cu_state_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                          enum sg_storage storage, const void *in, segue_error *err);
segue_status cu_state_flush(struct sg_state *s, segue_error *err);
segue_status cu_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err);
void cu_peer_prewarm(struct sg_unit *from, struct sg_unit *to);

/* Before the memory is changed or freed: waits for lookahead steps and clearing, and invalidates the lookahead. */
segue_status cu_state_settle(struct sg_state *s, segue_error *err);
void cu_state_trim_marks(struct sg_state *s, uint32_t n); /* drops all marks but the n oldest */
void cu_state_drop_marks(struct sg_state *s);
void cu_state_truncate(struct sg_state *s, uint64_t end); /* keeps the K/V rows before `end` */

/* For runs: mark as busy and reserve capacity for `rows` more (EARG: another run uses it); count rows as written; not busy. */
segue_status cu_state_acquire(struct sg_state *s, uint64_t rows, segue_error *err);
void cu_state_advance(struct sg_state *s, uint64_t rows);
void cu_state_release(struct sg_state *s);

/* --- reading a state while a run extends it (layer_events.c) --- */

void cu_layer_events_begin(struct sg_state *s, uint64_t end); /* before a run that ends at row `end`; UINT64_MAX: unknown */
/* After each step of a long pass: records an event in `stream` for the slots that the step has written up to row `end`. */
segue_status cu_layer_event_record(const struct cu_step *s, struct sg_state *state, cu_stream stream, uint64_t end,
                                   segue_error *err);
int cu_layer_event_splits(const struct cu_step *s); /* 1: a captured long pass is split into graphs after this step */
/* Waits until the rows before `to` of a slot, or its fixed memory, can be copied. Returns the rows held then. */
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
