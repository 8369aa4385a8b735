/* describe.c: describes a model: the JSON of `segue inspect --json`, the dump of its graph, the
 * source of its chat template.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "model/family.h"

/* Takes ownership of value, which is NULL when jansson ran out of memory. Failures are collected in
 * *failed and reported once, at the end. */
static void put(json_t *o, const char *key, json_t *value, int *failed)
{
    if (!value || json_object_set_new(o, key, value)) *failed = 1;
}

/* JSON strings must be UTF-8, but paths and names need not be: if the string is invalid, each
 * non-ASCII byte becomes '?'. */
static json_t *text_of(const char *s)
{
    json_t *valid = json_string(s);
    char *copy = valid ? NULL : sg_strndup(s, strlen(s));
    for (char *c = copy; c && *c; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    if (copy) valid = json_string(copy);
    sg_free(copy);
    return valid;
}

/* A string, or null for NULL; a token id, or null for -1. */
static json_t *text_or_null(const char *s) { return s ? text_of(s) : json_null(); }

static json_t *id_or_null(int32_t id) { return id < 0 ? json_null() : json_integer(id); }

/* Parameters of a rotary table. */
static json_t *rotary_of(const struct sg_rotary *r, int *failed)
{
    json_t *o = json_object();
    put(o, "theta", json_real(r->theta), failed);
    put(o, "rotated", json_integer(2 * (json_int_t)r->pairs), failed);
    put(o, "scaling", json_string(sg_scaling_name(r->scaling)), failed);
    if (r->scaling != SG_SCALING_NONE) put(o, "factor", json_real(r->factor), failed);
    if (r->scaling == SG_SCALING_YARN) put(o, "attention_factor", json_real(r->attention), failed);
    return o;
}

/* The kind of each layer, in order. */
static json_t *kinds_of(const struct sg_numbers *n, int *failed)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n->layers; i++) {
        const char *kind = n->kinds[i] == SG_LAYER_FULL      ? "full"
                           : n->kinds[i] == SG_LAYER_SLIDING ? "sliding"
                                                             : "linear";
        if (json_array_append_new(list, json_string(kind))) *failed = 1;
    }
    return list;
}

/* All hyperparameters of the family by name. `tied` reports whether head and embedding are the same
 * tensor, which the file may not say. */
static json_t *numbers_of(const struct segue_model *m, int *failed)
{
    const struct sg_numbers *n = m->numbers;
    json_t *o = json_object();
    for (const struct sg_number_row *row = NULL; (row = sg_number_next(m->family, row));) {
        double value = sg_number_value(n, row);
        /* The stored value may be 2 (not specified): report what the model uses. */
        if (row->at == offsetof(struct sg_numbers, tied))
            value = sg_model_weight(m, n->layers, SG_HEAD)->weight ==
                    sg_model_weight(m, n->layers, SG_EMBED)->weight;
        if (row->kind == SG_NUMBER_FLAG)
            put(o, row->name, json_boolean(value > 0), failed);
        else if (row->kind != SG_NUMBER_ACT)
            put(o, row->name,
                row->kind == SG_NUMBER_REAL ? json_real(value) : json_integer((json_int_t)value), failed);
    }
    put(o, "act", json_string(sg_act_name((enum sg_act)n->act)), failed);
    put(o, "layer_kinds", kinds_of(n, failed), failed);
    if (!m->family->learned_positions) put(o, "rope", rotary_of(&n->rotary[0], failed), failed);
    if (!m->family->learned_positions && n->window) put(o, "rope_sliding", rotary_of(&n->rotary[1], failed), failed);
    return o;
}

/* A tensor as it is in the file. */
static json_t *tensor_of(const struct sg_tensor *t, int *failed)
{
    json_t *o = json_object(), *shape = json_array();
    char storage[16];
    snprintf(storage, sizeof storage, "%s", sg_storage_info(t->storage)->name);
    if (t->storage == SG_AFFINE) snprintf(storage, sizeof storage, "mlx%u", t->affine.bits);
    if (t->storage == SG_CODED) snprintf(storage, sizeof storage, "%s", t->stored_as);
    for (uint32_t i = 0; i < t->rank; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)t->shape[i]))) *failed = 1;
    put(o, "name", text_of(t->name), failed);
    put(o, "storage", json_string(storage), failed);
    put(o, "shape", shape, failed);
    put(o, "offset", json_integer((json_int_t)t->offset), failed);
    put(o, "bytes", json_integer((json_int_t)t->bytes), failed);
    return o;
}

/* All tensors of the archive, also those that the model does not use. */
static json_t *tensors_of(const struct segue_model *m, int *failed)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < m->archive->tensors_n; i++)
        if (json_array_append_new(list, tensor_of(&m->archive->tensors[i], failed))) *failed = 1;
    return list;
}

/* Properties of the tokenizer; null without one. */
static json_t *tokenizer_of(const struct segue_model *m, int *failed)
{
    if (!m->tokenizer) return json_null();
    struct sg_tokenizer_info info;
    sg_tokenizer_info_get(m->tokenizer, &info);
    json_t *o = json_object();
    put(o, "kind", text_or_null(info.kind), failed);
    put(o, "pre", text_or_null(info.pre), failed);
    put(o, "vocab", json_integer(info.vocab), failed);
    put(o, "bos", id_or_null(info.bos), failed);
    put(o, "eos", id_or_null(info.eos), failed);
    return o;
}

/* A hash of the template's source, to compare templates of different files. */
static json_t *template_hash_of(const struct segue_model *m)
{
    char hex[33];
    if (!m->template_source) return json_null();
    sg_hash_hex(sg_hash_bytes(m->template_source, m->template_len, 0), hex);
    return json_string(hex);
}

/* The complete document. */
static json_t *inspect(const struct segue_model *m, struct sg_hash weights, int *failed)
{
    char weights_id[33];
    const segue_model_info *info = &m->info;
    json_t *o = json_object(), *memory = json_object();
    sg_hash_hex(weights, weights_id);
    put(o, "path", text_of(info->path), failed);
    put(o, "name", text_of(info->name), failed);
    put(o, "family", json_string(info->family), failed);
    put(o, "format", json_string(info->format), failed);
    put(o, "storage", json_string(info->storage), failed);
    put(o, "shape_id", json_string(info->shape_id), failed);
    put(o, "weights_id", json_string(weights_id), failed);
    put(o, "numbers", numbers_of(m, failed), failed);
    put(o, "tensors", tensors_of(m, failed), failed);
    put(o, "tokenizer", tokenizer_of(m, failed), failed);
    put(o, "template_hash", template_hash_of(m), failed);
    put(memory, "weight_bytes", json_integer((json_int_t)info->weight_bytes), failed);
    put(memory, "state_fixed_bytes", json_integer((json_int_t)info->state_fixed_bytes), failed);
    put(memory, "state_token_bytes", json_integer((json_int_t)info->state_token_bytes), failed);
    put(o, "memory", memory, failed);
    return o;
}

/* Callback of json_dump_callback. */
static int append(const char *bytes, size_t n, void *out)
{
    return sg_buf_add(out, bytes, n) == SEGUE_OK ? 0 : -1;
}

/* Numbers are printed with 9 digits, enough to restore a float. */
static segue_status describe_json(const struct segue_model *m, struct sg_buf *out, segue_error *err)
{
    int failed = 0;
    struct sg_hash weights;
    SG_TRY(sg_weights_id_wait(m->weights_id, &weights, err));
    json_t *o = inspect(m, weights, &failed);
    if (!o || failed || json_dump_callback(o, append, out, JSON_INDENT(1) | JSON_REAL_PRECISION(9)))
        failed = 1;
    json_decref(o);
    return failed ? sg_no_memory("description", out->len, err) : SEGUE_OK;
}

/* The graph dump shows the graph of all layers with head. */
segue_status sg_model_describe(const struct segue_model *m, int what, struct sg_buf *out, segue_error *err)
{
    if (what == SEGUE_DESCRIBE_JSON) return describe_json(m, out, err);
    if (what == SEGUE_DESCRIBE_GRAPH) {
        struct sg_graph_request request = {.head = 1, .select_late = 1}; /* as the family builds it */
        struct sg_graph *g = NULL;
        SG_TRY(sg_model_graph(m, &request, &g, err));
        segue_status s = sg_graph_dump(g, out);
        sg_graph_free(g);
        return s == SEGUE_OK ? s : sg_no_memory("graph dump", out->len, err);
    }
    if (what != SEGUE_DESCRIBE_TEMPLATE)
        return sg_fail(err, SEGUE_EARG, "describe model: %d is not a kind of description; use one of SEGUE_DESCRIBE_*", what);
    if (!m->template_source)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "describe model: %s: it has no chat template; use another model", m->info.path);
    segue_status s = sg_buf_add(out, m->template_source, m->template_len);
    return s == SEGUE_OK ? s : sg_no_memory("template", m->template_len, err);
}
