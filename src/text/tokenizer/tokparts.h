/* tokparts.h: the parts of a tokenizer. The readers (tokjson.c, tokgguf.c, tokllama2c.c) fill struct sg_tokenizer, all
 * other files only read it. A text passes these stages: it is split at added tokens (added.c), the parts are normalized
 * (normal.c), split (pretoken.c) and merged (bpe.c, merge.c) into ids; tokenize.c connects the stages.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_TOKPARTS_H
#define SG_TEXT_TOKPARTS_H

#include "base/buf.h"
#include "base/mem.h"
#include "text/tokenizer/tokenizer.h"

/* Type of a token. The values are those of GGUF's token_type. */
enum sg_token_kind {
    SG_TOKEN_NONE, /* no token has this id */
    SG_TOKEN_NORMAL,
    SG_TOKEN_UNKNOWN,
    SG_TOKEN_CONTROL, /* such as <s> or <|im_end|>; hidden with SEGUE_TEXT_NO_SPECIAL */
    SG_TOKEN_USER,    /* an added token that is part of the text, such as <think> */
    SG_TOKEN_UNUSED,
    SG_TOKEN_BYTE     /* <0xXX> */
};

/* One entry of the vocabulary. Texts are in the tokenizer's arena and may contain NULs. */
struct sg_vocab_token {
    const char *text;  /* spelling in the vocabulary, in the byte alphabet or with U+2581; NULL = no token */
    const char *bytes; /* bytes of the token in running text, which may be an incomplete character */
    uint32_t text_len, bytes_len;
    float score; /* merging by score: higher merges first; otherwise unused */
    uint8_t kind;    /* sg_token_kind */
    uint8_t outside; /* 1: an added token that the merging model does not know */
};

/* A token that is searched in the text before the text is split or merged. */
struct sg_added {
    const char *text;
    uint32_t len;
    int32_t id;
    /* special: control token; lstrip, rstrip: absorbs the whitespace before or after it; single_word: matches only
     * between characters that are not part of a word */
    uint8_t special, lstrip, rstrip, single_word;
};
/* The added tokens of one search, see sg_added_find. */
struct sg_added_set {
    struct sg_added *items; /* [n] sorted by text, without duplicates */
    uint32_t n;
    uint32_t first[257]; /* items whose text begins with byte b: [first[b], first[b + 1]) */
};

enum sg_normalizer_kind { SG_NORM_NFC, SG_NORM_PREPEND, SG_NORM_REPLACE, SG_NORM_STRIP };
/* One step of normalization, see normal.c. The steps run in order. */
struct sg_normalizer {
    enum sg_normalizer_kind kind;
    const char *from, *to; /* REPLACE: from by to; PREPEND: to; lengths in bytes */
    size_t from_len, to_len;
    int left, right; /* STRIP: at the start, at the end */
};

/* Kinds of splitters. The first four are hand-written scanners for known patterns. */
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
/* What happens to the matches of a LITERAL or REGEX splitter: they become pieces, are dropped, are the only pieces
 * that are kept, join the text before or after them, or join adjacent matches. */
enum sg_split_rule {
    SG_RULE_ISOLATED,
    SG_RULE_REMOVED,
    SG_RULE_KEPT,
    SG_RULE_PREVIOUS,
    SG_RULE_NEXT,
    SG_RULE_CONTIGUOUS
};
/* One step of splitting, see pretoken.c. Each piece of a step is the input of the next. */
struct sg_split {
    enum sg_split_kind kind;
    enum sg_split_rule rule; /* LITERAL and REGEX */
    const char *text;        /* LITERAL */
    size_t len;
    void *regex; /* REGEX: a pcre2_code */
    int prepend; /* META: 0 never, 1 the first piece of a text, 2 every piece */
    int whole;   /* META: do not split */
};
/* Max splitters, normalizers, and ids at either end of a text. */
enum { SG_SPLITS = 16, SG_NORMS = 16, SG_ENDS = 16 };

/* Entry of the hash table of merges: tokens left and right become token made. Lower ranks merge first; rank UINT32_MAX =
 * free entry. */
struct sg_merge {
    int32_t left, right, made;
    uint32_t rank;
};

/* Constant after opening, so that any number of threads may use it. */
struct sg_tokenizer {
    struct sg_arena arena; /* owns all texts and tables */
    uint64_t key[5];       /* random, of the hash tables: [0..1] of texts, [2..4] of merges */
    struct sg_tokenizer_info info;

    struct sg_vocab_token *tokens; /* [tokens_n] by id */
    uint32_t tokens_n;
    uint32_t *slots; /* [slots_mask + 1] hash table by text: id + 1; 0 = free */
    uint32_t slots_mask;
    uint32_t longest; /* bytes of the longest text */

    struct sg_merge *merges;     /* [merges_mask + 1]; NULL: merge by score */
    uint32_t merges_mask, ranks; /* ranks: highest rank + 1 */
    uint32_t *by_rank;           /* [ranks] index into merges */
    uint8_t byte_level;          /* 1: first symbols are bytes in the byte alphabet; 0: characters */
    /* unknown characters become byte tokens; adjacent unknown tokens are fused; a piece that is a token is not
     * merged */
    uint8_t byte_fallback, fuse_unk, ignore_merges;
    uint8_t by_word;        /* no token has U+2581 after another character: texts may be cut before it */
    int32_t byte_ids[256];  /* id by byte: of its spelling (byte_level) or of <0xXX>; -1 = none */
    int32_t ascii_ids[128]; /* not byte_level: id by ASCII character; -1 = none */
    int32_t unk;            /* the unknown token; -1 = none */
    int32_t fim_named[SG_FIM_N]; /* tokens of fill-in-the-middle that the file names: id + 1; 0 = not named */

    struct sg_added_set raw, normal; /* searched in the raw text; in the normalized text */
    struct sg_normalizer norms[SG_NORMS];
    struct sg_split splits[SG_SPLITS];
    uint32_t norms_n, splits_n;
    int32_t before[SG_ENDS], after[SG_ENDS]; /* ids before and after each text, without SEGUE_TEXT_NO_BOS */
    uint32_t before_n, after_n;
    uint8_t strip_space; /* decoding drops one space at the very start */
};

/* --- fim.c --- */
/* Sets info.fim. Call when all texts are indexed, before sg_vocab_finish. */
void sg_fim_find(struct sg_tokenizer *t);

/* --- vocab.c --- */
/* Allocate n ids. EFORMAT: 0, or more than 2^24. what: name of the file for messages. */
segue_status sg_vocab_reserve(struct sg_tokenizer *t, size_t n, const char *what, segue_error *err);
/* Set the text of an id (copied). EFORMAT: it has another text already. */
segue_status sg_vocab_put(struct sg_tokenizer *t, int64_t id, const char *text, size_t len,
                          enum sg_token_kind kind, float score, const char *what, segue_error *err);
/* Index all texts; of equal texts the first one indexed wins. May be called again after further texts were put. */
segue_status sg_vocab_index(struct sg_tokenizer *t, segue_error *err);
int32_t sg_vocab_find(const struct sg_tokenizer *t, const char *text, size_t len); /* -1 = none */
/* sg_vocab_find among the tokens of the merging model: added tokens that it does not know are not found. */
int32_t sg_vocab_find_model(const struct sg_tokenizer *t, const char *text, size_t len);
/* Allocate n merges; then put each of them. later: of equal pairs the last one wins, else the first. */
segue_status sg_merges_reserve(struct sg_tokenizer *t, size_t n, segue_error *err);
segue_status sg_merges_put(struct sg_tokenizer *t, const char *left, size_t left_len, const char *right,
                           size_t right_len, uint32_t rank, int later, const char *what, segue_error *err);
const struct sg_merge *sg_merges_find(const struct sg_tokenizer *t, int32_t left, int32_t right);
/* Compute the tables that depend on the texts: byte ids, bytes of tokens, by_word, stops. plain_added: the texts of
 * added tokens are not decoded from the alphabet (GGUF). */
segue_status sg_vocab_finish(struct sg_tokenizer *t, int plain_added, const char *what, segue_error *err);
/* Bytes of a text in the byte alphabet appended to out; 0: it has a character outside the alphabet. */
int sg_byte_text(const char *text, size_t len, char *out, size_t *out_len);
/* The alphabet's spelling of bytes; returns its length (at most 2 n). */
size_t sg_byte_spell(const char *bytes, size_t n, char *out);

/* --- added.c --- */
segue_status sg_added_make(struct sg_tokenizer *t, struct sg_added_set *set, struct sg_added *items, size_t n,
                           const char *what, segue_error *err);
/* The first added text at or after byte `from`, of several at one position the longest; NULL = none. *at: its position. */
const struct sg_added *sg_added_find(const struct sg_added_set *set, const char *s, size_t n, size_t from,
                                     size_t *at);

/* --- normal.c --- */
/* Bytes that the steps that change a text may write in one call, for a text of len bytes: replacements of a file can multiply.
 * Real tokenizers write at most about 10 bytes per byte. */
static inline uint64_t sg_text_budget(size_t len) { return 4096 + 64 * (uint64_t)len; }
/* Take n bytes from a budget. ELIMIT: fewer are left. */
segue_status sg_text_spend(uint64_t *budget, uint64_t n, segue_error *err);
/* *text, *len become the normalized text: the same bytes if nothing changes, else bytes in out, whose old content is
 * lost. budget: what all steps may write. ELIMIT, EMEMORY. */
segue_status sg_normalize(const struct sg_tokenizer *t, const char **text, size_t *len, struct sg_buf out[2],
                          uint64_t *budget, segue_error *err);

/* --- tokenize.c: one call of sg_tokenize --- */
/* A piece that was tokenized before in this call, and where its tokens are in the output. */
struct sg_piece_cache {
    const char *text;
    /* epoch: valid only if equal to that of the encoding */
    uint32_t len, epoch, tokens_n;
    size_t tokens_at;
};
/* A symbol during merging: a node of a doubly linked list. */
struct sg_symbol {
    int32_t id;              /* -1: no token has this text (merging by score) */
    uint32_t at, prev, next; /* offset of its first byte in the piece; neighbours */
};
#define SG_NO_SYMBOL UINT32_MAX
/* A pair that can be merged, an entry of the heap of merge.c. */
struct sg_merge_candidate {
    uint64_t key;   /* order << 32 | symbol */
    uint32_t queue; /* the queue whose head it is; UINT32_MAX = none */
};
/* Candidates of one kind in text order: a singly linked list in `links`. */
struct sg_merge_queue {
    uint32_t head, tail; /* index + 1 of links; 0 = empty */
};
struct sg_merge_link {
    uint32_t symbol, next; /* next: index + 1; 0 = none */
};
/* State of one call of sg_tokenize: the output and all working memory. */
struct sg_encoding {
    const struct sg_tokenizer *t;
    segue_error *err;
    int32_t *tokens; /* [cap] the caller's */
    /* n: tokens so far, including those beyond cap */
    size_t cap, n;
    struct sg_piece_cache *seen; /* [seen_mask + 1] or NULL */
    uint32_t seen_mask, epoch;  /* incremented when the cached bytes move, which invalidates the cache */
    struct sg_symbol *symbols;
    struct sg_merge_candidate *heap;    /* [heap_cap] */
    struct sg_merge_queue *queues; /* [merges or tokens] or NULL */
    struct sg_merge_link *links;   /* [links_cap] */
    size_t symbols_cap, heap_n, heap_cap, links_n, links_cap;
    uint32_t links_free; /* index + 1 of the first free link */
    void *regex_match, *regex_limits;
    size_t text_len; /* of the whole text */
    uint64_t budget; /* bytes that steps may still write, see sg_text_budget */
    struct sg_regex_steps {
        uint64_t left; /* steps that patterns may still take in this call */
        size_t at;     /* position of the last step */
    } regex_steps;
};
/* Append an id; beyond cap it is only counted. */
static inline void sg_encoding_put(struct sg_encoding *e, int32_t id)
{
    if (e->n < e->cap) e->tokens[e->n] = id;
    e->n++;
}

/* --- pretoken.c --- */
/* Split a normalized piece and merge the results. first: the piece begins the text. */
segue_status sg_pretoken(struct sg_encoding *e, const char *s, size_t n, int first);
/* The splitter for a pattern of a file: a scanner if the pattern is known, else PCRE2. EUNSUPPORTED: it does not compile. */
segue_status sg_split_of_pattern(struct sg_split *out, const char *pattern, size_t len, const char *what,
                                 segue_error *err);
void sg_split_free(struct sg_split *split);

/* --- regex.c --- */
segue_status sg_regex_open(void **out, const char *pattern, size_t len, const char *what, segue_error *err);
void sg_regex_close(void *regex);
/* The first non-empty match at or after `from`; *end = 0 when there is none. ELIMIT: too many steps. */
segue_status sg_regex_find(struct sg_encoding *e, const void *regex, const char *s, size_t n, size_t from,
                           size_t *start, size_t *end);
void sg_regex_done(struct sg_encoding *e);

/* --- merge.c --- */
enum { SG_MERGE_FEW = 32 };
/* Merge the symbols of a piece. sg_merge_few: n <= SG_MERGE_FEW symbols in an array, returns how many remain.
 * sg_merge_many: n symbols in e->symbols; the list from symbol 0 along `next` remains. */
size_t sg_merge_few(const struct sg_tokenizer *t, const char *s, size_t len, struct sg_symbol *sym, size_t n);
segue_status sg_merge_many(struct sg_encoding *e, const char *s, size_t len, size_t n);

/* --- bpe.c --- */
segue_status sg_bpe(struct sg_encoding *e, const char *s, size_t n);

#endif
