/* pretoken.c: splits a piece of text before merging. The patterns of known models have hand-written scanners that match
 * exactly what the regular expressions match; other patterns go to regex.c. Each step passes its pieces to the next
 * step at once, so that only text that a step changes is stored. Offsets and lengths are bytes.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

/* Input of a scanner: a piece and the parameters in which the patterns differ. */
struct scan {
    const char *s;
    size_t n;
    unsigned word;  /* SG_CHAR_* of a word: letters, in qwen35 also marks */
    size_t numbers; /* max number characters in one piece */
};

/* SG_CHAR_* of the character at i; *next: start of the next one. At the end: 0 and i. */
static unsigned class_at(const struct scan *x, size_t i, size_t *next)
{
    uint32_t c;
    *next = i;
    if (i >= x->n) return 0;
    *next = i + sg_utf8_get(x->s + i, &c);
    return sg_char_class(c);
}

/* End of the run of characters with one of `classes` that starts at i; i if there is none. */
static size_t run_of(const struct scan *x, size_t i, unsigned classes)
{
    size_t next;
    while (i < x->n && class_at(x, i, &next) & classes) i = next;
    return i;
}

/* End of the run of characters that are neither space, word nor number. */
static size_t run_of_rest(const struct scan *x, size_t i)
{
    size_t next;
    while (i < x->n && !(class_at(x, i, &next) & (SG_CHAR_SPACE | SG_CHAR_NUMBER | x->word))) i = next;
    return i;
}

/* 1: [^\s\p{L}\p{N}] of the patterns matches at i. */
static int is_rest(const struct scan *x, size_t i)
{
    size_t next;
    return i < x->n && !(class_at(x, i, &next) & (SG_CHAR_SPACE | SG_CHAR_NUMBER | x->word));
}

/* End of 's 't 're 've 'm 'll 'd with the apostrophe at i, else i. folded: any case, and U+017F, which lower-cases
 * to s as in Rust's regex. */
static size_t contraction(const struct scan *x, size_t i, int folded)
{
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    /* bytes after the apostrophe; may be 0 */
    size_t left = x->n - i - 1;
    const char *s = x->s + i + 1;
    if (x->s[i] != '\'') return i;
    if (folded && left >= 2 && memcmp(s, "\xc5\xbf", 2) == 0) return i + 3;
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
        size_t len = strlen(ends[k]), same = 0;
        if (len > left) continue;
        /* the endings are lower-case ASCII: 32 less is upper case */
        while (same < len && (s[same] == ends[k][same] || (folded && s[same] == ends[k][same] - 32))) same++;
        if (same == len) return i + 1 + len;
    }
    return i;
}

/* \s+(?!\S)|\s+ at i: the run of whitespace, without its last character if text follows and the run has more than
 * one. */
static size_t spaces(const struct scan *x, size_t i)
{
    size_t end = run_of(x, i, SG_CHAR_SPACE);
    if (end == x->n) return end;
    size_t last = end - sg_utf8_back(x->s, end);
    return last > i ? last : end;
}

/* End of the match at i. The alternatives are tried in the order of the pattern; each of letters, numbers, rest and
 * spaces excludes the others. */
static size_t scan_gpt2(const struct scan *x, size_t i)
{
    size_t end = contraction(x, i, 0), next;
    if (end > i) return end;
    /* " ?" before a letter, number or other character */
    size_t k = x->s[i] == ' ' && i + 1 < x->n ? i + 1 : i;
    unsigned c = class_at(x, k, &next);
    if (c & SG_CHAR_LETTER) return run_of(x, k, SG_CHAR_LETTER);
    if (c & SG_CHAR_NUMBER) return run_of(x, k, SG_CHAR_NUMBER);
    if (!(c & SG_CHAR_SPACE)) return run_of_rest(x, k);
    /* from i, not k: the space belongs to the run */
    return spaces(x, i);
}

/* 1: [\r\n]. */
static int is_newline(char c) { return c == '\r' || c == '\n'; }

/* End of the match at i for llama3, qwen2 and qwen35, which differ only in x->word and x->numbers. */
static size_t scan_modern(const struct scan *x, size_t i)
{
    size_t end = contraction(x, i, 1), next, after;
    if (end > i) return end;
    unsigned c = class_at(x, i, &next);
    if (c & x->word) return run_of(x, i, x->word);
    /* [^\r\n\p{L}\p{N}]? takes one character of any other class before a word */
    if (!is_newline(x->s[i]) && !(c & SG_CHAR_NUMBER) && class_at(x, next, &after) & x->word)
        return run_of(x, next, x->word);
    /* \p{N} or \p{N}{1,3} */
    if (c & SG_CHAR_NUMBER) {
        for (size_t n = 1; n < x->numbers && class_at(x, next, &after) & SG_CHAR_NUMBER; n++) next = after;
        return next;
    }
    /* " ?[^\s\p{L}\p{N}]+[\r\n]*" */
    if (is_rest(x, i) || (x->s[i] == ' ' && is_rest(x, next))) {
        end = run_of_rest(x, next);
        while (end < x->n && is_newline(x->s[end])) end++;
        return end;
    }
    end = run_of(x, i, SG_CHAR_SPACE);
    /* \s*[\r\n]+ ends at the last line break of the whitespace */
    for (size_t k = end; k > i; k--)
        if (is_newline(x->s[k - 1])) return k;
    return spaces(x, i);
}

/* A run of digits (single: one digit), else all text up to the next digit. */
static size_t scan_digits(const struct scan *x, size_t i, int single)
{
    size_t next;
    if (class_at(x, i, &next) & SG_CHAR_DIGIT) return single ? next : run_of(x, i, SG_CHAR_DIGIT);
    /* the characters between two runs of digits are one piece */
    while (next < x->n && !(class_at(x, next, &i) & SG_CHAR_DIGIT)) next = i;
    return next;
}

/* One pass of a LITERAL or REGEX splitter over a piece. The last match is cached, since apply_rule asks for it
 * again. */
struct split_state {
    struct sg_encoding *e;
    const struct sg_split *split;
    const char *s;
    size_t n;
    /* first match at or after cached_from; cached_end 0: there is none; cached_from SIZE_MAX: nothing is cached */
    size_t cached_from, cached_start, cached_end;
};

/* The first match at or after `from`; *end = 0 and *start = n when there is none. Matches are searched once each, so
 * that the pass is linear. */
static segue_status find_match(struct split_state *p, size_t from, size_t *start, size_t *end)
{
    /* the cached match is valid for any `from` up to its start */
    if (p->cached_from == SIZE_MAX || from < p->cached_from || (p->cached_end && from > p->cached_start)) {
        p->cached_from = from;
        p->cached_start = p->cached_end = 0;
        if (p->split->kind == SG_SPLIT_REGEX) {
            SG_TRY(sg_regex_find(p->e, p->split->regex, p->s, p->n, from, &p->cached_start, &p->cached_end));
        } else {
            const char *hit = p->s + from;
            size_t len = p->split->len, left = p->n - from;
            while (left >= len && (hit = memchr(hit, p->split->text[0], left - len + 1))) {
                left = p->n - (size_t)(hit - p->s);
                if (memcmp(hit, p->split->text, len) == 0) {
                    p->cached_start = (size_t)(hit - p->s);
                    p->cached_end = p->cached_start + len;
                    break;
                }
                hit++;
                left--;
            }
        }
    }
    *start = p->cached_end ? p->cached_start : p->n;
    *end = p->cached_end;
    return SEGUE_OK;
}

/* *end: end of the piece that begins at `at`, by the splitter's rule; *drop = 1: the piece is not kept. */
static segue_status apply_rule(struct split_state *p, size_t at, size_t *end, int *drop)
{
    size_t start, stop;
    SG_TRY(find_match(p, at, &start, &stop));
    int match = stop && start == at;
    enum sg_split_rule rule = p->split->rule;
    *end = match ? stop : start;
    *drop = (rule == SG_RULE_REMOVED && match) || (rule == SG_RULE_KEPT && !match);
    /* the match joins the text before it */
    if (rule == SG_RULE_PREVIOUS && !match && stop) *end = stop;
    /* the match joins the text after it, up to the next match */
    if (rule == SG_RULE_NEXT && match && stop < p->n) {
        SG_TRY(find_match(p, stop, &start, &stop));
        if (start > *end) *end = start;
    }
    /* adjacent matches form one piece */
    while (rule == SG_RULE_CONTIGUOUS && match && *end < p->n) {
        SG_TRY(find_match(p, *end, &start, &stop));
        if (!stop || start != *end) break;
        *end = stop;
    }
    return SEGUE_OK;
}

static segue_status run_step(struct sg_encoding *e, uint32_t i, const char *s, size_t n, int first);

/* Split s and pass each piece to step i + 1. first: s begins the text. */
static segue_status run_split(struct sg_encoding *e, uint32_t i, const struct sg_split *split, const char *s,
                           size_t n, int first)
{
    struct scan x = {s, n, SG_CHAR_LETTER, 1};
    struct split_state p = {e, split, s, n, SIZE_MAX, 0, 0};
    if (split->kind == SG_SPLIT_QWEN35) x.word |= SG_CHAR_MARK;
    if (split->kind == SG_SPLIT_LLAMA3) x.numbers = 3;
    for (size_t at = 0, end; at < n; at = end) {
        int drop = 0;
        switch (split->kind) {
        case SG_SPLIT_GPT2:
            end = scan_gpt2(&x, at);
            break;
        case SG_SPLIT_DIGIT:
        case SG_SPLIT_DIGITS:
            end = scan_digits(&x, at, split->kind == SG_SPLIT_DIGIT);
            break;
        case SG_SPLIT_LITERAL:
        case SG_SPLIT_REGEX:
            SG_TRY(apply_rule(&p, at, &end, &drop));
            break;
        default:
            end = scan_modern(&x, at);
            break;
        }
        /* only the first piece of the first text begins the text */
        if (!drop) SG_TRY(run_step(e, i + 1, s + at, end - at, first && !at));
    }
    return SEGUE_OK;
}

/* Replace spaces by U+2581, add one in front as split->prepend asks, and split before each. text: buffer for the
 * result. */
static segue_status run_metaspace(struct sg_encoding *e, uint32_t i, const struct sg_split *split, const char *s,
                         size_t n, int first, struct sg_buf *text)
{
    static const char mark[] = "\xe2\x96\x81";
    int has = s[0] == ' ' || (n >= 3 && memcmp(s, mark, 3) == 0);
    if (!has && (split->prepend == 2 || (split->prepend == 1 && first))) sg_buf_add(text, mark, 3);
    for (size_t at = 0; at < n;) {
        const char *hit = memchr(s + at, ' ', n - at);
        size_t end = hit ? (size_t)(hit - s) : n;
        sg_buf_add(text, s + at, end - at);
        if (hit) sg_buf_add(text, mark, 3);
        at = end + (hit != NULL);
    }
    if (text->failed) return sg_no_memory("text", n, e->err);
    SG_TRY(sg_text_spend(&e->budget, text->len, e->err));
    /* U+2581 begins a new piece */
    struct sg_split cut = {.kind = SG_SPLIT_LITERAL, .rule = SG_RULE_NEXT, .text = mark, .len = 3};
    return split->whole ? run_step(e, i + 1, text->data, text->len, first)
                        : run_split(e, i, &cut, text->data, text->len, first);
}

/* Put a space in front of a text that has none. */
static segue_status run_space_first(struct sg_encoding *e, uint32_t i, const char *s, size_t n, int first,
                                struct sg_buf *text)
{
    SG_TRY(sg_text_spend(&e->budget, n + 1, e->err));
    sg_buf_add(text, " ", 1);
    sg_buf_add(text, s, n);
    if (text->failed) return sg_no_memory("text", n, e->err);
    return run_step(e, i + 1, text->data, text->len, first);
}

/* Step i of the splitters, or the merging after the last one. Steps that change the text work on a copy that lives
 * until all its pieces are merged. */
static segue_status run_step(struct sg_encoding *e, uint32_t i, const char *s, size_t n, int first)
{
    const struct sg_tokenizer *t = e->t;
    if (!n) return SEGUE_OK;
    if (i == t->splits_n) return sg_bpe(e, s, n);
    const struct sg_split *split = &t->splits[i];
    if (split->kind == SG_SPLIT_SPACE_FIRST && s[0] == ' ') return run_step(e, i + 1, s, n, first);
    if (split->kind != SG_SPLIT_META && split->kind != SG_SPLIT_SPACE_FIRST)
        return run_split(e, i, split, s, n, first);
    struct sg_buf text = {0};
    e->epoch++; /* cached pieces point to other text, and those of this step will point to freed memory */
    segue_status status = split->kind == SG_SPLIT_META ? run_metaspace(e, i, split, s, n, first, &text)
                                                       : run_space_first(e, i, s, n, first, &text);
    e->epoch++;
    sg_buf_free(&text);
    return status;
}

segue_status sg_pretoken(struct sg_encoding *e, const char *s, size_t n, int first)
{
    return run_step(e, 0, s, n, first);
}

#define ENGLISH_ANY "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The pattern texts are compared literally: equal text selects the scanner, anything else is compiled. */
segue_status sg_split_of_pattern(struct sg_split *out, const char *pattern, size_t len, const char *what,
                                 segue_error *err)
{
    static const struct {
        enum sg_split_kind kind;
        const char *pattern;
    /* the patterns of the models' tokenizer.json files, byte by byte */
    } known[] = {
        {SG_SPLIT_GPT2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
        {SG_SPLIT_LLAMA3,
         ENGLISH_ANY "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES},
        {SG_SPLIT_QWEN2,
         ENGLISH_ANY "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES},
        {SG_SPLIT_QWEN35, ENGLISH_ANY
         "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].pattern) != len || memcmp(known[i].pattern, pattern, len) != 0) continue;
        *out = (struct sg_split){.kind = known[i].kind};
        return SEGUE_OK;
    }
    *out = (struct sg_split){.kind = SG_SPLIT_REGEX};
    return sg_regex_open(&out->regex, pattern, len, what, err);
}

/* Only REGEX owns memory outside of the arena. */
void sg_split_free(struct sg_split *split)
{
    if (split->kind == SG_SPLIT_REGEX) sg_regex_close(split->regex);
    split->regex = NULL;
}
