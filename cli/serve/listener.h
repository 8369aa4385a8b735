/* listener.h: the HTTP side of `segue serve`: accepts connections, enforces limits, keys, Host and Origin, and hands complete
 * requests to a handler. The only file that knows libmicrohttpd; without it, listener_open is refused.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_LISTENER_H
#define SEGUE_CLI_LISTENER_H

#include "serve/exchange.h"

struct listener_opts {
    const char *host;                    /* address to listen on: IPv4 or IPv6 in numbers, or "localhost" */
    unsigned port;                       /* 0: any free one */
    size_t body_max;                     /* bytes */
    unsigned connections_max, timeout_s; /* timeout_s: without a byte sent or received */
    unsigned requests_max;               /* requests in progress at once; more get 503 */
    char **keys;                         /* [keys_n] accepted API keys; none: no key is needed. Borrowed */
    size_t keys_n;
    const char *const *origins; /* [origins_n] further allowed values of Origin; "*": all. Borrowed */
    size_t origins_n;
    const char *const *hosts; /* [hosts_n] further allowed names in Host. Borrowed */
    size_t hosts_n;
    /* Answers a request, on the listener's thread if quick returned true for it, else on a separate thread. */
    void (*handle)(void *context, struct exchange *x);
    bool (*quick)(const struct exchange *x);
    void *context;
};

struct listener;
/* SEGUE_EUNSUPPORTED: built without libmicrohttpd. SEGUE_EIO: the address cannot be used. opts is copied. */
segue_status listener_open(struct listener **out, const struct listener_opts *opts, segue_error *err);
/* The port in use. */
unsigned listener_port(const struct listener *l);
/* Accept no new connections and wait until no request is in progress, at most timeout_ns. False: time is up. */
bool listener_drain(struct listener *l, uint64_t timeout_ns);
/* Requests in progress. */
size_t listener_active(struct listener *l);
/* Ends connections that take longer than timeout_s to send a request, although something moves. To be called now and then. */
void listener_expire(struct listener *l);
/* Ends all connections. Call when no request is in progress. */
void listener_close(struct listener *l);
/* True if the address is of the loopback interface. */
bool listener_is_loopback(const char *host);

#endif
