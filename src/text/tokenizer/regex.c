/* regex.c: pre-tokenizer patterns without a scanner, matched by PCRE2 with limits on steps and memory. Its Unicode
 * tables may be older than those of the `tokenizers` library, which the tokenizer's info.warning reports.
 * SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/tokenizer/tokparts.h"

/* Steps of one call: a base plus an amount per byte of text. Heap of one match in KiB. Bytes of a pattern. Nested parentheses:
 * PCRE2's compiler recurses per level, about 600 bytes of stack each; patterns of models have at most 4. */
enum { BASE_STEPS = 1 << 24, STEPS_PER_BYTE = 256, MATCH_KIB = 32768, MAX_PATTERN = 16384, MAX_NESTED = 30 };

/* PCRE2 allocates through sg_alloc, so that its failing allocations are tested like all others. */
static void *pcre_alloc(size_t n, void *unused)
{
    (void)unused;
    return sg_alloc(n);
}

static void pcre_free(void *p, void *unused)
{
    (void)unused;
    sg_free(p);
}

/* AUTO_CALLOUT makes PCRE2 call count_step before each item of the pattern. */
segue_status sg_regex_open(void **out, const char *pattern, size_t len, const char *what, segue_error *err)
{
    if (len > MAX_PATTERN)
        return sg_fail(
            err, SEGUE_EUNSUPPORTED,
            "read tokenizer: %s: the split pattern has %zu bytes, at most %d are supported; choose another model",
            what, len, MAX_PATTERN);
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *compile = general ? pcre2_compile_context_create(general) : NULL;
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *regex = NULL;
    if (compile) pcre2_set_parens_nest_limit(compile, MAX_NESTED);
    if (compile)
        regex = pcre2_compile((PCRE2_SPTR)pattern, len,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT, &code,
                              &at, compile);
    pcre2_compile_context_free(compile);
    pcre2_general_context_free(general);
    if (!regex && (!compile || code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED))
        return sg_no_memory("split pattern", len, err);
    if (!regex) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "read tokenizer: %s: the split pattern: %s at byte %zu; choose another model", what,
                       (const char *)why, (size_t)at);
    }
    *out = regex;
    return SEGUE_OK;
}

void sg_regex_close(void *regex) { pcre2_code_free(regex); }

/* Called before each item of the pattern. The cost includes the bytes that the previous item consumed or gave back:
 * a* reads on without a callout. */
static int count_step(pcre2_callout_block *now, void *count)
{
    struct sg_regex_steps *steps = count;
    uint64_t cost = 1 + (now->current_position > steps->at ? now->current_position - steps->at
                                                           : steps->at - now->current_position);
    steps->at = now->current_position;
    if (steps->left < cost) return PCRE2_ERROR_MATCHLIMIT;
    steps->left -= cost;
    return 0;
}

/* Create the match data and limits when the first such pattern of a call is used. */
static segue_status prepare_match(struct sg_encoding *e)
{
    if (e->regex_match) return SEGUE_OK;
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_match_context *limits = general ? pcre2_match_context_create(general) : NULL;
    e->regex_limits = limits;
    if (limits) {
        /* PCRE2's own step limits are off: count_step bounds the work */
        pcre2_set_match_limit(limits, UINT32_MAX);
        pcre2_set_depth_limit(limits, UINT32_MAX);
        pcre2_set_heap_limit(limits, MATCH_KIB);
        e->regex_steps.left = BASE_STEPS + (uint64_t)e->text_len * STEPS_PER_BYTE;
        pcre2_set_callout(limits, count_step, &e->regex_steps);
        e->regex_match = pcre2_match_data_create(1, general);
    }
    pcre2_general_context_free(general);
    return e->regex_match ? SEGUE_OK : sg_no_memory("text", 1024, e->err);
}

/* The subject is the whole piece, so that lookbehind sees the text before `from`. */
segue_status sg_regex_find(struct sg_encoding *e, const void *regex, const char *s, size_t n, size_t from,
                           size_t *start, size_t *end)
{
    SG_TRY(prepare_match(e));
    e->regex_steps.at = from;
    int code = pcre2_match(regex, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, e->regex_match,
                           e->regex_limits);
    *end = 0;
    if (code == PCRE2_ERROR_NOMATCH) return SEGUE_OK;
    if (code == PCRE2_ERROR_NOMEMORY) return sg_no_memory("text", n, e->err);
    /* the other errors are limits, of steps or of memory */
    if (code < 0)
        return sg_fail(
            e->err, SEGUE_ELIMIT,
            "tokenize: the model's split pattern needs too many steps at byte %zu; shorten the text", from);
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(e->regex_match);
    /* \K and lookbehind can report matches that do not move forward; they count as no match */
    if (ends[1] <= from || ends[0] >= ends[1]) return SEGUE_OK;
    *start = ends[0] < from ? from : ends[0];
    *end = ends[1];
    return SEGUE_OK;
}

/* Free what prepare_match made; NULL pointers are allowed. */
void sg_regex_done(struct sg_encoding *e)
{
    pcre2_match_data_free(e->regex_match);
    pcre2_match_context_free(e->regex_limits);
}
