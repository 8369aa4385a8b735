/* html.h: one self-contained HTML page with headings, tables and drawn charts (chart.h). It loads nothing, has no script and
 * follows the reader's light or dark setting. All text is escaped.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_HTML_H
#define SEGUE_CLI_HTML_H

#include "term/out.h"

/* A page while it is written. Zero-initialised, then html_begin; freed by html_write or html_free. */
struct html_page {
    struct out_text text;
    size_t column; /* of the next cell of a table row */
};

/* title: of the page; lead: the first paragraph, may be empty. */
void html_begin(struct html_page *p, const char *title, const char *lead);
void html_section(struct html_page *p, const char *text);
void html_paragraph(struct html_page *p, const char *text);
/* A table: titles[n], then rows of n cells. */
void html_table_begin(struct html_page *p, const char *const *titles, size_t n);
void html_row(struct html_page *p);
/* A text cell; NULL: a dash. */
void html_cell(struct html_page *p, const char *text);
/* A number, aligned right; not finite: a dash. */
void html_number(struct html_page *p, double value, int decimals);
void html_table_end(struct html_page *p);
/* Write the page to a temporary file, rename it to path, and free the page. SEGUE_EIO: the page was not written. */
segue_status html_write(struct html_page *p, const char *path, segue_error *err);
void html_free(struct html_page *p);

/* Append text with &, <, > and quotes escaped; control characters and bytes that are not UTF-8 become U+FFFD. At most `max`
 * characters, the rest becomes an ellipsis; 0: all. */
void html_escape(struct out_text *t, const char *text, size_t max);

#endif
