/* tokllama2c.c: reads tokenizer.bin of llama2.c: 4 bytes with the length of the longest token, then for each token its
 * score (f32), its length (u32) and its bytes, little-endian. Ids 0, 1 and 2 are unknown, start and end; ids 3 to 258
 * are single bytes, spelled <0xXX>; spaces are not escaped.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "text/tokenizer/tokparts.h"

/* The file and the read position `at`. what: its name for messages. */
struct bin {
    const uint8_t *bytes;
    size_t n, at;
    const char *what;
};

/* The most common damage: the file is truncated. */
static segue_status too_short(const struct bin *b, const char *part, uint32_t id, segue_error *err)
{
    return sg_fail(
        err, SEGUE_EFORMAT,
        "read tokenizer: %s: %s of token %u at byte %zu of %zu: the file is truncated; fetch it again",
        b->what, part, id, b->at, b->n);
}

/* Store a token with U+2581 in place of ' ', as in all other SentencePiece vocabularies. */
static segue_status put_spelt(struct sg_tokenizer *t, uint32_t id, const char *s, size_t n,
                              enum sg_token_kind kind, float score, const char *what, segue_error *err)
{
    struct sg_buf text = {0};
    for (size_t i = 0; i < n; i++)
        sg_buf_add(&text, s[i] == ' ' ? "\xe2\x96\x81" : s + i, s[i] == ' ' ? 3 : 1);
    segue_status st = text.failed
                          ? sg_no_memory("tokenizer", n, err)
                          : sg_vocab_put(t, id, text.data ? text.data : "", text.len, kind, score, what, err);
    sg_buf_free(&text);
    return st;
}

/* Read one token at b->at. The texts of ids 0 to 2 in the file are ignored. */
static segue_status read_token(struct sg_tokenizer *t, struct bin *b, uint32_t id, segue_error *err)
{
    static const char *const first[] = {"<unk>", "<s>", "</s>"};
    if (b->n - b->at < 8) return too_short(b, "length", id, err);
    float score = sg_f32_of_bits(sg_le32(b->bytes + b->at));
    uint32_t len = sg_le32(b->bytes + b->at + 4);
    /* a NaN has no place in the order of merges */
    if (score != score)
        return sg_fail(err, SEGUE_EFORMAT,
                       "read tokenizer: %s: score of token %u is not a number; fetch the file again", b->what,
                       id);
    b->at += 8;
    if (len > b->n - b->at) return too_short(b, "text", id, err);
    /* not copied here: sg_vocab_put copies into the arena */
    const char *s = (const char *)b->bytes + b->at;
    b->at += len;
    if (id < 3)
        return sg_vocab_put(t, id, first[id], strlen(first[id]), id ? SG_TOKEN_CONTROL : SG_TOKEN_UNKNOWN, 0,
                            b->what, err);
    return put_spelt(t, id, s, len, id < 259 ? SG_TOKEN_BYTE : SG_TOKEN_NORMAL, score, b->what, err);
}

/* The file does not contain the number of tokens: it comes from the model, and the file must end exactly after them. */
static segue_status read_bin(struct sg_tokenizer *t, struct bin *b, uint32_t vocab, segue_error *err)
{
    if (b->n < 4) return too_short(b, "header", 0, err);
    /* the length of the longest token is not needed */
    b->at = 4;
    /* each token takes at least 8 bytes: checked before anything of that size is allocated */
    if (vocab > b->n / 8)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "read tokenizer: %s: %zu bytes cannot hold %u tokens; take the file that belongs to the model",
            b->what, b->n, vocab);
    SG_TRY(sg_vocab_reserve(t, vocab, b->what, err));
    for (uint32_t id = 0; id < vocab; id++) SG_TRY(read_token(t, b, id, err));
    if (b->at != b->n)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "read tokenizer: %s: %zu bytes after token %u; take the file that belongs to the model", b->what,
            b->n - b->at, vocab - 1);
    SG_TRY(sg_vocab_index(t, err));
    struct sg_added ends[2] = {{.text = "<s>", .len = 3, .id = 1, .special = 1},
                               {.text = "</s>", .len = 4, .id = 2, .special = 1}};
    SG_TRY(sg_added_make(t, &t->raw, ends, vocab > 2 ? 2 : 0, b->what, err));
    /* ids and settings that llama2.c has built in */
    t->unk = 0;
    t->strip_space = 1;
    /* SentencePiece: a space in front of the text, and spaces as U+2581 */
    t->norms[t->norms_n++] = (struct sg_normalizer){.kind = SG_NORM_PREPEND, .to = " ", .to_len = 1};
    t->norms[t->norms_n++] = (struct sg_normalizer){
        .kind = SG_NORM_REPLACE, .from = " ", .from_len = 1, .to = "\xe2\x96\x81", .to_len = 3};
    t->info.kind = "spm";
    t->info.bos = 1;
    t->info.eos = 2;
    t->before[t->before_n++] = 1;
    t->info.stops = &t->info.eos;
    t->info.stops_n = 1;
    sg_fim_find(t);
    return sg_vocab_finish(t, 1, b->what, err);
}

/* The bytes are not needed after the call: all texts are copied. */
segue_status sg_tokenizer_of_bin(struct sg_tokenizer **out, const uint8_t *bytes, size_t n, uint32_t vocab,
                                 const char *what, segue_error *err)
{
    struct sg_tokenizer *t = sg_alloc(sizeof *t);
    struct bin b = {bytes, n, 0, what};
    if (!t) return sg_no_memory("tokenizer", sizeof *t, err);
    t->unk = t->info.bos = t->info.eos = -1;
    segue_status s = read_bin(t, &b, vocab, err);
    if (s == SEGUE_OK)
        *out = t;
    else
        sg_tokenizer_close(t);
    return s;
}
