/* published_options.c: placements of a chip that was not measured: the published pipelines, see options.h.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/planner/options.h"
#include "engine/planner/optionparts.h"
#include "engine/planner/chips/published.h"

static const struct published_option {
    enum sg_pipeline pipeline;
    const char *name, *prefill, *decode;
    double factor; /* of the interval */
} published[] = {
    {SG_PIPE_GPU, "gpu", "gpu", "gpu", 1.15},
    {SG_PIPE_FIXED, "fixed", "npu", "gpu", 1.4},
    {SG_PIPE_NPU_SEQ, "npu-seq", "npu", "npu", 1.3},
    {SG_PIPE_SEQ_GPU, "npu-seq+gpu", "npu", "gpu", 1.3},
    {SG_PIPE_NPU_BATCH, "npu-batch", "npu", "npu", 1.3},
    {SG_PIPE_BATCH_GPU, "npu-batch+gpu", "npu", "gpu", 1.3},
};

/* NPU power is known of two phases of one chip only: 5.6 and 7.0 W beside a GPU at 0.2 W (README of the measurements). */
#define NPU_PREFILL_W 5.57
#define NPU_STEP_W 7.05

static void published_energy(struct sg_option *o, const struct published_option *p, const struct sg_published_cost *c,
                             double total_ms, double decode_ms, double factor)
{
    double step = p->decode[0] == 'g' ? c->step_gpu_w + c->cpu_w : NPU_STEP_W, prefill_ms = total_ms - decode_ms;
    double prefill = p->prefill[0] == 'g' ? c->prefill_gpu_w + c->cpu_w : NPU_PREFILL_W;
    double joules = (prefill * prefill_ms + step * decode_ms) * 1e-3;
    o->joules = sg_option_figure(joules, factor * 1.15);
    o->watts = sg_option_figure(total_ms > 0 ? joules / total_ms * 1e3 : 0, 1.15 * factor);
}

/* Prompts and contexts of the published runs end here. */
enum { PUBLISHED_TOKENS = 512 };

static struct sg_published_task task_of(const struct sg_plan_source *s, const struct sg_model_cost *m, enum sg_pipeline pipeline,
                                        double prompt, double output)
{
    return (struct sg_published_task){.shared = s->chips->shared,
                                      .chip = s->chip,
                                      .shape = &m->shape,
                                      .bytes = (m->body_bytes + m->head_bytes) / (m->shape.body + m->shape.head),
                                      .unpacked = m->class == SG_CLASS_SUPER,
                                      .pipeline = pipeline,
                                      .prompt = prompt,
                                      .output = output};
}

/* Adds what the publications' short runs do not show: attention of prefill, and the context of steps. segue converts the state to
 * the decoder's type, so that a hand-off does not slow decode down as it did in P5. depth: before the prompt. */
static void add_context(struct sg_published_cost *c, const struct sg_plan_source *s, const struct published_option *p,
                        const struct sg_model_cost *m, const struct sg_plan_task *t, double depth)
{
    struct sg_published_task prefill = task_of(s, m, SG_PIPE_GPU, t->prompt, t->output), step = prefill;
    struct sg_published_cost gpu, deep;
    step.prompt = depth + t->prompt + t->output / 2;
    sg_published_cost(&prefill, &gpu);
    sg_published_cost(&step, &deep);
    double tflops = p->prefill[0] == 'g' ? s->chip->spec[SG_SPEC_GPU_TFLOPS] * s->chip->constant[SG_CHIP_MATMUL]
                                         : s->chips->shared[SG_COREML_TFLOPS];
    /* That of fixed lengths is in their times. */
    double attended = p->pipeline == SG_PIPE_FIXED ? depth : depth + t->prompt / 2;
    c->prefill_ms += m->attend * t->prompt * attended / tflops * 1e-9;
    if (p->decode[0] == 'g')
        c->step_ms = deep.step_ms;
    else
        c->step_ms += 2 * m->shape.kv * step.prompt / s->chip->constant[SG_CHIP_NPU_STREAM] * 1e-6;
    c->step_gpu_w = deep.step_gpu_w, c->cpu_w = gpu.cpu_w, c->prefill_gpu_w = gpu.prefill_gpu_w;
}

/* Weights on an NPU are fp16, beside those of the GPU. */
static void add_memory(struct sg_option *o, const struct sg_plan_source *s, const struct published_option *p,
                       const struct sg_model_cost *m, const struct sg_plan_task *t)
{
    double memory = s->chip->spec[SG_SPEC_MEMORY_GB] * 1e9;
    sg_option_memory(o, m, t);
    o->prefill_bytes = p->prefill[0] == 'n' ? 2 * (m->shape.body + m->shape.head) : m->file_bytes;
    o->decode_bytes = o->alone ? 0 : m->file_bytes;
    if (p->prefill[0] == 'n') o->disk_bytes += o->prefill_bytes;
    if (memory > 0 && o->prefill_bytes + o->decode_bytes + o->kv_bytes + o->checkpoint_bytes > memory)
        o->excluded = SG_DOES_NOT_FIT;
}

/* Turns have the costs of their mean context. Several sessions take turns: these frameworks ran one. */
static void add_published(struct sg_options *out, const struct sg_plan_source *s, const struct published_option *p,
                          const struct sg_model_cost *m, const struct sg_plan_task *t)
{
    struct sg_option *o = &out->list[out->n++];
    struct sg_published_cost c;
    struct sg_published_task task = task_of(s, m, p->pipeline, t->prompt, t->output);
    double depth = t->depth + (t->turns - 1) / 2 * (t->prompt + t->output), many = t->turns * t->sessions;
    *o = (struct sg_option){.pipeline = p->name, .joules = {-1, -1, -1}, .watts = {-1, -1, -1}, .joules_least = -1,
                            .alone = !strcmp(p->prefill, p->decode)};
    snprintf(o->prefill, sizeof o->prefill, "%s", p->prefill);
    snprintf(o->decode, sizeof o->decode, "%s", p->decode);
    o->excluded = sg_published_cost(&task, &c);
    o->unverified = sg_chip_unverified(s->chip) || t->sessions > 1 || depth + t->prompt > PUBLISHED_TOKENS;
    if (o->excluded) {
        o->ttft_ms = o->token_ms = o->handoff_ms = o->load_ms = o->total_ms = o->joules;
        return;
    }
    add_context(&c, s, p, m, t, depth);
    double factor = o->unverified                                                                    ? SG_UNVERIFIED
                    : s->chip->source[SG_CHIP_NPU_STREAM] < SG_SOURCE_FITTED && p->prefill[0] == 'n' ? 1.7
                                                                                                     : p->factor;
    double decode = c.step_ms * fmax(0, t->output - 1) * many, first = c.prefill_ms + c.handoff_ms;
    o->ttft_ms = sg_option_figure(first, factor);
    o->token_ms = sg_option_figure(c.step_ms * t->sessions, factor);
    o->handoff_ms = sg_option_figure(c.handoff_ms, factor);
    o->load_ms = sg_option_figure(c.load_ms, factor);
    o->total_ms = sg_option_figure(first * many + decode, factor);
    sg_option_term(o, "prefill", c.prefill_ms * many);
    sg_option_term(o, "hand-off", c.handoff_ms * many);
    sg_option_term(o, "decode", decode);
    add_memory(o, s, p, m, t);
    /* Core ML chose its unit itself, and its power was read over minutes of compilation only. */
    if (p->pipeline != SG_PIPE_FIXED) published_energy(o, p, &c, o->total_ms.mid, decode, factor);
}

void sg_options_published(struct sg_options *out, const struct sg_plan_source *s, const struct sg_model_cost *m,
                          const struct sg_plan_task *t)
{
    for (size_t i = 0; i < sizeof published / sizeof *published && out->n < SG_OPTIONS_MAX; i++)
        add_published(out, s, &published[i], m, t);
}
