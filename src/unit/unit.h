/* unit.h: the interface of a unit. A unit is an implementation that runs graphs on one device (CPU, GPU, neural engine, another
 * process). It implements struct sg_unit_ops in a folder under src/unit and adds the folder to the list in cmake/library.cmake;
 * no other file names it.
 *
 * Objects: a program is a compiled graph with its weights; a state is the memory of one sequence (KV cache and recurrent
 * slots); a batch has one span per sequence; start turns a program and a batch into a run, wait ends it.
 *
 * Callers: engine/ and tests/. A unit does not call another unit, except the wrappers group/ and proc/.
 *
 * Threads: list, open, describe, can, compile and state_new may be called from any thread; up to desc.lanes of these calls and
 * of runs may be in progress at once. Two runs that use the same state must not overlap. state_get may run on one other thread
 * beside a run and waits until the positions exist (see desc.streams). All other calls on a state: only between its runs.
 *
 * Errors: EUNSUPPORTED names op, layer and reason. EUNIT, ELOST: the unit failed. ECANCELED: *batch->cancel became 1; the
 * states contain the tokens that were completed (sg_result.rows_done). SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_UNIT_H
#define SG_UNIT_UNIT_H

#include <stdatomic.h>

#include "base/hash.h"
#include "graph/graph.h"
#include "graph/lora.h"
#include "unit/sample.h"
#include "unit/train_device.h"
#include "unit/train_math.h"
#include "unit/train_resident.h"

/* Each unit defines these four; each begins with its sg_*_base (end of this file). */
struct sg_unit;                      /* an open device */
struct sg_program;                   /* a compiled graph */
struct sg_state;                     /* memory of one sequence */
struct sg_run;                       /* a started batch */
struct sg_rank_sync;

/* A parsed spec: KIND[:key=value,...] (unit/spec.h). open refuses a key that the unit does not know, by name. */
struct sg_unit_spec {
    char kind[16];
    char text[64];                   /* the whole spec */
    uint32_t pairs_n;                /* a part without '=' has an empty key */
    struct { char key[16]; char value[64]; } pairs[8];
};

enum sg_kv_storages { SG_KV_ANY, SG_KV_F16_ONLY, SG_KV_NOT_Q8 };

/* Properties of a unit that do not change while it is open. */
struct sg_unit_desc {
    segue_unit_info info;
    uint32_t lanes;                  /* runs that may be in progress at once */
    uint32_t long_rows;              /* with several lanes: one lane is reserved for runs whose spans have at most
                                      * this many tokens; 0: all lanes are equal */
    uint32_t rows_max;               /* tokens of one run; 0 = no limit */
    uint32_t samples;                /* 1: samplers and steps > 1 are accepted */
    uint32_t reference;              /* 1: slow reference; states are fp32 by default; used only when named */
    uint32_t may_disconnect;         /* 1: the unit may be lost with its states (ELOST) while this process continues */
    uint32_t streams;                /* 1: after start, state_get waits for each slot until the run has written it, also
                                      * recurrent ones; 0: beside a run, get only positions that existed before it */
    uint32_t named_only;             /* 1: used only when named: not validated on a device yet */
    uint32_t select_late;            /* 1: prefers graphs whose op `rows` (selection of wanted rows) comes right before the
                                      * final norm; 0: after the last mixer */
    uint32_t half;                   /* 1: the result of every operation is rounded to fp16; 2: to bf16 */
    uint32_t kv;                     /* enum sg_kv_storages: how its states may have K and V; where they cannot, they have f16,
                                      * and a hand-off converts them */
    uint32_t fits_kv;                /* 1: compile or the runs scale or refuse K and V that f16 does not hold; 0: the engine
                                      * refuses models whose weights show that (unit/kv/kv_fit.h) */
    uint32_t invariant;              /* bit for bit, the results of a sequence do not depend 1: on the other spans of the batch,
                                      * 2: nor on how its tokens are divided into runs */
    uint32_t first_runs_slow;        /* 1: a run of a new shape takes much longer than later ones: a server prepares for that */
    char kernels[32];                /* units with equal texts give bit-identical results for equal runs, also across
                                      * processes; "": not guaranteed */
};

/* --- batches --- */

/* Tokens of a run with steps > 1, published one by one: the unit stores tokens[i], then sets written = i + 1. */
struct sg_ring {
    int32_t *tokens;                 /* [cap], cap >= steps */
    uint32_t cap;
    atomic_uint written;             /* tokens that may be read */
};

/* The part of a batch that belongs to one sequence: its next `rows` tokens. */
struct sg_span {
    struct sg_state *state;          /* of this unit; NULL only for a graph without slots, where the unit allows it */
    uint32_t rows;                   /* tokens of this span, > 0 */
    uint64_t first;                  /* position of the first token = tokens that the state holds */
    const int32_t *tokens;           /* [rows] for the graph input "tokens" ... */
    const float *values;             /* ... or [rows, width] for the graph input "rows" */
    const uint32_t *wanted;          /* [wanted_n] indices into the span, ascending: the tokens whose rows op `rows` selects,
                                      * for which logits are computed */
    uint32_t wanted_n;
    const struct sg_lora *const *loras;  /* [loras_n] adapters that apply to every token of this span */
    uint32_t loras_n;
    const struct sg_sampler *sampler;    /* NULL: no token is chosen; else one is chosen from the last wanted row */
    uint32_t steps;                  /* 0 or 1: one pass. n > 1: choose and feed back, n tokens in total (one span per batch) */
    struct sg_ring *ring;            /* receives the tokens when steps > 1 */
};

struct sg_batch {
    const struct sg_span *spans;     /* [spans_n], each with another state */
    uint32_t spans_n;
    uint32_t priority;               /* higher first, where several lanes compete */
    uint32_t inline_hint;            /* 1: the caller waits immediately; the unit may compute in start, on the caller's thread */
    uint32_t quiet;                  /* 1: no thread calls state_get on these states during the run */
    const atomic_int *cancel;        /* NULL, or polled between ops: 1 = stop */
    const int32_t *outputs;          /* [outputs_n] indices of graph outputs to copy to sg_result.values; logits are separate */
    uint32_t outputs_n;
    struct sg_rank_sync *rank_sync;  /* NULL, or shared by the runs of all ranks of a group (group/rank_sync.h); cancel is NULL
                                      * then, rank_sync has it */
    uint32_t rank;                   /* this run's rank in rank_sync */
    uint32_t shapes[SEGUE_PLAN_SHAPES];  /* row counts, rising, 0 ends the list: a unit that pads runs to fixed shapes pads to the
                                      * smallest of these that holds the rows; first 0: its own choice */
};

/* Result buffers, owned by the caller; a NULL pointer: not requested. T = sum of rows, R = sum of wanted_n over the spans. */
struct sg_result {
    float *logits;                   /* [R, vocab] */
    float **values;                  /* [outputs_n], each [T, width] or [R, width] (sg_value.wanted of the output) */
    int32_t *tokens;                 /* [spans_n] the chosen token; -1: none */
    segue_logprob *logprobs;         /* [spans_n, SG_LOGPROBS_MAX] */
    size_t *logprobs_n;              /* [spans_n] entries used */
    /* Set by wait: */
    uint32_t *rows_done;             /* [spans_n] tokens appended to each state, those of later steps included */
    uint64_t ns;                     /* time the unit was busy */
    uint64_t dispatches;             /* kernel launches, or the unit's equivalent */
    uint64_t weight_bytes, state_bytes;  /* bytes read of weights and states */
    uint64_t host_bytes;             /* bytes copied between host and device memory; 0: none, or not counted */
    uint64_t helper_ns;              /* part of ns spent on the host for ops that the device cannot run */
    uint64_t overflows, underflows;  /* results beyond the range of a 16-bit type: infinite; zero or subnormal with fewer bits */
    uint64_t columns;                /* tokens computed including padding; 0: nothing is padded */
    uint64_t layout_ops;             /* operations of all dispatches that only move numbers; 0: none, or not counted */
    uint64_t unseen;                 /* tokens that the last one could not attend to although the graph asks for it, because the
                                      * unit was opened with a shorter context; maximum over the spans */
};

/* --- states --- */

/* Host memory that a unit copies from and to at full speed (pinned memory). Any thread. The struct outlives all allocations. */
struct sg_host_memory {
    void *owner;
    void *(*take)(void *owner, size_t bytes);    /* 64-byte aligned, not cleared; NULL: none left, use ordinary memory */
    void (*leave)(void *owner, void *p);         /* frees what take returned */
    uint32_t attachable;             /* 1: it is ordinary memory, of which state_attach of the unit takes slots */
};
/* The memory where it makes copies faster; NULL: it does not. */
static inline const struct sg_host_memory *sg_host_memory_pinned(const struct sg_host_memory *m)
{
    return m && !m->attachable ? m : NULL;
}

struct sg_state_opts {
    enum sg_storage kv;              /* of K and V: F32, F16, BF16 or Q8_0; other slots are fp32 */
    uint64_t rows;                   /* expected tokens; the state grows beyond them between runs */
    uint32_t undo;                   /* largest number of marks at a time; 0 = 8 */
    uint32_t bare;                   /* 1: the next call is state_transfer or state_free, memory need not be allocated before */
    uint32_t filled;                 /* 1: all slots are written before they are read, memory need not be cleared */
    const struct sg_host_memory *host;   /* NULL, or the allocator for a unit that keeps states in host memory, of the unit
                                          * that they will be copied to */
};

/* Cache folder for prepared weights (repacked, compiled). Entries are verified before use. A failure to write is not an error. */
struct sg_weight_cache {
    const char *folder;              /* created when missing */
    uint64_t bytes_max;                   /* limit of the folder in bytes; the least recently used entries are deleted */
    struct sg_hash weights;          /* of tensor names, shapes and samples (sg_archive_sample): selects an entry */
    struct sg_hash stamp;            /* file id: of the model files' identity (sg_archive_file_id) ... */
    int exact;                       /* ... 1: equal ids prove equal bytes */
};

/* Progress of a compilation. report is called from the compiling thread with the bytes of weights that are in place; a result
 * other than 0 asks the unit to return ECANCELED. */
struct sg_progress {
    int (*report)(void *context, uint64_t done);
    void *context;
};
/* 1: the compilation is to stop. progress NULL: never. */
static inline int sg_progress_stop(const struct sg_progress *progress, uint64_t done)
{
    return progress && progress->report(progress->context, done);
}

/* Members are required unless they are listed as optional. */
struct sg_unit_ops {
    const char *kind;                /* what a spec begins with */

    /* --- unit --- */

    /* Devices that are present: writes up to cap entries, *n = their number. A kind without a device writes one entry whose
     * info has the reason. */
    segue_status (*list)(struct sg_unit_desc *out, size_t cap, size_t *n, segue_error *err);
    segue_status (*open)(struct sg_unit **out, const struct sg_unit_spec *spec, segue_error *err);
    void (*close)(struct sg_unit *u);            /* after all of its programs, states and runs */
    void (*describe)(const struct sg_unit *u, struct sg_unit_desc *out);
    /* OK: the unit runs this op of g. EUNSUPPORTED: *why has the reason. */
    segue_status (*can)(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op, segue_error *why);

    /* --- programs --- */

    /* Compiles all graphs of a model: programs[i] from graphs[i]; all n or none. A tensor pointer that occurs in several
     * graphs is one copy on the unit. Graphs and tensors are borrowed and outlive the programs. keep NULL: no cache.
     * EFORMAT: a weight is not finite (unit/finite.h); weights found in the cache were checked when they were written. */
    segue_status (*compile)(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n,
                            const struct sg_weight_cache *keep, struct sg_program **programs, segue_error *err);
    void (*discard)(struct sg_program *p);
    /* Bytes: weights in memory that the unit allocated (no mapped files), weights read per decoded token, scratch. Any
     * pointer may be NULL. */
    void (*footprint)(const struct sg_program *p, uint64_t *own, uint64_t *read_per_token, uint64_t *scratch);

    /* --- runs --- */

    /* start copies batch, spans and the pointers in r. What they point to, and r, stay valid until wait returns another
     * status than SEGUE_END. wait: SEGUE_END = not done after timeout_ns (0: poll). Any other status is that of the run, and
     * frees it. */
    segue_status (*start)(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                          segue_error *err);
    segue_status (*wait)(struct sg_run *run, uint64_t timeout_ns, segue_error *err);

    /* --- states (unit/state_core.h implements most of these) --- */

    /* o NULL: the unit's default storage. */
    segue_status (*state_new)(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                              const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
    void (*state_free)(struct sg_state *s);
    /* A copy with equal contents and no marks. It may share K and V memory until one of the two is written. */
    segue_status (*state_fork)(struct sg_state *s, struct sg_state **out, segue_error *err);
    /* Undo marks. mark remembers the state and returns a number. back restores it and forgets later marks; the mark itself
     * remains. drop forgets this mark and all earlier ones. ELIMIT: the state has opts.undo marks already. */
    segue_status (*state_mark)(struct sg_state *s, uint32_t *mark, segue_error *err);
    segue_status (*state_back)(struct sg_state *s, uint32_t mark, segue_error *err);
    void (*state_drop)(struct sg_state *s, uint32_t mark);
    /* Truncates the sequence to its first `rows` tokens. EUNSUPPORTED: a recurrent slot, or a window that has lost positions,
     * does not allow it. 0 and the current length are always possible. */
    segue_status (*state_cut)(struct sg_state *s, uint64_t rows, segue_error *err);
    /* *rows = length of the sequence in tokens; *first = first position that a K or V slot still holds (0 for others). */
    void (*state_held)(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows);
    uint64_t (*state_bytes)(const struct sg_state *s);   /* memory in bytes; shared memory counts by this state's share */
    /* Contents in the canonical layout (docs/STATE.md). K and V: positions [from, to) of a slot as [position][head][width] in
     * `storage`. CONV: [row][channel], DELTA: [head][key][value], whole, fp32; from and to are ignored.
     * get: EARG when a position is not held. put: replaces positions or extends the held range without a gap. After all slots
     * were put, put with slot UINT32_MAX and from = to = tokens validates them and sets the length of the sequence. */
    segue_status (*state_get)(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                              void *out, segue_error *err);
    segue_status (*state_put)(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                              const void *in, segue_error *err);

    /* --- optional: NULL = not supported --- */

    /* Moves the contents of `from` to `to`, a new state with the same slots and storage on a unit of this kind; same result
     * as get and put. Marks are forgotten. Afterwards `from` may only be freed or be the target of a transfer. */
    segue_status (*state_transfer)(struct sg_state *to, struct sg_state *from, segue_error *err);
    /* Hint that states of `from` may soon be transferred to `to`, another unit of this kind: wakes the link between them. */
    void (*peer_prewarm)(struct sg_unit *from, struct sg_unit *to);
    /* Where host and unit share memory: as put, but the slot gets the bytes at `at`, an address that state_at (CONV, DELTA) or
     * state_rows (K, V) of another unit gave and that is in memory of this unit's `host`. Nothing is copied; the caller does not
     * change them any more, and may free them. EUNSUPPORTED: it is other memory, or the storage is not the state's; use put. */
    segue_status (*state_attach)(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                                 const void *at, segue_error *err);
    /* K, V: address of positions [from, to) in host memory, with the bytes that get would write, for state_attach. Waits like
     * get. The state copies them before it writes there again. EUNSUPPORTED: they are not so in memory of
     * struct sg_state_opts.host; use get. at NULL: only says whether they are, and they may change. */
    segue_status (*state_rows)(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                               const void **at, segue_error *err);
    /* The unit's pinned memory, or memory that it attaches (sg_host_memory.attachable), or NULL. Absent, or memory that it
     * attaches: all copies are complete when get or put returns. Pinned: copies from and to this memory may be pending; those of
     * get until state_flush, those of put until state_flush or validation. Freeing the memory or the state waits for them. */
    const struct sg_host_memory *(*host)(struct sg_unit *u);
    segue_status (*state_flush)(struct sg_state *s, segue_error *err);
    /* Address of a CONV or DELTA slot in host memory, in the layout of get; valid until the next call that changes the state.
     * write 0: waits like get. write 1: the caller overwrites all of it before validation. */
    segue_status (*state_at)(struct sg_state *s, uint32_t slot, int write, void **out, segue_error *err);
    /* One weight tensor of a program as fp32 [rows, cols]. */
    segue_status (*weight_get)(struct sg_program *p, uint32_t tensor, float *out, segue_error *err);
    segue_status (*weight_put)(struct sg_program *p, uint32_t tensor, const float *in, segue_error *err);
    segue_status (*stream)(struct sg_unit *u, uint64_t bytes, double *gb_s, segue_error *err); /* measures read bandwidth */
    /* Outcome of the weight cache: "mapped" (found), "written", "repacked" (prepared again, the faster choice), or NULL: not
     * used. *why: NULL or the reason. The texts live as long as the program. */
    const char *(*kept)(const struct sg_program *p, const char **why);
    /* Compilations by the device's compiler for this program. Absent: see sg_program_compiles. */
    uint64_t (*compiles)(const struct sg_program *p);
    /* Logits [vocab] of the last row of the state's last run, when that run chose a token and result.logits was NULL. Valid
     * until the state changes. Avoids copying logits that no caller reads. */
    segue_status (*state_logits)(struct sg_state *s, float *out, segue_error *err);
    /* Energy counters with an arbitrary zero, into a zeroed struct; any thread, also during runs. */
    segue_status (*meter)(struct sg_unit *u, segue_energy *out, segue_error *err);
    /* Optional: the next compilations report their progress; NULL: no more. The struct outlives them. */
    void (*progress)(struct sg_unit *u, const struct sg_progress *progress);
    /* on 1: the programs of the next compilations are invariant as with desc.invariant 2, even if desc.invariant is lower. */
    void (*compile_invariant)(struct sg_unit *u, uint32_t on);
    /* After ELOST: restarts the unit, with no other call in progress. Programs become valid again; states and runs from
     * before stay lost. OK also when it was not lost. */
    segue_status (*restart)(struct sg_unit *u, segue_error *err);
    /* programs[i], on a separate unit, is rank i of one graph split by graph/tensor_parallel.h: prepares what op `join`
     * needs between them. Called once before any run; the programs are discarded together. */
    segue_status (*link_ranks)(struct sg_program *const *programs, uint32_t n, segue_error *err);
    /* The loops and products with which src/train trains on this unit; valid while the unit is open. */
    void (*train_math)(struct sg_unit *u, struct sg_train_math *out);
    /* Products of training with weights on this unit; another unit computes the rest. tokens_max: of a micro-batch. Closed before
     * the unit. */
    segue_status (*train_device)(struct sg_unit *u, uint32_t tokens_max, struct sg_train_device **out, segue_error *err);
    /* Instead of train_math: training whose numbers stay in the unit's memory. Closed before the unit. */
    segue_status (*train_resident)(struct sg_unit *u, struct sg_train_resident **out, segue_error *err);
};

/* The first members of each unit's structs, so that callers find the table from any of them. */
struct sg_unit_base { const struct sg_unit_ops *ops; };
struct sg_program_base { const struct sg_unit_ops *ops; struct sg_unit *unit; const struct sg_graph *graph; };
struct sg_state_base { const struct sg_unit_ops *ops; struct sg_unit *unit; };
struct sg_run_base { const struct sg_unit_ops *ops; };

/* Compilations done for a program in this process; 0 when its weights were mapped from the cache. */
uint64_t sg_program_compiles(const struct sg_program *p);

static inline const struct sg_unit_ops *sg_ops_of(const void *unit_program_state_or_run)
{
    return *(const struct sg_unit_ops *const *)unit_program_state_or_run;
}

#endif
