/* ane_weights.c: replacing weights of a program on the unit `ane`: compiled weights do not change; a change compiles again, or
 * reloads patched files where a probe has shown that this works. Also the hashes of source tensors in the cache.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../api/tiny.h"
#include "engine/engine.h"
#include "engine/placement/units.h"
#include "segue.h"
#include "unit/ane/aneunit.h"

static segue_model *model;
static segue_error err;

static void ok_(segue_status s, const char *what, int line)
{
    if (s != SEGUE_OK) fail_msg("line %d: %s: %d: %s", line, what, s, err.text);
}
#define OK(call) ok_(call, #call, __LINE__)

static int open_model(void **state)
{
    (void)state;
    char folder[512];
    tiny_folder(folder, sizeof folder, "weights", tiny_models[0].name);
    return !tiny_write(&tiny_models[0], folder, 7) || segue_model_open(&model, folder, NULL, &err) != SEGUE_OK;
}

static int close_model(void **state)
{
    (void)state;
    segue_model_close(model);
    tiny_remove("weights");
    return 0;
}

struct weight_setup {
    segue_unit *unit;
    segue_engine *engine;
    struct sg_program *program;
    uint32_t tensor;
    float *doubled;
};

static const char *changed = "layers.1.mlp.down_proj";

static void open_setup(struct weight_setup *p, const char *spec)
{
    OK(segue_unit_open(&p->unit, spec, &err));
    OK(segue_engine_open(&p->engine, model, &p->unit, 1, NULL, &err));
    p->program = p->engine->layer_ranges->program;
    const struct sg_graph *g = p->program->base.graph;
    for (p->tensor = 0; !strstr(g->tensors[p->tensor]->name, changed); p->tensor++) {}
    const struct sg_tensor *t = g->tensors[p->tensor];
    p->doubled = malloc((size_t)(t->rows * t->cols) * sizeof(float));
    for (uint64_t r = 0; r < t->rows; r++) sg_tensor_row(t, r, 0, t->cols, p->doubled + r * t->cols);
    for (uint64_t i = 0; i < t->rows * t->cols; i++) p->doubled[i] *= 2;
}

static void close_setup(struct weight_setup *p)
{
    free(p->doubled);
    segue_engine_close(p->engine);
    segue_unit_close(p->unit);
}

static void logits_of(struct weight_setup *p, float out[TINY_VOCAB])
{
    static const int32_t text[] = {5, 17, 3, 60, 41};
    segue_session *s = NULL;
    size_t n;
    OK(segue_session_open(&s, p->engine, NULL, &err));
    OK(segue_session_append(s, text, 5, &err));
    OK(segue_session_prefill(s, 0, NULL, &err));
    OK(segue_session_logits(s, out, TINY_VOCAB, &n, &err));
    segue_session_close(s);
}

static uint64_t compiles_of(const struct weight_setup *p) { return atomic_load(&p->program->compiles); }

static void three_ways_of(const char *name)
{
    changed = name;
    static float before[TINY_VOCAB], anew[TINY_VOCAB], after[TINY_VOCAB];
    static const struct {
        const char *spec;
        uint32_t pretend; /* 1: weights=delta on a device where a reload has no effect */
        uint32_t found;
    } cases[] = {{"ane:soft,threads=2", 0, ANE_DELTA_OFF},
                 {"ane:soft,threads=2,weights=delta", 0, ANE_DELTA_PROVEN},
                 {"ane:soft,threads=2", 1, ANE_DELTA_REFUTED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weight_setup p;
        open_setup(&p, cases[i].spec);
        if (cases[i].pretend) p.program->base.unit->delta = ANE_DELTA_ASKED;
        logits_of(&p, before);
        assert_int_equal(sg_ops_of(p.program)->weight_put(p.program, UINT32_MAX, p.doubled, &err), SEGUE_EARG);
        OK(sg_ops_of(p.program)->weight_put(p.program, p.tensor, p.doubled, &err));
        uint64_t compiles = compiles_of(&p);
        logits_of(&p, after);
        assert_int_equal(p.program->base.unit->delta, cases[i].found);
        if (cases[i].found == ANE_DELTA_PROVEN)
            assert_int_equal(compiles_of(&p), compiles);
        else
            assert_true(compiles_of(&p) > compiles);
        assert_memory_not_equal(before, after, sizeof after);
        if (!i) memcpy(anew, after, sizeof anew);
        assert_memory_equal(anew, after, sizeof after);
        close_setup(&p);
    }
}

/* A weight with a convolution of its own, and the second of two weights in one convolution. */
static void three_ways(void **state)
{
    (void)state;
    three_ways_of("layers.1.mlp.up_proj");
    three_ways_of("layers.1.self_attn.k_proj");
    three_ways_of("layers.1.mlp.down_proj");
}

/* Changed bytes of a blob file do not change a loaded program, in refuse and faithful mode. */
static void baked_weights_stay(void **state)
{
    (void)state;
    static const char *const specs[] = {"ane:soft,threads=2", "ane:soft,threads=2,weights=delta"};
    static float before[TINY_VOCAB], after[TINY_VOCAB];
    for (size_t i = 0; i < 2; i++) {
        struct weight_setup p;
        uint32_t n;
        open_setup(&p, specs[i]);
        logits_of(&p, before);
        OK(sg_ane_blob_patch(&p.program->blobs[0], p.program->base.graph, p.tensor, p.doubled, &n, &err));
        assert_int_equal(n, 1);
        logits_of(&p, after);
        assert_memory_equal(before, after, sizeof after);
        close_setup(&p);
    }
}

/* Weights of host operations are read from the model file, so they cannot be replaced. */
static void host_weights(void **state)
{
    (void)state;
    struct weight_setup p;
    open_setup(&p, "ane:soft,threads=2");
    const struct sg_graph *g = p.program->base.graph;
    uint32_t t = 0;
    while (!strstr(g->tensors[t]->name, "embed_tokens")) t++;
    assert_int_equal(sg_ops_of(p.program)->weight_put(p.program, t, p.doubled, &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "embed_tokens"));
    close_setup(&p);
}

static struct sg_program *compiled(struct weight_setup *p, const struct sg_weight_cache *keep)
{
    struct sg_program *made = NULL;
    const struct sg_graph *g = p->program->base.graph;
    OK(ane_compile(p->program->base.unit, &g, 1, keep, &made, &err));
    return made;
}

static int same_sources(struct weight_setup *a, struct weight_setup *b, const struct sg_weight_cache *keep)
{
    struct sg_program *x = compiled(a, keep), *y = compiled(b, keep);
    int same = !memcmp(x->source_hashes, y->source_hashes, x->base.graph->tensors_n * sizeof *x->source_hashes);
    assert_int_equal(atomic_load(&x->cache->written) + atomic_load(&y->cache->written), 0); /* "sources" do not count */
    ane_discard(x);
    ane_discard(y);
    return same;
}

/* A file with an exact identity is hashed once. Another identity, an inexact one, or a damaged entry means that it is hashed
 * again. Two models of one shape are used as the same file with different bytes. */
static void exact_files_are_hashed_once(void **state)
{
    (void)state;
    char at[512], home[] = "/tmp/segue_seal_XXXXXX", line[600];
    struct weight_setup first, other;
    segue_model *mine = model, *others;
    assert_non_null(mkdtemp(home));
    tiny_folder(at, sizeof at, "weights", "other");
    assert_true(tiny_write(&tiny_models[0], at, 8));
    OK(segue_model_open(&others, at, NULL, &err));
    open_setup(&first, "ane:soft,threads=2");
    model = others;
    open_setup(&other, "ane:soft,threads=2");
    model = mine;
    struct sg_weight_cache keep = {.folder = home, .bytes_max = 1u << 30, .weights = {1, 2}, .stamp = {3, 4}, .exact = 1};
    assert_true(same_sources(&first, &other, &keep));
    keep.exact = 0;
    assert_false(same_sources(&first, &other, &keep));
    keep = (struct sg_weight_cache){.folder = home, .bytes_max = 1u << 30, .weights = {1, 2}, .stamp = {3, 5}, .exact = 1};
    assert_true(same_sources(&other, &first, &keep));
    snprintf(line, sizeof line, "for f in %s/ane/*.sources; do printf x | dd of=$f bs=1 seek=200 conv=notrunc 2>/dev/null; done",
             home);
    assert_int_equal(system(line), 0);
    struct sg_program *x = compiled(&first, &keep), *y;
    assert_int_equal(atomic_load(&x->cache->refused), 1);
    y = compiled(&first, &keep);
    assert_int_equal(atomic_load(&y->cache->refused), 0);
    assert_memory_equal(x->source_hashes, y->source_hashes, x->base.graph->tensors_n * sizeof *x->source_hashes);
    ane_discard(x);
    ane_discard(y);
    close_setup(&first);
    close_setup(&other);
    segue_model_close(others);
    snprintf(line, sizeof line, "rm -r %s", home);
    assert_int_equal(system(line), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(three_ways), cmocka_unit_test(baked_weights_stay),
                                       cmocka_unit_test(host_weights), cmocka_unit_test(exact_files_are_hashed_once)};
    return cmocka_run_group_tests(tests, open_model, close_model);
}
