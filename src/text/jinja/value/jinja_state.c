/* jinja_state.c: errors and limits of one rendering.
 * SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stdio.h>

#include "text/jinja/jinja_ast.h"
#include "text/jinja/value/jinja_state.h"

/* Texts are cut at 400 bytes. raise_exception passes its message through here, so a template's own message
 * has no remedy appended. */
segue_status sg_jinja_fail(struct sg_jinja *st, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sg_fail(st->err, SEGUE_EFORMAT, "template: %s line %u: %s", st->t->what, (unsigned)st->line, text);
}

/* n is a double because limits of steps and bytes have different types. */
segue_status sg_jinja_limit(struct sg_jinja *st, const char *what, double n)
{
    return sg_fail(st->err, SEGUE_ELIMIT,
                   "template: %s line %u: more than %.0f %s; shorten the request or correct the "
                   "template",
                   st->t->what, (unsigned)st->line, n, what);
}

segue_status sg_jinja_steps_exceeded(struct sg_jinja *st) { return sg_jinja_limit(st, "steps", (double)st->limits.steps); }

/* limits.depth counts calls and nested values as a user sees them. One such level passes through up to six
 * levels of nodes (statement list, statement, call, argument, expression, value), hence the factor. The C stack is what
 * usually ends a recursion first. */
segue_status sg_jinja_enter(struct sg_jinja *st)
{
    SG_TRY(sg_jinja_step(st, 1));
    if (++st->level <= st->limits.depth * 6 && !sg_stack_used_up(st->stack)) return SEGUE_OK;
    if (st->level <= st->limits.depth * 6)
        return sg_fail(st->err, SEGUE_ELIMIT,
                       "template: %s line %u: too many levels of nesting for %d KiB of stack; shorten the request or correct the "
                       "template",
                       st->t->what, (unsigned)st->line, SG_STACK_BYTES >> 10);
    return sg_jinja_limit(st, "levels of nesting", st->limits.depth);
}
