/* arguments.c: every public function with NULL and zero arguments, sizes of structs of older and newer
 * headers, names of statuses, options that make no sense. Nothing may crash, write, or succeed by accident.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "segue.h"
#include "tiny.h"

static segue_error err;
static segue_unit *unit;
static segue_model *model;
static segue_engine *engine;

static int open_all(void **state)
{
    (void)state;
    segue_unit_info info[8];
    char folder[512];
    size_t n = 0;
    info[0] = SEGUE_INIT(segue_unit_info);
    if (segue_unit_list(info, 8, &n, &err) != SEGUE_OK || !n) return -1;
    if (segue_unit_open(&unit, info[0].spec, &err) != SEGUE_OK) return -1;
    tiny_folder(folder, sizeof folder, "arguments", tiny_models[0].name);
    if (!tiny_write(&tiny_models[0], folder, 3)) return -1;
    if (segue_model_open(&model, folder, NULL, &err) != SEGUE_OK) return -1;
    return segue_engine_open(&engine, model, &unit, 1, NULL, &err) == SEGUE_OK ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    segue_unit_close(unit); /* parents first: the order does not matter */
    segue_model_close(model);
    segue_engine_close(engine);
    tiny_remove("arguments");
    return 0;
}

static void is_earg(segue_status s, const char *call, int line)
{
    if (s != SEGUE_EARG) fail_msg("line %d: %s gave %d (%s)", line, call, s, err.text);
    if (err.status != SEGUE_EARG || !err.text[0]) fail_msg("line %d: %s: no text", line, call);
    memset(&err, 0, sizeof err);
}
#define EARG(call) is_earg(call, #call, __LINE__)

static void nothing_given(void **state)
{
    (void)state;
    EARG(segue_unit_list(NULL, 0, NULL, &err));
    EARG(segue_unit_list(NULL, 4, NULL, &err));
    EARG(segue_unit_open(NULL, NULL, &err));
    EARG(segue_unit_info_get(NULL, NULL, &err));
    EARG(segue_unit_stream(NULL, 0, NULL, &err));
    EARG(segue_model_open(NULL, NULL, NULL, &err));
    EARG(segue_model_info_get(NULL, NULL, &err));
    EARG(segue_model_describe(NULL, 0, NULL, 0, NULL, &err));
    EARG(segue_tokenize(NULL, NULL, 0, 0, NULL, 0, NULL, &err));
    EARG(segue_detokenize(NULL, NULL, 0, 0, NULL, 0, NULL, &err));
    EARG(segue_text_next(NULL, NULL, 0, NULL, 0, NULL, &err));
    EARG(segue_chat_format(NULL, NULL, 0, NULL, 0, NULL, &err));
    EARG(segue_template_render(NULL, 0, NULL, 0, NULL, NULL, NULL, 0, NULL, &err));
    EARG(segue_adapter_open(NULL, NULL, NULL, 0, &err));
    EARG(segue_engine_open(NULL, NULL, NULL, 0, NULL, &err));
    EARG(segue_plan_make(NULL, NULL, NULL, &err));
    EARG(segue_plan_new(NULL, NULL, 0, NULL, &err));
    EARG(segue_plan_info_get(NULL, NULL, &err));
    EARG(segue_plan_part_get(NULL, 0, NULL, &err));
    EARG(segue_plan_text(NULL, NULL, NULL, 0, NULL, &err));
    segue_plan_close(NULL);
    EARG(segue_allocator_set(NULL, &err));
    EARG(segue_unit_energy(NULL, NULL, &err));
    EARG(segue_session_use_get(NULL, 0, NULL, &err));
    EARG(segue_session_loss_get(NULL, 0, NULL, &err));
    EARG(segue_session_interval_get(NULL, 0, NULL, &err));
    EARG(segue_session_logprobs(NULL, NULL, 0, NULL, &err));
    EARG(segue_session_open(NULL, NULL, NULL, &err));
    EARG(segue_session_sampling(NULL, NULL, &err));
    EARG(segue_session_append(NULL, NULL, 0, &err));
    EARG(segue_session_next(NULL, NULL, &err));
    EARG(segue_session_step(NULL, 0, NULL, NULL, &err));
    EARG(segue_session_prefill(NULL, 0, NULL, &err));
    EARG(segue_session_score(NULL, NULL, 0, NULL, NULL, &err));
    EARG(segue_session_logits(NULL, NULL, 0, NULL, &err));
    EARG(segue_session_rewind(NULL, 0, &err));
    EARG(segue_session_fork(NULL, NULL, &err));
    EARG(segue_session_move(NULL, NULL, &err));
    EARG(segue_session_save(NULL, NULL, &err));
    EARG(segue_session_load(NULL, NULL, NULL, NULL, &err));
    EARG(segue_session_dump(NULL, NULL, 0, NULL, &err));
    EARG(segue_session_stats_get(NULL, NULL, &err));
    assert_int_equal(segue_session_tokens(NULL, NULL), 0);
    segue_session_cancel(NULL);
    segue_session_close(NULL);
    segue_engine_close(NULL);
    segue_adapter_close(NULL);
    segue_model_close(NULL);
    segue_unit_close(NULL);
    assert_int_equal(segue_version(),
                     SEGUE_VERSION_MAJOR << 16 | SEGUE_VERSION_MINOR << 8 | SEGUE_VERSION_PATCH);
    assert_int_equal(segue_unit_open(&unit, "no such", NULL), SEGUE_EARG); /* err may be NULL */
}

static void half_given(void **state)
{
    (void)state;
    segue_session *s = NULL, *twice[2];
    segue_engine *e = NULL;
    segue_unit *none = NULL;
    segue_model *m = NULL;
    int32_t token = 0, tokens[2];
    segue_error each[2];
    size_t n = 0;
    char text[8];
    segue_error before = {0};
    EARG(segue_unit_list(NULL, 4, &n, &err));
    EARG(segue_model_open(&m, "", NULL, &err));
    EARG(segue_model_open(&m, NULL, NULL, &err));
    assert_int_equal(segue_model_open(&m, "/no/such/file", NULL, &err), SEGUE_EIO);
    assert_non_null(strstr(err.text, "/no/such/file"));
    segue_model_opts made = SEGUE_INIT(segue_model_opts);
    made.storage = "fp4";
    EARG(segue_model_open(&m, "/no/such/file", &made, &err));
    EARG(segue_engine_open(&e, model, &unit, 0, NULL, &err));
    EARG(segue_engine_open(&e, model, &none, 1, NULL, &err));
    EARG(segue_engine_open(&e, model, NULL, 1, NULL, &err));
    EARG(segue_model_describe(model, 99, text, sizeof text, &n, &err));
    assert_int_equal(segue_tokenize(model, "a", 1, 0, tokens, 2, &n, &err), SEGUE_EUNSUPPORTED);
    assert_int_equal(segue_chat_format(model, "{}", 2, text, sizeof text, &n, &err), SEGUE_EUNSUPPORTED);
    assert_int_equal(segue_session_open(&s, engine, NULL, &before), SEGUE_OK);
    assert_int_equal(before.status, SEGUE_OK);
    EARG(segue_session_append(s, NULL, 3, &err));
    EARG(segue_session_next(s, NULL, &err));
    EARG(segue_session_next(s, &token, &err));
    EARG(segue_session_score(s, NULL, 3, NULL, NULL, &err));
    EARG(segue_session_logits(s, NULL, 0, &n, &err));
    EARG(segue_session_save(s, "/tmp/never", &err));            /* nothing computed */
    EARG(segue_session_dump(s, &token, 1, "/tmp/never", &err)); /* the engine keeps no values */
    EARG(segue_session_fork(NULL, s, &err));
    EARG(segue_session_move(s, NULL, &err));
    EARG(segue_session_rewind(s, 1, &err));
    twice[0] = twice[1] = s;
    EARG(segue_session_step(twice, 2, tokens, each, &err));
    twice[1] = NULL;
    EARG(segue_session_step(twice, 2, tokens, each, &err));
    assert_int_equal(segue_session_step(&s, 1, tokens, each, &err),
                     SEGUE_OK); /* the failed calls claimed nothing */
    assert_int_equal(each[0].status, SEGUE_EARG);
    assert_non_null(strstr(each[0].text, "empty"));
    assert_int_equal(segue_session_prefill(s, 0, &n, &err), SEGUE_OK);
    assert_int_equal(n, 0);
    segue_session_close(s);
}

/* A newer caller's struct is longer than ours, an older one's shorter: neither reads nor writes beyond
 * itself. */
static void sizes_older_and_newer(void **state)
{
    (void)state;
    struct {
        segue_model_info info;
        unsigned char beyond[64];
    } big;
    memset(&big, 0xaa, sizeof big);
    big.info.size = sizeof big;
    assert_int_equal(segue_model_info_get(model, &big.info, &err), SEGUE_OK);
    assert_int_equal(big.info.size, sizeof big);
    assert_int_equal(big.info.vocab, TINY_VOCAB);
    assert_int_equal(big.beyond[0], 0xaa);
    memset(&big, 0xaa, sizeof big);
    big.info.size = offsetof(segue_model_info, layers);
    assert_int_equal(segue_model_info_get(model, &big.info, &err), SEGUE_OK);
    assert_int_equal(big.info.layers, 0xaaaaaaaau);
    assert_int_equal(strlen(big.info.shape_id), 32);
    big.info.size = 0;
    EARG(segue_model_info_get(model, &big.info, &err));

    struct {
        segue_session_opts opts;
        unsigned char beyond[64];
    } opts;
    segue_session *s = NULL;
    memset(&opts, 0, sizeof opts);
    memset(opts.beyond, 0xaa, sizeof opts.beyond);
    opts.opts.size = sizeof opts;
    opts.opts.context = 9;
    assert_int_equal(segue_session_open(&s, engine, &opts.opts, &err), SEGUE_OK);
    segue_session_close(s);
    memset(&opts, 0xaa, sizeof opts); /* all wild but the size: an older header ended there */
    opts.opts.size = sizeof(uint32_t);
    assert_int_equal(segue_session_open(&s, engine, &opts.opts, &err), SEGUE_OK);
    segue_session_close(s);
    opts.opts.size = 0;
    EARG(segue_session_open(&s, engine, &opts.opts, &err));

    unsigned char entries[3][16]; /* entries of an older caller who knew 16 bytes */
    size_t n = 0;
    memset(entries, 0, sizeof entries);
    const uint32_t size = 16;
    memcpy(entries[0], &size, sizeof size);
    assert_int_equal(segue_unit_list((segue_unit_info *)(void *)entries, 1, &n, &err), SEGUE_OK);
    assert_true(n >= 1);
    assert_true(entries[0][4] != 0);
    assert_int_equal(entries[1][4], 0);
}

static void senseless_options(void **state)
{
    (void)state;
    segue_session *s = NULL;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_engine_opts eo = SEGUE_INIT(segue_engine_opts);
    segue_engine *e = NULL;
    segue_plan *plan = NULL;
    segue_task task = SEGUE_INIT(segue_task);
    eo.kv = 77;
    EARG(segue_engine_open(&e, model, &unit, 1, &eo, &err));
    eo.kv = 0;
    eo.chunk_tokens = UINT32_MAX;
    EARG(segue_engine_open(&e, model, &unit, 1, &eo, &err));
    task.objective = (segue_objective)9;
    EARG(segue_plan_make(&plan, engine, &task, &err));
    o.context = SIZE_MAX;
    assert_int_equal(segue_session_open(&s, engine, &o, &err), SEGUE_ELIMIT);
    o.context = 0;
    segue_part parts[17] = {{.size = sizeof *parts, .to = 1, .expect_j = -1}};
    EARG(segue_plan_new(&plan, parts, 0, NULL, &err));
    EARG(segue_plan_new(&plan, parts, 17, NULL, &err));
    assert_int_equal(segue_plan_new(&plan, parts, 1, NULL, &err), SEGUE_OK);
    o.plan = plan; /* no layers of decode */
    EARG(segue_session_open(&s, engine, &o, &err));
    segue_plan_close(plan);
    o.plan = NULL;
    o.adapters_n = 2;
    EARG(segue_session_open(&s, engine, &o, &err));
    o.adapters_n = 0;
    assert_int_equal(segue_session_open(&s, engine, &o, &err), SEGUE_OK);
    const float bad[] = {NAN, INFINITY, -INFINITY, -1};
    for (size_t i = 0; i < 4; i++) {
        segue_sampling p = SEGUE_INIT(segue_sampling);
        p.temperature = bad[i];
        EARG(segue_session_sampling(s, &p, &err));
        p = SEGUE_INIT(segue_sampling);
        p.dry_base = bad[i];
        EARG(segue_session_sampling(s, &p, &err));
    }
    struct segue_bias bias = {TINY_VOCAB, 1};
    segue_sampling p = SEGUE_INIT(segue_sampling);
    p.bias = &bias;
    p.bias_n = 1;
    EARG(segue_session_sampling(s, &p, &err));
    bias = (struct segue_bias){3, NAN};
    EARG(segue_session_sampling(s, &p, &err));
    p.bias = NULL;
    EARG(segue_session_sampling(s, &p, &err));
    p.bias_n = 0;
    p.logprobs = 22;
    EARG(segue_session_sampling(s, &p, &err));
    segue_session_close(s);
}

static void units_by_spec(void **state)
{
    (void)state;
    static const char *const bad[] = {
        ":",
        "REF",
        "ref:",
        "ref:,",
        "ref:a=",
        "ref:=1",
        "ref:a=1,a=2",
        "ref:no_such_key=1",
        "re f",
        "a-kind-that-is-far-too-long-for-a-spec",
        "ref:k=0123456789012345678901234567890123456789012345678901234567890123456789"};
    segue_unit *u = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) EARG(segue_unit_open(&u, bad[i], &err));
    assert_int_equal(segue_unit_open(&u, "nosuch:a=1", &err), SEGUE_EUNIT);
    assert_non_null(strstr(err.text, "nosuch"));
    segue_status s = segue_unit_open(&u, NULL, &err);
    assert_true(s == SEGUE_OK || s == SEGUE_EUNIT);
    if (s == SEGUE_OK) {
        segue_unit_info info = SEGUE_INIT(segue_unit_info);
        segue_energy energy = SEGUE_INIT(segue_energy), unset = {0};
        assert_int_equal(segue_unit_info_get(u, &info, &err), SEGUE_OK);
        if (segue_unit_energy(u, &energy, &err) == SEGUE_OK) { /* else the machine has no counter */
            EARG(segue_unit_energy(u, &unset, &err));
            EARG(segue_unit_energy(u, NULL, &err));
        }
        assert_string_not_equal(info.kind, "ref"); /* never chosen unless named */
        assert_int_equal(info.simulated, 0);
    }
    segue_unit_close(s == SEGUE_OK ? u : NULL);
}

static void statuses_have_names(void **state)
{
    (void)state;
    assert_string_equal(segue_status_name(SEGUE_OK), "ok");
    assert_string_equal(segue_status_name(SEGUE_END), "end");
    assert_string_equal(segue_status_name(SEGUE_EINTERNAL), "internal");
    assert_string_equal(segue_status_name(SEGUE_ELIMIT), "limit");
    assert_string_equal(segue_status_name((segue_status)-11), "unknown");
    assert_string_equal(segue_status_name((segue_status)2), "unknown");
    assert_string_equal(segue_status_name((segue_status)-2147483647 - 1), "unknown");
}

static void texts_say_their_length(void **state)
{
    (void)state;
    segue_plan *plan = NULL;
    char text[256];
    size_t len = 0, again = 0;
    assert_int_equal(segue_plan_make(&plan, engine, NULL, &err), SEGUE_OK);
    assert_int_equal(segue_plan_text(engine, plan, NULL, 0, &len, &err), SEGUE_ELIMIT);
    assert_int_equal(segue_plan_text(engine, plan, text, len - 1, &again, &err), SEGUE_ELIMIT);
    assert_int_equal(again, len);
    assert_int_equal(segue_plan_text(engine, plan, text, len + 1, &again, &err), SEGUE_OK);
    assert_int_equal(strlen(text), len);
    assert_non_null(strstr(text, "layers 0-2"));
    segue_plan_close(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_given),          cmocka_unit_test(half_given),
        cmocka_unit_test(sizes_older_and_newer),  cmocka_unit_test(senseless_options),
        cmocka_unit_test(units_by_spec),          cmocka_unit_test(statuses_have_names),
        cmocka_unit_test(texts_say_their_length),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
