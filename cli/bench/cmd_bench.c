/* cmd_bench.c: `segue bench`: flags and choice of the mode. Each thread count needs its own units and engine.
 * All modes write rows through bench_out.h.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "bench/bench.h"
#include "term/flags.h"
#include "host/machine.h"

/* A mode is chosen by its flag. The first one given wins. */
static const struct {
    const char *flag;
    size_t repeats; /* default of -r; 0: that of the other modes */
    int (*run)(struct bench_run *b);
} modes[] = {
    {"grid", 4, bench_grid},
    {"pipelines", 4, bench_pipelines},
    {"handoff", 11, bench_handoff},
    {"predict", 0, bench_predict},
    {"claim", 1, bench_claim},
    {"train", 0, bench_train},
    {"cancel", 0, bench_cancel},
    {"concurrent", 0, bench_concurrent},
};

static int run_mode(struct bench_run *b)
{
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (!args_has(&b->args, modes[i].flag)) continue;
        if (modes[i].repeats && !args_has(&b->args, "repeat")) b->repeats = modes[i].repeats;
        return modes[i].run(b);
    }
    return bench_cases(b);
}

/* The thread count is an option of the unit, so every count needs its own units and engine. */
static int run(struct args *args)
{
    size_t threads_n;
    long long *threads = args_count_list(args, "threads", &threads_n);
    /* --json takes precedence over --out. */
    const char *form = args_has(args, "json") ? "json" : args_text(args, "out");
    struct bench_out out;
    segue_error err;
    if (args->operands_n && !args_has(args, "grid")) {
        out_fail(&err, SEGUE_EARG, "bench: \"%.80s\": models are operands of --grid only; use -m", args->operands[0]);
        free(threads);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    bench_out_begin(&out, form ? form : "md");
    if (args_has(args, "html")) out.timelines = json_array();
    int code = EXIT_DONE;
    for (size_t i = 0; i < (threads_n ? threads_n : 1) && !code; i++) {
        struct bench_run b = {.args = args_copy(args), .out = &out, .models = args->operands, .models_n = args->operands_n};
        char number[24];
        b.threads = threads_n ? (size_t)threads[i] : machine_cores();
        b.repeats = (size_t)args_number(args, "repeat", 5);
        b.sequences = (size_t)args_number(args, "sequences", 1);
        b.seed = (uint64_t)args_number(args, "seed", 1);
        snprintf(number, sizeof number, "%zu", b.threads);
        /* Shown on a terminal only. */
        progress_begin(&b.progress, "bench: sample", false);
        if (threads_n) args_set(&b.args, "threads", number, &err);
        code = run_mode(&b);
        args_free(&b.args);
    }
    /* With -o json the array is printed only after all thread counts. An interrupted mode keeps the rows that it has. */
    if ((!code || code == EXIT_INTERRUPTED) && bench_out_end(&out, &err)) code = out_error(&err, EXIT_UNAVAILABLE);
    if (!code && out.timelines && bench_html_write(&out, args_text(args, "html"), &err)) code = out_error(&err, EXIT_UNAVAILABLE);
    bench_out_free(&out);
    free(threads);
    return code;
}

/* The flags of every mode. -p, -n and -t take lists, so the shared groups of these flags do not fit. */
static const struct arg_def flag_defs[] = {
    {"prompt", 'p', ARG_COUNTS, 0, "N,..", "512", 0, 16777216, "prompt lengths in tokens; 0: no prefill row"},
    {"tokens", 'n', ARG_COUNTS, 0, "N,..", "128", 0, 16777216, "tokens to generate; 0: no decode row"},
    {"depth", 'd', ARG_COUNTS, 0, "N,..", "0", 0, 16777216, "tokens in the context before the measurement"},
    {"repeat", 'r', ARG_COUNT, 0, "N", "5", 1, 10000, "samples per row"},
    {"out", 'o', ARG_CHOICE, 0, "md|csv|json|jsonl|sql", "md", 0, 0, "output format"},
    {"html", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "also write a page with tables and charts of the rows"},
    {"sequences", 0, ARG_COUNT, 0, "N", "1", 1, 256, "number of parallel sequences"},
    {"seed", 0, ARG_COUNT, 0, "S", "1", 0, 0, "seed of the random prompt"},
    {"no-warmup", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "skip the warm-up run before each row"},
    {"meter", 0, ARG_TEXT, ARG_ADVANCED, "NAME[:FILE]", "none", 0, 0,
     "measure the energy of each phase: nvml, rapl, all, powermetrics (as root), powermetrics:FILE, asitop:FILE; with "
     "--pipelines, what this machine has"},
    {"meter-idle", 0, ARG_COUNT, ARG_ADVANCED, "S", NULL, 1, 3600,
     "measure the idle power for S seconds first and subtract it from the energy"},
    {"unit", 0, ARG_UNIT, 0, "U", "the fastest available unit", 0, 0, "compute unit (see segue units)"},
    {"threads", 't', ARG_COUNTS, 0, "N,..", "all cores", 1, 4096, "CPU threads"},
    {"prefill", 0, ARG_UNIT, ARG_REPEATABLE | ARG_ADVANCED, "U[@A-B]", NULL, 0, 0, "unit for prefill"},
    {"decode", 0, ARG_UNIT, ARG_REPEATABLE | ARG_ADVANCED, "U[@A-B]", NULL, 0, 0, "unit for decode"},
    {"handoff", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0,
     "measure the hand-off from --prefill U to --decode V (-p 410 -n 64 -r 11)"},
    {"pipelines", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0,
     "measure predefined placements, one row per pipeline and prompt (-p 6,133,410 -n 200 -r 4)"},
    {"pipeline", 0, ARG_TEXT, ARG_REPEATABLE | ARG_ADVANCED, "NAME[+U]", NULL, 0, 0,
     "predefined placement: single:U, gpu, fixed, ane-seq, ane-batch; with --pipelines may be repeated, default all"},
    {"cancel", 0, ARG_COUNT, ARG_ADVANCED, "N", NULL, 1, 10000,
     "measure the latency of N cancellations during prefill (-p 2000)"},
    {"concurrent", 0, ARG_COUNT, ARG_ADVANCED, "N", NULL, 2, 1048576,
     "measure decode speed while another session prefills N tokens"},
    {"predict", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0,
     "predict and measure about 100 cases on the units of this machine, in at most 12 minutes"},
    {"seconds", 0, ARG_COUNT, ARG_ADVANCED, "N", "700", 1, 86400,
     "--predict: leave out tasks that would take longer than N seconds in all"},
    {"claim", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0,
     "measure the cell of a published 1.08 ms a token on the Neural Engine, or simulate it (-p 128 -n 128 -r 1)"},
    {"train", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0,
     "measure an update of a layer of width 768, and three ways to change its weights on the Neural Engine, or simulate it"},
    {"grid", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0,
     "--pipelines for each MODEL of the command line: the protocol of published work"},
    ARG_END};
static const struct arg_group command_flags = {"Measurement", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_model, &flags_engine, &flags_output, NULL};
const struct command cmd_bench = {
    .name = "bench",
    .summary = "measure tokens per second",
    .operands = "[MODEL ...]",
    .operands_max = 16,
    .groups = groups,
    .example = "segue bench -p 512 -n 64 -r 2 -o json",
    .run = run,
    .about = "Measures prefill and decode separately and reports them in the fields of llama-bench. The prompt "
             "consists of random token ids that depend on --seed only. Generation computes full logits, decodes "
             "greedily and feeds the token back. Loading, weight packing and warm-up are not measured. ids_hash is "
             "the FNV-1a hash of all ids of the last sample; equal hashes show that two runs did the same work. "
             "memory_bandwidth_gb_s is the read bandwidth of the unit with the same threads at the size of the "
             "row's working set (weights of one step and states). It is measured after each decode sample, and "
             "once after the last prefill sample. bandwidth_utilization is the median over the samples of weight "
             "bytes per second divided by the mean of the bandwidth measured before and after the sample. depth_ratio "
             "(column depth) is the time of a token at a depth divided by the time at depth 0 plus the time of "
             "reading K and V at 70 % of memory_bandwidth_gb_s; it needs a row of the same length at depth 0 (-d 0,4096).",
};
