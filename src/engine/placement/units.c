/* units.c: the table of all units of this build (from the generated unit_list.h), the public functions on units, and the queue
 * for their lanes. The only file that sees all units; it names none of them. SPDX-License-Identifier: MIT */
#include "engine/placement/units.h"

#include <string.h>
#include <time.h>

#include "base/lock.h"
#include "base/mem.h"
#include "engine/sized.h"
#include "unit/serve.h"
#include "unit/spec.h"

#define SG_UNIT(name) extern const struct sg_unit_ops sg_unit_##name;
#include "unit_list.h"
#undef SG_UNIT
#define SG_UNIT(name) &sg_unit_##name,
static const struct sg_unit_ops *const table[] = {
#include "unit_list.h"
    NULL};
#undef SG_UNIT

enum { ENTRIES_MAX = 32 }; /* entries of one kind, such as the cards of one host */

/* --- list --- */

segue_status segue_unit_list(segue_unit_info *out, size_t cap, size_t *n, segue_error *err)
{
    size_t total = 0, stride = 0;
    if (!n || (cap && !out))
        return sg_fail(err, SEGUE_EARG, "units not listed: out or n is NULL; pass both");
    if (cap) stride = out[0].size;
    if (cap && stride < sizeof out->size)
        return sg_fail(err, SEGUE_EARG,
                       "units not listed: the size of the first entry is not set; use SEGUE_INIT");
    for (size_t i = 0; table[i]; i++) {
        struct sg_unit_desc desc[ENTRIES_MAX] = {0};
        size_t found = 0;
        SG_TRY(table[i]->list(desc, ENTRIES_MAX, &found, err));
        if (found > ENTRIES_MAX) found = ENTRIES_MAX;
        for (size_t j = 0; j < found; j++, total++) {
            if (total >= cap) continue;
            char *entry =
                (char *)out + total * stride; /* the caller's struct may be of an older, shorter version */
            desc[j].info.size = (uint32_t)stride;
            memcpy(entry, &desc[j].info, stride < sizeof desc[j].info ? stride : sizeof desc[j].info);
        }
    }
    *n = total;
    return SEGUE_OK;
}

static int unnamed(const struct sg_unit_desc *d)
{
    return d->info.present && !d->info.simulated && !d->reference && !d->named_only;
}

int sg_unit_unnamed(const char *spec)
{
    for (size_t i = 0; table[i]; i++) {
        struct sg_unit_desc desc[ENTRIES_MAX] = {0};
        size_t found = 0;
        if (table[i]->list(desc, ENTRIES_MAX, &found, NULL) != SEGUE_OK) continue;
        for (size_t j = 0; j < found && j < ENTRIES_MAX; j++)
            if (!strcmp(desc[j].info.spec, spec)) return unnamed(&desc[j]);
    }
    return 0;
}

/* The fastest real unit that is present. The list is in ascending order of speed, so it is the last one that may be chosen
 * without being named. */
static segue_status fastest(char *spec, size_t cap, segue_error *err)
{
    spec[0] = 0;
    for (size_t i = 0; table[i]; i++) {
        struct sg_unit_desc desc[ENTRIES_MAX] = {0};
        size_t found = 0;
        if (table[i]->list(desc, ENTRIES_MAX, &found, NULL) != SEGUE_OK) continue;
        for (size_t j = 0; j < found && j < ENTRIES_MAX; j++) {
            if (!unnamed(&desc[j])) continue;
            size_t len = strnlen(desc[j].info.spec, sizeof desc[j].info.spec);
            if (len >= cap) continue;
            memcpy(spec, desc[j].info.spec, len);
            spec[len] = 0;
            break; /* the first entry of a kind is its best */
        }
    }
    if (spec[0]) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNIT,
                   "unit not opened: no spec given and no unit of this machine can be selected; name a unit, for example ref");
}

/* --- open, close --- */

/* The error for a kind that this build lacks; it lists the kinds that there are. */
static segue_status unknown_kind(const struct sg_unit_spec *spec, segue_error *err)
{
    char kinds[128] = "";
    size_t len = 0;
    for (size_t i = 0; table[i]; i++) {
        size_t n = strlen(table[i]->kind);
        if (len + n + 2 > sizeof kinds) break;
        if (i) kinds[len++] = ' ';
        memcpy(kinds + len, table[i]->kind, n + 1);
        len += n;
    }
    return sg_fail(err, SEGUE_EUNIT, "unit not opened: %s: this build has no unit of kind '%s'; it has: %s",
                   spec->text, spec->kind, kinds);
}

/* The engine's object around an opened unit. */
static segue_status wrap(struct segue_unit **out, struct sg_unit *unit, segue_error *err)
{
    struct segue_unit *u = sg_alloc(sizeof *u);
    if (!u) return sg_no_memory("unit", sizeof *u, err);
    segue_status status = sg_lock_init(&u->lock, &u->changed, "unit", err);
    if (status != SEGUE_OK) {
        sg_free(u);
        return status;
    }
    atomic_init(&u->references, 1);
    u->unit = unit;
    sg_ops_of(unit)->describe(unit, &u->desc);
    if (!u->desc.lanes) u->desc.lanes = 1;
    *out = u;
    return SEGUE_OK;
}

/* Opens a unit by its spec, without the engine's object. */
static segue_status open_bare(struct sg_unit **out, const char *text, segue_error *err)
{
    struct sg_unit_spec spec;
    SG_TRY(sg_spec_parse(&spec, text, err));
    size_t i = 0;
    while (table[i] && strcmp(table[i]->kind, spec.kind) != 0) i++;
    return table[i] ? table[i]->open(out, &spec, err) : unknown_kind(&spec, err);
}

segue_status segue_unit_open(segue_unit **out, const char *spec_text, segue_error *err)
{
    char chosen[64];
    struct sg_unit *unit = NULL;
    if (!out) return sg_fail(err, SEGUE_EARG, "unit not opened: out is NULL; pass it");
    if (!spec_text || !*spec_text) {
        SG_TRY(fastest(chosen, sizeof chosen, err));
        spec_text = chosen;
    }
    SG_TRY(open_bare(&unit, spec_text, err));
    segue_status status = wrap(out, unit, err);
    if (status != SEGUE_OK) sg_ops_of(unit)->close(unit);
    return status;
}

segue_status sg_unit_serve(int fd, segue_error *err) { return sg_serve(fd, open_bare, err); }

struct segue_unit *sg_unit_share(struct segue_unit *u)
{
    atomic_fetch_add(&u->references, 1);
    return u;
}

void segue_unit_close(segue_unit *u)
{
    if (!u || atomic_fetch_sub(&u->references, 1) != 1) return;
    sg_ops_of(u->unit)->close(u->unit);
    sg_lock_destroy(&u->lock, &u->changed);
    sg_free(u);
}

segue_status segue_unit_info_get(const segue_unit *unit, segue_unit_info *out, segue_error *err)
{
    struct sg_unit_desc now; /* queried again: a restarted unit may be another process */
    if (!unit) return sg_fail(err, SEGUE_EARG, "unit info not read: the unit is NULL; open one");
    sg_ops_of(unit->unit)->describe(unit->unit, &now);
    return sg_sized_out(out, &now.info, sizeof now.info, "unit info", err);
}

segue_status segue_unit_energy(segue_unit *unit, segue_energy *out, segue_error *err)
{
    segue_energy now = SEGUE_INIT(segue_energy);
    if (!unit) return sg_fail(err, SEGUE_EARG, "energy not read: the unit is NULL; open one");
    const struct sg_unit_ops *ops = sg_ops_of(unit->unit);
    if (!ops->meter)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "energy not read: %s: the unit has no energy counter; use another",
                       unit->desc.info.spec);
    SG_TRY(ops->meter(unit->unit, &now, err));
    return sg_sized_out(out, &now, sizeof now, "energy", err);
}

segue_status segue_unit_stream(segue_unit *unit, size_t bytes, double *gb_s, segue_error *err)
{
    if (!unit || !gb_s)
        return sg_fail(err, SEGUE_EARG, "bandwidth not measured: unit or gb_s is NULL; pass both");
    const struct sg_unit_ops *ops = sg_ops_of(unit->unit);
    if (!ops->stream)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "bandwidth not measured: %s: the unit does not support it; use another",
                       unit->desc.info.spec);
    SG_TRY(sg_unit_enter(unit, NULL, err));
    segue_status status = ops->stream(unit->unit, bytes, gb_s, err);
    sg_unit_leave(unit);
    return status;
}

/* --- lanes --- */

/* Waits for a change, at most 10 ms: a cancel may come from a signal handler, which cannot signal a condition variable. */
static void wait_briefly(struct segue_unit *u)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 10000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&u->changed, &u->lock, &until);
}

/* The lock is held. A canceled waiter may be anywhere in the queue. */
static void unlink_waiter(struct segue_unit *u, struct sg_unit_waiter *waiter)
{
    struct sg_unit_waiter **at = &u->first;
    while (*at != waiter) at = &(*at)->next;
    *at = waiter->next;
}

static uint32_t is_long(const struct segue_unit *u, uint32_t rows)
{
    return u->desc.lanes > 1 && u->desc.long_rows && rows > u->desc.long_rows;
}

/* The lock is held. 1: a lane is free for such a run. */
static int fits(const struct segue_unit *u, uint32_t long_run)
{
    return u->running < u->desc.lanes && (!long_run || u->long_running + 1 < u->desc.lanes);
}

/* The lock is held. The first waiter that fits; NULL: none. */
static const struct sg_unit_waiter *next_waiter(const struct segue_unit *u)
{
    const struct sg_unit_waiter *t = u->first;
    while (t && !fits(u, t->is_long)) t = t->next;
    return t;
}

/* Queues this thread and waits until it is the next one that fits. */
static segue_status enter(struct segue_unit *u, uint32_t long_run, const atomic_int *cancel, segue_error *err)
{
    struct sg_unit_waiter waiter = {.is_long = long_run}, **last = &u->first;
    int canceled = 0;
    pthread_mutex_lock(&u->lock);
    while (*last) last = &(*last)->next;
    *last = &waiter;
    while (!canceled && next_waiter(u) != &waiter) {
        wait_briefly(u);
        canceled = cancel && atomic_load(cancel);
    }
    unlink_waiter(u, &waiter);
    if (!canceled) {
        u->running++;
        u->long_running += long_run;
    }
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
    if (!canceled) return SEGUE_OK;
    return sg_fail(err, SEGUE_ECANCELED,
                   "run not started: %s: canceled while waiting for the unit; call again to continue",
                   u->desc.info.spec);
}

static void leave(struct segue_unit *u, uint32_t long_run)
{
    pthread_mutex_lock(&u->lock);
    u->running--;
    u->long_running -= long_run;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
}

segue_status sg_unit_enter(struct segue_unit *u, const atomic_int *cancel, segue_error *err)
{
    return enter(u, 0, cancel, err);
}

int sg_unit_try_enter(struct segue_unit *u)
{
    pthread_mutex_lock(&u->lock);
    int entered = !next_waiter(u) && fits(u, 0);
    u->running += (uint32_t)entered;
    pthread_mutex_unlock(&u->lock);
    return entered;
}

void sg_unit_leave(struct segue_unit *u) { leave(u, 0); }

segue_status sg_unit_enter_run(struct segue_unit *u, uint32_t rows, const atomic_int *cancel, segue_error *err)
{
    return enter(u, is_long(u, rows), cancel, err);
}

void sg_unit_leave_run(struct segue_unit *u, uint32_t rows) { leave(u, is_long(u, rows)); }
