/* chat_request.h: a chat request as the variables of a chat template.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_CHAT_REQUEST_H
#define SG_TEXT_CHAT_REQUEST_H

#include <jansson.h>

#include "base/err.h"

/* request: an object with "messages" (required) and any further variable of the template. *out: a new object for
 * sg_template_render, the caller frees it with json_decref; the request is not changed. What it does:
 *   messages     an array of objects with a "role"; tool_calls[i].function.arguments (or tool_calls[i].arguments) that
 *                is a string holding a JSON object becomes that object, since templates walk it; other strings stay.
 *   reasoning    reasoning_content, thinking and reasoning name one thing: the first that is set is given to
 *                reasoning_content, and to thinking where that is not set.
 *   tools, documents   null when absent; add_generation_prompt true when absent.
 *   bos_token, eos_token   from bos and eos (NULL = "") unless the request has its own.
 * EARG: a NULL; EFORMAT: names what is wrong with the request. */
segue_status sg_chat_request(const json_t *request, const char *bos, const char *eos, json_t **out,
                             segue_error *err);

#endif
