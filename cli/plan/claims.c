/* claims.c: see claims.h. What the cost model computes is written beside each claim; what it cannot compute is unknown.
 * SPDX-License-Identifier: MIT */
#include "plan/claims.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "engine/planner/chips/published.h"

/* Power readings of phases of one machine, package without memory: GPU prefill and NPU prefill; and the GPU's rail alone in
 * both. */
#define GPU_PREFILL_W 64.4
#define NPU_PREFILL_W 5.57
#define GPU_RAIL_W 62.055
#define GPU_RAIL_IDLE_W 0.22
/* Sustained TFLOPS of fp16 convolutions on an NPU of that generation, and its share in a language model's shapes. */
#define NPU_TFLOPS 10.0
#define NPU_SHARE 0.35

static struct sg_published_cost cost(const struct sg_chips *chips, const char *chip, const char *model, const char *precision,
                                     enum sg_pipeline pipeline, double prompt, double output)
{
    struct sg_published_cost c = {0};
    struct sg_published_task t = {.shared = chips->shared,
                                  .chip = sg_chip_find(chips, chip),
                                  .shape = sg_shape_find(model),
                                  .pipeline = pipeline,
                                  .prompt = prompt,
                                  .output = output};
    t.bytes = sg_storage_bytes(precision, &t.unpacked);
    t.widened = !strcmp(precision, "fp16");
    if (t.chip && t.shape) sg_published_cost(&t, &c);
    return c;
}

static void add(json_t *list, const char *claim, const char *published, const char *verdict, char *predicted, const char *reason)
{
    json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:s,s:s}", "claim", claim, "published", published, "predicted", predicted,
                                          "verdict", verdict, "reason", reason));
    free(predicted);
}

/* The prompt length of at most 512 tokens from which fixed-length prefill is faster than the GPU; 0: none. */
static double fixed_crossover(const struct sg_chips *chips, const char *chip)
{
    for (double n = 8; n <= 512; n++)
        if (cost(chips, chip, "qwen3.5-0.8b", "fp16", SG_PIPE_FIXED, n, 100).prefill_ms <
            cost(chips, chip, "qwen3.5-0.8b", "fp16", SG_PIPE_GPU, n, 100).prefill_ms)
            return n;
    return 0;
}

static void add_crossovers(json_t *list, const struct sg_chips *chips)
{
    static const struct {
        const char *chip, *claim, *published;
    } others[] = {{"m1-max", "NPU prefill overtakes the GPU on M1 Max", "200 tokens (estimate)"},
                  {"m1", "the same on M1", "50 tokens (estimate)"},
                  {"a17-pro", "the same on A17 Pro", "40 tokens (estimate)"}};
    double npu = cost(chips, "m2-ultra", "qwen3.5-0.8b", "fp16", SG_PIPE_FIXED, 410, 200).prefill_ms;
    double gpu = cost(chips, "m2-ultra", "qwen3.5-0.8b", "fp16", SG_PIPE_GPU, 410, 200).prefill_ms;
    double at = fixed_crossover(chips, "m2-ultra");
    add(list, "NPU prefill overtakes the GPU on M2 Ultra", "410 tokens, 99 against 96 ms", at > 0 ? "holds" : "refuted",
        out_printf("no crossover up to 512 tokens; at 410: %.0f ms against %.0f ms", npu, gpu),
        "the published run had fallen back to the GPU; the genuine one took 892 ms");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        at = fixed_crossover(chips, others[i].chip);
        add(list, others[i].claim, others[i].published, "unknown",
            at > 0 ? out_printf("from %.0f tokens, if Core ML is as slow as on M2 Ultra", at)
                   : out_printf("none up to 512 tokens"),
            "scaled from the claim above, never measured; no run of either pipeline on this chip");
    }
}

static void add_handoff(json_t *list, const struct sg_chips *chips)
{
    struct sg_published_cost after = cost(chips, "m2-ultra", "qwen3.5-2b", "bf16", SG_PIPE_BATCH_GPU, 74, 20);
    struct sg_published_cost alone = cost(chips, "m2-ultra", "qwen3.5-2b", "bf16", SG_PIPE_GPU_COLD, 74, 20);
    struct sg_published_cost small = cost(chips, "m2-ultra", "qwen3.5-0.8b", "fp16", SG_PIPE_GPU, 74, 100);
    double ratio = after.step_ms / alone.step_ms, first = after.handoff_ms + small.step_ms;
    add(list, "a hand-off is free for the decoder", "no loss of decode speed", ratio < 1.02 ? "holds" : "refuted",
        out_printf("decode takes %.1f times as long (2B, %.1f against %.1f ms a token)", ratio, after.step_ms, alone.step_ms),
        "the state stays fp32, so that a 16-bit decoder widens its weights in every step; converted once, the loss is 0");
    add(list, "27 ms to the first token from the second turn", "27 ms", first > 27 * 1.1 ? "refuted" : "holds",
        out_printf("%.0f ms hand-off + %.0f ms first step = %.0f ms, if reading hides the whole prefill", after.handoff_ms,
                   small.step_ms, first),
        "the figure is the hand-off alone, computed and not measured, and leaves out the first decode step");
}

static void add_start(json_t *list, const struct sg_chips *chips)
{
    struct sg_published_cost npu = cost(chips, "m2-ultra", "qwen3.5-0.8b", "fp16", SG_PIPE_NPU_BATCH, 13, 20);
    struct sg_published_cost cold = cost(chips, "m2-ultra", "qwen3.5-0.8b", "fp16", SG_PIPE_GPU_COLD, 13, 20);
    struct sg_published_cost warm = cost(chips, "m2-ultra", "qwen3.5-0.8b", "bf16", SG_PIPE_GPU, 13, 20);
    struct sg_published_cost both = cost(chips, "m2-ultra", "qwen3.5-0.8b", "fp16", SG_PIPE_BATCH_GPU, 74, 20);
    struct sg_published_cost one = cost(chips, "m2-ultra", "qwen3.5-0.8b", "fp16", SG_PIPE_GPU_COLD, 74, 20);
    double total = both.load_ms + both.prefill_ms + both.handoff_ms + 20 * both.step_ms;
    double alone = one.load_ms + one.prefill_ms + 20 * one.step_ms;
    add(list, "the NPU reads 13 tokens faster than the GPU", "149 against 138 tok/s",
        npu.prefill_ms < cold.prefill_ms ? "holds" : "refuted",
        out_printf("%.0f against %.0f ms in a new process; a warm GPU with bf16 activations needs %.0f ms", npu.prefill_ms,
                   cold.prefill_ms, warm.prefill_ms),
        "only against a GPU process that has just started, with fp32 activations, and without the hand-off");
    add(list, "NPU prefill with GPU decode is slower end to end than the GPU alone", "6,335 against 3,846 ms",
        total > alone ? "holds" : "refuted", out_printf("%.0f against %.0f ms for 74 + 20 tokens", total, alone),
        "two frameworks start and load, and the first step on the GPU is cold");
}

static void add_power(json_t *list, const struct sg_chips *chips)
{
    double gpu = cost(chips, "m2-ultra", "qwen3.5-0.8b", "fp16", SG_PIPE_GPU, 225, 100).prefill_ms;
    double npu = cost(chips, "m2-ultra", "qwen3.5-0.8b", "fp16", SG_PIPE_NPU_BATCH, 225, 100).prefill_ms;
    double seq = cost(chips, "m2-ultra", "qwen3.5-0.8b", "fp16", SG_PIPE_NPU_SEQ, 225, 100).prefill_ms;
    add(list, "282 times less power", "62.05 W against 0.22 W", "refuted",
        out_printf("rail %.0f times; package %.1f times; joules for 225 tokens: GPU %.1f, NPU in batches %.1f, one by one %.1f",
                   GPU_RAIL_W / GPU_RAIL_IDLE_W, GPU_PREFILL_W / NPU_PREFILL_W, gpu * GPU_PREFILL_W * 1e-3,
                   npu * NPU_PREFILL_W * 1e-3, seq * NPU_PREFILL_W * 1e-3),
        "one idle rail is compared with a busy one; energy is package power times time");
}

/* A second unit beside the GPU can add at most its own speed. */
static void add_shares(json_t *list, const struct sg_chips *chips)
{
    double m3 = 16.4 * sg_chip_find(chips, "m2-ultra")->constant[SG_CHIP_MATMUL] * chips->shared[SG_LLAMA_MATMUL];
    double bound = 100 * NPU_TFLOPS * NPU_SHARE / m3;
    double m4 = sg_chip_find(chips, "m4-max")->spec[SG_SPEC_GB_S] * .75;
    add(list, "oMLX: a share of the NPU in GPU prefill, M3 Max", "+21.8 %", bound >= 21.8 ? "holds" : "refuted",
        out_printf("at most +%.0f %%: NPU %.1f TFLOPS beside a GPU at %.1f", bound, NPU_TFLOPS * NPU_SHARE, m3),
        "the gain lies below the bound of two units that do not disturb each other; no constant of this chip is measured");
    add(list, "oMLX: the same on M5", "-33 % and -14 %", "unknown", out_printf("no figure"),
        "the GPU has matrix units of its own there, whose speed no source states");
    add(list, "oMLX: the same on M5 Max", "+1.7, -11 and -7.5 %", "unknown", out_printf("no figure"), "as above");
    add(list, "M5 Pro: 128 tokens in 12.5 ms on the NPU against 9.3 ms on the GPU", "12.5 and 9.3 ms", "unknown",
        out_printf("a share of at most %.0f %% of the rows could go to the NPU", 100 * 9.3 / (9.3 + 12.5)),
        "no chip file: this chip was not measured; by the ratio alone a fixed share of half is slower");
    add(list, "an NPU draft of 91 tok/s costs GPU decode 3.2 %", "3.2 %", "unknown",
        out_printf("3.2 %% of %.0f GB/s are %.0f MB a draft token", m4, .032 * m4 / 91 * 1e3),
        "a draft that reads no more memory than that costs as little; the size of the draft is not published");
}

json_t *claims_json(const struct sg_chips *chips)
{
    json_t *list = json_array();
    add_crossovers(list, chips);
    add_handoff(list, chips);
    add_power(list, chips);
    add_start(list, chips);
    add(list, "1.08 ms a token, 4.7 times Core ML (M3 Max)", "926 against 196 tok/s", "refuted",
        out_printf("its own transformer of that shape: 6.56 against 6.58 ms, %.2f times", 6.582 / 6.559),
        "the fast model is a recurrent one without attention and without its head; with the same shape both are equal");
    add(list, "weights patched on disk take effect at reload", "494 instead of 4,200 ms", "unknown",
        out_printf("no cost decides it"), "another project wrote new weights, reloaded, and got unchanged outputs");
    add(list, "the bridge between units is verified", "equal states", "unknown", out_printf("no cost decides it"),
        "tests decide it: tests/check, level handoff");
    add_shares(list, chips);
    return list;
}

void claims_text(struct out_text *t, const json_t *claims)
{
    size_t i;
    json_t *c;
    json_array_foreach((json_t *)(uintptr_t)claims, i, c)
        out_addf(t, "%-8s %s\n         published: %s\n         predicted: %s\n         %s\n",
                 json_string_value(json_object_get(c, "verdict")), json_string_value(json_object_get(c, "claim")),
                 json_string_value(json_object_get(c, "published")), json_string_value(json_object_get(c, "predicted")),
                 json_string_value(json_object_get(c, "reason")));
}
