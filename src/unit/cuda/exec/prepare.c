/* prepare.c: see prepare.h. The prompts are ordinary runs (cu_start), so they need no rules of their own.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/exec/prepare.h"

#include "base/clock.h"
#include "base/mem.h"
#include "unit/cuda/exec/exec_pass.h"
#include "unit/cuda/state/state.h"

/* Models with fewer bytes of weights are prepared only on request ("prepare=2"); time without a run after which it continues:
 * longer than from one token of an answer to the next. */
enum { WEIGHTS_MIN = 256 << 20, IDLE_NS = 50000000 };

/* 1: prompts of this program use graphs that can be prepared: tokens in, logits out, one GPU. */
static int can_prepare(const struct sg_program *p)
{
    const struct sg_graph *g = p->base.graph;
    const struct sg_unit *u = p->base.unit;
    if (!u->graphs || !u->prepare || !g->vocab || g->inputs_n != 1) return 0;
    if (g->values[g->inputs[0].value].kind != SG_VALUE_TOKENS || !g->slots_n) return 0;
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_JOIN) return 0;
    return u->prepare > 1 || p->weights->bytes >= WEIGHTS_MIN;
}

/* How long there must still be no run. */
static uint64_t idle_missing(const struct sg_program *p)
{
    if (atomic_load(&p->runs)) return IDLE_NS;
    uint64_t idle = sg_now_ns() - atomic_load(&p->run_end_ns);
    return idle < IDLE_NS ? IDLE_NS - idle : 0;
}

/* 0: stop. Waits until no run has been in progress for IDLE_NS. The end of a run does not signal: while an answer is decoded,
 * that would wake this thread with every token. It sleeps until the time could be over; a stop wakes it. */
static int may_continue(struct sg_program *p)
{
    int stop;
    uint64_t missing;
    do {
        missing = idle_missing(p);
        stop = sg_wait_done(&p->prepare_lock, &p->prepare_wake, &p->prepare_stop, missing);
    } while (!stop && missing);
    return !stop;
}

/* One prompt of `rows` tokens in an empty state. */
static segue_status run_prompt(struct sg_program *p, struct sg_state *s, const int32_t *tokens, uint32_t rows)
{
    static const struct sg_sampler greedy = {0};
    struct sg_run *run;
    int32_t token;
    const uint32_t last = rows - 1;
    const struct sg_span span = {.state = s, .rows = rows, .tokens = tokens, .wanted = &last, .wanted_n = 1, .sampler = &greedy};
    const struct sg_batch batch = {.spans = &span, .spans_n = 1, .inline_hint = 1, .quiet = 1};
    struct sg_result result = {.tokens = &token};
    SG_TRY(sg_state_core_cut(s, 0, NULL));
    SG_TRY(cu_start_uncounted(p, &batch, &result, &run, NULL));
    return cu_wait(run, UINT64_MAX, NULL);
}

/* The longest first: its scratch is enough for all. */
static void *prepare(void *arg)
{
    struct sg_program *p = arg;
    const struct sg_graph *g = p->base.graph;
    struct sg_state_opts o = {.rows = CU_PAD_ROWS_MAX, .kv = SG_F16};
    struct sg_state *s = NULL;
    int32_t *tokens = sg_alloc(CU_PAD_ROWS_MAX * sizeof *tokens); /* token 0 */
    segue_status status = tokens ? cu_state_new(p->base.unit, g->slots, g->slots_n, &o, &s, NULL) : SEGUE_EMEMORY;
    for (uint32_t rows = CU_PAD_ROWS_MAX; rows && status == SEGUE_OK; rows -= CU_PAD_ROWS)
        for (int i = 0; i < 2 && status == SEGUE_OK && may_continue(p); i++) status = run_prompt(p, s, tokens, rows);
    if (s) cu_state_free(s);
    sg_free(tokens);
    return NULL;
}

static void start_thread(struct sg_program *p)
{
    pthread_mutex_init(&p->prepare_lock, NULL);
    pthread_cond_init(&p->prepare_wake, NULL);
    p->preparing = !pthread_create(&p->prepare_thread, NULL, prepare, p);
    if (p->preparing) return;
    pthread_cond_destroy(&p->prepare_wake);
    pthread_mutex_destroy(&p->prepare_lock);
}

segue_status cu_wait_and_prepare(struct sg_run *run, uint64_t timeout_ns, segue_error *err)
{
    struct sg_program *p = run->program;
    int is_prompt = run->lane == &p->lanes[CU_LANE_PREFILL];
    segue_status status = cu_wait(run, timeout_ns, err);
    if (status != SEGUE_END && is_prompt && can_prepare(p) && !atomic_exchange(&p->prepare_asked, 1)) start_thread(p);
    return status;
}

void cu_prepare_stop(struct sg_program *p)
{
    if (!p->preparing) return;
    pthread_mutex_lock(&p->prepare_lock);
    p->prepare_stop = 1;
    pthread_cond_signal(&p->prepare_wake);
    pthread_mutex_unlock(&p->prepare_lock);
    pthread_join(p->prepare_thread, NULL);
    pthread_cond_destroy(&p->prepare_wake);
    pthread_mutex_destroy(&p->prepare_lock);
    p->preparing = 0;
}
