/* serve.c: the serving side: a thread per connection and one for the heartbeat. When the first connection closes, serving ends.
 * When the second one closes, a run in progress is canceled, so that the end of the peer is noticed during a run.
 * SPDX-License-Identifier: MIT */
#include "unit/proc/server.h"

#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"

enum { HEARTBEAT_NS = 50000000, AREA_MAX = 1 << 30 };

static const uint64_t forever_ns = UINT64_MAX / 4;

/* --- one message --- */

/* Versions must be equal, since graphs are encoded as structs of this version. Opens the unit. */
static segue_status handshake(struct sg_server *v, struct sg_reader *in, int fd, struct sg_buf *out, segue_error *err)
{
    char spec[sizeof((struct sg_unit_spec *)0)->text];
    uint32_t wire = sg_reader_u32(in), library = sg_reader_u32(in);
    sg_reader_text(in, spec, sizeof spec);
    segue_status status = SEGUE_OK;
    if (!sg_reader_done(in) || v->unit || fd < 0)
        status = sg_server_reject(err, "a handshake: damaged, or repeated");
    else if (wire != SG_WIRE_VERSION || library != segue_version())
        status = sg_fail(err, SEGUE_EUNIT,
                         "handshake refused: this is segue %x with protocol %d, the peer has %x and %u; use one version",
                         segue_version(), SG_WIRE_VERSION, library, wire);
    if (status == SEGUE_OK) status = v->open(&v->unit, spec, err);
    if (status != SEGUE_OK) {
        if (fd >= 0) close(fd);
        return status;
    }
    struct sg_unit_desc desc;
    v->ops = sg_ops_of(v->unit);
    v->ops->describe(v->unit, &desc);
    sg_channel_init(&v->second, fd);
    sg_put_u32(out, (uint32_t)getpid());
    sg_wire_desc_put(out, &desc);
    return SEGUE_OK;
}

/* Maps the page, or the bulk memory of a connection; replaces the previous one. */
static segue_status map_shared(struct sg_reader *in, int fd, size_t min, struct sg_shared *out, segue_error *err)
{
    uint64_t size = sg_reader_u64(in);
    struct sg_shared memory;
    if (!sg_reader_done(in) || size > AREA_MAX || size < min) {
        if (fd >= 0) close(fd);
        return sg_server_reject(err, "shared memory: invalid size");
    }
    SG_TRY(sg_shared_map(&memory, fd, (size_t)size, 1, err));
    sg_shared_free(out);
    *out = memory;
    return SEGUE_OK;
}

/* The size is limited, so that a request cannot block the unit for long. */
static segue_status stream(struct sg_server *v, struct sg_reader *in, struct sg_buf *out, segue_error *err)
{
    uint64_t bytes = sg_reader_u64(in), bits;
    double gb_s = 0;
    if (!sg_reader_done(in) || bytes > (uint64_t)1 << 36) return sg_server_reject(err, "a measurement: damaged");
    if (!v->ops->stream) return sg_fail(err, SEGUE_EUNSUPPORTED, "bandwidth not measured: the unit does not support it");
    SG_TRY(v->ops->stream(v->unit, bytes, &gb_s, err));
    memcpy(&bits, &gb_s, sizeof bits);
    sg_put_u64(out, bits);
    return SEGUE_OK;
}

/* Requests without a descriptor. */
static segue_status first_connection(struct sg_server *v, const struct sg_message *m, struct sg_reader *in,
                                     struct sg_buf *out, segue_error *err)
{
    switch (m->kind) {
    case SG_WIRE_REGION_DROP: return sg_serve_region_drop(v, in, err);
    case SG_WIRE_CAN: return sg_serve_compile(v, in, 1, out, err);
    case SG_WIRE_COMPILE: return sg_serve_compile(v, in, 0, out, err);
    case SG_WIRE_DISCARD: return sg_serve_discard(v, in, err);
    case SG_WIRE_TENSOR_DROP: return sg_serve_tensor_drop(v, in, err);
    case SG_WIRE_FOOTPRINT: return sg_serve_footprint(v, in, out, err);
    case SG_WIRE_LORA_DROP: return sg_serve_lora_drop(v, in, err);
    case SG_WIRE_RUN: return sg_serve_run(v, in, out, err);
    case SG_WIRE_STATE_NEW:
    case SG_WIRE_STATE_FREE:
    case SG_WIRE_STATE_FORK:
    case SG_WIRE_STATE_MARK:
    case SG_WIRE_STATE_BACK:
    case SG_WIRE_STATE_DROP:
    case SG_WIRE_STATE_CUT: return sg_serve_state(v, m->kind, in, out, err);
    case SG_WIRE_STREAM: return stream(v, in, out, err);
    default: return sg_server_reject(err, "a request: unknown kind");
    }
}

/* Descriptors that the kind, connection or moment does not allow are closed here; the others belong to the handler. */
static segue_status dispatch(struct sg_server *v, int connection, const struct sg_message *m, struct sg_buf *out,
                             segue_error *err)
{
    struct sg_reader in = sg_reader_of(m->body, m->body_n);
    int passes_fd = m->kind == SG_WIRE_HANDSHAKE || m->kind == SG_WIRE_PAGE || m->kind == SG_WIRE_AREA ||
                m->kind == SG_WIRE_REGION || m->kind == SG_WIRE_LORA;
    if (m->fd >= 0 && (!passes_fd || (connection && m->kind != SG_WIRE_AREA) || (!v->unit && m->kind != SG_WIRE_HANDSHAKE)))
        close(m->fd);
    if (!v->unit) {
        if (m->kind == SG_WIRE_HANDSHAKE && !connection) return handshake(v, &in, m->fd, out, err);
        return sg_server_reject(err, "a request: before the handshake");
    }
    if (m->kind == SG_WIRE_AREA) return map_shared(&in, m->fd, 1, &v->areas[connection], err);
    if (connection) {
        if (m->kind == SG_WIRE_STATE_GET || m->kind == SG_WIRE_STATE_PUT)
            return sg_serve_get_put(v, m->kind, &in, out, err);
        return sg_server_reject(err, "a request: not on this connection");
    }
    if (m->kind == SG_WIRE_HANDSHAKE) return handshake(v, &in, m->fd, out, err);
    if (m->kind == SG_WIRE_PAGE) {
        if (!v->page.data) return map_shared(&in, m->fd, sizeof(struct sg_wire_page), &v->page, err);
        if (m->fd >= 0) close(m->fd);
        return sg_server_reject(err, "a page: there is one already");
    }
    if (m->kind == SG_WIRE_REGION) return sg_serve_region(v, &in, m->fd, err);
    if (m->kind == SG_WIRE_LORA) return sg_serve_lora(v, &in, m->fd, err);
    return first_connection(v, m, &in, out, err);
}

/* A memory barrier between the threads of the connections: the peer orders requests on both by waiting for replies. */
static void sync_threads(struct sg_server *v)
{
    pthread_mutex_lock(&v->lock);
    pthread_mutex_unlock(&v->lock);
}

/* The status is first in the reply but known last, so the rest is written to a separate buffer. */
void sg_server_answer(struct sg_server *v, int connection, const struct sg_message *m, struct sg_buf *reply)
{
    struct sg_buf out = {.limit = SG_WIRE_ANSWER / 2};
    segue_error why = {.text = ""};
    if (!connection) v->number = m->number;
    sync_threads(v);
    segue_status status = dispatch(v, connection, m, &out, &why);
    sync_threads(v);
    if (!connection) sg_arena_free(&v->scratch);
    if (status == SEGUE_OK && out.failed) status = sg_no_memory("reply", out.len, &why);
    reply->len = 0;
    sg_wire_status_put(reply, status, &why);
    if (!out.failed) sg_buf_add(reply, out.data, out.len);
    sg_buf_free(&out);
}

/* --- life --- */

segue_status sg_server_new(struct sg_server **out, sg_serve_open open, segue_error *err)
{
    struct sg_server *v = sg_alloc(sizeof *v);
    if (!v) return sg_no_memory("server", sizeof *v, err);
    segue_status status = sg_lock_init(&v->lock, &v->ending, "server", err);
    if (status != SEGUE_OK) {
        sg_free(v);
        return status;
    }
    v->open = open;
    v->page.fd = v->areas[0].fd = v->areas[1].fd = -1;
    v->second.fd = v->second.received_fd = -1;
    atomic_init(&v->own_cancel, 0);
    atomic_init(&v->closed, 0);
    *out = v;
    return SEGUE_OK;
}

/* States, then objects, then the unit: each refers to the next. */
void sg_server_free(struct sg_server *v)
{
    if (!v) return;
    if (v->unit) sg_serve_states_free(v);
    if (v->unit) sg_serve_objects_free(v);
    if (v->unit) v->ops->close(v->unit);
    sg_channel_close(&v->second);
    sg_shared_free(&v->page);
    for (int i = 0; i < 2; i++) sg_shared_free(&v->areas[i]);
    sg_arena_free(&v->scratch);
    sg_lock_destroy(&v->lock, &v->ending);
    sg_free(v);
}

/* One request and its reply. */
static segue_status answer_one(struct sg_server *v, struct sg_channel *c, int connection, struct sg_buf *reply,
                               segue_error *err)
{
    struct sg_message m;
    segue_status status = sg_channel_receive(c, &m, SG_WIRE_REQUEST, forever_ns, err);
    if (status == SEGUE_END) return SEGUE_OK;            /* a signal */
    SG_TRY(status);
    sg_server_answer(v, connection, &m, reply);
    if (reply->failed) return sg_no_memory("reply", reply->len, err);
    return sg_channel_send(c, m.kind + SG_WIRE_REPLY, m.number, reply->data, reply->len, -1,
                           SG_SERVER_SEND_S * (uint64_t)1000000000, err);
}

/* Serves requests until the peer closes. setup 1: only until the page is mapped, after which the other threads can start. */
static segue_status serve_connection(struct sg_server *v, struct sg_channel *c, int connection, int setup, segue_error *err)
{
    struct sg_buf reply = {0};
    segue_status status = SEGUE_OK;
    while (status == SEGUE_OK && !atomic_load(&v->closed) && !(setup && v->page.data))
        status = answer_one(v, c, connection, &reply, err);
    sg_buf_free(&reply);
    return status;
}

/* Thread of the second connection. When it closes, the run in progress is canceled. */
static void *second_main(void *arg)
{
    struct sg_server *v = arg;
    segue_error ignored;
    serve_connection(v, &v->second, 1, 0, &ignored);
    struct sg_wire_page *page = (struct sg_wire_page *)(void *)v->page.data;
    atomic_store(&v->closed, 1);
    atomic_store(&v->own_cancel, 1);
    if (page) atomic_store(&page->cancel, 1);
    return NULL;
}

/* Increments the heartbeat until serving ends. */
static void *heartbeat_main(void *arg)
{
    struct sg_server *v = arg;
    struct sg_wire_page *page = (struct sg_wire_page *)(void *)v->page.data;
    pthread_mutex_lock(&v->lock);
    while (!atomic_load(&v->closed)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += HEARTBEAT_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        atomic_fetch_add(&page->heartbeat, 1u);
        pthread_cond_timedwait(&v->ending, &v->lock, &until);
    }
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

/* The other threads start after the handshake and the page, which they use. */
static segue_status serve(struct sg_server *v, struct sg_channel *first, segue_error *err)
{
    pthread_t second, heartbeat;
    SG_TRY(serve_connection(v, first, 0, 1, err));
    if (pthread_create(&second, NULL, second_main, v)) return sg_no_memory("thread", sizeof second, err);
    int has_heartbeat = !pthread_create(&heartbeat, NULL, heartbeat_main, v);
    segue_status status = serve_connection(v, first, 0, 0, err);
    pthread_mutex_lock(&v->lock);
    atomic_store(&v->closed, 1);
    pthread_cond_broadcast(&v->ending);
    pthread_mutex_unlock(&v->lock);
    shutdown(v->second.fd, SHUT_RDWR);
    pthread_join(second, NULL);
    if (has_heartbeat) pthread_join(heartbeat, NULL);
    return status;
}

segue_status sg_serve(int fd, sg_serve_open open, segue_error *err)
{
    struct sg_channel first;
    struct sg_server *v;
    segue_status status = sg_server_new(&v, open, err);
    if (status != SEGUE_OK) {
        close(fd);
        return status;
    }
    sg_channel_init(&first, fd);
    v->first = &first;
    status = serve(v, &first, err);
    sg_channel_close(&first);
    sg_server_free(v);
    return status == SEGUE_ELOST ? SEGUE_OK : status;
}
