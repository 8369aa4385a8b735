/* pretoken.c: cutting a piece of text before merging. The patterns that models use are scanners written by
 * hand, equal to the regular expressions; any other pattern goes to regex.c. Each step gives its pieces one
 * by one to the next, so nothing is stored but text that a step changes.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/tokenizer/tokparts.h"
#include "text/unicode/unicode.h"

struct scan {
    const char *s;
    size_t n;
    unsigned word;  /* classes of the pattern's word: letters, in qwen35 also marks */
    size_t numbers; /* digits in a piece at most */
};

/* Class of the character at i and where the next one begins; at the end 0 and i. */
static unsigned class_at(const struct scan *x, size_t i, size_t *next)
{
    uint32_t c;
    *next = i;
    if (i >= x->n) return 0;
    *next = i + sg_utf8_get(x->s + i, &c);
    return sg_char_class(c);
}

static size_t run_of(const struct scan *x, size_t i, unsigned classes)
{
    size_t next;
    while (i < x->n && class_at(x, i, &next) & classes) i = next;
    return i;
}

/* Characters that are neither space, word nor number. */
static size_t run_of_rest(const struct scan *x, size_t i)
{
    size_t next;
    while (i < x->n && !(class_at(x, i, &next) & (SG_CHAR_SPACE | SG_CHAR_NUMBER | x->word))) i = next;
    return i;
}

/* What the patterns write as [^\s\p{L}\p{N}]. */
static int is_rest(const struct scan *x, size_t i)
{
    size_t next;
    return i < x->n && !(class_at(x, i, &next) & (SG_CHAR_SPACE | SG_CHAR_NUMBER | x->word));
}

/* 's 't 're 've 'm 'll 'd after an apostrophe at i; returns the end, or i. Folded: in any case, and with
 * U+017F, whose lower-case form is s. */
static size_t contraction(const struct scan *x, size_t i, int folded)
{
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    size_t left = x->n - i - 1;
    const char *s = x->s + i + 1;
    if (x->s[i] != '\'') return i;
    if (folded && left >= 2 && memcmp(s, "\xc5\xbf", 2) == 0) return i + 3;
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
        size_t len = strlen(ends[k]), same = 0;
        if (len > left) continue;
        while (same < len && (s[same] == ends[k][same] || (folded && s[same] == ends[k][same] - 32))) same++;
        if (same == len) return i + 1 + len;
    }
    return i;
}

/* \s+(?!\S)|\s+ : a run of spaces, less its last one when something follows. */
static size_t spaces(const struct scan *x, size_t i)
{
    size_t end = run_of(x, i, SG_CHAR_SPACE);
    if (end == x->n) return end;
    size_t last = end - sg_utf8_back(x->s, end);
    return last > i ? last : end;
}

/* The pattern's alternatives in their order; exactly one of letters, numbers, rest and spaces fits what
 * follows. */
static size_t scan_gpt2(const struct scan *x, size_t i)
{
    size_t end = contraction(x, i, 0), next;
    if (end > i) return end;
    size_t k = x->s[i] == ' ' && i + 1 < x->n ? i + 1 : i;
    unsigned c = class_at(x, k, &next);
    if (c & SG_CHAR_LETTER) return run_of(x, k, SG_CHAR_LETTER);
    if (c & SG_CHAR_NUMBER) return run_of(x, k, SG_CHAR_NUMBER);
    if (!(c & SG_CHAR_SPACE)) return run_of_rest(x, k);
    return spaces(x, i);
}

static int is_newline(char c) { return c == '\r' || c == '\n'; }

/* llama3, qwen2 and qwen35, which differ in x->word and x->numbers. */
static size_t scan_modern(const struct scan *x, size_t i)
{
    size_t end = contraction(x, i, 1), next, after;
    if (end > i) return end;
    unsigned c = class_at(x, i, &next);
    if (c & x->word) return run_of(x, i, x->word);
    if (!is_newline(x->s[i]) && !(c & SG_CHAR_NUMBER) && class_at(x, next, &after) & x->word)
        return run_of(x, next, x->word);
    if (c & SG_CHAR_NUMBER) {
        for (size_t n = 1; n < x->numbers && class_at(x, next, &after) & SG_CHAR_NUMBER; n++) next = after;
        return next;
    }
    if (is_rest(x, i) || (x->s[i] == ' ' && is_rest(x, next))) {
        end = run_of_rest(x, next);
        while (end < x->n && is_newline(x->s[end])) end++;
        return end;
    }
    end = run_of(x, i, SG_CHAR_SPACE);
    for (size_t k = end; k > i; k--)
        if (is_newline(x->s[k - 1])) return k;
    return spaces(x, i);
}

/* A run of digits (or one), else everything up to the next digit. */
static size_t scan_digits(const struct scan *x, size_t i, int single)
{
    size_t next;
    if (class_at(x, i, &next) & SG_CHAR_DIGIT) return single ? next : run_of(x, i, SG_CHAR_DIGIT);
    while (next < x->n && !(class_at(x, next, &i) & SG_CHAR_DIGIT)) next = i;
    return next;
}

struct splitting {
    struct sg_encoding *e;
    const struct sg_split *split;
    const char *s;
    size_t n;
    size_t known_from, known_start,
        known_end; /* the match after known_from; end 0: none; from SIZE_MAX: not known */
};

/* The next match of a literal or a pattern, from `from` on; *end = 0: none. */
static segue_status find(struct splitting *p, size_t from, size_t *start, size_t *end)
{
    if (p->known_from == SIZE_MAX || from < p->known_from || (p->known_end && from > p->known_start)) {
        p->known_from = from;
        p->known_start = p->known_end = 0;
        if (p->split->kind == SG_SPLIT_REGEX) {
            SG_TRY(sg_regex_find(p->e, p->split->regex, p->s, p->n, from, &p->known_start, &p->known_end));
        } else {
            const char *hit = p->s + from;
            size_t len = p->split->len, left = p->n - from;
            while (left >= len && (hit = memchr(hit, p->split->text[0], left - len + 1))) {
                left = p->n - (size_t)(hit - p->s);
                if (memcmp(hit, p->split->text, len) == 0) {
                    p->known_start = (size_t)(hit - p->s);
                    p->known_end = p->known_start + len;
                    break;
                }
                hit++;
                left--;
            }
        }
    }
    *start = p->known_end ? p->known_start : p->n;
    *end = p->known_end;
    return SEGUE_OK;
}

/* End of the piece that begins at `at` by the split's rule; *drop: it is not kept. */
static segue_status ruled(struct splitting *p, size_t at, size_t *end, int *drop)
{
    size_t start, stop;
    SG_TRY(find(p, at, &start, &stop));
    int match = stop && start == at;
    enum sg_split_rule rule = p->split->rule;
    *end = match ? stop : start;
    *drop = (rule == SG_RULE_REMOVED && match) || (rule == SG_RULE_KEPT && !match);
    if (rule == SG_RULE_PREVIOUS && !match && stop) *end = stop;
    if (rule == SG_RULE_NEXT && match && stop < p->n) {
        SG_TRY(find(p, stop, &start, &stop));
        if (start > *end) *end = start;
    }
    while (rule == SG_RULE_CONTIGUOUS && match && *end < p->n) {
        SG_TRY(find(p, *end, &start, &stop));
        if (!stop || start != *end) break;
        *end = stop;
    }
    return SEGUE_OK;
}

static segue_status step(struct sg_encoding *e, uint32_t i, const char *s, size_t n, int first);

/* Walk over s with one splitter and hand each piece to the next step. */
static segue_status pieces(struct sg_encoding *e, uint32_t i, const struct sg_split *split, const char *s,
                           size_t n, int first)
{
    struct scan x = {s, n, SG_CHAR_LETTER, 1};
    struct splitting p = {e, split, s, n, SIZE_MAX, 0, 0};
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
            SG_TRY(ruled(&p, at, &end, &drop));
            break;
        default:
            end = scan_modern(&x, at);
            break;
        }
        if (!drop) SG_TRY(step(e, i + 1, s + at, end - at, first && !at));
    }
    return SEGUE_OK;
}

/* Spaces become U+2581, one may be put in front, and pieces begin with it. */
static segue_status meta(struct sg_encoding *e, uint32_t i, const struct sg_split *split, const char *s,
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
    struct sg_split cut = {.kind = SG_SPLIT_LITERAL, .rule = SG_RULE_NEXT, .text = mark, .len = 3};
    return split->whole ? step(e, i + 1, text->data, text->len, first)
                        : pieces(e, i, &cut, text->data, text->len, first);
}

static segue_status space_first(struct sg_encoding *e, uint32_t i, const char *s, size_t n, int first,
                                struct sg_buf *text)
{
    sg_buf_add(text, " ", 1);
    sg_buf_add(text, s, n);
    if (text->failed) return sg_no_memory("text", n, e->err);
    return step(e, i + 1, text->data, text->len, first);
}

/* Steps that change the text work on a copy, which lives as long as its pieces do. */
static segue_status step(struct sg_encoding *e, uint32_t i, const char *s, size_t n, int first)
{
    const struct sg_tokenizer *t = e->t;
    if (!n) return SEGUE_OK;
    if (i == t->splits_n) return sg_bpe(e, s, n);
    const struct sg_split *split = &t->splits[i];
    if (split->kind == SG_SPLIT_SPACE_FIRST && s[0] == ' ') return step(e, i + 1, s, n, first);
    if (split->kind != SG_SPLIT_META && split->kind != SG_SPLIT_SPACE_FIRST)
        return pieces(e, i, split, s, n, first);
    struct sg_buf text = {0};
    e->epoch++; /* pieces seen so far stand elsewhere, those to come will be gone */
    segue_status status = split->kind == SG_SPLIT_META ? meta(e, i, split, s, n, first, &text)
                                                       : space_first(e, i, s, n, first, &text);
    e->epoch++;
    sg_buf_free(&text);
    return status;
}

segue_status sg_pretoken(struct sg_encoding *e, const char *s, size_t n, int first)
{
    return step(e, 0, s, n, first);
}

#define ENGLISH_ANY "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

segue_status sg_split_of_pattern(struct sg_split *out, const char *pattern, size_t len, const char *what,
                                 segue_error *err)
{
    static const struct {
        enum sg_split_kind kind;
        const char *pattern;
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

void sg_split_free(struct sg_split *split)
{
    if (split->kind == SG_SPLIT_REGEX) sg_regex_close(split->regex);
    split->regex = NULL;
}
