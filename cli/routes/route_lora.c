/* route_lora.c: /lora-adapters: the adapters of --lora and their scales, as in llama.cpp's server. A change concerns later
 * requests; those in progress keep what they began with. SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <stdlib.h>

/* The model of ?model=, or the first one. NULL: the error was sent. */
static struct pooled_model *model_of(struct server *s, struct exchange *x)
{
    struct serve_error e = {0};
    struct pooled_model *m = model_pool_acquire(&s->models, x->query, false, &e);
    if (!m) exchange_fail(x, &e);
    return m;
}

void route_lora(struct server *s, struct exchange *x)
{
    float scales[PLACEMENT_ADAPTERS];
    json_t *list = json_array();
    struct pooled_model *m = model_of(s, x);
    for (size_t i = 0, n = m ? adapter_set_scales(&m->adapters, scales) : 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:I, s:s, s:f}", "id", (json_int_t)i, "path", m->adapters.list[i].path, "scale",
                                              (double)scales[i]));
    if (!m) {
        json_decref(list);
        return;
    }
    model_pool_release(&s->models, m);
    exchange_json(x, 200, list);
}

void route_lora_change(struct server *s, struct exchange *x)
{
    struct serve_error e = {0};
    struct pooled_model *m = model_of(s, x);
    if (!m) return;
    size_t n = 0;
    json_t *list = out_json_load(x->body.data ? x->body.data : "", x->body.len, JSON_REJECT_DUPLICATES, NULL);
    struct adapter_choice *chosen = params_adapters(list, m, &n, &e);
    if (chosen) adapter_set_change(&m->adapters, chosen, n);
    free(chosen);
    json_decref(list);
    model_pool_release(&s->models, m);
    if (e.status) exchange_fail(x, &e);
    else exchange_json(x, 200, json_pack("{s:b}", "success", 1));
}
