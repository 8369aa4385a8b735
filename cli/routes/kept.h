/* kept.h: the answers of /v1/responses that the server keeps, with their conversations, newest first and bounded in number and
 * size. They belong to the key that made them. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_KEPT_H
#define SEGUE_CLI_KEPT_H

#include "routes/routes.h"

/* Keep an answer under its id. messages: the conversation with the answer; response: as it was sent. All are copied. */
void kept_add(struct server *s, const struct exchange *x, const char *id, const json_t *messages, const json_t *response,
              const struct chat_before *before);
/* The messages kept under an id by the same key, as a new reference; NULL: none. before: NULL, or set to a copy. */
json_t *kept_recall(struct server *s, const struct exchange *x, const char *id, struct chat_before *before);
void kept_free_before(struct chat_before *b);

#endif
