/* prefixstore.h: prefixes that were computed before, shared by all sessions of an engine and, on disk, by all that
 * run the same model. Kept as points in a tree over tokens; a hit compares tokens. Bounded in memory and on
 * disk: what saves least time a byte goes first. Any thread. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_PREFIXSTORE_H
#define SG_ENGINE_PREFIXSTORE_H

#include <pthread.h>

#include "engine/store/prefixtree.h"
#include "engine/statefile/statefile.h"

struct sg_store;
struct segue_session;

/* A file of the disk's part, seen when its folder was read. */
struct sg_store_file {
    struct sg_store_file *next;
    char *name;    /* in the folder */
};

struct sg_entry {
    struct sg_entry *next; /* of all */
    struct sg_kind *kind;  /* whose tree it is in */
    struct sg_node *node;
    struct sg_checkpoint *point;     /* in memory; NULL: on disk only */
    struct sg_store_file *file; /* on disk; NULL: in memory only */
    uint32_t file_point;        /* 0: the file's state, n: its point n */
    uint32_t logits;            /* 1: known after its last token */
    uint32_t hits;
    double clock;     /* the store's when it was used last */
    uint64_t read_ns; /* that computing it from nothing costs */
};

/* States that may stand for each other: the same units, kernels, storages of K and V, and adapters made them.
 */
struct sg_kind {
    struct sg_kind *next;
    struct sg_hash adapters;
    char unit[SG_STATE_TEXT], kernels[SG_STATE_TEXT];
    struct sg_node root;
    uint32_t ghosts;
    int stale; /* 1: another version of the library left files of this kind */
};

struct sg_store {
    pthread_mutex_t lock;
    const struct segue_engine *engine; /* not a reference: it owns the store */
    int exact;                         /* 1: states cannot be cut, so a point serves at its own row only */
    char *folder;                      /* NULL: memory only */
    uint64_t memory_budget, disk_budget;
    struct sg_kind *kinds;
    struct sg_entry *entries;
    struct sg_store_file *files;
    uint64_t seen_ns; /* the folder's time of change when it was read */
    double clock;
};

/* folder: "" = memory only. Budgets in bytes. */
segue_status sg_store_open(struct sg_store **out, const struct segue_engine *e, const char *folder,
                           uint64_t memory_bytes, uint64_t disk_bytes, segue_error *err);
/* Writes to disk what is in memory only. */
void sg_store_close(struct sg_store *s);

/* Look whether a longer prefix of the session's tokens is kept than it has computed, and go on from there. */
void sg_store_seek(struct sg_store *s, struct segue_session *session);
/* Keep the point, of the session's first point->rows tokens; takes a reference of its own. */
void sg_store_put(struct sg_store *s, const struct segue_session *session, struct sg_checkpoint *point);

/* --- prefixstore.c, for prefixdisk.c: with the lock held --- */
struct sg_kind *sg_store_kind(struct sg_store *s, struct sg_hash adapters, const char *unit,
                              const char *kernels);
/* The entry of these tokens, made when there is none; NULL: out of memory. */
struct sg_entry *sg_store_entry(struct sg_store *s, struct sg_kind *kind, const int32_t *tokens, size_t n);
/* Unlink and free an entry that has neither point nor file. */
void sg_store_drop(struct sg_store *s, struct sg_entry *e);

/* --- prefixdisk.c: with the lock held --- */
/* Read what is new in the folder. */
void sg_store_scan(struct sg_store *s);
/* Write an entry's point, with the points above it, to disk, as far as the budget allows. */
void sg_store_write(struct sg_store *s, struct sg_entry *e);
/* Make states of the entry's file in a layout. EFORMAT and the like: the file is dropped, and the entry loses
 * it. */
segue_status sg_store_read(struct sg_store *s, struct sg_entry *e, struct sg_layout *l, float *logits,
                           int *logits_known);
/* Its entries lose it, and it is freed; remove: from the disk too. */
void sg_store_forget_file(struct sg_store *s, struct sg_store_file *file, int remove);

#endif
