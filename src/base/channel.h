/* channel.h: framed messages with an optional file descriptor over a connected Unix domain socket.
 * Time and memory of every call are bounded by the caller's timeout and size limit, whatever the
 * peer sends or fails to send.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_CHANNEL_H
#define SG_BASE_CHANNEL_H

#include "base/buf.h"

enum { SG_CHANNEL_HEAD = 32 };   /* bytes of the header of a message */

/* One received message. */
struct sg_message {
    uint32_t kind;           /* message type; the meaning is the caller's */
    uint64_t number;         /* sequence number, as the sender set it */
    const uint8_t *body;     /* [body_n] owned by the channel, valid until the next receive or close */
    size_t body_n;
    int fd;                  /* received descriptor, owned by the caller from now on; -1: none was sent */
};

/* One end of a connection. Zero-initialise with fd = received_fd = -1, or use sg_channel_init. Not
 * thread-safe. */
struct sg_channel {
    int fd;                  /* the socket, owned; -1: closed */
    int received_fd;         /* descriptor of the message that is being received, owned until it is handed out; -1: none */
    uint8_t head[SG_CHANNEL_HEAD];
    size_t head_n;           /* bytes of the header received so far */
    struct sg_buf in;        /* body received so far; kept between messages to reuse its memory */
};

/* Create two connected sockets: close-on-exec, numbered 3 or higher, writes to a closed peer raise
 * no SIGPIPE. EIO. */
segue_status sg_channel_pair(int fds[2], segue_error *err);
void sg_channel_init(struct sg_channel *c, int fd);   /* takes ownership of fd */
void sg_channel_close(struct sg_channel *c);
/* Send one message of n body bytes. fd >= 0: a duplicate of that descriptor is sent along; the
 * caller still owns fd. Blocks for at most timeout_ns. ELOST: the peer closed the connection or did
 * not read in time; the stream may then hold a partial message, so the channel must be closed. */
segue_status sg_channel_send(struct sg_channel *c, uint32_t kind, uint64_t number, const void *body, size_t n, int fd,
                             uint64_t timeout_ns, segue_error *err);
/* Receive one message. SEGUE_END: it did not arrive completely within timeout_ns; what has arrived
 * is kept, call again to continue. ELOST: the peer closed the connection, sent bytes that are not a
 * message, or a body of more than `limit` bytes. EMEMORY. */
segue_status sg_channel_receive(struct sg_channel *c, struct sg_message *m, size_t limit, uint64_t timeout_ns,
                                segue_error *err);

#endif
