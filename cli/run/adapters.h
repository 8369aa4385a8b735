/* adapters.h: the LoRA adapters of --lora for requests that run at once. Their scales may change at any time, and a request may
 * have scales of its own; each request keeps those it began with. Any thread.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ADAPTERS_H
#define SEGUE_CLI_ADAPTERS_H

#include <pthread.h>

#include "run/placement.h"

/* Adapters with different scales that are in memory at once. */
enum { ADAPTERS_OPEN = 64 };

/* A scale for adapter `id`, its place among the flags. 0: without it. */
struct adapter_choice {
    size_t id;
    float scale;
};

struct adapter_set {
    pthread_mutex_t lock;
    bool usable;                 /* between open and close */
    const segue_model *model;
    struct {
        char *path;
        float scale;             /* of requests that do not say */
    } list[PLACEMENT_ADAPTERS];  /* [n] */
    size_t n;
    struct open_adapter {
        size_t id, users;
        float scale;
        segue_adapter *adapter;
        uint64_t used_ns;
    } open[ADAPTERS_OPEN];       /* [open_n] */
    size_t open_n;
};

/* What one request uses. */
struct adapters_taken {
    segue_adapter *list[PLACEMENT_ADAPTERS]; /* [n] */
    struct open_adapter *from[PLACEMENT_ADAPTERS];
    size_t n;
};

/* Takes over the adapters that were opened for --lora. */
void adapter_set_open(struct adapter_set *s, struct placement *p, const struct args *args);
void adapter_set_close(struct adapter_set *s);
/* Adapters for a request: of chosen[n], others have scale 0; chosen NULL: the scales of the set. Release them when the request
 * was submitted: it holds them itself. ELIMIT: too many scales at once. Errors of reading an adapter again. */
segue_status adapter_set_take(struct adapter_set *s, const struct adapter_choice *chosen, size_t n, struct adapters_taken *out,
                              segue_error *err);
void adapter_set_release(struct adapter_set *s, struct adapters_taken *taken);
/* Sets the scales of requests from now on. */
void adapter_set_change(struct adapter_set *s, const struct adapter_choice *chosen, size_t n);
/* Copies the scales to out[PLACEMENT_ADAPTERS]; returns their number. */
size_t adapter_set_scales(struct adapter_set *s, float *out);

#endif
