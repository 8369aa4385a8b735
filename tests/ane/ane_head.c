/* ane_head.c: option head=engine of the unit `ane`: greedy tokens against `ref` and against the fp32 head on the host, vocabularies of
 * several tiles, equal logits, tokens that a sampler excludes, other samplers, and the bytes that the host reads.
 * `ane_head MODEL UNIT N [ID,...]` prints how often the two heads differ over N greedy tokens of a model.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../api/plans.h"
#include "../api/tiny.h"
#include "engine/engine.h"
#include "engine/placement/units.h"
#include "segue.h"
#include "unit/ane/aneunit.h"

enum { WIDE = 20000, TOKENS = 24, PROMPT = 37, WIDTH = 32, PARTS = 2, PERIOD = 1000, STOP_FREE = 2 };

static segue_error err;

static void ok_(segue_status s, const char *what, int line)
{
    if (s != SEGUE_OK) fail_msg("line %d: %s: %d: %s", line, what, s, err.text);
}
#define OK(call) ok_(call, #call, __LINE__)

struct head_setup {
    segue_unit *unit;
    segue_engine *engine;
};

static struct head_setup setup_of(const char *spec, segue_model *model)
{
    struct head_setup p = {0};
    OK(segue_unit_open(&p.unit, spec, &err));
    OK(segue_engine_open(&p.engine, model, &p.unit, 1, NULL, &err));
    return p;
}

static void close_setup(struct head_setup *p)
{
    segue_engine_close(p->engine);
    segue_unit_close(p->unit);
}

static segue_session *session_of(segue_engine *e, const segue_sampling *sampling, const int32_t *ids, size_t n)
{
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_session *s = NULL;
    o.sampling = sampling;
    o.context = 2048;
    OK(segue_session_open(&s, e, &o, &err));
    OK(segue_session_append(s, ids, n, &err));
    return s;
}

static segue_sampling greedy(uint32_t ignore_stops)
{
    segue_sampling s = SEGUE_INIT(segue_sampling);
    s.ignore_stops = ignore_stops;
    return s;
}

static segue_use use_of(segue_session *s, segue_phase phase) { return first_use(s, phase); }

/* --- models --- */

static void text_of(int32_t text[PROMPT], int seed)
{
    for (int i = 0; i < PROMPT; i++) text[i] = (i * 29 + seed * 17 + 5) % 90 + 3;
}

/* Makes every row of the embedding table, which is also the output head, equal to row r % period: their logits are equal. */
static void repeat_rows(const char *folder, unsigned period)
{
    char path[600], head[8192] = "";
    unsigned long long length = 0, from = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fread(&length, 8, 1, f), 1);
    assert_true(length < sizeof head);
    assert_int_equal(fread(head, (size_t)length, 1, f), 1);
    const char *entry = strstr(head, "model.embed_tokens.weight");
    entry = entry ? strstr(entry, "data_offsets") : NULL;
    assert_non_null(entry);
    assert_int_equal(sscanf(strchr(entry, '['), "[%llu", &from), 1);
    float *rows = malloc((size_t)period * WIDTH * sizeof *rows);
    assert_non_null(rows);
    fseek(f, (long)(8 + length + from), SEEK_SET);
    assert_int_equal(fread(rows, sizeof *rows, (size_t)period * WIDTH, f), (size_t)period * WIDTH);
    fseek(f, (long)(8 + length + from), SEEK_SET);
    for (unsigned r = 0; r < WIDE; r++)
        assert_int_equal(fwrite(rows + (size_t)(r % period) * WIDTH, sizeof *rows, WIDTH, f), WIDTH);
    free(rows);
    assert_int_equal(fclose(f), 0);
}

/* A tiny model; `wide`: with WIDE tokens and untied stop token `eos`. */
static segue_model *model_of(const char *name, int index, int wide, int eos, unsigned period)
{
    struct tiny_model m = tiny_models[index];
    char config[1024], folder[512];
    segue_model *out = NULL;
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":%d,\"hidden_size\":32,"
             "\"intermediate_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
             "\"head_dim\":16,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"max_position_embeddings\":256,"
             "\"tie_word_embeddings\":true,\"hidden_act\":\"silu\",\"bos_token_id\":1,\"eos_token_id\":%d}",
             WIDE, eos);
    if (wide) {
        m.config = config;
        m.parts[0].shape[0] = WIDE;
    }
    tiny_folder(folder, sizeof folder, "head", name);
    assert_true(tiny_write(&m, folder, 11));
    if (period) repeat_rows(folder, period);
    OK(segue_model_open(&out, folder, NULL, &err));
    return out;
}

static void model_gone(segue_model *m, const char *name)
{
    static const char *const files[] = {"/config.json", "/model.safetensors", ""};
    char folder[512], path[600];
    segue_model_close(m);
    tiny_folder(folder, sizeof folder, "head", name);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", folder, files[i]);
        assert_int_equal(remove(path), 0);
    }
}

/* --- comparison --- */

/* The highest logit (first of equal ones), its distance to the next lower value, and the largest magnitude. */
struct best {
    int32_t token;
    double margin, largest;
};

static struct best best_of(const float *x, size_t n)
{
    struct best b = {0, INFINITY, 0};
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[b.token]) b.token = (int32_t)i;
    for (size_t i = 0; i < n; i++) {
        double gap = (double)x[b.token] - (double)x[i];
        if (gap > 0 && gap < b.margin) b.margin = gap;
        b.largest = fmax(b.largest, fabs((double)x[i]));
    }
    return b;
}

struct tally {
    unsigned decided, close, parted;    /* tokens with a margin above the error, below it, and those of the latter that differ */
};

/* One token of each session, whose texts are equal. The token of the engine is the best of ref's logits where the best two are
 * further apart than fp16 in all layers moves them (3 %, as in ane_sessions.c), and of the host's fp32 head for the same row
 * where they are further apart than fp16 in the head alone (1 %). ref's token is the next one of both. */
static void step(segue_session *s, segue_session *r, size_t vocab, struct tally *against_ref, struct tally *against_host)
{
    static float x[WIDE];
    int32_t token, wanted;
    const int32_t *all;
    size_t n, at = segue_session_tokens(s, &all);
    struct tally *t[2] = {against_ref, against_host};
    OK(segue_session_next(s, &token, &err));
    OK(segue_session_next(r, &wanted, &err));
    for (int k = 0; k < 2; k++) {
        OK(segue_session_logits(k ? s : r, x, WIDE, &n, &err));
        assert_int_equal(n, vocab);
        struct best b = best_of(x, n);
        if (b.margin <= (k ? 0.01 : 0.03) * b.largest) {
            t[k]->close++;
            t[k]->parted += b.token != token;
            continue;
        }
        t[k]->decided++;
        if (b.token != token)
            fail_msg("%s: token %d, its best is %d by %g of %g", k ? "host" : "ref", token, b.token, b.margin, b.largest);
    }
    if (token == wanted) return;
    OK(segue_session_rewind(s, at, &err));
    OK(segue_session_append(s, &wanted, 1, &err));
}

static void compare(const char *spec, segue_model *model, size_t vocab)
{
    struct head_setup p = setup_of(spec, model), r = setup_of("ref:threads=2", model);
    segue_sampling sampling = greedy(1);
    struct tally a = {0}, b = {0};
    int32_t text[PROMPT];
    for (int seed = 0; seed < 2; seed++) {
        text_of(text, seed);
        segue_session *s = session_of(p.engine, &sampling, text, PROMPT), *t = session_of(r.engine, &sampling, text, PROMPT);
        for (int k = 0; k < TOKENS; k++) step(s, t, vocab, &a, &b);
        segue_session_close(s);
        segue_session_close(t);
    }
    print_message("%s, %zu tokens: %u of %u decided against ref, %u of %u against the host, %u and %u near-ties differ\n", spec,
                  vocab, a.decided, a.decided + a.close, b.decided, b.decided + b.close, a.parted, b.parted);
    assert_true(a.decided * 4 >= a.decided + a.close);
    assert_true(b.decided * 2 >= b.decided + b.close);
    close_setup(&p);
    close_setup(&r);
}

static void tokens_are_those_of_ref(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_MODELS; i++) {
        segue_model *m = model_of("small", i, 0, 0, 0);
        compare("ane:soft,head=engine,layers=2,threads=2", m, TINY_VOCAB);
        model_gone(m, "small");
    }
}

/* 20,000 tokens: a tile of 16,384 and one of 3,616, slices of 2,048 and one of 1,568. The profiles differ in rules. */
static void wide_vocabularies(void **state)
{
    static const char *const specs[] = {"ane:soft,head=engine,threads=2", "ane:soft,head=engine,profile=m1,threads=2",
                                        "ane:soft,head=engine,profile=m4,threads=2"};
    (void)state;
    segue_model *m = model_of("wide", 0, 1, STOP_FREE, 0);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) compare(specs[i], m, WIDE);
    model_gone(m, "wide");
}

/* Row r and row r + 1,000 have equal logits: in one slice, in two slices, and in two tiles. */
static void equal_logits_take_the_first(void **state)
{
    (void)state;
    segue_model *m = model_of("ties", 0, 1, STOP_FREE, PERIOD);
    struct head_setup p = setup_of("ane:soft,head=engine,threads=2", m);
    segue_sampling sampling = greedy(0);
    int32_t text[PROMPT], token, seen[TOKENS];
    unsigned kinds = 0;
    for (int k = 0; k < TOKENS; k++) {
        text_of(text, k);
        segue_session *s = session_of(p.engine, &sampling, text, (size_t)(PROMPT - k));
        assert_true(segue_session_next(s, &token, &err) >= 0);
        assert_true(token < PERIOD);
        seen[k] = token;
        int known = 0;
        for (int i = 0; i < k; i++) known |= seen[i] == token;
        kinds += !known;
        segue_session_close(s);
    }
    assert_true(kinds > 4);
    close_setup(&p);
    compare("ane:soft,head=engine,threads=2", m, WIDE);
    model_gone(m, "ties");
}

/* A stop token that is not to be chosen: the host decides, as it does without the option. */
static void excluded_tokens(void **state)
{
    (void)state;
    int32_t text[PROMPT], first, token[2];
    text_of(text, 3);
    segue_sampling open = greedy(0), excluded = greedy(1);
    for (int pass = 0; pass < 2; pass++) {
        segue_model *m = model_of("stops", 0, 1, pass ? first : STOP_FREE, 0);
        for (int k = 0; k < (pass ? 2 : 1); k++) {
            struct head_setup p = setup_of(k ? "ane:soft,threads=2" : "ane:soft,head=engine,threads=2", m);
            segue_session *s = session_of(p.engine, pass ? &excluded : &open, text, PROMPT);
            assert_true(segue_session_next(s, &token[k], &err) >= 0);
            segue_session_close(s);
            close_setup(&p);
        }
        if (!pass) first = token[0];
        model_gone(m, "stops");
    }
    assert_int_not_equal(token[0], first);
    assert_int_equal(token[0], token[1]);
}

/* Samplers that change logits, and log-probabilities, use the logits of the host: the same tokens as without the option. */
static void other_samplers(void **state)
{
    (void)state;
    segue_sampling kinds[3] = {greedy(1), greedy(1), greedy(1)};
    int32_t text[PROMPT], tokens[2][TOKENS];
    segue_model *m = model_of("samplers", 0, 0, 0, 0);
    kinds[0].temperature = 1;
    kinds[0].seed = 5;
    kinds[1].repeat_penalty = 1.3f;
    kinds[2].logprobs = 3;
    text_of(text, 1);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 2; k++) {
            struct head_setup p = setup_of(k ? "ane:soft,threads=2" : "ane:soft,head=engine,threads=2", m);
            segue_session *s = session_of(p.engine, &kinds[i], text, PROMPT);
            for (int t = 0; t < TOKENS; t++) OK(segue_session_next(s, &tokens[k][t], &err));
            segue_session_close(s);
            close_setup(&p);
        }
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    }
    model_gone(m, "samplers");
}

/* A token writes a row and info, as in ane_sessions.c, and reads three numbers; the head is one dispatch more. */
static void host_bytes_of_a_token(void **state)
{
    (void)state;
    enum { WRITTEN = WIDTH + 16 + 2 + 1, READ = 3 };
    int32_t text[PROMPT], token;
    segue_sampling sampling = greedy(1);
    segue_model *m = model_of("bytes", 0, 1, STOP_FREE, 0);
    struct head_setup p = setup_of("ane:soft,head=engine,layers=2,threads=2", m);
    text_of(text, 2);
    segue_session *s = session_of(p.engine, &sampling, text, PROMPT);
    for (int k = 0; k < 2; k++) OK(segue_session_next(s, &token, &err));
    segue_use before = use_of(s, SEGUE_DECODE);
    for (int k = 0; k < TOKENS; k++) OK(segue_session_next(s, &token, &err));
    segue_use use = use_of(s, SEGUE_DECODE);
    assert_int_equal(use.host_bytes - before.host_bytes, TOKENS * 2 * (WRITTEN + READ));
    assert_int_equal(use.dispatches - before.dispatches, TOKENS * (PARTS + 1));
    segue_session_close(s);
    close_setup(&p);
    model_gone(m, "bytes");
}

/* Sessions take turns in one engine; logits can be read after each token, also when another session ran in between, where they
 * are computed again. */
static void sessions_take_turns(void **state)
{
    (void)state;
    float x[TINY_VOCAB];
    size_t n;
    int32_t text[PROMPT], alone[2][TOKENS], token;
    segue_sampling sampling = greedy(1);
    segue_model *m = model_of("turns", 1, 0, 0, 0);
    struct head_setup p = setup_of("ane:soft,head=engine,threads=2", m);
    segue_session *s[2];
    for (int k = 0; k < 2; k++) {
        text_of(text, k);
        s[0] = session_of(p.engine, &sampling, text, PROMPT);
        for (int t = 0; t < TOKENS; t++) OK(segue_session_next(s[0], &alone[k][t], &err));
        segue_session_close(s[0]);
    }
    for (int k = 0; k < 2; k++) {
        text_of(text, k);
        s[k] = session_of(p.engine, &sampling, text, PROMPT);
    }
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < 2; k++) {
            OK(segue_session_next(s[k], &token, &err));
            assert_int_equal(token, alone[k][t]);
            OK(segue_session_logits(s[k], x, TINY_VOCAB, &n, &err));
            assert_true((double)x[token] >= (double)x[best_of(x, n).token] - 0.01 * best_of(x, n).largest);
        }
    assert_int_equal(segue_session_logits(s[0], x, TINY_VOCAB, &n, &err), SEGUE_EARG); /* s[1] ran since */
    OK(segue_session_prefill(s[0], 0, NULL, &err));
    OK(segue_session_logits(s[0], x, TINY_VOCAB, &n, &err));
    for (int k = 0; k < 2; k++) segue_session_close(s[k]);
    close_setup(&p);
    model_gone(m, "turns");
}

/* Several sessions in one run: the tokens of each alone, also where the prompts have other lengths; a session that samples makes
 * the host choose for the whole run. */
static void sessions_in_one_run(void **state)
{
    (void)state;
    enum { SESSIONS = 3 };
    int32_t text[PROMPT], alone[SESSIONS][TOKENS], chosen[SESSIONS + 1];
    segue_error each[SESSIONS + 1];
    segue_sampling sampling = greedy(1), sampled = greedy(1);
    segue_model *m = model_of("together", 0, 0, 0, 0);
    struct head_setup p = setup_of("ane:soft,head=engine,threads=2", m);
    segue_session *s[SESSIONS + 1];
    for (int k = 0; k < SESSIONS; k++) {
        text_of(text, k);
        s[k] = session_of(p.engine, &sampling, text, (size_t)(PROMPT - 10 * k));
        for (int t = 0; t < TOKENS; t++) OK(segue_session_next(s[k], &alone[k][t], &err));
        segue_session_close(s[k]);
    }
    for (int pass = 0; pass < 2; pass++) {
        unsigned equal = 0;
        size_t n = SESSIONS + (size_t)pass;
        for (size_t k = 0; k < n; k++) {
            text_of(text, (int)k);
            sampled.temperature = 1;
            s[k] = session_of(p.engine, k < SESSIONS ? &sampling : &sampled, text, (size_t)(PROMPT - 10 * (int)k));
        }
        for (int t = 0; t < TOKENS; t++) {
            OK(segue_session_step(s, n, chosen, each, &err));
            for (int k = 0; k < SESSIONS; k++) equal += chosen[k] == alone[k][t];
        }
        segue_use use = use_of(s[0], SEGUE_DECODE);
        assert_int_equal(use.runs, TOKENS - 1);
        if (!pass) assert_int_equal(equal, SESSIONS * TOKENS);
        assert_true(equal * 2 > SESSIONS * TOKENS); /* a near-tie parts the rest of a text */
        for (size_t k = 0; k < n; k++) segue_session_close(s[k]);
    }
    close_setup(&p);
    model_gone(m, "together");
}

/* A run of several steps feeds its tokens back and ends at a stop token, greedily on the engine and sampled on the host. */
static void steps_in_one_run(void **state)
{
    (void)state;
    enum { STEPS = 6 };
    int32_t text[PROMPT], alone[STEPS], ring_tokens[STEPS], chosen;
    segue_model *m = model_of("steps", 0, 0, 0, 0);
    struct head_setup p = setup_of("ane:soft,head=engine,threads=2", m);
    struct sg_program *program = p.engine->layer_ranges->program;
    const struct sg_unit_ops *ops = sg_ops_of(program);
    const struct sg_graph *g = program->base.graph;
    const uint32_t last = PROMPT - 1;
    text_of(text, 5);
    for (int sampled = 0; sampled < 2; sampled++) {
        segue_sampling sampling = greedy(0); /* nothing is masked, as in the runs below */
        sampling.temperature = (float)sampled;
        segue_session *s = session_of(p.engine, &sampling, text, PROMPT);
        for (int i = 0; i < STEPS; i++) OK(segue_session_next(s, &alone[i], &err));
        segue_session_close(s);
        struct sg_sampler sampler = {.p = sampling};
        struct sg_ring ring = {.tokens = ring_tokens, .cap = STEPS};
        struct sg_span span = {.rows = PROMPT, .tokens = text, .wanted = &last, .wanted_n = 1, .sampler = &sampler, .steps = STEPS,
                               .ring = &ring};
        const struct sg_batch batch = {.spans = &span, .spans_n = 1, .inline_hint = 1};
        for (int stops = 0; stops < 2; stops++) {
            uint32_t done = 0, ends = STEPS - 1;
            struct sg_result result = {.tokens = &chosen, .rows_done = &done};
            struct sg_run *run = NULL;
            if (stops) {
                sampler.stops = &alone[2];
                sampler.stops_n = 1;
                for (ends = 0; alone[ends] != alone[2]; ends++) {}
            }
            atomic_store(&ring.written, 0u);
            OK(ops->state_new(program->base.unit, g->slots, g->slots_n, NULL, &span.state, &err));
            OK(ops->start(program, &batch, &result, &run, &err));
            OK(ops->wait(run, 1000000000, &err));
            assert_int_equal(atomic_load(&ring.written), ends + 1);
            assert_memory_equal(ring_tokens, alone, (ends + 1) * sizeof *alone);
            assert_int_equal(done, PROMPT + ends);
            assert_int_equal(chosen, alone[ends]);
            ops->state_free(span.state);
        }
    }
    close_setup(&p);
    model_gone(m, "steps");
}

/* Two programs per shape and the head's: a budget of three compiles is enough with restarts, one of two is not. */
static void budgets(void **state)
{
    (void)state;
    int32_t text[PROMPT], token, wanted[3];
    segue_sampling sampling = greedy(1);
    segue_model *m = model_of("budgets", 0, 0, 0, 0);
    static const char *const specs[] = {"ane:soft,head=engine,layers=2,threads=2",
                                        "ane:soft,head=engine,layers=2,threads=2,compiles=3",
                                        "ane:soft,head=engine,layers=2,threads=2,compiles=2"};
    text_of(text, 1);
    for (int i = 0; i < 3; i++) {
        struct head_setup p = setup_of(specs[i], m);
        segue_session *s = session_of(p.engine, &sampling, text, PROMPT);
        for (int k = 0; k < 3; k++) {
            segue_status status = segue_session_next(s, &token, &err);
            if (i == 0) wanted[k] = token;
            if (i < 2) assert_int_equal(status, SEGUE_OK);
            if (i == 1) assert_int_equal(token, wanted[k]);
            if (i == 2) assert_int_equal(status, SEGUE_ELIMIT);
        }
        segue_session_close(s);
        close_setup(&p);
    }
    segue_unit *unit = NULL;
    assert_int_equal(segue_unit_open(&unit, "ane:soft,head=both", &err), SEGUE_EARG);
    assert_non_null(strstr(err.text, "use helper or engine"));
    model_gone(m, "budgets");
}

/* --- measurement --- */

/* N greedy tokens of the engine, each compared with the host's fp32 head for the same row. */
static int measure(const char *path, const char *spec, unsigned long n, const char *ids)
{
    int32_t text[4096], token;
    size_t text_n = 0, vocab;
    segue_model *m = NULL;
    unsigned differ = 0;
    double margins = 0;
    for (char *end; ids && *ids && text_n < 4096; ids = *end ? end + 1 : end) text[text_n++] = (int32_t)strtol(ids, &end, 10);
    if (!text_n) text[text_n++] = 1;
    if (segue_model_open(&m, path, NULL, &err) != SEGUE_OK) return fprintf(stderr, "%s\n", err.text), 2;
    segue_model_info info = SEGUE_INIT(segue_model_info);
    segue_model_info_get(m, &info, &err);
    float *x = malloc(info.vocab * sizeof *x);
    struct head_setup p = {0};
    segue_sampling sampling = greedy(1);
    if (!x || segue_unit_open(&p.unit, spec, &err) != SEGUE_OK || segue_engine_open(&p.engine, m, &p.unit, 1, NULL, &err))
        return fprintf(stderr, "%s\n", err.text), 2;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_session *s = NULL;
    o.sampling = &sampling;
    if (segue_session_open(&s, p.engine, &o, &err) || segue_session_append(s, text, text_n, &err)) return 2;
    for (unsigned long i = 0; i < n; i++) {
        if (segue_session_next(s, &token, &err) || segue_session_logits(s, x, info.vocab, &vocab, &err))
            return fprintf(stderr, "%s\n", err.text), 2;
        struct best b = best_of(x, vocab);
        if (b.token == token) continue;
        differ++;
        margins = fmax(margins, (double)x[b.token] - (double)x[token]);
        printf("token %lu: engine %d, host %d by %g\n", i, token, b.token, (double)x[b.token] - (double)x[token]);
    }
    printf("%s: %u of %lu tokens differ, the largest margin is %g\n", spec, differ, n, margins);
    segue_session_close(s);
    close_setup(&p);
    free(x);
    segue_model_close(m);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_of_ref),
        cmocka_unit_test(wide_vocabularies),
        cmocka_unit_test(equal_logits_take_the_first),
        cmocka_unit_test(excluded_tokens),
        cmocka_unit_test(other_samplers),
        cmocka_unit_test(host_bytes_of_a_token),
        cmocka_unit_test(sessions_take_turns),
        cmocka_unit_test(sessions_in_one_run),
        cmocka_unit_test(steps_in_one_run),
        cmocka_unit_test(budgets),
    };
    if (argc >= 4) return measure(argv[1], argv[2], strtoul(argv[3], NULL, 10), argc > 4 ? argv[4] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
