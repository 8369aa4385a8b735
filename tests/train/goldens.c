/* goldens.c: loss, every gradient and ten steps of AdamW against torch autograd (tests/golden/make_train.py), for the tiny
 * checkpoint of every family, of all weights and of a LoRA adapter against peft; the same bits with recomputation and with
 * another number of threads; micro-batches add up. SEGUE_TEST_TRAIN_UNIT: one unit that is tested instead, such as cuda:0;
 * SEGUE_TEST_TRAIN_FAMILY: one family.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "segue_train.h"

static const char *unit_at(int i)
{
    static const char *const units[] = {"ref", "cpu:threads=1", "cpu:threads=2"};
    const char *other = getenv("SEGUE_TEST_TRAIN_UNIT");
    return other ? other : units[i];
}

/* With one unit: without and with recomputation. */
static int units_n(void) { return getenv("SEGUE_TEST_TRAIN_UNIT") ? 2 : 3; }

struct training {
    segue_model *model;
    segue_unit *unit;
    segue_trainer *trainer;
    int32_t tokens[64];
    size_t lengths[2];
};

static void opened_as(struct training *f, const char *family, const char *unit, uint32_t recompute, int adapter)
{
    segue_error err = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/tiny/%s", SEGUE_SOURCE_DIR, family);
    segue_trainer_opts o = SEGUE_INIT(segue_trainer_opts);
    o.sequence_tokens = 23, o.batch_tokens = 37, o.recompute = recompute;
    if (adapter) o.kind = SEGUE_TRAIN_LORA, o.lora_rank = 4, o.lora_alpha = 8;
    if (segue_model_open(&f->model, path, NULL, &err) || segue_unit_open(&f->unit, unit, &err) ||
        segue_trainer_open(&f->trainer, f->model, f->unit, &o, &err))
        fail_msg("%s on %s: %s", family, unit, err.text);
    segue_trainer_info info = SEGUE_INIT(segue_trainer_info);
    assert_int_equal(segue_trainer_info_get(f->trainer, &info, NULL), SEGUE_OK);
    uint64_t state = 7;
    f->lengths[0] = 23, f->lengths[1] = 14;
    for (int i = 0; i < 37; i++) {
        state = (state * 1103515245 + 12345) % (1u << 31);
        f->tokens[i] = (int32_t)((state >> 8) % info.vocab);
    }
}

static void opened(struct training *f, const char *family, const char *unit, uint32_t recompute)
{
    opened_as(f, family, unit, recompute, 0);
}

static void closed(struct training *f)
{
    segue_trainer_close(f->trainer);
    segue_unit_close(f->unit);
    segue_model_close(f->model);
}

static segue_train_result run(struct training *f, size_t first, size_t n)
{
    segue_error err = {0};
    segue_train_batch b = SEGUE_INIT(segue_train_batch);
    segue_train_result r = SEGUE_INIT(segue_train_result);
    b.tokens = f->tokens + (first ? f->lengths[0] : 0);
    b.lengths = f->lengths + first;
    b.sequences_n = n;
    if (segue_trainer_run(f->trainer, &b, &r, &err)) fail_msg("%s", err.text);
    return r;
}

static const char *const endings[] = {"", ".lora_A", ".lora_B"};

static float *gradient(const struct training *f, size_t i, size_t *n, char name[256])
{
    segue_param_info info = SEGUE_INIT(segue_param_info);
    assert_int_equal(segue_trainer_param_info(f->trainer, i, &info, NULL), SEGUE_OK);
    *n = info.rows * info.cols;
    snprintf(name, 256, "%s%s", info.hf_name, endings[info.part]);
    float *g = malloc(*n * sizeof *g);
    assert_int_equal(segue_trainer_param_get(f->trainer, i, SEGUE_PARAM_GRADIENT, SEGUE_ORDER_HF, g, *n, NULL), SEGUE_OK);
    return g;
}

/* "model.language_model.X" is "model.X" where torch loaded the text model alone. */
static int same_name(const char *hf, const char *name)
{
    if (!strncmp(hf, "model.language_model.", 21)) return !strncmp(name, "model.", 6) && !strcmp(hf + 21, name + 6);
    return !strcmp(hf, name);
}

/* Relative to the norm of the parameter's gradient. */
static int check_grad(const struct training *f, const char *family, const char *name, double norm, const double v[3])
{
    segue_trainer_info info = SEGUE_INIT(segue_trainer_info);
    segue_trainer_info_get(f->trainer, &info, NULL);
    for (size_t i = 0; i < info.params_n; i++) {
        size_t n;
        char hf[256];
        float *g = gradient(f, i, &n, hf);
        double squares = 0, worst = 0;
        int same = same_name(hf, name);
        for (size_t k = 0; k < n; k++) squares += (double)g[k] * g[k];
        for (size_t k = 0; k < 3; k++) worst = fmax(worst, fabs((double)g[n * k / 3] - v[k]));
        free(g);
        if (!same) continue;
        double scale = fmax(norm, 1e-3);
        if (fabs(sqrt(squares) - norm) < 2e-4 * scale && worst < 2e-4 * scale) return 1;
        print_error("%s: %s: norm %g, torch %g; worst value off by %g\n", family, name, sqrt(squares), norm, worst);
        return 0;
    }
    print_error("%s: no parameter %s\n", family, name);
    return 0;
}

static int check_step(struct training *f, const char *family, int step, double loss, double norm)
{
    segue_adamw o = SEGUE_INIT(segue_adamw);
    segue_update_result u = SEGUE_INIT(segue_update_result);
    segue_error err = {0};
    o.learning_rate = 1e-3, o.weight_decay = 0.1, o.clip_norm = 1;
    if (step == 0) segue_trainer_drop_gradients(f->trainer);
    segue_train_result r = run(f, 0, 2);
    if (segue_trainer_update(f->trainer, &o, &u, &err)) fail_msg("%s", err.text);
    double ours = r.loss / (double)r.labelled;
    /* AdamW divides by gradients near 0, so rounding grows from step to step. */
    if (fabs(ours - loss) < 3e-4 * loss && fabs(u.gradient_norm - norm) < 1e-2 * norm && u.step == (uint64_t)step + 1) return 1;
    print_error("%s: step %d: loss %.7g, torch %.7g; norm %.7g, torch %.7g\n", family, step, ours, loss, u.gradient_norm, norm);
    return 0;
}

/* A and B as make_train.py sets them. The files are in Hugging Face's order already. */
static void set_adapter(struct training *f)
{
    segue_trainer_info all = SEGUE_INIT(segue_trainer_info);
    segue_trainer_info_get(f->trainer, &all, NULL);
    for (size_t i = 0; i < all.params_n; i++) {
        segue_param_info info = SEGUE_INIT(segue_param_info);
        char name[256];
        uint64_t s = 1;
        segue_trainer_param_info(f->trainer, i, &info, NULL);
        snprintf(name, sizeof name, "%s%s", info.hf_name, endings[info.part]);
        const char *at = strstr(name, "layers.");
        if (!at) at = strstr(name, "h.");
        assert_non_null(at);
        for (; *at; at++) s = (s * 31 + (unsigned char)*at) % (1u << 31);
        size_t n = info.rows * info.cols;
        float *x = malloc(n * sizeof *x);
        for (size_t k = 0; k < n; k++) {
            s = (s * 1103515245 + 12345) % (1u << 31);
            x[k] = (float)((int)((s >> 8) % 1024) - 512) / 4096;
        }
        assert_int_equal(segue_trainer_param_put(f->trainer, i, SEGUE_PARAM_VALUE, SEGUE_ORDER_FILE, x, n, NULL), SEGUE_OK);
        free(x);
    }
}

static size_t params_of(const struct training *f)
{
    segue_trainer_info info = SEGUE_INIT(segue_trainer_info);
    assert_int_equal(segue_trainer_info_get(f->trainer, &info, NULL), SEGUE_OK);
    return info.params_n;
}

static int check_family(const char *family, const char *unit, uint32_t recompute, int adapter)
{
    char path[512], line[512], name[256];
    struct training f;
    double a, b, v[3];
    int step, good = 1;
    size_t lines = 0, grads = 0;
    snprintf(path, sizeof path, "%s/tests/golden/train/%s%s.txt", SEGUE_SOURCE_DIR, adapter ? "lora_" : "", family);
    FILE *golden = fopen(path, "r");
    assert_non_null(golden);
    opened_as(&f, family, unit, recompute, adapter);
    if (adapter) set_adapter(&f);
    segue_train_result r = run(&f, 0, 2);
    for (; fgets(line, sizeof line, golden); lines++) {
        if (sscanf(line, "loss %lf %lf", &a, &b) == 2) {
            if (fabs(r.loss - a) > 1e-5 * a || r.labelled != (uint64_t)b) print_error("%s: loss %.8g, torch %.8g\n", family,
                    r.loss, a), good = 0;
        } else if (sscanf(line, "grad %255s %lf %lf %lf %lf", name, &a, v, v + 1, v + 2) == 5)
            good &= check_grad(&f, family, name, a, v), grads++;
        else if (sscanf(line, "step %d %lf %lf", &step, &a, &b) == 3)
            good &= check_step(&f, family, step, a, b);
    }
    fclose(golden);
    good &= !adapter || grads == params_of(&f);
    closed(&f);
    return good && lines == grads + 11;
}

static const char *const families[] = {"gpt2", "llama", "llama3", "llama_bias", "mistral", "qwen2", "qwen3", "gemma3", "qwen3_5",
                                       "qwen3_5_asym"};
enum { FAMILIES = sizeof families / sizeof *families };

static int is_wanted(const char *family)
{
    const char *one = getenv("SEGUE_TEST_TRAIN_FAMILY");
    return !one || !strcmp(one, family);
}

static void torch_agrees(void **state)
{
    (void)state;
    int good = 1;
    for (int u = 0; u < units_n(); u++)
        for (int i = 0; i < FAMILIES; i++) good &= !is_wanted(families[i]) || check_family(families[i], unit_at(u), u == 1, 0);
    assert_true(good);
}

static void peft_agrees(void **state)
{
    (void)state;
    int good = 1;
    for (int u = 0; u < units_n(); u++)
        for (int i = 0; i < FAMILIES; i++) good &= !is_wanted(families[i]) || check_family(families[i], unit_at(u), u == 1, 1);
    assert_true(good);
}

/* --- policies --- */

enum { ROWS = 37 };

/* The numbers of make_train.py's policy_loss, around the log-probabilities of the model. */
struct policy { float logprobs[ROWS], advantages[ROWS], weights[ROWS], old[ROWS], reference[ROWS]; };

static segue_train_policy policy_of(struct policy *y)
{
    segue_train_policy out = SEGUE_INIT(segue_train_policy);
    for (int i = 0; i < ROWS; i++) {
        y->advantages[i] = (float)((i * 7) % 11 - 5) / 5;
        y->weights[i] = (float)(1 + i % 3) / 64;
        y->old[i] = y->logprobs[i] + (float)(i % 5 - 2) * 0.15f;
        y->reference[i] = y->logprobs[i] + (float)(i % 7 - 3) * 0.2f;
    }
    out.advantages = y->advantages, out.weights = y->weights, out.old_logprobs = y->old, out.ref_logprobs = y->reference;
    out.clip = 0.2f, out.kl = 0.3f;
    return out;
}

static segue_train_result run_policy(struct training *f, struct policy *y)
{
    segue_error err = {0};
    segue_train_batch b = SEGUE_INIT(segue_train_batch);
    segue_train_result r = SEGUE_INIT(segue_train_result);
    b.tokens = f->tokens, b.lengths = f->lengths, b.sequences_n = 2;
    b.loss_only = 1, b.logprobs = y->logprobs;
    if (segue_trainer_run(f->trainer, &b, &r, &err)) fail_msg("%s", err.text);
    double sum = 0;
    for (int i = 0; i < ROWS; i++) sum -= (double)y->logprobs[i];
    assert_true(fabs(sum - r.loss) < 1e-5 * r.loss && y->logprobs[22] == 0 && y->logprobs[36] == 0);
    segue_train_policy policy = policy_of(y);
    b.loss_only = 0, b.logprobs = NULL, b.policy = &policy;
    if (segue_trainer_run(f->trainer, &b, &r, &err)) fail_msg("%s", err.text);
    return r;
}

static void policy_agrees(void **state)
{
    (void)state;
    char path[512], line[512], name[256];
    int good = 1;
    for (int u = 0; u < units_n(); u++)
        for (int i = 0; i < FAMILIES; i++) {
            struct training f;
            struct policy y;
            double a, b, v[3];
            size_t grads = 0;
            if (!is_wanted(families[i])) continue;
            snprintf(path, sizeof path, "%s/tests/golden/train/policy_%s.txt", SEGUE_SOURCE_DIR, families[i]);
            FILE *golden = fopen(path, "r");
            assert_non_null(golden);
            opened(&f, families[i], unit_at(u), 0);
            segue_train_result r = run_policy(&f, &y);
            assert_true(r.clipped > 0 && r.clipped < r.labelled && r.kl > 0);
            while (fgets(line, sizeof line, golden)) {
                if (sscanf(line, "loss %lf %lf", &a, &b) == 2)
                    good &= fabs(r.loss - a) < 1e-5 * fabs(a) && r.labelled == (uint64_t)b;
                else if (sscanf(line, "grad %255s %lf %lf %lf %lf", name, &a, v, v + 1, v + 2) == 5)
                    good &= check_grad(&f, families[i], name, a, v), grads++;
            }
            fclose(golden);
            closed(&f);
            good &= grads > 0;
        }
    assert_true(good);
}

/* The adapter of a trainer in a session gives the log-probabilities of the trainer, and `base` those of the model alone. */
static void score(const struct training *f, segue_adapter *adapter, float out[23])
{
    segue_error err = {0};
    segue_engine *engine;
    segue_session *session = NULL;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    o.adapters = &adapter, o.adapters_n = adapter != NULL;
    if (segue_engine_open(&engine, f->model, &f->unit, 1, NULL, &err) || segue_session_open(&session, engine, &o, &err) ||
        segue_session_score(session, f->tokens, 23, out, NULL, &err))
        fail_msg("%s", err.text);
    segue_session_close(session);
    segue_engine_close(engine);
}

static void adapter_in_a_session(void **state)
{
    (void)state;
    for (int i = 0; i < FAMILIES && !getenv("SEGUE_TEST_TRAIN_UNIT"); i++) {
        struct training f;
        segue_error err = {0};
        segue_adapter *adapter;
        float session[23], trainer[2][23], plain[23];
        double change = 0;
        opened_as(&f, families[i], "ref", 0, 1);
        set_adapter(&f);
        segue_train_batch b = SEGUE_INIT(segue_train_batch);
        segue_train_result r = SEGUE_INIT(segue_train_result);
        b.tokens = f.tokens, b.lengths = f.lengths, b.sequences_n = 1, b.loss_only = 1;
        for (int k = 0; k < 2; k++) {
            b.base = (uint32_t)k, b.logprobs = trainer[k];
            if (segue_trainer_run(f.trainer, &b, &r, &err)) fail_msg("%s", err.text);
        }
        if (segue_trainer_adapter(&adapter, f.trainer, 1, &err)) fail_msg("%s", err.text);
        score(&f, adapter, session);
        score(&f, NULL, plain);
        segue_adapter_close(adapter);
        for (int t = 0; t < 22; t++) {
            assert_true(fabsf(session[t + 1] - trainer[0][t]) < 2e-4f && fabsf(plain[t + 1] - trainer[1][t]) < 2e-4f);
            change = fmax(change, fabs((double)(session[t + 1] - plain[t + 1])));
        }
        assert_true(change > 1e-2);
        closed(&f);
    }
}

static void policy_is_checked(void **state)
{
    (void)state;
    struct training f;
    segue_error err = {0};
    float numbers[ROWS] = {0};
    segue_train_policy y = SEGUE_INIT(segue_train_policy);
    segue_train_batch b = SEGUE_INIT(segue_train_batch);
    segue_train_result r = SEGUE_INIT(segue_train_result);
    opened(&f, "llama", "ref", 0);
    b.tokens = f.tokens, b.lengths = f.lengths, b.sequences_n = 2, b.policy = &y;
    y.advantages = y.weights = numbers;
    assert_int_equal(segue_trainer_run(f.trainer, &b, &r, &err), SEGUE_EARG);
    y.old_logprobs = numbers, y.kl = -1;
    assert_int_equal(segue_trainer_run(f.trainer, &b, &r, &err), SEGUE_EARG);
    b.policy = NULL, b.base = b.loss_only = 1;
    assert_int_equal(segue_trainer_run(f.trainer, &b, &r, &err), SEGUE_EARG); /* no adapter */
    segue_adapter *adapter;
    assert_int_equal(segue_trainer_adapter(&adapter, f.trainer, 1, &err), SEGUE_EUNSUPPORTED);
    closed(&f);
}

/* --- invariants --- */

/* All gradients of f, one after the other. */
static float *all_gradients(const struct training *f, size_t *n)
{
    segue_trainer_info info = SEGUE_INIT(segue_trainer_info);
    segue_trainer_info_get(f->trainer, &info, NULL);
    float *all = malloc(info.numbers * sizeof *all);
    *n = 0;
    for (size_t i = 0; i < info.params_n; i++) {
        size_t k;
        char name[256];
        float *g = gradient(f, i, &k, name);
        memcpy(all + *n, g, k * sizeof *g);
        *n += k;
        free(g);
    }
    assert_int_equal(*n, info.numbers);
    return all;
}

/* Bytes of activations, which the formula of docs/TRAINING.md bounds, closely where all is kept. */
static uint64_t used_memory(const struct training *f)
{
    segue_trainer_info info = SEGUE_INIT(segue_trainer_info);
    assert_int_equal(segue_trainer_info_get(f->trainer, &info, NULL), SEGUE_OK);
    if (info.activation_used > info.activation_bytes || info.activation_used * (info.recompute ? 4 : 2) < info.activation_bytes)
        fail_msg("%llu of %llu bytes, recompute %u", (unsigned long long)info.activation_used,
                 (unsigned long long)info.activation_bytes, info.recompute);
    return info.activation_used;
}

static void recompute_threads_and_parts(void **state)
{
    (void)state;
    const char *other = getenv("SEGUE_TEST_TRAIN_UNIT");
    for (int i = 0; i < FAMILIES; i++) {
        if (!is_wanted(families[i])) continue;
        struct training f[3];
        float *g[3];
        size_t n;
        opened(&f[0], families[i], other ? other : "ref:threads=2", 0);
        opened(&f[1], families[i], other ? other : "ref:threads=1", 1);
        opened(&f[2], families[i], unit_at(0), 0);
        run(&f[0], 0, 2);
        run(&f[1], 0, 2);
        run(&f[2], 0, 1);
        run(&f[2], 1, 1);
        uint64_t kept = used_memory(&f[0]);
        assert_true(used_memory(&f[1]) < kept);
        for (int k = 0; k < 3; k++) g[k] = all_gradients(&f[k], &n);
        assert_memory_equal(g[0], g[1], n * sizeof **g);
        double worst = 0, largest = 0;
        for (size_t k = 0; k < n; k++) worst = fmax(worst, fabs((double)g[0][k] - g[2][k])), largest = fmax(largest,
                fabs(g[0][k]));
        assert_true(largest > 0 && worst < 1e-5 * largest);
        for (int k = 0; k < 3; k++) free(g[k]), closed(&f[k]);
    }
}

static void not_a_number_is_refused(void **state)
{
    (void)state;
    struct training f;
    segue_error err = {0};
    segue_train_batch b = SEGUE_INIT(segue_train_batch);
    segue_train_result r = SEGUE_INIT(segue_train_result);
    segue_adamw o = SEGUE_INIT(segue_adamw);
    segue_update_result u = SEGUE_INIT(segue_update_result);
    opened(&f, "llama", unit_at(0), 0);
    assert_int_equal(segue_trainer_update(f.trainer, &o, &u, &err), SEGUE_EARG);
    b.tokens = f.tokens, b.lengths = f.lengths, b.sequences_n = 2;
    segue_param_info info = SEGUE_INIT(segue_param_info);
    size_t at = 0;
    while (!segue_trainer_param_info(f.trainer, at, &info, &err) && !(info.layer == 1 && info.matrix)) at++;
    size_t n = info.rows * info.cols;
    float *w = malloc(n * sizeof *w);
    segue_trainer_param_get(f.trainer, at, SEGUE_PARAM_VALUE, SEGUE_ORDER_MATRIX, w, n, NULL);
    w[3] = NAN;
    segue_trainer_param_put(f.trainer, at, SEGUE_PARAM_VALUE, SEGUE_ORDER_MATRIX, w, n, NULL);
    assert_int_equal(segue_trainer_run(f.trainer, &b, &r, &err), SEGUE_EFORMAT);
    assert_non_null(strstr(err.text, "linear of layer 1"));
    free(w);
    closed(&f);
}

/* Nothing to learn from: no loss, no gradient, and no update. */
static void masked_labels(void **state)
{
    (void)state;
    struct training f;
    segue_error err = {0};
    int32_t labels[ROWS];
    segue_train_batch b = SEGUE_INIT(segue_train_batch);
    segue_train_result r = SEGUE_INIT(segue_train_result);
    segue_adamw o = SEGUE_INIT(segue_adamw);
    segue_update_result u = SEGUE_INIT(segue_update_result);
    for (int i = 0; i < ROWS; i++) labels[i] = -1;
    opened(&f, "llama", unit_at(0), 0);
    b.tokens = f.tokens, b.lengths = f.lengths, b.sequences_n = 2, b.labels = labels;
    assert_int_equal(segue_trainer_run(f.trainer, &b, &r, &err), SEGUE_OK);
    assert_true(r.loss == 0 && r.labelled == 0 && r.tokens == ROWS);
    assert_int_equal(segue_trainer_update(f.trainer, &o, &u, &err), SEGUE_EARG);
    closed(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(torch_agrees),
        cmocka_unit_test(peft_agrees),
        cmocka_unit_test(policy_agrees),
        cmocka_unit_test(adapter_in_a_session),
        cmocka_unit_test(policy_is_checked),
        cmocka_unit_test(recompute_threads_and_parts),
        cmocka_unit_test(not_a_number_is_refused),
        cmocka_unit_test(masked_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
