/* unit.h: what a unit is to the rest of the house: one table of functions. Whoever adds a unit implements this table in a folder
 * of its own and adds the folder's name to one list in cmake/library.cmake; no other file names it.
 *
 * Who calls: engine/ and tests/. Who must not: one unit another. Concurrency: list, open, describe, can, compile, state_new: any
 * thread, up to `lanes` of these and of runs at a time. start: up to `lanes` runs may be unfinished; two runs that share a state
 * must not overlap. state_get and state_put may run beside a run from one other thread: get waits until the rows it asks for
 * exist (desc.streams). Everything else on a state only between runs. Errors: EUNSUPPORTED names op, layer and reason; EUNIT,
 * ELOST: the unit failed; ECANCELED: batch->cancel became 1 (the state then holds the rows that were finished:
 * sg_result.rows_done). SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_UNIT_H
#define SG_UNIT_UNIT_H

#include <stdatomic.h>

#include "base/hash.h"
#include "graph/graph.h"
#include "graph/lora.h"
#include "unit/sample.h"

struct sg_unit;                      /* begins with struct sg_unit_base in every unit */
struct sg_program;                   /* a graph as one unit will run it, weights in place */
struct sg_state;                     /* what the model remembers of one sequence */
struct sg_run;                       /* one started batch */
struct sg_rank_sync;

/* A parsed spec: KIND[:key=value,...]. Keys that a unit does not know are refused by it, by name. */
struct sg_unit_spec {
    char kind[16];
    char text[64];                   /* the whole spec */
    uint32_t pairs_n;
    struct { char key[16]; char value[64]; } pairs[8];
};

struct sg_unit_desc {
    segue_unit_info info;
    uint32_t lanes;                  /* runs at once */
    uint32_t long_rows;              /* of several lanes one stays free of runs in which a span has more rows; 0: all are alike */
    uint32_t rows_max;               /* rows of one run; 0 = no bound */
    uint32_t samples;                /* 1: steps > 1 and samplers are accepted */
    uint32_t reference;              /* 1: slow on purpose: states are fp32 by default, never chosen unless named */
    uint32_t may_disconnect;                /* 1: it may vanish with its states (ELOST) while this process goes on */
    uint32_t streams;                /* 1: from the return of start on, state_get waits for what the run will write, layer
                                      * by layer, recurrent memory too; 0: beside a run only rows from before it are asked for */
    uint32_t named_only;             /* 1: never chosen unless named: its way has not run on a device yet */
    uint32_t select_late;              /* 1: wants graphs in which `rows` stands before the final norm; 0: behind the last mixer */
    uint32_t half;                   /* 1: every operation's numbers are rounded to fp16 */
    uint32_t invariant;              /* 1: a sequence's numbers are the same bits whatever else is in its batches */
    char kernels[32];                /* equal texts: equal runs give equal bits, in whatever process; "": never promised */
};

/* --- batches --- */

/* Tokens of a run with steps > 1, published one by one. The unit stores token i, then sets written = i + 1. */
struct sg_ring {
    int32_t *tokens;                 /* [cap], cap >= steps */
    uint32_t cap;
    atomic_uint written;
};

/* Rows of one sequence in a run. Rows continue the state: first = rows the state holds so far. */
struct sg_span {
    struct sg_state *state;
    uint32_t rows;
    uint64_t first;                  /* position of the first row */
    const int32_t *tokens;           /* [rows] for the input "tokens" ... */
    const float *values;             /* ... or [rows, width] for the input "rows" */
    const uint32_t *wanted;          /* [wanted_n] rows of this span (rising) that `rows` selects */
    uint32_t wanted_n;
    const struct sg_lora *const *loras;  /* [loras_n] bound to every row of this span */
    uint32_t loras_n;
    const struct sg_sampler *sampler;    /* NULL: no token is chosen. Else the last wanted row chooses one */
    uint32_t steps;                  /* 1: rows only. n > 1: choose, feed back, n - 1 more times (one span per batch) */
    struct sg_ring *ring;            /* steps > 1 */
};

struct sg_batch {
    const struct sg_span *spans;
    uint32_t spans_n;
    uint32_t priority;               /* higher first, where several lanes compete */
    uint32_t inline_hint;            /* 1: the caller waits at once; the unit may work on the caller's thread */
    uint32_t quiet;                  /* 1: nobody reads a state while the run is at work with it */
    const atomic_int *cancel;        /* NULL, or polled between ops: 1 = stop */
    const int32_t *outputs;          /* [outputs_n] indices of graph outputs to give as rows; logits have their own place */
    uint32_t outputs_n;
    struct sg_rank_sync *rank_sync;      /* NULL, or: one of several ranks' runs that go together (unit/rank_sync.h), this one's ... */
    uint32_t rank;                   /* ... number; cancel is then the rank_sync's */
};

/* Where results go: memory of the caller, any pointer may be NULL = not wanted. R = sum of wanted_n over spans.
 * T = sum of rows. */
struct sg_result {
    float *logits;                   /* [R, vocab] */
    float **values;                  /* [outputs_n] each [T or R, width] as the output's value says */
    int32_t *tokens;                 /* [spans_n] the token that each span chose; -1 where none */
    segue_logprob *logprobs;         /* [spans_n, 21] */
    size_t *logprobs_n;              /* [spans_n] */
    /* filled by wait: */
    uint32_t *rows_done;             /* [spans_n] rows appended to each state (tokens of steps included) */
    uint64_t ns, dispatches, weight_bytes, state_bytes;  /* busy time, dispatches (kernel regions), bytes read */
    uint64_t host_bytes;             /* copied between the host and the unit's own memory; 0: none, or not counted */
    uint64_t helper_ns;              /* of it outside the device: what that has no path for; 0: it does all */
    uint64_t columns;                /* rows that dispatches had room for, padding among them; 0: none is padded */
    uint64_t unseen;                 /* rows of a state that its last row no longer saw though the graph asks for them: a unit
                                      * opened with fewer; the most of all spans */
};

/* --- states --- */

/* Memory of the host that a unit copies from and to at full speed. take: 64-byte aligned, whatever was there; NULL: there is
 * none, take any other. Any thread; outlives what was taken. */
struct sg_host_memory {
    void *owner;
    void *(*take)(void *owner, size_t bytes);
    void (*leave)(void *owner, void *p);
};

struct sg_state_opts {
    enum sg_storage kv;              /* F32 F16 BF16 Q8_0, for slots K and V; others are fp32 */
    uint64_t rows;                   /* expected; grows by blocks beyond it, between runs */
    uint32_t undo;                   /* marks that can be alive at once; 0 = 8 */
    uint32_t bare;                   /* 1: state_transfer fills it next, or it is freed: memory may be left out until then */
    uint32_t filled; /* 1: every slot is put, or its memory written, before anything else: nothing need be cleared */
    const struct sg_host_memory *host;   /* NULL, or where a unit whose states lie in the host's memory takes it: of another
                                      * unit, to which they will go */
};

/* Where a unit may keep what it makes of the weights, for the next start. Whatever is found there is checked before it is
 * used; what cannot be kept is no failure. */
struct sg_weight_cache {
    const char *folder;              /* made when missing */
    uint64_t most;                   /* bytes of all entries in it; those used longest ago go */
    struct sg_hash weights;          /* of names, shapes and samples (sg_archive_hash): names an entry, proves nothing */
    struct sg_hash stamp;            /* of the files (sg_archive_file_id) ... */
    int exact;                        /* ... 1: equal stamps prove equal bytes */
};

struct sg_unit_ops {
    const char *kind;                /* what a spec begins with */

    /* What is present: writes up to cap entries, *n = how many. An absent unit gives one entry with why. */
    segue_status (*list)(struct sg_unit_desc *out, size_t cap, size_t *n, segue_error *err);
    segue_status (*open)(struct sg_unit **out, const struct sg_unit_spec *spec, segue_error *err);
    void (*close)(struct sg_unit *u);
    void (*describe)(const struct sg_unit *u, struct sg_unit_desc *out);
    /* OK, or EUNSUPPORTED with the reason. */
    segue_status (*can)(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op, segue_error *why);

    /* All graphs of a model at once: the same tensor pointer in two graphs is one copy on the unit. Graphs and tensors
     * outlive the program. programs[i] belongs to graphs[i]; all n or none. keep NULL: nothing is kept. EFORMAT: a weight
     * that is not finite (unit/finite.h); a unit that finds kept weights may take that as done. */
    segue_status (*compile)(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n,
                            const struct sg_weight_cache *keep, struct sg_program **programs, segue_error *err);
    void (*discard)(struct sg_program *p);
    /* Bytes of weights in memory of this unit's own (not mapped files), of weights read per decoded token, and of scratch. */
    void (*footprint)(const struct sg_program *p, uint64_t *own, uint64_t *read_per_token, uint64_t *scratch);

    /* start copies batch and spans (not what they point to) and result's pointers; all of it stays valid until wait
     * returns something else than SEGUE_END. wait: timeout_ns 0 = poll; SEGUE_END = not done yet. A finished wait frees the
     * run, also when it failed. */
    segue_status (*start)(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                          segue_error *err);
    segue_status (*wait)(struct sg_run *run, uint64_t timeout_ns, segue_error *err);

    segue_status (*state_new)(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                              const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
    void (*state_free)(struct sg_state *s);
    /* Shares K and V blocks until they diverge; recurrent slots are copied. */
    segue_status (*state_fork)(struct sg_state *s, struct sg_state **out, segue_error *err);
    /* Remember this point (recurrent slots copied); returns its number in *mark. back: the state is as it was at mark;
     * later marks are forgotten. drop: forget marks up to and with this one. */
    segue_status (*state_mark)(struct sg_state *s, uint32_t *mark, segue_error *err);
    segue_status (*state_back)(struct sg_state *s, uint32_t mark, segue_error *err);
    void (*state_drop)(struct sg_state *s, uint32_t mark);
    /* Keep the first `rows` rows. EUNSUPPORTED when a recurrent slot, or a window that has lost rows, forbids it (unless
     * rows is what it holds, or 0). */
    segue_status (*state_cut)(struct sg_state *s, uint64_t rows, segue_error *err);
    /* Rows held: of the sequence (*rows) and the first row that slot still has (*first). */
    void (*state_held)(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows);
    uint64_t (*state_bytes)(const struct sg_state *s);     /* what forks share is counted by each one's share */
    /* Canonical layout (docs/STATE.md): K and V rows [from, to) of one slot as [row][head][width] in `storage`; CONV
     * [row][channel] and DELTA [head][key][value] whole, fp32 (from and to ignored). put appends or replaces rows; rows that
     * no put gave are not held. seal (put of slot UINT32_MAX, from = to = rows) sets the sequence's length once all slots
     * are there. */
    segue_status (*state_get)(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                              void *out, segue_error *err);
    segue_status (*state_put)(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                              const void *in, segue_error *err);

    /* Optional, NULL = no. */
    /* Everything that `from` holds becomes that of `to`, a new state of the same slots and storage on a unit of this kind:
     * the same bytes as get + put. `from` may then only be freed, or be passed back to. Marks are forgotten. */
    segue_status (*state_transfer)(struct sg_state *to, struct sg_state *from, segue_error *err);
    /* States of `from` may soon be passed to `to`, another unit of this kind: what lies between them gets ready beside what
     * runs. */
    void (*peer_prewarm)(struct sg_unit *from, struct sg_unit *to);
    /* NULL: every copy is over when get or put returns. Else those from and to memory of `host` may go on: get's until
     * state_flush, put's until state_flush or the seal. Frees of either side wait for them as well. */
    const struct sg_host_memory *(*host)(struct sg_unit *u);
    segue_status (*state_flush)(struct sg_state *s, segue_error *err);
    /* Where the memory of a CONV or DELTA slot lies, as get would give it: until the next call that changes the state.
     * write 0: waits as get does. 1: the caller fills all of it before the seal. */
    segue_status (*state_at)(struct sg_state *s, uint32_t slot, int write, void **out, segue_error *err);
    segue_status (*weight_get)(struct sg_program *p, uint32_t tensor, float *out, segue_error *err);
    segue_status (*weight_put)(struct sg_program *p, uint32_t tensor, const float *in, segue_error *err);
    segue_status (*stream)(struct sg_unit *u, uint64_t bytes, double *gb_s, segue_error *err); /* read bandwidth, measured now */
    /* What became of keeping: "mapped", "written", "anew" (made faster than kept), or NULL; *why: NULL or the reason. Lives with
     * the program. */
    const char *(*kept)(const struct sg_program *p, const char **why);
    /* Compiles that an engine's own compiler did for it; NULL: each program is one. */
    uint64_t (*compiles)(const struct sg_program *p);
    /* The logits behind the last row of the state's last run, of which the batch wanted a choice but no logits
     * (result.logits NULL); until the state is changed. With it, logits leave the unit only when somebody asks. */
    segue_status (*state_logits)(struct sg_state *s, float *out, segue_error *err);
    /* Joules since some moment before open; any thread, beside runs too. */
    segue_status (*meter)(struct sg_unit *u, double *joules, segue_error *err);
    /* After ELOST: bring the unit back; nothing else runs on it. Programs are valid again, states and runs of before stay
     * lost. OK also when it was not lost. */
    segue_status (*restart)(struct sg_unit *u, segue_error *err);
    /* programs[i], of a unit of its own, is rank i of one graph that was dealt (graph/share.h): makes ready what `join` needs
     * between them. Before any run; they are discarded together. NULL: nothing is needed. */
    segue_status (*link_ranks)(struct sg_program *const *programs, uint32_t n, segue_error *err);
};

/* The first member of every unit's own struct. A program, state and run likewise begin with their base, so that the engine finds
 * the table from any of them. */
struct sg_unit_base { const struct sg_unit_ops *ops; };
struct sg_program_base { const struct sg_unit_ops *ops; struct sg_unit *unit; const struct sg_graph *graph; };
struct sg_state_base { const struct sg_unit_ops *ops; struct sg_unit *unit; };
struct sg_run_base { const struct sg_unit_ops *ops; };

/* Compiles that were done for a program in this process: what came from the cache folder is none. */
uint64_t sg_program_compiles(const struct sg_program *p);

static inline const struct sg_unit_ops *sg_ops_of(const void *unit_program_state_or_run)
{
    return *(const struct sg_unit_ops *const *)unit_program_state_or_run;
}

#endif
