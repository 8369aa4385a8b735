/* weights_id.c: the id of the weights covers every byte of a large file: two models that differ only between the pages of a
 * sample have two ids, and neither takes the other's saved state or stored prefixes. Ids are remembered only where no other user
 * can write. SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "segue.h"

/* A llama2.c file of 96 MiB, nearly all of it zeros: three matrices of 16 MiB in each of two layers. */
enum { DIM = 32, HIDDEN = 131072, LAYERS = 2, HEADS = 2, KV = 1, VOCAB = 96, LENGTH = 64, N = 24 };
#define OK(expr)                                          \
    do {                                                  \
        if ((expr) != SEGUE_OK) fail_msg("%s", err.text); \
    } while (0)

#if defined(__SANITIZE_THREAD__) /* tests that start the same threads as the others are left out */
enum { THREADS_ONLY = 1 };
#else
enum { THREADS_ONLY = 0 };
#endif

static segue_error err;
static segue_unit *unit;
static char folder[] = "/tmp/segue-weights-XXXXXX";
static int32_t tokens[N];

static const char *in_folder(const char *name)
{
    static char path[8][256];
    static int next;
    char *out = path[next++ % 8];
    snprintf(out, sizeof path[0], "%s/%s", folder, name);
    return out;
}

/* down: written into the down projections, once per MiB, 40,000 bytes after the page that a sample would read. */
static void write_model(const char *name, float down)
{
    const int32_t head[7] = {DIM, HIDDEN, LAYERS, HEADS, KV, VOCAB, LENGTH};
    const uint64_t kv = DIM / HEADS * KV, embed = VOCAB * DIM;
    const uint64_t before = embed + LAYERS * (DIM + DIM * DIM + 2 * kv * DIM + DIM * DIM + DIM + (uint64_t)HIDDEN * DIM);
    const uint64_t all = before + 2 * (uint64_t)LAYERS * HIDDEN * DIM + DIM + LENGTH * (DIM / HEADS / 2) * 2;
    int fd = open(in_folder(name), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)(28 + 4 * all)), 0);
    assert_int_equal(pwrite(fd, head, sizeof head, 0), sizeof head);
    for (uint64_t at = 40000; at < 4 * (uint64_t)LAYERS * HIDDEN * DIM; at += 1 << 20)
        assert_int_equal(pwrite(fd, &down, sizeof down, (off_t)(28 + 4 * before + at)), sizeof down);
    close(fd);
}

static segue_model *open_model(const char *name)
{
    segue_model *m = NULL;
    segue_model_opts o = SEGUE_INIT(segue_model_opts);
    o.no_text = 1;
    OK(segue_model_open(&m, in_folder(name), &o, &err));
    return m;
}

static segue_engine *open_engine(segue_model *m, const char *store, const char *cache)
{
    segue_engine *e = NULL;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    o.store = store;
    o.cache = cache;
    OK(segue_engine_open(&e, m, &unit, 1, &o, &err));
    return e;
}

static segue_session *open_session(segue_engine *e)
{
    segue_session *s = NULL;
    OK(segue_session_open(&s, e, NULL, &err));
    OK(segue_session_append(s, tokens, N, &err));
    OK(segue_session_prefill(s, 0, NULL, &err));
    return s;
}

static int begin(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) tokens[i] = (i * 31 + 5) % VOCAB;
    if (!mkdtemp(folder) || segue_unit_open(&unit, "ref", &err) != SEGUE_OK) return -1;
    write_model("one.bin", 0.5f);
    write_model("two.bin", 0.25f);
    return 0;
}

static void clear(const char *path)
{
    char inner[512];
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        if (unlink(inner)) clear(inner);
    }
    if (d) closedir(d);
    rmdir(path);
}

static int end(void **state)
{
    (void)state;
    segue_unit_close(unit);
    clear(folder);
    return 0;
}

static void ids_differ(void **state)
{
    (void)state;
    segue_model *one = open_model("one.bin"), *two = open_model("two.bin"), *again = open_model("one.bin");
    char a[33], b[33], c[33];
    segue_model_info info = SEGUE_INIT(segue_model_info);
    OK(segue_model_info_get(one, &info, &err));
    assert_string_equal(info.weights_id, ""); /* opening reads no tensor data */
    OK(segue_model_weights_id(one, NULL, a, &err));
    OK(segue_model_weights_id(two, NULL, b, &err));
    OK(segue_model_weights_id(again, NULL, c, &err));
    assert_string_not_equal(a, b);
    assert_string_equal(a, c);
    OK(segue_model_info_get(one, &info, &err));
    assert_string_equal(info.weights_id, a);
    segue_model_close(one);
    segue_model_close(two);
    segue_model_close(again);
}

static void states_of_the_other_are_refused(void **state)
{
    (void)state;
    if (THREADS_ONLY) skip();
    segue_model *one = open_model("one.bin"), *two = open_model("two.bin");
    segue_engine *e1 = open_engine(one, NULL, NULL), *e2 = open_engine(two, NULL, NULL);
    segue_session *s = open_session(e1), *loaded = NULL;
    OK(segue_session_save(s, in_folder("one.state"), &err));
    assert_int_equal(segue_session_load(&loaded, e2, NULL, in_folder("one.state"), &err), SEGUE_EFORMAT);
    assert_non_null(strstr(err.text, "other weights"));
    OK(segue_session_load(&loaded, e1, NULL, in_folder("one.state"), &err));
    segue_session_close(loaded);
    segue_session_close(s);
    segue_engine_close(e1);
    segue_engine_close(e2);
    segue_model_close(one);
    segue_model_close(two);
}

/* Tokens that a session on a new engine takes from the store. */
static size_t reused(const char *model)
{
    segue_model *m = open_model(model);
    segue_engine *e = open_engine(m, in_folder("store"), NULL);
    segue_session *s = open_session(e);
    segue_stats stats = SEGUE_INIT(segue_stats);
    OK(segue_session_stats_get(s, &stats, &err));
    segue_session_close(s);
    segue_engine_close(e);
    segue_model_close(m);
    return stats.tokens_reused;
}

static void prefixes_of_the_other_are_not_used(void **state)
{
    (void)state;
    if (THREADS_ONLY) skip();
    assert_int_equal(reused("one.bin"), 0);
    assert_int_equal(reused("two.bin"), 0);
    assert_true(reused("one.bin") >= N - 1);
}

/* A file that changes while its weights are in use has no id, so its states are not saved. */
static void changed_files_have_no_id(void **state)
{
    (void)state;
    if (THREADS_ONLY) skip();
    char id[33];
    write_model("three.bin", 1);
    segue_model *m = open_model("three.bin");
    struct timespec times[2] = {{1, 0}, {1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, in_folder("three.bin"), times, 0), 0);
    assert_int_equal(segue_model_weights_id(m, NULL, id, &err), SEGUE_EIO);
    assert_non_null(strstr(err.text, "changed"));
    segue_model_close(m);
}

/* Closing a model right after an engine began to hash it neither hangs nor leaks. */
static void closing_stops_hashing(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        segue_model *m = open_model("one.bin");
        segue_engine_close(open_engine(m, NULL, in_folder("cache")));
        segue_model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_differ),
        cmocka_unit_test(states_of_the_other_are_refused),
        cmocka_unit_test(prefixes_of_the_other_are_not_used),
        cmocka_unit_test(changed_files_have_no_id),
        cmocka_unit_test(closing_stops_hashing),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
