/* listener.c: see listener.h. One thread of libmicrohttpd serves all sockets with epoll. A request that takes long suspends its
 * connection and runs on its own thread; what that thread writes wakes the connection.
 * SPDX-License-Identifier: MIT */
#include "serve/listener.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

bool listener_is_loopback(const char *host)
{
    return !strcmp(host, "localhost") || !strcmp(host, "::1") || !strncmp(host, "127.", 4);
}

#ifdef SEGUE_MICROHTTPD
#include <microhttpd.h>
#include <sodium.h>
#include <sys/socket.h>

/* Memory of one connection, which also bounds the headers of a request. */
enum { CONNECTION_BYTES = 24 << 10, ARGUMENTS_MAX = 64, ROUTE_STACK = 1 << 20, DROPPED_MAX = 64 << 20 };

/* A body that arrives has this time for each of its bytes, on top of the limit: 16 KiB a second. */
#define BODY_BYTE_NS 61035u

/* A connection. */
struct peer {
    struct peer *next, **at; /* at: what points to this one */
    int socket;
    uint64_t since_ns; /* it has not sent a whole request since then; 0: a request is in progress */
};

struct listener {
    struct listener_opts opts;
    struct MHD_Daemon *daemon;
    unsigned char key_hash[64][crypto_generichash_BYTES]; /* [opts.keys_n] */
    pthread_mutex_t lock;
    pthread_cond_t idle; /* active became 0 */
    size_t active;       /* requests in progress */
    struct peer *peers;
    bool draining;
};

/* One request of a route thread. */
struct route_call {
    struct listener *listener;
    struct exchange *x;
};

/* A request that had a thread was answered and the answer was sent, or its client disconnected. */
static void finish_one(void *context)
{
    struct listener *l = context;
    pthread_mutex_lock(&l->lock);
    if (!--l->active) pthread_cond_broadcast(&l->idle);
    pthread_mutex_unlock(&l->lock);
}

static void *route_main(void *arg)
{
    struct route_call call = *(struct route_call *)arg;
    free(arg);
    call.listener->opts.handle(call.listener->opts.context, call.x);
    exchange_release(call.x);
    return NULL;
}

static void wake_connection(struct exchange *x) { MHD_resume_connection(x->connection); }

static void refuse(struct exchange *x, int status, const char *message)
{
    struct serve_error e = {0};
    serve_fail(&e, status, NULL, "%s", message);
    exchange_fail(x, &e);
}

/* True if the presented key is one of the file. All hashes are compared, each in constant time. */
static bool check_key(const struct listener *l, struct exchange *x, const char *given)
{
    unsigned char hash[crypto_generichash_BYTES];
    size_t found = 0;
    crypto_generichash(hash, sizeof hash, (const unsigned char *)given, strlen(given), NULL, 0);
    for (size_t i = 0; i < l->opts.keys_n; i++)
        if (!sodium_memcmp(hash, l->key_hash[i], sizeof hash)) found = i + 1;
    if (found) snprintf(x->realm, sizeof x->realm, "key-%u", (unsigned)found);
    return found != 0;
}

static const char *header(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

static bool in_list(const char *text, size_t n, const char *const *list, size_t list_n)
{
    for (size_t i = 0; i < list_n; i++)
        if ((strlen(list[i]) == n && !strncasecmp(list[i], text, n)) || !strcmp(list[i], "*")) return true;
    return false;
}

/* True if name[n] without its port is localhost or an address of the loopback interface. */
static bool is_local_name(const char *name, size_t n)
{
    char host[256];
    if (n >= sizeof host) return false;
    memcpy(host, name, n);
    host[n] = 0;
    if (host[0] == '[') return !strncmp(host, "[::1]", 5) && (!host[5] || host[5] == ':');
    host[strcspn(host, ":")] = 0;
    struct in_addr address;
    return !strcasecmp(host, "localhost") || (!strncmp(host, "127.", 4) && inet_pton(AF_INET, host, &address) == 1);
}

/* A page of another site must not reach a server on loopback: neither by its own name that resolves to 127.0.0.1 (Host), nor
 * from a script (Origin). */
static bool check_site(const struct listener *l, struct MHD_Connection *c, struct exchange *x)
{
    const char *host = header(c, "Host"), *origin = header(c, "Origin");
    size_t host_n = host ? strcspn(host, ":") : 0;
    if (host && listener_is_loopback(l->opts.host) && !is_local_name(host, strlen(host)) &&
        !in_list(host, host_n, l->opts.hosts, l->opts.hosts_n)) {
        refuse(x, 403, "Host: this name is not allowed here; use localhost, or --allow-host");
        return false;
    }
    if (!origin || in_list(origin, strlen(origin), l->opts.origins, l->opts.origins_n)) return true;
    const char *name = strstr(origin, "://");
    if (name && is_local_name(name + 3, strlen(name + 3))) return true;
    refuse(x, 403, "Origin: this site is not allowed here; see --allow-origin");
    return false;
}

static enum MHD_Result count_length(void *context, enum MHD_ValueKind kind, const char *name, const char *value)
{
    size_t *n = context;
    (void)kind, (void)value;
    *n += !strcasecmp(name, "Content-Length");
    return MHD_YES;
}

/* A body whose length is said twice: a proxy might read another one than this server. */
static bool check_length(struct MHD_Connection *c, struct exchange *x)
{
    size_t n = header(c, "Transfer-Encoding") ? 1 : 0;
    MHD_get_connection_values(c, MHD_HEADER_KIND, count_length, &n);
    if (n > 1) refuse(x, 400, "the length of the body is given twice; send one Content-Length, or Transfer-Encoding: chunked");
    return n <= 1;
}

/* Everything that is known before the body. False: the response is there. */
static bool admit(struct listener *l, struct MHD_Connection *c, struct exchange *x)
{
    if (!check_site(l, c, x) || !check_length(c, x)) return false;
    const char *length = header(c, "Content-Length"), *type = header(c, "Content-Type");
    if (length && strtoull(length, NULL, 10) > l->opts.body_max) {
        refuse(x, 413, "the body is too large; shorten it, or start the server with a larger --body-limit");
        /* A body that is not much too large is read and dropped, since many clients look for an answer only after it; those that
         * send Expect do so before. */
        return !header(c, "Expect") && strtoull(length, NULL, 10) < l->opts.body_max + DROPPED_MAX;
    }
    /* A form that a page of another site may send without asking first. */
    if (type && !strncasecmp(type, "multipart/", 10)) {
        refuse(x, 415, "Content-Type: send application/json");
        return false;
    }
    bool open = !strcmp(x->path, "/health") || !strcmp(x->path, "/v1/health") || !strcmp(x->method, "OPTIONS");
    if (!l->opts.keys_n || open) return true;
    const char *bearer = header(c, "Authorization"), *key = header(c, "x-api-key");
    if (bearer && !strncasecmp(bearer, "Bearer ", 7)) key = bearer + 7;
    if (key && check_key(l, x, key)) return true;
    refuse(x, 401, "the API key is missing or wrong; send Authorization: Bearer KEY");
    return false;
}

static ssize_t read_stream(void *cls, uint64_t pos, char *buffer, size_t max)
{
    struct exchange *x = cls;
    ssize_t n;
    (void)pos;
    pthread_mutex_lock(&x->lock);
    size_t left = x->out.len - x->sent;
    if (left) {
        n = (ssize_t)(left < max ? left : max);
        memcpy(buffer, x->out.data + x->sent, (size_t)n);
        x->sent += (size_t)n;
        pthread_cond_broadcast(&x->drained);
    } else if (x->complete)
        n = MHD_CONTENT_READER_END_OF_STREAM;
    else {
        n = 0;
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

static void add_headers(struct MHD_Connection *c, struct exchange *x, struct MHD_Response *r)
{
    const char *origin = header(c, "Origin");
    char text[24];
    MHD_add_response_header(r, "Content-Type", x->content_type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (origin && x->status != 403) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
        /* Clients in a browser send headers of their own, which they name beforehand. */
        const char *asked = header(c, "Access-Control-Request-Headers");
        MHD_add_response_header(r, "Access-Control-Allow-Headers",
                                asked ? asked : "authorization, content-type, x-api-key, anthropic-version");
        MHD_add_response_header(r, "Vary", "Origin");
        MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    }
    if (x->started_s) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)x->started_s);
        MHD_add_response_header(r, "Process-Start-Time-Unix", text);
    }
    if (x->retry_after) {
        snprintf(text, sizeof text, "%u", x->retry_after);
        MHD_add_response_header(r, "Retry-After", text);
    }
}

/* Queue the response that the route has started. */
static enum MHD_Result respond(struct MHD_Connection *c, struct exchange *x)
{
    struct MHD_Response *r;
    pthread_mutex_lock(&x->lock);
    if (x->streaming)
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 8192, read_stream, x, NULL);
    else
        r = MHD_create_response_from_buffer(x->out.len, x->out.data, MHD_RESPMEM_MUST_COPY);
    int status = x->status;
    pthread_mutex_unlock(&x->lock);
    if (!r) return MHD_NO;
    add_headers(c, x, r);
    enum MHD_Result ok = MHD_queue_response(c, (unsigned)status, r);
    MHD_destroy_response(r);
    return ok;
}

/* The request is complete: answer it here, or on its own thread while the connection sleeps. */
static enum MHD_Result dispatch(struct listener *l, struct MHD_Connection *c, struct exchange *x)
{
    if (l->opts.quick(x)) {
        l->opts.handle(l->opts.context, x);
        return respond(c, x);
    }
    pthread_mutex_lock(&l->lock);
    bool full = l->active >= l->opts.requests_max || l->draining;
    if (!full) l->active++;
    pthread_mutex_unlock(&l->lock);
    if (full) {
        refuse(x, 503, l->draining ? "the server is shutting down" : "too many requests in progress; try again later");
        return respond(c, x);
    }
    struct route_call *call = out_alloc(sizeof *call);
    *call = (struct route_call){l, x};
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, ROUTE_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&x->lock);
    x->owners++;
    x->released = finish_one;
    x->released_context = l;
    x->suspended = true;
    MHD_suspend_connection(c);
    int failed = pthread_create(&thread, &attributes, route_main, call);
    pthread_mutex_unlock(&x->lock);
    pthread_attr_destroy(&attributes);
    if (!failed) return MHD_YES;
    free(call);
    exchange_release(x);
    refuse(x, 503, "no thread for the request; try again later"); /* wakes the connection */
    return MHD_YES;
}

/* One ?name=value. What is not UTF-8 is left out, and a name without value counts as empty. */
static enum MHD_Result add_argument(void *context, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct exchange *x = context;
    (void)kind;
    json_object_set_new(x->arguments, name, json_string(value ? value : ""));
    return MHD_YES;
}

static struct exchange *begin(struct listener *l, struct MHD_Connection *c, const char *url, const char *method)
{
    struct exchange *x = exchange_new();
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    const char *action = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "action");
    if (!action) action = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "model");
    (void)l;
    snprintf(x->method, sizeof x->method, "%s", method);
    x->path = out_strdup(url);
    x->query = action ? out_strdup(action) : NULL;
    x->arguments = json_object();
    MHD_get_connection_values(c, MHD_GET_ARGUMENT_KIND, add_argument, x);
    x->anthropic = !strncmp(url, "/v1/messages", 12);
    x->socket = info ? info->connect_fd : -1;
    x->connection = c;
    x->wake = wake_connection;
    return x;
}

/* Before the arguments are read. libmicrohttpd leaves a request without an answer if it has no memory for them, so such a
 * connection ends here. The request has no state yet. */
static void *check_uri(void *cls, const char *uri, struct MHD_Connection *c)
{
    size_t n = 0;
    (void)cls;
    while (*uri) n += *uri++ == '&';
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (n > ARGUMENTS_MAX && info) shutdown(info->connect_fd, SHUT_RDWR);
    return NULL;
}

/* A connection begins or ends; its socket is still open then. */
static void on_connection(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code)
{
    struct listener *l = cls;
    struct peer *p = *context;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    pthread_mutex_lock(&l->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED && info) {
        *context = p = out_alloc(sizeof *p);
        *p = (struct peer){l->peers, &l->peers, info->connect_fd, out_now_ns()};
        if (p->next) p->next->at = &p->next;
        l->peers = p;
    } else if (code == MHD_CONNECTION_NOTIFY_CLOSED && p) {
        *p->at = p->next;
        if (p->next) p->next->at = p->at;
        free(p);
        *context = NULL;
    }
    pthread_mutex_unlock(&l->lock);
}

/* since_ns of a connection. more_ns: time that is added to it, or 0: set it to `to`. */
static void set_since(struct listener *l, struct MHD_Connection *c, uint64_t more_ns, uint64_t to)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct peer *p = info ? info->socket_context : NULL;
    pthread_mutex_lock(&l->lock);
    if (p) p->since_ns = more_ns ? p->since_ns + more_ns : to;
    pthread_mutex_unlock(&l->lock);
}

void listener_expire(struct listener *l)
{
    uint64_t now = out_now_ns(), limit_ns = l->opts.timeout_s * UINT64_C(1000000000);
    pthread_mutex_lock(&l->lock);
    for (struct peer *p = l->peers; p; p = p->next)
        if (p->since_ns && now > p->since_ns + limit_ns) shutdown(p->socket, SHUT_RDWR);
    pthread_mutex_unlock(&l->lock);
}

/* Called for the headers, for each part of the body, at its end, and again after a suspended connection was woken. */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                  const char *data, size_t *size, void **state)
{
    struct listener *l = cls;
    struct exchange *x = *state;
    (void)version;
    if (!x) {
        *state = x = begin(l, c, url, method);
        return admit(l, c, x) ? MHD_YES : respond(c, x);
    }
    if (*size) {
        if (x->body.len + *size > l->opts.body_max && !x->status)
            refuse(x, 413, "the body is too large; shorten it, or start the server with a larger --body-limit");
        if (!x->status) {
            out_add(&x->body, data, *size);
            set_since(l, c, *size * BODY_BYTE_NS, 0);
        }
        *size = 0;
        return MHD_YES;
    }
    pthread_mutex_lock(&x->lock);
    bool started = x->status != 0;
    pthread_mutex_unlock(&x->lock);
    set_since(l, c, 0, 0);
    return started ? respond(c, x) : dispatch(l, c, x);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode code)
{
    struct exchange *x = *state;
    (void)code;
    set_since(cls, c, 0, out_now_ns());
    if (!x) return;
    pthread_mutex_lock(&x->lock);
    x->closed = true;
    x->wake = NULL;
    x->socket = -1;
    pthread_cond_broadcast(&x->drained);
    pthread_mutex_unlock(&x->lock);
    exchange_release(x);
    *state = NULL;
}

/* The address of opts. False: not an address. */
static bool read_address(const struct listener_opts *o, struct sockaddr_in *v4, struct sockaddr_in6 *v6)
{
    const char *host = strcmp(o->host, "localhost") != 0 ? o->host : "127.0.0.1";
    memset(v4, 0, sizeof *v4);
    memset(v6, 0, sizeof *v6);
    v4->sin_family = AF_INET;
    v6->sin6_family = AF_INET6;
    v4->sin_port = v6->sin6_port = htons((uint16_t)o->port);
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) return true;
    v4->sin_family = AF_UNSPEC;
    return inet_pton(AF_INET6, host, &v6->sin6_addr) == 1;
}

segue_status listener_open(struct listener **out, const struct listener_opts *opts, segue_error *err)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (!read_address(opts, &v4, &v6))
        return out_fail(err, SEGUE_EARG, "listen: %.100s: not an address; give numbers such as 127.0.0.1, 0.0.0.0 or ::1",
                        opts->host);
    bool six = v4.sin_family == AF_UNSPEC;
    struct listener *l = out_alloc(sizeof *l);
    l->opts = *opts;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->idle, NULL);
    for (size_t i = 0; i < opts->keys_n && i < 64; i++)
        crypto_generichash(l->key_hash[i], sizeof l->key_hash[i], (const unsigned char *)opts->keys[i], strlen(opts->keys[i]),
                           NULL, 0);
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | (six ? MHD_USE_IPv6 : 0);
    l->daemon = MHD_start_daemon(flags, (uint16_t)opts->port, NULL, NULL, on_request, l, MHD_OPTION_SOCK_ADDR,
                                 six ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
                                 l, MHD_OPTION_URI_LOG_CALLBACK, check_uri, NULL, MHD_OPTION_NOTIFY_CONNECTION,
                                 on_connection, l, MHD_OPTION_CONNECTION_LIMIT,
                                 opts->connections_max, MHD_OPTION_CONNECTION_TIMEOUT,
                                 opts->timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
                                 MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    if (!l->daemon) {
        free(l);
        return out_fail(err, SEGUE_EIO, "listen: %s port %u: the address cannot be used; is another server running there?",
                        opts->host, opts->port);
    }
    *out = l;
    return SEGUE_OK;
}

unsigned listener_port(const struct listener *l)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return info ? info->port : l->opts.port;
}

size_t listener_active(struct listener *l)
{
    pthread_mutex_lock(&l->lock);
    size_t n = l->active;
    pthread_mutex_unlock(&l->lock);
    return n;
}

bool listener_drain(struct listener *l, uint64_t timeout_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(timeout_ns / 1000000000u);
    until.tv_nsec += (long)(timeout_ns % 1000000000u);
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&l->lock);
    l->draining = true;
    int late = 0;
    while (l->active && !late) late = pthread_cond_timedwait(&l->idle, &l->lock, &until);
    bool idle = !l->active;
    pthread_mutex_unlock(&l->lock);
    return idle;
}

void listener_close(struct listener *l)
{
    MHD_stop_daemon(l->daemon);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->idle);
    free(l);
}

#else

segue_status listener_open(struct listener **out, const struct listener_opts *opts, segue_error *err)
{
    (void)out, (void)opts;
    return out_fail(err, SEGUE_EUNSUPPORTED, "serve: this build has no HTTP server; install libmicrohttpd and build again");
}
unsigned listener_port(const struct listener *l) { return l ? 0 : 0; }
bool listener_drain(struct listener *l, uint64_t timeout_ns) { return !l || timeout_ns; }
size_t listener_active(struct listener *l) { return l ? 0 : 0; }
void listener_expire(struct listener *l) { (void)l; }
void listener_close(struct listener *l) { (void)l; }

#endif
