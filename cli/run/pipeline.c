/* pipeline.c: predefined placements, see pipeline.h. Names and shapes are those of published pipelines. Units are
 * searched by kind in the list of the library, so a new unit of a kind is found without a change here.
 * SPDX-License-Identifier: MIT */
#include "run/pipeline.h"

#include <string.h>

enum { MAX_UNITS = 64 };

/* The table of pipelines. A pipeline without kinds and without NAME:U uses the fastest unit. */
static const struct definition {
    const char *name;
    const char *kinds; /* kinds or specs of the prefill unit, in order of preference; NULL: any unit */
    uint32_t shapes[4];
    bool needs_unit; /* NAME:U */
} definition[] = {
    {"single", NULL, {0}, true},       {"gpu", "cuda mlx:gpu", {0}, false},   {"fixed", NULL, {64, 256, 512}, false},
    {"ane-seq", "ane", {1}, false}, {"ane-batch", "ane", {32}, false},
};
/* The order of the rows of bench --pipelines. */
const char *const pipeline_names[] = {"gpu", "fixed", "ane-seq", "ane-batch", NULL};

/* The first present unit of the kinds in k->kinds, in order of preference; a software implementation counts. */
static segue_status find_unit(const struct definition *k, char *spec, size_t cap, segue_error *err)
{
    segue_unit_info info[MAX_UNITS];
    size_t n = 0;
    const char *why = "this build has no such unit";
    char kinds[64];
    for (size_t i = 0; i < MAX_UNITS; i++) info[i] = SEGUE_INIT(segue_unit_info);
    segue_status st = segue_unit_list(info, MAX_UNITS, &n, err);
    if (st) return st;
    snprintf(kinds, sizeof kinds, "%s", k->kinds);
    for (char *rest = NULL, *kind = strtok_r(kinds, " ", &rest); kind; kind = strtok_r(NULL, " ", &rest))
        for (size_t i = 0; i < n && i < MAX_UNITS; i++) {
            if (strcmp(info[i].kind, kind) != 0 && strcmp(info[i].spec, kind) != 0) continue;
            if (info[i].present) {
                snprintf(spec, cap, "%s", info[i].spec[0] ? info[i].spec : kind);
                return SEGUE_OK;
            }
            if (info[i].why[0]) why = info[i].why;
        }
    return out_fail(err, SEGUE_EUNSUPPORTED,
                    "pipeline: %s: no unit of kind %s is available: %.200s; choose another pipeline", k->name,
                    k->kinds, why);
}

/* The error for an unknown name text[len], with a suggestion. */
static segue_status unknown_pipeline(const char *text, size_t len, segue_error *err)
{
    const char *names[sizeof definition / sizeof *definition];
    char typed[64];
    for (size_t i = 0; i < sizeof definition / sizeof *definition; i++) names[i] = definition[i].name;
    snprintf(typed, sizeof typed, "%.*s", (int)(len < 60 ? len : 60), text);
    const char *suggestion = args_suggest(typed, names, sizeof definition / sizeof *definition);
    return out_fail(err, SEGUE_EARG, "pipeline: %s: no such pipeline; %s%s", typed,
                    suggestion ? "did you mean " : "expected ",
                    suggestion ? suggestion : "single:U, gpu, fixed, ane-seq or ane-batch, optionally with +U");
}

/* Split NAME[:P][+U] into the two unit specs and the shapes. *def is the entry of the table. The first + ends the
 * prefill spec, so a spec cannot contain one. */
static segue_status parse_name(struct pipeline *out, const char *text, const struct definition **def, segue_error *err)
{
    size_t len = strcspn(text, ":+"), i = 0;
    while (i < sizeof definition / sizeof *definition &&
           (strlen(definition[i].name) != len || strncmp(definition[i].name, text, len) != 0))
        i++;
    if (i == sizeof definition / sizeof *definition) return unknown_pipeline(text, len, err);
    const char *plus = strchr(text, '+'), *unit = text[len] == ':' ? text + len + 1 : NULL;
    *out = (struct pipeline){.prefill = ""};
    *def = &definition[i];
    memcpy(out->shapes, definition[i].shapes, sizeof out->shapes);
    size_t unit_len = !unit ? 0 : plus ? (size_t)(plus - unit) : strlen(unit);
    if ((plus && !plus[1]) || (unit && !unit_len) || (definition[i].needs_unit && !unit))
        return out_fail(err, SEGUE_EARG, "pipeline: %.100s: unit missing; expected %s", text,
                        definition[i].needs_unit ? "single:U" : "NAME or NAME+U");
    if (unit_len >= sizeof out->prefill || (plus && strlen(plus) > sizeof out->decode))
        return out_fail(err, SEGUE_EARG, "pipeline: %.60s: unit spec too long; use --prefill and --decode", text);
    if (unit) memcpy(out->prefill, unit, unit_len);
    if (plus) memcpy(out->decode, plus + 1, strlen(plus + 1));
    return SEGUE_OK;
}

/* Used before a long benchmark, so that a misspelt name fails at once. */
segue_status pipeline_check(const char *text, segue_error *err)
{
    struct pipeline ignored;
    const struct definition *def;
    return parse_name(&ignored, text, &def, err);
}

/* Without +U the prefill unit also decodes. */
segue_status pipeline_read(struct pipeline *out, const char *text, segue_error *err)
{
    const struct definition *def;
    segue_status st = parse_name(out, text, &def, err);
    if (!st && !*out->prefill && def->kinds) st = find_unit(def, out->prefill, sizeof out->prefill, err);
    if (!st && !*out->decode) memcpy(out->decode, out->prefill, sizeof out->decode);
    return st;
}
