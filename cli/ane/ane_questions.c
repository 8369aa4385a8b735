/* ane_questions.c: see ane_questions.h. SPDX-License-Identifier: MIT */
#include "ane/ane_questions.h"

#include <string.h>

#include "ane/child.h"
#include "term/flags.h"
#include "unit/ane/aneunit.h"
#include "unit/ane/tools/probe.h"
#include "unit/ane/tools/ruletrial.h"
#include "unit/spec.h"

/* Time limit of one test. */
enum { TIMEOUT_MS = 150000 };

/* What a child is asked: to describe the device, or to run test or rule trial `number`. */
struct question {
    const char *spec;
    enum { QUESTION_DEVICE, QUESTION_TEST, QUESTION_TRIAL } what;
    size_t number;
};

const char *ane_spec(const struct args *args)
{
    const char *unit = args_text(args, "unit");
    return unit ? unit : "ane";
}

/* The methods of the private framework that segue uses: expected and found type encodings. */
static json_t *methods_json(const struct sg_apple_api *api)
{
    struct sg_apple_method m;
    json_t *list = json_array();
    for (size_t i = 0; sg_apple_method_at(api, i, &m); i++) {
        json_t *o = json_pack("{s:s,s:s,s:s,s:b}", "class", m.class, "selector", m.selector, "expected",
                              m.expected, "equal", m.equal);
        if (m.found)
            json_object_set_new(o, "found", json_string(m.found));
        else
            out_null(o, "found", "the class or method does not exist on this system");
        json_array_append_new(list, o);
    }
    return list;
}

/* A spec; mac: the engine is reached through api, the private interface; else through the open Linux driver, or software. */
struct engine {
    struct sg_unit_spec spec;
    bool software, mac;
    struct sg_apple_api api;
};

static segue_status find_engine(const char *text, struct engine *out, segue_error *err)
{
    *out = (struct engine){.software = false};
    SG_TRY(sg_spec_parse(&out->spec, text, err));
    if (strcmp(out->spec.kind, "ane") != 0)
        return out_fail(err, SEGUE_EARG, "flag --unit: %s: not a Neural Engine; use ane or ane:soft", text);
    const char *word = sg_spec_value(&out->spec, "");
    out->mac = !word;
    out->software = word && strcmp(word, "linux") != 0;
    return out->mac ? sg_apple_api_here(&out->api, err) : SEGUE_OK;
}

/* Opens the software NPU or the Linux driver, so that the options are checked. The engine of a Mac is not opened: on a system
 * with other methods that fails, and the description shows why. */
static json_t *describe(const struct engine *e)
{
    const char *none = e->software ? "the software NPU has no chip" : "the Linux driver does not tell it";
    static const char *const of_chip[] = {"architecture", "engines", "cores", "methods"};
    const char *named = sg_spec_value(&e->spec, "profile");
    struct sg_ane_profile profile;
    char architecture[32] = "", generation[4];
    uint32_t engines = 0, cores = 0;
    struct sg_unit *u = NULL;
    segue_error err;
    if (!e->mac && ane_open_on(&u, &e->spec, NULL, &err)) return out_error_json(&err, EXIT_UNAVAILABLE);
    if (u) u->base.ops->close(u);
    if (e->mac) sg_apple_describe(&e->api, architecture, &engines, &cores);
    snprintf(generation, sizeof generation, "%.3s", architecture);
    if (sg_ane_profile_named(&profile, named ? named : generation, &err) && sg_ane_profile_named(&profile, "strict", &err))
        return out_error_json(&err, EXIT_UNAVAILABLE);
    json_t *o = json_pack("{s:s,s:b,s:s,s:s}", "unit", e->spec.text, "software", (int)e->software, "profile", profile.name,
                          "port_order", sg_ane_port_order(&profile));
    for (size_t i = 0; !e->mac && i < sizeof of_chip / sizeof *of_chip; i++) out_null(o, of_chip[i], none);
    if (!e->mac) return o;
    json_object_set_new(o, "architecture", json_string(architecture));
    json_object_set_new(o, "engines", json_integer(engines));
    json_object_set_new(o, "cores", json_integer(cores));
    json_object_set_new(o, "methods", methods_json(&e->api));
    return o;
}

/* Test i on the engine, which is opened for it. */
static json_t *run_test(const struct engine *e, size_t i)
{
    struct sg_probe_answer a;
    struct sg_unit *u;
    segue_error err;
    if (ane_open_on(&u, &e->spec, e->mac ? &e->api : NULL, &err)) return out_error_json(&err, EXIT_UNAVAILABLE);
    segue_status st = sg_probe_run(u->device, i, &a, &err);
    u->base.ops->close(u);
    if (st) return out_error_json(&err, EXIT_UNAVAILABLE);
    json_t *o = json_pack("{s:s,s:s,s:b,s:s}", "name", sg_probe_name(i), "question", sg_probe_question(i), "settled",
                          (int)a.settled, "verdict", a.verdict);
    /* Some tests measure a value, such as dispatch_us. */
    if (a.value_name) json_object_set_new(o, a.value_name, out_real(a.value));
    return o;
}

static json_t *side_json(const struct sg_trial_side *s)
{
    json_t *o = json_pack("{s:s}", "engine", sg_trial_outcome_name(s->outcome));
    if (s->rule)
        json_object_set_new(o, "refused_by", json_integer(s->rule));
    else
        out_null(o, "refused_by", "the profile accepts this program");
    if (s->text[0])
        json_object_set_new(o, "text", out_string(s->text, strlen(s->text)));
    else
        out_null(o, "text", "the engine gave no message");
    return o;
}

/* Rule trial i on the engine, which is opened for it, against the profile that the unit follows. */
static json_t *run_trial(const struct engine *e, size_t i)
{
    struct sg_trial_answer a;
    struct sg_unit *u;
    segue_error err;
    if (ane_open_on(&u, &e->spec, e->mac ? &e->api : NULL, &err)) return out_error_json(&err, EXIT_UNAVAILABLE);
    segue_status st = sg_trial_run(u->device, &u->profile, i, &a, &err);
    u->base.ops->close(u);
    if (st) return out_error_json(&err, EXIT_UNAVAILABLE);
    return json_pack("{s:i,s:s,s:o,s:o,s:b}", "rule", (int)sg_trial_rule(i), "what", sg_trial_what(i), "within",
                     side_json(&a.within), "beyond", side_json(&a.beyond), "agrees", (int)a.agrees);
}

/* In a child. Errors become an error object. */
static json_t *answer_of(const void *context)
{
    const struct question *q = context;
    struct engine e;
    segue_error err;
    if (find_engine(q->spec, &e, &err)) return out_error_json(&err, EXIT_UNAVAILABLE);
    if (q->what == QUESTION_DEVICE) return describe(&e);
    return q->what == QUESTION_TEST ? run_test(&e, q->number) : run_trial(&e, q->number);
}

json_t *ane_device_json(const char *spec, segue_error *err)
{
    const struct question q = {spec, QUESTION_DEVICE, 0};
    json_t *o = child_json(answer_of, &q, TIMEOUT_MS), *error = o ? json_object_get(o, "error") : NULL;
    if (o && !error) return o;
    const char *text = error ? json_string_value(json_object_get(error, "text"))
                             : "the process that opens the Neural Engine died; see docs/ANE.md";
    int argument = error && json_integer_value(json_object_get(error, "code")) == EXIT_USAGE;
    out_fail(err, argument ? SEGUE_EARG : SEGUE_EUNIT, "%s", text ? text : "");
    json_decref(o);
    return NULL;
}

/* A failed test does not stop the others. */
json_t *ane_answers_json(const char *spec)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sg_probe_count(); i++) {
        const struct question q = {spec, QUESTION_TEST, i};
        json_t *o = child_json(answer_of, &q, TIMEOUT_MS);
        const char *error = json_string_value(json_object_get(json_object_get(o, "error"), "text"));
        if (!o || error) {
            json_t *failed = json_pack("{s:s,s:s,s:b,s:s}", "name", sg_probe_name(i), "question", sg_probe_question(i), "settled",
                                       0, "verdict", error ? error : "the process died or exceeded the time limit");
            json_decref(o);
            o = failed;
        }
        out_note("%s: %s", sg_probe_name(i), json_string_value(json_object_get(o, "verdict")));
        json_array_append_new(list, o);
    }
    return list;
}

/* A trial that ends its process or hangs has an answer without sides. */
json_t *ane_trials_json(const char *spec)
{
    json_t *list = json_array();
    size_t agree = 0;
    for (size_t i = 0; i < sg_trial_count(); i++) {
        const struct question q = {spec, QUESTION_TRIAL, i};
        json_t *o = child_json(answer_of, &q, TIMEOUT_MS);
        if (!o || json_object_get(o, "error")) {
            const char *error = json_string_value(json_object_get(json_object_get(o, "error"), "text"));
            json_t *failed = json_pack("{s:i,s:s,s:s,s:b}", "rule", (int)sg_trial_rule(i), "what", sg_trial_what(i), "error",
                                       error ? error : "the process died or exceeded the time limit", "agrees", 0);
            json_decref(o);
            o = failed;
        }
        agree += json_is_true(json_object_get(o, "agrees"));
        json_array_append_new(list, o);
    }
    out_note("rules: %zu of %zu trials agree with the profile", agree, sg_trial_count());
    return list;
}

int ane_report_exit(const struct args *args, json_t *report)
{
    segue_error err;
    const char *path = args_text(args, "output");
    if (path && json_dump_file(report, path, JSON_INDENT(2))) {
        json_decref(report);
        out_fail_errno(&err, "writing the report", path, "check the disk");
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    if (args_has(args, "json")) return out_json_exit(report);
    json_decref(report);
    return EXIT_DONE;
}
