/* cmd_replay.c: `segue replay`: computes recorded answers (--record) again, on the recorded units or others, and names the
 * first token, layer and unit that differ. Exit 6: there is a difference.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "replay/recording.h"
#include "term/flags.h"
#include "term/interrupt.h"

/* What differs. Positions and indices are -1 where nothing does, or it is not known. */
struct difference {
    long long token;    /* index of the first generated token that differs */
    long long edge;     /* first run whose tokens are others than recorded */
    long long run;      /* first run with another hash */
    long long position; /* its first token with another value after the last layer */
    long long layer;
    const char *part, *slot; /* where in the layer; the first slot that differs, or NULL */
    size_t runs_equal;
};

/* The first layer of a run whose values or slots differ. Values before layer i have index i, those after the last one the last
 * index. */
static void locate(struct difference *d, const struct record *r, const struct record_run *a, const struct record_run *b)
{
    json_t *names = json_object_get(r->head, "slots");
    size_t hidden = 0;
    long long slot_layer = -1;
    for (size_t i = 0; i < r->slots_n; i++) {
        const char *name = json_string_value(json_array_get(names, i)), *dot = strchr(name, '.');
        long long layer = dot ? strtoll(dot + 1, NULL, 10) : 0;
        if (a->slots[i] == b->slots[i] || (slot_layer >= 0 && layer >= slot_layer)) continue;
        slot_layer = layer;
        d->slot = name;
    }
    while (hidden < r->hidden_n && a->hidden[hidden] == b->hidden[hidden]) hidden++;
    bool known = r->hidden_n && hidden < r->hidden_n;
    long long value_layer = known ? (long long)hidden - 1 : -1; /* the layer that computed the first other values */
    if (known && hidden == 0) {
        d->layer = -1;
        d->part = "the embedding";
        return;
    }
    bool from_slot = slot_layer >= 0 && (!known || slot_layer <= value_layer);
    d->layer = from_slot ? slot_layer : value_layer;
    if (!from_slot) d->slot = NULL;
    d->part = from_slot                                     ? "its state or what it is computed from"
              : value_layer == (long long)r->hidden_n - 2 ? "after its state, or the final norm"
                                                           : "after its state: attention, output or MLP";
}

/* Compare run by run up to the first difference. */
static void compare(struct difference *d, const struct record *r, const struct record *now)
{
    *d = (struct difference){.token = -1, .edge = -1, .run = -1, .position = -1, .layer = -1};
    bool same_values = r->hidden_n == now->hidden_n && r->slots_n == now->slots_n;
    for (size_t i = 0; i < r->answer.n && d->token < 0; i++)
        if (i >= now->answer.n || r->answer.ids[i] != now->answer.ids[i]) d->token = (long long)i;
    for (size_t i = 0; i < r->runs_n && i < now->runs_n; i++) {
        const struct record_run *a = &r->runs[i], *b = &now->runs[i];
        if (a->first != b->first || a->tokens != b->tokens || !same_values) {
            d->edge = (long long)i;
            return;
        }
        size_t n = r->slots_n + r->hidden_n;
        if (memcmp(a->slots, b->slots, n * sizeof *a->slots) != 0) {
            d->run = (long long)i;
            d->position = a->rows && b->rows ? -1 : (long long)a->first;
            for (uint32_t t = 0; a->rows && b->rows && t < a->tokens && d->position < 0; t++)
                if (a->rows[t] != b->rows[t]) d->position = (long long)(a->first + t);
            if (a->tokens == 1) d->position = (long long)a->first;
            locate(d, r, a, b);
            return;
        }
        d->runs_equal++;
    }
}

/* The recorded flags, unless the command line has units of its own. */
static segue_status use_flags(struct args *args, const struct record *r, segue_error *err)
{
    static const char *const units[] = {"unit", "prefill", "decode", "pipeline", "threads"};
    bool own = false, named = false;
    const char *name;
    json_t *list, *v;
    size_t i;
    segue_status st = SEGUE_OK;
    for (i = 0; i < 4; i++) own = own || args_has(args, units[i]);
    json_object_foreach(json_object_get(r->head, "flags"), name, list)
    {
        bool of_units = false;
        for (i = 0; i < sizeof units / sizeof *units; i++) of_units = of_units || !strcmp(name, units[i]);
        named = named || (of_units && strcmp(name, "threads") != 0);
        if ((of_units && own) || args_has(args, name) || !args_find(args->command, name, strlen(name))) continue;
        json_array_foreach(list, i, v)
        {
            if (!st && json_is_string(v)) st = args_set(args, name, json_string_value(v), err);
        }
    }
    const json_t *first = json_array_get(json_object_get(r->head, "units"), 0);
    if (!st && !own && !named) st = args_set(args, "unit", json_string_value(first), err);
    if (!st && !args_has(args, "model")) st = args_set(args, "model", record_text(r, "model"), err);
    return st;
}

/* The record belongs to these weights. */
static segue_status check_model(const struct record *r, const struct placement *p, const char *path, segue_error *err)
{
    char id[33] = "";
    segue_status st = segue_model_weights_id(p->model, NULL, id, err);
    if (st) return st;
    if (!strcmp(id, record_text(r, "weights_id")) && !strcmp(p->info.shape_id, record_text(r, "shape_id"))) return SEGUE_OK;
    return out_fail(err, SEGUE_EFORMAT,
                    "replay: %.120s: recorded with other weights (%.32s) than %.120s has; pass that model with -m", path,
                    record_text(r, "weights_id"), p->path);
}

/* Compute prompt and answer again. Stops at the first other token, after which everything differs. */
static segue_status compute(const struct record *r, const struct args *args, struct placement *p, struct record *now,
                            segue_error *err)
{
    segue_session *s = NULL;
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    struct record_sampler sampler;
    opts.context = (size_t)args_number(args, "context", 0);
    opts.plan = placement_plan(p);
    opts.sampling = &sampler.sampling;
    opts.adapters = p->adapters;
    opts.adapters_n = p->adapters_n;
    opts.no_store = 1;
    struct record_tokens answer = {out_alloc((r->answer.n + 1) * sizeof *answer.ids), 0};
    segue_status st = record_sampler_read(&sampler, r, p->model, err);
    if (!st) st = segue_session_open(&s, p->engine, &opts, err);
    if (!st) interrupt_watch(s);
    if (!st) st = record_begin(s, err);
    if (!st) st = segue_session_append(s, r->prompt.ids, r->prompt.n, err);
    while (!st && answer.n < r->answer.n) {
        st = segue_session_next(s, &answer.ids[answer.n], err);
        if (st < 0) break;
        bool equal = answer.ids[answer.n] == r->answer.ids[answer.n];
        answer.n++;
        if (!equal) st = SEGUE_END;
    }
    if (!st && !r->answer.n) st = segue_session_prefill(s, 0, NULL, err);
    if (st >= 0) {
        record_of_session(now, s);
        now->answer = answer;
        answer.ids = NULL;
    }
    free(answer.ids);
    if (s) interrupt_unwatch(s);
    segue_session_close(s);
    record_sampler_free(&sampler);
    return st < 0 ? st : SEGUE_OK;
}

/* -1: null with a reason. */
static void put_index(json_t *o, const char *name, long long v)
{
    if (v >= 0)
        json_object_set_new(o, name, json_integer(v));
    else
        out_null(o, name, "nothing differs there, or it is not known");
}

static json_t *result_json(const struct record *r, const struct record *now, const struct placement *p,
                           const struct difference *d)
{
    json_t *o = json_object();
    size_t at = d->run >= 0 ? (size_t)d->run : 0;
    json_object_set_new(o, "equal", json_boolean(d->token < 0 && d->run < 0 && d->edge < 0));
    json_object_set_new(o, "tokens", json_integer((json_int_t)r->answer.n));
    json_object_set_new(o, "runs", json_integer((json_int_t)r->runs_n));
    json_object_set_new(o, "runs_equal", json_integer((json_int_t)d->runs_equal));
    put_index(o, "first_token", d->token);
    put_index(o, "edge", d->edge);
    put_index(o, "run", d->run);
    put_index(o, "run_first", d->run >= 0 ? (long long)r->runs[d->run].first : -1);
    put_index(o, "run_tokens", d->run >= 0 ? (long long)r->runs[d->run].tokens : -1);
    put_index(o, "position", d->position);
    put_index(o, "layer", d->layer);
    if (d->part)
        json_object_set_new(o, "part", json_string(d->part));
    else
        out_null(o, "part", "no value differs");
    if (d->slot)
        json_object_set_new(o, "slot", json_string(d->slot));
    else
        out_null(o, "slot", "no slot of this layer differs");
    uint32_t unit = at < now->runs_n ? now->runs[at].unit : 0, recorded = at < r->runs_n ? r->runs[at].unit : 0;
    json_object_set_new(o, "unit", json_string(p->unit_info[unit].spec));
    json_object_set(o, "recorded_unit", json_array_get(json_object_get(r->head, "units"), recorded));
    return o;
}

/* The differences as lines of text. */
static void print_differences(const struct record *r, const struct difference *d, const char *unit, const char *recorded)
{
    if (d->run >= 0) {
        out_print("values differ first at ");
        const struct record_run *run = &r->runs[d->run];
        if (d->position >= 0)
            out_print("position %lld, ", d->position);
        else /* later layers rounded the difference away */
            out_print("a position of %llu to %llu, ", (unsigned long long)run->first,
                      (unsigned long long)run->first + run->tokens - 1);
        if (d->layer >= 0) out_print("layer %lld, ", d->layer);
        out_print("%s%s%s, on %s (recorded on %s)\n", d->part, d->slot ? ", slot " : "", d->slot ? d->slot : "", unit,
                  recorded);
    }
    if (d->edge >= 0)
        out_print("run %lld has other tokens, slots or layers than recorded, so later states are not compared\n", d->edge);
    if (d->token >= 0)
        out_print("token %lld of the answer differs\n", d->token);
    else
        out_print("all %zu tokens of the answer are equal\n", r->answer.n);
}

/* The model and units that are open. Records of one process mostly share them. */
struct opened {
    struct placement p;
    const struct record *of; /* the record it was opened for; NULL: none is open */
};

/* Opens what a record needs, unless the record before it needed the same. */
static int open_for(struct opened *o, const struct record *r, struct args *args)
{
    const struct record *of = o->of;
    if (of && json_equal(json_object_get(of->head, "flags"), json_object_get(r->head, "flags")) &&
        json_equal(json_object_get(of->head, "units"), json_object_get(r->head, "units")) &&
        !strcmp(record_text(of, "model"), record_text(r, "model")) && !of->hidden_n == !r->hidden_n)
        return EXIT_DONE;
    placement_close(&o->p);
    o->p = (struct placement){0};
    o->of = NULL;
    int code = placement_open(&o->p, args, r->hidden_n ? record_placement_flags(args) : 0);
    if (!code) o->of = r;
    return code;
}

/* Repeats one record. out: its result. */
static int replay_one(struct opened *o, const struct record *r, const struct args *args, json_t **out, struct difference *d)
{
    struct record now = {0};
    struct args copy = args_copy(args);
    segue_error err;
    segue_status st = use_flags(&copy, r, &err);
    int code = st ? out_error(&err, EXIT_BAD_INPUT) : open_for(o, r, &copy);
    if (!code) {
        st = check_model(r, &o->p, args->operands[0], &err);
        if (!st) st = compute(r, &copy, &o->p, &now, &err);
        if (st) code = out_error(&err, EXIT_BAD_INPUT);
    }
    if (!code) {
        compare(d, r, &now);
        *out = result_json(r, &now, &o->p, d);
    }
    record_free(&now);
    args_free(&copy);
    return code;
}

/* number: of the record among several; 0: there is one. */
static void print_result(const struct record *r, const json_t *o, const struct difference *d, size_t number)
{
    const char *unit = json_string_value(json_object_get(o, "unit"));
    if (number) out_print("request %zu: ", number);
    if (json_is_true(json_object_get(o, "equal")))
        out_print("equal: %zu tokens, %zu runs with all states, on %s\n", r->answer.n, r->runs_n, unit);
    else
        print_differences(r, d, unit, json_string_value(json_object_get(o, "recorded_unit")));
}

/* One result as a separate object, several as a list. */
static int put_results(const struct args *args, json_t *list, bool single, bool cut, bool equal)
{
    int code = EXIT_DONE;
    if (args_has(args, "json") && single)
        code = out_json_exit(json_incref(json_array_get(list, 0)));
    else if (args_has(args, "json"))
        code = out_json_exit(json_pack("{s:b,s:b,s:O}", "equal", (int)equal, "cut", (int)cut, "requests", list));
    return code ? code : equal ? EXIT_DONE : EXIT_CHECK;
}

static int replay_all(const struct args *args, const struct record_list *records)
{
    struct opened o = {0};
    size_t wanted = (size_t)args_number(args, "request", 0), first = wanted ? wanted - 1 : 0;
    size_t end = wanted ? wanted : records->n;
    json_t *list = json_array();
    bool equal = true, single = wanted || records->n == 1;
    int code = EXIT_DONE;
    for (size_t i = first; i < end && !code; i++) {
        struct difference d;
        json_t *result = NULL;
        code = replay_one(&o, &records->items[i], args, &result, &d);
        if (code) break;
        equal = equal && json_is_true(json_object_get(result, "equal"));
        if (!single || wanted) json_object_set_new(result, "request", json_integer((json_int_t)i + 1));
        if (!args_has(args, "json")) print_result(&records->items[i], result, &d, single ? 0 : i + 1);
        json_array_append_new(list, result);
    }
    if (!code) code = put_results(args, list, single, records->cut, equal);
    json_decref(list);
    placement_close(&o.p);
    return code;
}

static int run(struct args *args)
{
    struct record_list records = {0};
    segue_error err;
    const char *path = args->operands[0];
    segue_status st = record_read(&records, path, &err);
    if (!st && args_number(args, "request", 1) > (double)records.n)
        st = out_fail(&err, SEGUE_EARG, "replay: %.200s: --request %.0f: the file has %zu records; pass a lower number", path,
                      args_number(args, "request", 1), records.n);
    int code = st ? out_error(&err, st == SEGUE_EARG ? EXIT_UNAVAILABLE : EXIT_BAD_INPUT) : EXIT_DONE;
    if (!code && records.cut) out_note("replay: %s: the last record is incomplete and left out", path);
    if (!code) code = replay_all(args, &records);
    record_list_free(&records);
    return code;
}

static const struct arg_def flag_defs[] = {
    {"context", 'c', ARG_COUNT, 0, "N", "as recorded", 1, 2147483647.0, "context size in tokens"},
    {"deterministic", 0, ARG_SWITCH, ARG_ADVANCED, NULL, "as recorded", 0, 0, "compute as serve --deterministic does"},
    {"request", 0, ARG_COUNT, 0, "N", "all", 1, 1 << 20, "repeat only the N-th record of the file"},
    ARG_END};
static const struct arg_group command_flags = {"Session", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_model, &flags_units, &flags_engine, &flags_output, NULL};
const struct command cmd_replay = {
    .name = "replay",
    .summary = "compute a recorded answer again and compare",
    .operands = "FILE",
    .operands_min = 1,
    .operands_max = 1,
    .groups = groups,
    .example = "segue replay answer.record --unit ref",
    .run = run,
    .about = "Computes the answers of a file that --record of run, chat or serve wrote again, with the recorded flags or on "
             "other units, and compares the tokens, the states after every run and the values between layers, all bit for bit. "
             "It names the first position, layer and unit that differ; exit 6. Units with other kernels round differently, so "
             "between them only the tokens are expected to be equal.",
};
