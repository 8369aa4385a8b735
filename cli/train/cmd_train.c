/* cmd_train.c: `segue train`: train a LoRA adapter, or all weights, of a model. SPDX-License-Identifier: MIT */
#include "commands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/placement.h"
#include "term/flags.h"
#include "term/interrupt.h"
#include "term/progress.h"
#include "train/grpo.h"
#include "train/model_write.h"
#include "train/sequences.h"
#include "train/train_files.h"

/* --- the run --- */

/* Every sequence begins at position 0 and sees only itself, so a pack gives the loss of its sequences one by one. */
static segue_status pack_run(struct train_job *j, struct pack *p, bool loss_only, segue_train_result *sum, segue_error *err)
{
    const segue_train_batch batch = {.size = sizeof batch,
                                     .tokens = p->tokens,
                                     .labels = p->labels,
                                     .lengths = p->lengths,
                                     .sequences_n = p->n,
                                     .loss_only = loss_only};
    segue_train_result r = {.size = sizeof r};
    uint64_t begin = out_now_ns();
    segue_status st = p->n ? segue_trainer_run(j->trainer, &batch, &r, err) : SEGUE_OK;
    if (p->n && !st && !loss_only) job_trace_pass(j, begin);
    job_sum(sum, &r);
    p->n = p->used = 0;
    return st;
}

/* The samples in micro-batches of at most --micro-batch tokens; with --no-pack, each by itself. */
static segue_status run_samples(struct train_job *j, const struct train_sample *(*at)(const struct train_job *j, size_t i),
                                size_t n, bool loss_only, segue_train_result *sum, segue_error *err)
{
    size_t limit = job_micro_batch(j);
    struct pack p;
    segue_status st = SEGUE_OK;
    *sum = (segue_train_result){.size = sizeof *sum};
    pack_begin(&p, limit);
    for (size_t i = 0; i < n && !st; i++) {
        const struct train_sample *x = at(j, i);
        if (p.n && (p.used + x->n > limit || args_has(j->args, "no-pack"))) st = pack_run(j, &p, loss_only, sum, err);
        if (!st) pack_add(&p, x->tokens, x->labels, x->n);
    }
    if (!st) st = pack_run(j, &p, loss_only, sum, err);
    pack_free(&p);
    return st;
}

static const struct train_sample *held_out_at(const struct train_job *j, size_t i) { return &j->samples.items[i]; }

static const struct train_sample *step_at(const struct train_job *j, size_t i)
{
    return samples_at(&j->samples, j->seed, j->step * j->batch + i);
}

/* Mean loss per labelled token of the held-out sequences. */
static segue_status evaluate(struct train_job *j, double *loss, segue_error *err)
{
    segue_train_result sum;
    segue_status st = run_samples(j, held_out_at, j->samples.held_out, true, &sum, err);
    *loss = sum.labelled ? sum.loss / (double)sum.labelled : NAN;
    return st;
}

/* Since --meter was opened; NAN: no meter, or a counter cannot be read. */
static double joules_now(const struct train_job *j)
{
    double joules = j->meter ? unit_meter_now(j->meter) : -1;
    return joules >= 0 ? joules : NAN;
}

/* One step of `batch` sequences. */
static segue_status train_step(struct train_job *j, struct train_step *out, segue_error *err)
{
    segue_train_result sum;
    uint64_t start = out_now_ns();
    double joules = joules_now(j);
    segue_status st = run_samples(j, step_at, j->batch, false, &sum, err);
    const segue_adamw adamw = {.size = sizeof adamw,
                               .learning_rate = job_rate(j, j->step),
                               .weight_decay = args_number(j->args, "weight-decay", 0),
                               .clip_norm = args_number(j->args, "clip", 1)};
    segue_update_result u = {.size = sizeof u};
    uint64_t begin = out_now_ns();
    if (!st) st = segue_trainer_update(j->trainer, &adamw, &u, err);
    if (st) return st;
    job_trace_update(j, begin);
    j->loss = sum.loss / (double)sum.labelled;
    *out = (struct train_step){.step = ++j->step, .loss = j->loss, .rate = adamw.learning_rate, .norm = u.gradient_norm,
                               .held_out = NAN, .ms = (double)(out_now_ns() - start) / 1e6, .tokens = sum.tokens,
                               .joules = joules_now(j) - joules, .device = sum};
    return SEGUE_OK;
}

/* All weights are large: they are written when the run ends, also by ^C. */
static segue_status keep_model(struct train_job *j, segue_error *err)
{
    free(j->result);
    j->result = NULL;
    return j->full ? model_write(j->out, j->trainer, j->placement.path, &j->result, err) : SEGUE_OK;
}

/* The figures behind the bar. */
static void show(const struct train_job *j, struct progress *p, const struct train_step *s)
{
    char joules[32] = "", roof[48] = "";
    double share = train_log_roof_share(&j->log, s);
    if (j->meter) snprintf(joules, sizeof joules, ", %.0f J", j->log.joules);
    if (isfinite(share)) snprintf(roof, sizeof roof, " (%.0f %% of %.0f)", 100 * share, j->log.roof / 1e9);
    progress_detail(p, "loss %.4f, %.0f tokens/s, %.1f GFLOP/s%s%s", s->loss, (double)s->tokens / s->ms * 1e3,
                    j->log.flops * (double)s->tokens / s->ms / 1e6, roof, joules);
}

static segue_status train_samples(struct train_job *j, uint64_t *kept, segue_error *err)
{
    struct progress progress;
    uint64_t every = (uint64_t)args_number(j->args, "checkpoint", 50);
    trace_begin(&j->trace, j->args);
    segue_status st = evaluate(j, &j->first, err);
    j->last = j->first;
    progress_begin(&progress, "train: steps", args_has(j->args, "json"));
    while (j->step < j->steps && !st && !interrupt_pending()) {
        struct train_step step;
        progress_step(&progress, j->step, j->steps, false);
        st = train_step(j, &step, err);
        j->keeping = !st;
        bool due = j->step % every == 0 || j->step == j->steps || interrupt_pending();
        char *sample = NULL;
        if (!st && due) st = evaluate(j, &step.held_out, err);
        if (!st) st = job_sample(j, &sample, err);
        step.sample = sample;
        /* Before the checkpoint, so that an update of the checkpoint has its line; other lines are removed by the next start. */
        if (!st) st = train_log_add(&j->log, &step, err);
        if (!st && due) st = job_keep(j, err);
        if (!st && due) j->last = step.held_out, *kept = j->step;
        if (!st && sample && !j->log.json) out_note("train: step %llu: %s", (unsigned long long)step.step, sample);
        free(sample);
        if (!st) show(j, &progress, &step);
        if (!st) j->keeping = false;
    }
    progress_end(&progress);
    segue_error why;
    segue_status traced = job_trace_end(j, &why);
    if (!st && traced) st = traced, *err = why;
    return st;
}

static segue_status train(struct train_job *j, segue_error *err)
{
    uint64_t kept = j->step;
    /* kill -9 may have come after the last checkpoint and before its adapter. */
    segue_status st = j->step && j->step >= j->steps ? job_keep(j, err) : SEGUE_OK;
    if (!st) st = (j->grpo ? grpo_train : train_samples)(j, &kept, err);
    if (st) {
        segue_error why = *err;
        char rest[64] = "no checkpoint was written yet";
        if (kept) snprintf(rest, sizeof rest, "the checkpoint of step %llu is kept", (unsigned long long)kept);
        return out_fail(err, st, "train: step %llu: %s; %s in %.200s", (unsigned long long)j->step + !j->keeping, why.text,
                        rest, j->out);
    }
    st = keep_model(j, err);
    if (!st) st = train_log_page(&j->log, j->out, err);
    if (!st && j->step < j->steps && !kept)
        st = out_fail(err, SEGUE_ECANCELED, "train: interrupted; no checkpoint was written yet");
    else if (!st && j->step < j->steps)
        st = out_fail(err, SEGUE_ECANCELED, "train: interrupted; step %llu is kept; repeat the command to continue",
                      (unsigned long long)kept);
    return st;
}

/* --- before and after --- */

/* Data, unit, trainer and an earlier checkpoint. */
static segue_status prepare(struct train_job *j, segue_error *err)
{
    size_t context = job_context(j);
    j->seed = (uint64_t)args_number(j->args, "seed", 0);
    j->batch = (size_t)args_number(j->args, "batch", 4);
    const char *data = args_text(j->args, "data");
    double held_out = args_number(j->args, "held-out", 5) / 100;
    segue_status st = j->grpo ? prompts_read(&j->prompts, &j->placement, data, grpo_prompt_tokens(j), err)
                              : samples_read(&j->samples, &j->placement, data, context, held_out, j->seed, err);
    if (st) return st;
    uint64_t all = j->grpo ? j->prompts.n : j->samples.n - j->samples.held_out;
    uint64_t epochs = (uint64_t)args_number(j->args, "epochs", 1);
    j->steps = (uint64_t)args_number(j->args, "steps", (double)((all * epochs + j->batch - 1) / j->batch));
    job_identify(j);
    if (!j->full) st = adapter_form_of(args_text(j->args, "adapter-form"), j->placement.path, &j->form, err);
    if (!st) st = job_open(j, err);
    if (!st) st = job_open_extras(j, err);
    if (!st) st = checkpoint_read(j->out, j->trainer, j->run, err);
    if (st && st != SEGUE_END) return st;
    segue_trainer_info info = {.size = sizeof info};
    st = segue_trainer_info_get(j->trainer, &info, err);
    j->step = info.steps / (j->grpo ? (uint64_t)args_number(j->args, "passes", 1) : 1);
    j->log.flops = info.flops_per_token;
    j->log.grpo = j->grpo;
    j->log.json = args_has(j->args, "json");
    j->log.html = args_text(j->args, "html");
    j->log.device = j->host != NULL;
    if (!st) job_roof(j);
    return st ? st : train_log_open(&j->log, args_text(j->args, "metrics"), j->step, err);
}

/* With --grpo. */
static int report_rewards(const struct train_job *j, uint64_t numbers, double seconds)
{
    if (!args_has(j->args, "json")) {
        out_print("%s: %llu steps, %llu numbers, mean reward %.3f, was %.3f\n", j->out, (unsigned long long)j->step,
                  (unsigned long long)numbers, j->last, j->first);
        out_note("use it: segue chat -m %s --lora %s", j->placement.path, j->out);
        return EXIT_DONE;
    }
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:o, s:o, s:o}", "path", j->out, "steps", (json_int_t)j->step, "prompts",
                          (json_int_t)j->prompts.n, "numbers", (json_int_t)numbers, "reward_before", out_real(j->first), "reward",
                          out_real(j->last), "seconds", out_real(seconds));
    json_object_set_new(o, "overlap_ms", out_real((double)j->log.overlap_ns / 1e6));
    if (!isfinite(j->first)) out_null(o, "reward_before", "the run was complete already");
    if (!isfinite(j->last)) out_null(o, "reward", "the run was complete already");
    train_log_put(&j->log, o);
    return out_json_exit(o);
}

static int report(const struct train_job *j)
{
    segue_trainer_info info = {.size = sizeof info};
    segue_error err;
    double seconds = (double)(out_now_ns() - j->log.start_ns) / 1e9;
    if (segue_trainer_info_get(j->trainer, &info, &err)) return out_error(&err, EXIT_UNAVAILABLE);
    if (j->grpo) return report_rewards(j, info.numbers, seconds);
    if (args_has(j->args, "json")) {
        json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "path",
                              j->full ? j->result : j->out, "steps", (json_int_t)j->step,
                              "sequences", (json_int_t)j->samples.n, "held_out", (json_int_t)j->samples.held_out, "cut",
                              (json_int_t)j->samples.cut, "skipped", (json_int_t)j->samples.skipped, "numbers",
                              (json_int_t)info.numbers, "tokens_per_second", out_real((double)j->log.tokens / seconds), "loss",
                              out_real(j->loss));
        if (j->meter) json_object_set_new(o, "joules", out_real(j->log.joules));
        json_object_set_new(o, "held_out_loss_before", out_real(j->first));
        json_object_set_new(o, "held_out_loss", out_real(j->last));
        if (!j->samples.held_out) out_null(o, "held_out_loss", "no sequence was held out; use --held-out");
        if (!j->samples.held_out) out_null(o, "held_out_loss_before", "no sequence was held out; use --held-out");
        json_object_set_new(o, "val_loss", out_real(j->last));
        if (!j->samples.held_out) out_null(o, "val_loss", "no sequence was held out; use --held-out");
        train_log_put(&j->log, o);
        return out_json_exit(o);
    }
    out_print("%s: %llu steps, %llu numbers, %.0f tokens/s, loss %.4f\n", j->out, (unsigned long long)j->step,
              (unsigned long long)info.numbers, (double)j->log.tokens / seconds, j->loss);
    if (j->samples.held_out) out_print("held out: %zu sequences, loss %.4f, was %.4f\n", j->samples.held_out, j->last, j->first);
    if (j->samples.cut) out_note("train: %zu sequences were cut to the context; see --context", j->samples.cut);
    if (j->samples.skipped) out_note("train: %zu sequences without labels were left out", j->samples.skipped);
    if (j->full) out_note("use it: segue run -m %s", j->result);
    else out_note("use it: segue chat -m %s --lora %s%s", j->placement.path, j->out,
                  j->form == ADAPTER_AS_GGUF ? "/adapter.gguf" : "");
    return EXIT_DONE;
}

/* What is asked for fits together. */
static segue_status check_flags(const struct train_job *j, segue_error *err)
{
    static const char *const of_adapters[] = {"rank", "alpha", "targets", "adapter-form"};
    if (!j->out || !args_has(j->args, "data"))
        return out_fail(err, SEGUE_EARG, "train: %s",
                        j->out ? "--data missing; give a text or a .jsonl file" : "-o missing; give a folder");
    for (size_t i = 0; i < sizeof of_adapters / sizeof *of_adapters && j->full; i++)
        if (args_has(j->args, of_adapters[i]))
            return out_fail(err, SEGUE_EARG, "train: --%s is of adapters and --full trains all weights; leave one out",
                            of_adapters[i]);
    if (args_has(j->args, "random") && !j->full)
        return out_fail(err, SEGUE_EARG, "train: --random starts all weights; add --full");
    if (args_has(j->args, "shape") && !args_has(j->args, "random"))
        return out_fail(err, SEGUE_EARG, "train: --shape has no weights to begin with; add --full --random");
    if (args_has(j->args, "sample") && j->grpo)
        return out_fail(err, SEGUE_EARG, "train: --sample shows an answer, and --grpo samples answers itself; leave one out");
    return grpo_check(j->args, err);
}

static int run(struct args *args)
{
    struct train_job j = {.args = args, .full = args_has(args, "full"), .grpo = args_has(args, "grpo"),
                          .out = args_text(args, "output"), .first = NAN, .last = NAN};
    segue_error err;
    if (check_flags(&j, &err)) return out_error(&err, EXIT_UNAVAILABLE);
    int code = job_open_model(&j);
    if (code) return code;
    interrupt_defer(true);
    segue_status st = j.full ? model_can_write(j.placement.path, &err) : SEGUE_OK;
    if (!st) st = prepare(&j, &err);
    if (!st) st = train(&j, &err);
    code = st ? out_error(&err, EXIT_UNAVAILABLE) : report(&j);
    train_log_close(&j.log);
    unit_meter_close(j.meter);
    sampler_engine_close(&j.sampler);
    segue_trainer_close(j.trainer);
    segue_unit_close(j.unit);
    segue_unit_close(j.host);
    samples_free(&j.samples);
    prompts_free(&j.prompts);
    prompts_free(&j.shown);
    free(j.result);
    placement_close(&j.placement);
    args_free(&j.shaped);
    return code;
}

static const struct arg_def flag_defs[] = {
    {"output", 'o', ARG_FOLDER, 0, "FOLDER", NULL, 0, 0, "folder of the adapter or model and of the checkpoint"},
    {"full", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "train all weights instead of an adapter and write a model"},
    {"random", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "with --full: begin with random weights of the model's shape"},
    {"shape", 0, ARG_TEXT, 0, "NAME", NULL, 0, 0, "with --random: stories15M or LAYERSxWIDTHxHEADSxKVxFF; the tokenizer of -m"},
    {"data", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "text, tokens (.bin .u16 .u32), .jsonl: \"text\", \"messages\", \"tokens\""},
    {"rank", 0, ARG_COUNT, 0, "N", "8", 1, 1024, "rank of the adapter"},
    {"alpha", 0, ARG_REAL, ARG_ADVANCED, "X", "2 x rank", 0.001, 1e6, "scale of the adapter times its rank"},
    {"targets", 0, ARG_TEXT, 0, "LIST", "all", 0, 0, "modules that get a pair: q_proj,v_proj"},
    {"adapter-form", 0, ARG_CHOICE, 0, "peft|mlx|gguf", "peft", 0, 0, "form of the adapter's files"},
    {"steps", 0, ARG_COUNT, 0, "N", "one epoch", 1, 1e9, "number of updates"},
    {"epochs", 0, ARG_COUNT, 0, "N", "1", 1, 1e6, "passes over the data"},
    {"batch", 0, ARG_COUNT, 0, "N", "4", 1, 65536, "sequences per update"},
    {"context", 'c', ARG_COUNT, 0, "N", "256", 2, 1 << 20, "longest sequence in tokens"},
    {"micro-batch", 0, ARG_COUNT, ARG_ADVANCED, "N", "--context", 1, 1 << 20, "tokens that are computed together"},
    {"lr", 0, ARG_REAL, 0, "X", "2e-4", 0, 10, "highest learning rate; it falls to a tenth"},
    {"warmup", 0, ARG_COUNT, ARG_ADVANCED, "N", "5 %", 0, 1e9, "updates until the highest learning rate"},
    {"weight-decay", 0, ARG_REAL, ARG_ADVANCED, "X", "0", 0, 10, "weight decay of AdamW"},
    {"clip", 0, ARG_REAL, ARG_ADVANCED, "X", "1", 0, 1e9, "largest norm of the gradient; 0: no bound"},
    {"held-out", 0, ARG_REAL, 0, "X", "5", 0, 50, "percentage of the sequences that is only evaluated"},
    {"checkpoint", 0, ARG_COUNT, 0, "N", "50", 1, 1e9, "write a checkpoint every N updates"},
    {"seed", 0, ARG_COUNT, 0, "N", "0", 0, 9007199254740992.0, "seed of the start and of the order"},
    {"sample", 0, ARG_TEXT, 0, "PROMPT", NULL, 0, 0, "show an answer of the model while it is trained"},
    {"sample-every", 0, ARG_COUNT, 0, "N", "50", 1, 1e9, "with --sample: every N updates"},
    {"meter", 0, ARG_TEXT, ARG_ADVANCED, "rapl|nvml|all", "none", 0, 0, "joules of every update, from counters of the units"},
    {"metrics", 0, ARG_FILE, 0, "FILE.csv", NULL, 0, 0, "write loss, rate, norm and joules of every update"},
    {"html", 0, ARG_FILE, 0, "FILE.html", NULL, 0, 0, "write a page with charts of the run"},
    {"trace", 0, ARG_FILE, ARG_ADVANCED, "FILE", NULL, 0, 0, "write a timeline of products, samples and updates"},
    {"recompute", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0, "less memory: compute layers again in the backward pass"},
    {"no-pack", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0, "compute every sequence by itself instead of several at once"},
    {"unit", 0, ARG_UNIT, 0, "SPEC", "the fastest", 0, 0, "unit that computes: cpu, ref, ane, cuda:0"},
    {"host-unit", 0, ARG_UNIT, ARG_ADVANCED, "SPEC", "cpu", 0, 0, "unit beside ane: all but the products with weights"},
    {"threads", 't', ARG_COUNT, 0, "N", "all cores", 1, 1024, "threads of the unit cpu"},
    ARG_END};
static const struct arg_def grpo_defs[] = {
    {"grpo", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "sample answers to the prompts of --data and train on their rewards"},
    {"reward", 0, ARG_TEXT, 0, "pattern:RE|length:N|exact|program:COMMAND", NULL, 0, 0, "how an answer is scored"},
    {"group", 0, ARG_COUNT, 0, "N", "8", 2, 1024, "answers per prompt"},
    {"answer-tokens", 0, ARG_COUNT, 0, "N", "64", 1, 1 << 20, "longest answer in tokens"},
    {"rollout-unit", 0, ARG_UNIT, 0, "SPEC", "that of --unit", 0, 0, "unit that samples while the other one updates"},
    {"kl", 0, ARG_REAL, ARG_ADVANCED, "X", "0.04", 0, 1e6, "weight of the distance from the model without the adapter"},
    {"clip-ratio", 0, ARG_REAL, ARG_ADVANCED, "X", "0.2", 0.001, 1, "bound of the change of a probability"},
    {"passes", 0, ARG_COUNT, ARG_ADVANCED, "N", "1", 1, 1000, "updates per step with the same answers"},
    {"reward-timeout", 0, ARG_COUNT, ARG_ADVANCED, "S", "10", 1, 86400, "seconds that a reward program has for a number"},
    ARG_END};
static const struct arg_group command_flags = {"Training", flag_defs}, grpo_flags = {"Rewards", grpo_defs};
static const struct arg_group *const groups[] = {&command_flags, &grpo_flags, &flags_model, &flags_output, NULL};
const struct command cmd_train = {
    .name = "train", .summary = "train a LoRA adapter or all weights", .groups = groups,
    .example = "segue train -m model.gguf --data chats.jsonl -o adapter", .run = run,
    .about = "Trains a LoRA adapter of a model of any family and storage, also a quantised one, and writes it in the form of "
             "PEFT, which --lora of run, chat and serve reads. With --full all weights are trained, in fp32 with 16 bytes of "
             "memory each, and the result is a model in the form of the one that was given: model.gguf, or a Hugging Face "
             "folder. Of conversations only what the assistant says is trained. Every --checkpoint updates, at the end and on "
             "^C (not with --rollout-unit) the adapter and a checkpoint are written; the same command continues from the "
             "checkpoint with the same bits as a run that was not interrupted. With --grpo the lines of --data are prompts "
             "(\"prompt\", \"messages\" or \"tokens\", and \"answer\" if there is an expected one). Each step samples --group "
             "answers for each of --batch prompts, scores them with --reward and updates the adapter by their distance from "
             "the mean of their group. program:COMMAND is started once; it reads a line of JSON per answer and writes a "
             "number."};
