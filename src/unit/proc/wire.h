/* wire.h: the commands by which a unit works for another process, as bytes. One request, one reply, on each of two
 * connections: the first for everything that is ordered (graphs, runs, states), the second for rows and recurrent slots
 * of states, which may travel beside a run. Whoever receives believes nothing. docs/STATE.md describes the form.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_WIRE_H
#define SG_UNIT_WIRE_H

#include "graph/graphwire.h"
#include "unit/unit.h"

enum { SG_WIRE_VERSION = 4, SG_WIRE_REPLY = 0x100 };

enum sg_wire_kind {
    SG_WIRE_HANDSHAKE = 1,   /* version, library, spec; lends the second connection -> description */
    SG_WIRE_PAGE,        /* lends struct sg_wire_page */
    SG_WIRE_AREA,        /* size; lends this connection's bulk memory */
    SG_WIRE_REGION,      /* number, size; lends a file or memory that tensors lie in */
    SG_WIRE_REGION_DROP,
    SG_WIRE_CAN,         /* as COMPILE of one graph, then the op */
    SG_WIRE_COMPILE,     /* new tensors, graphs */
    SG_WIRE_DISCARD,     /* program */
    SG_WIRE_TENSOR_DROP, /* numbers */
    SG_WIRE_FOOTPRINT,   /* program -> own, read per token, scratch */
    SG_WIRE_LORA,        /* number, pairs; lends the matrices */
    SG_WIRE_LORA_DROP,
    SG_WIRE_RUN,         /* one batch; 1: states are read beside it -> what it came to */
    SG_WIRE_STATE_NEW,
    SG_WIRE_STATE_FREE,
    SG_WIRE_STATE_FORK,
    SG_WIRE_STATE_MARK,
    SG_WIRE_STATE_BACK,
    SG_WIRE_STATE_DROP,
    SG_WIRE_STATE_CUT,
    SG_WIRE_STATE_GET,   /* second connection */
    SG_WIRE_STATE_PUT,   /* second connection */
    SG_WIRE_STREAM,
    SG_WIRE_N
};

enum {
    SG_WIRE_REGIONS = 4096,      /* numbers of each kind are below these */
    SG_WIRE_TENSORS = 1 << 18,
    SG_WIRE_PROGRAMS = 4096,
    SG_WIRE_STATES = 1 << 16,
    SG_WIRE_LORAS = 4096,
    SG_WIRE_SPANS = 1 << 16,     /* of one run */
    SG_WIRE_ROWS = 1 << 24,      /* of one run */
    SG_WIRE_REQUEST = 256 << 20, /* bytes of a request at most ... */
    SG_WIRE_ANSWER = 16 << 20    /* ... and of a reply */
};

/* Memory of both sides. */
struct sg_wire_page {
    atomic_int cancel;           /* 1: stop the run */
    atomic_uint beat;            /* rises while the serving process lives */
    atomic_uint begun;           /* low word of the number of the last run that its unit has taken up or refused */
};

/* What is known of a state without asking. */
struct sg_wire_held {
    uint64_t rows, bytes;
    uint64_t *first;             /* [slots_n] */
};

/* --- wire.c --- */
/* Counters of a run that add up over its steps, as they follow each other in a reply; unseen, which does not, comes behind. */
enum { SG_WIRE_COUNTERS = 7 };
void sg_wire_counters(struct sg_result *r, uint64_t *out[SG_WIRE_COUNTERS]);
void sg_wire_desc_put(struct sg_buf *out, const struct sg_unit_desc *d);
segue_status sg_wire_desc_take(struct sg_reader *in, struct sg_unit_desc *out, segue_error *err);
/* A reply begins with a status and the text of an error; what follows depends on the request. */
void sg_wire_status_put(struct sg_buf *out, segue_status status, const segue_error *why);
/* OK: *status and *why are what the other side said. EFORMAT: it said nothing sound. */
segue_status sg_wire_status_take(struct sg_reader *in, segue_status *status, segue_error *why);

#endif
