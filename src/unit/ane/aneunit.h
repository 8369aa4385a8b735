/* aneunit.h: what the files of the unit `ane` share above the device: the unit, programs made of parts of a graph
 * for a number of rows and keys, states, runs. Off a Mac the device is the software engine.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_ANEUNIT_H
#define SG_UNIT_ANE_ANEUNIT_H

#include <pthread.h>

#include "unit/ane/anecache.h"
#include "unit/ane/apple/apple.h"
#include "unit/ane/device.h"
#include "unit/ane/lower/lower.h"
#include "unit/ane/lower/lowerrange.h"
#include "unit/ane/rules/profile.h"
#include "unit/batch.h"
#include "unit/pool.h"
#include "unit/unit.h"

enum { ANE_KEYS_MIN = 512, ANE_KEYS_MAX = 4096, ANE_ROWS_MAX = 512, ANE_SETS = 24, ANE_LORAS = 4,
       ANE_LOADED_MAX = 48 }; /* programs of a unit, where one model's shape needs no more: heavy ones fail from 55 on */

/* weights=delta, and whether reloading patched files was found to work. */
enum { ANE_DELTA_OFF, ANE_DELTA_ASKED, ANE_DELTA_PROVEN, ANE_DELTA_REFUTED };

struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_desc desc;
    struct sg_apple_api world; /* of a real engine */
    struct sg_ane_profile profile;
    struct sg_ane_device *device;
    struct sg_pool *pool;   /* the helper's threads */
    uint32_t rows;          /* of every dispatch; 0: as the run wants */
    uint32_t by_weights;    /* range=weights: values are divided by powers of two that the weights ask for */
    uint32_t delta;         /* ANE_DELTA_* */
    uint32_t keys;          /* of every program; 0: as many as a session needs, up to ANE_KEYS_MAX */
    uint32_t layers;        /* of every program; 0: as many as fit (lowercut.h) */
    struct sg_program *first; /* all programs of this unit */
};
/* On the engine of this world, or on the software engine where world is NULL or the spec says soft. */
segue_status ane_open_on(struct sg_unit **out, const struct sg_unit_spec *spec, const struct sg_apple_api *world,
                         segue_error *err);
/* What a spent budget of compiles asks for: everything unloaded, a new process. EUNSUPPORTED on a real engine. */
segue_status ane_restart(struct sg_unit *u, segue_error *err);

/* --- programs --- */

/* The parts of a graph loaded for one shape. */
struct ane_set {
    struct sg_ane_shape shape;
    struct sg_ane_info info;
    struct sg_ane_program **programs;   /* [parts_n] */
    uint64_t info_bytes, border_bytes, state_bytes, lora_bytes; /* what their surfaces need, the largest of each */
    int kept;                           /* outputs of the graph live to the end */
    uint64_t used;                      /* for choosing which to let go */
};
/* Adapters as they lie on the engine: for all parts, in programs of one rank. */
struct ane_lora {
    uint64_t *ids;                      /* [n] */
    uint32_t n, rank;
    struct sg_ane_surface **surfaces;   /* [parts_n]; NULL: nothing is here */
    uint64_t bytes, used;
};
struct sg_program {
    struct sg_program_base base;
    struct sg_program *after;           /* in the unit's list */
    struct sg_ane_partition cut[2];           /* [1]: outputs of the graph are kept */
    struct sg_ane_range range;          /* value NULL: none */
    struct sg_ane_blobs *blobs;         /* [parts_n]; both cuts have the same operations in the same parts */
    struct sg_ane_cache *keep;           /* NULL: nothing is kept between starts */
    struct sg_ane_cache_entry *kept;           /* [parts_n] entries that blobs borrow */
    struct sg_hash *sources;            /* [tensors_n] of every byte of a tensor, its name and shape; with keep */
    atomic_uint_fast64_t compiles;      /* that an engine did; what came from the cache folder is none */
    struct ane_set *sets[ANE_SETS];
    struct sg_ane_surface *x[2], *info; /* rows between programs, in turn */
    uint64_t surface_bytes, info_bytes;
    uint32_t info_keys;                 /* the surface info is of a dispatch of one row with these keys ... */
    uint64_t info_first;                /* ... at this position; info_keys 0: of another one */
    struct ane_lora loras[ANE_LORAS];
    uint64_t uses;
};
segue_status ane_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, const struct sg_weight_cache *keep,
                         struct sg_program **programs, segue_error *err);
void ane_discard(struct sg_program *p);
/* The programs for that shape, loaded when they are not; surfaces x and info are large enough. */
/* The shape of a dispatch behind which a state has `end` rows; rank as in sg_ane_shape. ELIMIT: no state holds so many. */
segue_status ane_shape_of(const struct sg_program *p, uint32_t rows, uint64_t end, uint32_t rank, struct sg_ane_shape *out,
                          segue_error *err);
/* Rows of the next dispatch of `left` more for a state that has `held`. */
uint32_t ane_rows_for(const struct sg_program *p, uint64_t held, uint32_t left);
segue_status ane_set_of(struct sg_program *p, const struct sg_ane_shape *shape, int kept, struct ane_set **out,
                        segue_error *err);

/* Part i of a set: lowered, compiled unless the cache folder has it, loaded. */
segue_status ane_part_load(struct sg_program *p, struct ane_set *set, uint32_t i, segue_error *err);
segue_status ane_sources_hash(struct sg_program *p, const struct sg_weight_cache *keep, segue_error *err);

/* Everything unloaded; the next run compiles again. */
void ane_sets_drop(struct sg_program *p);
segue_status ane_weight_put(struct sg_program *p, uint32_t tensor, const float *in, segue_error *err);

/* --- adapters --- */

/* Columns that programs need for this span's adapters; 0: none of them changes this graph. */
uint32_t ane_lora_columns(const struct sg_program *p, const struct sg_span *span);
/* They on the engine, for programs of that set; NULL: the set has no rank. Valid until the next call. */
segue_status ane_lora_of(struct sg_program *p, const struct ane_set *set, const struct sg_span *span, struct ane_lora **out,
                         uint64_t *host_bytes, segue_error *err);
void ane_lora_free(struct sg_program *p, struct ane_lora *l);

/* --- states --- */

struct ane_slot {
    struct sg_slot slot;
    uint32_t numbers;       /* K, V: of a row; others: all */
    uint16_t *rows;         /* K, V: [rows_cap, numbers] fp16, of row `base` and those behind it */
    float *fixed;           /* CONV, DELTA: [numbers] */
    uint64_t rows_cap, base, first, end; /* rows [first, end) are held here */
    int given;
    uint32_t part, at, columns; /* while resident: the part that has it, its first channel, its ring */
    uint64_t there;         /* ... rows [there, state's rows) lie on the engine */
};
struct ane_mark {
    uint32_t number;
    uint64_t rows;
    float *copy;
    uint16_t *rows_copy;    /* of windows, once a ring is about to overwrite them; NULL: they are where they were */
};
struct sg_state {
    struct sg_state_base base;
    pthread_mutex_t lock;   /* guards busy and what is here */
    pthread_cond_t moved;
    int busy;
    uint64_t rows, synced;  /* of the sequence; of it here as well as on the engine */
    uint32_t slots_n, marks_n, marks_cap, marks_next;
    struct ane_slot *slots;
    struct ane_mark *marks;
    size_t fixed_numbers;
    /* on the engine; parts_n 0: nothing is */
    struct sg_ane_surface **now, **next; /* [parts_n] */
    uint32_t parts_n, keys;
    uint64_t surface_bytes, copied; /* copied: bytes between here and there, in all */
    int fixed_here;         /* fixed slots here are as on the engine */
    struct sg_arena arena;
};
segue_status ane_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                           const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
void ane_state_free(struct sg_state *s);
segue_status ane_state_fork(struct sg_state *s, struct sg_state **out, segue_error *err);
segue_status ane_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err);
segue_status ane_state_back(struct sg_state *s, uint32_t mark, segue_error *err);
void ane_state_drop(struct sg_state *s, uint32_t mark);
segue_status ane_state_cut(struct sg_state *s, uint64_t rows, segue_error *err);
void ane_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows);
uint64_t ane_state_bytes(const struct sg_state *s);
segue_status ane_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                           void *out, segue_error *err);
segue_status ane_state_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                           const void *in, segue_error *err);
/* Where the state lies on the engine: brought there in the layout of the program's parts and this many keys, when it
 * is not. bytes: of each surface. */
segue_status ane_state_upload(struct sg_state *s, struct sg_program *p, uint32_t keys, uint64_t bytes, segue_error *err);
/* Before a dispatch of n rows: marks keep their own copy of rows that it will overwrite, and what nobody sees goes. */
segue_status ane_state_prepare(struct sg_state *s, uint32_t n, segue_error *err);
/* Back here and gone from there. */
segue_status ane_state_download(struct sg_state *s, segue_error *err);
segue_status ane_state_sync(struct sg_state *s, segue_error *err); /* a copy of it here */
void ane_state_advance(struct sg_state *s, uint32_t rows);            /* what a dispatch of all parts left is now the state */

/* Rows of K and V here (anerows.c). */
int ane_is_rows(const struct sg_slot *s);
/* Rows that a row sees, itself among them; 0: all. A fixed number of keys shortens it. */
uint32_t ane_reach(const struct sg_state *st, const struct sg_slot *s);
/* The first row that the row behind `rows` rows sees. */
uint64_t ane_rows_needed(const struct sg_state *st, const struct ane_slot *s, uint64_t rows);
uint16_t *ane_row(const struct ane_slot *s, uint64_t row);
/* Room for rows [from, to) beside those held, which they touch; rows between `first` and `end` stay. EMEMORY. */
segue_status ane_rows_reserve(struct ane_slot *s, uint64_t from, uint64_t to, segue_error *err);
segue_status ane_rows_get(const struct ane_slot *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                          char *out, segue_error *err);
segue_status ane_rows_put(struct ane_slot *s, uint64_t from, uint64_t to, enum sg_storage storage, const char *in,
                          segue_error *err);

/* --- the helper: embedding, and what stands behind `rows` --- */

struct ane_host {
    const struct sg_graph *g;
    struct sg_pool *pool;
    float **values;         /* [values_n] fp32 rows; NULL: not there */
    uint32_t rows;          /* of values behind `rows` */
    uint64_t weight_bytes, ns;
    segue_error *err;
};
/* Rows [0, n) of an embedding; first: position of the first. */
segue_status ane_embed(struct ane_host *h, const struct sg_op *op, const int32_t *tokens, uint64_t first, uint32_t n,
                       float *out);
segue_status ane_host_op(struct ane_host *h, const struct sg_op *op, float *out);
/* Adds the adapters of a span, whose wanted rows begin with row `from` of out. */
segue_status ane_host_lora(struct ane_host *h, const struct sg_op *op, const struct sg_span *span, uint32_t from, float *out);

/* --- runs --- */

segue_status ane_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                       segue_error *err);
segue_status ane_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err);

#endif
