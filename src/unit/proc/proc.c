/* proc.c: the table of the unit `proc`; open, close, restart. SPDX-License-Identifier: MIT */
#include "unit/proc/proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "unit/spec.h"

enum { SILENCE_MS = 10000, SILENCE_MS_MAX = 3600000 };

extern const struct sg_unit_ops sg_unit_proc;

/* One entry that can be opened as is; any other spec may follow the colon. `reference`: used only when named. */
static segue_status proc_list(struct sg_unit_desc *out, size_t cap, size_t *n, segue_error *err)
{
    (void)err;
    *n = 1;
    if (!cap) return SEGUE_OK;
    *out = (struct sg_unit_desc){.lanes = 1, .samples = 1, .reference = 1, .may_disconnect = 1};
    out->info.size = sizeof out->info;
    out->info.built = out->info.present = 1;
    snprintf(out->info.spec, sizeof out->info.spec, "proc:ref");
    snprintf(out->info.kind, sizeof out->info.kind, "proc");
    snprintf(out->info.features, sizeof out->info.features, "proc:U: any unit U of this list in a separate process");
    return SEGUE_OK;
}

/* Ends the child first, then frees the tables. All programs, states and runs are gone by then. */
static void free_unit(struct sg_unit *u)
{
    proc_end(&u->child);
    proc_share_free(u);
    sg_free(u->program_ids);
    sg_free(u->loras);
    sg_chooser_free(u->chooser);
    sg_free(u->row);
    sg_free(u->run.spans);
    sg_free(u->run.rows_done);
    sg_free(u->run.values_at);
    sg_free(u->run.history);
    sg_free(u->state_ids);
    for (int i = 0; i < 2; i++) sg_buf_free(&u->out[i]);
    sg_lock_destroy(&u->lock, &u->changed);
    sg_free(u);
}

/* $SEGUE_UNIT_WAIT_MS, for slow machines and for tests, or the default, in ns. */
static uint64_t silence_limit(void)
{
    const char *text = getenv("SEGUE_UNIT_WAIT_MS");
    char *end = NULL;
    long ms = text && *text ? strtol(text, &end, 10) : 0;
    if (ms < 1 || ms > SILENCE_MS_MAX || *end) ms = SILENCE_MS;
    return (uint64_t)ms * 1000000u;
}

/* The spec after `proc:`. A proc unit inside a proc unit is refused. */
static segue_status inner_of(struct sg_unit *u, const struct sg_unit_spec *spec, segue_error *err)
{
    const char *inner = spec->pairs_n == 1 && !spec->pairs[0].key[0] ? spec->pairs[0].value : "";
    size_t n = strlen(inner);
    if (!n || n >= sizeof u->inner || !strncmp(inner, spec->kind, strlen(spec->kind)))
        return sg_fail(err, SEGUE_EARG, "unit not opened: %s: expected a unit after the colon, for example proc:cpu", spec->text);
    memcpy(u->inner, inner, n + 1);
    return SEGUE_OK;
}

/* A unit without a child; it counts as lost until the handshake. */
static segue_status unit_new(struct sg_unit **out, const struct sg_unit_spec *spec, segue_error *err)
{
    struct sg_unit *u = sg_alloc(sizeof *u);
    if (!u) return sg_no_memory("unit proc", sizeof *u, err);
    segue_status status = sg_lock_init(&u->lock, &u->changed, "unit proc", err);
    if (status != SEGUE_OK) {
        sg_free(u);
        return status;
    }
    u->base.ops = &sg_unit_proc;
    u->silence_ns = silence_limit();
    u->child.page.fd = u->child.areas[0].fd = u->child.areas[1].fd = -1;
    u->child.channels[0].fd = u->child.channels[1].fd = -1;
    atomic_init(&u->lost, 1);
    snprintf(u->why, sizeof u->why, "its process was not started");
    snprintf(u->desc.info.spec, sizeof u->desc.info.spec, "%s", spec->text);
    snprintf(u->desc.info.kind, sizeof u->desc.info.kind, "proc");
    *out = u;
    return SEGUE_OK;
}

/* A child that fails during the handshake is an error of open: EUNIT, not ELOST. */
static segue_status proc_open(struct sg_unit **out, const struct sg_unit_spec *spec, segue_error *err)
{
    struct sg_unit *u = NULL;
    segue_error why = {.text = ""};
    SG_TRY(unit_new(&u, spec, err));
    segue_status status = inner_of(u, spec, &why);
    if (status == SEGUE_OK) status = proc_begin(u, &why);
    if (status != SEGUE_OK) {
        free_unit(u);
        if (status == SEGUE_ELOST) return sg_fail(err, SEGUE_EUNIT, "unit not opened: %s: %.300s", spec->text, why.text);
        return sg_fail(err, status, "%s", why.text);
    }
    *out = u;
    return SEGUE_OK;
}

segue_status proc_open_fds(struct sg_unit **out, const int ends[2], segue_error *err)
{
    static const struct sg_unit_spec spec = {.kind = "proc", .text = "proc:U", .pairs_n = 1, .pairs = {{"", "U"}}};
    struct sg_unit *u = NULL;
    SG_TRY(unit_new(&u, &spec, err));
    for (int i = 0; i < 2; i++) sg_channel_init(&u->child.channels[i], ends[i]);
    segue_status status = proc_handshake(u, -1, err);
    if (status != SEGUE_OK) free_unit(u);
    else *out = u;
    return status;
}

static void proc_close(struct sg_unit *u)
{
    if (u) free_unit(u);
}

/* The lock is needed because a restart replaces the description. */
static void proc_describe(const struct sg_unit *u, struct sg_unit_desc *out)
{
    union { const pthread_mutex_t *in; pthread_mutex_t *out; } lock = {&u->lock};
    pthread_mutex_lock(lock.out);
    *out = u->desc;
    pthread_mutex_unlock(lock.out);
}

/* --- after a loss --- */

/* Both connections are held by the caller. All states are lost with the old child. */
static segue_status restart(struct sg_unit *u, segue_error *err)
{
    segue_error why = {.text = ""};
    if (!atomic_load(&u->lost)) return SEGUE_OK;
    proc_end(&u->child);
    if (u->state_ids_n) memset(u->state_ids, 0, u->state_ids_n);
    segue_status status = proc_begin(u, &why);
    if (status == SEGUE_OK) status = proc_share_again(u, &why);
    if (status == SEGUE_OK) return SEGUE_OK;
    if (status != SEGUE_ELOST) proc_lose(u, why.text, NULL); /* a partly restored child is not usable */
    return sg_fail(err, SEGUE_ELOST, "unit not restarted: %s: %.300s", u->desc.info.spec, why.text);
}

/* Both connections are entered, so that no other call is in progress. */
static segue_status proc_restart(struct sg_unit *u, segue_error *err)
{
    proc_enter(u, PROC_FIRST);
    proc_enter(u, PROC_SECOND);
    segue_status status = restart(u, err);
    proc_leave(u, PROC_SECOND);
    proc_leave(u, PROC_FIRST);
    return status;
}

/* The child measures; its result is checked for plausibility. */
static segue_status proc_stream(struct sg_unit *u, uint64_t bytes, double *gb_s, segue_error *err)
{
    struct sg_reader in;
    uint64_t bits = 0;
    proc_enter(u, PROC_FIRST);
    sg_put_u64(proc_request(u, PROC_FIRST), bytes);
    segue_status status = proc_call(u, PROC_FIRST, SG_WIRE_STREAM, -1, 0, &in, err);
    if (status == SEGUE_OK) bits = sg_reader_u64(&in);
    if (status == SEGUE_OK && !sg_reader_done(&in)) status = proc_lose(u, "it sent an invalid reply", err);
    proc_leave(u, PROC_FIRST);
    if (status != SEGUE_OK) return status;
    memcpy(gb_s, &bits, sizeof bits);
    return *gb_s > 0 && *gb_s < 1e9 ? SEGUE_OK : proc_lose(u, "it sent an invalid bandwidth", err);
}

const struct sg_unit_ops sg_unit_proc = {
    .kind = "proc",
    .list = proc_list,
    .open = proc_open,
    .close = proc_close,
    .describe = proc_describe,
    .can = proc_can,
    .compile = proc_compile,
    .discard = proc_discard,
    .footprint = proc_footprint,
    .start = proc_start,
    .wait = proc_wait,
    .state_new = proc_state_new,
    .state_free = proc_state_free,
    .state_fork = proc_state_fork,
    .state_mark = proc_state_mark,
    .state_back = proc_state_back,
    .state_drop = proc_state_drop,
    .state_cut = proc_state_cut,
    .state_held = proc_state_held,
    .state_bytes = proc_state_bytes,
    .state_get = proc_state_get,
    .state_put = proc_state_put,
    .stream = proc_stream,
    .kept = proc_kept,
    .compiles = proc_compiles,
    .restart = proc_restart,
};
