/* chat_content.h: message contents in the forms of OpenAI's API, for templates that know text only.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_CHAT_CONTENT_H
#define SG_TEXT_CHAT_CONTENT_H

#include "text/template.h"

/* vars: the variables from sg_chat_request, whose messages are changed where the template cannot read them. A content that is
 * a list of {"type": "text", "text"} becomes its texts, joined with newlines, unless the template walks such lists itself. A
 * content that is null or missing, as beside tool calls, becomes "" if the template fails on it or prints it as "None".
 * Whether it does is found by rendering. bos, eos: as for sg_chat_request. EUNSUPPORTED: a content part that
 * is not text, and a template for text only. */
segue_status sg_chat_content(const struct sg_template *t, json_t *vars, const char *bos, const char *eos, segue_error *err);

#endif
