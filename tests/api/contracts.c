/* contracts.c: promises of the public header that hold for every unit: arrays of structs that are longer than the library's, one
 * error per session of a step, counters of failed runs, progress and cancel of segue_engine_open. SPDX-License-Identifier: MIT */
#include <inttypes.h>
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

#define OK(call) assert_int_equal(call, SEGUE_OK)

static int open_all(void **state)
{
    (void)state;
    char folder[512];
    tiny_folder(folder, sizeof folder, "contracts", tiny_models[0].name);
    if (!tiny_write(&tiny_models[0], folder, 3) || segue_model_open(&model, folder, NULL, &err)) return -1;
    /* a unit that packs weights, so that there is something to report */
    if (segue_unit_open(&unit, "cpu:threads=1", &err) && segue_unit_open(&unit, "ref", &err)) return -1;
    return segue_engine_open(&engine, model, &unit, 1, NULL, &err) == SEGUE_OK ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    segue_engine_close(engine);
    segue_unit_close(unit);
    segue_model_close(model);
    tiny_remove("contracts");
    return 0;
}

/* A caller that was compiled with a newer header passes longer structs; their size is the distance between elements. */
static void arrays_of_longer_structs(void **state)
{
    (void)state;
    struct longer {
        segue_part part;
        unsigned char later[40];
    } parts[2];
    segue_plan *plan = NULL;
    segue_plan_info info = SEGUE_INIT(segue_plan_info);
    memset(parts, 0xaa, sizeof parts);
    for (uint32_t i = 0; i < 2; i++)
        parts[i].part = (segue_part){
            .size = sizeof *parts, .phase = i ? SEGUE_DECODE : SEGUE_PREFILL, .to = 3 + i, .expect_j = -1};
    OK(segue_plan_new(&plan, &parts[0].part, 2, NULL, &err));
    OK(segue_plan_info_get(plan, &info, &err));
    assert_int_equal(info.parts_n, 2);
    for (uint32_t i = 0; i < 2; i++) {
        segue_part part = SEGUE_INIT(segue_part);
        OK(segue_plan_part_get(plan, i, &part, &err));
        assert_int_equal(part.phase, i);
        assert_int_equal(part.to, 3 + i);
    }
    assert_int_equal(segue_plan_part_get(plan, 2, &(segue_part){.size = sizeof(segue_part)}, &err), SEGUE_END);
    segue_plan_close(plan);
}

static segue_session *session(size_t context, size_t tokens)
{
    segue_session *s = NULL;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_sampling p = SEGUE_INIT(segue_sampling);
    static const int32_t prompt[] = {5, 9, 33, 17, 60, 2};
    p.ignore_stops = 1;
    o.context = context;
    o.sampling = &p;
    OK(segue_session_open(&s, engine, &o, &err));
    OK(segue_session_append(s, prompt, tokens, &err));
    return s;
}

/* The second of three sessions has a full context, the third one no tokens: the first one's token is that of a step alone. */
static void each_session_has_its_error(void **state)
{
    (void)state;
    segue_session *alone = session(32, 6), *three[3] = {session(32, 6), session(6, 6), session(32, 0)};
    int32_t want, tokens[3];
    segue_error each[3];
    memset(each, 0xaa, sizeof each);
    OK(segue_session_next(alone, &want, &err));
    OK(segue_session_step(three, 3, tokens, each, &err));
    assert_int_equal(each[0].status, SEGUE_OK);
    assert_int_equal(tokens[0], want);
    assert_int_equal(each[1].status, SEGUE_ELIMIT);
    assert_non_null(strstr(each[1].text, "context"));
    assert_int_equal(each[2].status, SEGUE_EARG);
    assert_non_null(strstr(each[2].text, "empty"));
    for (int i = 0; i < 3; i++) segue_session_close(three[i]);
    segue_session_close(alone);
}

/* Sets all numbers of a tensor in FOLDER/model.safetensors: 8 bytes of length, a JSON header, the data. */
static void fill_tensor(const char *folder, const char *name, float value)
{
    char path[1024], header[1 << 15];
    uint64_t length = 0, from = 0, to = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fread(&length, 1, 8, f), 8);
    assert_true(length < sizeof header);
    assert_int_equal(fread(header, 1, length, f), length);
    header[length] = 0;
    const char *at = strstr(header, name);
    assert_non_null(at);
    at = strstr(at, "\"data_offsets\":[");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"data_offsets\":[%" SCNu64 ",%" SCNu64, &from, &to), 2);
    assert_int_equal(fseek(f, (long)(8 + length + from), SEEK_SET), 0);
    for (; from < to; from += sizeof value) assert_int_equal(fwrite(&value, sizeof value, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

/* K of the first layer is beyond f16 by its norm, which no estimate from the weights covers: the run fails, and its results
 * beyond f16 are counted, but not as a complete run. */
static void failed_runs_are_counted(void **state)
{
    (void)state;
    char folder[512];
    segue_model *huge = NULL;
    segue_engine *e = NULL;
    segue_session *s = NULL;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    segue_stats stats = SEGUE_INIT(segue_stats);
    segue_use use = SEGUE_INIT(segue_use);
    segue_unit_info info = SEGUE_INIT(segue_unit_info);
    const int32_t prompt[] = {5, 9, 33};
    int32_t token;
    OK(segue_unit_info_get(unit, &info, &err));
    if (strcmp(info.kind, "cpu") != 0) skip(); /* the reference counts nothing */
    tiny_folder(folder, sizeof folder, "contracts", tiny_models[1].name);
    assert_true(tiny_write(&tiny_models[1], folder, 3));
    fill_tensor(folder, "model.layers.0.self_attn.k_norm.weight", 1e6f);
    OK(segue_model_open(&huge, folder, NULL, &err));
    o.kv = SEGUE_KV_F16;
    OK(segue_engine_open(&e, huge, &unit, 1, &o, &err));
    OK(segue_session_open(&s, e, NULL, &err));
    OK(segue_session_append(s, prompt, 3, &err));
    assert_int_equal(segue_session_next(s, &token, &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "K of layer 0"));
    OK(segue_session_stats_get(s, &stats, &err));
    assert_int_equal(stats.uses_n, 1);
    OK(segue_session_use_get(s, 0, &use, &err));
    assert_true(use.overflows > 0 && use.dispatches > 0);
    assert_int_equal(use.runs, 0);
    assert_int_equal(use.tokens, 0);
    segue_session_close(s);
    segue_engine_close(e);
    segue_model_close(huge);
}

struct progress_calls {
    uint64_t last, total;
    unsigned calls, cancel_at;       /* cancel_at: number of the call that asks to stop; 0: none */
};

static int on_progress(void *context, uint64_t done, uint64_t total)
{
    struct progress_calls *p = context;
    assert_true(done >= p->last && done <= total);
    assert_true(!p->total || p->total == total);
    p->last = done;
    p->total = total;
    return ++p->calls == p->cancel_at;
}

static void opening_reports_progress_and_can_be_canceled(void **state)
{
    (void)state;
    segue_engine *e = NULL;
    struct progress_calls all = {0};
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    o.progress = on_progress;
    o.progress_context = &all;
    OK(segue_engine_open(&e, model, &unit, 1, &o, &err));
    segue_engine_close(e);
    assert_true(all.calls >= 2 && all.total > 0);
    assert_int_equal(all.last, all.total);
    for (unsigned at = 1; at <= all.calls; at++) {
        struct progress_calls p = {.cancel_at = at};
        o.progress_context = &p;
        assert_int_equal(segue_engine_open(&e, model, &unit, 1, &o, &err), SEGUE_ECANCELED);
        assert_non_null(strstr(err.text, "canceled"));
        assert_int_equal(p.calls, at); /* no call after the one that asked to stop */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_of_longer_structs),
        cmocka_unit_test(each_session_has_its_error),
        cmocka_unit_test(failed_runs_are_counted),
        cmocka_unit_test(opening_reports_progress_and_can_be_canceled),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
