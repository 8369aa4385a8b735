/* train_job.c: see train_job.h. SPDX-License-Identifier: MIT */
#include "train/train_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/model_write.h"
#include "train/train_files.h"

enum { SAMPLE_TOKENS = 64, SAMPLE_EVERY = 50 };

size_t job_context(const struct train_job *j) { return (size_t)args_number(j->args, "context", TRAIN_CONTEXT); }

size_t job_micro_batch(const struct train_job *j)
{
    size_t tokens = (size_t)args_number(j->args, "micro-batch", 0);
    return tokens > job_context(j) ? tokens : job_context(j);
}

double job_rate(const struct train_job *j, uint64_t step)
{
    double peak = args_number(j->args, "lr", 2e-4);
    uint64_t warm = (uint64_t)args_number(j->args, "warmup", (double)(j->steps / 20));
    if (step < warm) return peak * (double)(step + 1) / (double)warm;
    double done = j->steps > warm ? (double)(step - warm) / (double)(j->steps - warm) : 1;
    return peak * (0.55 + 0.45 * cos(3.14159265358979323846 * done));
}

static void add_settings(struct out_text *text, const struct args *args, const char *const *names)
{
    for (; *names; names++) {
        const char *value = args_text(args, *names);
        out_addf(text, "%s=%s;", *names, value ? value : "");
    }
}

/* FNV-1a of what must be equal for a run to be continued, twice with other starts. */
void job_identify(struct train_job *j)
{
    static const char *const settings[] = {"rank", "alpha", "targets", "context", "micro-batch", "batch", "lr",
                                           "warmup", "steps", "epochs", "seed", "held-out", "weight-decay", "clip", NULL};
    static const char *const of_grpo[] = {"reward", "group", "answer-tokens", "clip-ratio", "kl", "passes", NULL};
    static const char *const switches[] = {"full", "random", "no-pack", "grpo"};
    uint64_t hash[2] = {14695981039346656037u, 0x9ae16a3b2f90404fu};
    struct out_text text = {0};
    add_settings(&text, j->args, settings);
    if (j->grpo) add_settings(&text, j->args, of_grpo);
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (args_has(j->args, switches[i])) out_addf(&text, "%s;", switches[i]);
    char id[33] = "";
    segue_error err;
    if (!segue_model_weights_id(j->placement.model, NULL, id, &err)) out_addf(&text, "%s", id);
    for (size_t i = 0; i < j->samples.n; i++)
        out_add(&text, (const char *)j->samples.items[i].tokens, 2 * j->samples.items[i].n * sizeof(int32_t));
    for (size_t i = 0; i < j->prompts.n; i++) {
        const struct train_prompt *x = &j->prompts.items[i];
        out_addf(&text, "prompt=%zu;", x->n);
        out_add(&text, (const char *)x->tokens, x->n * sizeof(int32_t));
        if (x->expected) out_addf(&text, "answer=%zu:%s;", strlen(x->expected), x->expected);
    }
    /* With two units answers come from weights of one step before. */
    if (j->grpo) out_addf(&text, "two=%d;", args_has(j->args, "rollout-unit"));
    for (size_t i = 0; i < text.len; i++)
        for (int k = 0; k < 2; k++) hash[k] = (hash[k] ^ (unsigned char)text.data[i]) * 1099511628211u;
    snprintf(j->run, sizeof j->run, "%016llx%016llx", (unsigned long long)hash[0], (unsigned long long)hash[1]);
    free(text.data);
}

int job_open_model(struct train_job *j)
{
    const char *shape = args_text(j->args, "shape");
    segue_error err;
    char *path = NULL;
    int code = placement_open_model(&j->placement, j->args);
    if (code || !shape) return code;
    segue_status st = shape_write(j->out, shape, j->placement.path, j->placement.info.vocab, &path, &err);
    j->shaped = args_copy(j->args);
    if (!st) st = args_set(&j->shaped, "model", path, &err);
    free(path);
    placement_close(&j->placement);
    code = st ? out_error(&err, EXIT_UNAVAILABLE) : placement_open_model(&j->placement, &j->shaped);
    if (code) args_free(&j->shaped);
    return code;
}

/* The unit, and beside one that does not train alone the one that computes the rest. */
static segue_status open_units(struct train_job *j, segue_error *err)
{
    unsigned threads = (unsigned)args_number(j->args, "threads", 0);
    const char *host = args_text(j->args, "host-unit");
    segue_unit_info info = SEGUE_INIT(segue_unit_info);
    segue_status st = placement_open_unit(&j->unit, args_text(j->args, "unit"), threads, err);
    if (!st) st = segue_unit_info_get(j->unit, &info, err);
    if (st || !strcmp(info.kind, "cpu") || !strcmp(info.kind, "ref")) return st;
    return placement_open_unit(&j->host, host ? host : "cpu", threads, err);
}

segue_status job_open(struct train_job *j, segue_error *err)
{
    segue_status st = open_units(j, err);
    const segue_trainer_opts o = {.size = sizeof o,
                                  .kind = j->full ? SEGUE_TRAIN_FULL : SEGUE_TRAIN_LORA,
                                  .lora_rank = (uint32_t)args_number(j->args, "rank", 8),
                                  .lora_alpha = (float)args_number(j->args, "alpha", 0),
                                  .lora_targets = args_text(j->args, "targets"),
                                  .seed = j->seed,
                                  .sequence_tokens = job_context(j),
                                  .batch_tokens = job_micro_batch(j),
                                  .recompute = args_has(j->args, "recompute"),
                                  .host = j->host};
    if (!st) st = segue_trainer_open(&j->trainer, j->placement.model, j->unit, &o, err);
    return st || !args_has(j->args, "random") ? st : segue_trainer_randomize(j->trainer, j->seed, 0, err);
}

static segue_status open_sampler(const struct train_job *j, struct sampler_engine *e, segue_model *model, segue_error *err)
{
    return sampler_engine_open(e, model, j->placement.info.has_tokenizer, j->host ? j->host : j->unit,
                               j->shown.items[0].n + SAMPLE_TOKENS, 1, err);
}

segue_status job_open_extras(struct train_job *j, segue_error *err)
{
    const char *text = args_text(j->args, "sample"), *meter = args_text(j->args, "meter");
    segue_unit *units[2] = {j->unit, j->host};
    segue_status st = SEGUE_OK;
    if (meter && strcmp(meter, "none"))
        st = unit_meter_open(&j->meter, units, j->host ? 2 : 1, strcmp(meter, "all") ? meter : NULL, err);
    if (st || !text) return st;
    st = prompts_add_text(&j->shown, &j->placement, text, err);
    return st || j->full ? st : open_sampler(j, &j->sampler, j->placement.model, err);
}

static bool roof_is_shown(const struct train_job *j)
{
    return args_has(j->args, "json") || args_has(j->args, "metrics") || isatty(STDERR_FILENO);
}

void job_roof(struct train_job *j)
{
    if (roof_is_shown(j)) (void)segue_trainer_roof(j->trainer, &j->log.roof, &j->log.roof_error);
}

/* The model as it is now, from the folder. */
static segue_status sample_model(struct train_job *j, char **text, segue_error *err)
{
    struct sampler_engine sampler = {0};
    segue_model *model = NULL;
    free(j->result);
    j->result = NULL;
    segue_status st = model_write(j->out, j->trainer, j->placement.path, &j->result, err);
    if (!st) st = segue_model_open(&model, j->result, NULL, err);
    if (!st) st = open_sampler(j, &sampler, model, err);
    if (!st) st = rollouts_show(&sampler, &j->shown.items[0], NULL, j->seed, SAMPLE_TOKENS, text, err);
    sampler_engine_close(&sampler);
    segue_model_close(model);
    return st;
}

segue_status job_sample(struct train_job *j, char **text, segue_error *err)
{
    *text = NULL;
    if (!j->shown.n || j->step % (uint64_t)args_number(j->args, "sample-every", SAMPLE_EVERY)) return SEGUE_OK;
    if (j->full) return sample_model(j, text, err);
    return rollouts_show(&j->sampler, &j->shown.items[0], j->trainer, j->seed, SAMPLE_TOKENS, text, err);
}

segue_status job_keep(struct train_job *j, segue_error *err)
{
    j->keeping = true;
    segue_status st = checkpoint_write(j->out, j->trainer, j->run, err);
    if (!st && !j->full) st = adapter_write(j->out, j->trainer, j->placement.path, j->form, err);
    j->keeping = st != SEGUE_OK;
    return st;
}

/* --- the trace --- */

enum { TRACE_EVENTS = 1 << 18 };     /* later ones are dropped */

static void add_event(struct train_job *j, const char *name, uint64_t begin_ns, uint64_t end_ns, int row)
{
    if (j->events++ < TRACE_EVENTS) trace_add(&j->trace, name, begin_ns, end_ns, row, (size_t)j->step + 1);
}

void job_trace_pass(struct train_job *j, uint64_t begin_ns)
{
    static const char *const names[] = {"product", "input gradient", "weight gradients"};
    segue_train_interval x = {.size = sizeof x};
    segue_error ignored;
    if (!j->trace.path) return;
    if (!j->host) add_event(j, "micro-batch", begin_ns, out_now_ns(), 0);
    for (size_t i = 0; j->host && segue_trainer_interval_get(j->trainer, i, &x, &ignored) == SEGUE_OK; i++) {
        char name[48];
        snprintf(name, sizeof name, "%s of layer %d", names[x.work % 3], (int)x.layer);
        add_event(j, name, x.begin_ns, x.end_ns, x.work == SEGUE_TRAIN_WEIGHT_GRADIENT);
    }
}

void job_trace_update(struct train_job *j, uint64_t begin_ns)
{
    if (j->trace.path) add_event(j, "update", begin_ns, out_now_ns(), j->host != NULL);
}

segue_status job_trace_end(struct train_job *j, segue_error *err)
{
    segue_unit *units[2] = {j->unit, j->host};
    struct placement rows = {.units_n = j->host ? 2 : 1};
    segue_status st = SEGUE_OK;
    if (!j->trace.path) return SEGUE_OK;
    for (size_t i = 0; i < rows.units_n && !st; i++) {
        rows.unit_info[i] = SEGUE_INIT(segue_unit_info);
        st = segue_unit_info_get(units[i], &rows.unit_info[i], err);
    }
    return st ? st : trace_end(&j->trace, &rows, err);
}

void job_sum(segue_train_result *sum, const segue_train_result *r)
{
    sum->loss += r->loss, sum->labelled += r->labelled, sum->tokens += r->tokens;
    sum->dispatches += r->dispatches, sum->compiles += r->compiles, sum->simulated_ns += r->simulated_ns;
    sum->device_ns += r->device_ns, sum->overlap_ns += r->overlap_ns, sum->weight_bytes += r->weight_bytes;
    sum->overflows += r->overflows, sum->underflows += r->underflows;
    sum->clipped += r->clipped, sum->kl += r->kl;
}
