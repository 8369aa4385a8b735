/* flags.c: the tables of shared flags; names and meaning of docs/INTERFACE.md.
 * Must never do: parse, or read a value.
 * SPDX-License-Identifier: MIT */
#include "term/flags.h"

#define BIG 2147483647.0

static const struct arg_def output_defs[] = {
    {"json", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "print one JSON object on stdout and nothing else there"},
    {"help", 'h', ARG_SWITCH, 0, NULL, NULL, 0, 0, "this text; segue --man COMMAND tells all"},
    ARG_END};
const struct arg_group flags_output = {"Output", output_defs};

static const struct arg_def model_defs[] = {
    {"model", 'm', ARG_FILE, 0, "FILE|FOLDER|NAME", "$SEGUE_MODEL, else SmolLM2-135M-Instruct", 0, 0,
     "the model: a .gguf, .safetensors or .bin file, a folder as downloaded, or a name in the models folder"},
    ARG_END};
const struct arg_group flags_model = {"Model", model_defs};

static const struct arg_def unit_defs[] = {
    {"unit", 0, ARG_TEXT, 0, "U", "the fastest real unit", 0, 0,
     "prefill and decode on this unit (see segue units)"},
    {"prefill", 0, ARG_TEXT, ARG_MANY | ARG_MINOR, "U[@A-B]", NULL, 0, 0,
     "read the prompt on this unit, or layers A to B of it"},
    {"decode", 0, ARG_TEXT, ARG_MANY | ARG_MINOR, "U[@A-B]", NULL, 0, 0,
     "write the answer on this unit, or layers A to B of it"},
    {"threads", 't', ARG_COUNT, 0, "N", "all cores", 1, 4096, "threads of cpu units; changes no token"},
    {"pipeline", 0, ARG_TEXT, ARG_MINOR, "NAME[+U]", NULL, 0, 0,
     "a split by name: one:U, gpu, fixed, ane-seq, ane-batch; +U writes on unit U"},
    ARG_END};
const struct arg_group flags_units = {"Units", unit_defs};

static const struct arg_def engine_defs[] = {
    {"lora", 0, ARG_FILE, ARG_MANY, "PATH[=SCALE]", NULL, 0, 0,
     "add an adapter: PEFT folder, MLX adapters.safetensors or GGUF; may be repeated"},
    {"kv", 0, ARG_CHOICE, ARG_MINOR, "f32|f16|bf16|q8", "f16; f32 on ref", 0, 0,
     "storage of keys and values"},
    {"chunk", 0, ARG_COUNT, ARG_MINOR, "N", "512", 1, 1048576, "prompt tokens per run"},
    {"storage", 0, ARG_CHOICE, ARG_MINOR, "fp8", "the file's", 0, 0,
     "make weights e4m3 with a scale per row at load; storage=fp8 inside a unit: that unit's alone"},
    ARG_END};
const struct arg_group flags_engine = {"Engine", engine_defs};

static const struct arg_def prompt_defs[] = {
    {"prompt", 'p', ARG_TEXT, 0, "TEXT", NULL, 0, 0, "the prompt"},
    {"file", 'f', ARG_FILE, 0, "FILE", NULL, 0, 0, "read the prompt from a file; - is standard input"},
    {"ids", 0, ARG_TEXT, 0, "1,2,3|@FILE", NULL, 0, 0, "the prompt as token ids"},
    {"messages", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "a conversation in OpenAI's JSON form, tools too"},
    {"system", 0, ARG_TEXT, 0, "TEXT", NULL, 0, 0, "the system message"},
    {"think", 0, ARG_CHOICE, 0, "on|off", "the template's", 0, 0,
     "ask the template for thinking, or for none"},
    {"raw", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "take the prompt as it is, without the chat template"},
    ARG_END};
const struct arg_group flags_prompt = {"Prompt", prompt_defs};

static const struct arg_def generation_defs[] = {
    {"tokens", 'n', ARG_COUNT, 0, "N", "1024", -1, BIG,
     "write at most N tokens; -1: until the context is full"},
    {"context", 'c', ARG_COUNT, 0, "N", "the model's, at most 4096", 1, BIG,
     "tokens of prompt and answer together"},
    {"greedy", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "always the likeliest token (= --temp 0)"},
    {"seed", 0, ARG_COUNT, 0, "S", "random, reported", 0, 0, "equal seed, equal answer"},
    {"temp", 0, ARG_REAL, 0, "X", "the model's, else 0.8", 0, 1000, "temperature; 0 is greedy"},
    {"stop", 0, ARG_TEXT, ARG_MANY, "TEXT", NULL, 0, 0, "end before this text; may be repeated"},
    {"top-k", 0, ARG_COUNT, ARG_MINOR, "N", "the model's, else 40", 0, BIG,
     "choose among the N likeliest; 0: all"},
    {"top-p", 0, ARG_REAL, ARG_MINOR, "X", "the model's, else 0.95", 0, 1, "the likeliest that sum up to X"},
    {"min-p", 0, ARG_REAL, ARG_MINOR, "X", "the model's, else 0.05", 0, 1, "at least X times the likeliest"},
    {"typical", 0, ARG_REAL, ARG_MINOR, "X", "1", 0, 1, "locally typical sampling; 1: off"},
    {"repeat-penalty", 0, ARG_REAL, ARG_MINOR, "X", "the model's, else 1", 0, 100,
     "divide repeated tokens; 1: off"},
    {"repeat-last-n", 0, ARG_COUNT, ARG_MINOR, "N", "64", -1, BIG, "tokens looked back; -1: all"},
    {"presence-penalty", 0, ARG_REAL, ARG_MINOR, "X", "0", -100, 100, "subtracted once from seen tokens"},
    {"frequency-penalty", 0, ARG_REAL, ARG_MINOR, "X", "0", -100, 100, "subtracted per time seen"},
    {"dry-multiplier", 0, ARG_REAL, ARG_MINOR, "X", "0", 0, 100, "penalty of repeated sequences; 0: off"},
    {"dry-base", 0, ARG_REAL, ARG_MINOR, "X", "1.75", 0, 100, "growth of that penalty"},
    {"dry-allowed-length", 0, ARG_COUNT, ARG_MINOR, "N", "2", 0, BIG, "sequences up to N are free"},
    {"logit-bias", 0, ARG_TEXT, ARG_MANY | ARG_MINOR, "ID=V", NULL, 0, 0,
     "add V to a token's logit; may be repeated"},
    {"ignore-eos", 0, ARG_SWITCH, ARG_MINOR, NULL, NULL, 0, 0, "never choose a stop token"},
    {"logprobs", 0, ARG_COUNT, ARG_MINOR, "K", NULL, 0, 20,
     "log-probabilities of each token and the K best (JSON)"},
    {"keep", 0, ARG_COUNT, ARG_LATER | ARG_MINOR, "N", NULL, 0, BIG, "drop the middle of a full context"},
    ARG_END};
const struct arg_group flags_generation = {"Generation", generation_defs};

static const struct arg_def state_defs[] = {
    {"save", 0, ARG_FILE, ARG_MINOR, "FILE.state", NULL, 0, 0, "write the state at the end"},
    {"load", 0, ARG_FILE, ARG_MINOR, "FILE.state", NULL, 0, 0,
     "start from a state: with a prompt its longest common prefix is kept, without one it goes on"},
    {"session", 0, ARG_TEXT, ARG_MINOR, "NAME", NULL, 0, 0,
     "load and save sessions/NAME.state in the data folder"},
    {"checkpoints", 0, ARG_COUNT, ARG_MINOR, "MB", "256", 0, 1 << 30,
     "memory for points to go back to, for models whose memory cannot be cut; 0: none"},
    {"repair", 0, ARG_SWITCH, ARG_MINOR, NULL, NULL, 0, 0,
     "compute anew what of a state does not fit, instead of exit 4"},
    {"store", 0, ARG_CHOICE, ARG_MINOR, "on|off", "on in chat, else off", 0, 0,
     "keep what was computed, for texts that begin alike; in memory, and in the cache folder"},
    {"store-memory", 0, ARG_COUNT, ARG_MINOR, "MB", "512", 1, 1 << 30, "memory of the store"},
    {"store-disk", 0, ARG_COUNT, ARG_MINOR, "MB", "4096", 1, 1 << 30, "disk of the store, all models together"},
    ARG_END};
const struct arg_group flags_state = {"State", state_defs};

static const struct arg_def report_defs[] = {
    {"quiet", 'q', ARG_SWITCH, ARG_MINOR, NULL, NULL, 0, 0, "no closing line and no progress on stderr"},
    {"verify", 0, ARG_COUNT, ARG_MINOR, "N", "0", 0, 256,
     "compute the last N tokens of the prompt on the decoding unit too, and compare"},
    {"record", 0, ARG_FILE, ARG_LATER | ARG_MINOR, "FILE", NULL, 0, 0, "record the run for segue replay"},
    {"trace", 0, ARG_FILE, ARG_MINOR, "FILE", NULL, 0, 0, "write what ran when, in Chrome's trace format"},
    {"meter", 0, ARG_TEXT, ARG_MINOR, "nvml|none", "none", 0, 0, "measure energy: what the GPUs of this run count"},
    ARG_END};
const struct arg_group flags_reports = {"Reports", report_defs};
