/* meter.c: see meter.h. A unit that counts its own energy tells it through the library; what the other parts of the machine
 * use is not in these figures. SPDX-License-Identifier: MIT */
#include "run/meter.h"

#include <string.h>

static bool read_unit_joules(const struct placement *p, size_t i, double *joules)
{
    for (size_t k = 0; k < i; k++)
        if (p->units[k] == p->units[i]) return false; /* counted already */
    segue_unit_info info = SEGUE_INIT(segue_unit_info);
    info.count_joules = 1;
    if (!p->units[i] || segue_unit_info_get(p->units[i], &info, NULL)) return false;
    *joules = info.joules;
    return info.joules >= 0;
}

int meter_open(struct meter *m, const struct args *args, const struct placement *p)
{
    const char *name = args_text(args, "meter");
    double joules;
    segue_error err;
    *m = (struct meter){.placement = p};
    if (!name || !strcmp(name, "none")) return EXIT_DONE;
    if (strcmp(name, "nvml") != 0) {
        out_fail(&err, SEGUE_EUNSUPPORTED, "option refused: --meter %.40s: not in this build; it has nvml and none", name);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    for (size_t i = 0; i < p->units_n && !m->name; i++)
        if (read_unit_joules(p, i, &joules)) m->name = "nvml";
    if (m->name) return EXIT_DONE;
    out_fail(&err, SEGUE_EUNSUPPORTED,
             "option refused: --meter nvml: no unit of this run has it, or NVML does not tell; leave it out");
    return out_error(&err, EXIT_UNAVAILABLE);
}

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

static void put_or_null(json_t *o, const char *name, double v, const char *why)
{
    if (v >= 0)
        json_object_set_new(o, name, out_real(v));
    else
        out_null(o, name, why);
}

json_t *meter_json(const struct meter *m, double prefill_j, double decode_j, double watts)
{
    json_t *o = json_object();
    bool on = m && m->name;
    const char *why = on ? "this phase was not measured" : "not asked for: --meter nvml";
    put_or_null(o, "prefill_j", on ? prefill_j : -1, why);
    put_or_null(o, "decode_j", on ? decode_j : -1, why);
    put_or_null(o, "package_w", on ? watts : -1, why);
    if (on) {
        json_object_set_new(o, "rails", json_pack("[s]", "GPU"));
        json_object_set_new(o, "samples", json_integer((json_int_t)m->readings));
        json_object_set_new(o, "meter", json_string(m->name));
    } else {
        out_null(o, "rails", why);
        out_null(o, "samples", why);
        out_null(o, "meter", why);
    }
    return o;
}
