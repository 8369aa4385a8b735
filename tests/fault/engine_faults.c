/* engine_faults.c: the n-th allocation fails on the whole way from opening a model to closing it, on every unit and tiny model:
 * the call says EMEMORY (or gets by), everything closes, nothing leaks. Every n on `cpu`; of units that repeat the same
 * allocations in every pass, or that start a process or compile texts, some, others on each model; with the argument `all`
 * every n on every unit. Every n-th write fails while a session is saved or dumped: the old file stays, nothing half-written is
 * left. After the first token nothing allocates. SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../api/tiny.h"
#include "base/mem.h"
#include "segue.h"

enum { PROMPT = 13, TOKENS = 8, MANY = 100000, UNITS_MAX = 8 };

static int32_t prompt[PROMPT];
static char specs[UNITS_MAX][64];
static uint32_t specs_n;
static char folders[TINY_MODELS][512];
static int all_points; /* 1: every allocation on every unit */
static char pair[512]; /* the first model with two heads of K and V, for two ranks */

static int write_pair(void)
{
    struct tiny_model m = tiny_models[0];
    char config[1024], *heads;
    snprintf(config, sizeof config, "%s", m.config);
    heads = strstr(config, "num_key_value_heads\":1");
    if (!heads) return 0;
    heads[strlen("num_key_value_heads\":")] = '2';
    m.config = config;
    for (size_t i = 0; i < sizeof m.parts / sizeof *m.parts && m.parts[i].name; i++)
        if (strstr(m.parts[i].name, "k_proj") || strstr(m.parts[i].name, "v_proj")) m.parts[i].shape[0] = 32;
    tiny_folder(pair, sizeof pair, "faults", "pair");
    return tiny_write(&m, pair, 5);
}

static void remove_pair(void)
{
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", pair);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", pair);
    unlink(path);
    rmdir(pair);
}

static int begin(void **state)
{
    (void)state;
    segue_unit_info info[UNITS_MAX];
    size_t n = 0;
    info[0] = SEGUE_INIT(segue_unit_info);
    if (segue_unit_list(info, UNITS_MAX, &n, NULL) != SEGUE_OK) return -1;
    for (size_t i = 0; i < n && i < UNITS_MAX; i++)
        if (info[i].present)
            snprintf(specs[specs_n++], sizeof specs[0], "%s:threads=%d",
                     strcmp(info[i].kind, "proc") ? info[i].kind : info[i].spec, i ? 2 : 1);
    if (specs_n < UNITS_MAX) snprintf(specs[specs_n++], sizeof specs[0], "ref:ranks=2,threads=1"); /* several units as one */
    for (int i = 0; i < PROMPT; i++) prompt[i] = (i * 17 + 5) % 93 + 3;
    for (int i = 0; i < TINY_MODELS; i++) {
        tiny_folder(folders[i], sizeof folders[i], "faults", tiny_models[i].name);
        if (!tiny_write(&tiny_models[i], folders[i], 5)) return -1;
    }
    if (!write_pair()) return -1;
    return 0;
}

static int end(void **state)
{
    (void)state;
    sg_fault_alloc(0);
    remove_pair();
    tiny_remove("faults");
    return 0;
}

struct way {
    segue_model *model;
    segue_unit *unit;
    segue_engine *engine;
    segue_session *session, *fork;
    const char *store; /* of the engine */
    segue_error err;
};

static segue_status walk(struct way *w, const char *folder, const char *spec)
{
    const struct segue_bias bias = {4, 0.5f};
    segue_sampling p = SEGUE_INIT(segue_sampling);
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_engine_opts eo = SEGUE_INIT(segue_engine_opts);
    int32_t token;
    p.bias = &bias;
    p.bias_n = 1;
    p.ignore_stops = 1;
    p.temperature = 1;
    p.logprobs = 3;
    o.sampling = &p;
    o.context = 64;
    eo.chunk_tokens = 5;
    eo.store = w->store;
    segue_status s = segue_model_open(&w->model, folder, NULL, &w->err);
    if (s == SEGUE_OK) s = segue_unit_open(&w->unit, spec, &w->err);
    if (s == SEGUE_OK) s = segue_engine_open(&w->engine, w->model, &w->unit, 1, &eo, &w->err);
    if (s == SEGUE_OK) s = segue_session_open(&w->session, w->engine, &o, &w->err);
    if (s == SEGUE_OK) s = segue_session_append(w->session, prompt, PROMPT, &w->err);
    for (int i = 0; s == SEGUE_OK && i < TOKENS; i++) s = segue_session_next(w->session, &token, &w->err);
    if (s == SEGUE_OK) s = segue_session_rewind(w->session, PROMPT - 3, &w->err);
    if (s == SEGUE_OK) s = segue_session_next(w->session, &token, &w->err);
    if (s == SEGUE_OK) s = segue_session_fork(&w->fork, w->session, &w->err);
    if (s == SEGUE_OK) s = segue_session_next(w->fork, &token, &w->err);
    return s;
}

static void leave(struct way *w)
{
    segue_model_close(w->model);
    segue_unit_close(w->unit);
    segue_engine_close(w->engine);
    segue_session_close(w->session);
    segue_session_close(w->fork);
    *w = (struct way){.store = w->store};
}

static size_t in_use(void)
{
#if defined(__SANITIZE_ADDRESS__)
    return 0; /* the sanitizer looks for leaks itself */
#else
    return mallinfo2().uordblks;
#endif
}

/* How many there are. */
static uint64_t allocations(struct way *w, const char *folder, const char *spec)
{
    enum { FAR = 20000 };
    uint64_t left = 0;
    sg_fault_alloc(FAR);
    segue_status s = walk(w, folder, spec);
    for (void *probe; left < FAR && (probe = sg_alloc(1)); left++) sg_free(probe);
    sg_fault_alloc(0);
    if (s != SEGUE_OK) fail_msg("%s: %s", spec, w->err.text);
    leave(w);
    assert_true(left > 0);
    return FAR - left;
}

/* How many of a unit's allocations fail on one model; 0: all. */
static uint64_t points_of(const char *spec)
{
    if (all_points || !strncmp(spec, "cpu", 3)) return 0;
    return !strncmp(spec, "proc", 4) ? 60 : !strncmp(spec, "ane", 3) ? 100 : 300;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (uint32_t u = 0; u < specs_n; u++)
        for (int m = 0; m < TINY_MODELS; m++) {
            struct way w = {.store = ""}; /* in memory */
            int several = strstr(specs[u], "ranks") != NULL;
            const char *folder = several ? pair : folders[m];
            if (several && m) continue;
            segue_status s = walk(&w, folder, specs[u]); /* once without: what libraries keep for good */
            if (s != SEGUE_OK) fail_msg("%s on %s: %s", tiny_models[m].name, specs[u], w.err.text);
            leave(&w);
            uint64_t n = 1, failed = 0, tried = 0, stride = 1, all = UINT64_MAX, points = points_of(specs[u]);
            if (points) {
                all = allocations(&w, folder, specs[u]);
                stride = (all + points - 1) / points;
                n += (uint64_t)m % stride;
            }
            for (;; n += stride, tried++) {
                size_t before = in_use();
                sg_fault_alloc(n);
                s = walk(&w, folder, specs[u]);
                void *probe = s == SEGUE_OK ? sg_alloc(1)
                                            : NULL; /* NULL: the fault had not struck yet, and strikes here */
                int over = s == SEGUE_OK && !probe;
                sg_free(probe);
                sg_fault_alloc(0);
                if (s != SEGUE_OK && s != SEGUE_EMEMORY)
                    fail_msg("%s on %s: allocation %llu: %d: %s", tiny_models[m].name, specs[u],
                             (unsigned long long)n, s, w.err.text);
                if (s != SEGUE_OK) assert_true(w.err.status == s && w.err.text[0]);
                failed += s != SEGUE_OK;
                leave(&w);
                size_t after = in_use();
                if (after > before + 64)
                    fail_msg("%s on %s: allocation %llu: %zu bytes leaked", tiny_models[m].name, specs[u],
                             (unsigned long long)n, after - before);
                if (over || n >= MANY || n > all) break;
            }
            assert_true(2 * failed > tried && failed >= 25 && n < MANY);
            print_message("%s on %s: %llu of %llu allocations, %llu of them vital\n", tiny_models[m].name, specs[u],
                          (unsigned long long)tried, (unsigned long long)n, (unsigned long long)failed);
        }
}

static void tokens_do_not_allocate(void **state)
{
    (void)state;
    for (uint32_t u = 0; u < specs_n; u++)
        for (int m = 0; m < TINY_MODELS; m++) {
            if (strncmp(specs[u], "ref", 3) == 0) continue;  /* the specification takes memory for each run */
            if (strncmp(specs[u], "ane", 3) == 0) continue;  /* so does the helper of an engine */
            if (strncmp(specs[u], "proc", 4) == 0) continue; /* so do messages to another process */
            struct way w = {0};
            segue_session *both[2];
            int32_t tokens[2];
            segue_error each[2];
            assert_int_equal(walk(&w, folders[m], specs[u]), SEGUE_OK);
            both[0] = w.session;
            both[1] = w.fork;
            for (int i = 0; i < 2; i++) /* the first is each session's second token, and taken alone */
                assert_int_equal(segue_session_step(both, 2, tokens, each, &w.err), SEGUE_OK);
            sg_fault_alloc(1);
            for (int i = 0; i < TOKENS; i++) {
                segue_status s = segue_session_next(w.session, tokens, &w.err);
                if (s != SEGUE_OK)
                    fail_msg("%s on %s: token %d: %s", tiny_models[m].name, specs[u], i, w.err.text);
                assert_int_equal(segue_session_step(both, 2, tokens, each, &w.err), SEGUE_OK);
                for (int k = 0; k < 2; k++)
                    if (each[k].status != SEGUE_OK)
                        fail_msg("%s on %s: step %d: %s", tiny_models[m].name, specs[u], i, each[k].text);
            }
            void *probe = sg_alloc(1); /* the fault waited all the time */
            sg_fault_alloc(0);
            if (probe) fail_msg("%s on %s: a token allocated", tiny_models[m].name, specs[u]);
            leave(&w);
        }
}

static size_t files_in(const char *folder)
{
    size_t n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void half_a_file_is_never_left(void **state)
{
    (void)state;
    struct way w = {0};
    char path[1024], old[4];
    assert_int_equal(walk(&w, folders[2], specs[0]), SEGUE_OK);
    segue_engine_opts eo = SEGUE_INIT(segue_engine_opts);
    segue_engine *keeping = NULL;
    eo.keep_values = 1;
    assert_int_equal(segue_engine_open(&keeping, w.model, &w.unit, 1, &eo, &w.err), SEGUE_OK);
    for (int dump = 0; dump < 2; dump++) {
        snprintf(path, sizeof path, "%s/file", folders[2]);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs("old", f);
        fclose(f);
        size_t files = files_in(folders[2]);
        segue_status s = SEGUE_EIO;
        uint64_t n = 1;
        for (; s != SEGUE_OK && n < 1000; n++) {
            segue_session *fresh = NULL;
            if (dump) assert_int_equal(segue_session_open(&fresh, keeping, NULL, &w.err), SEGUE_OK);
            sg_fault_write(n);
            s = dump ? segue_session_dump(fresh, prompt, PROMPT, path, &w.err)
                     : segue_session_save(w.session, path, &w.err);
            sg_fault_write(0);
            segue_session_close(fresh);
            assert_int_equal(files_in(folders[2]), files);
            if (s == SEGUE_OK) break;
            assert_int_equal(s, SEGUE_EIO);
            assert_non_null(strstr(w.err.text, "file"));
            f = fopen(path, "r");
            assert_non_null(f);
            assert_int_equal(fread(old, 1, 4, f), 3);
            fclose(f);
        }
        assert_true(n > 2 && n < 1000);
        assert_int_equal(unlink(path), 0);
    }
    segue_engine_close(keeping);
    leave(&w);
}

/* Every n-th write of the prefix store fails: no call reports an error, no half file is left, and every file in the folder
 * is whole. */
static void a_full_disk_costs_the_store_alone(void **state)
{
    (void)state;
    char path[1024];
    snprintf(path, sizeof path, "%s/prefixes", folders[2]);
    for (uint64_t n = 1; n < 60; n++) {
        struct way w = {0};
        segue_engine_opts eo = SEGUE_INIT(segue_engine_opts);
        int32_t text[40], token;
        eo.store = path;
        for (int i = 0; i < 40; i++) text[i] = (int32_t)(i * 3 + (int)n) % 93 + 3;
        assert_int_equal(segue_model_open(&w.model, folders[2], NULL, &w.err), SEGUE_OK);
        assert_int_equal(segue_unit_open(&w.unit, specs[0], &w.err), SEGUE_OK);
        assert_int_equal(segue_engine_open(&w.engine, w.model, &w.unit, 1, &eo, &w.err), SEGUE_OK);
        assert_int_equal(segue_session_open(&w.session, w.engine, NULL, &w.err), SEGUE_OK);
        assert_int_equal(segue_session_append(w.session, text, 40, &w.err), SEGUE_OK);
        assert_true(segue_session_next(w.session, &token, &w.err) >= 0);
        size_t files = files_in(path);
        sg_fault_write(n);
        leave(&w);
        sg_fault_write(0);
        size_t left = files_in(path);
        assert_true(left == files || left == files + 1);
        if (n == 1) assert_int_equal(left, files);
        if (n == 59) assert_int_equal(left, files + 1);
    }
    DIR *d = opendir(path);
    for (struct dirent *f; (f = readdir(d));) {
        char file[2048];
        snprintf(file, sizeof file, "%s/%s", path, f->d_name);
        assert_null(strstr(f->d_name, ".tmp-"));
        unlink(file);
    }
    closedir(d);
    rmdir(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(tokens_do_not_allocate),
        cmocka_unit_test(half_a_file_is_never_left),
        cmocka_unit_test(a_full_disk_costs_the_store_alone),
    };
    all_points = argc > 1 && !strcmp(argv[1], "all");
    return cmocka_run_group_tests(tests, begin, end);
}
