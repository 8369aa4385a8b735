/* wire.h: the protocol between the unit `proc` and the process that serves a unit. Each request has one reply. Two
 * connections: the first for everything that is ordered (graphs, runs, states), the second for state contents, which may be
 * copied beside a run. Both sides validate what they receive. docs/STATE.md describes the encoding.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_WIRE_H
#define SG_UNIT_WIRE_H

#include "graph/graphwire.h"
#include "unit/unit.h"

enum {
    SG_WIRE_VERSION = 7,
    SG_WIRE_REPLY = 0x100,       /* added to the kind of a request: the kind of its reply */
    SG_WIRE_ACCEPTED = 0x200     /* before the reply of a run that asks for it: its unit accepted or refused the run; no body */
};

enum sg_wire_kind {
    SG_WIRE_HANDSHAKE = 1,   /* version, library, spec; passes the second connection -> description */
    SG_WIRE_PAGE,        /* passes the memory of struct sg_wire_page */
    SG_WIRE_AREA,        /* size; passes the bulk memory of this connection */
    SG_WIRE_REGION,      /* number, size; passes a file or memory that contains tensors */
    SG_WIRE_REGION_DROP,
    SG_WIRE_CAN,         /* like COMPILE of one graph, then the index of the op */
    SG_WIRE_COMPILE,     /* new tensors, cache, graphs -> cache result, compiles */
    SG_WIRE_DISCARD,     /* program */
    SG_WIRE_TENSOR_DROP, /* numbers */
    SG_WIRE_FOOTPRINT,   /* program -> own, read per token, scratch */
    SG_WIRE_LORA,        /* number, pairs; passes the matrices */
    SG_WIRE_LORA_DROP,
    SG_WIRE_RUN,         /* 1: send ACCEPTED; one batch -> counters, states */
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
    SG_WIRE_REGIONS = 4096,      /* limits of the numbers of each kind */
    SG_WIRE_TENSORS = 1 << 18,
    SG_WIRE_PROGRAMS = 4096,
    SG_WIRE_STATES = 1 << 16,
    SG_WIRE_LORAS = 4096,
    SG_WIRE_SPANS = 1 << 16,     /* of one run */
    SG_WIRE_ROWS = 1 << 24,      /* tokens of one run */
    SG_WIRE_REQUEST = 256 << 20, /* limit of a request in bytes ... */
    SG_WIRE_ANSWER = 16 << 20    /* ... and of a reply */
};

/* Shared memory of both sides. */
struct sg_wire_page {
    atomic_int cancel;           /* 1: stop the run */
    atomic_uint heartbeat;       /* incremented while the serving process lives */
};

/* Properties of a state that replies repeat, so that they need no request. */
struct sg_wire_held {
    uint64_t rows, bytes;
    uint64_t *first;             /* [slots_n] */
};

/* --- wire.c --- */
/* The counters of a result that are summed over the steps of a run, in the order of a reply. tokens_truncated follows
 * them; it is a maximum. */
enum { SG_WIRE_COUNTERS = 10 };
void sg_wire_counters(struct sg_result *r, uint64_t *out[SG_WIRE_COUNTERS]);
void sg_wire_desc_put(struct sg_buf *out, const struct sg_unit_desc *d);
segue_status sg_wire_desc_take(struct sg_reader *in, struct sg_unit_desc *out, segue_error *err);
/* A reply starts with a status and an error text; the rest depends on the request. */
void sg_wire_status_put(struct sg_buf *out, segue_status status, const segue_error *why);
/* OK: *status and *why are those of the peer. EFORMAT: invalid. */
segue_status sg_wire_status_take(struct sg_reader *in, segue_status *status, segue_error *why);

#endif
