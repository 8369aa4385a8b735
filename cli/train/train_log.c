/* train_log.c: see train_log.h. SPDX-License-Identifier: MIT */
#include "train/train_log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/folders.h"
#include "report/chart.h"
#include "run/prompt.h"

/* --- metrics --- */

static const char of_all[] = "step,loss,learning_rate,gradient_norm,tokens,seconds,held_out_loss,dispatches,compiles,joules,"
                             "roof_share",
                  of_grpo[] = ",reward,reward_deviation,kl,clipped,answer_tokens";
enum { COLUMNS = 11, COLUMNS_GRPO = 5 };

/* The numbers of a line, NAN where a field is empty. false: it has another number of fields, or was cut. */
static bool read_line(const char *line, size_t len, double *out, size_t n)
{
    const char *end = line + len;
    for (size_t i = 0; i < n; i++) {
        char *after = NULL;
        out[i] = line < end && *line != ',' ? strtod(line, &after) : NAN;
        if (after == line || (after && after > end)) return false;
        line = after ? after : line;
        if (i + 1 < n && (line >= end || *line++ != ',')) return false;
    }
    return line == end;
}

static void append(struct train_log *l, const struct train_step *s)
{
    if ((l->n & (l->n - 1)) == 0) l->steps = out_realloc(l->steps, (l->n ? 2 * l->n : 1) * sizeof *l->steps);
    l->steps[l->n++] = *s;
    l->steps[l->n - 1].sample = NULL;
}

/* An update of an earlier process. */
static void take_line(struct train_log *l, const double *x)
{
    struct train_step s = {.step = (uint64_t)x[0], .loss = x[1], .rate = x[2], .norm = x[3], .held_out = x[6], .joules = x[9],
                           .ms = (x[5] - l->earlier_s) * 1e3};
    s.tokens = (uint64_t)x[4] - l->earlier_tokens;
    s.device.dispatches = (uint64_t)x[7], s.device.compiles = (uint64_t)x[8];
    if (l->grpo) s.reward = x[11], s.reward_deviation = x[12], s.kl = x[13], s.clipped = x[14], s.answer_tokens = x[15];
    l->earlier_tokens = (uint64_t)x[4];
    l->earlier_s = x[5];
    if (isfinite(s.joules)) l->joules += s.joules;
    append(l, &s);
    l->earlier_n = l->n;
}

/* Takes the updates up to `done`; *kept: bytes of their lines and the first one. Later lines were written after the checkpoint:
 * these updates are repeated. */
static segue_status read_earlier(struct train_log *l, const char *path, const char *text, uint64_t done, size_t *kept,
                                 segue_error *err)
{
    size_t first = strcspn(text, "\n"), n = l->grpo ? COLUMNS + COLUMNS_GRPO : COLUMNS;
    char *head = out_printf("%s%s", of_all, l->grpo ? of_grpo : "");
    bool mine = strlen(head) == first && !strncmp(head, text, first) && text[first];
    free(head);
    if (!mine)
        return out_fail(err, SEGUE_EFORMAT, "train: metrics: %.200s: its first line is not that of the run that continues; give "
                        "another file", path);
    *kept = first + 1;
    for (const char *line = text + *kept, *stop; (stop = strchr(line, '\n')); line = stop + 1) {
        double x[COLUMNS + COLUMNS_GRPO];
        bool good = read_line(line, (size_t)(stop - line), x, n) && x[0] >= 1 && x[0] <= (double)done && x[4] >= 0 && x[7] >= 0 &&
                    x[8] >= 0 && x[4] >= (double)l->earlier_tokens && x[5] >= l->earlier_s && x[4] < 1e18 && x[5] < 1e18 &&
                    x[7] < 1e18 && x[8] < 1e18;
        if (!good || (l->n && x[0] <= (double)l->steps[l->n - 1].step)) break;
        take_line(l, x);
        *kept = (size_t)(stop + 1 - text);
    }
    return SEGUE_OK;
}

/* Writes the lines that are kept under a temporary name, which replaces the file. */
static segue_status rewrite(const char *path, const char *text, size_t n, segue_error *err)
{
    char *tmp;
    FILE *f = out_temporary(path, 0666, &tmp);
    bool written = f && fwrite(text, 1, n, f) == n;
    written = f && fclose(f) == 0 && written && rename(tmp, path) == 0;
    segue_status st = written ? SEGUE_OK : out_fail_errno(err, "train: metrics", path, NULL);
    if (f && !written) remove(tmp);
    free(tmp);
    return st;
}

segue_status train_log_open(struct train_log *l, const char *path, uint64_t done, segue_error *err)
{
    struct out_text text = {0};
    size_t kept = 0;
    l->start_ns = out_now_ns();
    if (!path) return SEGUE_OK;
    segue_status st = SEGUE_OK;
    if (done && folders_is_file(path)) { /* a pipe has no earlier lines, and to read one would wait */
        st = prompt_file(path, &text, err);
        if (!st && text.len) st = read_earlier(l, path, text.data, done, &kept, err);
        if (!st && kept < text.len) st = rewrite(path, text.data, kept, err);
    }
    free(text.data);
    if (st) return st;
    l->csv = fopen(path, kept ? "a" : "w");
    if (!l->csv) return out_fail_errno(err, "train: metrics", path, NULL);
    if (!kept) fprintf(l->csv, "%s%s\n", of_all, l->grpo ? of_grpo : "");
    return SEGUE_OK;
}

void train_log_close(struct train_log *l)
{
    if (l->csv) fclose(l->csv);
    free(l->steps);
}

double train_log_roof_share(const struct train_log *l, const struct train_step *s)
{
    return l->roof > 0 && !l->grpo ? l->flops * (double)s->tokens / s->ms * 1e3 / l->roof : NAN;
}

static void put_csv(const struct train_log *l, const struct train_step *s)
{
    double share = train_log_roof_share(l, s);
    fprintf(l->csv, "%llu,%.9g,%.9g,%.9g,%llu,%.3f,", (unsigned long long)s->step, s->loss, s->rate, s->norm,
            (unsigned long long)(l->earlier_tokens + l->tokens), l->earlier_s + (double)(out_now_ns() - l->start_ns) / 1e9);
    if (isfinite(s->held_out)) fprintf(l->csv, "%.9g", s->held_out);
    fprintf(l->csv, ",%llu,%llu,", (unsigned long long)s->device.dispatches, (unsigned long long)s->device.compiles);
    if (isfinite(s->joules)) fprintf(l->csv, "%.9g", s->joules);
    fputc(',', l->csv);
    if (isfinite(share)) fprintf(l->csv, "%.4g", share);
    if (l->grpo)
        fprintf(l->csv, ",%.6g,%.6g,%.6g,%.6g,%.6g", s->reward, s->reward_deviation, s->kl, s->clipped, s->answer_tokens);
    fputc('\n', l->csv);
    fflush(l->csv);
}

/* --- JSON --- */

/* Figures of the unit, of `n` updates, per update. */
static void put_device(json_t *o, const segue_train_result *d, double n)
{
    json_object_set_new(o, "dispatches", out_real((double)d->dispatches / n));
    json_object_set_new(o, "device_ms", out_real((double)d->device_ns / 1e6 / n));
    json_object_set_new(o, "overlap_ratio", out_real(d->device_ns ? (double)d->overlap_ns / (double)d->device_ns : 0));
    json_object_set_new(o, "input_weight_bytes", out_real((double)d->weight_bytes / n));
    json_object_set_new(o, "overflows", out_real((double)d->overflows / n));
    json_object_set_new(o, "underflows", out_real((double)d->underflows / n));
    json_object_set_new(o, "simulated_ms", out_real((double)d->simulated_ns / 1e6 / n));
    if (!d->simulated_ns) out_null(o, "simulated_ms", "the unit measures its time");
}

static void put_json(const struct train_log *l, const struct train_step *s)
{
    segue_error err;
    json_t *o = json_pack("{s:I, s:o, s:I, s:o, s:o, s:o, s:I, s:o}", "step", (json_int_t)s->step, "loss", out_real(s->loss),
                          "tokens", (json_int_t)s->tokens, "tok_s", out_real((double)s->tokens / s->ms * 1e3), "lr",
                          out_real(s->rate), "grad_norm", out_real(s->norm), "compiles", (json_int_t)s->device.compiles, "ms",
                          out_real(s->ms));
    if (isfinite(s->held_out)) json_object_set_new(o, "val_loss", out_real(s->held_out));
    json_object_set_new(o, "gflops", out_real(l->flops * (double)s->tokens / s->ms / 1e6));
    if (isfinite(train_log_roof_share(l, s))) json_object_set_new(o, "roof_share", out_real(train_log_roof_share(l, s)));
    if (isfinite(s->joules)) json_object_set_new(o, "joules", out_real(s->joules));
    if (s->sample) json_object_set_new(o, "sample", out_string(s->sample, strlen(s->sample)));
    if (l->device) put_device(o, &s->device, 1);
    if (l->grpo) {
        json_object_set_new(o, "reward", out_real(s->reward));
        json_object_set_new(o, "reward_deviation", out_real(s->reward_deviation));
        json_object_set_new(o, "kl", out_real(s->kl));
        json_object_set_new(o, "clip_ratio", out_real(s->clipped));
        json_object_set_new(o, "answer_tokens", out_real(s->answer_tokens));
    }
    (void)out_json(o, 0, &err); /* a closed pipe ends the command by its signal */
}

segue_status train_log_add(struct train_log *l, const struct train_step *s, segue_error *err)
{
    append(l, s);
    l->tokens += s->tokens;
    if (isfinite(s->joules)) l->joules += s->joules;
    l->sum.dispatches += s->device.dispatches, l->sum.compiles += s->device.compiles;
    l->sum.simulated_ns += s->device.simulated_ns, l->sum.device_ns += s->device.device_ns;
    l->sum.overlap_ns += s->device.overlap_ns, l->sum.weight_bytes += s->device.weight_bytes;
    l->sum.overflows += s->device.overflows, l->sum.underflows += s->device.underflows;
    if (l->n > l->earlier_n + 1) l->late_compiles += s->device.compiles;
    if (l->json) put_json(l, s);
    if (l->csv) put_csv(l, s); /* last, for errno */
    if (!l->csv || !ferror(l->csv)) return SEGUE_OK;
    return out_fail_errno(err, "train: metrics", "the file of --metrics", "free some space, then repeat the command");
}

void train_log_put(const struct train_log *l, json_t *result)
{
    if (l->roof > 0) json_object_set_new(result, "roof_gflops", out_real(l->roof / 1e9));
    else out_null(result, "roof_gflops", l->roof_error.text);
    if (!l->device || l->n == l->earlier_n) return;
    json_t *o = json_object();
    put_device(o, &l->sum, (double)(l->n - l->earlier_n));
    json_object_set_new(o, "compiles", json_integer((json_int_t)l->sum.compiles));
    json_object_set_new(o, "compiles_after_first_step", json_integer((json_int_t)l->late_compiles));
    json_object_set_new(result, "per_step", o);
}

/* --- the page --- */

enum fields { LOSS, HELD_OUT, RATE, NORM, SPEED, REWARD };

static double field_of(const struct train_step *s, enum fields f)
{
    const double values[] = {[LOSS] = s->loss, [HELD_OUT] = s->held_out, [RATE] = s->rate, [NORM] = s->norm,
                             [SPEED] = (double)s->tokens / s->ms * 1e3, [REWARD] = s->reward};
    return values[f];
}

static struct chart_point *points_of(const struct train_log *l, enum fields f, size_t *n)
{
    struct chart_point *points = out_alloc((l->n + 1) * sizeof *points);
    *n = 0;
    for (size_t i = 0; i < l->n; i++) {
        double y = field_of(&l->steps[i], f);
        if (isfinite(y)) points[(*n)++] = (struct chart_point){.x = (double)l->steps[i].step, .y = y};
    }
    return points;
}

static void put_chart(struct html_page *p, const struct train_log *l, const char *caption, const char *unit,
                      const enum fields *fields, const char *const *names, size_t n)
{
    struct chart_series series[2];
    const struct chart_axes axes = {.x = "updates", .y = unit};
    for (size_t i = 0; i < n; i++) {
        series[i] = (struct chart_series){.name = names[i], .line = true};
        series[i].points = points_of(l, fields[i], &series[i].n);
    }
    chart_lines(p, caption, &axes, series, n, NULL, 0);
    for (size_t i = 0; i < n; i++) free((void *)(uintptr_t)series[i].points);
}

static void put_table(struct html_page *p, const struct train_log *l)
{
    static const char *const titles[] = {"updates", "tokens", "first loss", "last loss", "seconds", "tokens/s"};
    double seconds = 0, tokens = (double)(l->earlier_tokens + l->tokens);
    for (size_t i = 0; i < l->n; i++) seconds += l->steps[i].ms / 1e3;
    html_table_begin(p, titles, sizeof titles / sizeof *titles);
    html_row(p);
    html_number(p, (double)l->n, 0);
    html_number(p, tokens, 0);
    html_number(p, l->n ? l->steps[0].loss : NAN, 4);
    html_number(p, l->n ? l->steps[l->n - 1].loss : NAN, 4);
    html_number(p, seconds, 1);
    html_number(p, tokens / seconds, 0);
    html_table_end(p);
}

segue_status train_log_page(const struct train_log *l, const char *title, segue_error *err)
{
    struct html_page page = {0};
    if (!l->html) return SEGUE_OK;
    html_begin(&page, title, l->earlier_n ? "Updates of `segue train`, those before the last start included."
                                                 : "Updates of this process of `segue train`.");
    put_table(&page, l);
    if (l->grpo) put_chart(&page, l, "Mean reward", "reward", (enum fields[]){REWARD}, (const char *const[]){"reward"}, 1);
    put_chart(&page, l, "Loss per labelled token", "nats", (enum fields[]){LOSS, HELD_OUT},
              (const char *const[]){"training", "held out"}, 2);
    put_chart(&page, l, "Norm of the gradient, before clipping", "norm", (enum fields[]){NORM}, (const char *const[]){"norm"}, 1);
    put_chart(&page, l, "Learning rate", "rate", (enum fields[]){RATE}, (const char *const[]){"rate"}, 1);
    put_chart(&page, l, "Speed", "tokens/s", (enum fields[]){SPEED}, (const char *const[]){"tokens/s"}, 1);
    return html_write(&page, l->html, err);
}
