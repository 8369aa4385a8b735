/* compose.c: see compose.h. SPDX-License-Identifier: MIT */
#include "engine/queue/compose.h"

#include <stdlib.h>

#include "base/mem.h"

enum { PATIENT_ROWS = 2048 /* of a run of prompts for which their answers wait */ };

static int by_turn(const void *a, const void *b)
{
    const struct sg_share *x = *(struct sg_share *const *)a, *y = *(struct sg_share *const *)b;
    if (x->is_answer != y->is_answer) return x->is_answer ? -1 : 1;
    return x->away->turn < y->away->turn ? -1 : x->away->turn > y->away->turn;
}

/* All shares in their order. Where memory is short, those of the first groups, as many as there is space for. */
static size_t gather(struct sg_shared_queue *q)
{
    size_t n = 0, all = 0;
    for (const struct sg_run_group *g = q->first; g; g = g->next) all += g->shares_n;
    if (all > q->chosen_cap) {
        struct sg_share **chosen = sg_realloc(q->chosen, 2 * all * sizeof *chosen);
        if (chosen) q->chosen = chosen;
        if (chosen) q->chosen_cap = 2 * all;
    }
    for (struct sg_run_group *g = q->first; g; g = g->next)
        for (uint32_t i = 0; i < g->shares_n && n < q->chosen_cap; i++) {
            g->shares[i].tokens_n = g->shares[i].again = 0;
            q->chosen[n++] = &g->shares[i];
        }
    if (n > 1) qsort(q->chosen, n, sizeof(struct sg_share *), by_turn);
    return n;
}

/* What is known while shares are chosen. */
struct composing {
    uint32_t answers;   /* that prompts shorten their chunks for: in the run or away */
    uint64_t target_ns; /* the least of these; 0: none */
    size_t left;        /* tokens of prompts that may still join; valid with prompts */
};

static void add_answer(struct composing *c, uint64_t target_ns)
{
    uint64_t target = target_ns ? target_ns : SG_PACE_TARGET_NS;
    c->answers++;
    if (!c->target_ns || target < c->target_ns) c->target_ns = target;
}

/* Tokens of this prompt for the run; 0: none. */
static size_t prompt_rows(struct sg_shared_queue *q, const struct sg_share *p, struct composing *c)
{
    int first = !q->run.prompts, calm = p->group->patient && !c->answers;
    if (first) c->left = c->answers ? sg_pace_budget(&q->pace, c->target_ns, p->chunk) : calm ? PATIENT_ROWS : p->chunk;
    if (p->whole) return first ? p->rows : 0;
    if (calm) return first || p->rows <= c->left ? p->rows : 0;
    return p->rows < c->left ? p->rows : c->left;
}

static void take(struct sg_shared_queue *q, struct sg_share *p, size_t rows, struct composing *c)
{
    p->tokens_n = (uint32_t)rows;
    p->does = rows == p->rows ? p->then : SG_THEN_NOTHING;
    p->group->taken = 1;
    if (!q->masks) q->masks = p->group->masks;
    q->chosen[q->chosen_n++] = p;
    if (p->is_answer) {
        q->run.answers++;
        if (!p->group->patient) add_answer(c, p->group->target_ns);
        return;
    }
    q->run.prompts++;
    q->run.prompt_tokens += rows;
    c->left -= rows < c->left ? rows : c->left;
}

void sg_run_compose(struct sg_shared_queue *q)
{
    struct composing c = {0};
    size_t n = gather(q), space = q->rows_max;
    q->chosen_n = 0;
    q->masks = NULL;
    q->run = (struct sg_pace_run){0};
    for (const struct sg_away *a = q->away; a; a = a->next)
        if (!a->is_prompt && !pthread_equal(a->thread, pthread_self())) add_answer(&c, a->target_ns);
    for (size_t i = 0; i < n; i++) {
        struct sg_share *p = q->chosen[i];
        size_t rows = p->is_answer ? p->rows : prompt_rows(q, p, &c);
        if (rows > space) rows = p->is_answer || p->whole || p->group->patient ? 0 : space;
        if (!rows) continue;
        space -= rows;
        take(q, p, rows, &c);
    }
}
