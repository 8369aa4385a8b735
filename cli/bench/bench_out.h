/* bench_out.h: rows of a measurement as a table, CSV, JSON, lines of JSON or SQL.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_BENCH_OUT_H
#define SEGUE_CLI_BENCH_OUT_H

#include "term/out.h"

/* A column of the table: its title, the field it shows (a.b: inside), and decimals of a number. */
struct bench_column {
    const char *title, *field;
    int decimals;
};

struct bench_out {
    const char *form;                   /* "md" "csv" "json" "jsonl" "sql" */
    const struct bench_column *columns; /* ends with NULL; NULL: those of llama-bench */
    json_t *rows;
};
void bench_out_begin(struct bench_out *b, const char *form);
/* Takes the row. Lines go out at once, JSON at the end. */
segue_status bench_out_row(struct bench_out *b, json_t *row, segue_error *err);
segue_status bench_out_end(struct bench_out *b, segue_error *err);
void bench_out_free(struct bench_out *b);

#endif
