/* jinja_state.h: the state of one rendering: limits and counters, values, output, and the names of the builtins.
 * One thread works on a rendering; a template is shared by any number of them and is never written.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_JINJA_STATE_H
#define SG_TEXT_JINJA_STATE_H

#include "text/jinja/value/jinja_stack.h"
#include "text/jinja/value/jinja_value.h"
#include "text/template.h"

/* An object that the C stack refers to and that the garbage collector must keep. */
struct sg_gc_root {
    struct sg_gc_root *next;
    struct sg_jinja_obj *o;
};

/* The builtins by name; NULL = unknown name. Lookups go through this table, so that the parser and the value operations
 * do not depend on the files that implement the builtins. */
struct sg_jinja_env {
    const struct sg_builtin *(*filter)(const char *name, size_t n);
    const struct sg_builtin *(*test)(const char *name, size_t n);
    const struct sg_builtin *(*global)(const char *name, size_t n);
    /* *blocked = 1: the method exists in Python, but the sandbox forbids it because it changes the value. */
    const struct sg_builtin *(*method)(struct sg_val v, const char *name, size_t n, int *blocked);
};

/* One rendering. It is on the stack of sg_template_render. */
struct sg_jinja {
    const struct sg_template *t;
    const struct sg_jinja_env *env;
    struct sg_template_limits limits;
    uint64_t steps, bytes;       /* steps taken; bytes written that are not yet counted as steps */
    uintptr_t stack;             /* where the rendering began on the C stack */
    uint32_t level, macro_depth; /* nesting of nodes and values; nesting of macro calls */
    uint32_t line;               /* line of the statement that runs, for messages */
    unsigned captures;           /* output that is captured in a variable, nested; 0: output is final */
    unsigned no_sweep;           /* > 0: inside an expression, whose values only the C stack knows */
    size_t live, capture_bytes;  /* bytes of heap values; bytes of captured output so far */
    size_t sweep_at;             /* collect garbage when `live` exceeds this */
    struct sg_jinja_obj *objs;   /* all heap values */
    struct sg_gc_root *roots;
    struct sg_dict *vars; /* the caller's variables */
    struct sg_buf *out;   /* output: the caller's buffer or that of the innermost capture */
    int64_t now;          /* seconds since the epoch for strftime_now; < 0: read the clock */
    uint64_t seed;        /* of dict hashes */
    segue_error *err;
};

/* Fail with EFORMAT and "template: NAME line N: " in front of the text. */
segue_status sg_jinja_fail(struct sg_jinja *st, const char *format, ...) SG_FORMAT(2, 3);
/* Fail with ELIMIT: more than n of `what`. */
segue_status sg_jinja_limit(struct sg_jinja *st, const char *what, double n);
segue_status sg_jinja_steps_exceeded(struct sg_jinja *st);
/* Count n steps. A step is about one small operation or 64 to 256 bytes of copying, so that the limit bounds time. */
static inline segue_status sg_jinja_step(struct sg_jinja *st, uint64_t n)
{
    st->steps += n;
    return st->steps > st->limits.steps ? sg_jinja_steps_exceeded(st) : SEGUE_OK;
}
/* Enter one level of nesting; the caller leaves it with st->level--. After an error the rendering ends, so error paths do
 * not restore the level. */
segue_status sg_jinja_enter(struct sg_jinja *st);

#endif
