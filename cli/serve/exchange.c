/* exchange.c: see exchange.h. SPDX-License-Identifier: MIT */
#include "serve/exchange.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Unsent bytes at which a route waits for its client, and sent bytes at which the buffer is moved. */
enum { UNSENT_MAX = 1 << 20, DROP_AT = 1 << 16 };

static const char *type_of(int status)
{
    if (status == 401) return "authentication_error";
    if (status == 403) return "permission_error";
    if (status == 404) return "not_found_error";
    if (status == 429) return "rate_limit_error";
    if (status == 503) return "unavailable_error";
    if (status == 501) return "not_supported_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

bool serve_fail(struct serve_error *e, int status, const char *param, const char *format, ...)
{
    if (e->status) return false;
    va_list list;
    e->status = status;
    e->type = type_of(status);
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(list, format);
    vsnprintf(e->message, sizeof e->message, format, list);
    va_end(list);
    return false;
}

/* The caller's mistakes are 400; what the machine lacks is 500 or 503. */
bool serve_fail_of(struct serve_error *e, const segue_error *err)
{
    int status = 500;
    if (err->status == SEGUE_EARG || err->status == SEGUE_EFORMAT || err->status == SEGUE_ELIMIT ||
        err->status == SEGUE_EUNSUPPORTED)
        status = 400;
    if (err->status == SEGUE_EMEMORY || err->status == SEGUE_EUNIT || err->status == SEGUE_ELOST) status = 503;
    serve_fail(e, status, NULL, "%s", err->text);
    if (err->status == SEGUE_ELIMIT) e->code = "context_length_exceeded";
    return false;
}

struct exchange *exchange_new(void)
{
    struct exchange *x = out_alloc(sizeof *x);
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->drained, NULL);
    x->owners = 1;
    x->socket = -1;
    x->start_ns = out_now_ns();
    return x;
}

void exchange_release(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    int left = --x->owners;
    pthread_mutex_unlock(&x->lock);
    if (left) return;
    if (x->released) x->released(x->released_context);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->drained);
    free(x->path);
    free(x->query);
    json_decref(x->arguments);
    free(x->body.data);
    free(x->out.data);
    free(x);
}

/* With the lock: the listener may continue. */
static void wake(struct exchange *x)
{
    if (!x->suspended || !x->wake) return;
    x->suspended = false;
    x->wake(x);
}

void exchange_text(struct exchange *x, int status, const char *content_type, const char *text, size_t len)
{
    pthread_mutex_lock(&x->lock);
    x->status = status;
    x->content_type = content_type;
    if (len) out_add(&x->out, text, len);
    x->complete = true;
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_json(struct exchange *x, int status, json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(value);
    exchange_text(x, status, "application/json; charset=utf-8", text ? text : "{}", text ? strlen(text) : 2);
    free(text);
}

json_t *exchange_error_json(const struct exchange *x, const struct serve_error *e)
{
    json_t *error = json_object(), *o = json_object();
    if (x->anthropic) {
        const char *type = e->status == 503 ? "overloaded_error" : e->status >= 500 ? "api_error" : e->type;
        json_object_set_new(o, "type", json_string("error"));
        json_object_set_new(error, "type", json_string(type));
        json_object_set_new(error, "message", out_string(e->message, strlen(e->message)));
    } else {
        json_object_set_new(error, "message", out_string(e->message, strlen(e->message)));
        json_object_set_new(error, "type", json_string(e->type));
        json_object_set_new(error, "param", e->param[0] ? out_string(e->param, strlen(e->param)) : json_null());
        json_object_set_new(error, "code", e->code ? json_string(e->code) : json_null());
        if (e->prompt_tokens) json_object_set_new(error, "n_prompt_tokens", json_integer((json_int_t)e->prompt_tokens));
        if (e->prompt_tokens) json_object_set_new(error, "n_ctx", json_integer((json_int_t)e->context));
    }
    json_object_set_new(o, "error", error);
    return o;
}

void exchange_fail(struct exchange *x, const struct serve_error *e)
{
    if (x->streaming) {
        /* The status was sent already: the error is the last event. */
        exchange_event(x, x->anthropic ? "error" : NULL, exchange_error_json(x, e));
        exchange_end(x, false);
        return;
    }
    if (e->status == 429 || e->status == 503) x->retry_after = 1;
    exchange_json(x, e->status, exchange_error_json(x, e));
}

void exchange_stream(struct exchange *x, const char *content_type)
{
    pthread_mutex_lock(&x->lock);
    x->status = 200;
    x->content_type = content_type;
    x->streaming = true;
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

/* With the lock: wait until the client has read enough. The listener's time limit ends this. */
static void wait_for_reader(struct exchange *x)
{
    while (!x->closed && x->out.len - x->sent > UNSENT_MAX) pthread_cond_wait(&x->drained, &x->lock);
    if (x->sent < DROP_AT) return;
    memmove(x->out.data, x->out.data + x->sent, x->out.len - x->sent);
    x->out.len -= x->sent;
    x->sent = 0;
}

bool exchange_event(struct exchange *x, const char *event, json_t *data)
{
    char *text = json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(data);
    pthread_mutex_lock(&x->lock);
    wait_for_reader(x);
    if (event) out_addf(&x->out, "event: %s\n", event);
    out_add(&x->out, "data: ", 6);
    if (text) out_add(&x->out, text, strlen(text));
    out_add(&x->out, "\n\n", 2);
    x->written_ns = out_now_ns();
    bool open = !x->closed;
    wake(x);
    pthread_mutex_unlock(&x->lock);
    free(text);
    return open;
}

void exchange_ping(struct exchange *x, uint64_t silent_ns)
{
    uint64_t now = out_now_ns();
    pthread_mutex_lock(&x->lock);
    bool due = now - (x->written_ns ? x->written_ns : x->start_ns) >= silent_ns;
    if (due) x->written_ns = now;
    pthread_mutex_unlock(&x->lock);
    if (!due) return;
    if (!x->streaming) exchange_stream(x, EXCHANGE_EVENTS);
    exchange_write(x, ":\n\n", 3);
}

bool exchange_write(struct exchange *x, const char *bytes, size_t n)
{
    pthread_mutex_lock(&x->lock);
    wait_for_reader(x);
    out_add(&x->out, bytes, n);
    bool open = !x->closed;
    wake(x);
    pthread_mutex_unlock(&x->lock);
    return open;
}

void exchange_end(struct exchange *x, bool done)
{
    pthread_mutex_lock(&x->lock);
    if (done) out_add(&x->out, "data: [DONE]\n\n", 14);
    x->complete = true;
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

/* While a connection is suspended, the listener does not look at its socket; so the route does. A client that
 * ends its side of the stream has left. */
bool exchange_closed(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool closed = x->closed;
    if (!closed && !x->complete && x->socket >= 0) {
        char byte;
        ssize_t n = recv(x->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        closed = n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    }
    pthread_mutex_unlock(&x->lock);
    return closed;
}
