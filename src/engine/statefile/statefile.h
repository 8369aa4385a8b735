/* statefile.h: reading, writing and converting state files, in the format of docs/STATE.md. The reader checks every number
 * and checksum before use; the writer streams the slots in pieces. Used by sessions, by the prefix store and by the
 * commands `segue state info|verify|convert`. Knows engines and layouts, no sessions. One thread at a time per object.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_STATEFILE_H
#define SG_ENGINE_STATEFILE_H

#include "base/file.h"
#include "base/hash.h"
#include "engine/placement/checkpoint.h"
#include "graph/graph.h"

enum {
    SG_STATE_VERSION = 2,
    SG_STATE_LAYOUT = 1,     /* version of the layout of slots, docs/STATE.md "Slots" */
    SG_STATE_TEXT = 96,      /* bytes of a text field, with its NUL */
    SG_STATE_SLOTS = 65536,  /* maximum number of slots in a file, */
    SG_STATE_CHECKPOINTS = 8 /* and of checkpoints */
};
/* What a reader accepts. */
enum {
    SG_STATE_SALVAGE = 1,    /* a file of which only header and tokens are valid */
    SG_STATE_TRAINER = 2     /* also the state of a trainer; else only states of sequences */
};

/* What computed a state. States of equal origin (and equal weights) can replace each other bit for bit. */
struct sg_state_origin {
    struct sg_hash adapters;     /* over the matrices of all adapters; zero without adapters */
    char unit[SG_STATE_TEXT];    /* unit specs, prefill > decode, without the number of threads */
    char kernels[SG_STATE_TEXT]; /* instruction sets and storage of K and V of these units */
};

/* The header. Offsets (*_at) are in bytes from the start of the file. */
struct sg_state_head {
    uint32_t version, library;
    uint64_t file_bytes, tokens_n;
    uint64_t rows; /* tokens in the states, at most tokens_n; of a trainer: updates, and tokens_n is 0 */
    uint64_t tokens_at, logits_at, vocab;
    uint64_t read_ns; /* time it took to compute the states; 0: unknown */
    uint32_t layout, slots_n, checkpoints_n;
    char shape_id[32], weights_id[32]; /* hex, no NUL */
    struct sg_hash adapters, tokens_sum, logits_sum;
    struct sg_hash joined[2]; /* with two model files: the two ids that weights_id joins; else zero */
    struct sg_hash run;       /* of a trainer: of its data and settings; zero: the file is of a sequence */
    char unit[SG_STATE_TEXT], kernels[SG_STATE_TEXT];
};

/* One slot of the state or of a checkpoint. K and V are stored once; checkpoints share them. */
struct sg_state_slot {
    struct sg_slot slot;
    enum sg_storage storage;
    uint32_t checkpoint; /* 0: of the state itself; n: of checkpoint n - 1 */
    uint64_t first, end; /* positions held, K and V only; of a trainer: first = hash of the parameter's name; else 0 */
    uint64_t at, bytes;  /* section in the file */
    struct sg_hash sum;
};

/* A checkpoint of a file. Its K and V are those of the state up to `rows`. */
struct sg_state_checkpoint {
    uint64_t rows;      /* tokens in the states */
    uint64_t logits_at; /* 0: no logits */
    struct sg_hash logits_sum;
};

/* An opened file: all numbers were checked against the mapping and against each other. */
struct sg_statefile {
    const char *path; /* the caller's */
    struct sg_map map;
    struct sg_state_head head;
    struct sg_state_slot *slots;                   /* [head.slots_n] */
    struct sg_state_checkpoint checkpoints[SG_STATE_CHECKPOINTS]; /* [head.checkpoints_n] in ascending order of rows */
    int borrowed;                                  /* 1: the mapping is the caller's memory */
    int text_only;                                 /* 1: only header and tokens are valid, the rest is damaged */
};

/* --- stateformat.c --- */
/* Maps a file and checks everything that needs no model, checksums included. accept: flags above. EFORMAT: damaged, with the
 * reason, or the state of a trainer that is not accepted; EUNSUPPORTED: another format version. On failure the file is closed,
 * except with SG_STATE_SALVAGE when header and tokens are valid: then text_only is set, the file stays open and the status is
 * returned. */
segue_status sg_statefile_open(struct sg_statefile *f, const char *path, int accept, segue_error *err);
/* Checks header and tokens only: fast, and enough to see what the file contains. */
segue_status sg_statefile_peek(struct sg_statefile *f, const char *path, segue_error *err);
/* sg_statefile_open for n bytes in memory, which remain the caller's. */
segue_status sg_statefile_open_memory(struct sg_statefile *f, const void *bytes, size_t n, int accept,
                                      segue_error *err);
void sg_statefile_close(struct sg_statefile *f);
const int32_t *sg_statefile_tokens(const struct sg_statefile *f); /* [head.tokens_n] */
/* Logits [head.vocab] of the state (0) or of checkpoint number n - 1 (n); NULL: none. */
const float *sg_statefile_logits(const struct sg_statefile *f, uint32_t checkpoint);
/* Slot names as in `segue eval --dump`: "k", "v", "conv", "rec"; of a trainer "value", "moment1", "moment2". */
const char *sg_state_kind(enum sg_slot_kind kind);
/* 1: K or V, one row per token; 0: a recurrent slot of fixed size. */
int sg_state_has_rows(const struct sg_slot *s);

/* For writers. The caller fills head, slots and checkpoints while it writes the sections, and writes the header last. */
uint64_t sg_state_header_bytes(uint32_t slots_n, uint32_t checkpoints_n);
/* `at` rounded up to the alignment of sections. */
uint64_t sg_state_aligned(uint64_t at);
/* Bytes that are hashed at once: a multiple of row_bytes; row_bytes 0: a recurrent slot. */
size_t sg_state_piece(size_t row_bytes);
/* Adds the next piece to a section's checksum. */
void sg_state_add_sum(struct sg_hash *sum, const void *bytes, size_t n);
struct sg_hash sg_state_sum(const void *bytes, size_t n, size_t piece);
segue_status sg_state_put_header(struct sg_file_out *out, const struct sg_statefile *f, segue_error *err);
/* Writes a section at the next aligned offset after *end; returns its offset and checksum and advances *end. */
segue_status sg_state_put_section(struct sg_file_out *out, const void *bytes, size_t n, uint64_t *end,
                                  uint64_t *at, struct sg_hash *sum, segue_error *err);

/* --- statesave.c --- */
/* Contents of a file to write. */
struct sg_state_contents {
    const struct segue_engine *engine;
    const struct sg_state_origin *origin;
    const int32_t *tokens; /* [tokens_n]; the first `computed` are in the states */
    size_t tokens_n;
    struct sg_layout *layout; /* with states */
    uint64_t computed, prefill_ns;
    const float *logits;                      /* [vocab] or NULL */
    struct sg_checkpoint *const *checkpoints; /* [checkpoints_n] below `computed`, in ascending order of length */
    uint32_t checkpoints_n;
};
/* 1: a file can hold checkpoints of this graph's states (recurrent slots, and no sliding windows). */
int sg_state_can_hold_checkpoints(const struct sg_graph *g);
/* Writes a temporary file and renames it. */
segue_status sg_state_save(const struct sg_state_contents *v, const char *path, segue_error *err);

/* --- trainstate.c: segue_trainer_save and segue_trainer_load --- */
struct segue_trainer;
segue_status sg_trainstate_save(const struct segue_trainer *t, const char *unit, const char *run, const char *path,
                                segue_error *err);
segue_status sg_trainstate_load(struct segue_trainer *t, const char *run, const char *path, segue_error *err);

/* --- stateload.c --- */
/* EFORMAT: the file's shape, weights, adapters or slots differ from the engine's model and `adapters`. */
segue_status sg_statefile_fits(const struct sg_statefile *f, const struct segue_engine *e,
                               struct sg_hash adapters, segue_error *err);
/* Fills the empty states of a layout. checkpoints (may be NULL): [SG_STATE_CHECKPOINTS] receives a fork at each checkpoint,
 * *checkpoints_n of them, also on failure. upto: 0 = load the state, n = stop at checkpoint n - 1. */
segue_status sg_statefile_fill(const struct sg_statefile *f, const struct segue_engine *e,
                               struct sg_layout *l, uint32_t upto, struct sg_checkpoint **checkpoints,
                               uint32_t *checkpoints_n, segue_error *err);

/* --- stateconvert.c --- */
/* Writes the state with another storage of K and V to a new file. */
segue_status sg_statefile_convert(const struct sg_statefile *f, enum sg_storage kv, const char *path,
                                  segue_error *err);
/* Writes tokens, logits and slots as safetensors, with the names and shapes of a dump. */
segue_status sg_statefile_tensors(const struct sg_statefile *f, const char *path, segue_error *err);

/* --- dump_layout.c --- */
/* [n, heads, width] to [heads, n, width]. */
void sg_dump_heads(const struct sg_slot *slot, size_t n, const float *rows, float *heads);
/* A convolution slot from [step, channel] to [channel, step]. */
void sg_dump_conv(const struct sg_slot *slot, const float *rows, float *transposed);

#endif
