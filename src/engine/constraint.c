/* constraint.c: see constraint.h. SPDX-License-Identifier: MIT */
#include "engine/constraint.h"

#include "base/mem.h"

/* --- the public object --- */

/* The token trie of a model, made with its first grammar. */
static segue_status model_trie(struct segue_model *m, const struct sg_token_trie **out, segue_error *err)
{
    struct sg_token_trie *trie = atomic_load(&m->trie), *none = NULL;
    if (!trie) {
        SG_TRY(sg_token_trie_new(&trie, m->tokenizer, m->info.vocab, err));
        if (!atomic_compare_exchange_strong(&m->trie, &none, trie)) { /* another thread was faster */
            sg_token_trie_free(trie);
            trie = none;
        }
    }
    *out = trie;
    return SEGUE_OK;
}

segue_status segue_grammar_open(segue_grammar **out, const segue_model *model, segue_grammar_kind kind, const char *text,
                                size_t len, segue_error *err)
{
    const struct sg_token_trie *trie = NULL;
    if (!out || !model || (len && !text))
        return sg_fail(err, SEGUE_EARG, "grammar not opened: out, model or text is NULL; pass all");
    if ((unsigned)kind > SEGUE_GRAMMAR_REGEX)
        return sg_fail(err, SEGUE_EARG, "grammar not opened: kind %d: no such kind; use SEGUE_GRAMMAR_*", (int)kind);
    if (!model->tokenizer)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "grammar not opened: %s: it has no tokenizer; use another model",
                       model->info.path);
    struct segue_grammar *g = sg_alloc(sizeof *g);
    if (!g) return sg_no_memory("grammar", sizeof *g, err);
    atomic_init(&g->references, 1);
    g->model = sg_model_ref(model);
    segue_status status = model_trie(g->model, &trie, err);
    if (status == SEGUE_OK)
        status = sg_grammar_new(&g->grammar, (int)kind, text ? text : "", len, trie, model->stops, model->stops_n, err);
    if (status == SEGUE_OK)
        *out = g;
    else
        segue_grammar_close(g);
    return status;
}

struct segue_grammar *sg_constraint_share(struct segue_grammar *g)
{
    if (g) atomic_fetch_add(&g->references, 1);
    return g;
}

void segue_grammar_close(segue_grammar *grammar)
{
    if (!grammar || atomic_fetch_sub(&grammar->references, 1) != 1) return;
    sg_grammar_free(grammar->grammar);
    sg_model_unref(grammar->model);
    sg_free(grammar);
}

/* --- the constraint of a session --- */

segue_status sg_constraint_set(struct sg_constraint *c, struct segue_grammar *g, const struct segue_model *model,
                               segue_error *err)
{
    uint32_t *allowed = NULL;
    if (g && g->model != model)
        return sg_fail(err, SEGUE_EARG, "sampling refused: grammar: it belongs to another model; open it with the session's");
    if (g == c->grammar) return SEGUE_OK;
    if (g) {
        size_t words = sg_grammar_mask_words(g->grammar);
        allowed = sg_alloc((words + 1) * sizeof *allowed);
        if (!allowed) return sg_no_memory("mask", words * sizeof *allowed, err);
    }
    sg_constraint_free(c);
    c->grammar = sg_constraint_share(g);
    c->allowed = allowed;
    return SEGUE_OK;
}

void sg_constraint_free(struct sg_constraint *c)
{
    segue_grammar_close(c->grammar);
    sg_free(c->allowed);
    *c = (struct sg_constraint){0};
}

int sg_constraint_is_ready(const struct sg_constraint *c, size_t n, size_t input_n)
{
    return !c->grammar || (c->masked == n + 1 && c->from == input_n);
}

segue_status sg_constraint_update(struct sg_constraint *c, const int32_t *tokens, size_t n, size_t input_n, segue_error *err)
{
    if (sg_constraint_is_ready(c, n, input_n)) return SEGUE_OK;
    if (c->from != input_n || c->to > n || c->to < input_n) { /* new text was given, or the session was rewound */
        c->pos = (struct sg_grammar_pos){0};
        c->from = c->to = input_n;
    }
    c->masked = 0;
    SG_TRY(sg_grammar_mask(c->grammar->grammar, &c->pos, tokens + input_n, n - input_n, c->to - input_n, c->allowed, err));
    c->to = n;
    c->masked = n + 1;
    return SEGUE_OK;
}
