/* check_handoff_bench.c: level handoff with --bench: how long a unit takes to put the state of a whole model behind 410 tokens
 * (Qwen3.5-0.8B's: 25.2 MB) into a new state of its own, and to get it out again: all slots, from and to touched memory of the
 * host, and from and to what the unit lends for that where it lends any. What comes out must be what went in.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "check.h"

enum { LAYERS = 24, FULL_EVERY = 4, ROWS = 410, SAMPLES = 9, SLOTS_MAX = 2 * LAYERS };

struct handoff_timing {
    const struct check_unit *u;
    struct sg_slot slots[SLOTS_MAX];
    uint32_t slots_n;
    const struct sg_host_memory *host; /* NULL: memory of malloc */
    void *in[SLOTS_MAX], *out[SLOTS_MAX];
    size_t bytes[SLOTS_MAX], all;
    double put[SAMPLES], get[SAMPLES];
};

static void make_slots(struct handoff_timing *b)
{
    for (uint32_t i = 0; i < LAYERS; i++) {
        if ((i + 1) % FULL_EVERY == 0) {
            b->slots[b->slots_n++] = (struct sg_slot){.kind = SG_SLOT_K, .layer = i, .heads = 2, .width = 256};
            b->slots[b->slots_n++] = (struct sg_slot){.kind = SG_SLOT_V, .layer = i, .heads = 2, .width = 256};
        } else {
            b->slots[b->slots_n++] = (struct sg_slot){.kind = SG_SLOT_CONV, .layer = i, .heads = 3, .width = 6144};
            b->slots[b->slots_n++] = (struct sg_slot){.kind = SG_SLOT_DELTA, .layer = i, .heads = 16, .width = 128, .depth = 128};
        }
    }
    for (uint32_t i = 0; i < b->slots_n; i++) {
        size_t row = sg_slot_row_bytes(&b->slots[i], SG_F16);
        b->bytes[i] = row ? row * ROWS : sg_slot_fixed_bytes(&b->slots[i]);
        b->all += b->bytes[i];
    }
}

static void *take(struct handoff_timing *b, size_t n) { return b->host ? b->host->take(b->host->owner, n) : malloc(n); }

static void leave(struct handoff_timing *b)
{
    for (uint32_t i = 0; i < 2 * b->slots_n; i++) {
        void *p = i < b->slots_n ? b->in[i] : b->out[i - b->slots_n];
        if (p && b->host) b->host->leave(b->host->owner, p);
        else free(p);
    }
}

/* Small numbers in either storage: every byte is below that of an infinity. */
static segue_status make_memory(struct handoff_timing *b, struct check_rng *r, segue_error *err)
{
    for (uint32_t i = 0; i < b->slots_n; i++) {
        b->in[i] = take(b, b->bytes[i]);
        b->out[i] = take(b, b->bytes[i]);
        if (!b->in[i] || !b->out[i]) return sg_fail(err, SEGUE_EMEMORY, "check: no memory for %zu bytes", b->bytes[i]);
        for (size_t k = 0; k < b->bytes[i]; k++) ((uint8_t *)b->in[i])[k] = (uint8_t)check_below(r, 0x3c);
        memset(b->out[i], 1, b->bytes[i]);
    }
    return SEGUE_OK;
}

static enum sg_storage storage_of(const struct sg_slot *s) { return s->kind <= SG_SLOT_V ? SG_F16 : SG_F32; }
static uint64_t rows_of(const struct sg_slot *s) { return s->kind <= SG_SLOT_V ? ROWS : 0; }

static segue_status sample(struct handoff_timing *b, struct sg_state *s, uint32_t i, segue_error *err)
{
    const struct sg_unit_ops *ops = b->u->ops;
    uint64_t start_ns = sg_now_ns();
    for (uint32_t k = 0; k < b->slots_n; k++)
        SG_TRY(ops->state_put(s, k, 0, rows_of(&b->slots[k]), storage_of(&b->slots[k]), b->in[k], err));
    SG_TRY(ops->state_put(s, UINT32_MAX, ROWS, ROWS, SG_F32, NULL, err));
    b->put[i] = (double)(sg_now_ns() - start_ns);
    start_ns = sg_now_ns();
    for (uint32_t k = 0; k < b->slots_n; k++)
        SG_TRY(ops->state_get(s, k, 0, rows_of(&b->slots[k]), storage_of(&b->slots[k]), b->out[k], err));
    if (ops->state_flush) SG_TRY(ops->state_flush(s, err));
    b->get[i] = (double)(sg_now_ns() - start_ns);
    return SEGUE_OK;
}

static int by_size(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static void report(struct check *c, const struct handoff_timing *b, const char *what, const char *memory, double *samples,
                   const segue_error *err)
{
    struct check_case k = {.level = "handoff", .unit = b->u->spec, .against = "-", .rate_unit = "GB/s"};
    char why[sizeof err->text];
    snprintf(k.name, sizeof k.name, "bench.%s.%s.%d", what, memory, ROWS);
    if (!check_wants(c, &k)) return;
    snprintf(why, sizeof why, "%s", err->text);
    if (err->status) {
        k.skipped = why;
    } else {
        qsort(samples, SAMPLES, sizeof *samples, by_size);
        k.ns = k.against_ns = samples[SAMPLES / 2];
        k.rate = (double)b->all / k.ns;
        for (uint32_t i = 0; i < b->slots_n; i++)
            if (memcmp(b->in[i], b->out[i], b->bytes[i])) k.max_abs = INFINITY;
    }
    check_report(c, &k);
}

static void measure(struct check *c, const struct check_unit *u, const struct sg_host_memory *host)
{
    struct handoff_timing b = {.u = u, .host = host};
    struct check_rng r = check_rng_of(c->seed, "handoff.bench", 0);
    struct sg_state_opts o = {.kv = SG_F16, .rows = ROWS, .filled = 1};
    segue_error err = {0};
    make_slots(&b);
    segue_status status = c->list ? SEGUE_OK : make_memory(&b, &r, &err);
    for (uint32_t i = 0; i < SAMPLES && status == SEGUE_OK && !c->list; i++) {
        struct sg_state *s = NULL;
        status = u->ops->state_new(u->unit, b.slots, b.slots_n, &o, &s, &err);
        if (status == SEGUE_OK) status = sample(&b, s, i, &err);
        if (s) u->ops->state_free(s);
    }
    err.status = status;
    report(c, &b, "put", host ? "lent" : "plain", b.put, &err);
    report(c, &b, "get", host ? "lent" : "plain", b.get, &err);
    leave(&b);
}

void check_handoff_times(struct check *c, const struct check_unit *u)
{
    const struct sg_host_memory *host = u->ops->host ? u->ops->host(u->unit) : NULL;
    measure(c, u, NULL);
    if (host) measure(c, u, host);
}
