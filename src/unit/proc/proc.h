/* proc.h: what the files of the unit `proc` share: a unit that lets another unit work in a process of its own. proc.c has
 * the table, proc_child.c the process, proc_request.c requests and their time, proc_share.c weights and programs, proc_run.c
 * batches, proc_state.c states. The process is believed in nothing: what it says is checked, what it does not say in time
 * is taken for its death, and a lost one leaves an ELOST behind every program, state and run until it is restarted.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_PROC_PROC_H
#define SG_UNIT_PROC_PROC_H

#include <pthread.h>
#include <sys/types.h>

#include "base/channel.h"
#include "base/shared.h"
#include "unit/proc/wire.h"

enum { PROC_FIRST = 0, PROC_SECOND = 1 };   /* the connections */

struct proc_child {
    pid_t pid;                   /* 0: none */
    struct sg_channel channels[2];
    struct sg_shared page, areas[2];
};

struct proc_region {
    const uint8_t *data;         /* NULL: the number is free */
    size_t size;
    int fd;                      /* a model's file, or own.fd */
    struct sg_shared own;        /* tensors that lie in plain memory are copied here */
    uint32_t users, sent;        /* tensors in it; 1: the process has it */
};

struct proc_tensor {
    const struct sg_tensor *key; /* NULL: the number is free */
    struct sg_tensor tensor;     /* as it was */
    struct sg_spot spots[SG_SPOTS];
    uint32_t users;              /* programs */
    uint32_t sent;
};

/* An adapter as one program sees it. */
struct proc_lora {
    uint64_t id;                 /* of the adapter; 0: the number is free */
    uint32_t program;
    uint64_t used;               /* the run that used it last */
};

struct sg_program {
    struct sg_program_base base;
    uint32_t id;
    uint32_t *tensors;           /* [graph->tensors_n] numbers */
    struct sg_weight_cache keep;         /* folder: a copy, or NULL */
    char kept[16], why[256];     /* what became of keeping */
    atomic_uint_fast64_t compiles; /* of the process, as last heard */
    struct sg_program *next;     /* all of the unit, for a restart */
};

struct sg_state {
    struct sg_state_base base;
    uint32_t id, generation;     /* of the process that has it */
    struct sg_slot *slots;       /* [slots_n] */
    uint32_t slots_n;
    struct sg_wire_held held;    /* as last heard; under the unit's lock */
};

struct sg_run {
    struct sg_run_base base;
    struct sg_program *program;
    struct sg_batch batch;
    struct sg_span *spans;       /* [spans_cap] of the step at work */
    uint32_t spans_cap;
    struct sg_result *result;
    uint64_t *values_at;         /* [outputs] offsets in the first area */
    uint32_t values_cap;
    uint64_t logits_at, number;  /* UINT64_MAX: no logits; number of the request */
    uint32_t rows, wanted;       /* T and R of the step */
    uint32_t *rows_done;         /* [spans_cap] over all steps */
    struct sg_sampler sampler;   /* several steps: with a history of its own */
    int32_t *history;
    size_t history_cap;
    uint32_t step;
    int32_t token;
    uint64_t begun, limit_ns;
    segue_status status;         /* of a run that failed before it was under way */
    segue_error error;
};

struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_desc desc;
    char inner[64];              /* the spec of the unit in the process */
    uint64_t patience_ns;        /* without a sign of life */
    pthread_mutex_t lock;        /* of all below that is not of one connection's user */
    pthread_cond_t changed;
    int busy[2];                 /* a connection is in use */
    atomic_int lost;
    char why[200];               /* it was lost */
    uint32_t generation;
    struct proc_child child;
    uint64_t numbers[2];         /* of the last request */
    uint32_t beats[2];           /* last seen by each connection, and when */
    uint64_t beats_at[2];
    struct sg_buf out[2];        /* request being written */
    struct proc_region *regions; uint32_t regions_n;
    struct proc_tensor *tensors; uint32_t tensors_n;
    uint8_t *program_ids;        uint32_t program_ids_n;
    struct sg_program *programs;
    struct proc_lora *loras;     uint32_t loras_n;
    uint64_t runs;
    uint8_t *state_ids;          uint32_t state_ids_n;
    struct sg_run run;           /* one at a time */
    struct sg_chooser *chooser;
    uint32_t chooser_vocab;
    float *row;                  /* [chooser_vocab] */
};

/* --- proc.c --- */
/* The unit over connections to somebody who serves already, or pretends to; for tests. The ends are taken over. */
segue_status proc_adopt(struct sg_unit **out, const int ends[2], segue_error *err);

/* --- proc_child.c --- */
/* Start the program that serves. EUNIT: it is not there, or cannot be started. */
segue_status proc_spawn(struct proc_child *c, int *second, segue_error *err);
void proc_kill(struct proc_child *c);    /* at once; the process is still to be ended */
/* Close, wait until it is gone (killed after a while), forget. */
void proc_end(struct proc_child *c);

/* --- proc_request.c --- */
void proc_enter(struct sg_unit *u, int connection);  /* the only user of it until leave */
void proc_leave(struct sg_unit *u, int connection);
/* The empty request of a connection, to be filled before proc_call. */
struct sg_buf *proc_request(struct sg_unit *u, int connection);
segue_status proc_send(struct sg_unit *u, int connection, uint32_t kind, int fd, segue_error *err);
/* Wait for the reply to the last request, timeout_ns at most (SEGUE_END), or for ever. ELOST: no sign of life, no answer
 * within limit_ns after `begun`, or no sound one. The status that the process gave is returned; *in is what follows it. */
segue_status proc_reply(struct sg_unit *u, int connection, uint32_t kind, const atomic_int *cancel, uint64_t timeout_ns,
                        uint64_t begun, uint64_t limit_ns, struct sg_reader *in, segue_error *err);
/* Both; limit_ns 0: as long as anything quick takes. */
segue_status proc_call(struct sg_unit *u, int connection, uint32_t kind, int fd, uint64_t limit_ns, struct sg_reader *in,
                      segue_error *err);
/* Mark as lost and say so. */
segue_status proc_lose(struct sg_unit *u, const char *why, segue_error *err);
segue_status proc_is_lost(struct sg_unit *u, segue_error *err);
/* Bulk memory of a connection, at least so large. */
segue_status proc_area(struct sg_unit *u, int connection, size_t size, segue_error *err);
/* A fresh process, greeted. */
segue_status proc_begin(struct sg_unit *u, segue_error *err);
/* Greeting, page and areas over the connections of u->child. `second` is lent with the greeting and closed. */
segue_status proc_handshake(struct sg_unit *u, int second, segue_error *err);
uint64_t proc_time_limit(const struct sg_unit *u, uint64_t work);  /* time for a number of rows, or of 64 MB of weights */

/* --- proc_share.c --- */
segue_status proc_can(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op, segue_error *why);
segue_status proc_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, const struct sg_weight_cache *keep,
                          struct sg_program **programs, segue_error *err);
uint64_t proc_compiles(const struct sg_program *p);
const char *proc_kept(const struct sg_program *p, const char **why);
void proc_discard(struct sg_program *p);
void proc_footprint(const struct sg_program *p, uint64_t *own, uint64_t *read, uint64_t *scratch);
/* Give a fresh process everything that the old one had but states. */
segue_status proc_lend_again(struct sg_unit *u, segue_error *err);
/* The number of an adapter for a program, lent on first use. Within the first connection. */
segue_status proc_lora_number(struct sg_unit *u, const struct sg_program *p, const struct sg_lora *l, uint32_t *number,
                              segue_error *err);
void proc_lend_free(struct sg_unit *u);
/* The lowest free number of a table of flags, which grows; it is taken. */
segue_status proc_number(uint8_t **flags, uint32_t *n, uint32_t most, uint32_t *out, segue_error *err);

/* --- proc_run.c --- */
segue_status proc_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                        segue_error *err);
segue_status proc_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err);

/* --- proc_state.c --- */
segue_status proc_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                            const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
void proc_state_free(struct sg_state *s);
segue_status proc_state_fork(struct sg_state *s, struct sg_state **out, segue_error *err);
segue_status proc_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err);
segue_status proc_state_back(struct sg_state *s, uint32_t mark, segue_error *err);
void proc_state_drop(struct sg_state *s, uint32_t mark);
segue_status proc_state_cut(struct sg_state *s, uint64_t rows, segue_error *err);
void proc_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows);
uint64_t proc_state_bytes(const struct sg_state *s);
segue_status proc_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            void *out, segue_error *err);
segue_status proc_state_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            const void *in, segue_error *err);
segue_status proc_state_here(struct sg_unit *u, const struct sg_state *s, segue_error *err);   /* ELOST: went with its process */
/* What a reply says of a state; rows must be `rows` unless UINT64_MAX. EFORMAT: nonsense. */
segue_status proc_held_read(struct sg_state *s, struct sg_reader *in, uint64_t rows, segue_error *err);

#endif
