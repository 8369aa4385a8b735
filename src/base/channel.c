/* channel.c: see channel.h. A message is a header of 32 bytes followed by the body. Header, little
 * endian: u32 magic, u32 kind, u64 number, u64 bytes of the body, u32 1 if a descriptor is
 * attached, u32 zero. The descriptor travels as SCM_RIGHTS ancillary data with the first bytes of
 * the header.
 * SPDX-License-Identifier: MIT */
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

/* MAGIC is "sgw1". READ_CHUNK bounds how far the body buffer grows ahead of the bytes received: a
 * peer cannot make this side allocate memory by announcing a large body. */
enum { MAGIC = 0x31776773, READ_CHUNK = 1 << 20 };

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0                          /* macOS: SO_NOSIGPIPE is set on the socket instead */
#endif
#ifndef MSG_CMSG_CLOEXEC
#define MSG_CMSG_CLOEXEC 0
#endif

segue_status sg_channel_pair(int fds[2], segue_error *err)
{
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
        return sg_fail(err, SEGUE_EIO, "open socket pair: %s; close some files", strerror(errno));
    for (int i = 0; i < 2; i++) {
        /* Numbers 0 to 2 are avoided: a child process gets those replaced by its standard streams. */
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

void sg_channel_init(struct sg_channel *c, int fd) { *c = (struct sg_channel){.fd = fd, .received_fd = -1}; }

/* A zero-initialised channel has fd 0, which is a valid descriptor: initialise with fd = -1. */
void sg_channel_close(struct sg_channel *c)
{
    if (c->fd >= 0) close(c->fd);
    if (c->fd >= 0 && c->received_fd >= 0) close(c->received_fd);
    sg_buf_free(&c->in);
    *c = (struct sg_channel){.fd = -1, .received_fd = -1};
}

/* Fails with ELOST and a reason. */
static segue_status peer_lost(segue_error *err, const char *why)
{
    return sg_fail(err, SEGUE_ELOST, "connection to the peer lost: %s", why);
}

/* Wait for `events` until time `until` (sg_now_ns), at most one minute. 1: ready; 0: timeout or a
 * signal arrived. */
static int ready(int fd, short events, uint64_t until)
{
    struct pollfd p = {.fd = fd, .events = events};
    uint64_t now = sg_now_ns(), left = until > now ? until - now : 0;
    int ms = left / 1000000 > 60000 ? 60000 : (int)((left + 999999) / 1000000);
    return poll(&p, 1, ms) > 0;
}

/* --- sending --- */

/* One non-blocking sendmsg of parts[parts_n], with the descriptor fd attached unless it is -1. */
static ssize_t send_some(struct sg_channel *c, struct iovec *parts, int parts_n, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = (size_t)parts_n};
    memset(&control, 0, sizeof control);
    if (fd >= 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof control.bytes;
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(h), &fd, sizeof fd);
    }
    return sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Sends header and body in as few system calls as the socket buffer allows; waits for POLLOUT when
 * it is full. */
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
    if (c->fd < 0) return peer_lost(err, "the channel is closed");
    for (int at = 0; at < 2;) {
        ssize_t sent = send_some(c, parts + at, 2 - at, fd);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return peer_lost(err, strerror(errno));
        if (sent < 0) {
            if (sg_now_ns() >= until) return peer_lost(err, "timeout: it does not read its messages");
            ready(c->fd, POLLOUT, until);
            continue;
        }
        fd = -1;                             /* sent with the first bytes; attach it only once */
        size_t left = (size_t)sent;          /* then advance the two parts past the bytes sent */
        while (at < 2 && left >= parts[at].iov_len) left -= parts[at++].iov_len;
        if (at < 2) {
            parts[at].iov_base = (char *)parts[at].iov_base + left;
            parts[at].iov_len -= left;
        }
    }
    return SEGUE_OK;
}

/* --- receiving --- */

/* Keep the first descriptor of the current message. All others are closed, so that a peer cannot
 * exhaust this process's descriptors. */
static void store_fds(struct sg_channel *c, struct msghdr *m)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
        size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            fcntl(fd, F_SETFD, FD_CLOEXEC);
            if (c->received_fd < 0) c->received_fd = fd;
            else close(fd);
        }
    }
}

/* One non-blocking recvmsg. Returns the bytes read, 0 at end of stream, -1 with errno. The control
 * buffer holds four descriptors; the kernel closes those that do not fit. */
static ssize_t receive_some(struct sg_channel *c, void *to, size_t n)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec part = {to, n};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0) store_fds(c, &m);
    return got;
}

/* Read up to *n bytes into `to`; sets *n to the bytes read. SEGUE_END: none arrived until time
 * `until`. Polls once only, so that a signal can interrupt the wait. */
static segue_status receive_until(struct sg_channel *c, void *to, size_t *n, uint64_t until, segue_error *err)
{
    for (int waited = 0;;) {
        ssize_t got = receive_some(c, to, *n);
        if (got > 0) {
            *n = (size_t)got;
            return SEGUE_OK;
        }
        if (got == 0) return peer_lost(err, "it closed the connection or ended");
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return peer_lost(err, strerror(errno));
        if (waited || sg_now_ns() >= until) return SEGUE_END;
        waited = !ready(c->fd, POLLIN, until);
    }
}

/* Validates the magic and the body size of a complete header. */
static segue_status check_head(const struct sg_channel *c, size_t limit, segue_error *err)
{
    uint64_t n = sg_le64(c->head + 16);
    if (sg_le32(c->head) != MAGIC) return peer_lost(err, "it sent bytes that are not a message");
    if (n > limit)
        return sg_fail(err, SEGUE_ELOST, "connection to the peer lost: it sent a message of %llu bytes, the limit is %zu",
                       (unsigned long long)n, limit);
    return SEGUE_OK;
}

/* Resumable: head_n and in.len record the progress across calls that ended with SEGUE_END. in.len
 * is reset when the next header starts, which is why a returned body stays valid until then. */
segue_status sg_channel_receive(struct sg_channel *c, struct sg_message *m, size_t limit, uint64_t timeout_ns,
                                segue_error *err)
{
    uint64_t now = sg_now_ns(), until = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    if (c->fd < 0) return peer_lost(err, "the channel is closed");
    while (c->head_n < SG_CHANNEL_HEAD) {
        size_t n = SG_CHANNEL_HEAD - c->head_n;
        if (!c->head_n) c->in.len = 0;
        SG_TRY(receive_until(c, c->head + c->head_n, &n, until, err));
        c->head_n += n;
    }
    SG_TRY(check_head(c, limit, err));
    for (size_t body = (size_t)sg_le64(c->head + 16); c->in.len < body;) {
        size_t n = body - c->in.len < READ_CHUNK ? body - c->in.len : READ_CHUNK;
        if (sg_buf_reserve(&c->in, n)) return sg_no_memory("message", n, err);
        SG_TRY(receive_until(c, c->in.data + c->in.len, &n, until, err));
        c->in.len += n;
    }
    *m = (struct sg_message){.kind = sg_le32(c->head + 4),
                             .number = sg_le64(c->head + 8),
                             .body = (const uint8_t *)(c->in.data ? c->in.data : ""),
                             .body_n = c->in.len,
                             .fd = c->received_fd};
    c->received_fd = -1;
    c->head_n = 0;
    return SEGUE_OK;
}
