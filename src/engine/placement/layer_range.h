/* layer_range.h: the data of an engine (a model on a set of units) and the layer ranges compiled for it. All sessions of
 * the engine share the compiled ranges; the list only grows until the engine is closed. Any thread.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_LAYER_RANGE_H
#define SG_ENGINE_LAYER_RANGE_H

#include "engine/placement/units.h"
#include "model/model.h"

struct sg_shared_queue;

/* Layers [from, to) compiled for one unit. Owned by the engine. */
struct sg_layer_range {
    struct segue_unit *unit;   /* of one of the engine's placements; no reference */
    struct segue_model *model; /* whose weights it uses; no reference */
    uint32_t from, to;
    const struct sg_graph *graph;   /* of these layers */
    struct sg_graph *local_graph;   /* freed with the range; NULL: `graph` belongs to the engine or the placement */
    struct sg_program *program;
    struct sg_shared_queue *queue;  /* of the threads that want a run of these layers; NULL: `embed`. Owned */
    struct sg_layer_range *embed;   /* all layers without the head, whose only output is the final hidden values; same states and
                                     * weights; NULL unless segue_engine.embeddings. Owned */
    int32_t hidden; /* graph output that feeds the next range; -1 if `to` is the last layer. embed: its output */
    struct sg_layer_range *next;
};

/* One unit of the engine with the model file whose weights it uses. */
struct sg_placement {
    struct segue_unit *unit;   /* a reference */
    enum sg_storage kv;        /* storage of K and V in states on this unit */
    uint32_t chunk_tokens;     /* maximum number of tokens of one prefill run */
    struct segue_model *model; /* a reference; the engine's model, or a second file of it with another storage */
    struct sg_graph *graph;    /* all layers, when the engine's graph does not fit (other file, or select_late); else NULL */
    struct sg_weight_cache weight_cache; /* of this model; used only when segue_engine.cache is set */
};

struct sg_store;
struct segue_engine {
    atomic_uint references;
    struct segue_model *model;       /* a reference */
    char sample_id[33];              /* hex of the joined sample hashes: part of file names; not proof of equality */
    struct sg_placement *placements; /* [placements_n], in the caller's order; index = segue_part.unit */
    uint32_t placements_n;
    uint32_t keep_values;
    uint32_t deterministic; /* 1: programs are invariant; see segue_engine_opts */
    uint32_t embeddings;    /* 1: whole ranges have `embed` */
    uint32_t fixed_chunks;  /* 1: deterministic, and a unit's results depend on the tokens of a run: chunks begin at multiples of
                             * the layout's chunk_tokens, and sequences are read again from the first token when they grow */
    char *cache;            /* folder for what units derive from the weights; NULL: no cache */
    struct sg_graph *graph; /* all layers and the head */
    struct sg_store *store; /* prefix store, owned; NULL: none */
    uint64_t context_max;   /* positions in the model's table of learned positions; 0 = no bound */
    uint32_t token_limit;   /* token ids from here on are vocabulary padding; 0 = no padding */
    pthread_mutex_t lock;   /* guards the fields below */
    struct sg_layer_range *layer_ranges;
    uint8_t *breakers; /* [token_limit or vocab] 1: DRY sequence breaker; made on first use */
    size_t breakers_n;
};

/* Layers [from, to) on a placement, compiled on first use and valid as long as the engine. progress (may be NULL) receives
 * the unit's progress; ECANCELED: it asked to stop. */
segue_status sg_engine_layer_range(struct segue_engine *e, uint32_t placement, uint32_t from, uint32_t to,
                                   const struct sg_progress *progress, const struct sg_layer_range **out, segue_error *err);
void sg_layer_range_free(struct sg_layer_range *s); /* NULL is allowed */
/* The hex id of the model's weights, or of the weights of all placements joined, [33] with a NUL. States computed by two storages
 * of a model fit only engines with the same pair. Waits until all files are hashed. EIO: a file cannot be read, or changed. */
segue_status sg_engine_weights_id(const struct segue_engine *e, char out[33], segue_error *err);
/* 1: sg_engine_weights_id does not wait. */
int sg_engine_weights_known(const struct segue_engine *e);
/* Number of compilations so far; programs loaded from the cache folder do not count. */
uint64_t sg_engine_compiles(struct segue_engine *e);

#endif
