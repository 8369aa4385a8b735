/* server.h: internal header of the serving side (unit/serve.h). The peer may be damaged or hostile: invalid requests get an
 * error, within bounds of memory and time. Objects have numbers that the peer chooses.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_PROC_SERVER_H
#define SG_UNIT_PROC_SERVER_H

#include <pthread.h>

#include "base/channel.h"
#include "base/shared.h"
#include "unit/proc/wire.h"
#include "unit/serve.h"

enum { SG_SERVER_SEND_S = 60 };   /* a peer that does not read a message for so long is lost */

struct sg_server_region {
    struct sg_shared memory;     /* fd -1 and data NULL: the number is free */
    uint32_t users;              /* arrays of tensors in it */
};

struct sg_server_tensor {
    struct sg_tensor tensor;     /* first: graphs point to it; name in the arena */
    uint32_t id;                 /* its index in the table */
    struct sg_arena arena;
    uint32_t regions[SG_LOCS];  /* UINT32_MAX: none */
    uint32_t users;              /* programs and adapters that read it */
};

struct sg_server_program {
    struct sg_program *program;  /* NULL: the number is free */
    struct sg_graph *graph;
    uint32_t *tensors;           /* [graph->tensors_n] */
};

struct sg_server_lora {
    struct sg_lora lora;
    struct sg_lora_pair *pairs;  /* NULL: the number is free */
    uint32_t *tensors;           /* [lora.pairs_n] */
    struct sg_shared memory;
};

struct sg_server_state {
    struct sg_state *state;      /* NULL: the number is free */
    struct sg_slot *slots;       /* [slots_n] */
    uint32_t slots_n;
    uint32_t users;              /* calls on the second connection in progress */
};

struct sg_server {
    sg_serve_open open;
    struct sg_unit *unit;        /* NULL before the handshake */
    const struct sg_unit_ops *ops;
    struct sg_shared page;       /* struct sg_wire_page */
    struct sg_shared areas[2];   /* bulk memory of each connection */
    struct sg_server_region *regions;   uint32_t regions_n;
    struct sg_server_tensor **tensors;  uint32_t tensors_n;
    struct sg_server_program *programs; uint32_t programs_n;
    struct sg_server_lora *loras;       uint32_t loras_n;
    uint64_t lora_ids;
    uint64_t number;             /* number of the request on the first connection */
    struct sg_server_state *states;     uint32_t states_n;
    struct sg_arena scratch;     /* freed after each request on the first connection */
    pthread_mutex_t lock;        /* guards states and the second area */
    pthread_cond_t ending;       /* signalled when `closed` is set, to end the heartbeat */
    atomic_int own_cancel;       /* used instead of page->cancel before there is a page */
    atomic_int closed;           /* 1: the peer closed a connection */
    struct sg_channel *first;    /* NULL: no messages are sent beside replies */
    struct sg_channel second;    /* fd -1 before the handshake */
};

segue_status sg_server_new(struct sg_server **out, sg_serve_open open, segue_error *err);
void sg_server_free(struct sg_server *v);
/* Handles one message of connection 0 or 1; writes the body of the reply. Takes ownership of m->fd. */
void sg_server_answer(struct sg_server *v, int connection, const struct sg_message *m, struct sg_buf *reply);

/* EFORMAT with a common text; what: object and problem. */
segue_status sg_server_reject(segue_error *err, const char *what);
/* Grows a table (address of the pointer) so that index `id` is valid; new entries are zero. EFORMAT: id >= max. */
segue_status sg_server_table_grow(void *table, uint32_t *n, uint32_t id, uint32_t max, size_t size, segue_error *err);

/* One function per kind of request: reads it, and appends what follows the status in the reply. */
segue_status sg_serve_region(struct sg_server *v, struct sg_reader *in, int fd, segue_error *err);
segue_status sg_serve_region_drop(struct sg_server *v, struct sg_reader *in, segue_error *err);
segue_status sg_serve_compile(struct sg_server *v, struct sg_reader *in, int can, struct sg_buf *out, segue_error *err);
segue_status sg_serve_discard(struct sg_server *v, struct sg_reader *in, segue_error *err);
segue_status sg_serve_tensor_drop(struct sg_server *v, struct sg_reader *in, segue_error *err);
segue_status sg_serve_footprint(struct sg_server *v, struct sg_reader *in, struct sg_buf *out, segue_error *err);
segue_status sg_serve_lora(struct sg_server *v, struct sg_reader *in, int fd, segue_error *err);
segue_status sg_serve_lora_drop(struct sg_server *v, struct sg_reader *in, segue_error *err);
void sg_serve_objects_free(struct sg_server *v);

/* Sends SG_WIRE_ACCEPTED on the first connection when the request asks for it, also when the run fails. */
segue_status sg_serve_run(struct sg_server *v, struct sg_reader *in, struct sg_buf *out, segue_error *err);

segue_status sg_serve_state(struct sg_server *v, uint32_t kind, struct sg_reader *in, struct sg_buf *out, segue_error *err);
segue_status sg_serve_get_put(struct sg_server *v, uint32_t kind, struct sg_reader *in, struct sg_buf *out,
                              segue_error *err);
void sg_serve_held_write(struct sg_server *v, const struct sg_server_state *s, struct sg_buf *out);
void sg_serve_states_free(struct sg_server *v);

#endif
