/* constrain.c: the flags --json-schema, --grammar and --regex: an answer of a given form.
 * SPDX-License-Identifier: MIT */
#include "run/answer.h"

#include <stdlib.h>
#include <string.h>
#include "run/prompt.h"

segue_status sampler_constrain(struct sampler *c, const struct args *args, const segue_model *model, segue_error *err)
{
    static const char *const names[] = {"grammar", "json-schema", "regex"}; /* index: segue_grammar_kind */
    for (int kind = 0; kind < 3; kind++) {
        const char *value = args_text(args, names[kind]);
        struct out_text text = {0};
        segue_status st = SEGUE_OK;
        if (!value) continue;
        if (c->grammar)
            return out_fail(err, SEGUE_EARG,
                            "flag --%s: cannot be combined with the others of --json-schema, --grammar and --regex", names[kind]);
        if (c->sampling.ignore_stops)
            return out_fail(err, SEGUE_EARG, "flag --%s: cannot be combined with --ignore-eos", names[kind]);
        if (kind == SEGUE_GRAMMAR_REGEX)
            out_add(&text, value, strlen(value));
        else
            st = prompt_file(value, &text, err);
        if (!st) st = segue_grammar_open(&c->grammar, model, (segue_grammar_kind)kind, text.data ? text.data : "", text.len, err);
        free(text.data);
        if (st) return st;
        c->sampling.grammar = c->grammar;
    }
    return SEGUE_OK;
}
