/* regex.c: pre-tokenizer patterns that have no scanner of their own, matched by PCRE2 under limits of steps
 * and memory. Its Unicode tables may be older than the field's, so tokenizers that need it say so in their
 * info.
 * SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/tokenizer/tokparts.h"

enum { STEPS = 1 << 24, STEPS_PER_BYTE = 256, MATCH_KIB = 32768, MOST_PATTERN = 16384 };

/* PCRE2's memory is the house's, so that a failing allocation is tested here too. */
static void *memory(size_t n, void *unused)
{
    (void)unused;
    return sg_alloc(n);
}

static void give(void *p, void *unused)
{
    (void)unused;
    sg_free(p);
}

segue_status sg_regex_open(void **out, const char *pattern, size_t len, const char *what, segue_error *err)
{
    if (len > MOST_PATTERN)
        return sg_fail(
            err, SEGUE_EUNSUPPORTED,
            "read tokenizer: %s: its split pattern has %zu bytes, at most %d work; choose another model",
            what, len, MOST_PATTERN);
    pcre2_general_context *own = pcre2_general_context_create(memory, give, NULL);
    pcre2_compile_context *how = own ? pcre2_compile_context_create(own) : NULL;
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *regex = NULL;
    if (how)
        regex = pcre2_compile((PCRE2_SPTR)pattern, len,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT, &code,
                              &at, how);
    pcre2_compile_context_free(how);
    pcre2_general_context_free(own);
    if (!regex && (!how || code == PCRE2_ERROR_NOMEMORY || code == 121))
        return sg_no_memory("split pattern", len, err);
    if (!regex) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "read tokenizer: %s: its split pattern: %s at %zu; choose another model", what,
                       (const char *)why, (size_t)at);
    }
    *out = regex;
    return SEGUE_OK;
}

void sg_regex_close(void *regex) { pcre2_code_free(regex); }

/* Called before every item of the pattern is tried. A step costs as far as it went since the last one: an
 * item such as a* reads on alone. */
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

/* Working memory and limits, made when the first unknown pattern of a call is met. */
static segue_status ready(struct sg_encoding *e)
{
    if (e->regex_match) return SEGUE_OK;
    pcre2_general_context *own = pcre2_general_context_create(memory, give, NULL);
    pcre2_match_context *limits = own ? pcre2_match_context_create(own) : NULL;
    e->regex_limits = limits;
    if (limits) {
        pcre2_set_match_limit(limits, UINT32_MAX);
        pcre2_set_depth_limit(limits, UINT32_MAX);
        pcre2_set_heap_limit(limits, MATCH_KIB);
        e->regex_steps.left = STEPS + (uint64_t)e->text_len * STEPS_PER_BYTE;
        pcre2_set_callout(limits, count_step, &e->regex_steps);
        e->regex_match = pcre2_match_data_create(1, own);
    }
    pcre2_general_context_free(own);
    return e->regex_match ? SEGUE_OK : sg_no_memory("text", 1024, e->err);
}

segue_status sg_regex_find(struct sg_encoding *e, const void *regex, const char *s, size_t n, size_t from,
                           size_t *start, size_t *end)
{
    SG_TRY(ready(e));
    e->regex_steps.at = from;
    int code = pcre2_match(regex, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, e->regex_match,
                           e->regex_limits);
    *end = 0;
    if (code == PCRE2_ERROR_NOMATCH) return SEGUE_OK;
    if (code == PCRE2_ERROR_NOMEMORY) return sg_no_memory("text", n, e->err);
    if (code < 0)
        return sg_fail(
            e->err, SEGUE_ELIMIT,
            "tokenize: the model's split pattern needs too many steps at byte %zu; shorten the text", from);
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(e->regex_match);
    /* \K and lookbehind can give odd spans; only a real step forward counts. */
    if (ends[1] <= from || ends[0] >= ends[1]) return SEGUE_OK;
    *start = ends[0] < from ? from : ends[0];
    *end = ends[1];
    return SEGUE_OK;
}

void sg_regex_done(struct sg_encoding *e)
{
    pcre2_match_data_free(e->regex_match);
    pcre2_match_context_free(e->regex_limits);
}
