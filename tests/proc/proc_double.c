/* proc_double.c: a process of the unit `proc` that misbehaves: it serves `ref` as it should until request number
 * $PROC_DOUBLE_AFTER of its first connection, and then does what $PROC_DOUBLE says. Started by the library in the place of
 * the command. SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/placement/units.h"
#include "unit/proc/server.h"

static const char *mode;
static long after, requests;
static FILE *record;

static segue_status open_unit(struct sg_unit **out, const char *spec, segue_error *err)
{
    segue_unit *u = NULL;
    segue_status s = segue_unit_open(&u, spec, err);
    if (s == SEGUE_OK) *out = u->unit;
    return s;
}

static int is(const char *what) { return mode && !strcmp(mode, what); }

static void for_ever(struct sg_server *v, int beat)
{
    struct sg_wire_page *page = (struct sg_wire_page *)(void *)v->page.data;
    for (;;) {
        if (beat && page) atomic_fetch_add(&page->heartbeat, 1u);
        usleep(10000);
    }
}

/* Change the reply that would have been right. */
static void spoil(struct sg_server *v, struct sg_message *m, struct sg_buf *reply)
{
    uint8_t *bytes = (uint8_t *)reply->data;
    if (is("status") && reply->len >= 4) memset(bytes, 0x55, 4);
    if (is("cancels") && m->kind == SG_WIRE_RUN && reply->len >= 4) {
        const int32_t canceled = SEGUE_ECANCELED;
        memcpy(bytes, &canceled, 4);
    }
    if (is("short") && reply->len > 9) reply->len -= 5;
    if (is("long")) sg_buf_add(reply, "more than was asked for", 23);
    if (is("rows") && m->kind == SG_WIRE_RUN && reply->len > 8 + 32) bytes[8 + 32] ^= 0x7f;
    if (is("held") && reply->len > 16) memset(bytes + 8, 0xee, reply->len - 8);
    if (is("nan") && v->areas[0].data)
        for (size_t i = 0; i + 4 <= v->areas[0].size; i += 4) {
            const float x = NAN;
            memcpy(v->areas[0].data + i, &x, 4);
        }
    if (is("random"))
        for (size_t i = 0; i < reply->len; i++) bytes[i] = (uint8_t)(rand() >> 7);
}

static void answer(struct sg_server *v, struct sg_channel *c, int connection, struct sg_message *m)
{
    struct sg_buf reply = {0};
    int bad = !connection && requests++ >= after;
    if (record && !connection) {
        const uint8_t head[6] = {(uint8_t)m->kind,           0, (uint8_t)m->body_n, (uint8_t)(m->body_n >> 8),
                                 (uint8_t)(m->body_n >> 16), 0};
        fwrite(head, 1, sizeof head, record);
        fwrite(m->body, 1, m->body_n, record);
        fflush(record);
    }
    if (connection && is("withholds") && m->kind == SG_WIRE_STATE_GET) for_ever(v, 1);
    if (bad && is("silent")) for_ever(v, 0);
    if (bad && is("busy")) for_ever(v, 1);
    if (bad && is("close")) _exit(0);
    if (bad && is("crash")) abort();
    if (bad && is("noise")) {
        static const char noise[64] = "this is no message at all";
        (void)!write(c->fd, noise, sizeof noise);
        for_ever(v, 1);
    }
    sg_server_answer(v, connection, m, &reply);
    if (bad) spoil(v, m, &reply);
    uint64_t number = m->number + (bad && is("order"));
    uint32_t kind = m->kind + SG_WIRE_REPLY + (bad && is("kind"));
    if (bad && is("huge")) {
        const uint8_t head[SG_CHANNEL_HEAD] = {'s', 'g', 'w', '1', (uint8_t)kind, 1, 0, 0, (uint8_t)number, 0, 0, 0,
                                               0,   0,   0,   0,   0,             0, 0, 0, 0,               0, 0, 4};
        (void)!write(c->fd, head, sizeof head);
        for_ever(v, 1);
    }
    if (bad && is("half")) {
        struct sg_buf whole = {0};
        sg_buf_add(&whole, "sgw1", 4);
        (void)!write(c->fd, whole.data, whole.len);
        for_ever(v, 1);
    }
    sg_channel_send(c, kind, number, reply.data, reply.len, bad && is("lend") ? 2 : -1, 1000000000, NULL);
    if (bad && is("twice")) sg_channel_send(c, kind, number, reply.data, reply.len, -1, 1000000000, NULL);
    sg_buf_free(&reply);
}

static void *serve_main(void *arg)
{
    struct sg_server *v = arg;
    struct sg_message m;
    segue_status s;
    while ((s = sg_channel_receive(&v->second, &m, SG_WIRE_REQUEST, UINT64_MAX / 4, NULL)) == SEGUE_OK || s == SEGUE_END)
        if (s == SEGUE_OK) answer(v, &v->second, 1, &m);
    _exit(0);
}

int main(void)
{
    struct sg_server *v;
    struct sg_channel first;
    struct sg_message m;
    pthread_t second;
    int started = 0;
    segue_status s;
    mode = getenv("PROC_DOUBLE");
    after = getenv("PROC_DOUBLE_AFTER") ? atol(getenv("PROC_DOUBLE_AFTER")) : 0;
    if (getenv("PROC_DOUBLE_RECORD")) record = fopen(getenv("PROC_DOUBLE_RECORD"), "wb");
    if (sg_server_new(&v, open_unit, NULL) != SEGUE_OK) return 1;
    sg_channel_init(&first, 0);
    v->first = &first;
    while ((s = sg_channel_receive(&first, &m, SG_WIRE_REQUEST, UINT64_MAX / 4, NULL)) == SEGUE_OK || s == SEGUE_END) {
        if (s == SEGUE_END) continue;
        answer(v, &first, 0, &m);
        if (!started && v->second.fd >= 0) started = !pthread_create(&second, NULL, serve_main, v);
    }
    _exit(0);
}
