/* html.c: the page and its tables, see html.h. Colours are CSS variables, so that charts follow the light or dark setting too.
 * SPDX-License-Identifier: MIT */
#include "report/html.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* s0 to s5: colours of the series, chosen to differ in hue and in lightness on both backgrounds. */
static const char style[] =
    ":root{color-scheme:light dark;--back:#ffffff;--ink:#1c2127;--soft:#5b6570;--line:#d5dae0;--s0:#1f6fb4;--s1:#c8591a;"
    "--s2:#2c8a4b;--s3:#8b4bb0;--s4:#b0203c;--s5:#7d7314}\n"
    "@media(prefers-color-scheme:dark){:root{--back:#14181d;--ink:#e4e8ec;--soft:#9aa5b1;--line:#39424d;--s0:#5fb0f0;"
    "--s1:#f09455;--s2:#63c584;--s3:#c493e6;--s4:#f0707f;--s5:#d6c94f}}\n"
    "body{margin:2rem auto;padding:0 1rem;max-width:62rem;background:var(--back);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}p{max-width:50rem}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px}\n"
    "th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}\n"
    "th{color:var(--soft);font-weight:600}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    "figure{margin:1.5rem 0}figcaption{color:var(--soft);margin-bottom:.4rem}\n"
    "svg{display:block;width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}\n"
    "svg .soft{fill:var(--soft)}svg .grid{stroke:var(--line);stroke-width:1}svg .axis{stroke:var(--soft);stroke-width:1}\n"
    "svg .mark{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:5 4}svg .range{stroke:var(--ink);stroke-width:1.2}\n"
    "svg .path{fill:none;stroke-width:2}\n"
    ".key{display:inline-block;margin-right:1.2rem;font-size:13px}\n"
    ".key i{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}\n";

void html_escape(struct out_text *t, const char *text, size_t max)
{
    /* out_string repairs what is not UTF-8. */
    json_t *clean = out_string(text ? text : "", text ? strlen(text) : 0);
    size_t written = 0;
    for (const char *c = json_string_value(clean); *c; c++) {
        bool first = ((unsigned char)*c & 0xc0) != 0x80; /* of a character */
        if (first && max && written++ == max) {
            out_addf(t, "\xe2\x80\xa6");
            break;
        }
        if (*c == '&')
            out_addf(t, "&amp;");
        else if (*c == '<')
            out_addf(t, "&lt;");
        else if (*c == '>')
            out_addf(t, "&gt;");
        else if (*c == '"')
            out_addf(t, "&quot;");
        else if (*c == '\'')
            out_addf(t, "&#39;");
        else if (((unsigned char)*c < 32 && *c != '\n' && *c != '\t') || *c == 127)
            out_addf(t, "\xef\xbf\xbd");
        else
            out_add(t, c, 1);
    }
    json_decref(clean);
}

void html_begin(struct html_page *p, const char *title, const char *lead)
{
    out_addf(&p->text, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                       "<meta name=\"viewport\" content=\"width=device-width\">\n<title>");
    html_escape(&p->text, title, 0);
    out_addf(&p->text, "</title>\n<style>\n%s", style);
    for (int i = 0; i < 6; i++)
        out_addf(&p->text, ".s%d{fill:var(--s%d)}.path.s%d{fill:none;stroke:var(--s%d)}.key .s%d{background:var(--s%d)}\n",
                 i, i, i, i, i, i);
    out_addf(&p->text, "</style>\n</head>\n<body>\n<h1>");
    html_escape(&p->text, title, 0);
    out_addf(&p->text, "</h1>\n");
    if (lead && *lead) html_paragraph(p, lead);
}

void html_section(struct html_page *p, const char *text)
{
    out_addf(&p->text, "<h2>");
    html_escape(&p->text, text, 0);
    out_addf(&p->text, "</h2>\n");
}

void html_paragraph(struct html_page *p, const char *text)
{
    out_addf(&p->text, "<p>");
    html_escape(&p->text, text, 0);
    out_addf(&p->text, "</p>\n");
}

void html_table_begin(struct html_page *p, const char *const *titles, size_t n)
{
    out_addf(&p->text, "<div class=\"scroll\"><table>\n<thead><tr>");
    for (size_t i = 0; i < n; i++) {
        out_addf(&p->text, "<th>");
        html_escape(&p->text, titles[i], 0);
        out_addf(&p->text, "</th>");
    }
    out_addf(&p->text, "</tr></thead>\n<tbody>");
    p->column = 0;
}

void html_row(struct html_page *p)
{
    out_addf(&p->text, "%s<tr>", p->column ? "</tr>\n" : "\n");
    p->column = 1;
}

void html_cell(struct html_page *p, const char *text)
{
    out_addf(&p->text, "<td>");
    html_escape(&p->text, text ? text : "-", 0);
    out_addf(&p->text, "</td>");
}

void html_number(struct html_page *p, double value, int decimals)
{
    if (isfinite(value))
        out_addf(&p->text, "<td class=\"n\">%.*f</td>", decimals, value);
    else
        out_addf(&p->text, "<td class=\"n\">-</td>");
}

void html_table_end(struct html_page *p)
{
    out_addf(&p->text, "%s</tbody>\n</table></div>\n", p->column ? "</tr>\n" : "\n");
    p->column = 0;
}

segue_status html_write(struct html_page *p, const char *path, segue_error *err)
{
    char *tmp_path;
    out_addf(&p->text, "</body>\n</html>\n");
    errno = 0;
    FILE *f = out_temporary(path, 0666, &tmp_path);
    bool written = f && fwrite(p->text.data, 1, p->text.len, f) == p->text.len;
    written = f && fclose(f) == 0 && written && rename(tmp_path, path) == 0;
    segue_status st = written ? SEGUE_OK : out_fail_errno(err, "writing the page", path, NULL);
    if (f && !written) unlink(tmp_path);
    free(tmp_path);
    html_free(p);
    return st;
}

void html_free(struct html_page *p)
{
    free(p->text.data);
    *p = (struct html_page){0};
}
