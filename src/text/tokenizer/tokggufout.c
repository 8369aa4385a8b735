/* tokggufout.c: writes the tokenizer.ggml.* keys of a tokenizer that was read from any format; the inverse of
 * tokgguf.c.
 * SPDX-License-Identifier: MIT */
#include "text/tokenizer/tokggufout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/tokparts.h"

#define KEY(name) "tokenizer.ggml." name

/* The model and pre-tokenizer names of llama.cpp. EUNSUPPORTED when a splitter has no name there. */
static segue_status put_names(const struct sg_tokenizer *t, struct sg_gguf_out *o, segue_error *err)
{
    /* info.pre, and the name in GGUF */
    static const char *const pres[][2] = {
        {"gpt2", "gpt-2"}, {"smollm", "smollm"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}, {"qwen35", "qwen35"}};
    const char *model = t->byte_level ? "gpt2" : "llama", *pre = NULL;
    sg_gguf_key_string(o, KEY("model"), model, strlen(model));
    if (!t->byte_level) return SEGUE_OK;
    for (size_t i = 0; t->info.pre && i < sizeof pres / sizeof *pres; i++)
        if (!strcmp(pres[i][0], t->info.pre)) pre = pres[i][1];
    if (!pre)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "write tokenizer: pre-tokenizer %s: GGUF has no name for it; keep the model's own files",
                       t->info.pre ? t->info.pre : "(unnamed)");
    sg_gguf_key_string(o, KEY("pre"), pre, strlen(pre));
    return SEGUE_OK;
}

/* Texts and types of `vocab` ids. Ids without a token become [PADn], of a type that is never matched in text. */
static void put_tokens(const struct sg_tokenizer *t, uint32_t vocab, struct sg_gguf_out *o)
{
    char pad[32];
    /* the array must have one item per row of the embedding, which may be more than tokens_n */
    sg_gguf_key_string_array(o, KEY("tokens"), vocab);
    for (uint32_t i = 0; i < vocab; i++) {
        if (i < t->tokens_n && t->tokens[i].text) {
            sg_gguf_put_string(o, t->tokens[i].text, t->tokens[i].text_len);
            continue;
        }
        sg_gguf_put_string(o, pad, (size_t)snprintf(pad, sizeof pad, "[PAD%u]", i));
    }
    sg_gguf_key_i32_array(o, KEY("token_type"), vocab);
    for (uint32_t i = 0; i < vocab; i++)
        sg_gguf_put_i32(o, i < t->tokens_n && t->tokens[i].text ? t->tokens[i].kind : SG_TOKEN_UNUSED);
}

/* qsort order of merges. */
static int by_rank(const void *a, const void *b)
{
    const struct sg_merge *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* All merges by rank; *n: their number. NULL: out of memory. The caller frees the array. */
static struct sg_merge *sorted_merges(const struct sg_tokenizer *t, size_t *n)
{
    size_t cap = t->merges ? (size_t)t->merges_mask + 1 : 0;
    struct sg_merge *all = sg_alloc(cap * sizeof *all);
    *n = 0;
    /* the hash table has no order */
    for (size_t i = 0; all && i < cap; i++)
        if (t->merges[i].rank != UINT32_MAX) all[(*n)++] = t->merges[i];
    if (all) qsort(all, *n, sizeof *all, by_rank);
    return all;
}

/* Each merge as "left right". line: scratch buffer. */
static void put_merges(const struct sg_tokenizer *t, const struct sg_merge *all, size_t n, struct sg_gguf_out *o,
                       struct sg_buf *line)
{
    sg_gguf_key_string_array(o, KEY("merges"), n);
    for (size_t i = 0; i < n; i++) {
        const struct sg_vocab_token *left = &t->tokens[all[i].left], *right = &t->tokens[all[i].right];
        /* the buffer is reused for each merge */
        line->len = 0;
        sg_buf_add(line, left->text, left->text_len);
        sg_buf_puts(line, " ");
        sg_buf_add(line, right->text, right->text_len);
        if (line->failed) o->keys.failed = line->failed;
        sg_gguf_put_string(o, line->data ? line->data : "", line->len);
    }
}

/* SentencePiece files merge by score. Merges by rank are converted: a token gets -(index + 1) of the first merge
 * that makes it, so that earlier merges have higher scores. */
static segue_status put_scores(const struct sg_tokenizer *t, uint32_t vocab, const struct sg_merge *all, size_t n,
                               struct sg_gguf_out *o, segue_error *err)
{
    float *scores = sg_alloc(vocab * sizeof *scores);
    if (!scores) return sg_no_memory("scores", vocab * sizeof *scores, err);
    for (uint32_t i = 0; i < vocab && i < t->tokens_n; i++) scores[i] = t->merges ? 0 : t->tokens[i].score;
    /* from the last to the first: of several merges with one result the first remains */
    for (size_t i = n; i--;)
        if ((uint32_t)all[i].made < vocab) scores[all[i].made] = -(float)(i + 1);
    sg_gguf_key_f32_array(o, KEY("scores"), vocab);
    for (uint32_t i = 0; i < vocab; i++) sg_gguf_put_f32(o, scores[i]);
    sg_free(scores);
    return SEGUE_OK;
}

/* Ids and switches. A prefix space comes from a Prepend normalizer or from Metaspace. */
static void put_ends(const struct sg_tokenizer *t, struct sg_gguf_out *o)
{
    int prefix = 0;
    for (uint32_t i = 0; i < t->norms_n; i++) prefix |= t->norms[i].kind == SG_NORM_PREPEND;
    for (uint32_t i = 0; i < t->splits_n; i++) prefix |= t->splits[i].kind == SG_SPLIT_META && t->splits[i].prepend;
    if (t->info.bos >= 0) sg_gguf_key_u32(o, KEY("bos_token_id"), (uint32_t)t->info.bos);
    if (t->info.eos >= 0) sg_gguf_key_u32(o, KEY("eos_token_id"), (uint32_t)t->info.eos);
    if (t->unk >= 0) sg_gguf_key_u32(o, KEY("unknown_token_id"), (uint32_t)t->unk);
    sg_gguf_key_bool(o, KEY("add_bos_token"), t->info.add_bos);
    sg_gguf_key_bool(o, KEY("add_eos_token"), t->info.add_eos);
    if (!t->byte_level) sg_gguf_key_bool(o, KEY("add_space_prefix"), prefix);
}

/* Merges are written for byte-level models and scores for the others, as llama.cpp reads them. */
segue_status sg_tokenizer_to_gguf(const struct sg_tokenizer *t, uint32_t vocab, struct sg_gguf_out *o, segue_error *err)
{
    struct sg_buf line = {0};
    size_t n;
    struct sg_merge *all = sorted_merges(t, &n);
    if (!all) return sg_no_memory("merges", t->merges_mask, err);
    segue_status s = put_names(t, o, err);
    if (s == SEGUE_OK) put_tokens(t, vocab, o);
    if (s == SEGUE_OK && t->byte_level) put_merges(t, all, n, o, &line);
    if (s == SEGUE_OK && !t->byte_level) s = put_scores(t, vocab, all, n, o, err);
    if (s == SEGUE_OK) put_ends(t, o);
    sg_buf_free(&line);
    sg_free(all);
    return s;
}
