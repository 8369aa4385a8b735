/* model.h: what the file says: numbers, tensors by role, tokenizer, template; and the graph that a family
 * builds from them. Read-only after open; any thread; counted references.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_MODEL_H
#define SG_MODEL_MODEL_H

#include <stdatomic.h>

#include "graph/graph.h"
#include "tensor/archive.h"
#include "text/template.h"
#include "text/tokenizer/tokenizer.h"

struct sg_family;
struct sg_numbers;

/* The tensor of one role in one layer: views of the archive's tensors with this house's permutations. */
struct sg_bound {
    const struct sg_tensor *weight, *bias; /* NULL: absent */
    uint32_t plus_one;                     /* 1: a norm whose file holds w - 1 */
};

/* By whose habits a file was written. */
struct sg_convention {
    uint32_t gguf;      /* names, permuted rows, tiled heads, -exp(A) */
    uint32_t mlx;       /* norms hold w although the names are Hugging Face's; convolutions are [C,taps,1] */
    uint32_t straight;  /* Conv1D matrices are [out, in] already */
    const char *prefix; /* in front of the body's names: "model.", "transformer.", ..., "" */
};

struct segue_model {
    atomic_uint references;
    const struct sg_family *family;
    struct sg_archive *archive;
    struct sg_numbers *numbers; /* see family.h */
    struct sg_convention convention;
    struct sg_bound *weights;       /* [layers + 1][SG_ROLE_N]; the last row: those of the whole model */
    struct sg_tokenizer *tokenizer; /* NULL: none */
    struct sg_template *chat;       /* NULL: none, or chat_error says why it cannot be used */
    segue_error chat_error; /* of a template that could not be parsed; status SEGUE_OK: there is no error */
    char *template_source;  /* NULL: none; NUL-terminated */
    size_t template_len;
    int32_t bos, eos;
    int32_t *stops; /* tokenizer's, generation_config's, without duplicates */
    size_t stops_n;
    segue_model_info info; /* filled at open */
    struct sg_hash weights_hash; /* info.weights_id */
    struct sg_arena arena;
};

segue_status sg_model_open(struct segue_model **out, const char *path, const segue_model_opts *opts,
                           segue_error *err);
struct segue_model *sg_model_ref(const struct segue_model *m);
void sg_model_unref(struct segue_model *m);

/* Never NULL; of the whole model when the role has no layers. layer == layers: those of the whole model. */
const struct sg_bound *sg_model_weight(const struct segue_model *m, uint32_t layer, uint32_t role);

/* Which graph: layers [from, to) of the model; to == 0 means all. Begins with `embed` when from == 0, else
 * with the input "rows"; ends with rows, final norm and "logits" when to is the last layer and head is 1,
 * else with the output "hidden.<to>". values: every hidden.<i> is an output. select_late: rows are chosen there, before the
 * final norm, and not already behind the last layer's mixer (with values they always are). */
struct sg_graph_wish {
    uint32_t from, to;
    uint32_t head;
    uint32_t values;
    uint32_t select_late;
};
segue_status sg_model_graph(const struct segue_model *m, const struct sg_graph_wish *wish,
                            struct sg_graph **out, segue_error *err);

/* The JSON of `segue inspect --json`, the dump of the graph, the template's source. */
segue_status sg_model_describe(const struct segue_model *m, int what, struct sg_buf *out, segue_error *err);

#endif
