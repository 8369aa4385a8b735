/* routes.c: see routes.h. SPDX-License-Identifier: MIT */
#include "serve/routes.h"

#include <string.h>

const struct route routes[] =
    {{"GET", "/health", route_health, true, "State of the server: 200 when the first model is ready, 503 while it is loading"},
     {"GET", "/v1/health", route_health, true, "The same as /health"},
     {"GET", "/v1/models", route_models, true, "The models that requests can name"},
     {"GET", "/models", route_models, true, "The same as /v1/models"},
     {"POST", "/v1/chat/completions", route_chat, false, "Answer to a conversation (OpenAI)"},
     {"POST", "/chat/completions", route_chat, false, "The same as /v1/chat/completions"},
     {"POST", "/v1/completions", route_completions, false, "Continuation of a text (OpenAI)"},
     {"POST", "/completions", route_completions, false, "The same as /v1/completions"},
     {"POST", "/v1/embeddings", route_embeddings, false, "Vectors of texts (OpenAI)"},
     {"POST", "/embeddings", route_embeddings, false, "The same as /v1/embeddings"},
     {"POST", "/v1/rerank", route_rerank, false, "Order of documents by relevance to a query"},
     {"POST", "/v1/responses", route_responses, false, "Answer with server-side conversation state (OpenAI Responses)"},
     {"POST", "/v1/messages", route_messages, false, "Answer to a conversation (Anthropic)"},
     {"POST", "/v1/messages/count_tokens", route_count_tokens, false, "Tokens of a conversation (Anthropic)"},
     {"POST", "/tokenize", route_tokenize, false, "Text to tokens"},
     {"POST", "/detokenize", route_detokenize, false, "Tokens to text"},
     {"POST", "/apply-template", route_apply_template, false, "The prompt that a conversation becomes"},
     {"GET", "/props", route_props, true, "Properties of the server and its model"},
     {"GET", "/slots", route_slots, true, "Requests in progress"},
     {"GET", "/lora-adapters", route_lora, true, "LoRA adapters of the server"},
     {"GET", "/metrics", route_metrics, true, "Counters in Prometheus's format (needs --metrics)"},
     {"GET", "/openapi.json", route_openapi, true, "This description"},
     {NULL, NULL, NULL, false, NULL}};

static const struct route *find(const struct exchange *x, bool *other_method)
{
    *other_method = false;
    for (const struct route *r = routes; r->path; r++) {
        if (strcmp(r->path, x->path) != 0) continue;
        if (!strcmp(r->method, x->method) || (!strcmp(x->method, "HEAD") && !strcmp(r->method, "GET"))) return r;
        *other_method = true;
    }
    return NULL;
}

bool routes_quick(const struct exchange *x)
{
    bool other;
    const struct route *r = find(x, &other);
    return !r || r->quick;
}

void routes_handle(void *context, struct exchange *x)
{
    bool other;
    struct serve_error e = {0};
    const struct route *r = find(x, &other);
    if (r) {
        r->run(context, x);
        return;
    }
    if (!strcmp(x->method, "OPTIONS")) {
        exchange_text(x, 204, "text/plain", "", 0);
        return;
    }
    if (other)
        serve_fail(&e, 405, NULL, "%.100s does not take %s", x->path, x->method);
    else
        serve_fail(&e, 404, NULL, "%.100s: no such path; see /openapi.json", x->path);
    exchange_fail(x, &e);
}

/* One path and method each, with the request bodies as free objects; docs/SERVER.md describes their fields. */
void route_openapi(struct server *s, struct exchange *x)
{
    (void)s;
    json_t *paths = json_object();
    for (const struct route *r = routes; r->path; r++) {
        json_t *item = json_object_get(paths, r->path);
        char method[8] = {0};
        for (size_t i = 0; r->method[i]; i++) method[i] = (char)(r->method[i] + 32);
        json_t *operation = json_pack("{s:s, s:{s:{s:s}, s:{s:s}}}", "summary", r->summary, "responses", "200", "description",
                                      "The answer", "default", "description", "An error object");
        if (!strcmp(r->method, "POST"))
            json_object_set_new(operation, "requestBody",
                                json_pack("{s:b, s:{s:{s:{s:s}}}}", "required", 1, "content", "application/json", "schema",
                                          "type", "object"));
        if (!item) json_object_set_new(paths, r->path, item = json_object());
        json_object_set_new(item, method, operation);
    }
    exchange_json(x, 200,
                  json_pack("{s:s, s:{s:s, s:s}, s:o}", "openapi", "3.1.0", "info", "title", "segue serve", "version", "0.2.0",
                            "paths", paths));
}
