/* statefile.h: states as files, in the format of docs/STATE.md: one walk over the header for both directions,
 * a reader that believes nothing, a writer that holds no slot whole. The command reads files through this
 * header too (state info, verify, convert). One thread at a time per object. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_STATEFILE_H
#define SG_ENGINE_STATEFILE_H

#include "base/file.h"
#include "base/hash.h"
#include "engine/checkpoint.h"
#include "graph/graph.h"

enum {
    SG_STATE_VERSION = 2,
    SG_STATE_LAYOUT = 1, /* of docs/STATE.md, "Slots" */
    SG_STATE_TEXT = 96,
    SG_STATE_POINTS = 8 /* at most in a file */
};

struct sg_state_head {
    uint32_t version, library;
    uint64_t file_bytes, tokens_n, rows, tokens_at, logits_at, vocab, read_ns;
    uint32_t layout, slots_n, checkpoints_n;
    char shape_id[32], weights_id[32]; /* hex, no NUL */
    struct sg_hash adapters, tokens_sum, logits_sum;
    struct sg_hash joined[2]; /* of several storages: the first two ids that weights_id joins; else zero */
    char unit[SG_STATE_TEXT], kernels[SG_STATE_TEXT];
};

struct sg_state_slot {
    struct sg_slot slot;
    enum sg_storage storage;
    uint32_t point; /* 0: of the state itself; n: of point n - 1 */
    uint64_t first, end, at, bytes;
    struct sg_hash sum;
};

struct sg_state_point {
    uint64_t rows, logits_at; /* 0: no logits */
    struct sg_hash logits_sum;
};

/* A file that was opened: every number in it is within the map and within itself consistent. */
struct sg_statefile {
    const char *path;
    struct sg_map map;
    struct sg_state_head head;
    struct sg_state_slot *slots;                   /* [head.slots_n] */
    struct sg_state_point points[SG_STATE_POINTS]; /* [head.checkpoints_n] rising rows */
    int borrowed;                                  /* 1: the map is the caller's */
    int text_only; /* 1: behind the tokens something is damaged; why is what open said */
};

/* --- stateformat.c --- */
/* Maps and checks everything that can be checked without a model, checksums included. EFORMAT: damage, named;
 * EUNSUPPORTED: another version of the format. A failure closes the file, unless only what lies behind header
 * and tokens is damaged and `salvage` is 1: then text_only is set and the status given. */
segue_status sg_statefile_open(struct sg_statefile *f, const char *path, int salvage, segue_error *err);
/* Header and tokens alone: fast, and enough to know what the file claims to be. */
segue_status sg_statefile_peek(struct sg_statefile *f, const char *path, segue_error *err);
/* The same for bytes of the caller, which stay his. */
segue_status sg_statefile_of(struct sg_statefile *f, const void *bytes, size_t n, int salvage,
                             segue_error *err);
void sg_statefile_close(struct sg_statefile *f);
const int32_t *sg_statefile_tokens(const struct sg_statefile *f); /* [head.tokens_n] */
/* The names of `--dump`: "k", "v", "conv", "rec". */
const char *sg_state_kind(enum sg_slot_kind kind);

/* Writing: head and tables are filled by whoever writes the sections; sums of a section in pieces of whole
 * rows. */
uint64_t sg_state_header_bytes(uint32_t slots_n, uint32_t checkpoints_n);
uint64_t sg_state_aligned(uint64_t at);
size_t sg_state_piece(size_t row_bytes); /* row_bytes 0: not rows */
void sg_state_add_sum(struct sg_hash *sum, const void *bytes, size_t n);
struct sg_hash sg_state_sum(const void *bytes, size_t n, size_t piece);
segue_status sg_state_put_header(struct sg_file_out *out, const struct sg_statefile *f, segue_error *err);
/* A section at the next place behind *end: aligned, with its sum. */
segue_status sg_state_put_section(struct sg_file_out *out, const void *bytes, size_t n, uint64_t *end,
                                  uint64_t *at, struct sg_hash *sum, segue_error *err);

/* --- statesave.c --- */
/* What goes into a file. */
struct sg_save {
    const struct segue_engine *engine;
    struct sg_hash adapters;
    const char *unit, *kernels;
    const int32_t *tokens; /* [tokens_n]; the first `rows` are in the states */
    size_t tokens_n;
    struct sg_layout *layout;
    uint64_t rows, read_ns;
    const float *logits;            /* [vocab] or NULL */
    struct sg_checkpoint *const *points; /* [checkpoints_n] below `rows`, rising */
    uint32_t checkpoints_n;
};
/* 1: a file can hold points of this graph's states. */
int sg_state_points_fit(const struct sg_graph *g);
segue_status sg_state_save(const struct sg_save *v, const char *path, segue_error *err);
struct segue_session;
/* Checksum over the matrices of a session's adapters; zero without. */
struct sg_hash sg_adapters_id(const struct segue_session *s);
/* Which units made a session's states (specs, reading > writing, without threads), and with which
 * instructions. */
void sg_made_by(const struct segue_session *s, char unit[SG_STATE_TEXT], char kernels[SG_STATE_TEXT]);

/* --- stateload.c --- */
/* EFORMAT, named, unless the file's slots are those of the engine's model, with these adapters. */
segue_status sg_statefile_fits(const struct sg_statefile *f, const struct segue_engine *e,
                               struct sg_hash adapters, segue_error *err);
/* The logits after the state's (0) or a point's last row; NULL: not known. */
const float *sg_statefile_logits(const struct sg_statefile *f, uint32_t point);
/* Fill empty states of a layout. points (may be NULL): [SG_STATE_POINTS] forks made on the way, *checkpoints_n of
 * them; upto: 0 = all, else stop at that point. */
segue_status sg_statefile_fill(const struct sg_statefile *f, const struct segue_engine *e,
                               struct sg_layout *l, uint32_t upto, struct sg_checkpoint **points,
                               uint32_t *checkpoints_n, segue_error *err);

/* --- stateconvert.c --- */
/* Another storage of K and V, in a new file. */
segue_status sg_statefile_convert(const struct sg_statefile *f, enum sg_storage kv, const char *path,
                                  segue_error *err);
/* As safetensors, with the names and shapes of a dump. */
segue_status sg_statefile_tensors(const struct sg_statefile *f, const char *path, segue_error *err);

/* --- statedump.c: from the canonical layout to that of a dump --- */
void sg_dump_heads(const struct sg_slot *slot, size_t n, const float *rows,
                   float *heads);                                                  /* [row][head][width] */
void sg_dump_turned(const struct sg_slot *slot, const float *rows, float *turned); /* [row][channel] */

/* --- stateverify.c --- */
struct sg_verdict {
    double worst,
        bound;     /* relative error of a slot: rms of the difference over rms of what was computed anew */
    char name[32]; /* the worst slot */
    uint32_t bad, slots; /* slots beyond the bound, of how many */
};
/* Compute the tokens of the file anew, with the options' plan and adapters, and compare every slot. EFORMAT:
 * the file is of another model. */
segue_status sg_statefile_verify(const struct sg_statefile *f, struct segue_engine *e,
                                 const segue_session_opts *opts, struct sg_verdict *out, segue_error *err);

#endif
