/* engine.h: a model placed on units: its graphs, compiled once for each unit and layer range, shared by all
 * sessions. Any thread; the list of programs only grows until close. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_ENGINE_H
#define SG_ENGINE_ENGINE_H

#include "engine/placement/units.h"
#include "model/model.h"

/* Layers [from, to) as one unit runs them. */
struct sg_layer_range {
    struct segue_unit *unit;   /* of one of the engine's places */
    struct segue_model *model; /* whose weights it runs */
    uint32_t from, to;
    const struct sg_graph *graph;
    struct sg_graph *own; /* freed with the layer_range; NULL: the engine's whole graph */
    struct sg_program *program;
    int32_t hidden; /* the output that the next layer_range starts from; -1 behind the last layer */
    struct sg_layer_range *next;
};

struct sg_placement {
    struct segue_unit *unit; /* a reference */
    enum sg_storage kv;      /* storage of K and V in states here */
    uint32_t chunk_rows;     /* rows of one prefill run */
    struct segue_model *model; /* a reference; the engine's, or another storage of it */
    struct sg_graph *own;      /* all layers of a model that is not the engine's, or with rows chosen late; else NULL */
    struct sg_weight_cache keep;       /* of this model; used where the engine has a cache */
};

struct sg_store;
struct segue_engine {
    atomic_uint references;
    struct segue_model *model; /* a reference */
    char weights_id[33];       /* of what computes: the model's, or of all storages that the places use, joined */
    struct sg_placement *places;   /* [places_n] */
    uint32_t places_n;
    uint32_t keep_values;
    char *cache;            /* folder for what units make of the weights; NULL: nothing is kept */
    struct sg_graph *graph; /* all layers and the head */
    struct sg_store *store; /* NULL: none */
    uint64_t context_max;   /* rows that the graph can place (learned positions); 0 = no bound */
    uint32_t token_limit;   /* tokens from here on are padding of the vocabulary; 0 = none are */
    pthread_mutex_t lock;   /* of the fields below */
    struct sg_layer_range *layer_ranges;
    uint8_t *breakers; /* [token_limit or vocab] DRY sequence breakers, made on first use */
    size_t breakers_n;
};

struct segue_engine *
sg_engine_share(struct segue_engine *e); /* one more reference; segue_engine_close gives it back */

/* Layers [from, to) on a place, compiled on first use. The layer_range lives as long as the engine. */
segue_status sg_engine_layer_range(struct segue_engine *e, uint32_t place, uint32_t from, uint32_t to,
                               const struct sg_layer_range **out, segue_error *err);
/* Compiles so far; what came from the cache folder is none. */
uint64_t sg_engine_compiles(struct segue_engine *e);
/* Tokens whose text holds a newline, colon, quote or asterisk. *out = NULL where there is no tokenizer. */
segue_status sg_engine_breakers(struct segue_engine *e, const uint8_t **out, size_t *n, segue_error *err);

/* EARG or EUNSUPPORTED unless the parts of each phase cover all layers in order, on units that there are. */
segue_status sg_plan_check(const struct segue_engine *e, const segue_plan *plan, segue_error *err);

#endif
