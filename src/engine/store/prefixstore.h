/* prefixstore.h: cache of states of token prefixes, shared by all sessions of an engine and, through a folder, by all
 * processes that run the same model. Entries are checkpoints in a radix tree over tokens; a hit compares tokens, not hashes.
 * Memory and disk are bounded; the entry that saves the least time per byte is evicted first. Any thread.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_PREFIXSTORE_H
#define SG_ENGINE_PREFIXSTORE_H

#include <pthread.h>

#include "engine/statefile/statefile.h"
#include "engine/store/prefixtree.h"

/* A state file in the store's folder. */
struct sg_store_file {
    struct sg_store_file *next;
    char *name; /* within the folder */
};

/* The states of one prefix: in memory, on disk, or both. */
struct sg_store_entry {
    struct sg_store_entry *next;      /* of all entries of the store */
    struct sg_store_class *class;     /* in whose tree it is */
    struct sg_prefix_node *node;      /* gives the tokens */
    struct sg_checkpoint *checkpoint; /* a reference; NULL: on disk only */
    struct sg_store_file *file;       /* NULL: in memory only */
    uint32_t file_checkpoint;         /* 0: the file's state, n: its checkpoint n - 1 */
    uint32_t has_logits;              /* 1: the logits after the last token are stored */
    uint32_t pins;                    /* threads that read or write its file; it stays in the tree meanwhile */
    uint32_t unwritable;              /* 1: it could not be written, for example because it exceeds the disk budget */
    uint32_t hits;
    double clock;        /* the store's clock at the last use */
    uint64_t prefill_ns; /* time to compute it from the first token; 0: unknown */
};

/* All prefixes whose states have the same origin and can therefore replace each other. */
struct sg_store_class {
    struct sg_store_class *next;
    struct sg_state_origin origin;
    struct sg_prefix_node root;
    uint32_t ghosts; /* nodes in the tree that mark an evicted entry */
    int stale;       /* 1: the folder has files of this origin from another library version */
};

struct sg_store {
    pthread_mutex_t lock;              /* not held while files are read or written, nor while states are copied */
    pthread_mutex_t disk;              /* held while a file is written, so that the disk budget holds; taken before `lock` */
    pthread_cond_t changed;            /* an entry is not pinned any more, a scan ended, or the writer may have work */
    pthread_t writer;                  /* writes entries before memory is short; started when it first has work */
    uint32_t writer_started, writer_idle, closing; /* idle: it has seen everything since it was last woken */
    uint32_t scanning;                 /* 1: a thread reads the folder */
    const struct segue_engine *engine; /* owns the store; no reference */
    int exact;                         /* 1: states cannot be cut, so a checkpoint is usable only at its own position */
    char *folder;                      /* NULL: memory only */
    uint64_t memory_budget, disk_budget; /* bytes */
    uint64_t limit;                      /* bytes of entries in memory: the budget, or less after sg_store_shrink */
    uint64_t written_ahead, written_late; /* files by the writer, and by threads that had to wait for them */
    struct sg_store_class *classes;
    struct sg_store_entry *entries;
    struct sg_store_file *files;
    uint64_t seen_ns; /* modification time of the folder when it was last read */
    double clock;     /* value of the last evicted entry: ages entries that are not used (GreedyDual) */
};

/* folder: "" = memory only. Budgets in bytes; 0 = default. Creates the folder. */
segue_status sg_store_open(struct sg_store **out, const struct segue_engine *e, const char *folder,
                           uint64_t memory_bytes, uint64_t disk_bytes, segue_error *err);
/* Writes entries that are only in memory to disk, then frees the store. NULL is allowed. */
void sg_store_close(struct sg_store *s);

/* A search: the longest usable prefix of tokens. */
struct sg_store_query {
    const struct sg_state_origin *origin;
    const int32_t *tokens; /* [tokens_n] */
    size_t tokens_n;
    size_t computed;                /* a hit must save at least some tokens beyond these */
    const struct sg_layout *layout; /* where states read from disk are placed */
    float *logits;                  /* [vocab] buffer for logits read from disk; undefined unless logits_known */
};

/* The result. Either `checkpoint` or `states` holds states of at least `tokens_n` matching tokens; the caller cuts them. */
struct sg_store_hit {
    struct sg_checkpoint *checkpoint; /* a reference, to be released; NULL: none in memory */
    struct sg_layout states;          /* read from disk, the caller's; without states: none */
    size_t states_n;                  /* tokens in `states` */
    size_t tokens_n;                  /* tokens to keep; 0: no hit */
    int read_disk;                    /* 1: a file was read, so query.logits changed */
    int logits_known;                 /* 1: query.logits are valid */
    size_t matched_n;                 /* tokens that stored prefixes have in common with the query */
    int diverges;                     /* 1: stored prefixes continue with other tokens than the query */
    const char *reason;               /* why fewer tokens than matched are reused (segue_stats.reuse_reason); NULL: none */
};
/* 1: sg_store_find would read files, so a thread that computes answers should leave it to another one. */
int sg_store_reads_disk(struct sg_store *s, const struct sg_store_query *q);
/* Never fails: an entry that cannot be read is a miss. */
void sg_store_find(struct sg_store *s, const struct sg_store_query *q, struct sg_store_hit *out);
/* Stores the checkpoint of the first checkpoint->tokens_n tokens; takes a separate reference. prefill_ns: 0 = unknown. */
void sg_store_put(struct sg_store *s, const struct sg_state_origin *origin, const int32_t *tokens, uint64_t prefill_ns,
                  struct sg_checkpoint *checkpoint);
/* Evicts until the entries in memory have at most `limit` bytes, to disk where there is a folder. Returns their bytes. */
uint64_t sg_store_shrink(struct sg_store *s, uint64_t limit);

/* --- prefixindex.c: with the lock held --- */
/* The class of an origin, made if missing. NULL: out of memory. */
struct sg_store_class *sg_store_get_class(struct sg_store *s, const struct sg_state_origin *origin);
/* The entry of these tokens, made if missing. NULL: out of memory. */
struct sg_store_entry *sg_store_get_entry(struct sg_store *s, struct sg_store_class *c, const int32_t *tokens, size_t n);
/* Unlinks and frees an entry that has neither checkpoint nor file; if it is pinned, its last unpin does. */
void sg_store_remove_entry(struct sg_store *s, struct sg_store_entry *e);

void sg_store_unpin(struct sg_store *s, struct sg_store_entry *e);

/* --- prefixdisk.c: with the lock held, which is released while files are read or written; the caller has pinned the entry --- */
/* 1: files appeared in the folder or went away. */
int sg_store_folder_changed(const struct sg_store *s);
/* Adds entries for files that appeared in the folder. */
void sg_store_scan(struct sg_store *s);
/* Writes an entry's checkpoint to disk together with its ancestors' checkpoints, if the budget allows. */
void sg_store_write(struct sg_store *s, struct sg_store_entry *e);
/* Loads the entry's file into the empty states of a layout. EFORMAT, EUNSUPPORTED, EIO: the store drops the file. */
segue_status sg_store_read(struct sg_store *s, struct sg_store_entry *e, struct sg_layout *l, float *logits,
                           int *logits_known);

#endif
