/* routes.c: see routes.h. SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <string.h>

static void route_openapi(struct server *s, struct exchange *x);

static const struct route routes[] =
    {{"GET", "/health", route_health, true, "State of the server: 200 when the first model is ready, 503 while it is loading",
      NULL},
     {"GET", "/v1/health", route_health, true, "The same as /health", NULL},
     {"GET", "/v1/models", route_models, true, "The models that requests can name", NULL},
     {"GET", "/v1/models/{id}", route_model, true, "One of the models", NULL},
     {"GET", "/models", route_models, true, "The same as /v1/models", NULL},
     {"POST", "/models/load", route_model_load, false, "Load a model now, instead of when a request names it", "m"},
     {"POST", "/models/unload", route_model_unload, false, "Unload a model when its running answers have ended", "m"},
     {"POST", "/v1/chat/completions", route_chat, false, "Answer to a conversation (OpenAI)", "msgtoc"},
     {"POST", "/chat/completions", route_chat, false, "The same as /v1/chat/completions", "msgtoc"},
     {"POST", "/v1/chat/completions/input_tokens", route_chat_tokens, false, "Tokens of a conversation", "mgtc"},
     {"POST", "/chat/completions/input_tokens", route_chat_tokens, false, "The same", "mgtc"},
     {"POST", "/v1/completions", route_completions, false, "Continuation of a text (OpenAI)", "mpso"},
     {"POST", "/completion", route_completions, false, "Continuation of a text, also with the members of llama.cpp", "mpso"},
     {"POST", "/completions", route_completions, false, "The same as /completion", "mpso"},
     {"POST", "/infill", route_infill, false, "Text for the gap between two texts, in the form of llama.cpp", "mqso"},
     {"POST", "/v1/embeddings", route_embeddings, false, "Vectors of texts (OpenAI)", "mie"},
     {"POST", "/embedding", route_embedding, false, "Vectors of texts in the form of llama.cpp", "mie"},
     {"POST", "/embeddings", route_embedding, false, "The same as /embedding", "mie"},
     {"POST", "/v1/rerank", route_rerank, false, "Order of documents by relevance to a query", "mr"},
     {"POST", "/rerank", route_rerank, false, "The same as /v1/rerank", "mr"},
     {"POST", "/v1/reranking", route_rerank, false, "The same as /v1/rerank", "mr"},
     {"POST", "/reranking", route_rerank, false, "The same as /v1/rerank", "mr"},
     {"POST", "/v1/responses", route_responses, false, "Answer with server-side conversation state (OpenAI Responses)", "misoty"},
     {"POST", "/responses", route_responses, false, "The same as /v1/responses", "misoty"},
     {"POST", "/v1/responses/input_tokens", route_responses_tokens, false, "Tokens of such a request", "mity"},
     {"POST", "/responses/input_tokens", route_responses_tokens, false, "The same", "mity"},
     {"GET", "/v1/responses/{id}", route_response, true, "An answer that is kept", NULL},
     {"DELETE", "/v1/responses/{id}", route_response_delete, true, "Forget a kept answer", NULL},
     {"GET", "/v1/responses/{id}/input_items", route_response_items, true, "The items that a kept answer was made from", NULL},
     {"POST", "/v1/messages", route_messages, false, "Answer to a conversation (Anthropic)", "msgtoa"},
     {"POST", "/v1/messages/count_tokens", route_count_tokens, false, "Tokens of a conversation (Anthropic)", "mgta"},
     {"POST", "/tokenize", route_tokenize, false, "Text to tokens", "mk"},
     {"POST", "/detokenize", route_detokenize, false, "Tokens to text", "md"},
     {"POST", "/apply-template", route_apply_template, false, "The prompt that a conversation becomes", "mgtc"},
     {"GET", "/props", route_props, true, "Properties of the server and its model", NULL},
     {"GET", "/slots", route_slots, true, "Requests in progress", NULL},
     {"POST", "/slots/{id}", route_slot, false, "Save, restore or erase the state of a slot (?action=; needs --slot-save-path)",
      "ml"},
     {"POST", "/v1/states/export", route_state_export, false, "The state of a prompt or conversation as a file (needs a key)",
      "mgpx"},
     {"POST", "/v1/states/import", route_state_import, false,
      "Take in such a file, so that its prompt is not read again (needs a key)", "b"},
     {"GET", "/lora-adapters", route_lora, true, "LoRA adapters of the server with their scales", NULL},
     {"POST", "/lora-adapters", route_lora_change, true, "Scales of the adapters from the next request on; those that the list "
      "leaves out get 0", NULL},
     {"GET", "/metrics", route_metrics, true, "Counters in Prometheus's format (needs --metrics)", NULL},
     {"GET", "/openapi.json", route_openapi, true, "This description", NULL},
     {NULL, NULL, NULL, false, NULL, NULL}};

/* True if path is the pattern, in which {id} stands for any text without '/'. */
static bool matches(const char *pattern, const char *path)
{
    size_t fixed = strcspn(pattern, "{");
    if (!pattern[fixed]) return !strcmp(pattern, path);
    if (strncmp(pattern, path, fixed) != 0) return false;
    path += fixed;
    return !strcmp(pattern + fixed + strlen("{id}"), path + strcspn(path, "/"));
}

static const struct route *find(const struct exchange *x, bool *other_method)
{
    *other_method = false;
    for (const struct route *r = routes; r->path; r++) {
        if (!matches(r->path, x->path)) continue;
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
        exchange_text(x, 200, "text/plain", "", 0);
        return;
    }
    if (other)
        serve_fail(&e, 405, NULL, "%.100s does not take %s", x->path, x->method);
    else
        serve_fail(&e, 404, NULL, "%.100s: no such path; see /openapi.json", x->path);
    exchange_fail(x, &e);
}

static void route_openapi(struct server *s, struct exchange *x)
{
    (void)s;
    exchange_json(x, 200, openapi_json(routes));
}
