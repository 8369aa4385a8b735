/* aneunit.h: internal header of the unit `ane`, above the device interface (device.h): the unit, programs (parts of a graph,
 * compiled for one shape), states, host operations and runs.
 *
 * A shape is a number of rows per dispatch and a number of keys, that is positions of K and V that a program can attend to.
 * Programs have fixed shapes, so a graph is compiled again for each shape that a run needs.
 *
 * Files: ane.c: the unit's table; aneprogram.c, anepart.c, aneweights.c, anelora.c: programs and their weights; aneshape.c: the
 * choice of shapes; anestate.c, anestate_engine.c, anerows.c: states; anerun.c, aneborder.c, anehost.c, anewide.c:
 * runs; anehead.c, anechoose.c: tokens.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_ANEUNIT_H
#define SG_UNIT_ANE_ANEUNIT_H

#include "unit/ane/analysis/value_range.h"
#include "unit/ane/anecache.h"
#include "unit/ane/apple/apple.h"
#include "unit/ane/device.h"
#include "unit/ane/lower/lower.h"
#include "unit/ane/lower/lowerhead.h"
#include "unit/ane/rules/profile.h"
#include "unit/batch.h"
#include "unit/kv/kv_rows.h"
#include "unit/pool.h"
#include "unit/spec.h"
#include "unit/state_core.h"
#include "unit/unit.h"

enum {
    ANE_KEYS_MIN = 512,              /* keys of the smallest program; the number doubles while a sequence grows */
    ANE_KEYS_MAX = 4096,
    ANE_ROWS_MAX = 512,              /* rows of the largest dispatch */
    ANE_SETS = 24,                   /* shapes of one program that are loaded at a time */
    ANE_LORAS = 4,                   /* combinations of LoRA adapters of one program that are in surfaces at a time */
    ANE_LOADED_MAX = 48,             /* engine programs that a unit keeps loaded; loading heavy ones fails from about 55 on */
};

/* Option out_of_range=: what happens when results leave the range of fp16, see anewide.c.
 * Option weights=delta: whether weights may be changed by rewriting blob files and loading again without a compile. Sources
 * disagree on whether an engine then uses the new weights, so a probe decides before the first use. */
enum { ANE_LOSSES_REFUSE, ANE_LOSSES_FP32, ANE_LOSSES_COUNT };
enum { ANE_DELTA_OFF, ANE_DELTA_ASKED, ANE_DELTA_PROVEN, ANE_DELTA_REFUTED };

struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_desc desc;
    struct sg_apple_api api;         /* system functions of the private interface; unused with the software NPU */
    struct sg_ane_profile profile;   /* limits and speed of the chip */
    struct sg_ane_device *device;    /* owned */
    struct sg_pool *pool;            /* threads for host operations; owned */
    uint32_t columns;                /* of a port, at least and in multiples: rows of surfaces must be whole (constraint 1) */
    uint32_t rows;                   /* option rows=: rows of every dispatch; 0: chosen by ane_rows_for */
    uint32_t by_weights;             /* option range=: 1 = values are stored divided by powers of two, see value_range.h */
    uint32_t losses;                 /* option out_of_range=: ANE_LOSSES_* */
    uint32_t threads;                /* option threads= */
    enum sg_ane_storage storage;     /* option storage=: of matrices on the engine */
    struct sg_ane_device *wide;      /* software NPU that computes in fp32, made when it is needed; owned */
    uint32_t delta;                  /* ANE_DELTA_* */
    struct sg_fault fault;           /* option fault=, of the software NPU */
    uint32_t keys;                   /* option keys=: keys of every program; 0: as many as the sequence needs */
    uint32_t layers;                 /* option layers=: layers per engine program; 0: as many as fit */
    uint32_t head;                   /* option head=: 1 = the engine computes the output head and chooses greedy tokens */
    uint64_t row_ids;                /* last sg_program.row_id */
    struct sg_program *programs;     /* all programs of this unit, linked by `next` */
};
/* api: of the private interface; NULL: the machine has none. `soft` in the spec, or NULL and no word: the software NPU; `linux`:
 * the open driver. */
segue_status ane_open_on(struct sg_unit **out, const struct sg_unit_spec *spec, const struct sg_apple_api *api,
                         segue_error *err);
/* Unloads the programs of all models and resets the compile budget, which a real engine counts per process. ELIMIT: a real
 * engine; the process must be started again. */
segue_status ane_restart(struct sg_unit *u, segue_error *err);

/* --- programs --- */

/* The parts of a graph, loaded for one shape. */
struct ane_set {
    struct sg_ane_shape shape;
    struct sg_ane_info info;             /* layout of the info surface: positions and masks */
    struct sg_ane_program **programs;    /* [parts_n] of the device */
    struct sg_ane_program **wide;        /* NULL, or [parts_n] of u->wide; NULL entries: not loaded */
    uint64_t *layout_ops;                /* [parts_n] operations of each program that only move numbers */
    /* Bytes per surface: maximum over the parts, for each role of a port. border: values between parts. */
    uint64_t info_bytes, border_bytes, state_bytes, lora_bytes;
    int all_rows;                        /* index of the partition: 1 = outputs of the graph are written for all rows */
    uint64_t used;                       /* value of sg_program.uses at the last use; the smallest is evicted first */
};
/* One combination of LoRA adapters in surfaces, for programs of one padded rank. */
struct ane_lora {
    uint64_t *ids;                       /* [n] adapters, in the order of the span */
    uint32_t n, lora_rank;               /* lora_rank: padded, see ane_lora_columns */
    struct sg_ane_surface **surfaces;    /* [parts_n], NULL for parts without adapters; NULL: the entry is free */
    uint64_t bytes, used;                /* bytes of each surface; `used` as in ane_set */
};
/* A graph. The unit's programs and runs are used by one thread at a time, except for the atomic counters. */
struct sg_program {
    struct sg_program_base base;
    struct sg_program *next;             /* in the unit's list */
    struct sg_ane_partition cut[2];      /* [0]: only wanted rows leave the last part; [1]: outputs are written for all rows.
                                          * Both have the same operations in the same parts */
    struct sg_ane_range range;           /* value NULL: no range plan */
    struct sg_ane_blobs *blobs;          /* [parts_n + 1] weights in fp16, shared by all shapes; the last: of the head */
    struct sg_ane_cache *cache;          /* NULL: no cache folder */
    struct sg_ane_cache_entry *cache_entries;    /* [parts_n + 1] mapped entries whose bytes `blobs` uses */
    struct sg_hash *source_hashes;       /* [tensors_n] of description and bytes; only with a cache */
    atomic_uint_fast64_t compiles;       /* compiles by the engine; programs found in the cache do not count */
    struct ane_set *sets[ANE_SETS];      /* NULL: free */
    struct sg_ane_surface *x[2], *info;  /* x: input and output of a part, exchanged after each part */
    uint64_t surface_bytes, info_bytes;  /* sizes of x and info */
    uint32_t info_keys;                  /* `info` describes a one-row dispatch with these keys; 0: anything else ... */
    uint64_t info_first;                 /* ... at this position */
    struct ane_lora loras[ANE_LORAS];
    uint64_t uses;                       /* clock for `used` */
    struct sg_ane_head head;             /* linear NULL: the host computes the output head */
    struct sg_ane_program *head_program; /* NULL: not loaded */
    uint64_t head_layout_ops;            /* as in ane_set */
    /* Column 0 of x[row_turn] has the row of a token that the engine chose, after row_at tokens of the state with this row_id;
     * 0: it does not. */
    uint64_t row_id, row_at;
    int row_turn;
    int on_helper;                       /* 1: results left the range of fp16, dispatches run on u->wide from then on */
};
segue_status ane_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, const struct sg_weight_cache *keep,
                         struct sg_program **programs, segue_error *err);
void ane_discard(struct sg_program *p);

/* The shape of a dispatch of `rows` rows after which the sequence has `end` tokens. rank: padded LoRA rank, 0 = none. ELIMIT:
 * more than ANE_KEYS_MAX positions, and some layer attends to all of them. */
segue_status ane_shape_of(const struct sg_program *p, uint32_t rows, uint64_t end, uint32_t rank, struct sg_ane_shape *out,
                          segue_error *err);
/* Rows of the next dispatch when a state of `held` tokens is to get `left` more. shapes: as in struct sg_batch. */
uint32_t ane_rows_for(const struct sg_program *p, uint64_t held, uint32_t left, const uint32_t *shapes);
/* The loaded programs of a shape; they are compiled and loaded if necessary. Surfaces x and info are large enough for them
 * afterwards. *out is valid until the next call. */
segue_status ane_set_of(struct sg_program *p, const struct sg_ane_shape *shape, int all_rows, struct ane_set **out,
                        segue_error *err);
/* Unloads all shapes of a program; the next run loads what it needs. */
void ane_sets_drop(struct sg_program *p);

/* Lowers part i of a set, compiles it unless the cache has it, and loads it on device d: the unit's, or u->wide. */
segue_status ane_part_load(struct sg_program *p, struct ane_set *set, uint32_t i, struct sg_ane_device *d,
                           struct sg_ane_program **out, segue_error *err);
/* The same for the program of the head. */
segue_status ane_head_load(struct sg_program *p, struct sg_ane_program **out, segue_error *err);
/* Fills source_hashes. Reads all weights unless the cache has the hashes of exactly these files. */
segue_status ane_sources_hash(struct sg_program *p, const struct sg_weight_cache *keep, segue_error *err);

/* Loads the program of the head unless it is loaded; unloads it. */
segue_status ane_head_ready(struct sg_program *p, segue_error *err);
void ane_head_drop(struct sg_program *p);
/* The token with the highest logit for the row in column 0 of x[turn]; overwrites x[!turn]. EUNSUPPORTED: the logit exceeds fp16.
 * ELIMIT: the program is not loaded. */
segue_status ane_head_evaluate(struct sg_program *p, int turn, int32_t *token, segue_error *err);

/* Member of struct sg_unit_ops. EUNSUPPORTED: host operations read this tensor from the model file. */
segue_status ane_weight_put(struct sg_program *p, uint32_t tensor, const float *in, segue_error *err);

/* --- LoRA adapters --- */

/* The padded rank that programs need for the adapters of a span; 0: none of them changes this graph. */
uint32_t ane_lora_columns(const struct sg_program *p, const struct sg_span *span);
/* Surfaces with the adapters of a span, for the programs of `set`. *out NULL: the shape has no rank. Valid until the next call.
 * *host_bytes grows by the bytes that were copied. */
segue_status ane_lora_of(struct sg_program *p, const struct ane_set *set, const struct sg_span *span, struct ane_lora **out,
                         uint64_t *host_bytes, segue_error *err);
void ane_lora_free(struct sg_program *p, struct ane_lora *l);

/* --- states --- */

/* A slot has a host copy and, while the state is resident on the engine, a copy in the state surface of one part. K and V on
 * the host: fp16 rows of positions [core.first, host_end). On the engine: a ring of the last positions, [ring_first, tokens).
 * While the state is resident core.end is `tokens`, although host_end may be smaller. */
struct ane_slot {
    struct sg_core_slot core;
    uint32_t elems;                  /* K, V: per position (heads * width); CONV, DELTA: of the whole slot */
    struct sg_rows rows;             /* K, V: rows on the host, fp16 */
    float *fixed;                    /* CONV, DELTA: [elems] fp32 (fp16 on the engine); in fixed_memory or the arena */
    uint64_t host_end;
    /* While resident: */
    uint32_t part, channel, ring;    /* part, first channel in its state surface, positions of the ring */
    uint64_t ring_first;
};
struct sg_state {
    struct sg_state_core core;
    float **undo;                    /* [marks_cap] copies of all CONV and DELTA slots, one after the other */
    uint16_t **undo_rows;            /* [marks_cap] K and V rows that a ring overwrote after the mark; NULL: none were */
    uint64_t synced;                 /* length of the sequence at the last sync: up to there the host copy is complete */
    struct sg_ane_surface **now, **next;     /* [parts_n] current contents, and the target of the dispatch in progress */
    uint32_t parts_n, keys;          /* parts_n 0: not resident; keys: of the layout */
    uint64_t surface_bytes;          /* of each surface */
    uint64_t copied;                 /* bytes copied between host and surfaces since the state was made */
    int fixed_here;                  /* 1: `fixed` of all slots is up to date */
    float *logits;                   /* NULL, or [vocab] of the token before position logits_at; owned */
    uint64_t logits_at, row_id;      /* row_id: see sg_program */
    struct sg_arena arena;           /* owns undo, undo_rows and, without fixed_memory, fixed */
    void *fixed_memory;              /* of core.host, which takes the slots over at a hand-off; NULL: none */
};
static inline struct ane_slot *ane_slot_at(const struct sg_state *s, uint32_t i)
{
    return (struct ane_slot *)(void *)sg_core_slot_at(&s->core, i);
}

/* Members of struct sg_unit_ops that state_core.h does not provide. */
segue_status ane_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                           const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
void ane_state_free(struct sg_state *s);
uint64_t ane_state_bytes(const struct sg_state *s);
segue_status ane_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                           void *out, segue_error *err);
segue_status ane_state_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                           const void *in, segue_error *err);
segue_status ane_state_at(struct sg_state *s, uint32_t slot, int write, void **out, segue_error *err);
segue_status ane_state_rows(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            const void **out, segue_error *err);
/* Before a dispatch of n rows: saves for each mark the rows that the dispatch will overwrite in a ring, and forgets rows on the
 * host that neither the next token nor a mark can attend to. */
segue_status ane_state_prepare(struct sg_state *s, uint32_t n, segue_error *err);

/* anestate_engine.c. upload: makes the state resident in the layout of the program's parts with this many keys; `bytes` per
 * surface. sync: brings the host copy up to date. download: sync, then the surfaces are freed. leave: frees the surfaces; the
 * host copy is all that remains. advance: a dispatch of all parts succeeded, `next` becomes `now`. */
segue_status ane_state_upload(struct sg_state *s, struct sg_program *p, uint32_t keys, uint64_t bytes, segue_error *err);
segue_status ane_state_sync(struct sg_state *s, segue_error *err);
segue_status ane_state_download(struct sg_state *s, segue_error *err);
void ane_state_leave(struct sg_state *s);
void ane_state_advance(struct sg_state *s, uint32_t rows);

/* anerows.c: K and V rows on the host. */

/* Positions that a token attends to, itself included; 0: all. Option keys= shortens the window of the model. */
uint32_t ane_reach(const struct sg_state *st, const struct sg_slot *s);
/* First position that the token after `tokens` tokens attends to. Member of struct sg_state_core_ops. */
uint64_t ane_first_needed(const struct sg_state *st, uint32_t slot, uint64_t tokens);
/* Of a slot without rows. host, tokens: of struct sg_state_opts. */
void ane_rows_init(struct ane_slot *s, const struct sg_host_memory *host, uint64_t tokens);
/* The row [elems] of a position whose block exists. To write to it, own the block first. */
uint16_t *ane_row(const struct ane_slot *s, uint64_t pos);
/* Makes the blocks of positions [from, to) exist with this slot as their only user; shared ones are copied. EMEMORY. */
segue_status ane_rows_own(struct ane_slot *s, uint64_t from, uint64_t to, segue_error *err);
/* Releases the blocks outside of [core.first, host_end). */
void ane_rows_trim(struct ane_slot *s);
/* Copy held positions [from, to) to or from the canonical layout. write owns the blocks; the caller then updates host_end. */
segue_status ane_rows_read(const struct ane_slot *s, uint64_t from, uint64_t to, enum sg_storage storage, char *out,
                           segue_error *err);
segue_status ane_rows_write(struct ane_slot *s, uint64_t from, uint64_t to, enum sg_storage storage, const char *in,
                            segue_error *err);

/* --- host operations: what the engine does not compute --- */

/* The values of a run in host memory, fp32. Host operations are the embeddings before the first part and the operations after
 * the selection of wanted rows. */
struct ane_host {
    const struct sg_graph *g;
    struct sg_pool *pool;
    float **values;                  /* [values_n], [rows of the run][width]; NULL: not computed */
    uint32_t rows;                   /* wanted rows of the run: the rows that ane_host_op computes */
    uint64_t weight_bytes, ns;       /* weight bytes read, and time spent, by host operations */
    segue_error *err;
};
/* Embeds n tokens, the first at position `first`, to out[n][width]. */
segue_status ane_embed(struct ane_host *h, const struct sg_op *op, const int32_t *tokens, uint64_t first, uint32_t n,
                       float *out);
/* Computes an operation for all wanted rows to out[rows][width]. */
segue_status ane_host_op(struct ane_host *h, const struct sg_op *op, float *out);
/* Adds the LoRA adapters of a span to the result of a linear operation. The wanted rows of the span begin at row `from`. */
segue_status ane_host_lora(struct ane_host *h, const struct sg_op *op, const struct sg_span *span, uint32_t from, float *out);

/* --- results beyond the range of fp16 (anewide.c) --- */

/* Takes the losses of the dispatches since the last call and adds them to *overflows and *underflows. EUNSUPPORTED: more than
 * the unit accepts; the text names the operation and the remedy. */
segue_status ane_losses_check(struct sg_unit *u, uint64_t *overflows, uint64_t *underflows, segue_error *err);
/* Evaluates a part of a set in fp32 on the host. Its ports are copied from and to the surfaces of the unit's device, of(context,
 * role, is_output). */
segue_status ane_wide_evaluate(struct sg_program *p, struct ane_set *set, uint32_t part,
                               struct sg_ane_surface *(*of)(void *context, enum sg_ane_role role, int is_output), void *context,
                               segue_error *err);

/* --- runs: members of struct sg_unit_ops --- */

segue_status ane_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                       segue_error *err);
segue_status ane_state_logits(struct sg_state *s, float *out, segue_error *err);

#endif
