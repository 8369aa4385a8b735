/* mil_check.c: see mil_check.h.
 * SPDX-License-Identifier: MIT */
#include "ane/mil_check.h"

#include <stdlib.h>
#include <string.h>
#include "term/out.h"
#include "unit/ane/rules/rules.h"

/* One violation or advice as JSON. Line and column start at 1; constraint 0 is a syntax or type error. */
static json_t *fault_json(const char *file, const struct sg_mil_fault *f)
{
    json_t *o = json_object();
    json_object_set_new(o, "file", out_string(file, strlen(file)));
    json_object_set_new(o, "line", json_integer(f->line));
    json_object_set_new(o, "column", json_integer(f->column));
    json_object_set_new(o, "op", out_string(f->op, strlen(f->op)));
    json_object_set_new(o, "constraint", json_integer(f->constraint));
    json_object_set_new(o, "text", out_string(f->text, strlen(f->text)));
    return o;
}

/* What a rule is checked on. */
static const char *checked_on(char where)
{
    return where == 't' ? "text" : where == 'b' ? "blobs" : where == 's' ? "surfaces" : where == 'r' ? "values" : "process";
}

/* A rule of the table as JSON. */
static json_t *rule_json(const struct sg_ane_rule *r)
{
    json_t *o = json_object(), *chips = json_array(), *sources = json_array();
    char text[64], *rest = NULL;
    snprintf(text, sizeof text, "%s", r->sources);
    for (uint32_t i = 0; i < 5; i++)
        if (r->chips >> i & 1) json_array_append_new(chips, json_string(sg_ane_chip_name(i)));
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        json_array_append_new(sources, json_string(word));
    json_object_set_new(o, "number", json_integer(r->number));
    json_object_set_new(o, "text", json_string(r->text));
    json_object_set_new(o, "engine", json_string(sg_ane_symptom_text(r->symptom)));
    json_object_set_new(o, "checked", json_string(checked_on(r->where)));
    json_object_set_new(o, "generations", chips);
    json_object_set_new(o, "sources", sources);
    return o;
}

json_t *mil_rules_json(const json_t *faults)
{
    json_t *list = json_array(), *fault;
    for (size_t i = 0, k; i < sg_ane_rule_count(); i++) {
        const struct sg_ane_rule *r = sg_ane_rule_at(i);
        int found = !faults;
        json_array_foreach(faults, k, fault)
            found |= json_integer_value(json_object_get(fault, "constraint")) == (json_int_t)r->number;
        if (found) json_array_append_new(list, rule_json(r));
    }
    return list;
}

int mil_list_rules(const struct args *args)
{
    struct out_text lines = {0};
    segue_error err;
    if (args_has(args, "json")) {
        json_t *o = json_object();
        json_object_set_new(o, "rules", mil_rules_json(NULL));
        return out_json_exit(o);
    }
    for (size_t i = 0; i < sg_ane_rule_count(); i++) {
        const struct sg_ane_rule *r = sg_ane_rule_at(i);
        out_addf(&lines, "%2u ", r->number);
        for (uint32_t k = 0; k < 5; k++) out_addf(&lines, "%s ", r->chips >> k & 1 ? sg_ane_chip_name(k) : " - ");
        out_addf(&lines, " %s (otherwise the engine %s; %s)\n", r->text, sg_ane_symptom_text(r->symptom), r->sources);
    }
    segue_status st = out_write(lines.data, lines.len, &err);
    free(lines.data);
    return st ? out_error(&err, EXIT_UNAVAILABLE) : EXIT_DONE;
}

/* One violation or advice as a line that editors can parse. */
static void add_fault_line(struct out_text *lines, const char *file, const struct sg_mil_fault *f)
{
    out_addf(lines, "%s:%u:%u: %sconstraint %u (op %s): %s\n", file, f->line, f->column,
             f->advice ? "advice: " : "", f->constraint, f->op[0] ? f->op : "-", f->text);
}

/* Check all programs of a folder under the rules of the profile. Appends to `lines`, `violations` and
 * `advice`; returns the number of violations. */
static uint64_t check_texts(const struct sg_mil_folder *folder, const struct sg_ane_profile *profile,
                            struct out_text *lines, json_t *violations, json_t *advice)
{
    uint64_t refusals = 0;
    for (uint32_t i = 0; i < folder->n; i++) {
        struct sg_mil_faults faults = {0};
        const char *path = folder->texts[i].path;
        sg_mil_text_check(&folder->texts[i], profile, &faults);
        for (uint32_t k = 0; k < faults.n; k++) {
            add_fault_line(lines, path, &faults.list[k]);
            json_array_append_new(faults.list[k].advice ? advice : violations,
                                  fault_json(path, &faults.list[k]));
        }
        /* The checker stores a limited number of faults per file and counts the rest. */
        if (faults.dropped) out_addf(lines, "%s: %u more\n", path, faults.dropped);
        refusals += faults.refusals;
        sg_mil_faults_free(&faults);
    }
    return refusals;
}

int mil_check_folder(const struct args *args, const struct sg_mil_folder *folder, const struct sg_ane_profile *profile)
{
    struct out_text lines = {0};
    segue_error err;
    json_t *violations = json_array(), *advice = json_array();
    uint64_t refusals = check_texts(folder, profile, &lines, violations, advice);
    /* Advice does not change the exit code. */
    int code = refusals ? EXIT_CHECK : EXIT_DONE;
    if (args_has(args, "json")) {
        json_t *o = json_object();
        json_object_set_new(o, "profile", json_string(profile->name));
        json_object_set_new(o, "programs", json_integer(folder->n));
        json_object_set(o, "violations", violations);
        json_object_set(o, "advice", advice);
        json_object_set_new(o, "rules", mil_rules_json(violations));
        json_object_set_new(o, "port_order", json_string(sg_ane_port_order(profile)));
        int printed = out_json_exit(o);
        if (printed) code = printed;
    } else if (lines.len && out_write(lines.data, lines.len, &err))
        code = out_error(&err, EXIT_UNAVAILABLE);
    else if (!refusals)
        out_note("mil check: %u program%s, no violation under profile %s", folder->n, folder->n == 1 ? "" : "s",
                 profile->name);
    json_decref(violations);
    json_decref(advice);
    free(lines.data);
    return code;
}
