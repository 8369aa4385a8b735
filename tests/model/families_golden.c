/* families_golden.c: every family under every naming convention against what transformers computes, and for
 * each trap of published implementations the proof that these goldens catch it: the mistake is made on
 * purpose and must be seen. The goldens are made by tests/golden/make_tiny.py; SEGUE_TINY_SET names a folder
 * with larger ones.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "model/family.h"
#include "model/tiny.h"

/* Bounds of F32 on tiny models, from transformers' own spread. */
#define BOUND_MAX 1e-3
#define BOUND_MEAN 5e-5
/* Units may round activations to the 8 bits of quantised weights. That moves random models of this size far,
 * and random delta rules chaotically, so only the mean and the best tokens are bounded. */
#define ROUNDED_TOP 0.85
#define ROUNDED_MEAN 0.07

static const struct {
    const char *model, *golden;
} cases[] = {
    {"gpt2", "gpt2/golden"},      /* Hugging Face, matrices [in, out] */
    {"gpt2_bare", "gpt2/golden"}, /* names without prefix, old mask buffers */
    {"gpt2_mlx", "gpt2/golden"},  /* matrices turned, prefix model. */
    {"gpt2/model.gguf", "gpt2/golden"},
    {"gpt2/model-q8_0.gguf", "gpt2/model-q8_0.golden"}, /* a head of its own although tied */
    {"llama", "llama/golden"},
    {"llama/model.gguf", "llama/golden"}, /* permuted q and k */
    {"llama/model-q8_0.gguf", "llama/model-q8_0.golden"},
    {"llama_mlx4", "llama_mlx4/golden"}, /* 4 bits, one module 8, one not quantised */
    {"llama_mha", "llama_mha/golden"},
    {"llama_mha/model.gguf", "llama_mha/golden"},
    {"llama_mha/legacy.bin", "llama_mha/golden"}, /* llama2.c: neighbouring pairs */
    {"llama_mha/v1.bin", "llama_mha/golden"},
    {"llama_bias", "llama_bias/golden"},
    {"llama_bias/model.gguf", "llama_bias/golden"}, /* permuted biases */
    {"llama3", "llama3/golden"},
    {"llama3/model.gguf", "llama3/golden"}, /* divisors instead of a scaling */
    {"llama_linear", "llama_linear/golden"},
    {"llama_linear/model.gguf", "llama_linear/golden"},
    {"llama_yarn", "llama_yarn/golden"},
    {"llama_yarn/model.gguf", "llama_yarn/golden"},
    {"llama_yarn_mscale", "llama_yarn_mscale/golden"},
    {"mistral", "mistral/golden"},
    {"mistral/model.gguf", "mistral/golden"},
    {"qwen2", "qwen2/golden"},
    {"qwen2/model.gguf", "qwen2/golden"},
    {"qwen3", "qwen3/golden"},
    {"qwen3/model.gguf", "qwen3/golden"},
    {"qwen3_5", "qwen3_5/golden"}, /* wrapper names, image and prediction tensors beside */
    {"qwen3_5/model-q8_0.gguf", "qwen3_5/model-q8_0.golden"},
    {"qwen3_5_mlx4", "qwen3_5_mlx4/golden"},
    {"qwen3_5_asym", "qwen3_5_asym/golden"},
    {"qwen3_5_asym/model.gguf", "qwen3_5_asym/golden"}, /* tiled heads, -exp(A), norms as w */
    {"qwen3_5_asym_mlx", "qwen3_5_asym/golden"},        /* norms as w, convolution [C,4,1] */
    {"gemma3", "gemma3/golden"},
    {"gemma3_wrapped", "gemma3/golden"},
    {"gemma3/model.gguf", "gemma3/golden"},
    {"gemma3/model-switches.gguf", "gemma3/golden"}, /* sliding or not, said for each layer */
};

static segue_status run(const char *model, const char *golden, const struct tiny_wish *wish,
                        struct tiny_error *e, segue_error *err)
{
    char model_path[512], golden_path[512];
    snprintf(model_path, sizeof model_path, "%s/%s", tiny_folder(), model);
    snprintf(golden_path, sizeof golden_path, "%s/%s.safetensors", tiny_folder(), golden);
    return tiny_compare(model_path, golden_path, wish, e, err);
}

static void equals_transformers(void **state)
{
    (void)state;
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tiny_wish wish = {0};
        struct tiny_error e;
        segue_error err = {0};
        segue_status s = run(cases[i].model, cases[i].golden, &wish, &e, &err);
        int bad = s != SEGUE_OK || e.max > BOUND_MAX || e.mean > BOUND_MEAN || !e.greedy_equal;
        failed += bad;
        printf("%-26s max %.1e mean %.1e greedy %s %s%s\n", cases[i].model, e.max, e.mean,
               e.greedy_equal ? "equal" : "DIFFERS", bad ? "FAILED " : "",
               s == SEGUE_OK ? bad ? e.where : "" : err.text);
    }
    assert_int_equal(failed, 0);
}

/* The units of this build that can be opened here and compute in more than fp16 (tests/check holds those), besides ref. */
#define SG_UNIT(name) extern const struct sg_unit_ops sg_unit_##name;
#include "unit_list.h"
#undef SG_UNIT
#define SG_UNIT(name) &sg_unit_##name,
static const struct sg_unit_ops *const units[] = {
#include "unit_list.h"
    NULL};
#undef SG_UNIT

static int can_open(const struct sg_unit_ops *ops)
{
    struct sg_unit_spec spec = {0};
    struct sg_unit *unit = NULL;
    struct sg_unit_desc d = {0};
    snprintf(spec.kind, sizeof spec.kind, "%s", ops->kind);
    snprintf(spec.text, sizeof spec.text, "%s", ops->kind);
    if (ops->open(&unit, &spec, NULL) != SEGUE_OK) return 0;
    ops->describe(unit, &d);
    ops->close(unit);
    return !d.half;
}

static void equals_on_every_unit(void **state)
{
    (void)state;
    int failed = 0;
    for (size_t u = 0; units[u]; u++) {
        if (units[u] == &sg_unit_ref || !can_open(units[u])) continue;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct tiny_wish wish = {.unit = units[u]};
            struct tiny_error e;
            segue_error err = {0};
            int rounded = strstr(cases[i].model, "q8_0") || strstr(cases[i].model, "mlx4");
            segue_status s = run(cases[i].model, cases[i].golden, &wish, &e, &err);
            int bad = rounded ? e.top < ROUNDED_TOP || e.mean > ROUNDED_MEAN
                              : e.max > BOUND_MAX || e.mean > BOUND_MEAN || !e.greedy_equal;
            bad |= s != SEGUE_OK;
            failed += bad;
            printf("%s %-26s max %.1e mean %.1e %s%s\n", units[u]->kind, cases[i].model, e.max, e.mean,
                   bad ? "FAILED " : "", s == SEGUE_OK ? bad ? e.where : "" : err.text);
        }
    }
    assert_int_equal(failed, 0);
}

/* The same over shares of the graph: two ranks, each with half of the heads and columns. States are read as one. What has no
 * even number of heads, or of whole blocks, is refused by name. */
static void equals_on_two_ranks(void **state)
{
    (void)state;
    int failed = 0, dealt = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tiny_wish wish = {.spec = "ref:ranks=2,threads=1"};
        struct tiny_error e;
        segue_error err = {0};
        segue_status s = run(cases[i].model, cases[i].golden, &wish, &e, &err);
        int refused = s == SEGUE_EUNSUPPORTED && strstr(err.text, "split graph over 2 ranks") != NULL;
        int bad = !refused && (s != SEGUE_OK || e.max > BOUND_MAX || e.mean > BOUND_MEAN || !e.greedy_equal);
        failed += bad;
        dealt += s == SEGUE_OK;
        printf("2 ranks %-26s max %.1e mean %.1e %s%s\n", cases[i].model, e.max, e.mean, bad ? "FAILED " : "",
               s == SEGUE_OK ? bad ? e.where : "" : err.text);
    }
    assert_int_equal(failed, 0);
    assert_true(dealt > 0);
    static const struct {
        const char *spec, *model, *golden, *why;
    } refused[] = {{"ref:ranks=4,threads=1", "llama", "llama/golden", "heads are not divisible by 4"},
                   {"ref:ranks=3,threads=1", "gpt2", "gpt2/golden", "are not divisible by 3"}};
    for (size_t i = 0; i < 2; i++) {
        struct tiny_wish wish = {.spec = refused[i].spec};
        struct tiny_error e;
        segue_error err = {0};
        assert_int_equal(run(refused[i].model, refused[i].golden, &wish, &e, &err), SEGUE_EUNSUPPORTED);
        if (!strstr(err.text, refused[i].why)) fail_msg("%s", err.text);
    }
    struct tiny_wish four = {.spec = "ref:ranks=4,threads=1"};
    struct tiny_error e;
    segue_error err = {0};
    if (run("llama_mha", "llama_mha/golden", &four, &e, &err) != SEGUE_OK) fail_msg("%s", err.text);
    assert_true(e.max <= BOUND_MAX && e.greedy_equal);
}

static void chunks_change_nothing(void **state)
{
    (void)state;
    static const char *const models[] = {"llama", "gemma3", "qwen3_5_asym"};
    for (size_t i = 0; i < 3; i++) {
        struct tiny_wish wish = {.chunk = 7};
        struct tiny_error e;
        char golden[64];
        segue_error err = {0};
        snprintf(golden, sizeof golden, "%s/golden", models[i]);
        if (run(models[i], golden, &wish, &e, &err) != SEGUE_OK) fail_msg("%s: %s", models[i], err.text);
        if (e.max > BOUND_MAX || !e.greedy_equal) fail_msg("%s: %s", models[i], e.where);
    }
}

/* --- deliberate mistakes --- */

static struct sg_tensor changed[64]; /* stand in for tensors of a mutated graph */
static size_t changed_n;

/* Every tensor whose name holds `part`, through `change`. */
static void change_tensors(struct sg_graph *g, const char *part, void (*change)(struct sg_tensor *t))
{
    size_t before = changed_n;
    for (uint32_t i = 0; i < g->tensors_n; i++) {
        if (!strstr(g->tensors[i]->name, part)) continue;
        assert_true(changed_n < sizeof changed / sizeof *changed);
        changed[changed_n] = *g->tensors[i];
        change(&changed[changed_n]);
        g->tensors[i] = &changed[changed_n++];
    }
    assert_true(changed_n > before);
}

static void drop_perms(struct sg_tensor *t) { t->row_perm = t->col_perm = (struct sg_perm){0}; }

/* Rotating permuted rows by halves is rotating neighbours. */
static void pair_neighbours(struct sg_tensor *t) { t->row_perm = (struct sg_perm){.a = 2, .b = 4, .w = 1}; }

static void interleaved(struct sg_graph *g)
{
    change_tensors(g, "q_proj.weight", pair_neighbours);
    change_tensors(g, "k_proj.weight", pair_neighbours);
}

static void rotate_all(struct sg_graph *g)
{
    static float inverse[64];
    for (uint32_t i = 0; i < g->ropes_n; i++) {
        g->ropes[i].pairs = g->ops[0].code == SG_OP_EMBED ? 8 : 0;
        for (uint32_t j = 0; j < 8; j++) inverse[j] = g->ropes[i].inverse[0] / (float)(1 + j);
        g->ropes[i].inverse = inverse;
    }
}

static void forget_plus_one(struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_NORM) g->ops[i].u.norm.plus_one = 0;
}

static void add_one_too_often(struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_NORM) g->ops[i].u.norm.plus_one = 1;
}

static void untiled_value_heads(struct sg_graph *g) { change_tensors(g, "ssm_out.weight", drop_perms); }
static void halves_of_gate(struct sg_graph *g) { change_tensors(g, "q_proj.weight", drop_perms); }
static void unpermuted_gguf(struct sg_graph *g) { change_tensors(g, "attn_q.weight", drop_perms); }
static void unpermuted_bias(struct sg_graph *g) { change_tensors(g, "attn_k.bias", drop_perms); }

static void turn_conv1d(struct sg_tensor *t)
{
    if (t->rows == t->cols) t->transposed = 0;
}
static void untransposed(struct sg_graph *g) { change_tensors(g, "attn.c_proj.weight", turn_conv1d); }

static void wrong_decay(struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_DELTA) g->ops[i].u.delta.decay_is_log ^= 1;
}

static void no_window(struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_ATTEND) g->ops[i].u.attend.window = 0;
    for (uint32_t i = 0; i < g->slots_n; i++) g->slots[i].window = 0;
}

static void one_more_of_window(struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_ATTEND && g->ops[i].u.attend.window) g->ops[i].u.attend.window++;
    for (uint32_t i = 0; i < g->slots_n; i++)
        if (g->slots[i].window) g->slots[i].window++;
}

static void no_embedding_scale(struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_EMBED) g->ops[i].u.embed.scale = 1;
}

static void unscaled_rope(struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->ropes_n; i++) g->ropes[i].mscale = 1;
}

/* Trap by trap: who made the mistake is in docs/FAMILIES.md. */
static const struct {
    const char *trap, *model, *golden;
    void (*mutate)(struct sg_graph *g);
} traps[] = {
    {"2: neighbouring pairs", "llama", "llama/golden", interleaved},
    {"2: all columns rotated", "qwen3_5", "qwen3_5/golden", rotate_all},
    {"9: norms without 1+w", "qwen3_5", "qwen3_5/golden", forget_plus_one},
    {"9: norms without 1+w", "gemma3", "gemma3/golden", forget_plus_one},
    {"9: 1+w twice", "qwen3_5_asym_mlx", "qwen3_5_asym/golden", add_one_too_often},
    {"10: tiled heads", "qwen3_5_asym/model.gguf", "qwen3_5_asym/golden", untiled_value_heads},
    {"10: -exp(A) taken as A_log", "qwen3_5_asym/model.gguf", "qwen3_5_asym/golden", wrong_decay},
    {"query and gate as halves", "qwen3_5", "qwen3_5/golden", halves_of_gate},
    {"GGUF rows not permuted", "llama/model.gguf", "llama/golden", unpermuted_gguf},
    {"GGUF biases not permuted", "llama_bias/model.gguf", "llama_bias/golden", unpermuted_bias},
    {"Conv1D not turned", "gpt2", "gpt2/golden", untransposed},
    {"window forgotten", "gemma3", "gemma3/golden", no_window},
    {"window one too long", "mistral", "mistral/golden", one_more_of_window},
    {"embedding not scaled", "gemma3", "gemma3/golden", no_embedding_scale},
    {"yarn without its factor", "llama_yarn", "llama_yarn/golden", unscaled_rope},
};

static void mistakes_are_seen(void **state)
{
    (void)state;
    int unseen = 0;
    for (size_t i = 0; i < sizeof traps / sizeof *traps; i++) {
        struct tiny_wish wish = {.mutate = traps[i].mutate};
        struct tiny_error e;
        segue_error err = {0};
        changed_n = 0;
        if (run(traps[i].model, traps[i].golden, &wish, &e, &err) != SEGUE_OK)
            fail_msg("%s: %s", traps[i].trap, err.text);
        printf("%-28s %-24s first seen in %s\n", traps[i].trap, traps[i].model, e.where);
        unseen += e.max <= 10 * BOUND_MAX;
    }
    assert_int_equal(unseen, 0);
}

/* Traps 1, 8 and 2 as they were published: whole wrong models, whose logits the golden file holds. */
static void published_mistakes_are_seen(void **state)
{
    (void)state;
    static const char *const names[] = {"mistake.decay", "mistake.pairs"};
    char path[512];
    snprintf(path, sizeof path, "%s/qwen3_5_asym/golden.safetensors", tiny_folder());
    struct sg_archive *a = NULL;
    assert_int_equal(sg_archive_open(&a, path, NULL), SEGUE_OK);
    const struct sg_tensor *right = sg_archive_find(a, "logits");
    for (size_t i = 0; i < 2; i++) {
        const struct sg_tensor *wrong = sg_archive_find(a, names[i]);
        double max = 0;
        assert_non_null(wrong);
        for (uint64_t k = 0; k < right->rows * right->cols; k++) {
            double d = fabs((double)sg_f32_of_bits(sg_le32(wrong->data + 4 * k)) -
                            (double)sg_f32_of_bits(sg_le32(right->data + 4 * k)));
            if (d > max) max = d;
        }
        printf("%-28s differs by %.2g\n", names[i], max);
        assert_true(max > 10 * BOUND_MAX);
    }
    sg_archive_close(a);
}

/* Trap 3: padding on the left without a mask moves every position. */
static void padding_is_seen(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3_5", "llama"};
    for (size_t i = 0; i < 2; i++) {
        struct tiny_wish wish = {.pad = 4};
        struct tiny_error e;
        char golden[64];
        segue_error err = {0};
        snprintf(golden, sizeof golden, "%s/golden", models[i]);
        if (run(models[i], golden, &wish, &e, &err) != SEGUE_OK) fail_msg("%s: %s", models[i], err.text);
        assert_true(e.max > 10 * BOUND_MAX);
    }
}

/* --- adapters --- */

static void adapter_on(const struct sg_unit_ops *unit, const char *spec, const char *name, const char *base_name,
                       const char *kind)
{
    char base[512], adapter[512], golden[512];
    struct segue_model *m = NULL;
    struct segue_adapter *a = NULL;
    struct tiny_error e;
    segue_error err = {0};
    snprintf(base, sizeof base, "%s/%s", tiny_folder(), base_name);
    snprintf(adapter, sizeof adapter, "%s/lora/%s/%s", tiny_folder(), name, kind);
    snprintf(golden, sizeof golden, "%s/lora/%s/golden.safetensors", tiny_folder(), name);
    if (sg_model_open(&m, base, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
    if (sg_adapter_open(&a, m, adapter, 1, &err) != SEGUE_OK) fail_msg("%s", err.text);
    struct tiny_wish wish = {.model = m, .lora = &a->lora, .unit = unit, .spec = spec};
    if (tiny_compare(NULL, golden, &wish, &e, &err) != SEGUE_OK)
        fail_msg("%s on %s: %s", kind, base_name, err.text);
    printf("%s %-14s on %-24s max %.1e mean %.1e\n", spec ? spec : unit->kind, kind, base_name, e.max, e.mean);
    assert_true(e.max <= BOUND_MAX && e.mean <= BOUND_MEAN && e.greedy_equal);
    sg_adapter_unref(a);
    sg_model_unref(m);
}

/* Every layout of adapter on every layout of model, on every unit and dealt to two ranks, equals the merged weights in
 * transformers. */
static void adapters_equal_merged_weights(void **state)
{
    (void)state;
    static const char *const bases[] = {"llama", "llama/model.gguf", "qwen3_5_asym",
                                        "qwen3_5_asym/model.gguf", "qwen3_5_asym_mlx"};
    static const char *const kinds[] = {"peft", "mlx", "adapter.gguf"};
    for (size_t u = 0; units[u]; u++)
        for (size_t i = 0; can_open(units[u]) && i < sizeof bases / sizeof *bases; i++)
            for (size_t k = 0; k < 3; k++)
                adapter_on(units[u], NULL, i < 2 ? "llama" : "qwen3_5_asym", bases[i], kinds[k]);
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        for (size_t k = 0; k < 3; k++)
            adapter_on(&sg_unit_ref, "ref:ranks=2,threads=1", i < 2 ? "llama" : "qwen3_5_asym", bases[i], kinds[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_transformers),           cmocka_unit_test(equals_on_every_unit),
        cmocka_unit_test(equals_on_two_ranks),
        cmocka_unit_test(chunks_change_nothing),         cmocka_unit_test(mistakes_are_seen),
        cmocka_unit_test(published_mistakes_are_seen),   cmocka_unit_test(padding_is_seen),
        cmocka_unit_test(adapters_equal_merged_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
