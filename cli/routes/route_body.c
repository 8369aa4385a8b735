/* route_body.c: the frame of all routes that take a JSON object. SPDX-License-Identifier: MIT */
#include "routes/routes.h"

void route_with_body(struct server *s, struct exchange *x,
                     bool (*answer)(struct server *s, struct exchange *x, json_t *body, struct serve_error *e))
{
    struct serve_error e = {0};
    json_t *body = fields_parse(x, &e);
    if (!body || !answer(s, x, body, &e)) {
        if (!e.status) serve_fail(&e, 500, NULL, "the request failed for an unknown reason");
        exchange_fail(x, &e);
    }
    json_decref(body);
}
