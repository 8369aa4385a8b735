/* tokenizer.h: converts text to tokens and back. A tokenizer is constant after opening; any thread may use it.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_TOKENIZER_H
#define SG_TEXT_TOKENIZER_H

#include "tensor/archive.h"

struct sg_tokenizer;

/* tokenizer.json (byte-level BPE, or SentencePiece-like BPE with byte fallback). config:
 * tokenizer_config.json or NULL (bos/eos/add_bos come from it and from the post-processor). Both texts are
 * only read during the call. */
segue_status sg_tokenizer_of_json(struct sg_tokenizer **out, const char *json, size_t json_len,
                                  const char *config, size_t config_len, const char *what, segue_error *err);
/* The tokenizer.ggml.* keys. *out = NULL and OK when the file has none. */
segue_status sg_tokenizer_of_gguf(struct sg_tokenizer **out, const struct sg_archive *a, segue_error *err);
/* llama2.c tokenizer.bin of `vocab` tokens. */
segue_status sg_tokenizer_of_bin(struct sg_tokenizer **out, const uint8_t *bytes, size_t n, uint32_t vocab,
                                 const char *what, segue_error *err);
void sg_tokenizer_close(struct sg_tokenizer *t);

/* Tokens of fill-in-the-middle: around the text before and after the gap, before the gap's text, padding, before the name of a
 * repository, before the name of a file. */
enum sg_fim { SG_FIM_PRE, SG_FIM_SUF, SG_FIM_MID, SG_FIM_PAD, SG_FIM_REP, SG_FIM_SEP, SG_FIM_N };

struct sg_tokenizer_info {
    const char *kind, *pre; /* "bpe" | "spm"; "smollm", "gpt2", "llama3", "qwen2", "qwen35", "regex", NULL */
    uint32_t vocab;         /* highest id + 1 */
    int32_t bos, eos;       /* -1 = none */
    const char *bos_text, *eos_text; /* "" = none; for templates */
    int add_bos, add_eos;
    const int32_t *stops; /* eos, eot, eom, control tokens that end a turn, and those of fill-in-the-middle that end a text */
    size_t stops_n;
    int32_t fim[SG_FIM_N]; /* -1 = none */
    const char *warning; /* NULL, or why tokens may differ from those of the original tokenizer */
};
void sg_tokenizer_info_get(const struct sg_tokenizer *t, struct sg_tokenizer_info *out);

/* flags: SEGUE_TEXT_*. Writes at most cap tokens, *n = how many there are (ELIMIT when cap is smaller).
 * Time O(len log len); memory O(len); no call is quadratic in its input. */
segue_status sg_tokenize(const struct sg_tokenizer *t, const char *text, size_t len, unsigned flags,
                         int32_t *tokens, size_t cap, size_t *n, segue_error *err);
segue_status sg_detokenize(const struct sg_tokenizer *t, const int32_t *tokens, size_t n, unsigned flags,
                           char *text, size_t cap, size_t *len, segue_error *err);
/* The raw bytes of one token in running text (not necessarily whole characters); *special: 1 for control
 * tokens. Points into the tokenizer. */
const char *sg_token_bytes(const struct sg_tokenizer *t, int32_t token, size_t *len, int *special);
/* 1: the detokenizer drops one leading space at the very start of a text (Llama 2 style). */
int sg_tokenizer_strips_space(const struct sg_tokenizer *t);
/* Id of a token by its exact text; -1 = none. */
int32_t sg_token_find(const struct sg_tokenizer *t, const char *text);

/* One token of a stream; implements segue_text_next. token -1: the end. SEGUE_END: a stop string was found. */
segue_status sg_text_next(const struct sg_tokenizer *t, segue_text *state, int32_t token, char *text,
                          size_t cap, size_t *len, segue_error *err);

#endif
