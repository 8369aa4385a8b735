/* proc_request.c: requests, replies, and how long to wait for them. A process that says nothing sound in time is lost: it is
 * ended, and everything that it had with it. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "unit/proc/proc.h"

enum { LOOK_NS = 4000000, IDLE_NS = 100000000, AREA_LEAST = 1 << 22, QUICK = 6 };

static struct sg_wire_page *page_of(struct sg_unit *u) { return (struct sg_wire_page *)(void *)u->child.page.data; }

/* --- one user at a time --- */

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
    return sg_fail(err, SEGUE_ELOST, "unit lost: %s: %s; restart it or go on elsewhere", u->desc.info.spec, u->why);
}

/* The sockets are only shut, since the other connection's user may be in the middle of a call. */
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

uint64_t proc_time_limit(const struct sg_unit *u, uint64_t work) { return u->patience_ns * (QUICK + work); }

segue_status proc_send(struct sg_unit *u, int connection, uint32_t kind, int fd, segue_error *err)
{
    struct sg_buf *b = &u->out[connection];
    SG_TRY(proc_is_lost(u, err));
    if (b->failed) return sg_no_memory("request", b->len, err);
    if (b->len > SG_WIRE_REQUEST)
        return sg_fail(err, SEGUE_ELIMIT, "request not sent: %s: %zu bytes, at most %d; ask for less at once",
                       u->desc.info.spec, b->len, SG_WIRE_REQUEST);
    segue_error why;
    u->numbers[connection]++;
    u->beats_at[connection] = sg_now_ns();
    if (sg_channel_send(&u->child.channels[connection], kind, u->numbers[connection], b->data, b->len, fd, u->patience_ns,
                        &why) == SEGUE_OK)
        return SEGUE_OK;
    return proc_lose(u, why.text, err);
}

/* Out of order, of another kind, or with something that nobody asked for. */
static segue_status reply_sound(struct sg_unit *u, int connection, uint32_t kind, const struct sg_message *m,
                                struct sg_reader *in, segue_error *err)
{
    segue_status said = SEGUE_OK;
    segue_error why = {.text = ""};
    if (m->fd >= 0) close(m->fd);
    if (m->fd >= 0 || m->kind != kind + SG_WIRE_REPLY || m->number != u->numbers[connection])
        return proc_lose(u, "it answered out of order", err);
    *in = sg_reader_of(m->body, m->body_n);
    if (sg_wire_status_take(in, &said, &why) != SEGUE_OK) return proc_lose(u, "it answered nonsense", err);
    return said == SEGUE_OK ? SEGUE_OK : sg_fail(err, said, "%s", why.text);
}

/* Nothing came for a while: is it alive, and is there time left? */
static segue_status still_waiting(struct sg_unit *u, int connection, uint64_t begun, uint64_t limit_ns, segue_error *err)
{
    struct sg_wire_page *page = page_of(u);
    uint64_t now = sg_now_ns();
    uint32_t beat = page ? atomic_load(&page->beat) : 0;
    SG_TRY(proc_is_lost(u, err));
    if (beat != u->beats[connection]) u->beats_at[connection] = now;
    u->beats[connection] = beat;
    if (page && now - u->beats_at[connection] > u->patience_ns) return proc_lose(u, "it gave no sign of life", err);
    if (now - begun > limit_ns) return proc_lose(u, "it did not answer in time", err);
    return SEGUE_END;
}

segue_status proc_reply(struct sg_unit *u, int connection, uint32_t kind, const atomic_int *cancel, uint64_t timeout_ns,
                        uint64_t begun, uint64_t limit_ns, struct sg_reader *in, segue_error *err)
{
    uint64_t from = sg_now_ns();
    for (;;) {
        struct sg_message m;
        segue_error why;
        uint64_t spent = sg_now_ns() - from, left = timeout_ns > spent ? timeout_ns - spent : 0;
        uint64_t slice = cancel ? LOOK_NS : IDLE_NS;
        if (slice > u->patience_ns / 4) slice = u->patience_ns / 4;
        segue_status status = sg_channel_receive(&u->child.channels[connection], &m, SG_WIRE_ANSWER,
                                                 left < slice ? left : slice, &why);
        if (status == SEGUE_OK) return reply_sound(u, connection, kind, &m, in, err);
        if (status == SEGUE_EMEMORY) { /* ours; but the rest of the reply cannot be found again */
            proc_lose(u, why.text, NULL);
            return sg_fail(err, status, "%s", why.text);
        }
        if (status != SEGUE_END) return proc_lose(u, why.text, err);
        if (cancel && atomic_load(cancel) && page_of(u)) atomic_store(&page_of(u)->cancel, 1);
        status = still_waiting(u, connection, begun, limit_ns, err);
        if (status != SEGUE_END || sg_now_ns() - from >= timeout_ns) return status;
    }
}

segue_status proc_call(struct sg_unit *u, int connection, uint32_t kind, int fd, uint64_t limit_ns, struct sg_reader *in,
                      segue_error *err)
{
    SG_TRY(proc_send(u, connection, kind, fd, err));
    return proc_reply(u, connection, kind, NULL, UINT64_MAX, sg_now_ns(), limit_ns ? limit_ns : proc_time_limit(u, 0), in, err);
}

/* --- shared memory --- */

static segue_status share(struct sg_unit *u, int connection, uint32_t kind, struct sg_shared *place, size_t size,
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
    sg_shared_free(place);
    *place = fresh;
    return SEGUE_OK;
}

segue_status proc_area(struct sg_unit *u, int connection, size_t size, segue_error *err)
{
    struct sg_shared *area = &u->child.areas[connection];
    if (area->size >= size) return SEGUE_OK;
    size_t want = AREA_LEAST;
    while (want < size && want < SIZE_MAX / 2) want *= 2;
    return share(u, connection, SG_WIRE_AREA, area, want, err);
}

/* --- greeting --- */

static segue_status greet(struct sg_unit *u, int second, segue_error *err)
{
    struct sg_reader in;
    struct sg_unit_desc desc;
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    sg_put_u32(b, SG_WIRE_VERSION);
    sg_put_u32(b, segue_version());
    sg_put_text(b, u->inner);
    SG_TRY(proc_call(u, PROC_FIRST, SG_WIRE_HANDSHAKE, second, 0, &in, err));
    uint32_t pid = sg_take_u32(&in);
    if (sg_wire_desc_take(&in, &desc, NULL) != SEGUE_OK || !sg_reader_done(&in) || !desc.info.present)
        return proc_lose(u, "it described itself in no known way", err);
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

segue_status proc_handshake(struct sg_unit *u, int second, segue_error *err)
{
    atomic_store(&u->lost, 0);
    u->generation++;
    segue_status status = greet(u, second, err);
    if (second >= 0) close(second);
    if (status == SEGUE_OK)
        status = share(u, PROC_FIRST, SG_WIRE_PAGE, &u->child.page, sizeof(struct sg_wire_page), err);
    for (int i = 0; i < 2 && status == SEGUE_OK; i++) status = proc_area(u, i, AREA_LEAST, err);
    return status;
}
