/* session.c: opening, queueing, cutting back, forking, closing. Nothing here computes: advance.c does.
 * SPDX-License-Identifier: MIT */
#include "engine/session.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/sized.h"

enum { CONTEXT_DEFAULT = 4096, CONTEXT_MAX = INT32_MAX, CHECKPOINT_BYTES = 256 << 20 };

segue_status sg_session_check(const struct segue_session *s, const char *what, segue_error *err)
{
    if (s) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "%s: session: none given; open one", what);
}

/* --- sampling --- */

/* Refuse here what would make NaN later: a choice must never depend on a comparison with one. */
static segue_status check_numbers(const segue_sampling *p, segue_error *err)
{
    const float numbers[] = {p->temperature,       p->top_p,          p->min_p,
                             p->typical_p,         p->repeat_penalty, p->presence_penalty,
                             p->frequency_penalty, p->dry_multiplier, p->dry_base};
    static const char *const names[] = {"temperature",       "top_p",          "min_p",
                                        "typical_p",         "repeat_penalty", "presence_penalty",
                                        "frequency_penalty", "dry_multiplier", "dry_base"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int sign_free = i == 5 || i == 6; /* presence and frequency may reward */
        if (!isfinite(numbers[i]) || (!sign_free && numbers[i] < 0))
            return sg_fail(err, SEGUE_EARG,
                           "sampling refused: %s: %g is no value for it; take a finite one%s", names[i],
                           (double)numbers[i], sign_free ? "" : " from 0");
    }
    if (p->logprobs > 21)
        return sg_fail(err, SEGUE_EARG,
                       "sampling refused: logprobs: %u wanted: at most 20 beside the chosen; ask for less",
                       p->logprobs - 1);
    return SEGUE_OK;
}

static segue_status check_bias(const struct segue_session *s, const segue_sampling *p, segue_error *err)
{
    if (p->bias_n && !p->bias)
        return sg_fail(err, SEGUE_EARG, "sampling refused: bias: bias_n without bias; pass both");
    for (size_t i = 0; i < p->bias_n; i++) {
        int32_t token = p->bias[i].token;
        float bias = p->bias[i].bias;
        if (token < 0 || (uint32_t)token >= s->engine->model->info.vocab)
            return sg_fail(err, SEGUE_EARG,
                           "sampling refused: bias of token %d: the vocabulary has %u; name one inside",
                           token, s->engine->model->info.vocab);
        if (isnan(bias) || bias == INFINITY)
            return sg_fail(err, SEGUE_EARG,
                           "sampling refused: bias of token %d: %g is no bias; take a finite one or -inf",
                           token, (double)bias);
    }
    return SEGUE_OK;
}

segue_status segue_session_sampling(segue_session *session, const segue_sampling *sampling, segue_error *err)
{
    segue_sampling p;
    SG_TRY(sg_session_check(session, "sampling refused", err));
    SG_TRY(sg_sized_in(&p, sizeof p, sampling, "sampling", err));
    SG_TRY(check_numbers(&p, err));
    SG_TRY(check_bias(session, &p, err));
    const uint8_t *breakers = NULL;
    size_t breakers_n = 0, bytes;
    if (p.dry_multiplier > 0) SG_TRY(sg_engine_breakers(session->engine, &breakers, &breakers_n, err));
    SG_TRY(sg_mul(p.bias_n, sizeof *p.bias, &bytes, "biases", err));
    struct segue_bias *bias = p.bias_n ? sg_alloc(bytes) : NULL;
    if (p.bias_n && !bias) return sg_no_memory("biases", bytes, err);
    if (bias) memcpy(bias, p.bias, bytes);
    sg_free(session->bias);
    session->bias = bias;
    session->sampling = p;
    session->sampling.bias = bias;
    session->breakers = breakers;
    session->breakers_n = breakers_n;
    return SEGUE_OK;
}

void sg_session_sampler(const struct segue_session *s, struct sg_sampler *out)
{
    const struct segue_model *m = s->engine->model;
    *out = (struct sg_sampler){.p = s->sampling,
                               .stops = m->stops,
                               .stops_n = m->stops_n,
                               .history = s->tokens,
                               .history_n = s->tokens_n,
                               .breakers = s->breakers,
                               .breakers_n = s->breakers_n,
                               .limit = s->engine->token_limit};
}

/* --- open, close --- */

static segue_status choose_context(struct segue_session *s, size_t wish, segue_error *err)
{
    const struct segue_engine *e = s->engine;
    size_t own = e->model->info.context ? e->model->info.context : CONTEXT_DEFAULT;
    if (wish > CONTEXT_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "session not opened: context of %zu rows: at most %d; ask for less",
                       wish, CONTEXT_MAX);
    if (e->context_max && wish > e->context_max)
        return sg_fail(err, SEGUE_ELIMIT,
                       "session not opened: context of %zu rows: the model has positions for %llu; ask for"
                       " less",
                       wish, (unsigned long long)e->context_max);
    s->context = wish ? wish : own < CONTEXT_DEFAULT ? own : CONTEXT_DEFAULT;
    if (e->context_max && s->context > e->context_max) s->context = e->context_max;
    return SEGUE_OK;
}

/* An adapter names tensors of the model it was opened for by address, so another model's cannot be bound. */
static segue_status take_adapters(struct segue_session *s, const segue_session_opts *o, segue_error *err)
{
    if (!o->adapters_n) return SEGUE_OK;
    if (!o->adapters || o->adapters_n > 1024)
        return sg_fail(err, SEGUE_EARG, "session not opened: %zu adapters: a list of at most 1024 is wanted",
                       o->adapters_n);
    s->adapters = sg_alloc(o->adapters_n * sizeof(struct segue_adapter *));
    s->loras = sg_alloc(o->adapters_n * sizeof(struct sg_lora *));
    if (!s->adapters || !s->loras) return sg_no_memory("adapters of a session", o->adapters_n * 16, err);
    for (size_t i = 0; i < o->adapters_n; i++) {
        if (!o->adapters[i])
            return sg_fail(err, SEGUE_EARG, "session not opened: adapter %zu: it is NULL; open it first", i);
        if (o->adapters[i]->model != s->engine->model)
            return sg_fail(err, SEGUE_EARG,
                           "session not opened: adapter %zu: it was opened for another model; open it with"
                           " this one",
                           i);
        s->adapters[i] = sg_adapter_ref(o->adapters[i]);
        s->loras[i] = &s->adapters[i]->lora;
        s->adapters_n++;
    }
    return SEGUE_OK;
}

/* Several runs of the largest shape and one that fits the rest: the smallest shape that does is the unit's to
 * take, who has programs of fixed shapes. */
static void use_shapes(struct sg_layout *l, const segue_plan *plan)
{
    uint32_t most = 0;
    for (int i = 0; i < 4 && plan->shapes[i]; i++) most = plan->shapes[i];
    if (most && (most < l->chunk_rows || !l->chunk_rows)) l->chunk_rows = most;
}

segue_status sg_session_find_flow(struct segue_session *s, segue_error *err)
{
    sg_flow_free(s->flow);
    s->flow = NULL;
    if (!s->split) return SEGUE_OK;
    return sg_flow_new(&s->flow, &s->layouts[SG_PREFILL_LAYOUT], &s->layouts[SG_DECODE_LAYOUT], s->engine->graph, err);
}

/* When reading and writing happen in the same place, one layout serves and nothing is ever moved. */
static segue_status lay_out(struct segue_session *s, const segue_plan *wish, segue_error *err)
{
    segue_plan plan;
    SG_TRY(sg_sized_in(&plan, sizeof plan, wish, "plan", err));
    if (!wish) SG_TRY(segue_plan_make(s->engine, NULL, &plan, err));
    SG_TRY(sg_plan_check(s->engine, &plan, err));
    SG_TRY(sg_layout_make(&s->layouts[SG_PREFILL_LAYOUT], s->engine, &plan, SG_PREFILL_LAYOUT, err));
    SG_TRY(sg_layout_make(&s->layouts[SG_DECODE_LAYOUT], s->engine, &plan, SG_DECODE_LAYOUT, err));
    use_shapes(&s->layouts[SG_PREFILL_LAYOUT], &plan);
    if (sg_layout_same(&s->layouts[0], &s->layouts[1])) s->layouts[1].chunk_rows = s->layouts[0].chunk_rows;
    s->split = !sg_layout_same(&s->layouts[0], &s->layouts[1]);
    return sg_session_find_flow(s, err);
}

/* All tokens of the context at once: a list that grew would allocate between two tokens. */
static segue_status make_room(struct segue_session *s, segue_error *err)
{
    size_t vocab = s->engine->model->info.vocab;
    s->tokens = sg_alloc(s->context * sizeof *s->tokens);
    s->logits = sg_alloc(vocab * sizeof *s->logits);
    if (!s->tokens || !s->logits) return sg_no_memory("session", (s->context + vocab) * 4, err);
    return sg_recovery_room(s, err);
}

/* The rows that go from one stage to the next; none where each layout has a single stage. */
static segue_status make_rows(struct segue_session *s, segue_error *err)
{
    const struct sg_layout *a = &s->layouts[0], *b = &s->layouts[1];
    size_t bytes, chunk = a->chunk_rows > b->chunk_rows ? a->chunk_rows : b->chunk_rows;
    if (a->n == 1 && b->n == 1) return SEGUE_OK;
    SG_TRY(sg_mul(chunk, s->engine->model->info.width * sizeof(float), &bytes, "rows between stages", err));
    for (int i = 0; i < 2; i++)
        if (!(s->rows[i] = sg_alloc(bytes))) return sg_no_memory("rows between stages", bytes, err);
    return SEGUE_OK;
}

/* Recurrent memory and windows forget, so going back there needs marks. */
static void read_slots(struct segue_session *s)
{
    const struct sg_graph *g = s->engine->graph;
    for (uint32_t i = 0; i < g->slots_n; i++)
        if (g->slots[i].kind == SG_SLOT_CONV || g->slots[i].kind == SG_SLOT_DELTA || g->slots[i].window)
            s->marking = 1;
}

static segue_status fill(struct segue_session *s, const segue_session_opts *o, segue_error *err)
{
    s->verify_rows = o->verify_rows;
    SG_TRY(choose_context(s, o->context, err));
    SG_TRY(take_adapters(s, o, err));
    SG_TRY(lay_out(s, o->plan, err));
    s->stored = s->engine->store && !o->no_store;
    s->checkpoints_budget = o->checkpoint_bytes == SEGUE_NO_CHECKPOINTS ? 0
                       : o->checkpoint_bytes                       ? o->checkpoint_bytes
                                                                   : CHECKPOINT_BYTES;
    SG_TRY(make_room(s, err));
    SG_TRY(make_rows(s, err));
    SG_TRY(sg_record_room(s, o->spans, err));
    read_slots(s);
    return segue_session_sampling(s, o->sampling, err);
}

segue_status segue_session_open(segue_session **out, segue_engine *engine, const segue_session_opts *opts,
                                segue_error *err)
{
    segue_session_opts o;
    if (!out || !engine)
        return sg_fail(err, SEGUE_EARG, "session not opened: out or engine missing; pass both");
    SG_TRY(sg_sized_in(&o, sizeof o, opts, "session options", err));
    struct segue_session *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("session", sizeof *s, err);
    s->engine = sg_engine_share(engine);
    atomic_init(&s->cancel, 0);
    atomic_init(&s->busy, 0);
    s->stats = (segue_stats){.size = sizeof s->stats, .reuse_reason = "first-use"};
    segue_status status = fill(s, &o, err);
    if (status != SEGUE_OK) {
        segue_session_close(s);
        return status;
    }
    *out = s;
    return SEGUE_OK;
}

void segue_session_close(segue_session *s)
{
    if (!s) return;
    sg_session_store_put(s);
    sg_layout_drop_states(&s->layouts[0]);
    sg_layout_drop_states(&s->layouts[1]);
    sg_session_forget_checkpoints(s, 0);
    sg_flow_free(s->flow);
    sg_free(s->spans);
    for (uint32_t i = 0; i < s->adapters_n; i++) sg_adapter_unref(s->adapters[i]);
    sg_free(s->adapters);
    sg_free(s->loras);
    sg_free(s->tokens);
    sg_free(s->logits);
    sg_free(s->rows[0]);
    sg_free(s->rows[1]);
    sg_free(s->bias);
    sg_free(s->work);
    segue_session_close(s->checker);
    sg_recovery_free(s);
    sg_step_free(s->step);
    sg_chooser_free(s->chooser);
    segue_engine_close(s->engine);
    sg_free(s);
}

/* --- tokens --- */

segue_status segue_session_append(segue_session *session, const int32_t *tokens, size_t n, segue_error *err)
{
    SG_TRY(sg_session_check(session, "tokens not appended", err));
    if (n && !tokens)
        return sg_fail(err, SEGUE_EARG, "tokens not appended: %zu tokens: no list given; pass it", n);
    if (n > session->context - session->tokens_n)
        return sg_fail(err, SEGUE_ELIMIT,
                       "tokens not appended: session of %zu tokens: %zu more exceed its context of %zu;"
                       " shorten the text or enlarge the context",
                       session->tokens_n, n, session->context);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= session->engine->model->info.vocab)
            return sg_fail(err, SEGUE_EARG,
                           "tokens not appended: token %d at %zu: the vocabulary has %u; use its tokens",
                           tokens[i], i, session->engine->model->info.vocab);
    if (!n) return SEGUE_OK;
    memcpy(session->tokens + session->tokens_n, tokens, n * sizeof *tokens);
    session->tokens_n += n;
    session->given_n = session->tokens_n;
    session->store_queried = 0;
    if (session->rewound) return SEGUE_OK; /* what was kept, and why not more, is known */
    session->stats.tokens_reused = session->computed;
    session->stats.reuse_reason = session->computed ? "all" : "first-use";
    return SEGUE_OK;
}

size_t segue_session_tokens(const segue_session *session, const int32_t **tokens)
{
    if (tokens) *tokens = session ? session->tokens : NULL;
    return session ? session->tokens_n : 0;
}

void segue_session_cancel(segue_session *session)
{
    if (session) atomic_store(&session->cancel, 1);
}

segue_status segue_session_stats_get(const segue_session *session, segue_stats *out, segue_error *err)
{
    SG_TRY(sg_session_check(session, "statistics not read", err));
    segue_stats stats = session->stats;
    stats.compiles = sg_engine_compiles(session->engine);
    stats.state_bytes = sg_layout_bytes(&session->layouts[0]) + sg_layout_bytes(&session->layouts[1]) +
                        sg_session_checkpoint_bytes(session) + sg_hostcopy_bytes(&session->recovery.copy);
    const struct sg_layout *writing = &session->layouts[SG_DECODE_LAYOUT];
    const struct sg_program *program = writing->n ? writing->stages[0].layer_range->program : NULL;
    if (program && sg_ops_of(program)->kept) stats.packed = sg_ops_of(program)->kept(program, &stats.packed_why);
    sg_record_give(session, &stats);
    return sg_sized_out(out, &stats, sizeof stats, "statistics", err);
}

uint64_t sg_session_read_ns(const struct segue_session *s, uint64_t rows)
{
    return s->read_rows ? (uint64_t)((double)s->read_ns / (double)s->read_rows * (double)rows) : 0;
}

/* --- back --- */

/* Nothing of the states can be kept: the next run computes from the first token. */
static void start_over(struct segue_session *s)
{
    s->computed = 0;
    if (!sg_layout_holds(&s->layouts[s->at])) return;
    if (sg_layout_cut(&s->layouts[s->at], 0, NULL) != SEGUE_OK) sg_layout_drop_states(&s->layouts[s->at]);
}

void sg_session_cut(struct segue_session *s, uint64_t rows)
{
    struct sg_layout *l = &s->layouts[s->at];
    if (rows >= s->computed) return;
    sg_flow_close(s->flow);
    s->logits_known = 0;
    if (sg_layout_holds(l) && sg_layout_cut(l, rows, NULL) == SEGUE_OK) {
        sg_session_forget_checkpoints(s, rows);
        s->computed = rows;
    } else if (!sg_session_to_checkpoint(s, rows)) {
        start_over(s);
    }
    sg_recovery_cut(s, s->computed);
}

/* Why no more than `computed` of the first `length` tokens are kept. */
static const char *rewind_reason(const struct segue_session *s, size_t length)
{
    if (s->computed >= length) return "edited";
    int dropped = s->evicted_from && s->evicted_from <= length && s->evicted_to > s->computed;
    return dropped ? "evicted" : "no-checkpoint";
}

segue_status segue_session_rewind(segue_session *session, size_t length, segue_error *err)
{
    SG_TRY(sg_session_check(session, "session not rewound", err));
    if (length > session->tokens_n)
        return sg_fail(err, SEGUE_EARG, "session not rewound: to %zu tokens: it has only %zu; name fewer",
                       length, session->tokens_n);
    if (length == session->tokens_n) return SEGUE_OK; /* what append says holds */
    size_t before = session->computed;
    sg_session_cut(session, length);
    session->tokens_n = length;
    session->store_queried = 0;
    if (session->given_n > length) session->given_n = length;
    session->rewound = 1;
    session->stats.tokens_reused = session->computed;
    if (before) session->stats.reuse_reason = rewind_reason(session, length);
    return SEGUE_OK;
}

/* --- fork --- */

/* `to` was opened without a plan: it takes the layouts of `from`. */
static segue_status copy_into(struct segue_session *to, const struct segue_session *from, segue_error *err)
{
    memcpy(to->tokens, from->tokens, from->tokens_n * sizeof *to->tokens);
    const float *logits = sg_session_known_logits(from);
    if (logits) memcpy(to->logits, logits, from->engine->model->info.vocab * sizeof *to->logits);
    to->tokens_n = from->tokens_n;
    to->logits_known = logits ? SG_LOGITS_HERE : 0;
    to->split = from->split;
    to->at = from->at;
    for (uint32_t i = 0; i < 2; i++) {
        to->layouts[i] = from->layouts[i];
        for (uint32_t k = 0; k < from->layouts[i].n; k++) to->layouts[i].stages[k].state = NULL;
    }
    if (!to->rows[0]) SG_TRY(make_rows(to, err));
    SG_TRY(sg_session_find_flow(to, err));
    SG_TRY(sg_layout_fork(&from->layouts[from->at], &to->layouts[from->at], err));
    to->computed = from->computed;
    sg_recovery_fork(to, from);
    to->given_n = from->given_n;
    to->checkpoint_pending = from->checkpoint_pending;
    for (; to->checkpoints_n < from->checkpoints_n; to->checkpoints_n++) {
        to->points[to->checkpoints_n] = from->points[to->checkpoints_n];
        sg_point_share(to->points[to->checkpoints_n].point);
    }
    to->stats.tokens_reused = from->computed;
    to->stats.reuse_reason = "all";
    return SEGUE_OK;
}

segue_status segue_session_fork(segue_session **out, segue_session *session, segue_error *err)
{
    SG_TRY(sg_session_check(session, "session not forked", err));
    if (!out) return sg_fail(err, SEGUE_EARG, "session not forked: no place to write it; pass out");
    segue_session_opts o = {.size = sizeof o,
                            .context = session->context,
                            .sampling = &session->sampling,
                            .adapters = session->adapters,
                            .adapters_n = session->adapters_n,
                            .no_store = !session->stored,
                            .checkpoint_bytes =
                                session->checkpoints_budget ? session->checkpoints_budget : SEGUE_NO_CHECKPOINTS,
                            .spans = session->spans_cap};
    struct segue_session *fork;
    SG_TRY(segue_session_open(&fork, session->engine, &o, err));
    segue_status status = copy_into(fork, session, err);
    if (status != SEGUE_OK) {
        segue_session_close(fork);
        return status;
    }
    *out = fork;
    return SEGUE_OK;
}
