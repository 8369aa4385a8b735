/* proc_request.c: requests, replies, timeouts, shared memory, the handshake. A child that does not send a valid reply in time is
 * killed, and the unit is lost. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "unit/proc/proc.h"

/* Poll intervals with and without a cancel flag to forward; size of a new area; time limit of short requests, in units of
 * silence_ns. */
enum { CANCEL_POLL_NS = 4000000, IDLE_POLL_NS = 100000000, AREA_MIN = 1 << 22, SHORT_LIMIT = 6 };

static struct sg_wire_page *page_of(struct sg_unit *u) { return (struct sg_wire_page *)(void *)u->child.page.data; }

/* --- one user at a time --- */

/* First come, first served is not guaranteed: waiting threads compete when the connection becomes free. */
void proc_enter(struct sg_unit *u, int connection)
{
    pthread_mutex_lock(&u->lock);
    while (u->busy[connection]) pthread_cond_wait(&u->changed, &u->lock);
    u->busy[connection] = 1;
    pthread_mutex_unlock(&u->lock);
}

void proc_leave(struct sg_unit *u, int connection)
{
    pthread_mutex_lock(&u->lock);
    u->busy[connection] = 0;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
}

/* --- loss --- */

segue_status proc_is_lost(struct sg_unit *u, segue_error *err)
{
    if (!atomic_load(&u->lost)) return SEGUE_OK;
    return sg_fail(err, SEGUE_ELOST, "unit lost: %s: %s; restart it or use another unit", u->desc.info.spec, u->why);
}

/* The sockets are shut down but not closed: the user of the other connection may be in a call on its descriptor. */
segue_status proc_lose(struct sg_unit *u, const char *why, segue_error *err)
{
    pthread_mutex_lock(&u->lock);
    if (!atomic_load(&u->lost)) {
        snprintf(u->why, sizeof u->why, "process %ld: %s", (long)u->child.pid, why);
        atomic_store(&u->lost, 1);
        for (int i = 0; i < 2; i++)
            if (u->child.channels[i].fd >= 0) shutdown(u->child.channels[i].fd, SHUT_RDWR);
        proc_kill(&u->child);
    }
    pthread_mutex_unlock(&u->lock);
    return proc_is_lost(u, err);
}

/* --- a request --- */

struct sg_buf *proc_request(struct sg_unit *u, int connection)
{
    struct sg_buf *b = &u->out[connection];
    b->len = 0;
    b->failed = SEGUE_OK;
    return b;
}

/* Grows with the work, so that slow machines do not lose a unit that still computes. */
uint64_t proc_time_limit(const struct sg_unit *u, uint64_t work) { return u->silence_ns * (SHORT_LIMIT + work); }

/* The heartbeat is observed from here on; no heartbeat is required while the child is idle. */
segue_status proc_send(struct sg_unit *u, int connection, uint32_t kind, int fd, segue_error *err)
{
    struct sg_buf *b = &u->out[connection];
    SG_TRY(proc_is_lost(u, err));
    if (b->failed) return sg_no_memory("request", b->len, err);
    if (b->len > SG_WIRE_REQUEST)
        return sg_fail(err, SEGUE_ELIMIT, "request not sent: %s: %zu bytes, the limit is %d; use smaller requests",
                       u->desc.info.spec, b->len, SG_WIRE_REQUEST);
    segue_error why;
    u->numbers[connection]++;
    u->heartbeats_ns[connection] = sg_now_ns();
    if (sg_channel_send(&u->child.channels[connection], kind, u->numbers[connection], b->data, b->len, fd, u->silence_ns,
                        &why) == SEGUE_OK)
        return SEGUE_OK;
    return proc_lose(u, why.text, err);
}

/* Number, kind and status of a reply; an unexpected descriptor is an error. Returns the status in the reply. */
static segue_status reply_check(struct sg_unit *u, int connection, uint32_t kind, const struct sg_message *m,
                                struct sg_reader *in, segue_error *err)
{
    segue_status remote = SEGUE_OK;
    segue_error why = {.text = ""};
    if (m->fd >= 0) close(m->fd);
    if (m->fd >= 0 || m->kind != kind + SG_WIRE_REPLY || m->number != u->numbers[connection])
        return proc_lose(u, "it replied out of order", err);
    *in = sg_reader_of(m->body, m->body_n);
    if (sg_wire_status_take(in, &remote, &why) != SEGUE_OK) return proc_lose(u, "it sent an invalid reply", err);
    if (remote == SEGUE_ECANCELED && kind != SG_WIRE_RUN) return proc_lose(u, "it canceled a request without being asked", err);
    return remote == SEGUE_OK ? SEGUE_OK : sg_fail(err, remote, "%s", why.text);
}

/* No data yet: END while the heartbeat runs and time is left. */
static segue_status check_alive(struct sg_unit *u, int connection, uint64_t start_ns, uint64_t limit_ns, segue_error *err)
{
    struct sg_wire_page *page = page_of(u);
    uint64_t now = sg_now_ns();
    uint32_t heartbeat = page ? atomic_load(&page->heartbeat) : 0;
    SG_TRY(proc_is_lost(u, err));
    if (heartbeat != u->heartbeats[connection]) u->heartbeats_ns[connection] = now;
    u->heartbeats[connection] = heartbeat;
    if (page && now - u->heartbeats_ns[connection] > u->silence_ns) return proc_lose(u, "its heartbeat stopped", err);
    if (now - start_ns > limit_ns) return proc_lose(u, "it did not reply in time", err);
    return SEGUE_END;
}

/* The next message of a connection. END: none within timeout_ns. ELOST, EMEMORY. */
static segue_status receive(struct sg_unit *u, int connection, const atomic_int *cancel, uint64_t timeout_ns, uint64_t start_ns,
                            uint64_t limit_ns, struct sg_message *m, segue_error *err)
{
    uint64_t wait_start_ns = sg_now_ns();
    for (;;) {
        segue_error why;
        uint64_t spent = sg_now_ns() - wait_start_ns, left = timeout_ns > spent ? timeout_ns - spent : 0;
        uint64_t slice = cancel ? CANCEL_POLL_NS : IDLE_POLL_NS;
        if (slice > u->silence_ns / 4) slice = u->silence_ns / 4;
        segue_status status = sg_channel_receive(&u->child.channels[connection], m, SG_WIRE_ANSWER,
                                                 left < slice ? left : slice, &why);
        if (status == SEGUE_OK) return status;
        if (status == SEGUE_EMEMORY) { /* of this process; the rest of the reply cannot be skipped */
            proc_lose(u, why.text, NULL);
            return sg_fail(err, status, "%s", why.text);
        }
        if (status != SEGUE_END) return proc_lose(u, why.text, err);
        if (cancel && atomic_load(cancel) && page_of(u)) atomic_store(&page_of(u)->cancel, 1);
        status = check_alive(u, connection, start_ns, limit_ns, err);
        if (status != SEGUE_END || sg_now_ns() - wait_start_ns >= timeout_ns) return status;
    }
}

segue_status proc_reply(struct sg_unit *u, int connection, uint32_t kind, const atomic_int *cancel, uint64_t timeout_ns,
                        uint64_t start_ns, uint64_t limit_ns, struct sg_reader *in, segue_error *err)
{
    struct sg_message m;
    SG_TRY(receive(u, connection, cancel, timeout_ns, start_ns, limit_ns, &m, err));
    return reply_check(u, connection, kind, &m, in, err);
}

segue_status proc_accepted(struct sg_unit *u, const atomic_int *cancel, uint64_t start_ns, uint64_t limit_ns, segue_error *err)
{
    struct sg_message m;
    SG_TRY(receive(u, PROC_FIRST, cancel, UINT64_MAX, start_ns, limit_ns, &m, err));
    if (m.fd >= 0) close(m.fd);
    if (m.fd < 0 && m.kind == SG_WIRE_ACCEPTED && m.number == u->numbers[PROC_FIRST] && !m.body_n) return SEGUE_OK;
    return proc_lose(u, "it replied before it accepted the run", err);
}

segue_status proc_call(struct sg_unit *u, int connection, uint32_t kind, int fd, uint64_t limit_ns, struct sg_reader *in,
                      segue_error *err)
{
    SG_TRY(proc_send(u, connection, kind, fd, err));
    return proc_reply(u, connection, kind, NULL, UINT64_MAX, sg_now_ns(), limit_ns ? limit_ns : proc_time_limit(u, 0), in, err);
}

/* --- shared memory --- */

/* Replaces shared memory by a new one of `size` bytes that the child maps too. */
static segue_status share(struct sg_unit *u, int connection, uint32_t kind, struct sg_shared *memory, size_t size,
                          segue_error *err)
{
    struct sg_shared fresh;
    struct sg_reader in;
    SG_TRY(sg_shared_new(&fresh, size, err));
    sg_put_u64(proc_request(u, connection), size);
    segue_status status = proc_call(u, connection, kind, fresh.fd, 0, &in, err);
    if (status != SEGUE_OK) {
        sg_shared_free(&fresh);
        return status;
    }
    sg_shared_free(memory);
    *memory = fresh;
    return SEGUE_OK;
}

/* Sizes are powers of two times AREA_MIN, so that growing requests reallocate rarely. */
segue_status proc_area(struct sg_unit *u, int connection, size_t size, segue_error *err)
{
    struct sg_shared *area = &u->child.areas[connection];
    if (area->size >= size) return SEGUE_OK;
    size_t want = AREA_MIN;
    while (want < size && want < SIZE_MAX / 2) want *= 2;
    return share(u, connection, SG_WIRE_AREA, area, want, err);
}

/* --- handshake --- */

/* Versions and the inner spec; the reply describes the unit. Some properties are replaced: one run at a time, tokens are chosen
 * in this process. */
static segue_status handshake(struct sg_unit *u, int second, segue_error *err)
{
    struct sg_reader in;
    struct sg_unit_desc desc;
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    sg_put_u32(b, SG_WIRE_VERSION);
    sg_put_u32(b, segue_version());
    sg_put_text(b, u->inner);
    SG_TRY(proc_call(u, PROC_FIRST, SG_WIRE_HANDSHAKE, second, 0, &in, err));
    uint32_t pid = sg_reader_u32(&in);
    if (sg_wire_desc_take(&in, &desc, NULL) != SEGUE_OK || !sg_reader_done(&in) || !desc.info.present)
        return proc_lose(u, "it sent an invalid description", err);
    memcpy(desc.info.spec, u->desc.info.spec, sizeof desc.info.spec);
    memcpy(desc.info.kind, u->desc.info.kind, sizeof desc.info.kind);
    desc.info.pid = u->child.pid ? (uint32_t)u->child.pid : pid;
    desc.lanes = 1;
    desc.samples = 1;
    desc.may_disconnect = 1;
    pthread_mutex_lock(&u->lock);
    u->desc = desc;
    pthread_mutex_unlock(&u->lock);
    return SEGUE_OK;
}

segue_status proc_begin(struct sg_unit *u, segue_error *err)
{
    int second = -1;
    SG_TRY(proc_spawn(&u->child, &second, err));
    return proc_handshake(u, second, err);
}

/* The unit counts as alive from here on; a child that fails marks it as lost again. */
segue_status proc_handshake(struct sg_unit *u, int second, segue_error *err)
{
    atomic_store(&u->lost, 0);
    u->generation++;
    segue_status status = handshake(u, second, err);
    if (second >= 0) close(second);
    if (status == SEGUE_OK)
        status = share(u, PROC_FIRST, SG_WIRE_PAGE, &u->child.page, sizeof(struct sg_wire_page), err);
    for (int i = 0; i < 2 && status == SEGUE_OK; i++) status = proc_area(u, i, AREA_MIN, err);
    return status;
}

/* --- numbers --- */

segue_status proc_number(uint8_t **flags, uint32_t *n, uint32_t max, uint32_t *out, segue_error *err)
{
    uint32_t i = 0;
    while (i < *n && (*flags)[i]) i++;
    if (i == max) return sg_fail(err, SEGUE_ELIMIT, "unit proc: %u objects of one kind is the limit; close some", max);
    if (i == *n) {
        uint32_t want = *n ? *n * 2 : 32;
        if (want > max) want = max;
        uint8_t *wider = sg_realloc(*flags, want);
        if (!wider) return sg_no_memory("table", want, err);
        memset(wider + *n, 0, want - *n);
        *flags = wider;
        *n = want;
    }
    (*flags)[i] = 1;
    *out = i;
    return SEGUE_OK;
}
