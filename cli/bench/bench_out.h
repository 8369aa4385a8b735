/* bench_out.h: output of benchmark rows as a Markdown table, CSV, JSON, JSON Lines or SQL.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_BENCH_OUT_H
#define SEGUE_CLI_BENCH_OUT_H

#include "term/out.h"

/* A column of the Markdown table: its title, the field of the row that it shows, and the decimals of a number. */
struct bench_column {
    const char *title, *field;
    int decimals;
};

/* Rows written so far. */
struct bench_out {
    const char *form;                   /* "md", "csv", "json", "jsonl" or "sql" */
    const struct bench_column *columns; /* ends with a NULL title; NULL: the columns of llama-bench */
    json_t *rows;                       /* all rows, for "json", --html and to know the first one */
    json_t *timelines;                  /* of bench_timeline, for --html; NULL: none are recorded */
};
/* form: one of the words of --out. */
void bench_out_begin(struct bench_out *b, const char *form);
/* Output one row and steal its reference. Every format but "json" is written at once. */
segue_status bench_out_row(struct bench_out *b, json_t *row, segue_error *err);
/* Write the array of all rows if the format is "json". */
segue_status bench_out_end(struct bench_out *b, segue_error *err);
void bench_out_free(struct bench_out *b);

#endif
