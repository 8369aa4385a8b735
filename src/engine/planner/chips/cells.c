/* cells.c: see cells.h. SPDX-License-Identifier: MIT */
#include "engine/planner/chips/cells.h"

#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "engine/planner/chips/lines.h"

enum { COLUMNS_MAX = 64, CELLS_MAX = 100000, FIELD_MAX = 4096 };
/* Numeric columns, after the text columns of the header. */
enum { COLUMN_PROMPT = SG_CELL_TEXTS, COLUMN_OUTPUT, COLUMN_VALUE, COLUMN_N };

static const char *const column_names[COLUMN_N] = {
    [SG_CELL_CHIP] = "chip",           [SG_CELL_MODEL] = "model",      [SG_CELL_PRECISION] = "precision",
    [SG_CELL_PIPELINE] = "pipeline",   [SG_CELL_METRIC] = "metric",    [SG_CELL_SET] = "set",
    [COLUMN_PROMPT] = "prompt_tokens", [COLUMN_OUTPUT] = "new_tokens", [COLUMN_VALUE] = "value",
};

static segue_status fail(const char *file, uint32_t line, const char *why, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT, "cell file: %.80s: line %u: %s", file, line, why);
}

/* The next field of a line into out[FIELD_MAX]; quotes are removed. *at ends after the comma. NULL, or what is wrong. */
static const char *next_field(const char **at, const char *end, char *out)
{
    const char *s = *at;
    size_t n = 0;
    int quoted = s < end && *s == '"';
    if (quoted) s++;
    for (; s < end && (quoted || *s != ','); s++) {
        if (quoted && *s == '"' && !(s + 1 < end && s[1] == '"')) break;
        if (quoted && *s == '"') s++;
        if (n == FIELD_MAX - 1) return "a field has more than 4095 bytes";
        out[n++] = *s;
    }
    out[n] = 0;
    if (quoted && s++ >= end) return "a quoted field does not end; fields may not contain line ends";
    if (s < end && *s != ',') return "text follows a quoted field; expected a comma";
    *at = s < end ? s + 1 : NULL;
    return NULL;
}

/* columns[i]: which of column_names field i is; -1: another one. */
struct columns {
    int at[COLUMNS_MAX];
    size_t n;
};

static segue_status read_header(struct columns *columns, const struct sg_cells *c, const char *file, segue_error *err)
{
    char field[FIELD_MAX];
    const char *at = c->header, *end = c->header + c->header_len;
    unsigned seen = 0;
    for (columns->n = 0; at; columns->n++) {
        const char *why = next_field(&at, end, field);
        if (!why && columns->n == COLUMNS_MAX) why = "more than 64 columns";
        if (why) return fail(file, 1, why, err);
        columns->at[columns->n] = -1;
        for (int i = 0; i < COLUMN_N; i++)
            if (!strcmp(column_names[i], field)) columns->at[columns->n] = i, seen |= 1u << i;
    }
    for (int i = 0; i < COLUMN_N; i++)
        if (i != SG_CELL_SET && i < COLUMN_OUTPUT && !(seen >> i & 1))
            return sg_fail(err, SEGUE_EFORMAT, "cell file: %.80s: line 1: no column %s; the first line names the columns", file,
                           column_names[i]);
    return SEGUE_OK;
}

/* One field into the cell. NULL, or what is wrong. */
static const char *store(struct sg_cell *cell, int column, const char *field)
{
    double v = -1;
    if (column < SG_CELL_TEXTS) {
        if (strlen(field) >= sizeof cell->text[0]) return "a name has more than 95 bytes";
        strcpy(cell->text[column], field);
        return NULL;
    }
    /* Words such as "none" or "short" are no numbers and no mistakes; what is half a number is one. */
    size_t letters = strspn(field, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    if (field[letters] == 0 && strcasecmp(field, "nan") != 0 && strcasecmp(field, "inf") != 0) return NULL;
    if (!sg_number_of(field, strlen(field), &v) || v < 0 || v > 1e12)
        return column == COLUMN_VALUE ? "value is not a number from 0 to 1e12"
                                      : "a number of tokens is not a number from 0 to 1e12";
    if (column == COLUMN_PROMPT) cell->prompt = v;
    if (column == COLUMN_OUTPUT) cell->output = v;
    if (column == COLUMN_VALUE) cell->value = v;
    return NULL;
}

static segue_status read_row(struct sg_cell *cell, const struct columns *columns, const char *file, segue_error *err)
{
    char field[FIELD_MAX];
    const char *at = cell->row, *end = at + cell->row_len;
    size_t i = 0;
    for (; at; i++) {
        const char *why = next_field(&at, end, field);
        if (!why && i >= columns->n) why = "more fields than the first line names";
        if (!why && columns->at[i] >= 0) why = store(cell, columns->at[i], field);
        if (why) return fail(file, cell->line, why, err);
    }
    return i == columns->n ? SEGUE_OK : fail(file, cell->line, "fewer fields than the first line names", err);
}

/* The next line of [*at, end) without its end; 0: there is none. */
static int next_line(const char **at, const char *end, const char **line, size_t *n)
{
    if (*at >= end) return 0;
    const char *newline = memchr(*at, '\n', (size_t)(end - *at));
    *line = *at;
    *n = (size_t)((newline ? newline : end) - *at);
    *at = newline ? newline + 1 : end;
    if (*n && (*line)[*n - 1] == '\r') --*n;
    return 1;
}

static segue_status add_cell(struct sg_cells *c, struct sg_cell **out, segue_error *err)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 256;
        struct sg_cell *list = sg_realloc(c->list, cap * sizeof *list);
        if (!list) return sg_no_memory("cells", cap * sizeof *list, err);
        c->list = list;
        c->cap = cap;
    }
    *out = &c->list[c->n++];
    **out = (struct sg_cell){.prompt = -1, .output = -1, .value = -1};
    return SEGUE_OK;
}

segue_status sg_cells_read(struct sg_cells *out, const char *text, size_t n, const char *file, segue_error *err)
{
    struct columns columns;
    uint32_t number = 1;
    *out = (struct sg_cells){0};
    for (size_t i = 0; i < n; i++)
        if (!text[i]) return fail(file, 1, "it contains a zero byte; this is not a CSV file", err);
    if (sg_buf_add(&out->data, text, n)) return sg_no_memory("cell file", n, err);
    const char *at = out->data.data, *end = at + n;
    if (!next_line(&at, end, &out->header, &out->header_len))
        return fail(file, 1, "empty; the first line names the columns", err);
    SG_TRY(read_header(&columns, out, file, err));
    struct sg_cell row = {0}, *cell = NULL;
    while (next_line(&at, end, &row.row, &row.row_len)) {
        number++;
        if (!row.row_len) continue;
        if (out->n >= CELLS_MAX)
            return sg_fail(err, SEGUE_ELIMIT, "cell file: %.80s: line %u: more than %d lines; split the file", file, number,
                           CELLS_MAX);
        SG_TRY(add_cell(out, &cell, err));
        cell->row = row.row;
        cell->row_len = row.row_len;
        cell->line = number;
        SG_TRY(read_row(cell, &columns, file, err));
    }
    return SEGUE_OK;
}

void sg_cells_free(struct sg_cells *c)
{
    sg_buf_free(&c->data);
    sg_free(c->list);
    *c = (struct sg_cells){0};
}

const char *sg_cell_predict(const struct sg_cell *cell, const struct sg_chips *chips, double *out)
{
    struct sg_published_task t = {.shared = chips->shared, .prompt = cell->prompt, .output = cell->output};
    const char *precision = cell->text[SG_CELL_PRECISION];
    t.chip = sg_chip_find(chips, cell->text[SG_CELL_CHIP]);
    if (!t.chip) return "the chip has no chip file";
    t.shape = sg_shape_find(cell->text[SG_CELL_MODEL]);
    if (!t.shape) return "the sizes of the model are not known";
    t.bytes = sg_storage_bytes(precision, &t.unpacked);
    if (t.bytes <= 0) return "the precision is not known";
    t.pipeline = sg_pipeline_find(cell->text[SG_CELL_PIPELINE]);
    /* What these benchmarks call FP16 are fp32 activations on 16-bit weights: the same machine decodes the BF16 file 2.5 times
     * as fast. */
    t.widened = !strcasecmp(precision, "FP16") && t.pipeline != SG_PIPE_LLAMA && t.pipeline != SG_PIPE_MLX_LM;
    return sg_published_metric(&t, cell->text[SG_CELL_METRIC], out);
}

double sg_cell_factor(const struct sg_cell *cell, const struct sg_chips *chips)
{
    const struct sg_chip *chip = sg_chip_find(chips, cell->text[SG_CELL_CHIP]);
    int npu = sg_pipeline_find(cell->text[SG_CELL_PIPELINE]) != SG_PIPE_LLAMA;
    if (!chip || sg_chip_unverified(chip)) return 2;
    if (sg_pipeline_find(cell->text[SG_CELL_PIPELINE]) == SG_PIPE_FIXED && strcmp(cell->text[SG_CELL_METRIC], "decode_tok_s"))
        return 1.4;
    /* A chip of which only other programs were measured. */
    if (npu && chip->source[SG_CHIP_NPU_STREAM] < SG_SOURCE_FITTED) return 1.5;
    return 1.15;
}
