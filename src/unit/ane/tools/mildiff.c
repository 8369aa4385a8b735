/* mildiff.c: see mildiff.h. Both programs are printed in one dialect with canonical names. Common lines at
 * the beginning and at the end are skipped; the middle is compared by longest common subsequence if it is
 * small enough.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/tools/mildiff.h"

#include <string.h>

#include "unit/ane/mil/milprint.h"

enum { LCS_MAX = 3000 }; /* lines per side for which the quadratic comparison is affordable (18 MB) */

/* A line of the text, without its newline. */
struct line {
    const char *at;
    size_t n;
};
/* One of the two programs as text. */
struct side {
    struct sg_buf text;
    struct line *lines; /* [n] */
    uint32_t n;
};

/* Names values by their number and removes `name` attributes and buildInfo, which do not change a program.
 * Names of inputs and outputs are kept, because callers bind by them. */
static segue_status rename_values(struct sg_mil_program *p, segue_error *err)
{
    for (uint32_t i = 0; i < p->functions_n; i++) {
        struct sg_mil_function *f = &p->functions[i];
        /* Remove the attribute by moving the following ones. */
        for (uint32_t o = 0; o < f->ops_n; o++)
            for (uint32_t a = 0; a < f->ops[o].attrs_n; a++)
                if (!strcmp(f->ops[o].attrs[a].name, "name")) {
                    memmove(&f->ops[o].attrs[a], &f->ops[o].attrs[a + 1],
                            (f->ops[o].attrs_n - a - 1) * sizeof *f->ops[o].attrs);
                    f->ops[o].attrs_n--;
                    break;
                }
        for (uint32_t v = f->params_n; v < f->values_n; v++) {
            int kept = 0;
            for (uint32_t r = 0; r < f->returns_n; r++) kept |= f->returns[r] == v;
            if (!kept && !(f->values[v].name = sg_arena_printf(&p->arena, "v%u", v)))
                return sg_no_memory("a comparison", 0, err);
        }
    }
    p->info_n = 0; /* the printer then writes a default buildInfo for both */
    return SEGUE_OK;
}

/* Prints a program and splits it into lines. */
static segue_status print_side(struct side *s, struct sg_mil_program *p, segue_error *err)
{
    SG_TRY(rename_values(p, err));
    SG_TRY(sg_mil_print(p, SG_MIL_VERBOSE, &s->text, err));
    /* Every line of the printed text ends with a newline. */
    for (const char *c = s->text.data; *c; c++) s->n += *c == '\n';
    s->lines = sg_alloc((s->n + (size_t)1) * sizeof *s->lines);
    if (!s->lines) return sg_no_memory("a comparison", s->n, err);
    const char *at = s->text.data;
    for (uint32_t i = 0; i < s->n; i++) {
        s->lines[i] = (struct line){at, strcspn(at, "\n")};
        at += s->lines[i].n + 1;
    }
    return SEGUE_OK;
}

/* 1: equal text. */
static int lines_equal(const struct line *a, const struct line *b)
{
    return a->n == b->n && !memcmp(a->at, b->at, a->n);
}

/* Appends a line without its indentation and counts it. */
static void put_line(struct sg_buf *out, char sign, const struct line *l, uint64_t *lines)
{
    const char *s = l->at;
    size_t n = l->n;
    while (n && *s == ' ') {
        s++;
        n--;
    }
    sg_buf_printf(out, "%c ", sign);
    sg_buf_add(out, s, n);
    sg_buf_puts(out, "\n");
    ++*lines;
}

/* Longest common subsequence of a[n] and b[m]: table[i][j] is its length for a[i..] and b[j..]. Walking the
 * table from the start gives the lines of only one side in order. Lengths fit 16 bits, because n and m are
 * at most LCS_MAX. */
static segue_status diff_middle(const struct line *a, uint32_t n, const struct line *b, uint32_t m,
                                struct sg_buf *out, uint64_t *lines, segue_error *err)
{
    uint16_t *table = sg_alloc((size_t)(n + 1) * (m + 1) * sizeof *table);
    if (!table) return sg_no_memory("a comparison", (size_t)n * m * 2, err);
#define LEFT(i, j) table[(size_t)(i) * (m + 1) + (j)]
    for (uint32_t i = n; i-- > 0;)
        for (uint32_t j = m; j-- > 0;)
            LEFT(i, j) = lines_equal(&a[i], &b[j])                ? (uint16_t)(LEFT(i + 1, j + 1) + 1)
                         : LEFT(i + 1, j) > LEFT(i, j + 1) ? LEFT(i + 1, j)
                                                           : LEFT(i, j + 1);
    /* A removed line comes before an added one when both choices keep the same length. */
    uint32_t i = 0, j = 0;
    while (i < n || j < m) {
        if (i < n && j < m && lines_equal(&a[i], &b[j])) {
            i++;
            j++;
        } else if (j == m || (i < n && LEFT(i + 1, j) >= LEFT(i, j + 1)))
            put_line(out, '-', &a[i++], lines);
        else
            put_line(out, '+', &b[j++], lines);
    }
#undef LEFT
    sg_free(table);
    return SEGUE_OK;
}

/* A middle that is too large is listed whole, as removed and added. */
static segue_status compare(struct side *a, struct side *b, struct sg_buf *out, uint64_t *lines,
                            segue_error *err)
{
    uint32_t from = 0, n = a->n, m = b->n;
    /* After these loops, lines [from, n) of a and [from, m) of b remain. */
    while (from < n && from < m && lines_equal(&a->lines[from], &b->lines[from])) from++;
    while (n > from && m > from && lines_equal(&a->lines[n - 1], &b->lines[m - 1])) {
        n--;
        m--;
    }
    if (n - from <= LCS_MAX && m - from <= LCS_MAX)
        return diff_middle(a->lines + from, n - from, b->lines + from, m - from, out, lines, err);
    for (uint32_t i = from; i < n; i++) put_line(out, '-', &a->lines[i], lines);
    for (uint32_t i = from; i < m; i++) put_line(out, '+', &b->lines[i], lines);
    return SEGUE_OK;
}

/* Both sides are freed in every case, because a failure may leave one of them half built. */
segue_status sg_mil_diff(struct sg_mil_program *a, struct sg_mil_program *b, struct sg_buf *out,
                         uint64_t *lines, segue_error *err)
{
    struct side sides[2] = {{{0}, NULL, 0}, {{0}, NULL, 0}};
    *lines = 0;
    segue_status status = print_side(&sides[0], a, err);
    if (status == SEGUE_OK) status = print_side(&sides[1], b, err);
    if (status == SEGUE_OK) status = compare(&sides[0], &sides[1], out, lines, err);
    for (int i = 0; i < 2; i++) {
        sg_buf_free(&sides[i].text);
        sg_free(sides[i].lines);
    }
    if (status == SEGUE_OK && out->failed) status = sg_no_memory("a comparison", out->len, err);
    return status;
}
