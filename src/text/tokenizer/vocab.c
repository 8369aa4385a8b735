/* vocab.c: the tokens of a tokenizer by id and by text, its merges by pair, and the byte alphabet of byte-level BPE.
 * Sizes and ids come from untrusted files: each is checked before it is used for an allocation or an index.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

enum { MAX_IDS = 1 << 24 };

static uint32_t text_hash(const struct sg_tokenizer *t, const char *s, size_t n) { return (uint32_t)sg_hash_keyed(s, n, t->key); }

/* Size - 1 of a hash table that n entries fill at most by half; the size is a power of two. */
static uint32_t mask_for(size_t n)
{
    uint32_t size = 16;
    while (size < 2 * n) size *= 2;
    return size - 1;
}

/* Called once, before anything is looked up. The arena returns zeroed memory, so ids without a token have the kind
 * SG_TOKEN_NONE. */
segue_status sg_vocab_reserve(struct sg_tokenizer *t, size_t n, const char *what, segue_error *err)
{
    if (!n)
        return sg_fail(err, SEGUE_EFORMAT, "read tokenizer: %s: no tokens; fetch the file again",
                       what);
    if (n > MAX_IDS)
        return sg_fail(err, SEGUE_EFORMAT,
                       "read tokenizer: %s: %zu ids, more than %d; fetch the file again", what, n,
                       MAX_IDS);
    sg_random(t->key, sizeof t->key);
    t->tokens = sg_arena_alloc(&t->arena, n * sizeof *t->tokens);
    if (!t->tokens) return sg_no_memory("tokenizer", n * sizeof *t->tokens, err);
    t->tokens_n = (uint32_t)n;
    return SEGUE_OK;
}

/* An id that has this text already gets the new kind and score: added tokens repeat entries of the vocabulary. */
segue_status sg_vocab_put(struct sg_tokenizer *t, int64_t id, const char *text, size_t len,
                          enum sg_token_kind kind, float score, const char *what, segue_error *err)
{
    if (id < 0 || id >= t->tokens_n)
        return sg_fail(err, SEGUE_EFORMAT,
                       "read tokenizer: %s: id %lld of \"%.*s\" is not in 0..%u; fetch the file again", what,
                       (long long)id, (int)(len < 60 ? len : 60), text, t->tokens_n - 1);
    if (len > 1 << 20)
        return sg_fail(err, SEGUE_EFORMAT,
                       "read tokenizer: %s: token %lld has %zu bytes, more than 1 MiB; fetch the file again", what,
                       (long long)id, len);
    struct sg_vocab_token *k = &t->tokens[id];
    if (k->text && (k->text_len != len || memcmp(k->text, text, len) != 0))
        return sg_fail(err, SEGUE_EFORMAT,
                       "read tokenizer: %s: id %lld is both \"%.60s\" and \"%.*s\"; fetch the file again",
                       what, (long long)id, k->text, (int)(len < 60 ? len : 60), text);
    if (!k->text) k->text = sg_arena_strndup(&t->arena, text, len);
    if (!k->text) return sg_no_memory("tokenizer", len, err);
    k->text_len = (uint32_t)len;
    k->kind = (uint8_t)kind;
    k->score = score;
    /* no search for a longer text needs to compute its hash */
    if (len > t->longest) t->longest = (uint32_t)len;
    return SEGUE_OK;
}

/* Linear probing. The table is sized for all ids, so that a later call with more texts needs no larger one. */
segue_status sg_vocab_index(struct sg_tokenizer *t, segue_error *err)
{
    uint32_t mask = mask_for(t->tokens_n);
    if (!t->slots) t->slots = sg_arena_alloc(&t->arena, ((size_t)mask + 1) * sizeof *t->slots);
    if (!t->slots) return sg_no_memory("tokenizer", ((size_t)mask + 1) * sizeof *t->slots, err);
    t->slots_mask = mask;
    for (uint32_t id = 0; id < t->tokens_n; id++) {
        const struct sg_vocab_token *k = &t->tokens[id];
        /* holes and duplicates have no entry of their own */
        if (!k->text || sg_vocab_find(t, k->text, k->text_len) >= 0) continue;
        uint32_t at = text_hash(t, k->text, k->text_len) & mask;
        while (t->slots[at]) at = (at + 1) & mask;
        t->slots[at] = id + 1;
    }
    return SEGUE_OK;
}

/* Linear probing ends at the first free entry; the table is never full. */
int32_t sg_vocab_find(const struct sg_tokenizer *t, const char *text, size_t len)
{
    if (len > t->longest) return -1;
    for (uint32_t at = text_hash(t, text, len) & t->slots_mask; t->slots[at]; at = (at + 1) & t->slots_mask) {
        const struct sg_vocab_token *k = &t->tokens[t->slots[at] - 1];
        if (k->text_len == len && memcmp(k->text, text, len) == 0) return (int32_t)(t->slots[at] - 1);
    }
    return -1;
}

/* Added tokens outside of the model must not be produced by merging. */
int32_t sg_vocab_find_model(const struct sg_tokenizer *t, const char *text, size_t len)
{
    int32_t id = sg_vocab_find(t, text, len);
    return id >= 0 && t->tokens[id].outside ? -1 : id;
}

/* text is terminated by NUL, so tokens with NULs cannot be found this way. */
int32_t sg_token_find(const struct sg_tokenizer *t, const char *text)
{
    return sg_vocab_find(t, text, strlen(text));
}

static uint32_t pair_hash(const struct sg_tokenizer *t, int32_t left, int32_t right)
{
    return sg_hash_pair((uint32_t)left, (uint32_t)right, t->key + 2);
}

/* by_rank has one entry per merge of the file; entries of merges that are left out stay 0 and are never used. */
segue_status sg_merges_reserve(struct sg_tokenizer *t, size_t n, segue_error *err)
{
    if (n > MAX_IDS)
        return sg_fail(err, SEGUE_EFORMAT,
                       "read tokenizer: merges: %zu entries, more than %d; fetch the file again", n,
                       MAX_IDS);
    uint32_t mask = mask_for(n);
    t->merges = sg_arena_alloc(&t->arena, ((size_t)mask + 1) * sizeof *t->merges);
    if (!t->merges) return sg_no_memory("tokenizer", ((size_t)mask + 1) * sizeof *t->merges, err);
    for (uint32_t i = 0; i <= mask; i++) t->merges[i].rank = UINT32_MAX;
    t->by_rank = sg_arena_alloc(&t->arena, (n + 1) * sizeof *t->by_rank);
    if (!t->by_rank) return sg_no_memory("tokenizer", (n + 1) * sizeof *t->by_rank, err);
    t->merges_mask = mask;
    t->ranks = (uint32_t)n;
    return SEGUE_OK;
}

/* The error for a merge whose operand or result is not a token. */
static segue_status missing_token(const char *what, uint32_t rank, const char *text, size_t len,
                                 segue_error *err)
{
    return sg_fail(
        err, SEGUE_EFORMAT,
        "read tokenizer: %s: merge %u needs token \"%.*s\", which the vocabulary lacks; fetch the file again",
        what, rank, (int)(len < 60 ? len : 60), text);
}

/* The result of a merge is the token whose text is both texts joined. */
segue_status sg_merges_put(struct sg_tokenizer *t, const char *left, size_t left_len, const char *right,
                           size_t right_len, uint32_t rank, int later, const char *what, segue_error *err)
{
    int32_t a = sg_vocab_find_model(t, left, left_len), b = sg_vocab_find_model(t, right, right_len);
    if (a < 0) return missing_token(what, rank, left, left_len, err);
    if (b < 0) return missing_token(what, rank, right, right_len, err);
    /* almost all tokens are short: no allocation per merge */
    char small[256];
    char *joined = left_len + right_len <= sizeof small ? small : sg_alloc(left_len + right_len);
    if (!joined) return sg_no_memory("tokenizer", left_len + right_len, err);
    memcpy(joined, left, left_len);
    memcpy(joined + left_len, right, right_len);
    int32_t made = sg_vocab_find_model(t, joined, left_len + right_len);
    segue_status s = made < 0 ? missing_token(what, rank, joined, left_len + right_len, err) : SEGUE_OK;
    /* the text is needed only for the search */
    if (joined != small) sg_free(joined);
    SG_TRY(s);
    uint32_t at = pair_hash(t, a, b) & t->merges_mask;
    while (t->merges[at].rank != UINT32_MAX && (t->merges[at].left != a || t->merges[at].right != b))
        at = (at + 1) & t->merges_mask;
    /* of equal pairs the `tokenizers` library keeps the last, llama.cpp the first */
    if (t->merges[at].rank == UINT32_MAX || later) {
        t->merges[at] = (struct sg_merge){a, b, made, rank};
        t->by_rank[rank] = at;
    }
    return SEGUE_OK;
}

/* Linear probing ends at a free entry: the table is at most half full. */
const struct sg_merge *sg_merges_find(const struct sg_tokenizer *t, int32_t left, int32_t right)
{
    for (uint32_t at = pair_hash(t, left, right) & t->merges_mask;; at = (at + 1) & t->merges_mask) {
        const struct sg_merge *m = &t->merges[at];
        if (m->rank == UINT32_MAX) return NULL;
        if (m->left == left && m->right == right) return m;
    }
}

/* The byte alphabet of GPT-2: printable Latin-1 bytes are their own code point, the other 68 become U+0100 and up in
 * rising order. */
static uint32_t code_point_of_byte(unsigned b)
{
    if ((b >= 33 && b <= 126) || (b >= 161 && b != 173)) return b;
    return b <= 32 ? 256 + b : b <= 160 ? 256 + 33 + b - 127 : 256 + 67;
}

/* Inverse of code_point_of_byte; -1: not in the alphabet. */
static int byte_of_code_point(uint32_t c)
{
    if (c < 256) return code_point_of_byte(c) == c ? (int)c : -1;
    if (c > 256 + 67) return -1;
    c -= 256;
    return (int)(c <= 32 ? c : c <= 66 ? c - 33 + 127 : 173);
}

/* out needs len bytes: each character of the alphabet is one byte. */
int sg_byte_text(const char *text, size_t len, char *out, size_t *out_len)
{
    size_t n = 0;
    if (sg_utf8_valid(text, len) != len) return 0;
    for (size_t at = 0; at < len;) {
        uint32_t c;
        at += sg_utf8_get(text + at, &c);
        int b = byte_of_code_point(c);
        if (b < 0) return 0;
        out[n++] = (char)b;
    }
    *out_len = n;
    return 1;
}

/* out needs 2 n bytes. */
size_t sg_byte_spell(const char *bytes, size_t n, char *out)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) len += sg_utf8_put(out + len, code_point_of_byte((unsigned char)bytes[i]));
    return len;
}

/* The byte value of the text <0xXX>, else -1. */
static int hex_byte(const char *text, size_t len)
{
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Set k->bytes, the bytes of the token in running text: added tokens literally, others decoded from the byte
 * alphabet or from U+2581 and <0xXX>. If k->bytes is set already, it replaces the text as the source. */
static segue_status set_bytes(struct sg_tokenizer *t, struct sg_vocab_token *k, int plain_added, segue_error *err)
{
    const char *from = k->bytes ? k->bytes : k->text;
    uint32_t len = k->bytes ? k->bytes_len : k->text_len;
    int added = k->kind == SG_TOKEN_CONTROL || k->kind == SG_TOKEN_USER || k->kind == SG_TOKEN_UNKNOWN;
    k->bytes = from;
    k->bytes_len = len;
    if (added && (plain_added || t->byte_level)) return SEGUE_OK;
    char *bytes = sg_arena_alloc(&t->arena, (size_t)len + 1);
    if (!bytes) return sg_no_memory("tokenizer", len, err);
    size_t n = 0;
    int value = t->byte_level ? -1 : hex_byte(from, len);
    if (t->byte_level) {
        /* a token outside of the alphabet is kept as it is spelled */
        if (!sg_byte_text(from, len, bytes, &n)) return SEGUE_OK;
    /* <0xXX> is one byte */
    } else if (value >= 0) {
        bytes[n++] = (char)value;
    } else {
        for (uint32_t i = 0; i < len;) {
            int meta = len - i >= 3 && memcmp(from + i, "\xe2\x96\x81", 3) == 0;
            bytes[n++] = meta ? ' ' : from[i];
            i += meta ? 3 : 1;
        }
    }
    k->bytes = bytes;
    k->bytes_len = (uint32_t)n;
    return SEGUE_OK;
}

/* 1: the token has U+2581 after another character. One such token forbids cutting texts before U+2581. */
static int has_inner_meta(const struct sg_vocab_token *k)
{
    int other = 0;
    for (uint32_t i = 0; i < k->text_len;) {
        int meta = k->text_len - i >= 3 && memcmp(k->text + i, "\xe2\x96\x81", 3) == 0;
        if (meta && other) return 1;
        other |= !meta;
        i += meta ? 3 : 1;
    }
    return 0;
}

/* Control tokens that end an answer in the model families that segue reads. Many files name only one of them as eos. */
static int ends_turn(const struct sg_vocab_token *k)
{
    static const char *const names[] = {"<|im_end|>",    "<|eot_id|>",    "<|eom_id|>",
                                        "<|endoftext|>", "<end_of_turn>", "</s>"};
    if (k->kind != SG_TOKEN_CONTROL) return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == k->text_len && memcmp(names[i], k->text, k->text_len) == 0) return 1;
    return 0;
}

/* 1: the token ends a text of a model that fills gaps: padding, or the beginning of another file or repository. */
static int ends_fim(const struct sg_tokenizer *t, int32_t id)
{
    const int32_t *fim = t->info.fim;
    if (fim[SG_FIM_PRE] < 0 || fim[SG_FIM_SUF] < 0 || fim[SG_FIM_MID] < 0) return 0;
    return id == fim[SG_FIM_PAD] || id == fim[SG_FIM_REP] || id == fim[SG_FIM_SEP];
}

/* Build info.stops without duplicates: the ids that the file names (eos, eot, eom), then the control tokens that end
 * a turn or a text. */
static segue_status add_stops(struct sg_tokenizer *t, segue_error *err)
{
    int32_t *stops = sg_arena_alloc(&t->arena, (t->info.stops_n + 9) * sizeof *stops);
    if (!stops) return sg_no_memory("tokenizer", 64, err);
    size_t n = 0;
    for (size_t i = 0; i < t->info.stops_n; i++) {
        /* absent ids and duplicates are left out */
        int known = t->info.stops[i] < 0;
        for (size_t k = 0; k < n; k++) known |= stops[k] == t->info.stops[i];
        if (!known) stops[n++] = t->info.stops[i];
    }
    /* at most nine further ids: one per name in ends_turn, three of ends_fim */
    size_t limit = n + 9;
    for (uint32_t id = 0; id < t->tokens_n && n < limit; id++) {
        if (!t->tokens[id].text || (!ends_turn(&t->tokens[id]) && !ends_fim(t, (int32_t)id))) continue;
        int known = 0;
        for (size_t k = 0; k < n; k++) known |= stops[k] == (int32_t)id;
        if (!known) stops[n++] = (int32_t)id;
    }
    t->info.stops = stops;
    t->info.stops_n = n;
    return SEGUE_OK;
}

/* Called once, after all tokens, merges and settings have been read. */
segue_status sg_vocab_finish(struct sg_tokenizer *t, int plain_added, const char *what, segue_error *err)
{
    char text[8];
    for (unsigned b = 0; b < 256; b++) {
        char byte = (char)b;
        size_t len = 6;
        static const char hex[] = "0123456789ABCDEF";
        memcpy(text, "<0x00>", 6);
        text[3] = hex[b >> 4];
        text[4] = hex[b & 15];
        /* text: the spelling of byte b */
        if (t->byte_level) len = sg_byte_spell(&byte, 1, text);
        t->byte_ids[b] = sg_vocab_find_model(t, text, len);
        if (b < 128) t->ascii_ids[b] = sg_vocab_find_model(t, &byte, 1);
    }
    /* merging by score must be able to encode any character, by its bytes or as the unknown token */
    if (!t->byte_level && !t->merges && t->unk < 0)
        for (unsigned b = 0; b < 256; b++)
            if (t->byte_ids[b] < 0)
                return sg_fail(
                    err, SEGUE_EFORMAT,
                    "read tokenizer: %s: no token <0x%02X> and no unknown token; fetch the file again",
                    what, b);
    int inner = 0;
    for (uint32_t id = 0; id < t->tokens_n; id++) {
        struct sg_vocab_token *k = &t->tokens[id];
        if (!k->text) continue;
        SG_TRY(set_bytes(t, k, plain_added, err));
        inner |= !k->outside && has_inner_meta(k);
    }
    /* a text can be cut before U+2581 only if U+2581 itself is a token */
    t->by_word = !t->byte_level && !inner && sg_vocab_find_model(t, "\xe2\x96\x81", 3) >= 0;
    t->info.vocab = t->tokens_n;
    /* the vocabulary may be too small for the fixed ids of tokllama2c.c */
    if (t->info.bos >= (int32_t)t->tokens_n) t->info.bos = -1;
    if (t->info.eos >= (int32_t)t->tokens_n) t->info.eos = -1;
    t->info.bos_text = t->info.bos >= 0 && t->tokens[t->info.bos].text ? t->tokens[t->info.bos].text : "";
    t->info.eos_text = t->info.eos >= 0 && t->tokens[t->info.eos].text ? t->tokens[t->info.eos].text : "";
    for (uint32_t i = 0; i < t->before_n; i++) t->info.add_bos |= t->before[i] == t->info.bos;
    for (uint32_t i = 0; i < t->after_n; i++) t->info.add_eos |= t->after[i] == t->info.eos;
    return add_stops(t, err);
}
