/* bench_html.c: the page of `bench --html`: the measured rows as a table, then charts of the fields that they have: speeds,
 * times and energies over the prompt length with the crossover, the roof line, and the time lines.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "report/chart.h"
#include "report/crossover.h"

/* A number of a row; NaN if it is null or missing. */
static double number(const json_t *row, const char *field)
{
    const json_t *v = json_object_get(row, field);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static const char *text_of(const json_t *row, const char *field)
{
    const char *s = json_string_value(json_object_get(row, field));
    return s ? s : "";
}

/* The columns of the default mode. */
static const struct bench_column default_columns[] = {{"unit", "unit", 0},
                                                      {"threads", "n_threads", 0},
                                                      {"prompt", "n_prompt", 0},
                                                      {"generated", "n_gen", 0},
                                                      {"depth", "n_depth", 0},
                                                      {"tok/s", "avg_ts", 2},
                                                      {"deviation", "stddev_ts", 2},
                                                      {"GB/s", "weight_read_gb_s", 1},
                                                      {"memory GB/s", "memory_bandwidth_gb_s", 1},
                                                      {"J per token", "j_per_token", 5},
                                                      {"W", "power_w", 1},
                                                      {NULL, NULL, 0}};

/* A field of a row or of its object `energy`. j_per_token: the one of the two that was measured. */
static const json_t *field_of(const json_t *row, const char *field)
{
    const json_t *energy = json_object_get(row, "energy"), *v = json_object_get(row, field);
    if (v) return v;
    if (strcmp(field, "j_per_token") != 0) return json_object_get(energy, field);
    v = json_object_get(energy, "prefill_j_per_token");
    return json_is_number(v) ? v : json_object_get(energy, "decode_j_per_token");
}

static void put_table(struct html_page *p, const struct bench_out *out)
{
    const struct bench_column *columns = out->columns ? out->columns : default_columns;
    const char *titles[32];
    const json_t *row;
    size_t n = 0, i;
    for (; columns[n].title && n < 32; n++) titles[n] = columns[n].title;
    html_table_begin(p, titles, n);
    json_array_foreach(out->rows, i, row)
    {
        html_row(p);
        for (size_t k = 0; k < n; k++) {
            const json_t *v = field_of(row, columns[k].field);
            if (json_is_number(v))
                html_number(p, json_number_value(v), columns[k].decimals);
            else
                html_cell(p, json_is_boolean(v) ? json_is_true(v) ? "yes" : "no" : json_string_value(v));
        }
    }
    html_table_end(p);
}

/* Bars of the default mode: one per row, with one standard deviation to each side. */
static void put_speeds(struct html_page *p, const json_t *rows)
{
    static const char *const names[] = {"prefill", "decode"};
    size_t n = json_array_size(rows), i, used = 0;
    struct chart_bar *bars = out_alloc((n + 1) * sizeof *bars);
    char **labels = out_alloc((n + 1) * sizeof *labels);
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        double speed = number(row, "avg_ts"), deviation = number(row, "stddev_ts"), prompt = number(row, "n_prompt");
        if (!(speed > 0)) continue;
        labels[used] = out_printf("%s %.0f @ %.0f, %.40s", prompt > 0 ? "pp" : "tg", prompt > 0 ? prompt : number(row, "n_gen"),
                                  number(row, "n_depth"), text_of(row, "unit"));
        bars[used] = (struct chart_bar){labels[used], speed, speed - deviation, speed + deviation, prompt > 0 ? 0 : 1};
        used++;
    }
    if (used) chart_bars(p, "Speed, with one standard deviation", "tok/s", bars, used, names, 2);
    for (i = 0; i < used; i++) free(labels[i]);
    free(labels);
    free(bars);
}

/* Points (n_prompt, value) of the rows with the same name, one series per name. value 0 or NaN: not measured. */
struct curves {
    struct chart_series *series;
    struct chart_point *points; /* of all series, one after the other */
    size_t n;
};

/* name: the field that names a series; value of a row is scale * field, or n_prompt / field if `per` is set. */
static struct curves curves_of(const json_t *rows, const char *name, const char *field, double scale, bool per)
{
    size_t rows_n = json_array_size(rows), used = 0, i;
    struct curves c = {out_alloc((rows_n + 1) * sizeof *c.series), out_alloc((rows_n + 1) * sizeof *c.points), 0};
    for (size_t first = 0; first < rows_n; first++) {
        const json_t *row, *head = json_array_get(rows, first);
        struct chart_series *s = &c.series[c.n];
        bool seen = false;
        for (size_t k = 0; k < c.n; k++) seen = seen || !strcmp(c.series[k].name, text_of(head, name));
        if (seen) continue;
        *s = (struct chart_series){text_of(head, name), c.points + used, 0, true};
        json_array_foreach(rows, i, row)
        {
            double x = number(row, "n_prompt"), v = number(row, field);
            if (strcmp(text_of(row, name), s->name) != 0 || !(x > 0) || !(v > 0) || number(row, "n_depth") > 0) continue;
            c.points[used++] = (struct chart_point){.x = x, .y = per ? scale * x / v : scale * v};
            s->n++;
        }
        c.n += s->n != 0;
    }
    return c;
}

/* Lines over the prompt length, with the length at which the best choice changes. At least two lengths. */
static void put_curves(struct html_page *p, const char *caption, const char *y, struct curves c)
{
    static const char *const none = "the best choice is the same at all lengths; crossover";
    size_t longest = 0;
    for (size_t i = 0; i < c.n; i++) longest = c.series[i].n > longest ? c.series[i].n : longest;
    if (longest > 1) {
        struct chart_axes axes = {"prompt tokens", y, true, true};
        size_t from, to;
        double at = crossover_find(c.series, c.n, &from, &to);
        char *name = at > 0 ? out_printf("from %.30s to %.30s", c.series[from].name, c.series[to].name) : out_strdup(none);
        struct chart_crossover mark = {name, at};
        chart_lines(p, caption, &axes, c.series, c.n, &mark, c.n > 1);
        free(name);
    }
    free(c.series);
    free(c.points);
}

/* One roof per unit: the measured memory bandwidth, and the fastest row as its arithmetic. */
static void put_roof(struct html_page *p, const json_t *rows, const json_t *model)
{
    double body = number(model, "body_products"), head = number(model, "head_products"), chunk = number(model, "chunk");
    size_t n = json_array_size(rows), used = 0, i;
    struct chart_point *points = out_alloc((n + 1) * sizeof *points);
    struct chart_roof roof = {"memory bandwidth, and the fastest row", 0, 0};
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        double prompt = number(row, "n_prompt"), speed = number(row, "avg_ts"), weights = number(row, "model_size");
        bool reads = prompt > 0;
        double ops = reads ? 2 * (body + head / prompt) : 2 * (body + head);            /* per token */
        double bytes = reads ? weights * ceil(prompt / chunk) / prompt : number(row, "weight_read_gb_s") * 1e9 / speed;
        if (!(speed > 0) || !(ops > 0) || !(bytes > 0) || number(row, "n_depth") > 0) continue;
        points[used++] = (struct chart_point){.x = ops / bytes, .y = ops * speed / 1e9, .label = reads ? "prefill" : "decode"};
        roof.gb_s = fmax(roof.gb_s, number(row, "memory_bandwidth_gb_s"));
        roof.gops = fmax(roof.gops, ops * speed / 1e9);
    }
    struct chart_series measured = {"measured rows", points, used, false};
    if (used && roof.gb_s > 0)
        chart_roofs(p, "Roof line: matrix operations over the bytes of weights that they read", &roof, 1, &measured, 1);
    free(points);
}

/* Index of a unit in rows[*n], added when it is missing. */
static size_t row_of(const char **rows, size_t *n, size_t cap, const char *unit)
{
    size_t i = 0;
    while (i < *n && strcmp(rows[i], unit) != 0) i++;
    if (i == *n && *n < cap) rows[(*n)++] = unit;
    return i;
}

static void put_timeline(struct html_page *p, const json_t *line)
{
    static const char *const names[] = {"prefill", "decode", "helper", "hand-off"};
    const json_t *events = json_object_get(line, "events"), *e;
    const char *rows[16];
    size_t rows_n = 0, n = json_array_size(events), i;
    struct chart_event *drawn = out_alloc((n + 1) * sizeof *drawn);
    json_array_foreach(events, i, e)
    {
        unsigned series = 0;
        while (series < 3 && strcmp(names[series], text_of(e, "phase")) != 0) series++;
        drawn[i] = (struct chart_event){row_of(rows, &rows_n, 16, text_of(e, "unit")), number(e, "begin_ms"), number(e, "end_ms"),
                                        series, names[series]};
    }
    char *caption = out_printf("%.80s: %.0f prompt tokens, then %.0f tokens", text_of(line, "name"), number(line, "prompt"),
                               number(line, "tokens"));
    chart_timeline(p, caption, rows, rows_n, drawn, n, names, 4);
    free(caption);
    free(drawn);
}

/* The rows of one model; a new array. *next: the first row of another one that comes later, or the number of rows. */
static json_t *rows_of_model(const json_t *rows, size_t first, size_t *next)
{
    const char *path = text_of(json_object_get(json_array_get(rows, first), "model"), "path");
    json_t *list = json_array(), *row;
    size_t i;
    *next = json_array_size(rows);
    json_array_foreach(rows, i, row)
    {
        bool same = !strcmp(text_of(json_object_get(row, "model"), "path"), path);
        if (same) json_array_append(list, row);
        if (!same && i > first && *next > i) *next = i;
    }
    return list;
}

/* Time and energy of prompts, one chart per model. --grid measures one model after the other. */
static void put_models(struct html_page *p, const json_t *rows)
{
    for (size_t first = 0, next; first < json_array_size(rows); first = next) {
        json_t *list = rows_of_model(rows, first, &next);
        const char *path = text_of(json_object_get(json_array_get(rows, first), "model"), "path"), *slash = strrchr(path, '/');
        bool one = json_array_size(list) == json_array_size(rows);
        char *time = out_printf("Time to first token%s%.60s", one ? "" : ", ", one ? "" : slash ? slash + 1 : path);
        char *energy = out_printf("Energy of the prompt%s%.60s", one ? "" : ", ", one ? "" : slash ? slash + 1 : path);
        put_curves(p, time, "ms", curves_of(list, "pipeline", "ttft_ms", 1, false));
        put_curves(p, energy, "J", curves_of(list, "pipeline", "prefill_j", 1, false));
        free(time);
        free(energy);
        json_decref(list);
    }
}

/* Rows of --predict: each case as predicted, with its interval, over what was measured. */
static void put_predicted(struct html_page *p, const json_t *rows)
{
    size_t n = json_array_size(rows), used[2] = {0, 0}, i;
    struct chart_point *points[2] = {out_alloc((n + 1) * sizeof **points), out_alloc((n + 1) * sizeof **points)};
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        const json_t *f = json_object_get(row, "predicted");
        int outside = !json_is_true(json_object_get(row, "inside"));
        if (json_is_object(f))
            points[outside][used[outside]++] = (struct chart_point){.x = number(row, "measured_ms"),
                                                                    .y = number(f, "mid"),
                                                                    .low = number(f, "lo"),
                                                                    .high = number(f, "hi"),
                                                                    .label = text_of(row, "model")};
    }
    struct chart_series series[2] = {{"inside of the interval", points[0], used[0], false},
                                     {"outside", points[1], used[1], false}};
    chart_predicted(p, "Prediction against measurement, with intervals of 90 %", "ms", series, used[1] ? 2 : 1);
    free(points[0]);
    free(points[1]);
}

/* What was measured, under the title. Rows of --predict have several models, and the model's name. */
static char *lead_of(const json_t *first)
{
    const json_t *machine = json_object_get(first, "machine"), *model = json_object_get(first, "model");
    if (!json_is_object(model)) return out_strdup("Every case was predicted before it ran.");
    return out_printf("%.120s, %s. %s, %.0f cores.", text_of(model, "path"), text_of(model, "storage"), text_of(machine, "cpu"),
                      number(machine, "cores"));
}

segue_status bench_html_write(const struct bench_out *out, const char *path, segue_error *err)
{
    struct html_page p = {0};
    const json_t *first = json_array_get(out->rows, 0), *line;
    size_t i;
    char *lead = lead_of(first);
    html_begin(&p, "segue bench", lead);
    free(lead);
    put_table(&p, out);
    if (json_object_get(first, "predicted")) {
        put_predicted(&p, out->rows);
        return html_write(&p, path, err);
    }
    html_section(&p, "Speed and energy");
    put_speeds(&p, out->rows);
    put_roof(&p, out->rows, json_array_get(out->timelines, 0));
    if (json_object_get(first, "ttft_ms"))
        put_models(&p, out->rows);
    else
        put_curves(&p, "Time of the prompt", "ms", curves_of(out->rows, "unit", "avg_ts", 1e3, true));
    html_section(&p, "Time line by unit");
    json_array_foreach(out->timelines, i, line) put_timeline(&p, line);
    return html_write(&p, path, err);
}
