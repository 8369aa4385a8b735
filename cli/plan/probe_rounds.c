/* probe_rounds.c: measuring cases in turn, see probe_units.h. SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include "plan/probe_units.h"
#include "term/interrupt.h"
#include "term/out.h"

#define ENOUGH_MS 400.0 /* runs of one case, what comes before the measured part included */
#define SHORT_MS 20.0   /* runs as short as a time slice of the scheduler do not predict longer ones */

int probe_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#define HURRIED_NS 15000000000u
#define HURRIED .25

/* Time of the runs of one case. 0: one run beside the first. */
static double enough_ms(const struct probe *p)
{
    uint64_t now = out_now_ns();
    if (!p->hurry_ns || now < p->hurry_ns) return ENOUGH_MS;
    return now < p->hurry_ns + HURRIED_NS ? HURRIED * ENOUGH_MS : 0;
}

/* One run. The first one does not count unless it is so long that one or two tell enough. */
static segue_status run_once(struct probe *p, struct probe_sample *s, int round, segue_error *err)
{
    struct probe_times t;
    if (interrupt_pending()) return out_fail(err, SEGUE_ECANCELED, "calibrate: interrupted; run it again");
    const double enough = enough_ms(p);
    if (s->spent_ms > enough && (s->n > 1 || (s->n && s->spent_ms > 2 * enough))) return SEGUE_OK;
    uint64_t start = out_now_ns();
    segue_status st = probe_run(p, &s->c, &t, err);
    if (st && interrupt_pending()) return out_fail(err, SEGUE_ECANCELED, "calibrate: interrupted; run it again");
    if (st) return st;
    s->spent_ms += (double)(out_now_ns() - start) * 1e-6;
    if (!round && s->spent_ms < ENOUGH_MS) return SEGUE_OK;
    s->handoffs[s->n] = t.handoff_ms;
    s->ms[s->n++] = s->c.output ? t.token_ms : t.ttft_ms;
    return SEGUE_OK;
}

static void add_spread(struct probe_spread *s, const struct probe_sample *from)
{
    double tokens = from->c.output ? (double)from->c.output : 1;
    if (from->least * tokens < SHORT_MS || from->n < 2) return;
    for (size_t i = 0; i < from->n && s->n < PROBE_SAMPLES; i++) s->of[s->n++] = log(from->ms[i] / from->least);
}

static void finish(struct probe *p, struct probe_sample *s)
{
    qsort(s->ms, s->n, sizeof *s->ms, probe_compare);
    qsort(s->handoffs, s->n, sizeof *s->handoffs, probe_compare);
    s->least = s->ms[0], s->usual = (s->ms[s->n / 2] + s->ms[(s->n - 1) / 2]) / 2, s->handoff = s->handoffs[0];
    if (s->c.prefill == s->c.decode)
        add_spread(&p->spread[s->c.prefill][s->c.output ? SG_PHASE_STEP : SG_PHASE_PREFILL], s);
}

segue_status probe_rounds(struct probe *p, struct probe_sample *samples, size_t n, segue_error *err)
{
    for (int round = 0; round <= PROBE_ROUNDS; round++)
        for (size_t i = 0; i < n; i++) SG_TRY(run_once(p, &samples[i], round, err));
    for (size_t i = 0; i < n; i++) finish(p, &samples[i]);
    return SEGUE_OK;
}
