/* proc.h: internal header of the unit `proc`, which runs another unit in a child process. proc.c: the table; proc_child.c:
 * starting and ending the child; proc_request.c: requests, replies and timeouts; proc_share.c: weights; proc_program.c:
 * programs; proc_lora.c: adapters; proc_run.c: runs; proc_state.c: states. The child is not trusted: replies are validated,
 * and a child that does not reply in time is killed. Then programs, states and runs return ELOST until the unit is restarted.
 *
 * The first connection carries requests in order; the second one state_get and state_put, which may run beside a run. A
 * thread uses a connection between proc_enter and proc_leave.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_PROC_PROC_H
#define SG_UNIT_PROC_PROC_H

#include <pthread.h>
#include <sys/types.h>

#include "base/channel.h"
#include "base/shared.h"
#include "unit/generate.h"
#include "unit/proc/wire.h"

enum { PROC_FIRST = 0, PROC_SECOND = 1 };   /* indices of the connections */

struct proc_child {
    pid_t pid;                   /* 0: none */
    struct sg_channel channels[2];
    struct sg_shared page;       /* struct sg_wire_page */
    struct sg_shared areas[2];   /* bulk memory of each connection */
};

/* A mapped file or shared memory that the child maps too. */
struct proc_region {
    const uint8_t *data;         /* NULL: the number is free */
    size_t size;
    int fd;                      /* of the model's file, or own.fd */
    struct sg_shared own;        /* copies of tensors from ordinary memory; else fd -1 */
    uint32_t users, sent;        /* arrays of tensors in it; 1: the child has it */
};

struct proc_tensor {
    const struct sg_tensor *key; /* NULL: the number is free */
    struct sg_tensor tensor;     /* copy, to detect changes */
    struct sg_wire_loc spots[SG_LOCS];
    uint32_t users;              /* programs that read it */
    uint32_t sent;               /* 1: the child has it */
};

/* An adapter that was sent for one program. */
struct proc_lora {
    uint64_t id;                 /* of the adapter; 0: the number is free */
    uint32_t program;
    uint64_t used;               /* number of the run that used it last */
};

struct sg_program {
    struct sg_program_base base;
    uint32_t id;
    uint32_t *tensors;           /* [graph->tensors_n] numbers */
    struct sg_weight_cache keep;         /* folder: a copy, or NULL */
    char kept[16], why[256];     /* outcome of the weight cache (unit.h, kept) */
    atomic_uint_fast64_t compiles; /* as the child reported last */
    struct sg_program *next;     /* list of the unit, for a restart */
};

struct sg_state {
    struct sg_state_base base;
    uint32_t id, generation;     /* generation: of the child that has the state */
    struct sg_slot *slots;       /* [slots_n] */
    uint32_t slots_n;
    struct sg_wire_held held;    /* as the child reported last; guarded by the unit's lock */
};

struct sg_run {
    struct sg_run_base base;
    struct sg_program *program;
    struct sg_batch batch;
    struct sg_span *spans;       /* [spans_cap] of the current step */
    uint32_t spans_cap;
    struct sg_result *result;
    uint64_t *values_at;         /* [values_cap] offsets of the outputs in the first area */
    uint32_t values_cap;
    uint64_t logits_at;          /* offset of the logits; UINT64_MAX: none */
    uint32_t rows, wanted;       /* T and R of the step */
    uint32_t *rows_done;         /* [spans_cap] over all steps */
    struct sg_generation generation; /* steps > 1 */
    int32_t *history;            /* [history_cap] of the generation */
    size_t history_cap;
    int32_t token;               /* chosen last */
    uint64_t start_ns, limit_ns; /* when the step was sent; time allowed for the reply */
};

struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_desc desc;
    char inner[64];              /* spec of the unit in the child */
    uint64_t silence_ns;         /* how long the heartbeat may stop before the child counts as lost */
    pthread_mutex_t lock;        /* guards desc, busy, why and what states hold; the rest belongs to the user of a connection */
    pthread_cond_t changed;
    int busy[2];                 /* a connection is in use */
    atomic_int lost;
    atomic_uint_fast64_t run_rows; /* tokens of the step in flight; 0: none */
    char why[200];               /* reason of the loss */
    uint32_t generation;         /* number of the child: rises with each restart */
    struct proc_child child;
    uint64_t numbers[2];         /* number of the last request */
    uint32_t heartbeats[2];      /* last value that each connection saw ... */
    uint64_t heartbeats_ns[2];   /* ... and when */
    struct sg_buf out[2];        /* request being written */
    struct proc_region *regions; uint32_t regions_n;
    struct proc_tensor *tensors; uint32_t tensors_n;
    uint8_t *program_ids;        uint32_t program_ids_n;     /* 1: the number is in use */
    struct sg_program *programs;
    struct proc_lora *loras;     uint32_t loras_n;
    uint64_t runs;               /* number of runs so far */
    uint8_t *state_ids;          uint32_t state_ids_n;
    struct sg_run run;           /* one at a time */
    struct sg_chooser *chooser;  /* NULL, or for chooser_vocab tokens */
    uint32_t chooser_vocab;
    float *row;                  /* [chooser_vocab] copy of logits */
};

/* --- proc.c --- */
/* For tests: a unit over two connected sockets, whose peer serves or pretends to. Takes ownership of the ends. */
segue_status proc_open_fds(struct sg_unit **out, const int ends[2], segue_error *err);

/* --- proc_child.c --- */
/* Starts the child. *second: the child's end of the second connection, to be passed in the handshake. EUNIT: the command is
 * missing or cannot be started. */
segue_status proc_spawn(struct proc_child *c, int *second, segue_error *err);
void proc_kill(struct proc_child *c);    /* SIGKILL; proc_end is still to be called */
/* Closes the connections, waits for the child to exit (kills it after two seconds) and resets c. */
void proc_end(struct proc_child *c);

/* --- proc_request.c --- */
void proc_enter(struct sg_unit *u, int connection);  /* waits; the caller is the only user until leave */
void proc_leave(struct sg_unit *u, int connection);
/* The connection's request buffer, emptied. */
struct sg_buf *proc_request(struct sg_unit *u, int connection);
segue_status proc_send(struct sg_unit *u, int connection, uint32_t kind, int fd, segue_error *err);
/* Waits for the reply to the last request; SEGUE_END after timeout_ns. Forwards *cancel to the child. ELOST: the heartbeat
 * stopped, no reply came within limit_ns after start_ns, or it is invalid. Otherwise the status in the reply; *in is the
 * rest of it. */
segue_status proc_reply(struct sg_unit *u, int connection, uint32_t kind, const atomic_int *cancel, uint64_t timeout_ns,
                        uint64_t start_ns, uint64_t limit_ns, struct sg_reader *in, segue_error *err);
/* Waits for SG_WIRE_ACCEPTED of the run that was sent last, under the same limits. */
segue_status proc_accepted(struct sg_unit *u, const atomic_int *cancel, uint64_t start_ns, uint64_t limit_ns, segue_error *err);
/* proc_send and proc_reply; limit_ns 0: the limit for short requests. */
segue_status proc_call(struct sg_unit *u, int connection, uint32_t kind, int fd, uint64_t limit_ns, struct sg_reader *in,
                      segue_error *err);
/* Marks the unit as lost, kills the child, returns ELOST. */
segue_status proc_lose(struct sg_unit *u, const char *why, segue_error *err);
segue_status proc_is_lost(struct sg_unit *u, segue_error *err);
/* Makes the bulk memory of a connection at least `size` bytes. */
segue_status proc_area(struct sg_unit *u, int connection, size_t size, segue_error *err);
/* Starts a child and does the handshake. */
segue_status proc_begin(struct sg_unit *u, segue_error *err);
/* Handshake, page and areas over the connections of u->child. `second` is passed to the child and closed. */
segue_status proc_handshake(struct sg_unit *u, int second, segue_error *err);
uint64_t proc_time_limit(const struct sg_unit *u, uint64_t work);  /* work: tokens, or units of 64 MB of weights */

/* --- proc_share.c: all in the first connection --- */
/* Numbers of a graph's tensors, ids[g->tensors_n]. New ones get a location in a region that the child has; their definitions are
 * written by the next proc_tensors_write. */
segue_status proc_tensors_place(struct sg_unit *u, const struct sg_graph *g, uint32_t *ids, segue_error *err);
/* Writes the definitions of all tensors that were not sent to a request; mark_sent: it succeeded. */
void proc_tensors_write(struct sg_unit *u, struct sg_buf *b);
void proc_tensors_mark_sent(struct sg_unit *u);
/* Drops tensors, and then regions, that no program uses, here and in the child. */
void proc_tensors_drop_unused(struct sg_unit *u);
segue_status proc_regions_share_again(struct sg_unit *u, segue_error *err);
void proc_share_free(struct sg_unit *u);

/* --- proc_program.c --- */
segue_status proc_can(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op, segue_error *why);
segue_status proc_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, const struct sg_weight_cache *keep,
                          struct sg_program **programs, segue_error *err);
uint64_t proc_compiles(const struct sg_program *p);
const char *proc_kept(const struct sg_program *p, const char **why);
void proc_discard(struct sg_program *p);
void proc_footprint(const struct sg_program *p, uint64_t *own, uint64_t *read, uint64_t *scratch);
/* Gives a restarted child everything that the previous one had, except states. */
segue_status proc_share_again(struct sg_unit *u, segue_error *err);

/* --- proc_lora.c --- */
/* The number of an adapter for a program; sends it on first use. In the first connection. */
segue_status proc_lora_number(struct sg_unit *u, const struct sg_program *p, const struct sg_lora *l, uint32_t *number,
                              segue_error *err);
void proc_loras_drop(struct sg_unit *u, uint32_t program);

/* --- proc_request.c, numbers --- */
/* Takes the lowest free number below max; flags[n] grows. ELIMIT: none is free. */
segue_status proc_number(uint8_t **flags, uint32_t *n, uint32_t max, uint32_t *out, segue_error *err);

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
/* ELOST: the unit is lost, or the state was in a previous child. */
segue_status proc_state_here(struct sg_unit *u, const struct sg_state *s, segue_error *err);
/* Reads the description of a state from a reply. The length must be `rows`, unless that is UINT64_MAX. ELOST: invalid. */
segue_status proc_held_read(struct sg_state *s, struct sg_reader *in, uint64_t rows, segue_error *err);

#endif
