/* tokparts.h: what a tokenizer is made of. The readers (tokjson.c, tokgguf.c, tokllama2c.c) fill it, everything
 * else reads it. The way of a text: added tokens cut it (added.c), the pieces in between are normalized
 * (normal.c), split (pretoken.c) and merged (bpe.c, merge.c) into ids (tokenize.c).
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_TOKPARTS_H
#define SG_TEXT_TOKPARTS_H

#include "base/buf.h"
#include "base/mem.h"
#include "text/tokenizer/tokenizer.h"

enum sg_token_kind { /* GGUF's numbers; 0 = no token has this id */
                     SG_TOKEN_NONE,
                     SG_TOKEN_NORMAL,
                     SG_TOKEN_UNKNOWN,
                     SG_TOKEN_CONTROL,
                     SG_TOKEN_USER,
                     SG_TOKEN_UNUSED,
                     SG_TOKEN_BYTE
};

struct sg_token {
    const char *text;  /* as the file spells it; NULL = none */
    const char *bytes; /* in running text */
    uint32_t text_len, bytes_len;
    float score;
    uint8_t kind;    /* sg_token_kind */
    uint8_t outside; /* 1: an added token that the merging model does not know */
};

/* A token that is found in the text before anything else looks at it. */
struct sg_added {
    const char *text;
    uint32_t len;
    int32_t id;
    uint8_t special, lstrip, rstrip, single_word;
};
struct sg_added_set {
    struct sg_added *items; /* [n] sorted by text, no two alike */
    uint32_t n;
    uint32_t first[257]; /* items whose text begins with byte b: [first[b], first[b + 1]) */
};

enum sg_norm_kind { SG_NORM_NFC, SG_NORM_PREPEND, SG_NORM_REPLACE, SG_NORM_STRIP };
struct sg_norm {
    enum sg_norm_kind kind;
    const char *from, *to; /* PREPEND: to */
    size_t from_len, to_len;
    int left, right; /* STRIP */
};

enum sg_split_kind {
    SG_SPLIT_GPT2,
    SG_SPLIT_LLAMA3,
    SG_SPLIT_QWEN2,
    SG_SPLIT_QWEN35,
    SG_SPLIT_DIGITS, /* runs of digits */
    SG_SPLIT_DIGIT,  /* digits one by one */
    SG_SPLIT_LITERAL,
    SG_SPLIT_REGEX,
    SG_SPLIT_META,       /* ' ' becomes U+2581, pieces begin with it */
    SG_SPLIT_SPACE_FIRST /* a space is put before the piece unless it has one */
};
enum sg_split_rule {
    SG_RULE_ISOLATED,
    SG_RULE_REMOVED,
    SG_RULE_KEPT,
    SG_RULE_PREVIOUS,
    SG_RULE_NEXT,
    SG_RULE_CONTIGUOUS
};
struct sg_split {
    enum sg_split_kind kind;
    enum sg_split_rule rule; /* LITERAL and REGEX; KEPT: only what matches stays */
    const char *text;        /* LITERAL */
    size_t len;
    void *regex; /* REGEX: a pcre2_code */
    int prepend; /* META: 0 never, 1 the first piece of a text, 2 every piece */
    int whole;   /* META: do not split */
};
enum { SG_SPLITS = 16, SG_NORMS = 16, SG_ENDS = 16 };

/* Open addressing; rank UINT32_MAX = free. */
struct sg_merge {
    int32_t left, right, made;
    uint32_t rank;
};

struct sg_tokenizer {
    struct sg_arena arena;
    struct sg_tokenizer_info info;

    struct sg_token *tokens; /* [tokens_n] by id */
    uint32_t tokens_n;
    uint32_t *slots; /* [slots_mask + 1] id + 1 by hash of text; 0 = free */
    uint32_t slots_mask;
    uint32_t longest; /* bytes of the longest text */

    struct sg_merge *merges;     /* [merges_mask + 1]; NULL: merge by score */
    uint32_t merges_mask, ranks; /* ranks: highest rank + 1 */
    uint32_t *by_rank;           /* [ranks] where each rank is in merges */
    uint8_t byte_level;          /* symbols are bytes, spelt in the byte alphabet; else characters */
    uint8_t byte_fallback, fuse_unk, ignore_merges;
    uint8_t by_word;        /* no token holds a U+2581 after another character: texts may be cut before it */
    int32_t byte_ids[256];  /* byte_level: of the byte's spelling; else of <0xXX>; -1 = none */
    int32_t ascii_ids[128]; /* not byte_level: of the one-character text */
    int32_t unk;            /* -1 = none */

    struct sg_added_set raw, normal; /* matched in the text as given; in the normalized text */
    struct sg_norm norms[SG_NORMS];
    struct sg_split splits[SG_SPLITS];
    uint32_t norms_n, splits_n;
    int32_t before[SG_ENDS], after[SG_ENDS]; /* ids put around every text, unless SEGUE_TEXT_NO_BOS */
    uint32_t before_n, after_n;
    uint8_t strip_space; /* decoding drops one space at the very start */
};

/* --- vocab.c --- */
/* Room for n ids. EFORMAT beyond 2^24. */
segue_status sg_vocab_room(struct sg_tokenizer *t, size_t n, const char *what, segue_error *err);
/* Set the text of an id (copied). EFORMAT: it has another text already. */
segue_status sg_vocab_put(struct sg_tokenizer *t, int64_t id, const char *text, size_t len,
                          enum sg_token_kind kind, float score, const char *what, segue_error *err);
/* Index all texts; the one indexed first wins when two are alike. May be called again after more texts were
 * put. */
segue_status sg_vocab_index(struct sg_tokenizer *t, segue_error *err);
int32_t sg_vocab_find(const struct sg_tokenizer *t, const char *text, size_t len); /* -1 = none */
/* The same among the tokens that the merging model knows. */
int32_t sg_vocab_find_model(const struct sg_tokenizer *t, const char *text, size_t len);
/* Room for n merges, then one by one; of two alike, the later wins when `later`. */
segue_status sg_merges_room(struct sg_tokenizer *t, size_t n, segue_error *err);
segue_status sg_merges_put(struct sg_tokenizer *t, const char *left, size_t left_len, const char *right,
                           size_t right_len, uint32_t rank, int later, const char *what, segue_error *err);
const struct sg_merge *sg_merges_find(const struct sg_tokenizer *t, int32_t left, int32_t right);
/* The tables that follow from the texts: byte ids, running-text bytes, by_word, stops. plain_added: in
 * running text added tokens are what they are, whatever the alphabet (GGUF). */
segue_status sg_vocab_finish(struct sg_tokenizer *t, int plain_added, const char *what, segue_error *err);
/* Bytes of a text in the byte alphabet appended to out; 0: it has a character outside the alphabet. */
int sg_byte_text(const char *text, size_t len, char *out, size_t *out_len);
/* The alphabet's spelling of bytes; returns its length (at most 2 n). */
size_t sg_byte_spell(const char *bytes, size_t n, char *out);

/* --- added.c --- */
segue_status sg_added_make(struct sg_tokenizer *t, struct sg_added_set *set, struct sg_added *items, size_t n,
                           const char *what, segue_error *err);
/* The first, and of those the longest, added text at or after `from`; NULL when there is none. *at: where. */
const struct sg_added *sg_added_find(const struct sg_added_set *set, const char *s, size_t n, size_t from,
                                     size_t *at);

/* --- normal.c --- */
/* *text, *len become the normalized text: the same bytes when nothing changes, else bytes of out (emptied
 * first). */
segue_status sg_normalize(const struct sg_tokenizer *t, const char **text, size_t *len, struct sg_buf out[2],
                          segue_error *err);

/* --- tokenize.c: one call of sg_tokenize --- */
struct sg_piece_seen { /* a piece met before in this call, and its tokens */
    const char *text;
    uint32_t len, epoch, tokens_n;
    size_t tokens_at;
};
struct sg_symbol {
    int32_t id;              /* -1: no token has this text (merging by score) */
    uint32_t at, prev, next; /* first byte in the piece; neighbours */
};
#define SG_NO_SYMBOL UINT32_MAX
/* Places that wait to be merged, see merge.c. */
struct sg_wait {
    uint64_t key;   /* order << 32 | symbol */
    uint32_t queue; /* it is the head of this queue; UINT32_MAX = of none */
};
struct sg_queue {
    uint32_t head, tail; /* index + 1 of links; 0 = empty */
};
struct sg_link {
    uint32_t symbol, next; /* next: index + 1; 0 = none */
};
struct sg_encoding {
    const struct sg_tokenizer *t;
    segue_error *err;
    int32_t *tokens; /* [cap] the caller's */
    size_t cap, n;
    struct sg_piece_seen *seen; /* [seen_mask + 1] or NULL */
    uint32_t seen_mask, epoch;  /* a new epoch forgets everything: the bytes moved */
    struct sg_symbol *symbols;
    struct sg_wait *heap;    /* [heap_cap] */
    struct sg_queue *queues; /* [merges or tokens] or NULL */
    struct sg_link *links;   /* [links_cap] */
    size_t symbols_cap, heap_n, heap_cap, links_n, links_cap;
    uint32_t links_free; /* index + 1 of the first free link */
    void *regex_match, *regex_limits;
    size_t text_len; /* of the whole text */
    struct sg_regex_steps {
        uint64_t left; /* that patterns may still take */
        size_t at;     /* where the last one was */
    } regex_steps;
};
static inline void sg_encoding_put(struct sg_encoding *e, int32_t id)
{
    if (e->n < e->cap) e->tokens[e->n] = id;
    e->n++;
}

/* --- pretoken.c --- */
/* Split a normalized piece and merge what comes out. first: it begins the text. */
segue_status sg_pretoken(struct sg_encoding *e, const char *s, size_t n, int first);
/* The scanner for a pattern that a file spells out; EUNSUPPORTED when PCRE2 cannot compile an unknown one. */
segue_status sg_split_of_pattern(struct sg_split *out, const char *pattern, size_t len, const char *what,
                                 segue_error *err);
void sg_split_free(struct sg_split *split);

/* --- regex.c --- */
segue_status sg_regex_open(void **out, const char *pattern, size_t len, const char *what, segue_error *err);
void sg_regex_close(void *regex);
/* The first match that is not empty, from `from` on; *end = 0 when there is none. ELIMIT: too many steps. */
segue_status sg_regex_find(struct sg_encoding *e, const void *regex, const char *s, size_t n, size_t from,
                           size_t *start, size_t *end);
void sg_regex_done(struct sg_encoding *e);

/* --- merge.c --- */
enum { SG_MERGE_FEW = 32 };
/* Merge symbols of a piece. few: n <= SG_MERGE_FEW, packed, returns how many are left. many: e->symbols, the
 * chain from symbol 0 by `next` is left. */
size_t sg_merge_few(const struct sg_tokenizer *t, const char *s, size_t len, struct sg_symbol *sym, size_t n);
segue_status sg_merge_many(struct sg_encoding *e, const char *s, size_t len, size_t n);

/* --- bpe.c --- */
segue_status sg_bpe(struct sg_encoding *e, const char *s, size_t n);

#endif
