/* channel.c: see channel.h. A message is a head of 32 bytes (magic, kind, number, bytes of the body, zero) and its body;
 * a descriptor travels with the head. SPDX-License-Identifier: MIT */
#include "base/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"

enum { MAGIC = 0x31776773, PIECE = 1 << 20 };   /* "sgw1" */

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0                          /* there SO_NOSIGPIPE does it */
#endif
#ifndef MSG_CMSG_CLOEXEC
#define MSG_CMSG_CLOEXEC 0
#endif

segue_status sg_channel_pair(int fds[2], segue_error *err)
{
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
        return sg_fail(err, SEGUE_EIO, "open socket pair: %s; close some files", strerror(errno));
    for (int i = 0; i < 2; i++) {
        /* Above the three standard ones, so that giving a child its own never overwrites it. */
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
        close(fds[i]);
        fds[i] = fd;
    }
    if (fds[0] < 0 || fds[1] < 0) {
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0) close(fds[i]);
        return sg_fail(err, SEGUE_EIO, "open socket pair: %s; close some files", strerror(errno));
    }
#ifdef SO_NOSIGPIPE
    for (int i = 0, one = 1; i < 2; i++) setsockopt(fds[i], SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
#endif
    return SEGUE_OK;
}

void sg_channel_take(struct sg_channel *c, int fd) { *c = (struct sg_channel){.fd = fd, .lent = -1}; }

void sg_channel_close(struct sg_channel *c)
{
    if (c->fd >= 0) close(c->fd);
    if (c->fd >= 0 && c->lent >= 0) close(c->lent);
    sg_buf_free(&c->in);
    *c = (struct sg_channel){.fd = -1, .lent = -1};
}

static segue_status gone(segue_error *err, const char *why)
{
    return sg_fail(err, SEGUE_ELOST, "the other side is lost: %s", why);
}

/* 1: ready; 0: not within the time. A signal ends the wait early: the caller may have something to look at. */
static int ready(int fd, short events, uint64_t until)
{
    struct pollfd p = {.fd = fd, .events = events};
    uint64_t now = sg_now_ns(), left = until > now ? until - now : 0;
    int ms = left / 1000000 > 60000 ? 60000 : (int)((left + 999999) / 1000000);
    return poll(&p, 1, ms) > 0;
}

/* --- sending --- */

static ssize_t send_some(struct sg_channel *c, struct iovec *parts, int parts_n, int fd)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = (size_t)parts_n};
    memset(&control, 0, sizeof control);
    if (fd >= 0) {
        m.msg_control = control.room;
        m.msg_controllen = sizeof control.room;
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(h), &fd, sizeof fd);
    }
    return sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

segue_status sg_channel_send(struct sg_channel *c, uint32_t kind, uint64_t number, const void *body, size_t n, int fd,
                             uint64_t timeout_ns, segue_error *err)
{
    uint8_t head[SG_CHANNEL_HEAD] = {0};
    const uint32_t words[] = {MAGIC, kind, (uint32_t)number, (uint32_t)(number >> 32), (uint32_t)n,
                              (uint32_t)((uint64_t)n >> 32), fd >= 0};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int k = 0; k < 4; k++) head[4 * i + (size_t)k] = (uint8_t)(words[i] >> 8 * k);
    union { const void *in; void *out; } bytes = {body};     /* sendmsg does not write */
    struct iovec parts[2] = {{head, sizeof head}, {bytes.out, n}};
    uint64_t until = sg_now_ns() + timeout_ns;
    if (c->fd < 0) return gone(err, "it was closed");
    for (int at = 0; at < 2;) {
        ssize_t sent = send_some(c, parts + at, 2 - at, fd);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return gone(err, strerror(errno));
        if (sent < 0) {
            if (sg_now_ns() >= until) return gone(err, "it takes no more messages");
            ready(c->fd, POLLOUT, until);
            continue;
        }
        fd = -1;
        size_t left = (size_t)sent;
        while (at < 2 && left >= parts[at].iov_len) left -= parts[at++].iov_len;
        if (at < 2) {
            parts[at].iov_base = (char *)parts[at].iov_base + left;
            parts[at].iov_len -= left;
        }
    }
    return SEGUE_OK;
}

/* --- receiving --- */

int sg_channel_waits(const struct sg_channel *c) { return c->fd < 0 || ready(c->fd, POLLIN, 0); }

/* The descriptor of a message; more than one, or a second one, is closed at once. */
static void take_lent(struct sg_channel *c, struct msghdr *m)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
        size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            fcntl(fd, F_SETFD, FD_CLOEXEC);
            if (c->lent < 0) c->lent = fd;
            else close(fd);
        }
    }
}

/* Bytes read, 0 = the end, -1 = errno. */
static ssize_t receive_some(struct sg_channel *c, void *to, size_t n)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec part = {to, n};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.room,
                       .msg_controllen = sizeof control.room};
    ssize_t got = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0) take_lent(c, &m);
    return got;
}

/* OK: *n more bytes at `to`. END: later. */
static segue_status some(struct sg_channel *c, void *to, size_t *n, uint64_t until, segue_error *err)
{
    for (int waited = 0;;) {
        ssize_t got = receive_some(c, to, *n);
        if (got > 0) {
            *n = (size_t)got;
            return SEGUE_OK;
        }
        if (got == 0) return gone(err, "it closed the connection");
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return gone(err, strerror(errno));
        if (waited || sg_now_ns() >= until) return SEGUE_END;
        waited = !ready(c->fd, POLLIN, until);
    }
}

static segue_status head_sound(const struct sg_channel *c, size_t limit, segue_error *err)
{
    uint64_t n = sg_le64(c->head + 16);
    if (sg_le32(c->head) != MAGIC) return gone(err, "it sent what is no message");
    if (n > limit)
        return sg_fail(err, SEGUE_ELOST, "the other side is lost: it sent a message of %llu bytes, at most %zu are taken",
                       (unsigned long long)n, limit);
    return SEGUE_OK;
}

segue_status sg_channel_receive(struct sg_channel *c, struct sg_message *m, size_t limit, uint64_t timeout_ns,
                                segue_error *err)
{
    uint64_t now = sg_now_ns(), until = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    if (c->fd < 0) return gone(err, "it was closed");
    while (c->head_n < SG_CHANNEL_HEAD) {
        size_t n = SG_CHANNEL_HEAD - c->head_n;
        if (!c->head_n) c->in.len = 0;
        SG_TRY(some(c, c->head + c->head_n, &n, until, err));
        c->head_n += n;
    }
    SG_TRY(head_sound(c, limit, err));
    for (size_t body = (size_t)sg_le64(c->head + 16); c->in.len < body;) {
        size_t n = body - c->in.len < PIECE ? body - c->in.len : PIECE;
        if (sg_buf_reserve(&c->in, n)) return sg_no_memory("message", n, err);
        SG_TRY(some(c, c->in.data + c->in.len, &n, until, err));
        c->in.len += n;
    }
    *m = (struct sg_message){.kind = sg_le32(c->head + 4),
                             .number = sg_le64(c->head + 8),
                             .body = (const uint8_t *)(c->in.data ? c->in.data : ""),
                             .body_n = c->in.len,
                             .fd = c->lent};
    c->lent = -1;
    c->head_n = 0;
    return SEGUE_OK;
}
