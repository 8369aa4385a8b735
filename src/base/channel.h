/* channel.h: messages with descriptors over a connected local socket. Each side bounds what it waits for and what it
 * takes in; nothing that the other side does makes a call wait longer or take more.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_CHANNEL_H
#define SG_BASE_CHANNEL_H

#include "base/buf.h"

enum { SG_CHANNEL_HEAD = 32 };

struct sg_message {
    uint32_t kind;
    uint64_t number;
    const uint8_t *body;     /* [body_n] the channel's, until the next receive */
    size_t body_n;
    int fd;                  /* the caller's to close; -1: none came along */
};

/* One end. One thread at a time. Zero-initialise with fd = -1. */
struct sg_channel {
    int fd;                  /* owned */
    int lent;                /* a descriptor that came with the message being read; -1 */
    uint8_t head[SG_CHANNEL_HEAD];
    size_t head_n;           /* bytes of the head that are here */
    struct sg_buf in;        /* body so far */
};

/* Two connected ends, closed on exec, that never raise a signal. EIO. */
segue_status sg_channel_pair(int fds[2], segue_error *err);
void sg_channel_take(struct sg_channel *c, int fd);   /* make fd this channel's */
void sg_channel_close(struct sg_channel *c);
/* fd >= 0 is lent along with it and stays the caller's. ELOST: the other side is gone, or took nothing for timeout_ns. */
segue_status sg_channel_send(struct sg_channel *c, uint32_t kind, uint64_t number, const void *body, size_t n, int fd,
                             uint64_t timeout_ns, segue_error *err);
/* SEGUE_END: not all of it came within timeout_ns; call again to go on. ELOST: the other side closed, sent what is no
 * message, or one with a body above `limit`. EMEMORY. */
segue_status sg_channel_receive(struct sg_channel *c, struct sg_message *m, size_t limit, uint64_t timeout_ns,
                                segue_error *err);

/* 1: a receive would find something now, or that the other side is gone. */
int sg_channel_waits(const struct sg_channel *c);

#endif
