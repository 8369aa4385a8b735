/* pipeline.c: see pipeline.h. The names and shapes are those of published pipelines; kinds of units are
 * looked up in the library's list, so a unit that is added serves at once. SPDX-License-Identifier: MIT */
#include "bench/pipeline.h"

#include <string.h>

enum { UNITS = 64 };

static const struct known {
    const char *name;
    const char *kinds; /* that may read, in order of preference; NULL: any real unit */
    uint32_t shapes[4];
    bool wants_unit; /* NAME:U */
} known[] = {
    {"one", NULL, {0}, true},       {"gpu", "cuda mlx", {0}, false},   {"fixed", NULL, {64, 256, 512}, false},
    {"ane-seq", "ane", {1}, false}, {"ane-batch", "ane", {32}, false},
};
const char *const pipeline_names[] = {"gpu", "fixed", "ane-seq", "ane-batch", NULL};

/* The first present unit of a kind in the list; what stands in for hardware serves, as its pipeline was
 * named. */
static segue_status find_kind(const struct known *k, char *spec, size_t cap, segue_error *err)
{
    segue_unit_info info[UNITS];
    size_t n = 0;
    const char *why = "this build has no such unit";
    char kinds[64];
    for (size_t i = 0; i < UNITS; i++) info[i] = SEGUE_INIT(segue_unit_info);
    segue_status st = segue_unit_list(info, UNITS, &n, err);
    if (st) return st;
    snprintf(kinds, sizeof kinds, "%s", k->kinds);
    for (char *rest = NULL, *kind = strtok_r(kinds, " ", &rest); kind; kind = strtok_r(NULL, " ", &rest))
        for (size_t i = 0; i < n && i < UNITS; i++) {
            if (strcmp(info[i].kind, kind) != 0) continue;
            if (info[i].present) {
                snprintf(spec, cap, "%s", info[i].spec[0] ? info[i].spec : kind);
                return SEGUE_OK;
            }
            if (info[i].why[0]) why = info[i].why;
        }
    return out_fail(err, SEGUE_EUNSUPPORTED,
                    "pipeline: %s: no unit of kind %s is here: %.200s; choose another pipeline", k->name,
                    k->kinds, why);
}

static segue_status unknown(const char *text, size_t len, segue_error *err)
{
    const char *names[sizeof known / sizeof *known];
    char typed[64];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) names[i] = known[i].name;
    snprintf(typed, sizeof typed, "%.*s", (int)(len < 60 ? len : 60), text);
    const char *near = args_near(typed, names, sizeof known / sizeof *known);
    return out_fail(err, SEGUE_EARG, "pipeline: %s: no such pipeline; %s%s", typed,
                    near ? "did you mean " : "there are ",
                    near ? near : "one:U, gpu, fixed, ane-seq and ane-batch, each with +U");
}

/* The parts of NAME[:P][+U]. */
static segue_status split(struct pipeline *out, const char *text, const struct known **what, segue_error *err)
{
    size_t len = strcspn(text, ":+"), i = 0;
    while (i < sizeof known / sizeof *known &&
           (strlen(known[i].name) != len || strncmp(known[i].name, text, len) != 0))
        i++;
    if (i == sizeof known / sizeof *known) return unknown(text, len, err);
    const char *plus = strchr(text, '+'), *unit = text[len] == ':' ? text + len + 1 : NULL;
    *out = (struct pipeline){.prefill = ""};
    *what = &known[i];
    memcpy(out->shapes, known[i].shapes, sizeof out->shapes);
    size_t unit_len = !unit ? 0 : plus ? (size_t)(plus - unit) : strlen(unit);
    if ((plus && !plus[1]) || (unit && !unit_len) || (known[i].wants_unit && !unit))
        return out_fail(err, SEGUE_EARG, "pipeline: %.100s: a unit is missing; give %s", text,
                        known[i].wants_unit ? "one:U" : "NAME or NAME+U");
    if (unit_len >= sizeof out->prefill || (plus && strlen(plus) > sizeof out->decode))
        return out_fail(err, SEGUE_EARG, "pipeline: %.60s: a unit's text is too long; shorten it", text);
    if (unit) memcpy(out->prefill, unit, unit_len);
    if (plus) memcpy(out->decode, plus + 1, strlen(plus + 1));
    return SEGUE_OK;
}

segue_status pipeline_check(const char *text, segue_error *err)
{
    struct pipeline ignored;
    const struct known *what;
    return split(&ignored, text, &what, err);
}

segue_status pipeline_read(struct pipeline *out, const char *text, segue_error *err)
{
    const struct known *what;
    segue_status st = split(out, text, &what, err);
    if (!st && !*out->prefill && what->kinds) st = find_kind(what, out->prefill, sizeof out->prefill, err);
    if (!st && !*out->decode) memcpy(out->decode, out->prefill, sizeof out->decode);
    return st;
}
