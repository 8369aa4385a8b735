/* template.c: the interface of the template interpreter: parse once, render many times, on any thread.
 * SPDX-License-Identifier: MIT */
#include "text/template.h"

#include "base/hash.h"
#include "text/jinja/jinja.h"
#include "text/jinja/parse/jinja_parse.h"

/* On error the template is closed, with all nodes parsed so far: they are in its arena. */
segue_status sg_template_open(struct sg_template **out, const char *source, size_t len, const char *what,
                              segue_error *err)
{
    struct sg_template *t = sg_alloc(sizeof *t);
    struct sg_jinja_parser p = {.t = t, .env = &sg_jinja_env, .err = err, .stack = sg_stack_here()};
    if (!t) return sg_no_memory("template", sizeof *t, err);
    sg_random(p.key, sizeof p.key);
    t->what = sg_arena_strndup(&t->arena, what, strlen(what) < 80 ? strlen(what) : 80);
    segue_status s = t->what ? SEGUE_OK : sg_no_memory("template", 80, err);
    if (s == SEGUE_OK) s = sg_lexer_open(&p.lx, &t->arena, source, len, t->what, err);
    if (s == SEGUE_OK) s = sg_parse_body(&p);
    if (s == SEGUE_OK) s = sg_bind_names(&p);
    if (s != SEGUE_OK) {
        sg_template_close(t);
        return s;
    }
    *out = t;
    return SEGUE_OK;
}

/* The arena is copied to the stack first, as it is a member of what is freed. */
void sg_template_close(struct sg_template *t)
{
    if (!t) return;
    struct sg_arena arena = t->arena;
    sg_arena_free(&arena);
    sg_free(t);
}

/* Replace zero fields by the defaults that template.h documents. */
static struct sg_template_limits fill_limits(const struct sg_template_limits *given)
{
    struct sg_template_limits l = given ? *given : (struct sg_template_limits){0};
    if (!l.steps) l.steps = 10 * 1000 * 1000;
    if (!l.depth) l.depth = 200;
    if (!l.output_bytes) l.output_bytes = 16u << 20;
    if (!l.value_bytes) l.value_bytes = 40u << 20;
    return l;
}

/* The caller frees all values afterwards, also on error. */
static segue_status render(struct sg_jinja *st, const json_t *vars)
{
    struct sg_val v;
    struct sg_jinja_frame *f;
    SG_TRY(sg_val_from_json(st, vars, &v));
    st->vars = sg_v_dict(v);
    SG_TRY(sg_frame_make(st, st->t->scope, NULL, &f));
    SG_TRY(sg_frame_enter(st, st->t->scope, f));
    return sg_run_body(st, f, st->t->body);
}

/* The text is appended to out only if the whole rendering succeeded. */
segue_status sg_template_render(const struct sg_template *t, const json_t *vars, int64_t now,
                                const struct sg_template_limits *limits, struct sg_buf *out, segue_error *err)
{
    struct sg_buf text = {0};
    struct sg_jinja st = {
        .t = t, .env = &sg_jinja_env, .limits = fill_limits(limits), .now = now, .out = &text, .err = err, .line = 1,
        .stack = sg_stack_here()};
    if (!json_is_object(vars))
        return sg_fail(err, SEGUE_EARG, "template: %s: variables: not a JSON object; pass an object", t->what);
    text.limit = st.limits.output_bytes;
    sg_random(&st.seed, sizeof st.seed);
    /* small renderings never collect garbage */
    st.sweep_at = 4u << 20;
    segue_status s = render(&st, vars);
    sg_val_free_all(&st);
    if (s == SEGUE_OK && text.len && sg_buf_add(out, text.data, text.len) != SEGUE_OK)
        s = out->failed == SEGUE_EMEMORY ? sg_no_memory("rendered text", text.len, err)
                                         : sg_fail(err, SEGUE_ELIMIT,
                                                   "template: %s: the rendered text has %zu bytes, "
                                                   "more than allowed; shorten the request",
                                                   t->what, text.len);
    sg_buf_free(&text);
    return s;
}
