/* ane_sessions.c: sessions on the unit `ane`, compared with `ref`: prompt lengths around the sizes of dispatches, on attention,
 * sliding windows and the delta rule; the number of dispatches; sessions that need more keys than before; bytes that the host
 * copies per token.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../api/plans.h"
#include "../api/tiny.h"
#include "segue.h"

enum { LONGEST = 4300, LAYERS = 3, PARTS = 2, WIDTH = 32 };

static segue_model *models[TINY_MODELS];
static segue_unit *reference;
static segue_engine *references[TINY_MODELS];
static int32_t text[LONGEST + 8];
static segue_error err;

static void ok_(segue_status s, const char *what, int line)
{
    if (s != SEGUE_OK) fail_msg("line %d: %s: %d: %s", line, what, s, err.text);
}
#define OK(call) ok_(call, #call, __LINE__)

static int open_all(void **state)
{
    (void)state;
    if (segue_unit_open(&reference, "ref:threads=2", &err) != SEGUE_OK) return -1;
    for (int i = 0; i < TINY_MODELS; i++) {
        char folder[512];
        tiny_folder(folder, sizeof folder, "ane", tiny_models[i].name);
        if (!tiny_write(&tiny_models[i], folder, 7u + (unsigned)i)) return -1;
        if (segue_model_open(&models[i], folder, NULL, &err) != SEGUE_OK) return -1;
        if (segue_engine_open(&references[i], models[i], &reference, 1, NULL, &err) != SEGUE_OK) return -1;
    }
    for (int i = 0; i < LONGEST + 8; i++) text[i] = (i * 29 + 5) % 93 + 3;
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_MODELS; i++) {
        segue_engine_close(references[i]);
        segue_model_close(models[i]);
    }
    segue_unit_close(reference);
    tiny_remove("ane");
    return 0;
}

struct setup {
    segue_unit *unit;
    segue_engine *engine;
};

static struct setup setup_of(const char *spec, segue_model *model)
{
    struct setup p = {0};
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    o.chunk_tokens = 4096;
    OK(segue_unit_open(&p.unit, spec, &err));
    OK(segue_engine_open(&p.engine, model, &p.unit, 1, &o, &err));
    return p;
}

static struct setup setup_on(const char *spec, int model) { return setup_of(spec, models[model]); }

static void close_setup(struct setup *p)
{
    segue_engine_close(p->engine);
    segue_unit_close(p->unit);
}

static segue_session *session_of(segue_engine *e, size_t n)
{
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    segue_session *s = NULL;
    greedy.ignore_stops = 1;
    o.sampling = &greedy;
    o.context = 8192;
    OK(segue_session_open(&s, e, &o, &err));
    OK(segue_session_append(s, text, n, &err));
    OK(segue_session_prefill(s, 0, NULL, &err));
    return s;
}

static segue_use use_of(segue_session *s, segue_phase phase) { return first_use(s, phase); }

/* The logits of two sessions with the same text agree: fp16 in all operations and states against fp32, hence 3 %. */
static void same_logits(segue_session *a, segue_session *b, const char *what)
{
    float x[TINY_VOCAB], y[TINY_VOCAB];
    double max = 0, apart = 0;
    size_t n;
    OK(segue_session_logits(a, x, TINY_VOCAB, &n, &err));
    OK(segue_session_logits(b, y, TINY_VOCAB, &n, &err));
    assert_int_equal(n, TINY_VOCAB);
    for (size_t i = 0; i < n; i++) {
        max = fmax(max, fabs((double)y[i]));
        apart = fmax(apart, fabs((double)x[i] - (double)y[i]));
    }
    if (!(apart <= 0.03 * max)) fail_msg("%s: logits %g apart, the largest is %g", what, apart, max);
}

static void prompts(const char *spec, uint32_t rows)
{
    static const size_t lengths[] = {1, 2, 31, 32, 33, 63, 64, 65, 500, 1000};
    char what[96];
    for (int m = 0; m < TINY_MODELS; m++) {
        struct setup p = setup_on(spec, m);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            size_t n = lengths[i];
            if (rows == 1 && n > 65 && m != (int)(i % TINY_MODELS)) continue; /* one model is enough for each long prompt */
            segue_session *s = session_of(p.engine, n), *r = session_of(references[m], n);
            snprintf(what, sizeof what, "%s on %s, %zu tokens", tiny_models[m].name, spec, n);
            segue_use use = use_of(s, n == 1 ? SEGUE_DECODE : SEGUE_PREFILL);
            if (!use.dispatches) use = use_of(s, n != 1);
            if (use.dispatches != (n + rows - 1) / rows * PARTS)
                fail_msg("%s: %llu dispatches", what, (unsigned long long)use.dispatches);
            assert_int_equal(use.padded_tokens, (n + rows - 1) / rows * 32); /* a surface has at least 32 columns */
            assert_int_equal(use.tokens_truncated, 0);
            same_logits(s, r, what);
            segue_session_close(s);
            segue_session_close(r);
        }
        close_setup(&p);
    }
}

static void prompts_in_batches(void **state)
{
    (void)state;
    prompts("ane:soft,layers=2,rows=32,threads=2", 32);
}

static void prompts_token_by_token(void **state)
{
    (void)state;
    prompts("ane:soft,layers=2,rows=1,threads=2", 1);
}

/* A session takes its state along to programs with more keys; beyond the largest number it fails with an error. */
static void sessions_grow(void **state)
{
    (void)state;
    static const size_t edges[] = {512, 1024, 2048};
    for (int m = 0; m < TINY_MODELS; m++) {
        struct setup p = setup_on("ane:soft,layers=2,threads=2", m);
        for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
            if (i == 2 && m != 0) continue;
            segue_session *s = session_of(p.engine, edges[i] - 2), *r = session_of(references[m], edges[i] - 2);
            for (size_t k = 0; k < 5; k++) { /* the same tokens on both, from two before the limit to three after it */
                OK(segue_session_append(s, text + edges[i] - 2 + k, 1, &err));
                OK(segue_session_append(r, text + edges[i] - 2 + k, 1, &err));
                OK(segue_session_prefill(s, 0, NULL, &err));
                OK(segue_session_prefill(r, 0, NULL, &err));
                same_logits(s, r, tiny_models[m].name);
            }
            segue_session_close(s);
            segue_session_close(r);
        }
        close_setup(&p);
    }
}

/* A fork shares K and V with its original, which reports half of them; the rows that both then write differ, the shared ones do
 * not. Afterwards the original has all of its blocks again. */
static void forks_share_rows(void **state)
{
    (void)state;
    enum { SHARED = 700, KV_WIDTH = WIDTH / 2 };
    struct setup p = setup_on("ane:soft,layers=2,threads=2", 0);
    segue_session *s = session_of(p.engine, SHARED), *r = session_of(references[0], SHARED), *fork = NULL, *other = NULL;
    segue_stats stats = SEGUE_INIT(segue_stats);
    uint64_t alone, shared;
    OK(segue_session_fork(&fork, s, &err)); /* brings the state to the host */
    segue_session_close(fork);
    OK(segue_session_stats_get(s, &stats, &err));
    alone = stats.state_bytes;
    OK(segue_session_fork(&fork, s, &err));
    OK(segue_session_stats_get(s, &stats, &err));
    shared = stats.state_bytes;
    const uint64_t rows = 2ull * 2 * LAYERS * SHARED * KV_WIDTH; /* K and V, fp16 */
    if (alone - shared < rows / 2 || alone - shared > rows)
        fail_msg("%llu bytes alone, %llu with a fork", (unsigned long long)alone, (unsigned long long)shared);
    OK(segue_session_fork(&other, r, &err));
    for (size_t k = 0; k < 3; k++) {
        OK(segue_session_append(s, text + k, 1, &err));
        OK(segue_session_append(r, text + k, 1, &err));
        OK(segue_session_append(fork, text + 40 + k, 1, &err));
        OK(segue_session_append(other, text + 40 + k, 1, &err));
        OK(segue_session_prefill(s, 0, NULL, &err));
        OK(segue_session_prefill(r, 0, NULL, &err));
        OK(segue_session_prefill(fork, 0, NULL, &err));
        OK(segue_session_prefill(other, 0, NULL, &err));
        same_logits(s, r, "original");
        same_logits(fork, other, "fork");
    }
    segue_session_close(fork);
    same_logits(s, r, "original without its fork");
    segue_session_close(s);
    segue_session_close(r);
    segue_session_close(other);
    close_setup(&p);
}

/* Host copies per token, in fp16 elements: a row in and a row out, the RoPE angles of one position, two elements per ring for
 * the entry of K and V, one per kind of mask, and another where a full window moves. States are not copied. */
static void host_bytes_of_a_token(void **state)
{
    (void)state;
    static const struct {
        int model;
        uint64_t numbers;
    } cases[] = {{0, 2 * WIDTH + 16 + 2 + 1},           /* 8 pairs of angles */
                 {1, 2 * WIDTH + 16 + 16 + 2 + 1 + 2 + 2}, /* two RoPE tables, two rings, two masks, a full window of 8 */
                 {2, 2 * WIDTH + 8 + 2 + 1}};           /* 4 pairs */
    enum { TOKENS = 20 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct setup p = setup_on("ane:soft,layers=2,threads=2", cases[i].model);
        segue_session *s = session_of(p.engine, 40);
        int32_t token;
        OK(segue_session_next(s, &token, &err)); /* of the prompt */
        OK(segue_session_next(s, &token, &err)); /* first one-row dispatch: writes all of info, uploads the state */
        uint64_t before = use_of(s, SEGUE_DECODE).host_bytes;
        for (int k = 0; k < TOKENS; k++) OK(segue_session_next(s, &token, &err));
        segue_use use = use_of(s, SEGUE_DECODE);
        assert_int_equal(use.host_bytes - before, TOKENS * 2 * cases[i].numbers);
        assert_int_equal(use.dispatches, (TOKENS + 1) * PARTS);
        segue_session_close(s);
        close_setup(&p);
    }
}

/* A model with other windows: the weights of a tiny model with another configuration. */
static segue_model *model_with(const char *name, const char *layers, unsigned window, unsigned theta)
{
    struct tiny_model m = tiny_models[1];
    char config[1024], folder[512];
    segue_model *out = NULL;
    snprintf(config, sizeof config,
             "{\"model_type\":\"gemma3_text\",\"architectures\":[\"Gemma3ForCausalLM\"],\"vocab_size\":96,\"hidden_size\":32,"
             "\"intermediate_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"
             "\"rms_norm_eps\":1e-6,\"max_position_embeddings\":256,\"tie_word_embeddings\":true,\"query_pre_attn_scalar\":16,"
             "\"hidden_activation\":\"gelu_pytorch_tanh\",\"sliding_window\":%u,\"layer_types\":[%s],\"rope_theta\":%u,"
             "\"rope_local_base_freq\":10000,\"bos_token_id\":1,\"eos_token_id\":2}",
             window, layers, theta);
    m.config = config;
    tiny_folder(folder, sizeof folder, "ane", name);
    assert_true(tiny_write(&m, folder, 8));
    OK(segue_model_open(&out, folder, NULL, &err));
    return out;
}

static void model_gone(segue_model *m, const char *name)
{
    static const char *const files[] = {"/config.json", "/model.safetensors", ""};
    char folder[512], path[600];
    segue_model_close(m);
    tiny_folder(folder, sizeof folder, "ane", name);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", folder, files[i]);
        assert_int_equal(remove(path), 0);
    }
}

#define SLIDES "\"sliding_attention\""
#define SEES_ALL "\"full_attention\""

/* Both sessions read the same text in pieces, with the same logits after each piece; then both go back to its middle and
 * continue. seen: option keys= of the first unit; 0: none. */
static void alike(const char *spec, segue_model *model, segue_model *than, const size_t *pieces, size_t n, size_t seen)
{
    size_t rows = 0;
    struct setup p = setup_of(spec, model), r = setup_of("ref:threads=2", than);
    segue_session *s = session_of(p.engine, pieces[0]), *t = session_of(r.engine, pieces[0]);
    for (size_t i = 0, at = 0; i < n; at += pieces[i++]) {
        for (int k = 0; i && k < 2; k++) {
            OK(segue_session_append(k ? t : s, text + at, pieces[i], &err));
            OK(segue_session_prefill(k ? t : s, 0, NULL, &err));
        }
        same_logits(s, t, spec);
    }
    for (size_t i = 0; i < n; i++) rows += pieces[i];
    /* the last piece is one row of phase 1 */
    assert_int_equal(use_of(s, 0).tokens_truncated, seen && rows - 1 > seen ? rows - 1 - seen : 0);
    for (int k = 0; k < 2; k++) {
        OK(segue_session_rewind(k ? t : s, pieces[0] + pieces[1], &err));
        OK(segue_session_append(k ? t : s, text + 7, 33, &err));
        OK(segue_session_prefill(k ? t : s, 0, NULL, &err));
    }
    same_logits(s, t, "gone back");
    segue_session_close(s);
    segue_session_close(t);
    close_setup(&p);
    close_setup(&r);
}

/* Rings of 64 columns beside other slots: rows that wrap one by one, dispatches that cross the end of a ring, and dispatches
 * with more rows than a ring has. */
static void windows_are_rings(void **state)
{
    (void)state;
    static const size_t pieces[] = {60, 3, 1, 1, 64, 65, 1, 200, 1, 130, 1};
    static const char *const specs[] = {"ane:soft,threads=2", "ane:soft,layers=2,rows=32,threads=2",
                                        "ane:soft,rows=512,threads=2"};
    segue_model *m = model_with("rings", SLIDES "," SLIDES "," SEES_ALL, 40, 1000000);
    for (size_t i = 0; i < 3; i++) alike(specs[i], m, m, pieces, sizeof pieces / sizeof *pieces, 0);
    model_gone(m, "rings");
}

/* When every layer has a sliding window, the text may be longer than the keys of any program. */
static void all_windows_have_no_limit(void **state)
{
    (void)state;
    static const size_t pieces[] = {1000, 1, 3200, 1, 1};
    segue_model *m = model_with("alone", SLIDES "," SLIDES "," SLIDES, 600, 10000);
    alike("ane:soft,threads=2", m, m, pieces, sizeof pieces / sizeof *pieces, 0);
    model_gone(m, "alone");
}

/* keys=64 on a model without windows gives the results of that model with windows of 64; shorter windows are unchanged. */
static void fixed_keys_forget(void **state)
{
    (void)state;
    static const size_t pieces[] = {60, 3, 1, 1, 64, 65, 1, 200, 1, 130, 1};
    static const char *const specs[] = {"ane:soft,keys=64,threads=2", "ane:soft,keys=64,rows=128,threads=2"};
    segue_model *all = model_with("all", SEES_ALL "," SEES_ALL "," SEES_ALL, 600, 10000),
                *windows = model_with("windows", SLIDES "," SLIDES "," SLIDES, 64, 10000);
    for (size_t i = 0; i < 2; i++) alike(specs[i], all, windows, pieces, sizeof pieces / sizeof *pieces, 64);
    model_gone(all, "all");
    model_gone(windows, "windows");
    segue_unit *unit = NULL;
    assert_int_equal(segue_unit_open(&unit, "ane:soft,keys=100", &err), SEGUE_EARG);
    assert_non_null(strstr(err.text, "keys=100"));
}

/* Two programs per shape and a budget of two or three compiles: each new shape needs a new process, which the software NPU
 * starts in place. States survive, and the result is the same. */
static void exhausted_budgets(void **state)
{
    (void)state;
    static const char *const specs[] = {"ane:soft,layers=2,threads=2", "ane:soft,layers=2,threads=2,compiles=2",
                                        "ane:soft,layers=2,threads=2,compiles=3"};
    int32_t tokens[3][6];
    for (int i = 0; i < 3; i++) {
        struct setup p = setup_on(specs[i], 2);
        segue_session *s = session_of(p.engine, 70); /* in one dispatch */
        for (int k = 0; k < 6; k++) OK(segue_session_next(s, &tokens[i][k], &err)); /* one row */
        segue_session *again = session_of(p.engine, 33); /* of fewer rows */
        OK(segue_session_next(again, &tokens[i][5], &err));
        segue_session_close(again);
        segue_session_close(s);
        close_setup(&p);
        assert_memory_equal(tokens[i], tokens[0], sizeof tokens[0]);
    }
    struct setup p = setup_on("ane:soft,layers=1,threads=2,compiles=2", 0); /* three programs never fit */
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_session *s = NULL;
    OK(segue_session_open(&s, p.engine, &o, &err));
    OK(segue_session_append(s, text, 5, &err));
    assert_int_equal(segue_session_prefill(s, 0, NULL, &err), SEGUE_ELIMIT);
    assert_non_null(strstr(err.text, "constraint 5"));
    segue_session_close(s);
    close_setup(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_in_batches),
        cmocka_unit_test(prompts_token_by_token),
        cmocka_unit_test(sessions_grow),
        cmocka_unit_test(forks_share_rows),
        cmocka_unit_test(host_bytes_of_a_token),
        cmocka_unit_test(windows_are_rings),
        cmocka_unit_test(all_windows_have_no_limit),
        cmocka_unit_test(fixed_keys_forget),
        cmocka_unit_test(exhausted_budgets),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
