/* meter_json.c: the JSON object `energy`, see meter.h.
 * SPDX-License-Identifier: MIT */
#include "meter/meter.h"

/* Joules of a channel in a phase, without what the idle device would have used. */
static double joules_of(const struct energy_use *use, size_t channel, const struct energy_use *idle)
{
    double watts = idle && idle->seconds > 0 ? idle->joules[channel] / idle->seconds : 0;
    return use->joules[channel] - watts * use->seconds;
}

/* Set NAME_j, NAME_j_per_token and NAME_samples of a phase. */
static void put_phase(json_t *o, const char *name, const struct energy_series *s, const struct energy_use *idle,
                      const struct meter_phase *phase, bool totals)
{
    char key[48], buffer[160];
    const char *why = s->counted[0] ? energy_refusal(&phase->use, buffer, sizeof buffer) : "the meter counts rails only";
    double joules = joules_of(&phase->use, 0, idle);
    snprintf(key, sizeof key, "%s_j", name);
    if (totals && why) out_null(o, key, why);
    if (totals && !why) json_object_set_new(o, key, out_real(joules));
    snprintf(key, sizeof key, "%s_j_per_token", name);
    if (why || !phase->tokens)
        out_null(o, key, why ? why : "no tokens were computed in this phase");
    else
        json_object_set_new(o, key, out_real(joules / (double)phase->tokens));
    snprintf(key, sizeof key, "%s_samples", name);
    json_object_set_new(o, key, json_integer((json_int_t)phase->use.samples));
}

/* The list `rails`: {name, prefill_w, decode_w, prefill_j, decode_j}; a rail may be contained in the whole device or not. */
static json_t *rails_json(const struct energy_series *s, const struct energy_use *idle, const struct energy_use *uses[2])
{
    static const char *const names[2][2] = {{"prefill_j", "prefill_w"}, {"decode_j", "decode_w"}};
    json_t *list = json_array();
    char buffer[160];
    for (size_t i = 1; i < s->channels; i++) {
        if (!s->counted[i]) continue;
        json_t *o = json_pack("{s:s}", "name", s->names[i]);
        for (int k = 0; k < 2; k++) {
            const char *why = energy_refusal(uses[k], buffer, sizeof buffer);
            double joules = joules_of(uses[k], i, idle);
            for (int q = 0; q < 2; q++)
                if (why)
                    out_null(o, names[k][q], why);
                else
                    json_object_set_new(o, names[k][q], out_real(q ? joules / uses[k]->seconds : joules));
        }
        json_array_append_new(list, o);
    }
    return list;
}

json_t *meter_series_json(const struct energy_series *s, const char *name, const struct energy_use *idle,
                          const struct meter_phase *prefill, const struct meter_phase *decode, bool totals)
{
    json_t *o = json_object();
    const struct energy_use *uses[2] = {&prefill->use, &decode->use};
    double joules = 0, seconds = 0;
    char buffer[160];
    put_phase(o, "prefill", s, idle, prefill, totals);
    put_phase(o, "decode", s, idle, decode, totals);
    for (int k = 0; k < 2; k++) {
        if (!s->counted[0] || energy_refusal(uses[k], buffer, sizeof buffer)) continue;
        joules += joules_of(uses[k], 0, idle);
        seconds += uses[k]->seconds;
    }
    if (seconds > 0)
        json_object_set_new(o, "power_w", out_real(joules / seconds));
    else
        out_null(o, "power_w", "no phase was measured");
    if (idle && idle->seconds > 0)
        json_object_set_new(o, "idle_w", out_real(idle->joules[0] / idle->seconds));
    else
        out_null(o, "idle_w", "not requested; use --meter-idle");
    json_object_set_new(o, "rails", rails_json(s, idle, uses));
    json_object_set_new(o, "sources", json_pack("[s]", s->names[0]));
    json_object_set_new(o, "samples", json_integer((json_int_t)(uses[0]->samples + uses[1]->samples)));
    json_object_set_new(o, "meter", json_string(name));
    return o;
}
