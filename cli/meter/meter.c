/* meter.c: --meter, see meter.h.
 * SPDX-License-Identifier: MIT */
#include "meter/meter.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "meter/meter_log.h"
#include "meter/recorder.h"
#include "meter/unit_meter.h"
#include "term/interrupt.h"

/* Counters of the placement's units. RAPL counts the processor for every unit of the machine, so a CPU unit is opened for it if
 * there is none. */
static segue_status open_units(struct meter *m, const char *kind, const struct placement *p, segue_error *err)
{
    segue_unit *units[UNIT_METERS];
    size_t n = 0;
    for (; n < p->units_n && n < UNIT_METERS - 1; n++) units[n] = p->units[n];
    bool all = !strcmp(kind, "all");
    if ((all || !strcmp(kind, "rapl")) && segue_unit_open(&m->own, "cpu:threads=1", err) == SEGUE_OK) units[n++] = m->own;
    segue_status st = unit_meter_open(&m->live, units, n, all ? NULL : kind, err);
    if (!st) {
        m->name = out_strdup(unit_meter_name(m->live));
        return st;
    }
    segue_error why = *err; /* of the last unit */
    return out_fail(err, st, "flag --meter: %s: no unit of this run can be measured (%.300s)", kind, why.text);
}

/* "powermetrics:FILE" or "asitop:FILE". */
static segue_status open_log(struct meter *m, const char *text, segue_error *err)
{
    const char *colon = strchr(text, ':');
    m->name = out_printf("%.*s", (int)(colon - text), text);
    m->path = out_strdup(colon + 1);
    FILE *f = fopen(m->path, "rb");
    if (!f) return out_fail_errno(err, "reading the meter log", m->path, NULL);
    fclose(f);
    return SEGUE_OK;
}

/* Starts powermetrics, whose log is in a new folder that belongs to this user alone. */
static segue_status open_recorder(struct meter *m, segue_error *err)
{
    const char *temporary = getenv("TMPDIR");
    if (geteuid())
        return out_fail(err, SEGUE_EUNSUPPORTED, "flag --meter: powermetrics: it needs root; use sudo, or powermetrics:FILE");
    m->name = out_strdup("powermetrics");
    m->folder = out_printf("%s/segue-power-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    if (!mkdtemp(m->folder)) return out_fail_errno(err, "making a folder for the meter log", m->folder, NULL);
    m->path = out_printf("%s/power.log", m->folder);
    const char *why = recorder_start(&m->recorder, m->path);
    return why ? out_fail(err, SEGUE_EUNSUPPORTED, "flag --meter: powermetrics: %s", why) : SEGUE_OK;
}

/* The idle window: nothing of segue runs. */
static void wait_idle(struct meter *m, double seconds)
{
    struct timespec piece = {0, 50000000};
    m->idle_from = out_now_ns();
    while ((double)(out_now_ns() - m->idle_from) < seconds * 1e9 && !interrupt_pending()) nanosleep(&piece, NULL);
    m->idle_to = out_now_ns();
}

/* Idle power must have been sampled well; of a log it is known only later. */
static segue_status check_idle(struct meter *m, segue_error *err)
{
    struct energy_use idle = {0};
    char buffer[160];
    if (!m->live || !m->idle_to) return SEGUE_OK;
    unit_meter_add(m->live, m->idle_from, m->idle_to, &idle);
    const char *why = energy_refusal(&idle, buffer, sizeof buffer);
    return why ? out_fail(err, SEGUE_EUNIT, "flag --meter-idle: %s: %s; use more seconds", m->name, why) : SEGUE_OK;
}

static segue_status open_kind(struct meter *m, const char *kind, const struct placement *p, segue_error *err)
{
    *m = (struct meter){0};
    if (!strncmp(kind, "powermetrics:", 13) || !strncmp(kind, "asitop:", 7)) return open_log(m, kind, err);
    if (!strcmp(kind, "powermetrics")) return open_recorder(m, err);
    if (!strcmp(kind, "nvml") || !strcmp(kind, "rapl") || !strcmp(kind, "all")) return open_units(m, kind, p, err);
    return out_fail(err, SEGUE_EARG,
                    "flag --meter: %.40s: unknown; use nvml, rapl, all, powermetrics[:FILE] or asitop:FILE", kind);
}

segue_status meter_try(struct meter *m, const char *kind, const struct placement *p, segue_error *err)
{
#ifdef __APPLE__
    const char *usual = geteuid() ? "all" : "powermetrics";
#else
    const char *usual = "all";
#endif
    segue_status st = open_kind(m, kind ? kind : usual, p, err);
    if (st) meter_close(m);
    return st;
}

int meter_open(struct meter *m, const struct args *args, const struct placement *p)
{
    const char *kind = args_text(args, "meter");
    segue_error err;
    *m = (struct meter){0};
    if (!kind || !strcmp(kind, "none")) return EXIT_DONE;
    segue_status st = open_kind(m, kind, p, &err);
    if (!st && args_has(args, "meter-idle")) {
        wait_idle(m, args_number(args, "meter-idle", 0));
        st = check_idle(m, &err);
    }
    if (!st) return EXIT_DONE;
    meter_close(m);
    return out_error(&err, EXIT_UNAVAILABLE);
}

static bool covers(const struct meter *m, uint64_t to) { return m->log.n && m->log.points[m->log.n - 1].ns >= to; }

/* Read the log again. Its clock is the wall clock. */
static void read_again(struct meter *m)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    int64_t offset = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (int64_t)out_now_ns();
    energy_free(&m->log);
    m->log_error.text[0] = 0;
    meter_log_read(&m->log, m->name, m->path, offset, &m->log_error);
}

/* Until the log reaches the time. Of a log of its own, the next samples are waited for. */
static void update_log(struct meter *m, uint64_t to)
{
    struct timespec pause = {0, RECORDER_MS * 1000000L};
    if (!covers(m, to)) read_again(m);
    for (int tries = 0; m->recorder && !covers(m, to) && tries < 10; tries++) {
        nanosleep(&pause, NULL);
        read_again(m);
    }
}

/* One window of counters or of the log. */
static void add_window(struct meter *m, uint64_t from, uint64_t to, struct energy_use *use)
{
    if (m->live)
        unit_meter_add(m->live, from, to, use);
    else {
        update_log(m, to);
        energy_add(&m->log, from, to, use);
    }
}

void meter_add(struct meter *m, uint64_t from, uint64_t to, size_t tokens, struct meter_phase *phase)
{
    if (!m || !m->name) return;
    add_window(m, from, to, &phase->use);
    phase->tokens += tokens;
}

double meter_read(struct meter *m) { return m->live ? unit_meter_now(m->live) : -1; }

/* Every field null with one reason. */
static json_t *null_json(const char *reason, bool totals)
{
    static const char *const names[] = {"prefill_j", "decode_j", "prefill_j_per_token", "decode_j_per_token", "prefill_samples",
                                        "decode_samples", "power_w", "idle_w", "rails", "sources", "samples", "meter"};
    json_t *o = json_object();
    for (size_t i = totals ? 0 : 2; i < sizeof names / sizeof *names; i++) out_null(o, names[i], reason);
    return o;
}

json_t *meter_json(struct meter *m, const struct meter_phase *prefill, const struct meter_phase *decode, bool totals)
{
    struct energy_use idle = {0};
    if (!m || !m->name) return null_json("not requested; use --meter", totals);
    if (m->idle_to) add_window(m, m->idle_from, m->idle_to, &idle);
    if (!m->live && m->log_error.text[0]) return null_json(m->log_error.text, totals);
    const struct energy_series *s = m->live ? unit_meter_channels(m->live) : &m->log;
    return meter_series_json(s, m->name, m->idle_to ? &idle : NULL, prefill, decode, totals);
}

void meter_close(struct meter *m)
{
    recorder_end(m->recorder);
    if (m->folder && m->path) unlink(m->path);
    if (m->folder) rmdir(m->folder);
    unit_meter_close(m->live);
    segue_unit_close(m->own);
    energy_free(&m->log);
    free(m->name);
    free(m->path);
    free(m->folder);
    *m = (struct meter){0};
}
