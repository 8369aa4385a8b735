/* route_models.c: the models of the server: /v1/models, and /models/load and /models/unload in the form of llama.cpp.
 * SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <string.h>

/* With the lock of the pool: one entry of the list of models. */
static json_t *model_json(const struct model_pool *h, const struct pooled_model *m)
{
    static const char *const states[] = {"unloaded", "loading", "loaded", "failed", "stopped"};
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:{s:s}}", "id", m->name, "object", "model", "created",
                          (json_int_t)h->started_s, "owned_by", "segue", "status", "value", states[m->state]);
    if (m->state != MODEL_READY) return o;
    const segue_model_info *info = &m->placement.info;
    json_object_set_new(o, "meta",
                        json_pack("{s:I, s:I, s:I, s:I, s:s?, s:s?}", "n_ctx", (json_int_t)m->context, "n_ctx_train",
                                  (json_int_t)info->context, "n_vocab", (json_int_t)info->vocab, "size",
                                  (json_int_t)info->weight_bytes, "family", info->family, "storage", info->storage));
    return o;
}

void route_models(struct server *s, struct exchange *x)
{
    json_t *list = json_array();
    pthread_mutex_lock(&s->models.lock);
    for (size_t i = 0; i < s->models.models_n; i++) json_array_append_new(list, model_json(&s->models, s->models.models[i]));
    pthread_mutex_unlock(&s->models.lock);
    exchange_json(x, 200, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

void route_model(struct server *s, struct exchange *x)
{
    struct serve_error e = {0};
    const char *name = x->path + strlen("/v1/models/");
    json_t *found = NULL;
    pthread_mutex_lock(&s->models.lock);
    for (size_t i = 0; i < s->models.models_n && !found; i++)
        if (!strcmp(s->models.models[i]->name, name)) found = model_json(&s->models, s->models.models[i]);
    pthread_mutex_unlock(&s->models.lock);
    if (found) {
        exchange_json(x, 200, found);
        return;
    }
    serve_fail(&e, 404, "model", "the model '%.200s' does not exist here; see /v1/models", name);
    e.code = "model_not_found";
    exchange_fail(x, &e);
}

/* The name in a body; NULL: e has the reason. */
static const char *named(struct server *s, struct fields f)
{
    const char *name = field_text(f, "model", NULL);
    if (!name) serve_fail(f.e, 400, "model", "model: expected a name of /v1/models");
    for (size_t i = 0; name && i < s->models.models_n; i++)
        if (!strcmp(s->models.models[i]->name, name)) return name;
    if (name) serve_fail(f.e, 404, "model", "the model '%.200s' does not exist here; see /v1/models", name);
    return NULL;
}

static bool load(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    const char *name = named(s, (struct fields){body, e});
    struct pooled_model *m = name ? model_pool_acquire(&s->models, name, true, e) : NULL;
    if (!m) return false;
    model_pool_release(&s->models, m);
    exchange_json(x, 200, json_pack("{s:b}", "success", 1));
    return true;
}

static bool unload(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    const char *name = named(s, (struct fields){body, e});
    if (!name || !model_pool_unload(&s->models, name, e)) return false;
    exchange_json(x, 200, json_pack("{s:b}", "success", 1));
    return true;
}

void route_model_load(struct server *s, struct exchange *x) { route_with_body(s, x, load); }
void route_model_unload(struct server *s, struct exchange *x) { route_with_body(s, x, unload); }
