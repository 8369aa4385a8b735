/* bench_out.c: output of bench rows, see bench_out.h. The columns of CSV and SQL are the fields of the first row;
 * nested objects are JSON text.
 * SPDX-License-Identifier: MIT */
#include "bench/bench_out.h"

#include <stdlib.h>
#include <string.h>

void bench_out_begin(struct bench_out *b, const char *form)
{
    *b = (struct bench_out){.form = form, .rows = json_array()};
}

/* The number in a field; 0 if it is null or missing. */
static double number(const json_t *row, const char *name)
{
    return json_number_value(json_object_get(row, name));
}

/* One row of the default table, with the header before the first one. As in llama-bench, pp is a prompt and tg text
 * generation. */
static void md_row(struct out_text *t, const json_t *row, bool first)
{
    char test[64];
    double p = number(row, "n_prompt"), n = number(row, "n_gen"), d = number(row, "n_depth"),
           s = number(row, "n_sequences");
    /* Name of the test as in llama-bench: pp512, tg128, tg128 @ d4096; with several sequences followed
     * by their number. */
    size_t at = (size_t)snprintf(test, sizeof test, p > 0 ? "pp%.0f" : "tg%.0f", p > 0 ? p : n);
    if (d > 0) at += (size_t)snprintf(test + at, sizeof test - at, " @ d%.0f", d);
    if (s > 1) snprintf(test + at, sizeof test - at, " x %.0f", s);
    if (first)
        out_addf(
            t,
            "| %-24s | %10s | %-28s | %-14s | %18s | %6s | %6s | %6s |\n| %s | %s: | %s | %s | %s: | %s: | %s: | %s: |\n",
            "model", "size", "unit", "test", "t/s", "GB/s", "util.", "depth", "------------------------", "---------",
            "----------------------------", "--------------", "-----------------", "-----", "-----", "-----");
    out_addf(t, "| %-24s | %7.2f MB | %-28s | %-14s | %9.2f ± %6.2f | ",
             json_string_value(json_object_get(row, "model_type")), number(row, "model_size") / 1e6,
             json_string_value(json_object_get(row, "unit")), test, number(row, "avg_ts"),
             number(row, "stddev_ts"));
    /* Prompt rows have no rate and no utilization. */
    if (number(row, "weight_read_gb_s") > 0)
        out_addf(t, "%6.1f | ", number(row, "weight_read_gb_s"));
    else
        out_addf(t, "%6s | ", "-");
    if (number(row, "bandwidth_utilization") > 0)
        out_addf(t, "%4.0f %% | ", 100 * number(row, "bandwidth_utilization"));
    else
        out_addf(t, "%6s | ", "-");
    if (number(row, "depth_ratio") > 0)
        out_addf(t, "%6.2f |\n", number(row, "depth_ratio"));
    else
        out_addf(t, "%6s |\n", "-");
}

/* One row of a table with the columns of a mode. A value that was not measured is "-". */
static void md_columns(struct out_text *t, const json_t *row, const struct bench_column *c, bool first)
{
    for (size_t i = 0; first && c[i].title; i++) out_addf(t, "| %s ", c[i].title);
    if (first) out_addf(t, "|\n");
    /* Columns of names are aligned left, columns of numbers right. */
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

/* One value between quotes; quotes inside are doubled. Objects and lists are written as JSON text. */
static void cell(struct out_text *t, const json_t *v, char quote)
{
    /* Numbers are quoted too: CSV readers and SQL affinity convert them. */
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

/* NAME_reason exists only in rows where NAME is null. CSV and SQL need the same columns in every row, so these fields
 * are omitted there. */
static bool is_reason(const char *name)
{
    size_t n = strlen(name);
    return n > 7 && !strcmp(name + n - 7, "_reason");
}

/* All fields of a row, separated by commas: their names, or their values in the given quotes. In SQL, null is NULL. */
static void cells(struct out_text *t, json_t *row, bool names, char quote)
{
    const char *name;
    json_t *v;
    size_t i = 0;
    json_object_foreach(row, name, v)
    {
        if (is_reason(name)) continue;
        /* "," in CSV, ", " in SQL. */
        if (i++) out_add(t, ", ", quote == '"' ? 1 : 2);
        if (names)
            out_addf(t, "%s", name);
        else if (quote == '\'' && json_is_null(v))
            out_addf(t, "NULL");
        else
            cell(t, v, quote);
    }
}

/* CREATE TABLE before the first row, then one INSERT. A null stands for a number that was not measured, so its column
 * is REAL. */
static void sql_row(struct out_text *t, json_t *row, bool first)
{
    const char *name;
    json_t *v;
    size_t i = 0;
    if (first) {
        out_addf(t, "CREATE TABLE IF NOT EXISTS segue_bench (\n");
        json_object_foreach(row, name, v)
        {
            /* Column types from the values of the first row. */
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

/* Rows are written as soon as they are measured, so that an interrupted benchmark keeps them. JSON is one array, which
 * is written at the end. */
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

/* The array is indented, so that a long result can be read. */
segue_status bench_out_end(struct bench_out *b, segue_error *err)
{
    return strcmp(b->form, "json") ? SEGUE_OK : out_json(json_incref(b->rows), 2, err);
}

void bench_out_free(struct bench_out *b)
{
    json_decref(b->rows);
    json_decref(b->timelines);
}
