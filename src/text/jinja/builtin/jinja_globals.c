/* jinja_globals.c: global functions of transformers' environment: raise_exception, strftime_now, range,
 * namespace, dict, joiner, cycler.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/builtin/jinja_builtin.h"
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* raise_exception(message): ends the rendering with EFORMAT; the message follows the template's
 * name and line. */
SG_BUILTIN(g_raise)
{
    struct sg_val text;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_text(st, in[0], &text));
    /* the message of an error has a fixed size; the rest is cut */
    size_t n = sg_v_str(text)->n;
    return sg_jinja_fail(st, "%.*s", (int)(n > 380 ? 380 : n), sg_v_str(text)->s);
}

/* strftime_now(format): see jinja_time.c. */
SG_BUILTIN(g_strftime)
{
    struct sg_str *s = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_val_expect_str(st, in[0], "the format of strftime_now", &s));
    return sg_format_time(st, s, out);
}

/* range(stop) or range(start, stop[, step]). At most 100,000 items, the limit of jinja2's sandbox. */
SG_BUILTIN(g_range)
{
    int64_t bounds[3] = {0, 0, 1};
    struct sg_val_range *r = NULL;
    SG_BUILTIN_UNUSED;
    for (size_t i = 0; i < 3 && in[i].kind != SG_V_MISSING; i++)
        SG_TRY(sg_val_index(st, in[i], "a bound of range", &bounds[i]));
    int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    /* range(stop) */
    if (in[1].kind == SG_V_MISSING) {
        start = 0;
        stop = bounds[0];
    }
    if (!step) return sg_jinja_fail(st, "range: the step cannot be zero");
    /* The number of items in unsigned arithmetic: stop - start may not fit into 64 signed bits. */
    uint64_t distance = 0, width = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 ? stop > start : stop < start)
        distance = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t n = distance ? (distance - 1) / width + 1 : 0;
    if (n > 100000) return sg_jinja_fail(st, "range: more than 100000 items; the sandbox blocks that");
    SG_TRY(sg_val_new(st, SG_V_RANGE, sizeof *r, &r));
    r->start = start;
    r->stop = stop;
    r->step = step;
    r->n = (size_t)n;
    *out = sg_v_of(&r->o);
    return SEGUE_OK;
}

/* namespace() and dict(): from one mapping or iterable of pairs, then keywords. f->variant is the
 * kind of the result. The sandbox rejects names of a namespace that begin with an underscore. */
SG_BUILTIN(g_mapping)
{
    struct sg_dict *d = NULL;
    SG_BUILTIN_UNUSED;
    SG_TRY(sg_dict_make(st, f->variant, &d));
    if (args->pos_n > 1) return sg_jinja_fail(st, "%s: expected at most one mapping, and keywords", f->name);
    if (args->pos_n) SG_TRY(sg_dict_merge(st, d, args->pos[0]));
    if (args->named) SG_TRY(sg_dict_merge(st, d, sg_v_of(&args->named->o)));
    for (size_t i = 0; f->variant == SG_V_NAMESPACE && i < d->n; i++)
        if (d->pairs[i].key.kind == SG_V_STR && sg_v_str(d->pairs[i].key)->n &&
            sg_v_str(d->pairs[i].key)->s[0] == '_')
            return sg_jinja_fail(st, "namespace: a name must not begin with '_'");
    *out = sg_v_of(&d->o);
    return SEGUE_OK;
}

/* joiner(sep=", "): a callable that returns an empty text the first time and the separator
 * afterwards. */
SG_BUILTIN(g_joiner)
{
    struct sg_list *l = NULL;
    struct sg_val sep = in[0];
    SG_BUILTIN_UNUSED;
    if (sep.kind == SG_V_MISSING) SG_TRY(sg_str_borrow(st, ", ", 2, &sep));
    /* items[0] is the separator, pos counts the calls */
    SG_TRY(sg_list_make(st, SG_V_LIST, 1, &l));
    SG_TRY(sg_list_add(st, l, sep));
    return sg_seq_make(st, SG_V_JOINER, l, "Joiner", out);
}

/* cycler(a, b, ...): an object with next(), reset() and current. */
SG_BUILTIN(g_cycler)
{
    struct sg_list *l = NULL;
    SG_BUILTIN_UNUSED;
    if (!args->pos_n || args->named) return sg_jinja_fail(st, "cycler: expected at least one positional value");
    SG_TRY(sg_list_make(st, SG_V_LIST, args->pos_n, &l));
    for (size_t i = 0; i < args->pos_n; i++) l->items[l->n++] = args->pos[i];
    return sg_seq_make(st, SG_V_CYCLER, l, "Cycler", out);
}

/* Variables of the request have precedence over these functions, see sg_frame_enter. */
const struct sg_builtin *sg_global_find(const char *s, size_t n)
{
    static const struct sg_builtin table[] = {
        {"raise_exception", g_raise, "message", 1, 0},
        {"strftime_now", g_strftime, "format", 1, 0},
        {"range", g_range, "start stop step", 1, 0},
        {"namespace", g_mapping, NULL, 0, SG_V_NAMESPACE},
        {"dict", g_mapping, NULL, 0, SG_V_DICT},
        {"joiner", g_joiner, "sep", 0, 0},
        {"cycler", g_cycler, NULL, 0, 0}};
    return sg_builtin_search(table, sizeof table / sizeof *table, s, n);
}
