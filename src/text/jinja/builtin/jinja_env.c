/* jinja_env.c: the environment: all builtins by name. Only template.c refers to it; other files reach
 * builtins through st->env or p->env.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/value/jinja_state.h"

const struct sg_jinja_env sg_jinja_env = {
    .filter = sg_filter_find, .test = sg_test_find, .global = sg_global_find, .method = sg_method_find};
