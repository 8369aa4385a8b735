/* fields.c: see fields.h. SPDX-License-Identifier: MIT */
#include "serve/fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Deepest nesting of a request; templates and schemas below it are still cheap. */
enum { DEPTH_MAX = 256 };

/* True if the brackets outside strings nest deeper than DEPTH_MAX. jansson parses recursively, so this comes first. */
static bool too_deep(const char *s, size_t n)
{
    size_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        if (quoted) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                quoted = false;
        } else if (s[i] == '"')
            quoted = true;
        else if (s[i] == '[' || s[i] == '{') {
            if (++depth > DEPTH_MAX) return true;
        } else if ((s[i] == ']' || s[i] == '}') && depth)
            depth--;
    }
    return false;
}

/* The name of the outermost field in which byte `end` of an object's text is, in out; empty: unknown. */
static void name_at(const char *s, size_t end, char *out, size_t cap)
{
    size_t depth = 0, start = 0;
    out[0] = 0;
    for (size_t i = 0; i < end; i++) {
        if (s[i] == '"') {
            for (start = ++i; i < end && s[i] != '"'; i++)
                if (s[i] == '\\') i++;
            size_t after = i + 1;
            while (after < end && strchr(" \t\r\n", s[after])) after++;
            if (depth == 1 && after < end && s[after] == ':') snprintf(out, cap, "%.*s", (int)(i - start), s + start);
        } else if (s[i] == '[' || s[i] == '{')
            depth++;
        else if ((s[i] == ']' || s[i] == '}') && depth)
            depth--;
    }
}

/* A number beyond the range of JSON numbers here is an error of its field, any other one is of the whole body. */
static void fail_parse(const struct exchange *x, const json_error_t *why, struct serve_error *e)
{
    char name[sizeof e->param];
    size_t end = why->position > 0 ? (size_t)why->position : 0;
    name_at(x->body.data, end < x->body.len ? end : x->body.len, name, sizeof name);
    if (json_error_code(why) == json_error_numeric_overflow && name[0])
        serve_fail(e, 400, name, "%s: the number is out of range: line %d, column %d", name, why->line, why->column);
    else if (json_error_code(why) == json_error_null_character)
        serve_fail(e, 400, name[0] ? name : NULL, "%s: a text has \\u0000, which is not supported; remove it: line %d, column %d",
                   name[0] ? name : "the body", why->line, why->column);
    else
        serve_fail(e, 400, NULL, "the body is not valid JSON: line %d, column %d: %s", why->line, why->column, why->text);
}

json_t *fields_parse(const struct exchange *x, struct serve_error *e)
{
    json_error_t why;
    if (!x->body.len) {
        serve_fail(e, 400, NULL, "the request has no body; send a JSON object");
        return NULL;
    }
    if (too_deep(x->body.data, x->body.len)) {
        serve_fail(e, 400, NULL, "the body is nested deeper than %d levels; flatten it", DEPTH_MAX);
        return NULL;
    }
    json_t *o = json_loadb(x->body.data, x->body.len, 0, &why);
    if (!o)
        fail_parse(x, &why, e);
    else if (!json_is_object(o)) {
        serve_fail(e, 400, NULL, "the body is not a JSON object; send {...}");
        json_decref(o);
        o = NULL;
    }
    return o;
}

json_t *field(struct fields f, const char *name)
{
    json_t *v = json_object_get(f.o, name);
    return json_is_null(v) ? NULL : v;
}

bool field_has(struct fields f, const char *name) { return field(f, name) != NULL; }

double field_real(struct fields f, const char *name, double low, double high, double fallback)
{
    json_t *v = field(f, name);
    if (!v) return fallback;
    double number = json_number_value(v);
    if (json_is_number(v) && isfinite(number) && number >= low && number <= high) return number;
    serve_fail(f.e, 400, name, "%s: expected a number from %g to %g", name, low, high);
    return fallback;
}

long long field_int(struct fields f, const char *name, long long low, long long high, long long fallback)
{
    json_t *v = field(f, name);
    if (!v) return fallback;
    double real = json_is_real(v) ? json_real_value(v) : 0;
    bool whole = json_is_integer(v) || (json_is_real(v) && real == floor(real) && fabs(real) < 9e15);
    long long number = json_is_integer(v) ? json_integer_value(v) : (long long)(whole ? real : 0);
    if (whole && number >= low && number <= high) return number;
    serve_fail(f.e, 400, name, "%s: expected an integer from %lld to %lld", name, low, high);
    return fallback;
}

bool field_bool(struct fields f, const char *name, bool fallback)
{
    json_t *v = field(f, name);
    if (!v) return fallback;
    if (json_is_boolean(v)) return json_is_true(v);
    serve_fail(f.e, 400, name, "%s: expected true or false", name);
    return fallback;
}

const char *field_text(struct fields f, const char *name, const char *fallback)
{
    json_t *v = field(f, name);
    if (!v) return fallback;
    if (json_is_string(v)) return json_string_value(v);
    serve_fail(f.e, 400, name, "%s: expected a string", name);
    return fallback;
}

json_t *field_object(struct fields f, const char *name)
{
    json_t *v = field(f, name);
    if (v && !json_is_object(v)) serve_fail(f.e, 400, name, "%s: expected an object", name);
    return json_is_object(v) ? v : NULL;
}

json_t *field_array(struct fields f, const char *name)
{
    json_t *v = field(f, name);
    if (v && !json_is_array(v)) serve_fail(f.e, 400, name, "%s: expected an array", name);
    return json_is_array(v) ? v : NULL;
}
