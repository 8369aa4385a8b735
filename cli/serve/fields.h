/* fields.h: typed access to the fields of a JSON request. Null counts as absent. A wrong type or value fills the error with the
 * name of the field. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_FIELDS_H
#define SEGUE_CLI_FIELDS_H

#include "serve/exchange.h"

/* The fields of object o; all errors go to e, the first one is kept. */
struct fields {
    json_t *o;
    struct serve_error *e;
};

/* Parse the body of a request, which must be a JSON object. NULL: e has the reason. A new reference. */
json_t *fields_parse(const struct exchange *x, struct serve_error *e);

/* The value of a field, borrowed; NULL: absent or null. */
json_t *field(struct fields f, const char *name);
bool field_has(struct fields f, const char *name);
/* The fallback where the field is absent or wrong. Numbers must lie in [low, high]; 5.0 is the integer 5. */
long long field_int(struct fields f, const char *name, long long low, long long high, long long fallback);
double field_real(struct fields f, const char *name, double low, double high, double fallback);
bool field_bool(struct fields f, const char *name, bool fallback);
/* Borrowed from o. */
const char *field_text(struct fields f, const char *name, const char *fallback);
json_t *field_object(struct fields f, const char *name);
json_t *field_array(struct fields f, const char *name);

#endif
