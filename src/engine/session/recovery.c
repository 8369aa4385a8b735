/* recovery.c: the host copy and the run boundaries that failover needs. Only bookkeeping; failover.c does the recovery.
 * SPDX-License-Identifier: MIT */
#include "engine/session/recovery.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/session/session.h"

segue_status sg_recovery_alloc(struct segue_session *s, segue_error *err)
{
    size_t bytes = s->context / 8 + 1;
    s->recovery.run_ends = sg_alloc(bytes);
    return s->recovery.run_ends ? SEGUE_OK : sg_no_memory("session", bytes, err);
}

void sg_recovery_free(struct segue_session *s)
{
    sg_hostcopy_free(&s->recovery.copy);
    sg_free(s->recovery.run_ends);
}

void sg_recovery_after_run(struct segue_session *s, uint32_t rows)
{
    uint8_t *edges = s->recovery.run_ends;
    for (uint64_t i = s->computed - rows; i < s->computed; i++) edges[i / 8] &= (uint8_t)~(1u << i % 8);
    edges[(s->computed - 1) / 8] |= (uint8_t)(1u << (s->computed - 1) % 8);
    s->recovery.runs_since_copy++;
}

void sg_recovery_cut(struct segue_session *s, uint64_t rows)
{
    sg_hostcopy_cut(&s->recovery.copy, rows);
    if (s->recovery.handoff_pos > rows) s->recovery.handoff_pos = rows;
}

void sg_recovery_reset(struct segue_session *s)
{
    sg_recovery_cut(s, 0);
    s->recovery.runs_since_copy = SG_RECOVERY_RUNS_MAX;
}

void sg_recovery_fork(struct segue_session *to, const struct segue_session *from)
{
    memcpy(to->recovery.run_ends, from->recovery.run_ends, from->context / 8 + 1);
    to->recovery.handoff_pos = from->recovery.handoff_pos;
}

/* 1: a unit of the session can be lost while this process continues. */
static int may_disconnect(const struct segue_session *s)
{
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < s->layouts[i].n; k++)
            if (s->layouts[i].stages[k].layer_range->unit->desc.may_disconnect) return 1;
    return 0;
}

/* A copy is due before the next chunk, and after SG_RECOVERY_RUNS_MAX short runs; not right after a hand-off, where it would
 * delay the first token. Without memory for it a loss costs more tokens. */
segue_status sg_recovery_update(struct segue_session *s, uint32_t rows, segue_error *err)
{
    struct sg_recovery *r = &s->recovery;
    uint64_t since = s->computed - (r->copy.complete ? r->copy.tokens : 0);
    uint64_t ahead = sg_session_capacity(s, &s->layouts[SG_DECODE_LAYOUT]);
    /* Memory is reserved during prefill, so that decode does not allocate. */
    if ((rows > 1 || !s->computed) && may_disconnect(s))
        sg_hostcopy_reserve(&r->copy, s->engine->graph, &s->layouts[SG_DECODE_LAYOUT], ahead, NULL);
    int due = r->runs_since_copy >= SG_RECOVERY_RUNS_MAX || (rows > 1 && since >= s->layouts[s->active].chunk_tokens);
    if (!since || !due || !may_disconnect(s) || !sg_layout_holds(&s->layouts[s->active])) return SEGUE_OK;
    segue_status status = sg_hostcopy_save(&r->copy, s->engine->graph, &s->layouts[s->active], s->computed, err);
    r->runs_since_copy = 0;
    return status == SEGUE_EMEMORY ? SEGUE_OK : status;
}

/* --- fault injection --- */

#ifdef SEGUE_FAULTS
static char fault_spec[64];
static atomic_ullong fault_row;      /* position of the token + 1; 0: none */

void sg_fault_lost(const char *spec, uint64_t row)
{
    snprintf(fault_spec, sizeof fault_spec, "%s", spec ? spec : "");
    atomic_store(&fault_row, spec ? row + 1 : 0);
}

int sg_fault_is_lost(const struct segue_unit *u, uint64_t first, uint32_t rows, segue_error *err)
{
    unsigned long long row = atomic_load(&fault_row);
    if (!row || row - 1 < first || row - 1 >= first + rows || strcmp(fault_spec, u->desc.info.spec)) return 0;
    atomic_store(&fault_row, 0);
    sg_fail(err, SEGUE_ELOST, "unit lost: %s: injected by SEGUE_FAULT at token %llu", u->desc.info.spec, row - 1);
    return 1;
}
#endif
