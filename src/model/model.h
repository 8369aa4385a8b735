/* model.h: an opened model: hyperparameters, weights by role, tokenizer, chat template, and the
 * graphs that its family builds. Immutable after opening, so all threads may use it.
 * Reference-counted.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_MODEL_H
#define SG_MODEL_MODEL_H

#include <stdatomic.h>

#include "graph/graph.h"
#include "model/weights_id.h"
#include "tensor/archive.h"
#include "text/grammar/grammar.h"
#include "text/template.h"
#include "text/tokenizer/tokenizer.h"

struct sg_family;
struct sg_numbers;

/* The weights of one role in one layer: views of the archive's tensors, with layout differences
 * described by their permutations. */
struct sg_bound {
    const struct sg_tensor *weight, *bias; /* NULL: absent */
    uint32_t plus_one;                     /* 1: a norm stored as w - 1 */
};

/* The conventions that a weight file follows. */
struct sg_convention {
    uint32_t gguf;      /* 1: GGUF tensor names and layouts: permuted q and k, tiled value heads, decay as -exp(A) */
    uint32_t mlx;       /* 1: Hugging Face names, but norms are stored as w and convolutions as [C, taps, 1] */
    uint32_t conv1d_as_linear; /* 1: GPT-2's Conv1D matrices are stored as [out, in], like linear layers */
    const char *prefix; /* of the tensor names of the transformer body: "model.", "transformer.", ..., "" */
};

/* Everything is owned by the model unless noted. */
struct segue_model {
    atomic_uint references;         /* freed when it drops to 0 */
    const struct sg_family *family; /* static data */
    struct sg_archive *archive;     /* keeps the weight files mapped */
    struct sg_numbers *numbers;     /* hyperparameters, see family.h */
    struct sg_convention convention;
    struct sg_bound *weights;       /* [layers + 1][SG_ROLE_N]; the last entry: weights outside the layers */
    struct sg_tokenizer *tokenizer; /* NULL: the model has none */
    _Atomic(struct sg_token_trie *) trie; /* of the tokenizer; NULL until a grammar needs it */
    struct sg_template *chat;       /* NULL: none, or it could not be parsed, see chat_error */
    segue_error chat_error;         /* why the template could not be parsed; status SEGUE_OK: no error */
    char *template_source;          /* NUL-terminated; NULL: none */
    size_t template_len;            /* bytes, without the NUL */
    int32_t bos, eos;               /* token ids; -1: none */
    int32_t *stops;                 /* [stops_n] ids that end generation: of the tokenizer and the configurations, each once */
    size_t stops_n;
    segue_model_info info;          /* what the public API reports; filled when opening */
    struct sg_weights_id *weights_id; /* hash of all weight bytes; large files are hashed in the background */
    struct sg_hash sample_hash;     /* sg_archive_sample and the conversion at load: selects cache entries; not a proof */
    struct sg_arena arena;          /* strings, tensor views, numbers */
};

/* Open the model at path, a weight file or a folder, with one reference. opts may be NULL. */
segue_status sg_model_open(struct segue_model **out, const char *path, const segue_model_opts *opts,
                           segue_error *err);
/* Add and remove a reference; NULL is allowed. */
struct segue_model *sg_model_ref(const struct segue_model *m);
void sg_model_unref(struct segue_model *m);

/* The weights of a role; never NULL, but its members may be. For roles outside the layers, and for
 * layer == layers, those of the whole model. */
const struct sg_bound *sg_model_weight(const struct segue_model *m, uint32_t layer, uint32_t role);

/* Which graph to build: layers [from, to) of the model; to == 0: up to the last one. The graph
 * starts with `embed` if from is 0, else with the input "rows". If `to` is the last layer and head
 * is 1, it ends with the op `rows`, the final norm and the output "logits"; else with the output
 * "hidden.<to>". */
struct sg_graph_request {
    uint32_t from, to;
    uint32_t head;
    uint32_t values;      /* 1: every hidden.<i> is an output */
    /* 1: keep the op `rows` before the final norm; 0: move it to directly after the last op with
     * state, where it saves work. With `values` it is never moved. */
    uint32_t select_late;
};
segue_status sg_model_graph(const struct segue_model *m, const struct sg_graph_request *request,
                            struct sg_graph **out, segue_error *err);

/* Append a description to out. what: SEGUE_DESCRIBE_JSON (as `segue inspect --json`), _GRAPH (dump)
 * or _TEMPLATE (source). */
segue_status sg_model_describe(const struct segue_model *m, int what, struct sg_buf *out, segue_error *err);

#endif
