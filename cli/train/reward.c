/* reward.c: see reward.h. SPDX-License-Identifier: MIT */
#include "train/reward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const prefixes[] = {"pattern:", "length:", "exact", "program:"};

segue_status reward_open(struct reward *r, const char *spec, int timeout_s, segue_error *err)
{
    size_t kind = 0, len;
    char *end;
    while (kind <= REWARD_PROGRAM && strncmp(spec, prefixes[kind], strlen(prefixes[kind]))) kind++;
    const char *rest = kind <= REWARD_PROGRAM ? spec + (len = strlen(prefixes[kind])) : spec;
    if (kind > REWARD_PROGRAM || (kind == REWARD_EXACT) != !*rest)
        return out_fail(err, SEGUE_EARG, "train: --reward %.100s: use pattern:RE, length:N, exact or program:COMMAND", spec);
    *r = (struct reward){.kind = (enum reward_kind)kind};
    if (kind == REWARD_LENGTH) {
        r->length = strtod(rest, &end);
        if (*end || !(r->length >= 1) || r->length > 1e6)
            return out_fail(err, SEGUE_EARG, "train: --reward %.100s: the length is no number from 1 to 1e6", spec);
    }
    if (kind == REWARD_PATTERN) {
        char why[120];
        int code = regcomp(&r->pattern, rest, REG_EXTENDED | REG_NOSUB);
        if (code) {
            regerror(code, &r->pattern, why, sizeof why);
            return out_fail(err, SEGUE_EARG, "train: --reward %.100s: %s; see regex(7)", spec, why);
        }
    }
    if (kind == REWARD_PROGRAM) {
        segue_status st = reward_program_open(&r->program, rest, timeout_s * 1000, err);
        if (st) return st;
    }
    r->opened = true;
    return SEGUE_OK;
}

void reward_close(struct reward *r)
{
    if (r->opened && r->kind == REWARD_PATTERN) regfree(&r->pattern);
    if (r->opened && r->kind == REWARD_PROGRAM) reward_program_close(&r->program);
    r->opened = false;
}

/* Equal without white space at the ends. */
static bool same(const char *a, const char *b)
{
    static const char space[] = " \t\r\n";
    a += strspn(a, space), b += strspn(b, space);
    size_t n = strlen(a), m = strlen(b);
    while (n && strchr(space, a[n - 1])) n--;
    while (m && strchr(space, b[m - 1])) m--;
    return n == m && !memcmp(a, b, n);
}

static segue_status by_program(struct reward *r, struct reward_item *items, size_t n, segue_error *err)
{
    struct out_text lines = {0};
    double *scores = out_alloc(n * sizeof *scores);
    for (size_t i = 0; i < n; i++) {
        json_t *o = json_pack("{s:o, s:o, s:I}", "prompt", out_string(items[i].prompt, strlen(items[i].prompt)), "answer",
                              out_string(items[i].answer, strlen(items[i].answer)), "tokens", (json_int_t)items[i].tokens);
        if (items[i].expected) json_object_set_new(o, "expected", out_string(items[i].expected, strlen(items[i].expected)));
        char *text = json_dumps(o, JSON_COMPACT);
        out_addf(&lines, "%s\n", text ? text : "{}");
        free(text);
        json_decref(o);
    }
    segue_status st = reward_program_score(&r->program, &lines, scores, n, err);
    for (size_t i = 0; i < n && !st; i++) items[i].score = scores[i];
    free(scores);
    free(lines.data);
    return st;
}

segue_status reward_score(struct reward *r, struct reward_item *items, size_t n, segue_error *err)
{
    if (r->kind == REWARD_PROGRAM) return by_program(r, items, n, err);
    for (size_t i = 0; i < n; i++) {
        struct reward_item *x = &items[i];
        if (r->kind == REWARD_EXACT && !x->expected)
            return out_fail(err, SEGUE_EFORMAT, "reward exact: the line of the prompt \"%.60s\" has no \"answer\"; add it",
                            x->prompt);
        if (r->kind == REWARD_PATTERN) x->score = !regexec(&r->pattern, x->answer, 0, NULL, 0);
        if (r->kind == REWARD_EXACT) x->score = same(x->answer, x->expected);
        if (r->kind == REWARD_LENGTH) x->score = fmax(0, 1 - fabs((double)x->tokens - r->length) / r->length);
    }
    return SEGUE_OK;
}
