/* meter.c: energy of a run, see meter.h. The library reports the energy counter of a unit in its unit info. Only units
 * are counted: the energy of the CPU, the memory and the fans is not included.
 * SPDX-License-Identifier: MIT */
#include "run/meter.h"

#include <string.h>

/* Read the energy counter of units[i]. False if the unit has none, or if an earlier index has the same unit, which
 * would be counted twice. */
static bool read_unit_joules(const struct placement *p, size_t i, double *joules)
{
    for (size_t k = 0; k < i; k++)
        if (p->units[k] == p->units[i]) return false; /* counted with the earlier index */
    segue_error ignored;
    return p->units[i] && segue_unit_joules(p->units[i], joules, &ignored) == SEGUE_OK;
}

/* One unit with an energy counter is enough. */
int meter_open(struct meter *m, const struct args *args, const struct placement *p)
{
    const char *name = args_text(args, "meter");
    double joules;
    segue_error err;
    *m = (struct meter){.placement = p};
    if (!name || !strcmp(name, "none")) return EXIT_DONE;
    if (strcmp(name, "nvml") != 0) {
        out_fail(&err, SEGUE_EUNSUPPORTED, "flag --meter: %.40s: not in this build; expected nvml or none", name);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    for (size_t i = 0; i < p->units_n && !m->name; i++)
        if (read_unit_joules(p, i, &joules)) m->name = "nvml";
    if (m->name) return EXIT_DONE;
    out_fail(&err, SEGUE_EUNSUPPORTED,
             "flag --meter: nvml: no unit of this run reports its energy; remove the flag");
    return out_error(&err, EXIT_UNAVAILABLE);
}

/* The sum over all units that have a counter. Only differences between two readings are meaningful. */
double meter_read(struct meter *m)
{
    double sum = 0, joules;
    size_t counted = 0;
    if (!m->name) return -1;
    for (size_t i = 0; i < m->placement->units_n; i++)
        if (read_unit_joules(m->placement, i, &joules)) {
            sum += joules;
            counted++;
        }
    m->readings += counted != 0;
    return counted ? sum : -1;
}

/* A negative value means not measured. */
static void put_or_null(json_t *o, const char *name, double v, const char *reason)
{
    if (v >= 0)
        json_object_set_new(o, name, out_real(v));
    else
        out_null(o, name, reason);
}

/* `sources` names the hardware that was measured; it is always the GPU with NVML. */
json_t *meter_json(const struct meter *m, double prefill_j, double decode_j, double watts, bool per_token)
{
    json_t *o = json_object();
    bool on = m && m->name;
    const char *reason = on ? "this phase was not measured" : "not requested; use --meter nvml";
    put_or_null(o, per_token ? "prefill_j_per_token" : "prefill_j", on ? prefill_j : -1, reason);
    put_or_null(o, per_token ? "decode_j_per_token" : "decode_j", on ? decode_j : -1, reason);
    put_or_null(o, "power_w", on ? watts : -1, reason);
    if (on) {
        json_object_set_new(o, "sources", json_pack("[s]", "GPU"));
        json_object_set_new(o, "samples", json_integer((json_int_t)m->readings));
        json_object_set_new(o, "meter", json_string(m->name));
    } else {
        out_null(o, "sources", reason);
        out_null(o, "samples", reason);
        out_null(o, "meter", reason);
    }
    return o;
}
