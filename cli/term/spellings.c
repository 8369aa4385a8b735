/* spellings.c: flags and commands of other programs, see spellings.h.
 * SPDX-License-Identifier: MIT */
#include "term/spellings.h"

#include <string.h>

/* A spelling and what it is called here. */
struct spelling {
    const char *theirs, *ours;
};

/* Flags of llama.cpp, of Ollama's parameters (with - for _) and of mlx-lm. */
static const struct spelling flags[] = {
    {"temperature", "temp"},
    {"n-predict", "tokens"}, {"predict", "tokens"}, {"num-predict", "tokens"},
    {"max-tokens", "tokens"}, {"max-new-tokens", "tokens"}, {"n-gen", "tokens"}, {"ctx-size", "context"}, {"num-ctx", "context"},
    {"max-kv-size", "context"}, {"n-ctx", "context"}, {"system-prompt", "system"}, {"sys", "system"}, {"hf-repo", "model"},
    {"hf", "model"}, {"hf-file", "model"}, {"model-path", "model"}, {"n-gpu-layers", "unit"}, {"gpu-layers", "unit"},
    {"ngl", "unit"}, {"num-gpu", "unit"}, {"device", "unit"}, {"dev", "unit"}, {"tensor-split", "unit"},
    {"num-thread", "threads"},
    {"adapter-path", "lora"}, {"adapter", "lora"}, {"lora-scaled", "lora"}, {"cache-type-k", "kv"}, {"cache-type-v", "kv"},
    {"ctk", "kv"}, {"ctv", "kv"}, {"kv-bits", "kv"}, {"batch-size", "chunk"}, {"ubatch-size", "chunk"},
    {"prefill-step-size", "chunk"}, {"num-batch", "chunk"}, {"binary-file", "file"}, {"prompt-cache", "session"},
    {"prompt-cache-file", "session"}, {"reverse-prompt", "stop"}, {"reasoning", "think"}, {"enable-thinking", "think"},
    {"reasoning-budget", "think"}, {"repetition-penalty", "repeat-penalty"}, {"presence", "presence-penalty"},
    {"typical-p", "typical"}, {"n-probs", "logprobs"}, {"log-disable", "quiet"}, {"no-perf", "quiet"},
    {"ignore-chat-template", "raw"}, {"no-chat-template", "raw"}, {"kl-divergence-base", "kl-base"}, {"n-prompt", "prompt"},
    {"n-depth", "depth"}, {"repetitions", "repeat"}, {"output", "out"}, {"outfile", "output"}, {"quantize", "type"},
    {"q-bits", "type"}, {"outtype", "type"}, {"np", "parallel"}, {"n-parallel", "parallel"}, {"num-keep", "keep"},
    {"format", "json"}, {"ids-file", "ids"},
};

/* Commands of Ollama, llama.cpp and mlx-lm. */
static const struct spelling commands[] = {
    {"list", "models"}, {"ls", "models"}, {"show", "inspect"}, {"info", "inspect"}, {"rm", "models rm"}, {"remove", "models rm"},
    {"delete", "models rm"}, {"download", "pull"}, {"generate", "run"}, {"cli", "run"}, {"ask", "run"}, {"create", "quantize"},
    {"convert", "quantize"}, {"perplexity", "eval"}, {"ps", "units"}, {"devices", "units"}, {"list-devices", "units"},
    {"detokenize", "tokenize --detokenize"}, {"benchmark", "bench"}, {"prompt", "run"}, {"repl", "chat"},
};

const char *spellings_flag(const char *typed, size_t i)
{
    for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
        if (!strcmp(typed, flags[k].theirs) && i-- == 0) return flags[k].ours;
    return NULL;
}

const char *spellings_command(const char *typed)
{
    for (size_t k = 0; k < sizeof commands / sizeof *commands; k++)
        if (!strcmp(typed, commands[k].theirs)) return commands[k].ours;
    return NULL;
}

size_t spellings_flags(const char **theirs, size_t max)
{
    size_t n = sizeof flags / sizeof *flags < max ? sizeof flags / sizeof *flags : max;
    for (size_t k = 0; k < n; k++) theirs[k] = flags[k].theirs;
    return n;
}

size_t spellings_commands(const char **theirs, size_t max)
{
    size_t n = sizeof commands / sizeof *commands < max ? sizeof commands / sizeof *commands : max;
    for (size_t k = 0; k < n; k++) theirs[k] = commands[k].theirs;
    return n;
}
