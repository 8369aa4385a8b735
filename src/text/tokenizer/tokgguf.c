/* tokgguf.c: reads the tokenizer of a GGUF file: "gpt2" (byte-level BPE by merges) or "llama" (SentencePiece BPE by
 * scores). Settings that the file lacks follow from the name of its pre-tokenizer.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/tokenizer/tokparts.h"

#define KEY(name) "tokenizer.ggml." name

/* What the file's arrays are; NULL = the key is absent. */
struct gguf_reader {
    struct sg_tokenizer *t;
    const struct sg_archive *a;
    const char *what;
    segue_error *err;
    const struct sg_meta *tokens, *scores, *types, *merges;
};

/* *out: the array under key, NULL if absent. n: number of items it must have, 0 = any. item: type of the items;
 * integers are accepted as floats. */
static segue_status array_of(struct gguf_reader *g, const char *key, enum sg_meta_type item, uint64_t n,
                             const struct sg_meta **out)
{
    const struct sg_meta *m = sg_meta_find(g->a, key);
    *out = m;
    if (!m) return SEGUE_OK;
    if (m->type != SG_META_ARRAY ||
        (m->v.a.n && m->item != item && (item != SG_META_FLOAT || m->item != SG_META_INT)))
        return sg_fail(g->err, SEGUE_EFORMAT,
                       "read tokenizer: %s: %s has the wrong type; fetch the file again", g->what, key);
    if (n && m->v.a.n != n)
        return sg_fail(g->err, SEGUE_EFORMAT,
                       "read tokenizer: %s: %s has %llu items, the vocabulary %llu; fetch the file again",
                       g->what, key, (unsigned long long)m->v.a.n, (unsigned long long)n);
    return SEGUE_OK;
}

/* 1: the text s of n bytes equals name. */
static int text_is(const char *s, size_t n, const char *name)
{
    return strlen(name) == n && memcmp(s, name, n) == 0;
}

/* Texts, kinds and scores. Unknown kinds count as normal, as in llama.cpp. */
static segue_status read_tokens(struct gguf_reader *g)
{
    uint64_t n = g->tokens->v.a.n;
    /* sg_vocab_reserve then reports the bound; only 32-bit systems need this */
    if (n > SIZE_MAX / 2) n = SIZE_MAX / 2;
    SG_TRY(sg_vocab_reserve(g->t, (size_t)n, g->what, g->err));
    for (uint64_t i = 0; i < n; i++) {
        size_t len;
        const char *text = sg_meta_item_string(g->tokens, i, &len);
        int64_t kind = g->types ? sg_meta_item_int(g->types, i) : SG_TOKEN_NORMAL;
        double score = g->scores ? sg_meta_item_float(g->scores, i) : 0;
        if (kind < SG_TOKEN_NORMAL || kind > SG_TOKEN_BYTE) kind = SG_TOKEN_NORMAL;
        /* a NaN has no place in the order of merges */
        if (score != score)
            return sg_fail(g->err, SEGUE_EFORMAT,
                           "read tokenizer: %s: score %llu is not a number; fetch the file again", g->what,
                           (unsigned long long)i);
        SG_TRY(sg_vocab_put(g->t, (int64_t)i, text, len, (enum sg_token_kind)kind, (float)score, g->what,
                            g->err));
    }
    return sg_vocab_index(g->t, g->err);
}

/* Merges are "left right", split at the first space after the first byte, since a token may begin with a space. */
static segue_status read_merges(struct gguf_reader *g)
{
    uint64_t n = g->merges->v.a.n;
    if (n > SIZE_MAX / 2) n = SIZE_MAX / 2;
    SG_TRY(sg_merges_reserve(g->t, (size_t)n, g->err));
    for (uint64_t i = 0; i < n; i++) {
        size_t len;
        const char *text = sg_meta_item_string(g->merges, i, &len),
                   *space = len > 1 ? memchr(text + 1, ' ', len - 1) : NULL;
        if (!space)
            return sg_fail(g->err, SEGUE_EFORMAT,
                           "read tokenizer: %s: merge %llu is not two tokens; fetch the file again", g->what,
                           (unsigned long long)i);
        size_t left = (size_t)(space - text);
        /* Converters keep merges of tokens that they removed from the vocabulary. Such a merge can never apply
         * and is left out. */
        segue_status s =
            sg_merges_put(g->t, text, left, space + 1, len - left - 1, (uint32_t)i, 0, g->what, NULL);
        if (s != SEGUE_OK && s != SEGUE_EFORMAT) return sg_no_memory("merges", len, g->err);
    }
    return SEGUE_OK;
}

/* Control, unknown and user tokens are matched in the raw text; the first two only without SEGUE_TEXT_NO_SPECIAL. */
static segue_status read_added(struct gguf_reader *g)
{
    struct sg_tokenizer *t = g->t;
    size_t n = 0, all = 0;
    for (uint32_t id = 0; id < t->tokens_n; id++)
        all += t->tokens[id].kind >= SG_TOKEN_UNKNOWN && t->tokens[id].kind <= SG_TOKEN_USER;
    /* + 1: sg_alloc of 0 bytes is avoided for a file without such tokens */
    struct sg_added *items = sg_alloc(all * sizeof *items + 1);
    if (!items) return sg_no_memory("tokenizer", all * sizeof *items, g->err);
    for (uint32_t id = 0; id < t->tokens_n; id++) {
        const struct sg_vocab_token *k = &t->tokens[id];
        if (k->kind < SG_TOKEN_UNKNOWN || k->kind > SG_TOKEN_USER) continue;
        items[n++] = (struct sg_added){
            .text = k->text, .len = k->text_len, .id = (int32_t)id, .special = k->kind != SG_TOKEN_USER};
    }
    segue_status s = sg_added_make(t, &t->raw, items, n, g->what, g->err);
    if (s == SEGUE_OK) s = sg_added_make(t, &t->normal, items, 0, g->what, g->err);
    sg_free(items);
    return s;
}

#define CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* Cased letters, as listed by the tokenizer of DeepSeek LLM. */
#define DEEPSEEK_LETTERS \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}" \
    "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}" \
    "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}" \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}" \
    "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}" \
    "\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}" \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}" \
    "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}" \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}" \
    "\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}" \
    "\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}" \
    "\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}" \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}" \
    "\\x{1e900}-\\x{1e943}"

/* Pre-tokenizers that are a chain of patterns whose matches become pieces, as in the models' tokenizer.json files. */
static const struct {
    const char *name, *patterns[6];
    int bos; /* default of add_bos_token */
} chains[] = {
    {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", "gpt2", "[0-9][0-9][0-9]"}, 0},
    {"deepseek-coder", {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, "\\p{N}"}, 0},
    {"deepseek-llm",
     {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
      "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+", "\\s+$", CJK, "\\p{N}+"},
     0},
};

/* Add the splitters of a chain. *found = 0: the name is none of them. */
static segue_status read_chain(struct gguf_reader *g, const char *name, size_t len, int *add_bos, int *found)
{
    struct sg_tokenizer *t = g->t;
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        if (!text_is(name, len, chains[i].name)) continue;
        for (size_t k = 0; k < 6 && chains[i].patterns[k]; k++) {
            const char *p = chains[i].patterns[k];
            struct sg_split split = {.kind = SG_SPLIT_GPT2};
            if (strcmp(p, "gpt2") != 0) SG_TRY(sg_split_of_pattern(&split, p, strlen(p), g->what, g->err));
            t->splits[t->splits_n++] = split;
        }
        t->info.pre = chains[i].name;
        t->info.warning = "the split pattern has no built-in scanner; PCRE2 may classify recent Unicode characters differently";
        *add_bos = chains[i].bos;
        *found = 1;
        return SEGUE_OK;
    }
    *found = 0;
    return SEGUE_OK;
}

/* A GGUF names no normalizer. The models with these pre-tokenizers have NFC in their tokenizer.json, so that a GGUF gives the
 * same tokens as the folder; llama.cpp does not normalize. */
static void add_nfc(struct sg_tokenizer *t, const char *name, size_t len)
{
    static const char *const names[] = {"qwen2", "command-r"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (text_is(name, len, names[i])) t->norms[t->norms_n++] = (struct sg_normalizer){.kind = SG_NORM_NFC};
}

/* Splitters, ignore_merges and the default of add_bos for the file's pre-tokenizer name. */
static segue_status read_pre(struct gguf_reader *g, int *add_bos)
{
    static const struct {
        const char *name, *pre;
        enum sg_split_kind split;
        int digits, whole, bos;
    /* digits: split digits first; whole: ignore_merges; bos: default of add_bos_token */
    } known[] = {
        {"gpt-2", "gpt2", SG_SPLIT_GPT2, 0, 0, 0},         {"gpt2", "gpt2", SG_SPLIT_GPT2, 0, 0, 0},
        {"default", "gpt2", SG_SPLIT_GPT2, 0, 0, 0},       {"smollm", "smollm", SG_SPLIT_GPT2, 1, 0, 0},
        {"refact", "smollm", SG_SPLIT_GPT2, 1, 0, 0},      {"starcoder", "smollm", SG_SPLIT_GPT2, 1, 0, 0},
        {"llama-bpe", "llama3", SG_SPLIT_LLAMA3, 0, 1, 1}, {"llama3", "llama3", SG_SPLIT_LLAMA3, 0, 1, 1},
        {"llama-v3", "llama3", SG_SPLIT_LLAMA3, 0, 1, 1},  {"qwen2", "qwen2", SG_SPLIT_QWEN2, 0, 0, 0},
        {"qwen35", "qwen35", SG_SPLIT_QWEN35, 0, 0, 0},    {"mpt", "gpt2", SG_SPLIT_GPT2, 0, 0, 0},
        {"olmo", "gpt2", SG_SPLIT_GPT2, 0, 0, 0},          {"command-r", "smollm", SG_SPLIT_GPT2, 1, 0, 0},
    };
    struct sg_tokenizer *t = g->t;
    const char *name;
    size_t len;
    SG_TRY(sg_meta_string(g->a, KEY("pre"), &name, &len, g->err));
    if (!name) {
        name = "default";
        len = strlen(name);
    }
    if (text_is(name, len, "default"))
        g->t->info.warning = "the file does not name its pre-tokenizer; gpt2's is used";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!text_is(name, len, known[i].name)) continue;
        if (known[i].digits) t->splits[t->splits_n++] = (struct sg_split){.kind = SG_SPLIT_DIGIT};
        t->splits[t->splits_n++] = (struct sg_split){.kind = known[i].split};
        t->ignore_merges = (uint8_t)known[i].whole;
        t->info.pre = known[i].pre;
        add_nfc(t, name, len);
        *add_bos = known[i].bos;
        return SEGUE_OK;
    }
    int found;
    SG_TRY(read_chain(g, name, len, add_bos, &found));
    if (found) return SEGUE_OK;
    return sg_fail(g->err, SEGUE_EUNSUPPORTED,
                   "read tokenizer: %s: pre-tokenizer \"%.*s\" is not supported; choose another model", g->what,
                   (int)(len < 40 ? len : 40), name);
}

/* Byte-level BPE. The unknown token is not used: each byte has a token. */
static segue_status read_bpe(struct gguf_reader *g, int *add_bos)
{
    if (!g->merges)
        return sg_fail(g->err, SEGUE_EFORMAT, "read tokenizer: %s: %s is missing; fetch the file again",
                       g->what, KEY("merges"));
    SG_TRY(read_pre(g, add_bos));
    g->t->byte_level = 1;
    g->t->info.kind = "bpe";
    return read_merges(g);
}

/* Gemma 4: BPE by ranks over characters, with U+2581 for spaces and <0xXX> for characters without a token. */
static segue_status read_gemma4(struct gguf_reader *g)
{
    struct sg_tokenizer *t = g->t;
    int64_t unk;
    if (!g->merges)
        return sg_fail(g->err, SEGUE_EFORMAT, "read tokenizer: %s: %s is missing; fetch the file again",
                       g->what, KEY("merges"));
    SG_TRY(sg_meta_int(g->a, KEY("unknown_token_id"), -1, &unk, g->err));
    t->unk = unk >= 0 && unk < t->tokens_n ? (int32_t)unk : -1;
    t->norms[t->norms_n++] = (struct sg_normalizer){
        .kind = SG_NORM_REPLACE, .from = " ", .from_len = 1, .to = "\xe2\x96\x81", .to_len = 3};
    t->byte_fallback = t->fuse_unk = 1;
    t->info.kind = "spm";
    return read_merges(g);
}

/* SentencePiece BPE. Prepend puts a space in front of the text and after each special token. */
static segue_status read_spm(struct gguf_reader *g)
{
    struct sg_tokenizer *t = g->t;
    int space;
    int64_t unk;
    if (!g->scores)
        return sg_fail(g->err, SEGUE_EFORMAT, "read tokenizer: %s: %s is missing; fetch the file again",
                       g->what, KEY("scores"));
    SG_TRY(sg_meta_bool(g->a, KEY("add_space_prefix"), 1, &space, g->err));
    SG_TRY(sg_meta_int(g->a, KEY("unknown_token_id"), 0, &unk, g->err));
    t->unk = unk >= 0 && unk < t->tokens_n ? (int32_t)unk : -1;
    if (space) t->norms[t->norms_n++] = (struct sg_normalizer){.kind = SG_NORM_PREPEND, .to = " ", .to_len = 1};
    t->norms[t->norms_n++] = (struct sg_normalizer){
        .kind = SG_NORM_REPLACE, .from = " ", .from_len = 1, .to = "\xe2\x96\x81", .to_len = 3};
    t->strip_space = space != 0;
    t->info.kind = "spm";
    return SEGUE_OK;
}

/* *out: the id under a key; -1 if absent or stored as "none". */
static segue_status id_of(struct gguf_reader *g, const char *key, int32_t *out)
{
    int64_t id;
    SG_TRY(sg_meta_int(g->a, key, -1, &id, g->err));
    /* some converters store "none" as 2^32 - 1 in an unsigned field */
    if (id >= g->t->tokens_n && id != UINT32_MAX)
        return sg_fail(g->err, SEGUE_EFORMAT,
                       "read tokenizer: %s: %s is %lld, the vocabulary has %u tokens; fetch the file again",
                       g->what, key, (long long)id, g->t->tokens_n);
    /* negative: absent */
    *out = id >= 0 && id < g->t->tokens_n ? (int32_t)id : -1;
    return SEGUE_OK;
}

/* bos, eos and the three ids that can end an answer; sg_vocab_finish drops the absent ones. add_bos: default of that
 * key. */
static segue_status read_ends(struct gguf_reader *g, int add_bos)
{
    struct sg_tokenizer *t = g->t;
    int bos, eos;
    int32_t *stops = sg_arena_alloc(&t->arena, 3 * sizeof *stops);
    if (!stops) return sg_no_memory("tokenizer", 3 * sizeof *stops, g->err);
    SG_TRY(id_of(g, KEY("bos_token_id"), &t->info.bos));
    SG_TRY(id_of(g, KEY("eos_token_id"), &t->info.eos));
    SG_TRY(id_of(g, KEY("eot_token_id"), &stops[1]));
    SG_TRY(id_of(g, KEY("eom_token_id"), &stops[2]));
    SG_TRY(sg_meta_bool(g->a, KEY("add_bos_token"), add_bos, &bos, g->err));
    SG_TRY(sg_meta_bool(g->a, KEY("add_eos_token"), 0, &eos, g->err));
    if (bos && t->info.bos >= 0) t->before[t->before_n++] = t->info.bos;
    if (eos && t->info.eos >= 0) t->after[t->after_n++] = t->info.eos;
    /* sg_vocab_finish copies this list */
    stops[0] = t->info.eos;
    t->info.stops = stops;
    t->info.stops_n = 3;
    return SEGUE_OK;
}

/* Tokens of fill-in-the-middle, under the names of today and the older ones. */
static segue_status read_fim(struct gguf_reader *g)
{
    static const char *const keys[SG_FIM_N][2] = {{KEY("fim_pre_token_id"), KEY("prefix_token_id")},
                                                  {KEY("fim_suf_token_id"), KEY("suffix_token_id")},
                                                  {KEY("fim_mid_token_id"), KEY("middle_token_id")},
                                                  {KEY("fim_pad_token_id"), NULL},
                                                  {KEY("fim_rep_token_id"), NULL},
                                                  {KEY("fim_sep_token_id"), NULL}};
    for (int what = 0; what < SG_FIM_N; what++)
        for (int i = 0; i < 2 && keys[what][i] && !g->t->fim_named[what]; i++) {
            int32_t id;
            SG_TRY(id_of(g, keys[what][i], &id));
            g->t->fim_named[what] = id + 1;
        }
    return SEGUE_OK;
}

/* model: value of tokenizer.ggml.model. Tokens come first, since all other keys refer to them. */
static segue_status read_gguf(struct gguf_reader *g, const char *model, size_t len)
{
    int add_bos = 1, bpe = text_is(model, len, "gpt2"), gemma4 = text_is(model, len, "gemma4");
    if (!bpe && !gemma4 && !text_is(model, len, "llama"))
        return sg_fail(g->err, SEGUE_EUNSUPPORTED,
                       "read tokenizer: %s: tokenizer \"%.*s\" is not supported; choose another model", g->what,
                       (int)(len < 40 ? len : 40), model);
    SG_TRY(array_of(g, KEY("tokens"), SG_META_STRING, 0, &g->tokens));
    if (!g->tokens)
        return sg_fail(g->err, SEGUE_EFORMAT, "read tokenizer: %s: %s is missing; fetch the file again",
                       g->what, KEY("tokens"));
    /* scores and types have one item per token */
    uint64_t n = g->tokens->v.a.n;
    SG_TRY(array_of(g, KEY("scores"), SG_META_FLOAT, n, &g->scores));
    SG_TRY(array_of(g, KEY("token_type"), SG_META_INT, n, &g->types));
    SG_TRY(array_of(g, KEY("merges"), SG_META_STRING, 0, &g->merges));
    SG_TRY(read_tokens(g));
    SG_TRY(bpe ? read_bpe(g, &add_bos) : gemma4 ? read_gemma4(g) : read_spm(g));
    SG_TRY(read_added(g));
    SG_TRY(read_ends(g, add_bos));
    SG_TRY(read_fim(g));
    sg_fim_find(g->t);
    return sg_vocab_finish(g->t, 1, g->what, g->err);
}

/* The archive is not needed after the call: all texts are copied. */
segue_status sg_tokenizer_of_gguf(struct sg_tokenizer **out, const struct sg_archive *a, segue_error *err)
{
    const char *model;
    size_t len;
    SG_TRY(sg_meta_string(a, KEY("model"), &model, &len, err));
    if (!model) {
        *out = NULL;
        return SEGUE_OK;
    }
    struct sg_tokenizer *t = sg_alloc(sizeof *t);
    if (!t) return sg_no_memory("tokenizer", sizeof *t, err);
    t->unk = t->info.bos = t->info.eos = -1;
    struct gguf_reader g = {.t = t, .a = a, .what = a->path ? a->path : "GGUF", .err = err};
    segue_status s = read_gguf(&g, model, len);
    if (s == SEGUE_OK)
        *out = t;
    else
        sg_tokenizer_close(t);
    return s;
}
