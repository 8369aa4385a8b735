/* route_embed.c: POST /v1/embeddings: vectors of texts; POST /v1/rerank: documents by the mean log-probability of the query after
 * each of them. SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include "serve/inputs.h"

enum { TEXTS_MAX = 256 };
#define WAIT_NS 100000000u

/* Runs a request whose result are values. NULL: e has the reason. *n values, which the caller frees. */
static float *run_values(struct exchange *x, struct pooled_model *m, segue_request_opts *o, size_t cap, size_t *n,
                         struct serve_error *e)
{
    segue_request *request = NULL;
    segue_error err = {0};
    int32_t token;
    size_t got;
    float *values = out_alloc((cap + 1) * sizeof *values);
    o->realm = x->realm;
    struct adapters_taken adapters;
    segue_status st = adapter_set_take(&m->adapters, NULL, 0, &adapters, &err);
    o->adapters = adapters.list;
    o->adapters_n = adapters.n;
    if (!st) st = segue_request_submit(&request, m->scheduler, o, &err);
    adapter_set_release(&m->adapters, &adapters);
    while (!st && !exchange_closed(x)) st = segue_request_read(request, &token, NULL, 1, &got, WAIT_NS, &err);
    if (st == SEGUE_END)
        st = segue_request_values(request, values, cap, n, &err);
    else if (!st)
        serve_fail(e, 499, NULL, "the client disconnected");
    segue_request_close(request);
    if (st) serve_fail_of(e, &err);
    if (!e->status) return values;
    free(values);
    return NULL;
}

/* The vector as numbers, or as base64 of little-endian floats. */
static json_t *vector_json(const float *values, size_t n, bool base64)
{
    if (!base64) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++) json_array_append_new(list, out_real((double)values[i]));
        return list;
    }
    size_t cap = sodium_base64_ENCODED_LEN(n * sizeof *values, sodium_base64_VARIANT_ORIGINAL);
    char *text = out_alloc(cap);
    sodium_bin2base64(text, cap, (const unsigned char *)values, n * sizeof *values, sodium_base64_VARIANT_ORIGINAL);
    json_t *out = json_string(text);
    free(text);
    return out;
}

/* What a request for vectors asks for. */
struct embedding {
    struct exchange *x;
    struct pooled_model *model;
    segue_pooling pooling;
    bool base64, native, normalize;
    json_t *list;
    size_t total; /* tokens */
};

static bool embed_one(struct embedding *b, json_t *v, struct serve_error *e)
{
    size_t n = 0, width = 0, index = json_array_size(b->list);
    int32_t *tokens = input_tokens(b->model, v, "input", &n, e);
    if (tokens && n > b->model->context)
        serve_fail(e, 400, "input", "input: it is too large to process: %zu tokens, at most %zu; shorten it", n,
                   b->model->context);
    segue_request_opts o = {.size = sizeof o,
                            .kind = SEGUE_EMBED,
                            .tokens = tokens,
                            .tokens_n = n,
                            .pooling = b->pooling,
                            .normalize = b->normalize};
    float *values = e->status ? NULL : run_values(b->x, b->model, &o, b->model->placement.info.width, &width, e);
    json_t *vector = values ? vector_json(values, width, b->base64) : NULL;
    json_t *entry = !vector      ? NULL
                    : b->native ? json_pack("{s:[o]}", "embedding", vector)
                                : json_pack("{s:s, s:o}", "object", "embedding", "embedding", vector);
    if (entry) json_object_set_new(entry, "index", json_integer((json_int_t)index));
    if (entry) json_array_append_new(b->list, entry);
    b->total += n;
    free(values);
    free(tokens);
    return !e->status;
}

/* pooling: of the request, or of the server. */
static void read_pooling(struct embedding *b, struct fields f)
{
    const char *set = args_text(&b->model->args, "pooling"), *pool = field_text(f, "pooling", set ? set : "last");
    if (!strcmp(pool, "mean")) b->pooling = SEGUE_POOL_MEAN;
    else if (!strcmp(pool, "cls")) b->pooling = SEGUE_POOL_CLS;
    else if (!strcmp(pool, "last")) b->pooling = SEGUE_POOL_LAST;
    else serve_fail(f.e, 400, "pooling", "pooling: expected last, mean or cls");
}

/* native: llama.cpp's form, also with `content` in place of `input`, and vectors as they are on request. */
static bool embed(struct server *s, struct exchange *x, json_t *body, bool native, struct serve_error *e)
{
    struct fields f = {body, e};
    json_t *input = field(f, native && !field_has(f, "input") ? "content" : "input"), *v;
    const char *format = field_text(f, "encoding_format", "float");
    struct embedding b = {.x = x, .native = native, .base64 = !strcmp(format, "base64")};
    size_t i;
    if (strcmp(format, "float") != 0 && !b.base64)
        serve_fail(e, 400, "encoding_format", "encoding_format: expected float or base64");
    long long normalize = field_int(f, "embd_normalize", -1, 2, 2);
    if (normalize == 0 || normalize == 1)
        serve_fail(e, 400, "embd_normalize", "embd_normalize: expected 2 (length 1) or -1 (none)");
    b.normalize = normalize > 0;
    if (!input) serve_fail(e, 400, "input", "input: expected a text, a list of token ids, or a list of these");
    if (field_has(f, "dimensions")) serve_fail(e, 400, "dimensions", "dimensions: not supported; the model's width is used");
    if (input && input_is_list(input) && (!json_array_size(input) || json_array_size(input) > TEXTS_MAX))
        serve_fail(e, 400, "input", "input: expected 1 to %d texts", TEXTS_MAX);
    b.model = e->status ? NULL : model_pool_acquire(&s->models, field_text(f, "model", NULL), true, e);
    if (!b.model) return false;
    b.list = json_array();
    read_pooling(&b, f);
    if (input_is_list(input))
        json_array_foreach(input, i, v) if (e->status || !embed_one(&b, v, e)) break;
    if (!input_is_list(input) && !e->status) embed_one(&b, input, e);
    if (!e->status)
        exchange_json(x, 200,
                      native ? json_incref(b.list)
                             : json_pack("{s:s, s:O, s:s, s:{s:I, s:I}}", "object", "list", "data", b.list, "model",
                                         b.model->name, "usage", "prompt_tokens", (json_int_t)b.total, "total_tokens",
                                         (json_int_t)b.total));
    pooled_model_count(b.model, &(struct model_counts){.prompt_tokens = b.total, .runs = json_array_size(b.list)});
    json_decref(b.list);
    model_pool_release(&s->models, b.model);
    return !e->status;
}

static bool embeddings(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    return embed(s, x, body, false, e);
}

static bool embedding(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    return embed(s, x, body, true, e);
}

/* --- rerank --- */

struct scored {
    size_t index;
    double score;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->index < y->index ? -1 : 1;
}

/* Mean log-probability of the query after the document. */
static double score_document(struct exchange *x, struct pooled_model *m, const char *document, const char *query, size_t *total,
                             struct serve_error *e)
{
    size_t before = 0, after = 0, n = 0;
    double sum = 0;
    char *head = out_printf("Document: %s\nQuery:", document), *tail = out_printf(" %s", query);
    int32_t *first = generate_tokenize(m, head, strlen(head), 0, &before, e);
    int32_t *second = first ? generate_tokenize(m, tail, strlen(tail), SEGUE_TEXT_NO_BOS | SEGUE_TEXT_NO_SPECIAL, &after, e)
                            : NULL;
    if (second) {
        first = out_realloc(first, (before + after + 1) * sizeof *first);
        memcpy(first + before, second, after * sizeof *first);
        segue_request_opts o = {.size = sizeof o, .kind = SEGUE_SCORE, .tokens = first, .tokens_n = before + after};
        float *values = run_values(x, m, &o, before + after, &n, e);
        for (size_t i = before; values && i < n; i++) sum += (double)values[i];
        free(values);
    }
    *total += before + after;
    free(first), free(second), free(head), free(tail);
    return after ? sum / (double)after : 0;
}

/* tei: in the form of Hugging Face's text-embeddings-inference. */
static json_t *ranking(struct scored *scores, size_t n, size_t top, json_t *documents, bool with_text, bool tei)
{
    json_t *list = json_array();
    qsort(scores, n, sizeof *scores, by_score);
    for (size_t i = 0; i < n && i < top; i++) {
        json_t *o = json_pack("{s:I, s:f}", "index", (json_int_t)scores[i].index, tei ? "score" : "relevance_score",
                              scores[i].score);
        json_t *text = json_array_get(documents, scores[i].index);
        if (with_text && tei) json_object_set(o, "text", text);
        else if (with_text) json_object_set_new(o, "document", json_pack("{s:O}", "text", text));
        json_array_append_new(list, o);
    }
    return list;
}

static bool rerank(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    struct fields f = {body, e};
    const char *query = field_text(f, "query", NULL);
    bool tei = field_has(f, "texts");
    json_t *documents = field_array(f, tei ? "texts" : "documents"), *v;
    size_t n = json_array_size(documents), i, total = 0, top = (size_t)field_int(f, "top_n", 1, TEXTS_MAX, TEXTS_MAX);
    bool with_text = field_bool(f, tei ? "return_text" : "return_documents", false);
    if (!query) serve_fail(e, 400, "query", "query: expected a string");
    if (!n || n > TEXTS_MAX) serve_fail(e, 400, "documents", "documents: expected 1 to %d texts", TEXTS_MAX);
    json_array_foreach(documents, i, v) if (!json_is_string(v))
        serve_fail(e, 400, "documents", "documents[%zu]: expected a string", i);
    struct pooled_model *m = e->status ? NULL : model_pool_acquire(&s->models, field_text(f, "model", NULL), true, e);
    if (!m) return false;
    struct scored *scores = out_alloc(n * sizeof *scores);
    for (i = 0; i < n && !e->status; i++)
        scores[i] = (struct scored){i, score_document(x, m, json_string_value(json_array_get(documents, i)), query, &total, e)};
    if (!e->status)
        exchange_json(x, 200,
                      tei ? ranking(scores, n, top, documents, with_text, tei)
                          : json_pack("{s:s, s:o, s:{s:I, s:I}}", "model", m->name, "results",
                                      ranking(scores, n, top, documents, with_text, tei), "usage", "prompt_tokens",
                                      (json_int_t)total, "total_tokens", (json_int_t)total));
    free(scores);
    model_pool_release(&s->models, m);
    return !e->status;
}

void route_embeddings(struct server *s, struct exchange *x) { route_with_body(s, x, embeddings); }
void route_embedding(struct server *s, struct exchange *x) { route_with_body(s, x, embedding); }
void route_rerank(struct server *s, struct exchange *x) { route_with_body(s, x, rerank); }
