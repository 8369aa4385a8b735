/* cmd_units.c: `segue units`: compute units of this build, their memory and bandwidth, or why one is unavailable.
 * Every available unit is opened once to measure its bandwidth, about 0.2 s each.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include "commands/unit_limits.h"
#include "term/flags.h"
#include "run/bandwidth.h"
#include "term/out.h"

enum { MAX_UNITS = 32 }; /* more units are not listed */

/* One unit as JSON, with its energy meter. Its bandwidth is measured now, which needs the unit open; if that fails, the bandwidth
 * is null with the reason. */
static json_t *unit_json(const segue_unit_info *u, bool limits)
{
    json_t *o = json_object();
    json_object_set_new(o, "unit", json_string(u->spec));
    json_object_set_new(o, "built", json_boolean(u->built));
    json_object_set_new(o, "available", json_boolean(u->present));
    json_object_set_new(o, "simulated", json_boolean(u->simulated));
    json_object_set_new(o, "reason", json_string(u->why));
    json_object_set_new(o, "features", json_string(u->features));
    if (u->memory_bytes)
        json_object_set_new(o, "memory_bytes", json_integer((json_int_t)u->memory_bytes));
    else
        out_null(o, "memory_bytes", u->present ? "the unit does not report it" : "the unit is not available");
    double gb_s = 0;
    segue_error err;
    segue_unit *unit = NULL;
    if (!u->present)
        out_null(o, "memory_bandwidth_gb_s", "the unit is not available");
    /* Size 0: larger than any cache. */
    else if (segue_unit_open(&unit, u->spec, &err) || bandwidth_measure(unit, 0, &gb_s, &err))
        out_null(o, "memory_bandwidth_gb_s", err.text);
    else
        json_object_set_new(o, "memory_bandwidth_gb_s", out_real(gb_s));
    segue_energy energy = SEGUE_INIT(segue_energy);
    if (!unit)
        out_null(o, "meter", "the unit is not available");
    else if (segue_unit_energy(unit, &energy, &err))
        out_null(o, "meter", err.text);
    else
        json_object_set_new(o, "meter", json_string(energy.meter));
    if (limits) {
        json_t *l = unit ? unit_limits_json(unit, &err) : NULL;
        if (l)
            json_object_set_new(o, "limits", l);
        else
            out_null(o, "limits", unit ? err.text : "the unit is not available");
    }
    segue_unit_close(unit);
    return o;
}

/* One line of text from the JSON object of a unit. */
static void print_line(const json_t *o)
{
    const json_t *gb_s = json_object_get(o, "memory_bandwidth_gb_s"), *memory = json_object_get(o, "memory_bytes");
    const char *reason = json_string_value(json_object_get(o, "reason"));
    out_print("%-28s ", json_string_value(json_object_get(o, "unit")));
    if (!json_is_true(json_object_get(o, "available"))) {
        out_print("not available: %s\n", reason);
        return;
    }
    if (json_is_number(memory)) out_print("%6.1f GB  ", json_number_value(memory) / 1e9);
    if (json_is_number(gb_s)) out_print("%6.1f GB/s  ", json_number_value(gb_s));
    out_print("%s%s\n", json_string_value(json_object_get(o, "features")),
           json_is_true(json_object_get(o, "simulated")) ? "  (software)" : "");
    if (json_object_get(o, "limits")) unit_limits_print(json_object_get(o, "limits"));
}

/* Units of the same kind are listed one by one, for example each GPU. */
static int run(struct args *args)
{
    segue_unit_info *infos = out_alloc(MAX_UNITS * sizeof *infos);
    segue_error err;
    size_t n = 0;
    /* The library fills every entry up to the size that the caller declares. */
    for (size_t i = 0; i < MAX_UNITS; i++) infos[i] = SEGUE_INIT(segue_unit_info);
    segue_status st = segue_unit_list(infos, MAX_UNITS, &n, &err);
    /* SEGUE_ELIMIT: there are more units than fit; the first MAX_UNITS are listed. */
    if (st && st != SEGUE_ELIMIT) {
        free(infos);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    json_t *list = json_array();
    for (size_t i = 0; i < n && i < MAX_UNITS; i++) json_array_append_new(list, unit_json(&infos[i], args_has(args, "limits")));
    free(infos);
    if (args_has(args, "json")) return out_json_exit(list);
    for (size_t i = 0; i < json_array_size(list); i++) print_line(json_array_get(list, i));
    json_decref(list);
    return EXIT_DONE;
}

static const struct arg_def flag_defs[] = {
    {"limits", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0,
     "also list the operations, storages and sizes that each unit runs, and why not"},
    ARG_END};
static const struct arg_group command_flags = {"Units", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_output, NULL};
const struct command cmd_units = {.name = "units",
                                  .summary = "list the compute units and why one is unavailable",
                                  .groups = groups,
                                  .example = "segue units --json",
                                  .run = run,
                                  .about = "Lists all units of this build with the name that --unit, --prefill and --decode "
                                           "accept, the memory, the read bandwidth (measured now) and the features; for "
                                           "a unit that is not available the reason. Options follow the name: in "
                                           "ane:soft,keys=64 each token attends to the last 64 positions only. "
                                           "docs/CLI.md lists all options."};
