/* train_log.c: see train_log.h. SPDX-License-Identifier: MIT */
#include "train/train_log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/chart.h"

segue_status train_log_open(struct train_log *l, const char *path, bool more, segue_error *err)
{
    l->start_ns = out_now_ns();
    if (!path) return SEGUE_OK;
    l->csv = fopen(path, more ? "a" : "w");
    if (!l->csv) return out_fail_errno(err, "train: metrics", path, NULL);
    if (!more)
        fprintf(l->csv, "step,loss,learning_rate,gradient_norm,tokens,seconds,held_out_loss,dispatches,compiles,joules%s\n",
                l->grpo ? ",reward,reward_deviation,kl,clipped,answer_tokens" : "");
    return SEGUE_OK;
}

void train_log_close(struct train_log *l)
{
    if (l->csv) fclose(l->csv);
    free(l->steps);
}

static void put_csv(const struct train_log *l, const struct train_step *s)
{
    fprintf(l->csv, "%llu,%.9g,%.9g,%.9g,%llu,%.3f,", (unsigned long long)s->step, s->loss, s->rate, s->norm,
            (unsigned long long)l->tokens, (double)(out_now_ns() - l->start_ns) / 1e9);
    if (isfinite(s->held_out)) fprintf(l->csv, "%.9g", s->held_out);
    fprintf(l->csv, ",%llu,%llu,", (unsigned long long)s->device.dispatches, (unsigned long long)s->device.compiles);
    if (isfinite(s->joules)) fprintf(l->csv, "%.9g", s->joules);
    if (l->grpo)
        fprintf(l->csv, ",%.6g,%.6g,%.6g,%.6g,%.6g", s->reward, s->reward_deviation, s->kl, s->clipped, s->answer_tokens);
    fputc('\n', l->csv);
    fflush(l->csv);
}

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

void train_log_add(struct train_log *l, const struct train_step *s)
{
    if ((l->n & (l->n - 1)) == 0) l->steps = out_realloc(l->steps, (l->n ? 2 * l->n : 1) * sizeof *l->steps);
    l->steps[l->n++] = *s;
    l->steps[l->n - 1].sample = NULL;
    l->tokens += s->tokens;
    if (isfinite(s->joules)) l->joules += s->joules;
    l->sum.dispatches += s->device.dispatches, l->sum.compiles += s->device.compiles;
    l->sum.simulated_ns += s->device.simulated_ns, l->sum.device_ns += s->device.device_ns;
    l->sum.overlap_ns += s->device.overlap_ns, l->sum.weight_bytes += s->device.weight_bytes;
    l->sum.overflows += s->device.overflows, l->sum.underflows += s->device.underflows;
    if (l->n > 1) l->late_compiles += s->device.compiles;
    if (l->csv) put_csv(l, s);
    if (l->json) put_json(l, s);
}

void train_log_put(const struct train_log *l, json_t *result)
{
    if (!l->device || !l->n) return;
    json_t *o = json_object();
    put_device(o, &l->sum, (double)l->n);
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
    double seconds = 0;
    for (size_t i = 0; i < l->n; i++) seconds += l->steps[i].ms / 1e3;
    html_table_begin(p, titles, sizeof titles / sizeof *titles);
    html_row(p);
    html_number(p, (double)l->n, 0);
    html_number(p, (double)l->tokens, 0);
    html_number(p, l->n ? l->steps[0].loss : NAN, 4);
    html_number(p, l->n ? l->steps[l->n - 1].loss : NAN, 4);
    html_number(p, seconds, 1);
    html_number(p, (double)l->tokens / seconds, 0);
    html_table_end(p);
}

segue_status train_log_page(const struct train_log *l, const char *title, segue_error *err)
{
    struct html_page page = {0};
    if (!l->html) return SEGUE_OK;
    html_begin(&page, title, "Updates of this process of `segue train`.");
    put_table(&page, l);
    if (l->grpo) put_chart(&page, l, "Mean reward", "reward", (enum fields[]){REWARD}, (const char *const[]){"reward"}, 1);
    put_chart(&page, l, "Loss per labelled token", "nats", (enum fields[]){LOSS, HELD_OUT},
              (const char *const[]){"training", "held out"}, 2);
    put_chart(&page, l, "Norm of the gradient, before clipping", "norm", (enum fields[]){NORM}, (const char *const[]){"norm"}, 1);
    put_chart(&page, l, "Learning rate", "rate", (enum fields[]){RATE}, (const char *const[]){"rate"}, 1);
    put_chart(&page, l, "Speed", "tokens/s", (enum fields[]){SPEED}, (const char *const[]){"tokens/s"}, 1);
    return html_write(&page, l->html, err);
}
