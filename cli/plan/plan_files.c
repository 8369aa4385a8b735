/* plan_files.c: see plan_files.h. SPDX-License-Identifier: MIT */
#include "plan/plan_files.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "engine/planner/chips/cells.h"
#include "host/folders.h"
#include "plan/probe_units.h"
#include "term/out.h"
#include "chip_texts.h"

enum { FILE_LIMIT = 1 << 24 }; /* bytes of a chip file or a cell file */

/* The chip of a file: the value of its first line `name`; empty if it has none. */
static void own_name(char name[32], const char *text)
{
    name[0] = 0;
    for (const char *s = text; s; s = strchr(s, '\n')) {
        char word[32];
        while (*s == '\n') s++;
        if (sscanf(s, "name %31s", word) == 1 && sg_chip_name(name, word)) return;
    }
    name[0] = 0;
}

segue_status plan_chips_open(struct sg_chips *out, char name[32], const char *chip, segue_error *err)
{
    struct sg_buf text = {0};
    name[0] = 0;
    segue_status st = sg_chips_builtin(out, err);
    if (st || !chip) return st;
    if (sg_chip_find(out, chip)) {
        sg_chip_name(name, chip);
        return SEGUE_OK;
    }
    if (sg_path_kind(chip) != SG_PATH_FILE) {
        struct out_text known = {0};
        for (size_t i = 0; i < out->n; i++) out_addf(&known, "%s%s", i ? ", " : "", out->list[i].name);
        st = out_fail(err, SEGUE_EARG, "chip: %.80s: neither a known chip nor a file; the chips are %s", chip, known.data);
        free(known.data);
        return st;
    }
    st = sg_file_read(&text, chip, FILE_LIMIT, err);
    if (!st) st = sg_chips_read(out, text.data ? text.data : "", text.len, chip, err);
    if (!st && text.data) own_name(name, text.data);
    sg_buf_free(&text);
    return st;
}

segue_status plan_cells_open(struct sg_cells *out, const char *path, segue_error *err)
{
    struct sg_buf text = {0};
    *out = (struct sg_cells){0};
    segue_status st = sg_file_read(&text, path, FILE_LIMIT, err);
    if (!st) st = sg_cells_read(out, text.data ? text.data : "", text.len, path, err);
    sg_buf_free(&text);
    return st;
}

segue_status plan_costs_open(struct sg_unit_costs *out, const char **why, segue_error *err)
{
    char *path = folders_path("cache", "calibration.chip"), machine[40];
    struct sg_buf text = {0};
    memset(out, 0, sizeof *out);
    *why = NULL;
    if (!folders_is_file(path))
        *why = "no calibration; run segue calibrate";
    else if (sg_file_read_own(&text, path, FILE_LIMIT, err) ||
             sg_unit_costs_read(out, text.data ? text.data : "", text.len, path, err))
        *why = "the calibration cannot be read; run segue calibrate";
    probe_machine(machine);
    if (!*why && *out->machine && strcmp(machine, out->machine) != 0)
        *why = "the calibration is of another machine, or of other limits on its cores; run segue calibrate";
    if (*why) memset(out, 0, sizeof *out);
    sg_buf_free(&text);
    free(path);
    return SEGUE_OK;
}

segue_status plan_costs_save(const struct sg_unit_costs *costs, const char *path, segue_error *err)
{
    struct sg_buf text = {0};
    char *folder = folders_home("cache"), *own = folders_path("cache", "calibration.chip");
    sg_buf_puts(&text, "# Made by segue calibrate on this machine.\n");
    sg_unit_costs_write(costs, &text);
    segue_status st = path ? SEGUE_OK : folders_make(folder, err);
    if (!st) st = plan_write(path ? path : own, &text, err);
    sg_buf_free(&text);
    free(folder);
    free(own);
    return st;
}

static bool is_stdout(const char *path) { return !path || !strcmp(path, "-") || !strcmp(path, "/dev/stdout"); }

/* An flock ends with the process, so that none is left behind. */
static segue_status lock_calibration(int *lock, segue_error *err)
{
    char *path = folders_path("cache", "calibration.lock");
    segue_status st = SEGUE_OK;
    errno = 0;
    *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*lock < 0)
        st = out_fail_errno(err, "calibrate: locking", path, "check the permissions, or write elsewhere with --output");
    else if (flock(*lock, LOCK_EX | LOCK_NB)) {
        close(*lock);
        *lock = -1;
        st = out_fail(err, SEGUE_EIO, "calibrate: %.200s: another segue calibrate measures now, and both would be too slow; wait",
                      path);
    }
    free(path);
    return st;
}

segue_status plan_costs_begin(const char *path, int *lock, segue_error *err)
{
    struct sg_file_out file;
    *lock = -1;
    if (path) {
        if (is_stdout(path)) return SEGUE_OK;
        SG_TRY(sg_file_begin(&file, path, 0644, err));
        sg_file_close(&file);
        return SEGUE_OK;
    }
    char *folder = folders_home("cache");
    segue_status st = folders_make(folder, err);
    free(folder);
    return st ? st : lock_calibration(lock, err);
}

segue_status plan_costs_of_chip(struct sg_unit_costs *out, const char *chip, segue_error *err)
{
    struct sg_buf text = {0};
    char name[32], file[48];
    memset(out, 0, sizeof *out);
    if (sg_path_kind(chip) == SG_PATH_FILE) {
        segue_status st = sg_file_read(&text, chip, FILE_LIMIT, err);
        if (!st) st = sg_unit_costs_read(out, text.data ? text.data : "", text.len, chip, err);
        sg_buf_free(&text);
        return st;
    }
    snprintf(file, sizeof file, "%s.chip", sg_chip_name(name, chip) ? name : "");
    for (size_t i = 0; i < sizeof chip_texts / sizeof *chip_texts; i++)
        if (!strcmp(chip_texts[i].name, file))
            return sg_unit_costs_read(out, chip_texts[i].text, strlen(chip_texts[i].text), file, err);
    return SEGUE_OK;
}

segue_status plan_write(const char *path, const struct sg_buf *text, segue_error *err)
{
    struct sg_file_out file;
    if (text->failed) return sg_no_memory("text", text->len, err);
    if (is_stdout(path)) return out_write_raw(text->data ? text->data : "", text->len, err);
    segue_status st = sg_file_begin(&file, path, 0644, err);
    if (!st) st = sg_file_put(&file, text->data ? text->data : "", text->len, err);
    if (!st) st = sg_file_commit(&file, err);
    sg_file_close(&file);
    return st;
}

void plan_predict_rows(struct sg_buf *out, const struct sg_cells *cells, const struct sg_chips *chips, struct plan_score *score,
                       bool header, const unsigned char *chosen)
{
    if (header) sg_buf_printf(out, "%.*s,predicted,predicted_lo,predicted_hi,reason\n", (int)cells->header_len, cells->header);
    for (size_t i = 0; i < cells->n; i++) {
        const struct sg_cell *cell = &cells->list[i];
        double v = 0;
        if (chosen && !chosen[i]) continue;
        const char *why = sg_cell_predict(cell, chips, &v);
        sg_buf_printf(out, "%.*s,", (int)cell->row_len, cell->row);
        if (why)
            sg_buf_printf(out, ",,,%s\n", why);
        else {
            double factor = sg_cell_factor(cell, chips);
            sg_buf_printf(out, "%.6g,%.6g,%.6g,\n", v, v / factor, v * factor);
        }
        score->cells++;
        score->predicted += !why;
        score->within += !why && cell->value > 0 && fabs(v / cell->value - 1) <= 0.1;
    }
}
