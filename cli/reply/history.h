/* history.h: messages of a conversation in forms that more templates can write. The lists are of OpenAI's form; their messages
 * are not shared with other lists, what is inside them may be. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_HISTORY_H
#define SEGUE_CLI_HISTORY_H

#include "term/out.h"

/* A copy of the tools in which each has a description and parameters: many templates fail without. */
json_t *history_tools(json_t *tools);
/* What a template (its source) has no place for becomes text: tools a system message, calls and results as below. Ids of calls
 * become nine letters for templates of Mistral, equal ones the same. tools: NULL, or those of the request. A new reference. */
json_t *history_adapt(json_t *messages, json_t *tools, const char *template);
/* Calls become text in the form of Hermes; results too, in messages of the user, if results_too. A new list. */
json_t *history_calls_as_text(json_t *messages, bool results_too);
/* For a template that refuses the order of roles: system messages become the user's, text of the user after results of tools
 * the end of the last result, and messages of one role in a row one message. A new list. */
json_t *history_merged(json_t *messages);

#endif
