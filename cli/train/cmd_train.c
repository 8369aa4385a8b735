/* cmd_train.c: `segue train`: train a LoRA adapter, or all weights, of a model. SPDX-License-Identifier: MIT */
#include "commands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/placement.h"
#include "term/flags.h"
#include "term/interrupt.h"
#include "term/progress.h"
#include "train/model_write.h"
#include "train/samples.h"
#include "train/train_adapter.h"
#include "train/train_files.h"
#include "train/train_log.h"

/* One run. */
struct job {
    const struct args *args;
    struct placement placement;
    struct train_data samples;
    segue_unit *unit, *host;    /* host NULL: the unit computes everything */
    segue_trainer *trainer;
    struct train_log log;
    const char *out;            /* folder */
    char *result;               /* model that was written with --full; NULL: an adapter, or nothing yet */
    bool full;                  /* --full */
    enum adapter_form form;
    char run[33];               /* of data and settings, for the checkpoint */
    uint64_t seed, steps, step; /* steps wanted and done */
    size_t batch;
    double first, last, best; /* mean loss per token of the held-out part; NAN: nothing is held out */
    double loss;              /* of the last step */
};

enum { CONTEXT = 256 };

/* --- the run --- */

/* Linear warm-up, then a half cosine to a tenth. */
static double rate_of(const struct job *j, uint64_t step)
{
    double peak = args_number(j->args, "lr", 2e-4);
    uint64_t warm = (uint64_t)args_number(j->args, "warmup", (double)(j->steps / 20));
    if (step < warm) return peak * (double)(step + 1) / (double)warm;
    double done = j->steps > warm ? (double)(step - warm) / (double)(j->steps - warm) : 1;
    return peak * (0.55 + 0.45 * cos(3.14159265358979323846 * done));
}

/* Sequences that are computed together: all tokens one after the other. */
struct pack {
    int32_t *tokens, *labels; /* [context] */
    size_t *lengths;          /* [n] */
    size_t n, used;
};

/* --- packs --- */

static void pack_begin(struct pack *p, size_t context)
{
    *p = (struct pack){.tokens = out_alloc(context * sizeof *p->tokens), .labels = out_alloc(context * sizeof *p->labels),
                       .lengths = out_alloc(context * sizeof *p->lengths)};
}

static void pack_free(struct pack *p)
{
    free(p->tokens);
    free(p->labels);
    free(p->lengths);
}

static void pack_add(struct pack *p, const struct train_sample *x)
{
    memcpy(p->tokens + p->used, x->tokens, x->n * sizeof *x->tokens);
    memcpy(p->labels + p->used, x->labels, x->n * sizeof *x->labels);
    p->lengths[p->n++] = x->n;
    p->used += x->n;
}

/* Every sequence begins at position 0 and sees only itself, so a pack gives the loss of its sequences one by one. */
static segue_status pack_run(struct job *j, struct pack *p, bool loss_only, segue_train_result *sum, segue_error *err)
{
    const segue_train_batch batch = {.size = sizeof batch,
                                     .tokens = p->tokens,
                                     .labels = p->labels,
                                     .lengths = p->lengths,
                                     .sequences_n = p->n,
                                     .loss_only = loss_only};
    segue_train_result r = {.size = sizeof r};
    segue_status st = p->n ? segue_trainer_run(j->trainer, &batch, &r, err) : SEGUE_OK;
    sum->loss += r.loss, sum->labelled += r.labelled, sum->tokens += r.tokens;
    sum->dispatches += r.dispatches, sum->compiles += r.compiles, sum->simulated_ns += r.simulated_ns;
    sum->device_ns += r.device_ns, sum->overlap_ns += r.overlap_ns, sum->weight_bytes += r.weight_bytes;
    sum->overflows += r.overflows, sum->underflows += r.underflows;
    p->n = p->used = 0;
    return st;
}

/* Tokens that are computed together: at least one sequence. */
static size_t micro_batch(const struct job *j)
{
    double context = args_number(j->args, "context", CONTEXT);
    return (size_t)fmax(context, args_number(j->args, "micro-batch", 0));
}

/* The samples in micro-batches of at most that; with --no-pack, each by itself. */
static segue_status run_samples(struct job *j, const struct train_sample *(*at)(const struct job *j, size_t i), size_t n,
                                bool loss_only, segue_train_result *sum, segue_error *err)
{
    size_t capacity = micro_batch(j);
    struct pack p;
    segue_status st = SEGUE_OK;
    *sum = (segue_train_result){.size = sizeof *sum};
    pack_begin(&p, capacity);
    for (size_t i = 0; i < n && !st; i++) {
        const struct train_sample *x = at(j, i);
        if (p.n && (p.used + x->n > capacity || args_has(j->args, "no-pack"))) st = pack_run(j, &p, loss_only, sum, err);
        if (!st) pack_add(&p, x);
    }
    if (!st) st = pack_run(j, &p, loss_only, sum, err);
    pack_free(&p);
    return st;
}

static const struct train_sample *held_out_at(const struct job *j, size_t i) { return &j->samples.items[i]; }

static const struct train_sample *step_at(const struct job *j, size_t i)
{
    return samples_at(&j->samples, j->seed, j->step * j->batch + i);
}

/* Mean loss per labelled token of the held-out sequences. */
static segue_status evaluate(struct job *j, double *loss, segue_error *err)
{
    segue_train_result sum;
    segue_status st = run_samples(j, held_out_at, j->samples.held_out, true, &sum, err);
    *loss = sum.labelled ? sum.loss / (double)sum.labelled : NAN;
    return st;
}

/* One step of `batch` sequences. */
static segue_status train_step(struct job *j, struct train_step *out, segue_error *err)
{
    segue_train_result sum;
    uint64_t start = out_now_ns();
    segue_status st = run_samples(j, step_at, j->batch, false, &sum, err);
    const segue_adamw adamw = {.size = sizeof adamw,
                               .learning_rate = rate_of(j, j->step),
                               .weight_decay = args_number(j->args, "weight-decay", 0),
                               .clip_norm = args_number(j->args, "clip", 1)};
    segue_update_result u = {.size = sizeof u};
    if (!st) st = segue_trainer_update(j->trainer, &adamw, &u, err);
    if (st) return st;
    j->loss = sum.loss / (double)sum.labelled;
    *out = (struct train_step){.step = ++j->step, .loss = j->loss, .rate = adamw.learning_rate, .norm = u.gradient_norm,
                               .held_out = NAN, .ms = (double)(out_now_ns() - start) / 1e6, .tokens = sum.tokens,
                               .device = sum};
    return SEGUE_OK;
}

static segue_status keep(struct job *j, segue_error *err)
{
    segue_status st = checkpoint_write(j->out, j->trainer, j->run, err);
    return st || j->full ? st : adapter_write(j->out, j->trainer, j->placement.path, j->form, err);
}

/* All weights are large: they are written when the run ends, also by ^C. */
static segue_status keep_model(struct job *j, segue_error *err)
{
    return j->full ? model_write(j->out, j->trainer, j->placement.path, &j->result, err) : SEGUE_OK;
}

static segue_status train(struct job *j, segue_error *err)
{
    struct progress progress;
    uint64_t every = (uint64_t)args_number(j->args, "checkpoint", 50), kept = j->step;
    segue_status st = evaluate(j, &j->first, err);
    j->last = j->first;
    progress_begin(&progress, "train: steps", args_has(j->args, "json"));
    while (j->step < j->steps && !st && !interrupt_pending()) {
        struct train_step step;
        progress_step(&progress, j->step, j->steps, false);
        st = train_step(j, &step, err);
        bool due = j->step % every == 0 || j->step == j->steps || interrupt_pending();
        if (!st && due) st = evaluate(j, &step.held_out, err);
        if (!st && due) st = keep(j, err);
        if (st) break;
        if (due) j->last = step.held_out, kept = j->step;
        train_log_add(&j->log, &step);
        progress_detail(&progress, "loss %.4f, %.0f tokens/s", step.loss, (double)step.tokens / step.ms * 1e3);
    }
    progress_end(&progress);
    if (st == SEGUE_EFORMAT) {
        segue_error why = *err;
        return out_fail(err, st, "train: step %llu: %s; the checkpoint of step %llu is kept in %.200s",
                        (unsigned long long)j->step + 1, why.text, (unsigned long long)kept, j->out);
    }
    if (!st) st = keep_model(j, err);
    if (!st) st = train_log_page(&j->log, j->out, err);
    if (!st && j->step < j->steps)
        st = out_fail(err, SEGUE_ECANCELED, "train: interrupted after step %llu, which is kept; repeat the command to go on",
                      (unsigned long long)j->step);
    return st;
}

/* --- before and after --- */

/* FNV-1a of what must be equal for a run to be continued, twice with other starts. */
static void identify(struct job *j)
{
    static const char *const settings[] = {"rank", "alpha", "targets", "context", "micro-batch", "batch",  "lr",
                                           "warmup", "steps", "epochs", "seed", "held-out", "weight-decay", "clip"};
    static const char *const switches[] = {"full", "random", "no-pack"};
    uint64_t hash[2] = {14695981039346656037u, 0x9ae16a3b2f90404fu};
    struct out_text text = {0};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const char *value = args_text(j->args, settings[i]);
        out_addf(&text, "%s=%s;", settings[i], value ? value : "");
    }
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (args_has(j->args, switches[i])) out_addf(&text, "%s;", switches[i]);
    char id[33] = "";
    segue_error err;
    if (!segue_model_weights_id(j->placement.model, NULL, id, &err)) out_addf(&text, "%s", id);
    for (size_t i = 0; i < j->samples.n; i++)
        out_add(&text, (const char *)j->samples.items[i].tokens, 2 * j->samples.items[i].n * sizeof(int32_t));
    for (size_t i = 0; i < text.len; i++)
        for (int k = 0; k < 2; k++) hash[k] = (hash[k] ^ (unsigned char)text.data[i]) * 1099511628211u;
    snprintf(j->run, sizeof j->run, "%016llx%016llx", (unsigned long long)hash[0], (unsigned long long)hash[1]);
    free(text.data);
}

/* The unit, and beside one that does not train alone the one that computes the rest. */
static segue_status open_units(struct job *j, segue_error *err)
{
    unsigned threads = (unsigned)args_number(j->args, "threads", 0);
    const char *host = args_text(j->args, "host-unit");
    segue_unit_info info = SEGUE_INIT(segue_unit_info);
    segue_status st = placement_open_unit(&j->unit, args_text(j->args, "unit"), threads, err);
    if (!st) st = segue_unit_info_get(j->unit, &info, err);
    if (st || !strcmp(info.kind, "cpu") || !strcmp(info.kind, "ref")) return st;
    return placement_open_unit(&j->host, host ? host : "cpu", threads, err);
}

static segue_status open_trainer(struct job *j, segue_error *err)
{
    segue_status st = open_units(j, err);
    const segue_trainer_opts o = {.size = sizeof o,
                                  .kind = j->full ? SEGUE_TRAIN_FULL : SEGUE_TRAIN_LORA,
                                  .lora_rank = (uint32_t)args_number(j->args, "rank", 8),
                                  .lora_alpha = (float)args_number(j->args, "alpha", 0),
                                  .lora_targets = args_text(j->args, "targets"),
                                  .seed = j->seed,
                                  .sequence_tokens = (size_t)args_number(j->args, "context", CONTEXT),
                                  .batch_tokens = micro_batch(j),
                                  .recompute = args_has(j->args, "recompute"),
                                  .host = j->host};
    if (!st) st = segue_trainer_open(&j->trainer, j->placement.model, j->unit, &o, err);
    return st || !args_has(j->args, "random") ? st : segue_trainer_randomize(j->trainer, j->seed, 0, err);
}

/* Data, unit, trainer and an earlier checkpoint. */
static segue_status prepare(struct job *j, segue_error *err)
{
    size_t context = (size_t)args_number(j->args, "context", CONTEXT);
    j->seed = (uint64_t)args_number(j->args, "seed", 0);
    j->batch = (size_t)args_number(j->args, "batch", 4);
    segue_status st = samples_read(&j->samples, &j->placement, args_text(j->args, "data"), context,
                                   args_number(j->args, "held-out", 5) / 100, j->seed, err);
    if (st) return st;
    uint64_t all = j->samples.n - j->samples.held_out, epochs = (uint64_t)args_number(j->args, "epochs", 1);
    j->steps = (uint64_t)args_number(j->args, "steps", (double)((all * epochs + j->batch - 1) / j->batch));
    identify(j);
    if (!j->full) st = adapter_form_of(args_text(j->args, "adapter-form"), j->placement.path, &j->form, err);
    if (!st) st = open_trainer(j, err);
    if (!st) st = checkpoint_read(j->out, j->trainer, j->run, err);
    if (st && st != SEGUE_END) return st;
    segue_trainer_info info = {.size = sizeof info};
    st = segue_trainer_info_get(j->trainer, &info, err);
    j->step = info.steps;
    j->log.json = args_has(j->args, "json");
    j->log.html = args_text(j->args, "html");
    j->log.device = j->host != NULL;
    return st ? st : train_log_open(&j->log, args_text(j->args, "metrics"), j->step > 0, err);
}

static int report(const struct job *j)
{
    segue_trainer_info info = {.size = sizeof info};
    segue_error err;
    double seconds = (double)(out_now_ns() - j->log.start_ns) / 1e9;
    if (segue_trainer_info_get(j->trainer, &info, &err)) return out_error(&err, EXIT_UNAVAILABLE);
    if (args_has(j->args, "json")) {
        json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "path",
                              j->full ? j->result : j->out, "steps", (json_int_t)j->step,
                              "sequences", (json_int_t)j->samples.n, "held_out", (json_int_t)j->samples.held_out, "cut",
                              (json_int_t)j->samples.cut, "skipped", (json_int_t)j->samples.skipped, "numbers",
                              (json_int_t)info.numbers, "tokens_per_second", out_real((double)j->log.tokens / seconds), "loss",
                              out_real(j->loss));
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
static segue_status check_flags(const struct job *j, segue_error *err)
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
    return SEGUE_OK;
}

static int run(struct args *args)
{
    struct job j = {.args = args, .full = args_has(args, "full"), .out = args_text(args, "output"), .first = NAN, .last = NAN};
    segue_error err;
    if (check_flags(&j, &err)) return out_error(&err, EXIT_UNAVAILABLE);
    int code = placement_open_model(&j.placement, args);
    if (code) return code;
    interrupt_defer(true);
    segue_status st = j.full ? model_can_write(j.placement.path, &err) : SEGUE_OK;
    if (!st) st = prepare(&j, &err);
    if (!st) st = train(&j, &err);
    code = st ? out_error(&err, EXIT_UNAVAILABLE) : report(&j);
    train_log_close(&j.log);
    segue_trainer_close(j.trainer);
    segue_unit_close(j.unit);
    segue_unit_close(j.host);
    samples_free(&j.samples);
    free(j.result);
    placement_close(&j.placement);
    return code;
}

static const struct arg_def flag_defs[] = {
    {"output", 'o', ARG_FOLDER, 0, "FOLDER", NULL, 0, 0, "folder of the adapter or model and of the checkpoint"},
    {"full", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "train all weights instead of an adapter and write a model"},
    {"random", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "with --full: begin with random weights of the model's shape"},
    {"data", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "text, or .jsonl with \"text\", \"messages\" or \"tokens\" in each line"},
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
    {"metrics", 0, ARG_FILE, 0, "FILE.csv", NULL, 0, 0, "write loss, rate and norm of every update"},
    {"html", 0, ARG_FILE, 0, "FILE.html", NULL, 0, 0, "write a page with charts of the run"},
    {"recompute", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0, "less memory: compute layers again in the backward pass"},
    {"no-pack", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0, "compute every sequence by itself instead of several at once"},
    {"unit", 0, ARG_UNIT, 0, "SPEC", "the fastest", 0, 0, "unit that computes: cpu, ref, ane, cuda:0"},
    {"host-unit", 0, ARG_UNIT, ARG_ADVANCED, "SPEC", "cpu", 0, 0, "unit beside ane: all but the products with weights"},
    {"threads", 't', ARG_COUNT, 0, "N", "all cores", 1, 1024, "threads of the unit cpu"},
    ARG_END};
static const struct arg_group command_flags = {"Training", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_model, &flags_output, NULL};
const struct command cmd_train = {
    .name = "train", .summary = "train a LoRA adapter or all weights", .groups = groups,
    .example = "segue train -m model.gguf --data chats.jsonl -o adapter", .run = run,
    .about = "Trains a LoRA adapter of a model of any family and storage, also a quantised one, and writes it in the form "
             "of PEFT, which --lora of run, chat and serve reads. With --full all weights are trained, in fp32 with 16 "
             "bytes of memory each, and the result is a model in the form of the one that was given: model.gguf, or a "
             "Hugging Face folder. Of conversations only what the assistant says is trained. Every --checkpoint updates, "
             "at the end and on ^C the adapter and a checkpoint are written; the same command continues from the "
             "checkpoint with the same bits as a run that was not interrupted."};
