/* fim.c: the tokens of fill-in-the-middle. A GGUF names them, or they are known by their texts, as in llama.cpp.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/tokenizer/tokparts.h"

enum { NAMES_MAX = 8 };

static const char *const names[SG_FIM_N][NAMES_MAX] = {
    {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>", "\u2581<PRE>", "<|code_prefix|>",
     "<|prefix|>"},
    {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>", "\u2581<SUF>", "<|code_suffix|>",
     "<|suffix|>"},
    {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>", "<MID>", "\u2581<MID>", "<|code_middle|>",
     "<|middle|>"},
    {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
    {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
    {"<|file_sep|>"}};

void sg_fim_find(struct sg_tokenizer *t)
{
    for (int what = 0; what < SG_FIM_N; what++) {
        int32_t id = t->fim_named[what] - 1;
        for (int i = 0; i < NAMES_MAX && names[what][i] && id < 0; i++) id = sg_token_find(t, names[what][i]);
        t->info.fim[what] = id < (int32_t)t->tokens_n ? id : -1;
    }
}
