/* hub.h: the models of a server: found at start, opened on demand, closed for others when memory is bounded.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_HUB_H
#define SEGUE_CLI_HUB_H

#include "serve/exchange.h"
#include "run/placement.h"

/* STOPPED: was READY; its requests were cancelled. */
enum hub_state { HUB_IDLE, HUB_LOADING, HUB_READY, HUB_FAILED, HUB_STOPPED };

struct hub_model {
    char *name;       /* what requests call it: the file or folder name without suffix */
    char *path;       /* as for -m */
    struct args args; /* flags of the command line with this model */
    enum hub_state state;
    struct placement placement; /* READY */
    segue_scheduler *scheduler; /* READY */
    size_t context;             /* READY: tokens of one request at most */
    size_t users;               /* requests that hold it */
    uint64_t last_used_ns;
    segue_error err; /* FAILED */
};

struct hub {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct hub_model **models; /* [models_n], fixed after hub_open */
    size_t models_n;
    segue_scheduler_opts scheduling;  /* context 0: the lesser of the model's and 4096 */
    size_t loaded_max;                /* models open at once */
    pthread_t loader;                 /* opens the first model */
    bool loader_started, stop, ready; /* ready: the first model was opened once */
    uint64_t started_s;               /* time of the start, seconds since 1970 */
};

/* Find the models of the flags -m (files, folders of models, names). Opens none. */
segue_status hub_open(struct hub *h, const struct args *args, segue_error *err);
/* Open the first model on a thread. */
void hub_preload(struct hub *h);
/* A model by name (NULL or unknown alias "": the first), opened if necessary, until hub_release. NULL: e says why; 503 while
 * it is loading and wait is false. */
struct hub_model *hub_acquire(struct hub *h, const char *name, bool wait, struct serve_error *e);
void hub_release(struct hub *h, struct hub_model *m);
/* State of the first model. */
enum hub_state hub_health(struct hub *h, segue_error *err);
/* Cancel all requests in progress; new ones are refused. */
void hub_stop(struct hub *h);
/* No request may hold a model. */
void hub_close(struct hub *h);

#endif
