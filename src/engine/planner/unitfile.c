/* unitfile.c: costs of units as lines of a chip file, see unitcost.h. SPDX-License-Identifier: MIT */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "engine/planner/chips/chip.h"
#include "engine/planner/chips/lines.h"
#include "engine/planner/unitcost.h"

#define UNIT_KEY(name, field, unit, low, high)                      \
    {                                                               \
        name, unit, offsetof(struct sg_unit_cost, field), low, high \
    }
#define CLASS_KEYS(name, class)                                                        \
    UNIT_KEY(name "_layer_ms", layer_ms[class], "ms", 0, 1e6),                         \
        UNIT_KEY(name "_gb_s", gb_s[class], "GB/s", 1e-6, 1e6),                        \
        UNIT_KEY(name "_1_tflops", tflops[class][SG_ROWS_1], "TFLOPS", 1e-9, 1e5),     \
        UNIT_KEY(name "_4_tflops", tflops[class][SG_ROWS_4], "TFLOPS", 1e-9, 1e5),     \
        UNIT_KEY(name "_16_tflops", tflops[class][SG_ROWS_16], "TFLOPS", 1e-9, 1e5),   \
        UNIT_KEY(name "_64_tflops", tflops[class][SG_ROWS_64], "TFLOPS", 1e-9, 1e5),   \
        UNIT_KEY(name "_256_tflops", tflops[class][SG_ROWS_256], "TFLOPS", 1e-9, 1e5), \
        UNIT_KEY(name "_512_tflops", tflops[class][SG_ROWS_512], "TFLOPS", 1e-9, 1e5)

static const struct unit_key {
    const char *name, *unit;
    size_t offset;
    double low, high;
} unit_keys[] = {
    UNIT_KEY("stream_gb_s", stream_gb_s, "GB/s", 1e-6, 1e6),
    UNIT_KEY("step_ms", step_ms, "ms", 0, 1e6),
    UNIT_KEY("step_layer_ms", step_layer_ms, "ms", 0, 1e6),
    UNIT_KEY("run_ms", run_ms, "ms", 0, 1e6),
    UNIT_KEY("run_layer_ms", run_layer_ms, "ms", 0, 1e6),
    UNIT_KEY("row_layer_ms", row_layer_ms, "ms", 0, 1e6),
    CLASS_KEYS("wide", SG_CLASS_WIDE),
    CLASS_KEYS("byte", SG_CLASS_BYTE),
    CLASS_KEYS("nibble", SG_CLASS_NIBBLE),
    CLASS_KEYS("super", SG_CLASS_SUPER),
    CLASS_KEYS("fp8", SG_CLASS_FP8),
    UNIT_KEY("kv_gb_s", kv_gb_s, "GB/s", 1e-6, 1e6),
    UNIT_KEY("kv_q8_gb_s", kv_q8_gb_s, "GB/s", 1e-6, 1e6),
    UNIT_KEY("kv_forms", kv_forms, "1", 1, (1 << SG_KV_FORM_N) - 1),
    UNIT_KEY("attend_256_ms", attend_ms[0], "ms", 0, 1e6),
    UNIT_KEY("attend_1024_ms", attend_ms[1], "ms", 0, 1e6),
    UNIT_KEY("attend_tflops", attend_tflops, "TFLOPS", 1e-9, 1e5),
    UNIT_KEY("attend_16_tflops", attend_few_tflops, "TFLOPS", 1e-9, 1e5),
    UNIT_KEY("state_gb_s", state_gb_s, "GB/s", 1e-6, 1e6),
    UNIT_KEY("load_gb_s", load_gb_s, "GB/s", 1e-6, 1e6),
    UNIT_KEY("memory_bytes", memory_bytes, "B", 1, 1e18),
    UNIT_KEY("step_w", step_w, "W", 0, 1e6),
    UNIT_KEY("prefill_w", prefill_w, "W", 0, 1e6),
    UNIT_KEY("step_j_gweight", step_j_gweight, "J", 0, 1e6),
    UNIT_KEY("prefill_j_gweight", prefill_j_gweight, "J", 0, 1e6),
    UNIT_KEY("idle_w", idle_w, "W", 0, 1e6),
    UNIT_KEY("prefill_drift", prefill_drift, "1", 1e-3, 1e3),
    UNIT_KEY("step_drift", step_drift, "1", 1e-3, 1e3),
    UNIT_KEY("prefill_error", prefill_error, "1", 0, 10),
    UNIT_KEY("step_error", step_error, "1", 0, 10),
    UNIT_KEY("new_error", new_error, "1", 0, 10),
    UNIT_KEY("error_share", error_share, "1", 0, 10),
    UNIT_KEY("simulated", simulated, "1", 0, 1),
};
enum { UNIT_KEYS = sizeof unit_keys / sizeof *unit_keys };
static const char *const real_keys[SG_REAL_N] = {"prefill_8",    "prefill_32", "prefill_128", "prefill_512",
                                                 "prefill_2048", "step",       "step_deep",   "step_16384"};
static const char *const real_watts[2] = {"prefill_w", "step_w"};
/* The name of earlier versions for prompts of more than 512 tokens. */
#define PREFILL_MORE "prefill_more"

static double *field(const struct sg_unit_cost *u, const struct unit_key *k)
{
    return (double *)(void *)((char *)(uintptr_t)u + k->offset);
}

/* UNIT.KEY. CHIP.KEY, which chip.c reads, has the same form. */
static segue_status read_unit(struct sg_unit_costs *c, const char *owner, const char *key, const struct sg_line *line,
                              segue_error *err)
{
    for (int i = 0; i < UNIT_KEYS; i++) {
        if (strcmp(unit_keys[i].name, key) != 0) continue;
        if (!*owner) return sg_line_fail(line, "no unit before the dot; write UNIT.KEY", err);
        struct sg_unit_cost *u = sg_unit_cost_of(c, owner, 1);
        if (!u) return sg_line_fail(line, "more than 16 units; remove some", err);
        if (line->source == SG_SOURCE_PRIOR) u->assumed = 1;
        return sg_line_number(line, unit_keys[i].low, unit_keys[i].high, field(u, &unit_keys[i]), err);
    }
    return sg_chip_has_key(key) ? SEGUE_OK : sg_line_fail(line, "unknown key; docs/PLANNER.md lists the keys", err);
}

/* FROM>TO.ms, FROM>TO.gb_s */
static segue_status read_link(struct sg_unit_costs *c, char *owner, const char *key, const struct sg_line *line, segue_error *err)
{
    char *to = strchr(owner, '>');
    *to++ = 0;
    struct sg_link_cost *l = sg_link_cost_of(c, owner, to, 1);
    if (!l) return sg_line_fail(line, "more than 256 pairs of units; remove some", err);
    if (!strcmp(key, "ms")) return sg_line_number(line, 0, 1e6, &l->ms, err);
    if (!strcmp(key, "gb_s")) return sg_line_number(line, 1e-6, 1e6, &l->gb_s, err);
    return sg_line_fail(line, "unknown key of a pair; write ms or gb_s", err);
}

/* UNIT~MODEL.KEY */
static segue_status read_real(struct sg_unit_costs *c, char *owner, const char *key, const struct sg_line *line, segue_error *err)
{
    char *model = strchr(owner, '~');
    *model++ = 0;
    struct sg_real_factor *r = sg_real_factor_of(c, owner, model, 1);
    if (!strcmp(key, PREFILL_MORE)) key = "prefill_2048";
    for (int i = 0; r && i < SG_REAL_N; i++)
        if (!strcmp(real_keys[i], key)) return sg_line_number(line, 1e-3, 1e3, &r->factor[i], err);
    for (int i = 0; r && i < 2; i++)
        if (!strcmp(real_watts[i], key)) return sg_line_number(line, 0, 1e6, &r->watts[i], err);
    return sg_line_fail(line, "unknown key of a model; docs/PLANNER.md lists the keys", err);
}

segue_status sg_unit_costs_read(struct sg_unit_costs *out, const char *text, size_t n, const char *file, segue_error *err)
{
    struct sg_lines lines = {.at = text, .end = text + n, .file = file};
    struct sg_line line;
    segue_status st;
    while ((st = sg_lines_next(&lines, &line, err)) == SEGUE_OK) {
        char *dot = strrchr(line.key, '.'), owner[80];
        if (!strcmp(line.key, "machine")) snprintf(out->machine, sizeof out->machine, "%.39s", line.value);
        if (!dot) continue;
        snprintf(owner, sizeof owner, "%.*s", (int)(dot - line.key), line.key);
        st = strchr(owner, '>')   ? read_link(out, owner, dot + 1, &line, err)
             : strchr(owner, '~') ? read_real(out, owner, dot + 1, &line, err)
                                  : read_unit(out, owner, dot + 1, &line, err);
        if (st) return st;
    }
    return st == SEGUE_END ? SEGUE_OK : st;
}

void sg_unit_costs_write(const struct sg_unit_costs *c, struct sg_buf *out)
{
    if (*c->machine) sg_buf_printf(out, "machine %s - # measured\n", c->machine);
    for (size_t i = 0; i < c->units_n; i++)
        for (int k = 0; k < UNIT_KEYS; k++) {
            double v = *field(&c->units[i], &unit_keys[k]);
            if (v > 0)
                sg_buf_printf(out, "%s.%s %.6g %s # measured\n", c->units[i].spec, unit_keys[k].name, v, unit_keys[k].unit);
        }
    for (size_t i = 0; i < c->links_n; i++) {
        const struct sg_link_cost *l = &c->links[i];
        sg_buf_printf(out, "%s>%s.ms %.6g ms # measured\n", l->from, l->to, l->ms);
        if (l->gb_s > 0) sg_buf_printf(out, "%s>%s.gb_s %.6g GB/s # measured\n", l->from, l->to, l->gb_s);
    }
    for (size_t i = 0; i < c->reals_n; i++) {
        const struct sg_real_factor *r = &c->reals[i];
        for (int k = 0; k < SG_REAL_N; k++)
            if (r->factor[k] > 0)
                sg_buf_printf(out, "%s~%s.%s %.6g 1 # measured\n", r->unit, r->model, real_keys[k], r->factor[k]);
        for (int k = 0; k < 2; k++)
            if (r->watts[k] > 0)
                sg_buf_printf(out, "%s~%s.%s %.6g W # measured\n", r->unit, r->model, real_watts[k], r->watts[k]);
    }
}
