/* jinja_builtin.h: filters, tests, global functions and methods, and how their arguments are passed.
 * Builtins use the value operations and each other; none of them calls the evaluator.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_JINJA_BUILTIN_H
#define SG_TEXT_JINJA_BUILTIN_H

#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* Head of the definition of a builtin; the parameters are those of sg_builtin_fn. SG_BUILTIN_UNUSED silences
 * warnings about parameters that a builtin does not need. */
#define SG_BUILTIN(name)                                                                                             \
    static segue_status name(struct sg_jinja *st, const struct sg_builtin *f, struct sg_val self, struct sg_val *in, \
                             const struct sg_call_args *args, struct sg_val *out)
#define SG_BUILTIN_UNUSED ((void)st, (void)f, (void)self, (void)in, (void)args, (void)out)

/* --- jinja_call.c --- */

/* Bind args to the parameters of f as Python does, then call it. */
segue_status sg_builtin_call(struct sg_jinja *st, const struct sg_builtin *f, struct sg_val self,
                             const struct sg_call_args *args, struct sg_val *out);
const struct sg_builtin *sg_builtin_search(const struct sg_builtin *table, size_t count, const char *s, size_t n);

/* --- lookup by name; NULL = unknown --- */

const struct sg_builtin *sg_filter_find(const char *s, size_t n);
const struct sg_builtin *sg_list_filter_find(const char *s, size_t n); /* filters of jinja_lists.c; part of the above */
const struct sg_builtin *sg_test_find(const char *s, size_t n);
const struct sg_builtin *sg_global_find(const char *s, size_t n);
/* *blocked: see struct sg_jinja_env. */
const struct sg_builtin *sg_method_find(struct sg_val v, const char *s, size_t n, int *blocked);
const struct sg_builtin *sg_str_method_find(const char *s, size_t n);
const struct sg_builtin *sg_str_split_method_find(const char *s, size_t n); /* of jinja_strsplit.c; part of the above */

/* --- jinja_strings.c, jinja_strsplit.c --- */

/* Call a method of any value. Methods of Markup return Markup and escape what is put into it. */
segue_status sg_str_method_call(struct sg_jinja *st, const struct sg_builtin *f, struct sg_val self,
                                const struct sg_call_args *args, struct sg_val *out);
/* First and last occurrence of what[m] in [s, e); NULL = none. */
const char *sg_find_range(const char *s, const char *e, const char *what, size_t m);
const char *sg_find_last_range(const char *s, const char *e, const char *what, size_t m);
/* Count the steps of searching s for m bytes. */
segue_status sg_str_search_cost(struct sg_jinja *st, const struct sg_str *s, size_t m);
/* The slice [from, to) of the string self. */
segue_status sg_str_slice_ptr(struct sg_jinja *st, struct sg_val self, const char *from, const char *to,
                              struct sg_val *out);

/* All builtins (jinja_env.c). */
extern const struct sg_jinja_env sg_jinja_env;

#endif
