/* exchange.h: one HTTP request and its response, without HTTP: the listener (listener.c) fills in the request and sends what is
 * written here; a route (routes.h) runs on its own thread and writes. Two owners, listener and route; the last one frees.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_EXCHANGE_H
#define SEGUE_CLI_EXCHANGE_H

#include <pthread.h>
#include "term/out.h"

#define EXCHANGE_EVENTS "text/event-stream"

/* Why a request is refused: becomes the error object of OpenAI or Anthropic. */
struct serve_error {
    int status;       /* of HTTP; 0: no error */
    const char *type; /* "invalid_request_error", "authentication_error", ... */
    const char *code; /* NULL: null */
    char param[96];   /* the field that is wrong; empty: none */
    char message[600];
    size_t prompt_tokens, context; /* of a prompt that is too long; 0: another error */
};
/* Fill e, unless it has an error already, and return false. param may be NULL. */
bool serve_fail(struct serve_error *e, int status, const char *param, const char *format, ...) OUT_FORMAT(4, 5);
/* The same for an error of the library. */
bool serve_fail_of(struct serve_error *e, const segue_error *err);

struct exchange {
    /* The request; does not change while the route runs. */
    char method[8];
    char *path;  /* without query, NUL-terminated */
    char *query; /* value of ?action= or ?model=; NULL: none */
    json_t *arguments; /* all of them: name to text */
    struct out_text body;
    char realm[24]; /* whose prompts these are: "" or "key-N" */
    bool anthropic; /* errors in Anthropic's form */
    int socket;     /* of the client; valid until the response is complete */
    uint64_t start_ns;
    /* The response, guarded by lock. */
    pthread_mutex_t lock;
    pthread_cond_t drained; /* `sent` or `closed` changed */
    int status;             /* 0: not started */
    const char *content_type;
    unsigned retry_after; /* seconds; 0: no such header */
    uint64_t started_s;   /* header Process-Start-Time-Unix; 0: no such header */
    struct out_text out;  /* bytes [sent, out.len) are not sent yet; sent ones are dropped now and then */
    size_t sent;
    uint64_t written_ns; /* last time of an event; 0: none */
    bool streaming;                   /* out grows until complete */
    bool complete, closed;            /* the route has finished; the client disconnected */
    bool suspended;                   /* the listener waits for wake() */
    void (*wake)(struct exchange *x); /* of the listener, called with lock held */
    void (*released)(void *context);  /* NULL, or called when the last owner has released it: the answer was sent */
    void *released_context;
    void *connection; /* of the listener */
    int owners;
};

struct exchange *exchange_new(void);
void exchange_release(struct exchange *x);

/* Complete responses. exchange_json steals the reference. */
void exchange_json(struct exchange *x, int status, json_t *value);
void exchange_text(struct exchange *x, int status, const char *content_type, const char *text, size_t len);
void exchange_fail(struct exchange *x, const struct serve_error *e);
/* The error object in the form of the exchange, as a new reference. */
json_t *exchange_error_json(const struct exchange *x, const struct serve_error *e);

/* A stream of server-sent events. event: its name, or NULL. exchange_event steals data and returns false when the client
 * disconnected; it waits while the client is too slow. */
void exchange_stream(struct exchange *x, const char *content_type);
bool exchange_event(struct exchange *x, const char *event, json_t *data);
/* A comment, which clients skip, if nothing was written for silent_ns; begins the stream if it has not begun. Keeps proxies from
 * closing it. */
void exchange_ping(struct exchange *x, uint64_t silent_ns);
/* The same for bytes of a stream that has another content type. */
bool exchange_write(struct exchange *x, const char *bytes, size_t n);
/* done: send OpenAI's end mark "[DONE]" first. */
void exchange_end(struct exchange *x, bool done);
/* True if the client has closed its connection; also detected while nothing is sent. */
bool exchange_closed(struct exchange *x);

#endif
