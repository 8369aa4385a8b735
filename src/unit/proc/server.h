/* server.h: the serving side of unit/serve.h: what its files share. What comes in may be damaged or hostile: it is answered with an error, within bounds of memory and time.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_PROC_SERVER_H
#define SG_UNIT_PROC_SERVER_H

#include <pthread.h>

#include "base/channel.h"
#include "base/shared.h"
#include "unit/proc/wire.h"
#include "unit/serve.h"

struct sg_server_region {
    struct sg_shared memory;     /* fd -1 and data NULL: the number is free */
    uint32_t users;              /* tensors in it */
};

struct sg_server_tensor {
    struct sg_tensor tensor;     /* first: graphs point to it; name in the arena */
    uint32_t id;                 /* its place in the table */
    struct sg_arena arena;
    uint32_t regions[SG_SPOTS];  /* UINT32_MAX: none */
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
    uint32_t users;              /* calls on the second connection under way */
};

struct sg_server {
    sg_serve_open open;
    struct sg_unit *unit;        /* NULL before the greeting */
    const struct sg_unit_ops *ops;
    struct sg_shared page;       /* struct sg_wire_page */
    struct sg_shared areas[2];   /* bulk memory of each connection */
    struct sg_server_region *regions;   uint32_t regions_n;
    struct sg_server_tensor **tensors;  uint32_t tensors_n;
    struct sg_server_program *programs; uint32_t programs_n;
    struct sg_server_lora *loras;       uint32_t loras_n;
    uint64_t lora_ids;
    uint64_t number;             /* of the request on the first connection */
    struct sg_server_state *states;     uint32_t states_n;
    struct sg_arena scratch;     /* of one request on the first connection */
    pthread_mutex_t lock;        /* of states and the second area */
    pthread_cond_t ending;       /* `over` was set: the beat need not be waited for */
    atomic_int own_cancel;       /* stands in for the page's before there is one */
    atomic_int over;             /* 1: the other side is gone */
    struct sg_channel second;    /* fd -1 until the greeting brings it */
};

segue_status sg_server_new(struct sg_server **out, sg_serve_open open, segue_error *err);
void sg_server_free(struct sg_server *v);
/* Answer one message of connection 0 or 1: the whole body of the reply into `reply`. m->fd is taken over. */
void sg_server_answer(struct sg_server *v, int connection, const struct sg_message *m, struct sg_buf *reply);

/* The text of every refusal here. */
segue_status sg_server_reject(segue_error *err, const char *what);
/* Grow a table so that `id` has a place. EFORMAT: not below `most`. */
segue_status sg_server_table_grow(void *table, uint32_t *n, uint32_t id, uint32_t most, size_t size, segue_error *err);

/* One function for each kind: takes its request, appends what follows the status. */
segue_status sg_serve_region(struct sg_server *v, struct sg_reader *in, int fd, segue_error *err);
segue_status sg_serve_region_drop(struct sg_server *v, struct sg_reader *in, segue_error *err);
segue_status sg_serve_compile(struct sg_server *v, struct sg_reader *in, int can, struct sg_buf *out, segue_error *err);
segue_status sg_serve_discard(struct sg_server *v, struct sg_reader *in, segue_error *err);
segue_status sg_serve_tensor_drop(struct sg_server *v, struct sg_reader *in, segue_error *err);
segue_status sg_serve_footprint(struct sg_server *v, struct sg_reader *in, struct sg_buf *out, segue_error *err);
segue_status sg_serve_lora(struct sg_server *v, struct sg_reader *in, int fd, segue_error *err);
segue_status sg_serve_lora_drop(struct sg_server *v, struct sg_reader *in, segue_error *err);
void sg_serve_objects_free(struct sg_server *v);

segue_status sg_serve_run(struct sg_server *v, struct sg_reader *in, struct sg_buf *out, segue_error *err);

segue_status sg_serve_state(struct sg_server *v, uint32_t kind, struct sg_reader *in, struct sg_buf *out, segue_error *err);
segue_status sg_serve_get_put(struct sg_server *v, uint32_t kind, struct sg_reader *in, struct sg_buf *out,
                              segue_error *err);
void sg_serve_held_write(struct sg_server *v, const struct sg_server_state *s, struct sg_buf *out);
void sg_serve_states_free(struct sg_server *v);

#endif
