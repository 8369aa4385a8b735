/* flags.c: definitions of the shared flags. Help texts start with a lower-case letter and have no final period;
 * help.c adds the default and punctuation. Names and meaning are specified in docs/CLI.md.
 * SPDX-License-Identifier: MIT */
#include "term/flags.h"

/* Largest count that fits the int32_t fields of segue.h. */
#define INT32_LIMIT 2147483647.0

/* --json and --help, accepted by every command. */
static const struct arg_def output_defs[] = {
    {"json", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "print one JSON object on stdout instead of text"},
    {"help", 'h', ARG_SWITCH, 0, NULL, NULL, 0, 0, "show this help; full manual: segue --man COMMAND"},
    ARG_END};
const struct arg_group flags_output = {"Output", output_defs};

/* Which model to open. */
static const struct arg_def model_defs[] = {
    {"model", 'm', ARG_FILE, 0, "FILE|FOLDER|NAME", "$SEGUE_MODEL, or SmolLM2-135M-Instruct", 0, 0,
     "model to load: a .gguf, .safetensors or .bin file, a Hugging Face folder, a name of segue models, or OWNER/NAME[:Q8_0]"},
    {"yes", 'y', ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0, "download a model that is not installed without asking"},
    ARG_END};
const struct arg_group flags_model = {"Model", model_defs};

/* Placement: which unit runs prefill and decode. */
static const struct arg_def unit_defs[] = {
    {"unit", 0, ARG_UNIT, 0, "U", "the fastest available unit", 0, 0,
     "compute unit for prefill and decode (see segue units)"},
    {"prefill", 0, ARG_UNIT, ARG_REPEATABLE | ARG_ADVANCED, "U[@A-B]", NULL, 0, 0,
     "unit for prefill, or for layers A to B of prefill; may be repeated"},
    {"decode", 0, ARG_UNIT, ARG_REPEATABLE | ARG_ADVANCED, "U[@A-B]", NULL, 0, 0,
     "unit for decode, or for layers A to B of decode; may be repeated"},
    {"threads", 't', ARG_COUNT, 0, "N", "all cores", 1, 4096, "CPU threads; does not change the output"},
    {"pipeline", 0, ARG_TEXT, ARG_ADVANCED, "NAME[+U]", NULL, 0, 0,
     "predefined placement: single:U, gpu, fixed, ane-seq, ane-batch; +U decodes on unit U"},
    ARG_END};
const struct arg_group flags_units = {"Units", unit_defs};

/* Options that are fixed when the engine is built. */
static const struct arg_def engine_defs[] = {
    {"lora", 0, ARG_FILE, ARG_REPEATABLE, "PATH[=SCALE]", NULL, 0, 0,
     "LoRA adapter: PEFT folder, MLX adapters.safetensors or GGUF; may be repeated"},
    {"kv", 0, ARG_CHOICE, ARG_ADVANCED, "f32|f16|bf16|q8", "f16; f32 on ref", 0, 0,
     "data type of the KV cache"},
    {"chunk", 0, ARG_COUNT, ARG_ADVANCED, "N", "512", 1, 1048576, "prompt tokens per prefill pass"},
    {"storage", 0, ARG_CHOICE, ARG_ADVANCED, "fp8|lut1|lut2|lut3|lut4|lut6|lut8|int8|int4|w8a8", "as in the file", 0, 0,
     "fp8: convert the weights to FP8 E4M3 with one scale per row at load; others: compress the programs of ane; storage= in a "
     "unit's options: for that unit only"},
    ARG_END};
const struct arg_group flags_engine = {"Engine", engine_defs};

/* Sources of the prompt; at most one of -p, -f, --ids and --messages. */
static const struct arg_def prompt_defs[] = {
    {"prompt", 'p', ARG_TEXT, 0, "TEXT", NULL, 0, 0, "prompt text"},
    {"file", 'f', ARG_FILE, 0, "FILE", NULL, 0, 0, "read the prompt from FILE; - is standard input"},
    {"ids", 0, ARG_TEXT, 0, "1,2,3|@FILE", NULL, 0, 0, "prompt as token ids"},
    {"messages", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "prompt as a conversation in OpenAI's JSON format, with optional tools"},
    {"system", 0, ARG_TEXT, 0, "TEXT", NULL, 0, 0, "system message"},
    {"think", 0, ARG_CHOICE, 0, "on|off", "set by the template", 0, 0,
     "turn the model's thinking mode on or off in the chat template"},
    {"raw", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "do not apply the chat template"},
    ARG_END};
const struct arg_group flags_prompt = {"Prompt", prompt_defs};

/* Limits and sampling. Defaults follow generation_config.json of the model, then llama.cpp. */
static const struct arg_def generation_defs[] = {
    {"tokens", 'n', ARG_COUNT, 0, "N", "1024", -1, INT32_LIMIT,
     "generate at most N tokens; -1: until the context is full"},
    {"context", 'c', ARG_COUNT, 0, "N", "the model's limit, at most 4096", 1, INT32_LIMIT,
     "context size in tokens, prompt and answer together"},
    {"greedy", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "greedy decoding: always take the most likely token (= --temp 0)"},
    {"seed", 0, ARG_COUNT, 0, "S", "random", 0, 0, "random seed for sampling: same seed, same answer"},
    {"temp", 0, ARG_REAL, 0, "X", "the model's, or 0.8", 0, 1000, "sampling temperature; 0: greedy decoding"},
    {"stop", 0, ARG_TEXT, ARG_REPEATABLE, "TEXT", NULL, 0, 0, "stop before this text is printed; may be repeated"},
    {"top-k", 0, ARG_COUNT, ARG_ADVANCED, "N", "the model's, or 40", 0, INT32_LIMIT,
     "top-k sampling: keep the N most likely tokens; 0: off"},
    {"top-p", 0, ARG_REAL, ARG_ADVANCED, "X", "the model's, or 0.95", 0, 1,
     "top-p (nucleus) sampling: keep the most likely tokens up to a total probability of X; 1: off"},
    {"min-p", 0, ARG_REAL, ARG_ADVANCED, "X", "the model's, or 0.05", 0, 1,
     "min-p sampling: drop tokens less likely than X times the most likely one; 0: off"},
    {"typical", 0, ARG_REAL, ARG_ADVANCED, "X", "1", 0, 1, "locally typical sampling with parameter X; 1: off"},
    {"repeat-penalty", 0, ARG_REAL, ARG_ADVANCED, "X", "the model's, or 1", 0, 100,
     "divide the logits of repeated tokens by X; 1: off"},
    {"repeat-last-n", 0, ARG_COUNT, ARG_ADVANCED, "N", "64", -1, INT32_LIMIT,
     "the penalties look at the last N tokens; -1: the whole context, 0: off"},
    {"presence-penalty", 0, ARG_REAL, ARG_ADVANCED, "X", "0", -100, 100,
     "subtract X from the logit of every token seen before; 0: off"},
    {"frequency-penalty", 0, ARG_REAL, ARG_ADVANCED, "X", "0", -100, 100,
     "subtract X times the number of occurrences from a token's logit; 0: off"},
    {"dry-multiplier", 0, ARG_REAL, ARG_ADVANCED, "X", "0", 0, 100,
     "DRY sampling: multiplier of the penalty for repeated sequences; 0: off"},
    {"dry-base", 0, ARG_REAL, ARG_ADVANCED, "X", "1.75", 0, 100, "DRY sampling: base of the exponential growth of the penalty"},
    {"dry-allowed-length", 0, ARG_COUNT, ARG_ADVANCED, "N", "2", 0, INT32_LIMIT,
     "DRY sampling: repeated sequences of up to N tokens are not penalized"},
    {"logit-bias", 0, ARG_TEXT, ARG_REPEATABLE | ARG_ADVANCED, "ID=V", NULL, 0, 0,
     "add V to the logit of token ID; may be repeated"},
    {"json-schema", 0, ARG_FILE, ARG_ADVANCED, "FILE", NULL, 0, 0,
     "the answer is a JSON value that satisfies the schema in FILE"},
    {"grammar", 0, ARG_FILE, ARG_ADVANCED, "FILE", NULL, 0, 0,
     "the answer is a text of the grammar in FILE (GBNF, as in llama.cpp)"},
    {"regex", 0, ARG_TEXT, ARG_ADVANCED, "TEXT", NULL, 0, 0,
     "the answer is a text that matches this regular expression as a whole"},
    {"ignore-eos", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0, "never sample an end-of-generation token"},
    {"logprobs", 0, ARG_COUNT, ARG_ADVANCED, "K", NULL, 0, 20,
     "report the log-probability of each token and of the K most likely ones (needs --json)"},
    ARG_END};
const struct arg_group flags_generation = {"Generation", generation_defs};

/* Saved states, checkpoints and the prefix store. */
static const struct arg_def state_defs[] = {
    {"save", 0, ARG_FILE, ARG_ADVANCED, "FILE.state", NULL, 0, 0, "save the session state at the end"},
    {"load", 0, ARG_FILE, ARG_ADVANCED, "FILE.state", NULL, 0, 0,
     "load a session state; with a prompt, reuse the longest common prefix; without one, continue the answer"},
    {"session", 0, ARG_TEXT, ARG_ADVANCED, "NAME", NULL, 0, 0,
     "load and save the state sessions/NAME.state in the data folder"},
    {"checkpoints", 0, ARG_COUNT, ARG_ADVANCED, "MB", "256", 0, 1 << 30,
     "memory for state checkpoints in MB, used by recurrent models to go back to an earlier position; 0: none"},
    {"repair", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0,
     "recompute the invalid parts of a state instead of failing with exit 4"},
    {"store", 0, ARG_CHOICE, ARG_ADVANCED, "on|off", "on in chat, off elsewhere", 0, 0,
     "prefix store: reuse the state of equal prompt prefixes, in memory and in the cache folder"},
    {"store-memory", 0, ARG_COUNT, ARG_ADVANCED, "MB", "512", 1, 1 << 30, "memory limit of the prefix store in MB"},
    {"store-disk", 0, ARG_COUNT, ARG_ADVANCED, "MB", "4096", 1, 1 << 30,
     "disk limit of the prefix store in MB, for all models together"},
    ARG_END};
const struct arg_group flags_state = {"State", state_defs};

/* What a run reports besides its answer. */
static const struct arg_def report_defs[] = {
    {"quiet", 'q', ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0, "print no statistics and no progress on stderr"},
    {"verify", 0, ARG_COUNT, ARG_ADVANCED, "N", "0", 0, 256,
     "check the hand-off: recompute the last N prompt tokens on the decode unit and compare; 0: off"},
    {"record", 0, ARG_FILE, ARG_ADVANCED, "FILE", NULL, 0, 0,
     "record flags, tokens and hashes of all states for segue replay; slower"},
    {"trace", 0, ARG_FILE, ARG_ADVANCED, "FILE", NULL, 0, 0, "write a timeline of the run in Chrome's trace format"},
    {"meter", 0, ARG_TEXT, ARG_ADVANCED, "NAME[:FILE]", "none", 0, 0,
     "measure the energy of each phase: nvml, rapl, all, powermetrics (as root), powermetrics:FILE, asitop:FILE"},
    {"meter-idle", 0, ARG_COUNT, ARG_ADVANCED, "S", NULL, 1, 3600,
     "measure the idle power for S seconds first and subtract it from the energy"},
    ARG_END};
const struct arg_group flags_reports = {"Reports", report_defs};
