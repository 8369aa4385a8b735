/* routes.h: the paths of the server. Each route answers one exchange on the calling thread.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ROUTES_H
#define SEGUE_CLI_ROUTES_H

#include "serve/chat_job.h"

/* What all routes share. */
struct server {
    struct model_pool models;
    const struct args *args;
    bool metrics; /* --metrics */
    struct prompt_records records;
    struct kept *kept; /* conversations of /v1/responses */
    pthread_mutex_t kept_lock;
};

struct route {
    const char *method, *path;
    void (*run)(struct server *s, struct exchange *x);
    bool quick;          /* answers at once, without computing */
    const char *summary; /* for /openapi.json */
    const char *fields;  /* kinds of fields of its body (openapi.c), or NULL */
};

/* Answers any request: finds the route or writes the error. context: struct server. */
void routes_handle(void *context, struct exchange *x);
bool routes_quick(const struct exchange *x);
/* The description of a table of routes, which ends with a NULL path, in the form of OpenAPI; a new reference. */
json_t *openapi_json(const struct route *list);

/* Parse the body and run `answer` with it; errors are written. */
void route_with_body(struct server *s, struct exchange *x,
                     bool (*answer)(struct server *s, struct exchange *x, json_t *body, struct serve_error *e));

void route_chat(struct server *s, struct exchange *x);
void route_chat_tokens(struct server *s, struct exchange *x);
void route_completions(struct server *s, struct exchange *x);
/* Answers a parsed body of /completion, for route_with_body. */
bool answer_completion(struct server *s, struct exchange *x, json_t *body, struct serve_error *e);
void route_infill(struct server *s, struct exchange *x);
void route_embeddings(struct server *s, struct exchange *x);
void route_embedding(struct server *s, struct exchange *x);
void route_rerank(struct server *s, struct exchange *x);
void route_responses(struct server *s, struct exchange *x);
void route_responses_tokens(struct server *s, struct exchange *x);
void route_response(struct server *s, struct exchange *x);
void route_response_delete(struct server *s, struct exchange *x);
void route_response_items(struct server *s, struct exchange *x);
void route_messages(struct server *s, struct exchange *x);
void route_count_tokens(struct server *s, struct exchange *x);
void route_tokenize(struct server *s, struct exchange *x);
void route_detokenize(struct server *s, struct exchange *x);
void route_apply_template(struct server *s, struct exchange *x);
void route_health(struct server *s, struct exchange *x);
void route_models(struct server *s, struct exchange *x);
void route_model(struct server *s, struct exchange *x);
void route_model_load(struct server *s, struct exchange *x);
void route_model_unload(struct server *s, struct exchange *x);
void route_props(struct server *s, struct exchange *x);
void route_slot(struct server *s, struct exchange *x);
void route_state_export(struct server *s, struct exchange *x);
void route_state_import(struct server *s, struct exchange *x);
void route_slots(struct server *s, struct exchange *x);
void route_lora(struct server *s, struct exchange *x);
void route_lora_change(struct server *s, struct exchange *x);
void route_metrics(struct server *s, struct exchange *x);
/* Frees the conversations of /v1/responses. */
void responses_free(struct server *s);

#endif
