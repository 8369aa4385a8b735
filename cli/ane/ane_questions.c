/* ane_questions.c: see ane_questions.h. SPDX-License-Identifier: MIT */
#include "ane/ane_questions.h"

#include <string.h>

#include "ane/child.h"
#include "term/flags.h"
#include "unit/ane/aneunit.h"
#include "unit/ane/tools/probe.h"
#include "unit/spec.h"

/* Time limit of one test. */
enum { TIMEOUT_MS = 150000 };

/* What a child is asked: 0 describes the device, n runs test n - 1. */
struct question {
    const char *spec;
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

/* A spec; api: of the system, unused with the software NPU. */
struct engine {
    struct sg_unit_spec spec;
    bool software;
    struct sg_apple_api api;
};

static segue_status find_engine(const char *text, struct engine *out, segue_error *err)
{
    *out = (struct engine){.software = false};
    SG_TRY(sg_spec_parse(&out->spec, text, err));
    if (strcmp(out->spec.kind, "ane") != 0)
        return out_fail(err, SEGUE_EARG, "flag --unit: %s: not a Neural Engine; use ane or ane:soft", text);
    out->software = sg_spec_value(&out->spec, "") != NULL;
    return out->software ? SEGUE_OK : sg_apple_api_here(&out->api, err);
}

/* Opens the software NPU, so that its options are checked. The real engine is not opened: on a system with other methods that
 * fails, and the description shows why. */
static json_t *describe(const struct engine *e)
{
    static const char *const none = "the software NPU has no chip";
    static const char *const of_chip[] = {"architecture", "engines", "cores", "methods"};
    const char *named = sg_spec_value(&e->spec, "profile");
    struct sg_ane_profile profile;
    char architecture[32] = "", generation[4];
    uint32_t engines = 0, cores = 0;
    struct sg_unit *u = NULL;
    segue_error err;
    if (e->software && ane_open_on(&u, &e->spec, NULL, &err)) return out_error_json(&err, EXIT_UNAVAILABLE);
    if (u) u->base.ops->close(u);
    if (!e->software) sg_apple_describe(&e->api, architecture, &engines, &cores);
    snprintf(generation, sizeof generation, "%.3s", architecture);
    if (sg_ane_profile_named(&profile, named ? named : generation, &err) && sg_ane_profile_named(&profile, "strict", &err))
        return out_error_json(&err, EXIT_UNAVAILABLE);
    json_t *o = json_pack("{s:s,s:b,s:s,s:s}", "unit", e->spec.text, "software", (int)e->software, "profile", profile.name,
                          "port_order", sg_ane_port_order(&profile));
    for (size_t i = 0; e->software && i < sizeof of_chip / sizeof *of_chip; i++) out_null(o, of_chip[i], none);
    if (e->software) return o;
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
    if (ane_open_on(&u, &e->spec, e->software ? NULL : &e->api, &err)) return out_error_json(&err, EXIT_UNAVAILABLE);
    segue_status st = sg_probe_run(u->device, i, &a, &err);
    u->base.ops->close(u);
    if (st) return out_error_json(&err, EXIT_UNAVAILABLE);
    json_t *o = json_pack("{s:s,s:s,s:b,s:s}", "name", sg_probe_name(i), "question", sg_probe_question(i), "settled",
                          (int)a.settled, "verdict", a.verdict);
    /* Some tests measure a value, such as dispatch_us. */
    if (a.value_name) json_object_set_new(o, a.value_name, out_real(a.value));
    return o;
}

/* In a child. Errors become an error object. */
static json_t *answer_of(const void *context)
{
    const struct question *q = context;
    struct engine e;
    segue_error err;
    if (find_engine(q->spec, &e, &err)) return out_error_json(&err, EXIT_UNAVAILABLE);
    return q->number ? run_test(&e, q->number - 1) : describe(&e);
}

json_t *ane_device_json(const char *spec, segue_error *err)
{
    const struct question q = {spec, 0};
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
        const struct question q = {spec, i + 1};
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
