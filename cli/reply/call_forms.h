/* call_forms.h: complete tool calls in the forms that cannot be passed on while they come. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CALL_FORMS_H
#define SEGUE_CLI_CALL_FORMS_H

#include "reply/call_text.h"

/* Read text[len], which may be one call or a list of calls; *calls counts them. bare: only JSON is a call. */
bool call_forms_read(const char *text, size_t len, bool bare, const struct call_sink *sink, size_t *calls);
/* "KEY": VALUE of <parameter=KEY>VALUE</parameter>: JSON stays JSON, unless the declaration of the tool wants a text. Free it. */
char *call_forms_parameter(const json_t *tools, const char *name, const char *key, size_t key_n, const char *value, size_t len);

#endif
