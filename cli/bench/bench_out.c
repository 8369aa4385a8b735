/* bench_out.c: output of bench rows, see bench_out.h. The columns of CSV and SQL are the fields of the first row;
 * nested objects are JSON text.
 * SPDX-License-Identifier: MIT */
#include "bench/bench_out.h"

#include <stdlib.h>
#include <string.h>

void bench_out_begin(struct bench_out *b, const char *form)
{
    *b = (struct bench_out){form, NULL, json_array()};
}

static double number(const json_t *row, const char *name)
{
    return json_number_value(json_object_get(row, name));
}

/* One line of the table, after its head when it is the first. pp: prompt, tg: generation, as llama-bench
 * names them. */
static void md_row(struct out_text *t, const json_t *row, bool first)
{
    char test[64];
    double p = number(row, "n_prompt"), n = number(row, "n_gen"), d = number(row, "n_depth"),
           s = number(row, "n_sequences");
    size_t at = (size_t)snprintf(test, sizeof test, p > 0 ? "pp%.0f" : "tg%.0f", p > 0 ? p : n);
    if (d > 0) at += (size_t)snprintf(test + at, sizeof test - at, " @ d%.0f", d);
    if (s > 1) snprintf(test + at, sizeof test - at, " x %.0f", s);
    if (first)
        out_addf(
            t,
            "| %-24s | %10s | %-28s | %-14s | %18s | %6s | %6s |\n| %s | %s: | %s | %s | %s: | %s: | %s: |\n",
            "model", "size", "unit", "test", "t/s", "GB/s", "roof", "------------------------", "---------",
            "----------------------------", "--------------", "-----------------", "-----", "-----");
    out_addf(t, "| %-24s | %7.2f MB | %-28s | %-14s | %9.2f ± %6.2f | ",
             json_string_value(json_object_get(row, "model_type")), number(row, "model_size") / 1e6,
             json_string_value(json_object_get(row, "unit")), test, number(row, "avg_ts"),
             number(row, "stddev_ts"));
    if (number(row, "gb_s") > 0)
        out_addf(t, "%6.1f | ", number(row, "gb_s"));
    else
        out_addf(t, "%6s | ", "-");
    if (number(row, "roof_share") > 0)
        out_addf(t, "%4.0f %% |\n", 100 * number(row, "roof_share"));
    else
        out_addf(t, "%6s |\n", "-");
}

/* A row of columns; what was not measured is "-". */
static void md_columns(struct out_text *t, const json_t *row, const struct bench_column *c, bool first)
{
    for (size_t i = 0; first && c[i].title; i++) out_addf(t, "| %s ", c[i].title);
    if (first) out_addf(t, "|\n");
    for (size_t i = 0; first && c[i].title; i++) out_addf(t, c[i].decimals || i > 2 ? "|--:" : "|---");
    if (first) out_addf(t, "|\n");
    for (; c->title; c++) {
        const json_t *v = json_object_get(row, c->field);
        if (json_is_string(v))
            out_addf(t, "| %s ", json_string_value(v));
        else if (json_is_boolean(v))
            out_addf(t, "| %s ", json_is_true(v) ? "yes" : "no");
        else if (json_is_number(v))
            out_addf(t, "| %.*f ", c->decimals, json_number_value(v));
        else
            out_addf(t, "| - ");
    }
    out_addf(t, "|\n");
}

/* A field with `quote` around it, doubled inside; objects as JSON text. */
static void cell(struct out_text *t, const json_t *v, char quote)
{
    char *text = json_is_string(v) ? out_strdup(json_string_value(v))
                                   : json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    out_add(t, &quote, 1);
    for (const char *c = text ? text : ""; *c; c++) {
        if (*c == quote) out_add(t, c, 1);
        out_add(t, c, 1);
    }
    out_add(t, &quote, 1);
    free(text);
}

/* Reasons come and go with the row, columns must not: they are left out of CSV and SQL. */
static bool is_reason(const char *name)
{
    size_t n = strlen(name);
    return n > 7 && !strcmp(name + n - 7, "_reason");
}

static void cells(struct out_text *t, json_t *row, bool names, char quote)
{
    const char *name;
    json_t *v;
    size_t i = 0;
    json_object_foreach(row, name, v)
    {
        if (is_reason(name)) continue;
        if (i++) out_add(t, ", ", quote == '"' ? 1 : 2);
        if (names)
            out_addf(t, "%s", name);
        else if (quote == '\'' && json_is_null(v))
            out_addf(t, "NULL");
        else
            cell(t, v, quote);
    }
}

/* null is a number that could not be measured, so its column is REAL. */
static void sql_row(struct out_text *t, json_t *row, bool first)
{
    const char *name;
    json_t *v;
    size_t i = 0;
    if (first) {
        out_addf(t, "CREATE TABLE IF NOT EXISTS segue_bench (\n");
        json_object_foreach(row, name, v)
        {
            const char *type = json_is_integer(v)                   ? "INTEGER"
                               : json_is_real(v) || json_is_null(v) ? "REAL"
                                                                    : "TEXT";
            if (!is_reason(name)) out_addf(t, "%s  %s %s", i++ ? ",\n" : "", name, type);
        }
        out_addf(t, "\n);\n");
    }
    out_addf(t, "INSERT INTO segue_bench (");
    cells(t, row, true, '\'');
    out_addf(t, ") VALUES (");
    cells(t, row, false, '\'');
    out_addf(t, ");\n");
}

/* JSON waits for the end; everything else goes out at once, so that a long measurement is not lost. */
segue_status bench_out_row(struct bench_out *b, json_t *row, segue_error *err)
{
    bool first = json_array_size(b->rows) == 0;
    struct out_text t = {0};
    segue_status st = SEGUE_OK;
    if (!strcmp(b->form, "jsonl"))
        st = out_json(json_incref(row), 0, err);
    else if (!strcmp(b->form, "md") && b->columns)
        md_columns(&t, row, b->columns, first);
    else if (!strcmp(b->form, "md"))
        md_row(&t, row, first);
    else if (!strcmp(b->form, "sql"))
        sql_row(&t, row, first);
    else if (!strcmp(b->form, "csv")) {
        if (first) {
            cells(&t, row, true, '"');
            out_addf(&t, "\n");
        }
        cells(&t, row, false, '"');
        out_addf(&t, "\n");
    }
    json_array_append_new(b->rows, row);
    if (!st && t.len) st = out_write(t.data, t.len, err);
    free(t.data);
    return st;
}

segue_status bench_out_end(struct bench_out *b, segue_error *err)
{
    return strcmp(b->form, "json") ? SEGUE_OK : out_json(json_incref(b->rows), 2, err);
}

void bench_out_free(struct bench_out *b) { json_decref(b->rows); }
