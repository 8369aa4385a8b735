/* jinja.h: the evaluator of the Jinja interpreter, its top layer. template.c is the interface of the interpreter.
 *
 * Layers, each of which calls only itself and those above it in this list:
 *   value/    values with the semantics of Python, their memory, text, arithmetic, attributes
 *   parse/    source to nodes (jinja_ast.h): lexer, expressions, statements, binding of names to slots
 *   builtin/  filters, tests, global functions, methods; found through struct sg_jinja_env
 *   .         frames and macros (jinja_frame.c, jinja_macro.c), then the evaluator
 *
 * The one recursion between files is inside the evaluator: jinja_eval.c (expressions) calls a macro or a recursive loop
 * of jinja_run.c (statements), and statements contain expressions. It follows the tree of the template; its depth is
 * bounded by sg_template_limits.depth.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_JINJA_H
#define SG_TEXT_JINJA_H

#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/jinja_ast.h"

/* --- jinja_frame.c: variables and output --- */

segue_status sg_frame_make(struct sg_jinja *st, const struct sg_jinja_scope *scope, struct sg_jinja_frame *parent,
                           struct sg_jinja_frame **out);
/* Set all slots that are not parameters. Runs again for each iteration of a loop, which reuses its frame. */
segue_status sg_frame_enter(struct sg_jinja *st, const struct sg_jinja_scope *scope, struct sg_jinja_frame *f);
void sg_frame_clear(struct sg_jinja_frame *f); /* drop all references, so that the values can be freed */
/* Assign v to a target: a name, a namespace attribute, or a tuple of targets (v is unpacked). */
segue_status sg_target_assign(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *t, struct sg_val v);
segue_status sg_target_check_namespaces(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *t);
segue_status sg_target_value(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *t,
                             struct sg_val *out);

/* Output redirected into a buffer, for macros and `set` blocks; on the C stack, nested. */
struct sg_capture {
    struct sg_buf buf, *outer;
};
void sg_capture_begin(struct sg_jinja *st, struct sg_capture *c);
/* End a capture. s: status of what ran; if OK, *out is the captured text. Must be called in any case. */
segue_status sg_capture_end(struct sg_jinja *st, struct sg_capture *c, segue_status s, struct sg_val *out);
segue_status sg_emit(struct sg_jinja *st, const char *s, size_t n);
segue_status sg_emit_value(struct sg_jinja *st, struct sg_val v); /* str(v) */

/* --- jinja_macro.c --- */

/* Store the arguments of a call in the parameter slots of f. */
segue_status sg_macro_bind(struct sg_jinja *st, const struct sg_jinja_node *n, const struct sg_call_args *args,
                           struct sg_jinja_frame *f);
segue_status sg_macro_make(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n, struct sg_val *out);

/* --- jinja_eval.c: expressions --- */

segue_status sg_eval_expr(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n, struct sg_val *out);
segue_status sg_eval_args(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *list,
                          struct sg_call_args *out);
/* Apply the filter or test of node n to a value. */
segue_status sg_eval_filter(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *n,
                            struct sg_val value, struct sg_val *out);
/* Call any callable value. */
segue_status sg_eval_call(struct sg_jinja *st, struct sg_val callee, const struct sg_call_args *args, struct sg_val *out);

/* --- jinja_run.c: statements --- */

segue_status sg_run_body(struct sg_jinja *st, struct sg_jinja_frame *f, const struct sg_jinja_node *body);
segue_status sg_macro_call(struct sg_jinja *st, struct sg_jinja_macro *m, const struct sg_call_args *args,
                           struct sg_val *out);
/* loop(items) of a loop that is marked recursive. */
segue_status sg_loop_recurse(struct sg_jinja *st, struct sg_jinja_loop *loop, struct sg_val items, struct sg_val *out);

#endif
