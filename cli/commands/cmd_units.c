/* cmd_units.c: `segue units`: compute units of this build, their memory and bandwidth, or why one is unavailable.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include "term/flags.h"
#include "run/bandwidth.h"
#include "term/out.h"

enum { MAX_UNITS = 32 };

/* Measuring needs the unit open; one that cannot be opened says why in the place of the figure. */
static json_t *unit_json(const segue_unit_info *u)
{
    json_t *o = json_object();
    json_object_set_new(o, "unit", json_string(u->spec));
    json_object_set_new(o, "built", json_boolean(u->built));
    json_object_set_new(o, "present", json_boolean(u->present));
    json_object_set_new(o, "simulated", json_boolean(u->simulated));
    json_object_set_new(o, "why", json_string(u->why));
    json_object_set_new(o, "features", json_string(u->features));
    if (u->memory_bytes)
        json_object_set_new(o, "memory_bytes", json_integer((json_int_t)u->memory_bytes));
    else
        out_null(o, "memory_bytes", u->present ? "the unit does not say" : "the unit is not here");
    double gb_s = 0;
    segue_error err;
    segue_unit *unit = NULL;
    if (!u->present)
        out_null(o, "stream_gb_s", "the unit is not here");
    else if (segue_unit_open(&unit, u->spec, &err) || bandwidth_measure(unit, 0, &gb_s, &err))
        out_null(o, "stream_gb_s", err.text);
    else
        json_object_set_new(o, "stream_gb_s", out_real(gb_s));
    segue_unit_close(unit);
    return o;
}

static void print_line(const json_t *o)
{
    const json_t *gb_s = json_object_get(o, "stream_gb_s"), *memory = json_object_get(o, "memory_bytes");
    const char *why = json_string_value(json_object_get(o, "why"));
    printf("%-28s ", json_string_value(json_object_get(o, "unit")));
    if (!json_is_true(json_object_get(o, "present"))) {
        printf("absent: %s\n", why);
        return;
    }
    if (json_is_number(memory)) printf("%6.1f GB  ", json_number_value(memory) / 1e9);
    if (json_is_number(gb_s)) printf("%6.1f GB/s  ", json_number_value(gb_s));
    printf("%s%s\n", json_string_value(json_object_get(o, "features")),
           json_is_true(json_object_get(o, "simulated")) ? "  (software)" : "");
}

static int run(struct args *args)
{
    segue_unit_info *infos = out_alloc(MAX_UNITS * sizeof *infos);
    segue_error err;
    size_t n = 0;
    for (size_t i = 0; i < MAX_UNITS; i++) infos[i] = SEGUE_INIT(segue_unit_info);
    segue_status st = segue_unit_list(infos, MAX_UNITS, &n, &err);
    if (st && st != SEGUE_ELIMIT) {
        free(infos);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    json_t *list = json_array();
    for (size_t i = 0; i < n && i < MAX_UNITS; i++) json_array_append_new(list, unit_json(&infos[i]));
    free(infos);
    if (args_has(args, "json")) return out_json_exit(list);
    for (size_t i = 0; i < json_array_size(list); i++) print_line(json_array_get(list, i));
    json_decref(list);
    return EXIT_DONE;
}

static const struct arg_group *const groups[] = {&flags_output, NULL};
const struct command cmd_units = {.name = "units",
                                  .summary = "list the compute units and why one is unavailable",
                                  .groups = groups,
                                  .example = "segue units --json",
                                  .run = run,
                                  .about = "Lists every unit that this build knows: what --unit, --prefill "
                                           "and --decode take, the memory it may use, the "
                                           "bytes per second that reading memory reaches with its own means "
                                           "(measured now), and its features; or why it "
                                           "is absent. Options of a unit follow its name: "
                                           "ane:soft,keys=64 is a neural engine whose rows see no more "
                                           "than the last 64 (docs/ANE.md); docs/INTERFACE.md has them all."};
