/* model_pool.h: the models of a server: found at start, opened on demand, closed for others when memory is bounded.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_MODEL_POOL_H
#define SEGUE_CLI_MODEL_POOL_H

#include "serve/exchange.h"
#include "serve/grammars.h"
#include "serve/slots.h"
#include "meter/meter.h"
#include "replay/record_log.h"
#include "run/adapters.h"

/* STOPPED: was READY; its requests were cancelled. */
enum pooled_state { MODEL_IDLE, MODEL_LOADING, MODEL_READY, MODEL_FAILED, MODEL_STOPPED };

/* What requests of a model have done so far, for /metrics. */
struct model_counts {
    uint64_t prompt_tokens, cached_tokens, answer_tokens; /* prompt_tokens: computed ones */
    uint64_t prompt_ns, answer_ns;
    uint64_t runs;    /* that the scheduler does not count: of embeddings */
    uint64_t longest; /* prompt and answer of one request */
};

struct pooled_model {
    char *name;       /* what requests call it: the file or folder name without suffix */
    char *path;       /* as for -m */
    struct args args; /* flags of the command line with this model */
    enum pooled_state state;
    struct placement placement; /* READY */
    struct adapter_set adapters; /* READY */
    segue_scheduler *scheduler; /* READY */
    struct meter meter;         /* READY: --meter */
    pthread_mutex_t energy_lock;
    size_t energy_users;      /* requests that are generated now */
    struct model_counts counts; /* with energy_lock */
    double energy_j, share_j; /* last reading; what a request that was always in progress would have used */
    struct slots slots;
    struct grammars grammars; /* READY: of requests, compiled */
    size_t context; /* READY: tokens of one request at most */
    struct record_log *log; /* of the pool */
    size_t users;   /* requests that hold it */
    bool leaving;   /* READY: to be closed for another one once its running answers have ended */
    uint64_t bytes; /* of its weights: those of the files before it was opened */
    uint64_t last_used_ns;
    segue_error err; /* FAILED */
};

struct model_pool {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct pooled_model **models; /* [models_n], fixed after model_pool_open */
    size_t models_n;
    struct out_text chat_template;    /* --chat-template-file; empty: each model's own */
    segue_scheduler_opts scheduling;  /* context 0: the lesser of the model's and 4096 */
    size_t loaded_max;                /* models open at once */
    struct record_log *log;           /* --record; NULL: nothing is recorded */
    uint64_t bytes_max;               /* of their weights together; 0: no bound */
    pthread_t loader;                 /* opens the first model */
    bool loader_started, stop, ready; /* ready: the first model was opened once */
    uint64_t started_s;               /* time of the start, seconds since 1970 */
};

/* Find the models of the flags -m (files, folders of models, names). Opens none. */
segue_status model_pool_open(struct model_pool *h, const struct args *args, segue_error *err);
/* Open the first model on a thread. */
void model_pool_preload(struct model_pool *h);
/* A model by name (NULL or unknown alias "": the first), opened if necessary, until model_pool_release. If others must be
 * closed for it, those that were not used for the longest time go: they take no new requests and are closed when their
 * answers have ended. NULL: e has the reason; 503 while it is loading and wait is false. */
struct pooled_model *model_pool_acquire(struct model_pool *h, const char *name, bool wait, struct serve_error *e);
void model_pool_release(struct model_pool *h, struct pooled_model *m);
/* Closes a model by its name after its running answers; the next request for it opens it again. False: e has the reason. */
bool model_pool_unload(struct model_pool *h, const char *name, struct serve_error *e);
/* A request begins or ends: what one request has used until now, if the energy is divided equally among those in progress at
 * each moment. The difference of two calls is its energy. Negative: not measured. */
double model_pool_energy(struct pooled_model *m, bool begins);
/* Adds what a request has done. */
void pooled_model_count(struct pooled_model *m, const struct model_counts *c);
struct model_counts pooled_model_counts(struct pooled_model *m);
/* State of the first model. */
enum pooled_state model_pool_health(struct model_pool *h, segue_error *err);
/* Cancel all requests in progress; new ones are refused. */
void model_pool_stop(struct model_pool *h);
/* No request may hold a model. */
void model_pool_close(struct model_pool *h);

#endif
