/* jinja_call.c: calls of builtins: arguments to parameters, and search in the tables of builtins.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* Store one keyword argument in in[]. A parameter that is unknown or was passed already is an
 * error, as in Python. */
static segue_status bind_keyword(struct sg_jinja *st, const struct sg_builtin *f, const struct sg_dict_pair *p,
                             struct sg_val *in)
{
    const struct sg_str *key = sg_v_str(p->key);
    size_t at = 0;
    /* w: the next parameter name, at: its index */
    for (const char *w = f->params; *w; at++) {
        size_t n = strcspn(w, " ");
        if (key->n == n && !memcmp(key->s, w, n)) {
            if (in[at].kind != SG_V_MISSING)
                return sg_jinja_fail(st, "'%s' got two values for '%.*s'", f->name, (int)n, w);
            in[at] = p->value;
            return SEGUE_OK;
        }
        w += n + (w[n] == ' ');
    }
    return sg_jinja_fail(st, "'%s' has no parameter '%.*s'", f->name, (int)(key->n > 40 ? 40 : key->n),
                         key->s);
}

/* in[SG_PARAMS] is zeroed, which is SG_V_MISSING for parameters that are not passed. Parameters are
 * counted from the text "a b c"; no builtin has more than SG_PARAMS. */
segue_status sg_builtin_call(struct sg_jinja *st, const struct sg_builtin *f, struct sg_val self,
                          const struct sg_call_args *args, struct sg_val *out)
{
    struct sg_val in[SG_PARAMS] = {{0}};
    if (!f->params) return f->fn(st, f, self, in, args, out);
    /* one more than the spaces between the names */
    size_t max_args = *f->params != 0;
    for (const char *p = f->params; *p; p++) max_args += *p == ' ';
    if (args->pos_n > max_args)
        return sg_jinja_fail(st, "'%s' takes at most %zu arguments, got %zu", f->name, max_args,
                             args->pos_n);
    for (size_t i = 0; i < args->pos_n; i++) in[i] = args->pos[i];
    for (size_t i = 0; args->named && i < args->named->n; i++)
        SG_TRY(bind_keyword(st, f, &args->named->pairs[i], in));
    for (size_t i = 0; i < f->min_args; i++)
        if (in[i].kind == SG_V_MISSING)
            return sg_jinja_fail(st, "'%s' needs at least %u arguments", f->name, f->min_args);
    return f->fn(st, f, self, in, args, out);
}

/* Linear search: tables have at most 40 entries, and filters and tests are looked up once per
 * template. */
const struct sg_builtin *sg_builtin_search(const struct sg_builtin *table, size_t count, const char *s, size_t n)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == n && !memcmp(table[i].name, s, n)) return &table[i];
    return NULL;
}
