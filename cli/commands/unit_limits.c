/* unit_limits.c: see unit_limits.h. Includes an internal header of the library, because the limits are no part of its public
 * interface (exception in tests/api/layers.sh).
 * SPDX-License-Identifier: MIT */
#include "commands/unit_limits.h"

#include <stdlib.h>
#include <string.h>
#include "engine/limits/limits.h"

static json_t *limit_json(const struct sg_limit *l)
{
    json_t *o = json_object();
    json_object_set_new(o, "name", json_string(l->name));
    json_object_set_new(o, "can", json_boolean(l->can));
    if (!strcmp(l->what, "shape")) json_object_set_new(o, "largest", json_integer((json_int_t)l->largest));
    if (l->why[0])
        json_object_set_new(o, "why", out_string(l->why, strlen(l->why)));
    else
        out_null(o, "why", "it runs");
    return o;
}

/* The storages that states of the unit may have K and V in. */
static json_t *kv_json(uint32_t kv)
{
    json_t *list = json_pack("[s]", "f16");
    if (kv == SG_KV_F16_ONLY) return list;
    json_array_append_new(list, json_string("f32"));
    json_array_append_new(list, json_string("bf16"));
    if (kv == SG_KV_ANY) json_array_append_new(list, json_string("q8"));
    return list;
}

json_t *unit_limits_json(segue_unit *unit, segue_error *why)
{
    static const char *const kinds[] = {"operation", "storage", "shape"}, *const names[] = {"operations", "storages", "shapes"};
    struct sg_limit *list = out_alloc(SG_LIMITS_MAX * sizeof *list);
    uint32_t n = 0;
    json_t *o = NULL;
    if (sg_unit_limits(unit, list, &n, why) == SEGUE_OK) {
        o = json_object();
        for (int k = 0; k < 3; k++) {
            json_t *part = json_array();
            for (uint32_t i = 0; i < n; i++)
                if (!strcmp(list[i].what, kinds[k])) json_array_append_new(part, limit_json(&list[i]));
            json_object_set_new(o, names[k], part);
        }
        json_object_set_new(o, "kv", kv_json(unit->desc.kv));
        if (unit->desc.rows_max)
            json_object_set_new(o, "tokens_per_run", json_integer(unit->desc.rows_max));
        else
            out_null(o, "tokens_per_run", "no limit");
        json_object_set_new(o, "runs_at_once", json_integer(unit->desc.lanes));
    }
    free(list);
    return o;
}

/* One line of what runs, and one line for each thing that does not. */
static void print_part(const json_t *limits, const char *name)
{
    const json_t *list = json_object_get(limits, name), *o;
    struct out_text t = {0};
    size_t i;
    out_add(&t, "", 0);
    json_array_foreach(list, i, o)
    {
        const json_t *largest = json_object_get(o, "largest");
        if (!json_is_true(json_object_get(o, "can"))) continue;
        out_addf(&t, "%s%s", t.len ? "; " : "", json_string_value(json_object_get(o, "name")));
        if (largest) out_addf(&t, " %lld", (long long)json_integer_value(largest));
    }
    out_print("  %s: %s\n", name, t.data);
    free(t.data);
    json_array_foreach(list, i, o)
    {
        const char *why = json_string_value(json_object_get(o, "why"));
        if (why) out_print("    %s: %s\n", json_string_value(json_object_get(o, "name")), why);
    }
}

void unit_limits_print(const json_t *limits)
{
    print_part(limits, "operations");
    print_part(limits, "storages");
    print_part(limits, "shapes");
    const json_t *tokens = json_object_get(limits, "tokens_per_run"), *kv = json_object_get(limits, "kv"), *name;
    size_t i;
    out_print("  K and V:");
    json_array_foreach(kv, i, name) out_print(" %s", json_string_value(name));
    out_print("\n");
    if (json_is_integer(tokens)) out_print("  tokens per run: %lld\n", (long long)json_integer_value(tokens));
}
