/* unit_meter.c: see unit_meter.h. A point is recorded when a counter has changed, so that the number of points says how often the
 * device really measured (NVML ten to fifty times per second, RAPL a thousand times), not how often it was asked.
 * SPDX-License-Identifier: MIT */
#include "meter/unit_meter.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PERIOD_NS = 5000000, TAIL_NS = 300000000 };

struct unit_meter {
    segue_unit *units[UNIT_METERS];
    size_t n;
    char name[24];
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    struct energy_series series;
    double last[ENERGY_CHANNELS];
    bool stop, started;
};

/* Text of a spec up to its first option: two units of equal text use one device. */
static bool same_device(const segue_unit *a, const segue_unit *b)
{
    segue_unit_info x = SEGUE_INIT(segue_unit_info), y = x;
    segue_error ignored;
    if (a == b) return true;
    if (segue_unit_info_get(a, &x, &ignored) || segue_unit_info_get(b, &y, &ignored)) return false;
    size_t n = strcspn(x.spec, ",");
    return !strcmp(x.kind, "cpu") ? !strcmp(y.kind, "cpu") : n == strcspn(y.spec, ",") && !strncmp(x.spec, y.spec, n);
}

/* All counters now. names NULL: values only. False: a counter failed. */
static bool read_all(struct unit_meter *m, double *joules, struct energy_series *names)
{
    size_t channel = 1;
    memset(joules, 0, ENERGY_CHANNELS * sizeof *joules);
    for (size_t i = 0; i < m->n; i++) {
        segue_energy e = SEGUE_INIT(segue_energy);
        segue_unit_info info = SEGUE_INIT(segue_unit_info);
        segue_error ignored;
        if (segue_unit_energy(m->units[i], &e, &ignored)) return false;
        joules[0] += e.joules;
        if (names) segue_unit_info_get(m->units[i], &info, &ignored);
        for (size_t k = 0; k <= e.rails_n && channel < ENERGY_CHANNELS; k++) {
            if (!k && m->n == 1) continue; /* the only device is channel 0 */
            joules[channel] = k ? e.rails[k - 1].joules : e.joules;
            if (names) {
                char *to = names->names[channel];
                size_t cap = sizeof names->names[channel];
                int spec_n = (int)strcspn(info.spec, ",");
                snprintf(to, cap, "%.*s%s%s", m->n == 1 ? 0 : spec_n < 14 ? spec_n : 14, info.spec, k && m->n > 1 ? " " : "",
                         k ? e.rails[k - 1].name : "");
                names->counted[channel] = true;
            }
            channel++;
        }
    }
    if (names) names->channels = channel;
    return true;
}

/* One reading; forced: recorded also if nothing has changed. */
static void sample(struct unit_meter *m, bool forced)
{
    double joules[ENERGY_CHANNELS];
    bool ok = read_all(m, joules, NULL);
    uint64_t now = out_now_ns();
    if (!ok || (!forced && !memcmp(joules, m->last, sizeof joules))) return;
    memcpy(m->last, joules, sizeof joules);
    energy_append(&m->series, now, joules);
}

static void *run(void *argument)
{
    struct unit_meter *m = argument;
    struct timespec period = {0, PERIOD_NS};
    for (bool stop = false; !stop;) {
        nanosleep(&period, NULL);
        pthread_mutex_lock(&m->lock);
        stop = m->stop;
        if (!stop) sample(m, false);
        pthread_mutex_unlock(&m->lock);
    }
    return NULL;
}

/* Take the units that have the wanted counter, each device once. */
static segue_status choose(struct unit_meter *m, segue_unit *const *units, size_t n, const char *only, segue_error *err)
{
    out_fail(err, SEGUE_EUNSUPPORTED, "energy not read: no unit has this counter; remove --meter");
    for (size_t i = 0; i < n && m->n < UNIT_METERS; i++) {
        segue_energy e = SEGUE_INIT(segue_energy);
        bool known = !units[i];
        for (size_t k = 0; k < m->n && !known; k++) known = same_device(units[i], m->units[k]);
        if (known || segue_unit_energy(units[i], &e, err) || (only && strcmp(only, e.meter) != 0)) continue;
        m->units[m->n++] = units[i];
        if (strstr(m->name, e.meter)) continue;
        size_t len = strlen(m->name);
        snprintf(m->name + len, sizeof m->name - len, "%s%.10s", len ? "+" : "", e.meter);
    }
    return m->n ? SEGUE_OK : SEGUE_EUNSUPPORTED;
}

segue_status unit_meter_open(struct unit_meter **out, segue_unit *const *units, size_t n, const char *only, segue_error *err)
{
    struct unit_meter *m = out_alloc(sizeof *m);
    *out = NULL;
    segue_status st = choose(m, units, n, only, err);
    if (!st && !read_all(m, m->last, &m->series))
        st = out_fail(err, SEGUE_EUNIT, "energy not read: %s: a counter failed; remove --meter", m->name);
    if (st) {
        free(m);
        return st;
    }
    for (size_t i = 0; i < m->n; i++) {
        segue_unit_info info = SEGUE_INIT(segue_unit_info);
        size_t len = strlen(m->series.names[0]);
        segue_unit_info_get(m->units[i], &info, err);
        snprintf(m->series.names[0] + len, sizeof m->series.names[0] - len, "%s%.*s", len ? " + " : "",
                 (int)strcspn(info.spec, ","), info.spec);
    }
    m->series.counted[0] = true;
    pthread_mutex_init(&m->lock, NULL);
    sample(m, true);
    m->started = pthread_create(&m->thread, NULL, run, m) == 0;
    if (m->started) {
        *out = m;
        return SEGUE_OK;
    }
    unit_meter_close(m);
    return out_fail(err, SEGUE_EMEMORY, "energy not read: no thread could be started; remove --meter");
}

void unit_meter_add(struct unit_meter *m, uint64_t from, uint64_t to, struct energy_use *use)
{
    struct timespec period = {0, PERIOD_NS};
    uint64_t begin = out_now_ns();
    pthread_mutex_lock(&m->lock);
    /* The change that contains the end of the window may come later; a counter that stands still is read once more. */
    while (m->series.points[m->series.n - 1].ns < to && out_now_ns() - begin < TAIL_NS) {
        pthread_mutex_unlock(&m->lock);
        nanosleep(&period, NULL);
        pthread_mutex_lock(&m->lock);
    }
    if (m->series.points[m->series.n - 1].ns < to) sample(m, true);
    energy_add(&m->series, from, to, use);
    pthread_mutex_unlock(&m->lock);
}

double unit_meter_now(struct unit_meter *m)
{
    double joules[ENERGY_CHANNELS];
    pthread_mutex_lock(&m->lock);
    bool ok = read_all(m, joules, NULL);
    double since = joules[0] - m->series.points[0].joules[0];
    pthread_mutex_unlock(&m->lock);
    return ok ? since : -1;
}

const struct energy_series *unit_meter_channels(const struct unit_meter *m) { return &m->series; }

const char *unit_meter_name(const struct unit_meter *m) { return m->name; }

void unit_meter_close(struct unit_meter *m)
{
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_mutex_unlock(&m->lock);
    if (m->started) pthread_join(m->thread, NULL);
    pthread_mutex_destroy(&m->lock);
    energy_free(&m->series);
    free(m);
}
