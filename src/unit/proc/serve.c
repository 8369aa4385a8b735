/* serve.c: serving one unit to another process: two connections, a thread each, and a beat by which the other side sees
 * that this one lives. The first connection ends everything when it closes; the second one stops a run that is under way
 * when it does, so that an end of the other side is noticed in the middle of one.
 * SPDX-License-Identifier: MIT */
#include "unit/proc/server.h"

#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BEAT_NS = 50000000, AREA_MOST = 1 << 30 };

static const uint64_t for_ever = UINT64_MAX / 4, patience_ns = (uint64_t)60 * 1000000000u;

segue_status sg_server_reject(segue_error *err, const char *what)
{
    return sg_fail(err, SEGUE_EFORMAT, "message refused: %s; the other side is damaged or hostile", what);
}

/* Grown by a half, so that a rising row of numbers does not copy the table each time. */
segue_status sg_server_table_grow(void *table, uint32_t *n, uint32_t id, uint32_t most, size_t size, segue_error *err)
{
    void *old, *wider;
    if (id >= most) return sg_server_reject(err, "a number: it is too large");
    if (id < *n) return SEGUE_OK;
    uint32_t want = id + 1 + *n / 2;
    if (want > most) want = most;
    memcpy(&old, table, sizeof old);
    wider = sg_realloc(old, want * size);
    if (!wider) return sg_no_memory("table", want * size, err);
    memset((char *)wider + *n * size, 0, (want - *n) * size);
    memcpy(table, &wider, sizeof wider);
    *n = want;
    return SEGUE_OK;
}

/* --- one message --- */

/* The same library on both sides: graphs travel as this one's structs. */
static segue_status greet(struct sg_server *v, struct sg_reader *in, int fd, struct sg_buf *out, segue_error *err)
{
    char spec[sizeof((struct sg_unit_spec *)0)->text];
    uint32_t wire = sg_take_u32(in), library = sg_take_u32(in);
    sg_take_text(in, spec, sizeof spec);
    segue_status status = SEGUE_OK;
    if (!sg_reader_done(in) || v->unit || fd < 0)
        status = sg_server_reject(err, "a greeting: it is damaged, or the second one");
    else if (wire != SG_WIRE_VERSION || library != segue_version())
        status = sg_fail(err, SEGUE_EUNIT,
                         "greeting refused: this is segue %x with protocol %d, the other side has %x and %u; install one",
                         segue_version(), SG_WIRE_VERSION, library, wire);
    if (status == SEGUE_OK) status = v->open(&v->unit, spec, err);
    if (status != SEGUE_OK) {
        if (fd >= 0) close(fd);
        return status;
    }
    struct sg_unit_desc desc;
    v->ops = sg_ops_of(v->unit);
    v->ops->describe(v->unit, &desc);
    sg_channel_take(&v->second, fd);
    sg_put_u32(out, (uint32_t)getpid());
    sg_wire_desc_put(out, &desc);
    return SEGUE_OK;
}

/* The page, or bulk memory of one connection; a new one replaces the old. */
static segue_status lend(struct sg_reader *in, int fd, size_t least, struct sg_shared *place, segue_error *err)
{
    uint64_t size = sg_take_u64(in);
    struct sg_shared memory;
    if (!sg_reader_done(in) || size > AREA_MOST || size < least) {
        if (fd >= 0) close(fd);
        return sg_server_reject(err, "memory to share: of an absurd size");
    }
    SG_TRY(sg_shared_map(&memory, fd, (size_t)size, 1, err));
    sg_shared_free(place);
    *place = memory;
    return SEGUE_OK;
}

static segue_status stream(struct sg_server *v, struct sg_reader *in, struct sg_buf *out, segue_error *err)
{
    uint64_t bytes = sg_take_u64(in), bits;
    double gb_s = 0;
    if (!sg_reader_done(in) || bytes > (uint64_t)1 << 36) return sg_server_reject(err, "a measurement: it is damaged");
    if (!v->ops->stream) return sg_fail(err, SEGUE_EUNSUPPORTED, "bandwidth not measured: this unit cannot measure it");
    SG_TRY(v->ops->stream(v->unit, bytes, &gb_s, err));
    memcpy(&bits, &gb_s, sizeof bits);
    sg_put_u64(out, bits);
    return SEGUE_OK;
}

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
    default: return sg_server_reject(err, "a request: of no known kind");
    }
}

static segue_status dispatch(struct sg_server *v, int connection, const struct sg_message *m, struct sg_buf *out,
                             segue_error *err)
{
    struct sg_reader in = sg_reader_of(m->body, m->body_n);
    int lends = m->kind == SG_WIRE_HANDSHAKE || m->kind == SG_WIRE_PAGE || m->kind == SG_WIRE_AREA ||
                m->kind == SG_WIRE_REGION || m->kind == SG_WIRE_LORA;
    if (m->fd >= 0 && (!lends || (connection && m->kind != SG_WIRE_AREA) || (!v->unit && m->kind != SG_WIRE_HANDSHAKE)))
        close(m->fd);
    if (!v->unit) {
        if (m->kind == SG_WIRE_HANDSHAKE && !connection) return greet(v, &in, m->fd, out, err);
        return sg_server_reject(err, "a request: before the greeting");
    }
    if (m->kind == SG_WIRE_AREA) return lend(&in, m->fd, 1, &v->areas[connection], err);
    if (connection) {
        if (m->kind == SG_WIRE_STATE_GET || m->kind == SG_WIRE_STATE_PUT)
            return sg_serve_get_put(v, m->kind, &in, out, err);
        return sg_server_reject(err, "a request: not on this connection");
    }
    if (m->kind == SG_WIRE_HANDSHAKE) return greet(v, &in, m->fd, out, err);
    if (m->kind == SG_WIRE_PAGE) {
        if (!v->page.data) return lend(&in, m->fd, sizeof(struct sg_wire_page), &v->page, err);
        if (m->fd >= 0) close(m->fd);
        return sg_server_reject(err, "a page: there is one");
    }
    if (m->kind == SG_WIRE_REGION) return sg_serve_region(v, &in, m->fd, err);
    if (m->kind == SG_WIRE_LORA) return sg_serve_lora(v, &in, m->fd, err);
    return first_connection(v, m, &in, out, err);
}

/* The caller orders requests on both connections by waiting for replies; memory of the two threads is ordered here. */
static void meet(struct sg_server *v)
{
    pthread_mutex_lock(&v->lock);
    pthread_mutex_unlock(&v->lock);
}

/* The status stands first but is known last: what follows it is written behind and moved up. */
void sg_server_answer(struct sg_server *v, int connection, const struct sg_message *m, struct sg_buf *reply)
{
    struct sg_buf out = {.limit = SG_WIRE_ANSWER / 2};
    segue_error why = {.text = ""};
    if (!connection) v->number = m->number;
    meet(v);
    segue_status status = dispatch(v, connection, m, &out, &why);
    meet(v);
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
    if (pthread_mutex_init(&v->lock, NULL)) {
        sg_free(v);
        return sg_no_memory("lock of a server", sizeof v->lock, err);
    }
    if (pthread_cond_init(&v->ending, NULL)) {
        pthread_mutex_destroy(&v->lock);
        sg_free(v);
        return sg_no_memory("server", sizeof v->ending, err);
    }
    v->open = open;
    v->page.fd = v->areas[0].fd = v->areas[1].fd = -1;
    v->second.fd = v->second.lent = -1;
    atomic_init(&v->own_cancel, 0);
    atomic_init(&v->over, 0);
    *out = v;
    return SEGUE_OK;
}

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
    pthread_cond_destroy(&v->ending);
    pthread_mutex_destroy(&v->lock);
    sg_free(v);
}

/* One request and its reply. */
static segue_status answer_one(struct sg_server *v, struct sg_channel *c, int connection, struct sg_buf *reply,
                               segue_error *err)
{
    struct sg_message m;
    segue_status status = sg_channel_receive(c, &m, SG_WIRE_REQUEST, for_ever, err);
    if (status == SEGUE_END) return SEGUE_OK;            /* a signal */
    SG_TRY(status);
    sg_server_answer(v, connection, &m, reply);
    if (reply->failed) return sg_no_memory("reply", reply->len, err);
    return sg_channel_send(c, m.kind + SG_WIRE_REPLY, m.number, reply->data, reply->len, -1, patience_ns, err);
}

/* Until the other side closes. ready: only until the second connection and the page are there. */
static segue_status converse(struct sg_server *v, struct sg_channel *c, int connection, int ready, segue_error *err)
{
    struct sg_buf reply = {0};
    segue_status status = SEGUE_OK;
    while (status == SEGUE_OK && !atomic_load(&v->over) && !(ready && v->page.data))
        status = answer_one(v, c, connection, &reply, err);
    sg_buf_free(&reply);
    return status;
}

static void *second_main(void *arg)
{
    struct sg_server *v = arg;
    segue_error ignored;
    converse(v, &v->second, 1, 0, &ignored);
    struct sg_wire_page *page = (struct sg_wire_page *)(void *)v->page.data;
    atomic_store(&v->over, 1);
    atomic_store(&v->own_cancel, 1);
    if (page) atomic_store(&page->cancel, 1);
    return NULL;
}

static void *beat_main(void *arg)
{
    struct sg_server *v = arg;
    struct sg_wire_page *page = (struct sg_wire_page *)(void *)v->page.data;
    pthread_mutex_lock(&v->lock);
    while (!atomic_load(&v->over)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += BEAT_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        atomic_fetch_add(&page->beat, 1u);
        pthread_cond_timedwait(&v->ending, &v->lock, &until);
    }
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

/* Threads begin once there is something to do for them. */
static segue_status serve(struct sg_server *v, struct sg_channel *first, segue_error *err)
{
    pthread_t second, beat;
    SG_TRY(converse(v, first, 0, 1, err));
    if (pthread_create(&second, NULL, second_main, v)) return sg_no_memory("thread", sizeof second, err);
    int beating = !pthread_create(&beat, NULL, beat_main, v);
    segue_status status = converse(v, first, 0, 0, err);
    pthread_mutex_lock(&v->lock);
    atomic_store(&v->over, 1);
    pthread_cond_broadcast(&v->ending);
    pthread_mutex_unlock(&v->lock);
    shutdown(v->second.fd, SHUT_RDWR);
    pthread_join(second, NULL);
    if (beating) pthread_join(beat, NULL);
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
    sg_channel_take(&first, fd);
    status = serve(v, &first, err);
    sg_channel_close(&first);
    sg_server_free(v);
    return status == SEGUE_ELOST ? SEGUE_OK : status;
}
