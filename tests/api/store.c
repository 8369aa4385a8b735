/* store.c: the prefix store: what one session computed another continues from, bit for bit as if it had read
 * the same text in the same pieces, also after a restart; another unit, storage or model takes nothing;
 * damage is dropped and never used; budgets hold; many threads and processes share one folder.
 * SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "engine/session/session.h"
#include "segue.h"
#include "tiny.h"

enum { HEAD = 150, TAIL = 40, UNITS_MAX = 8, CHUNK = 64, HYBRID = 2 };
#define OK(expr)                                          \
    do {                                                  \
        if ((expr) != SEGUE_OK) fail_msg("%s", err.text); \
    } while (0)

#if defined(__SANITIZE_THREAD__) /* tests with one thread are left out */
enum { THREADS_ONLY = 1 };
#else
enum { THREADS_ONLY = 0 };
#endif

static segue_error err;
static segue_unit *units[UNITS_MAX];
static uint32_t units_n;
static segue_model *models[TINY_MODELS];
static int32_t head[HEAD], tails[4][TAIL];
static char folder[512];

static int begin(void **state)
{
    (void)state;
    segue_unit_info info[UNITS_MAX];
    char at[512];
    size_t n = 0;
    info[0] = SEGUE_INIT(segue_unit_info);
    if (segue_unit_list(info, UNITS_MAX, &n, &err) != SEGUE_OK) return -1;
    for (size_t i = 0; i < n && i < UNITS_MAX; i++)
        if (info[i].present && !info[i].simulated && units_n < 2 &&
            segue_unit_open(&units[units_n], info[i].spec, &err) == SEGUE_OK)
            units_n++;
    for (int i = 0; i < HEAD; i++) head[i] = (i * 31 + i / 7) % 93 + 3;
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < TAIL; i++) tails[k][i] = (i * 7 + k * 41) % 93 + 3;
    for (int i = 0; i < TINY_MODELS; i++) {
        tiny_folder(at, sizeof at, "store", tiny_models[i].name);
        if (!tiny_write(&tiny_models[i], at, 5)) return -1;
        if (segue_model_open(&models[i], at, NULL, &err) != SEGUE_OK) return -1;
    }
    tiny_folder(folder, sizeof folder, "store", "prefixes");
    return 0;
}

static int end(void **state)
{
    (void)state;
    tiny_empty(folder);
    for (uint32_t i = 0; i < units_n; i++) segue_unit_close(units[i]);
    for (int i = 0; i < TINY_MODELS; i++) segue_model_close(models[i]);
    tiny_remove("store");
    return 0;
}

struct wish {
    uint32_t reader, writer, kv;
    const char *store;
    uint64_t memory, disk;
};

static segue_engine *engine(int model, struct wish w)
{
    segue_engine *e = NULL;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    segue_unit *const list[2] = {units[w.reader], units[w.writer]};
    o.chunk_tokens = CHUNK;
    o.kv = w.kv;
    o.store = w.store;
    o.store_memory_bytes = w.memory;
    o.store_disk_bytes = w.disk;
    OK(segue_engine_open(&e, models[model], list, w.reader == w.writer ? 1 : 2, &o, &err));
    return e;
}

static segue_session *session(segue_engine *e)
{
    segue_session *s = NULL;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_sampling p = SEGUE_INIT(segue_sampling);
    p.ignore_stops = 1;
    o.sampling = &p;
    o.context = 400;
    OK(segue_session_open(&s, e, &o, &err));
    return s;
}

static segue_stats stats(const segue_session *s)
{
    segue_stats st = SEGUE_INIT(segue_stats);
    OK(segue_session_stats_get(s, &st, &err));
    return st;
}

static void read_text(segue_session *s, const int32_t *tokens, size_t n)
{
    OK(segue_session_append(s, tokens, n, &err));
    OK(segue_session_prefill(s, 0, NULL, &err));
}

static void same_logits(segue_session *a, segue_session *b)
{
    float x[TINY_VOCAB], y[TINY_VOCAB];
    size_t n = 0;
    OK(segue_session_logits(a, x, TINY_VOCAB, &n, &err));
    OK(segue_session_logits(b, y, TINY_VOCAB, &n, &err));
    assert_memory_equal(x, y, n * sizeof *x);
}

static size_t files(uint64_t *bytes)
{
    size_t n = 0;
    char path[1024];
    struct stat st;
    DIR *d = opendir(folder);
    *bytes = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (stat(path, &st)) { /* the store's writer removed it */
            assert_int_equal(errno, ENOENT);
            continue;
        }
        assert_int_equal(st.st_mode & 0777, 0600);
        *bytes += (uint64_t)st.st_size;
        n++;
    }
    if (d) closedir(d);
    return n;
}

/* head + one tail are computed; then head + another tail must continue where they differ, for models whose memory
 * can be cut, and at a point before that for the others. */
static void give(segue_engine *e)
{
    segue_session *s = session(e);
    int32_t token;
    read_text(s, head, HEAD);
    read_text(s, tails[0], TAIL);
    for (int i = 0; i < 3; i++) OK(segue_session_next(s, &token, &err));
    segue_session_close(s);
}

static void take(segue_engine *e, int model, struct wish w, int tail, size_t lost_max)
{
    w.store = NULL;
    segue_engine *plain = engine(model, w);
    segue_session *s = session(e), *straight = session(plain);
    OK(segue_session_append(s, head, HEAD, &err));
    read_text(s, tails[tail], TAIL);
    size_t reused = stats(s).tokens_reused;
    if (reused + lost_max < HEAD || reused > HEAD)
        fail_msg("%s: %zu of %d reused (%s)", tiny_models[model].name, reused, HEAD, stats(s).reuse_reason);
    assert_true(stats(s).tokens_in == HEAD + TAIL - reused);
    int32_t whole[HEAD + TAIL];
    memcpy(whole, head, sizeof head);
    memcpy(whole + HEAD, tails[tail], sizeof tails[tail]);
    read_text(straight, whole, reused);
    read_text(straight, whole + reused, HEAD + TAIL - reused);
    same_logits(s, straight);
    segue_session_close(s);
    segue_session_close(straight);
    segue_engine_close(plain);
}

static void others_go_on(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        for (uint32_t a = 0; a < units_n; a++)
            for (uint32_t k = 0; k < 2; k++) { /* alone, and with the next one */
                uint32_t b = (a + k) % units_n;
                struct wish w = {.reader = a, .writer = b, .kv = SEGUE_KV_F32, .store = folder};
                segue_engine *e = engine(m, w);
                uint64_t bytes;
                give(e);
                take(e, m, w, 1, 0); /* from memory */
                segue_engine_close(e);
                assert_true(files(&bytes) > 0);
                e = engine(m, w);
                take(e, m, w, 2,
                     m == 1   ? HEAD
                     : a == b ? 0
                              : TAIL); /* from disk; files of windowed models hold no points */
                segue_engine_close(e);
                tiny_empty(folder);
            }
}

/* The whole text again: nothing but, at most, its last token is computed, and the same tokens follow. */
static void the_same_again(void **state)
{
    (void)state;
    if (THREADS_ONLY) skip();
    for (int m = 0; m < TINY_MODELS; m++) {
        struct wish w = {.store = folder};
        int32_t first[6], token;
        for (int round = 0; round < 3; round++) {
            segue_engine *e = engine(m, w);
            for (int again = 0; again < 2; again++) {
                segue_session *s = session(e);
                OK(segue_session_append(s, head, HEAD, &err));
                for (int i = 0; i < 6; i++) {
                    OK(segue_session_next(s, &token, &err));
                    if (!round && !again) first[i] = token;
                    assert_int_equal(token, first[i]);
                }
                if (again) {
                    assert_true(stats(s).tokens_reused >= HEAD - 1);
                    assert_string_equal(stats(s).reuse_reason, "all");
                }
                if (!round && !again) assert_string_equal(stats(s).reuse_reason, "first-use");
                segue_session_close(s);
            }
            segue_engine_close(e);
        }
        tiny_empty(folder);
    }
}

static size_t reused_by(int model, struct wish w)
{
    segue_engine *e = engine(model, w);
    segue_session *s = session(e);
    OK(segue_session_append(s, head, HEAD, &err));
    read_text(s, tails[1], TAIL);
    size_t reused = stats(s).tokens_reused;
    segue_session_close(s);
    segue_engine_close(e);
    return reused;
}

static void strangers_take_nothing(void **state)
{
    (void)state;
    if (THREADS_ONLY) skip();
    struct wish w = {.kv = SEGUE_KV_F32, .store = folder}, other = w;
    segue_engine *e = engine(0, w);
    give(e);
    segue_engine_close(e);
    other.kv = SEGUE_KV_F16;
    assert_int_equal(reused_by(0, other), 0);
    other = w;
    if (units_n > 1) {
        other.reader = other.writer = 1;
        assert_int_equal(reused_by(0, other), 0);
        other.reader = 0;
        assert_int_equal(reused_by(0, other), 0);
    }
    assert_int_equal(reused_by(2, w), 0);
    assert_true(reused_by(0, w) > 0);
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_session *s = NULL;
    o.no_store = 1;
    e = engine(0, w);
    OK(segue_session_open(&s, e, &o, &err));
    read_text(s, head, HEAD);
    assert_int_equal(stats(s).tokens_reused, 0);
    segue_session_close(s);
    segue_engine_close(e);
    tiny_empty(folder);
}

/* A draft, and a draft of it, write nothing, until a token is asked of them. A cancel between calls is not lost on a draft. */
static void drafts_write_nothing(void **state)
{
    (void)state;
    if (THREADS_ONLY) skip();
    for (int use = 0; use < 2; use++) {
        struct wish w = {.store = folder};
        uint64_t bytes;
        segue_engine *e = engine(HYBRID, w);
        segue_session_opts o = SEGUE_INIT(segue_session_opts);
        segue_session *s = NULL, *draft = NULL, *second = NULL;
        int32_t token;
        size_t n = 0;
        o.drafts = 1;
        OK(segue_session_open(&s, e, &o, &err));
        OK(segue_session_append(s, head, 1, &err)); /* too short for the store */
        OK(segue_session_prefill(s, 0, NULL, &err));
        OK(segue_session_fork(&draft, s, &err));
        read_text(draft, head, HEAD);
        OK(segue_session_fork(&second, draft, &err));
        OK(segue_session_append(second, tails[0], TAIL, &err));
        segue_session_cancel(second);
        assert_int_equal(segue_session_prefill(second, 0, &n, &err), SEGUE_ECANCELED);
        assert_int_equal(n, 0);
        OK(segue_session_prefill(second, 0, &n, &err)); /* it was met once */
        assert_int_equal(n, TAIL);
        segue_session_cancel(second);
        if (use) OK(segue_session_next(second, &token, &err)); /* no draft any more: without effect as on others */
        segue_session_close(second);
        segue_session_close(draft);
        segue_session_close(s);
        segue_engine_close(e);
        assert_int_equal(files(&bytes) > 0, use);
    }
    tiny_empty(folder);
}

/* Any bit of any file: the file is dropped, nothing of it is used, and the answer is that of a fresh session.
 */
static void damage_is_dropped(void **state)
{
    (void)state;
    if (THREADS_ONLY) skip();
    struct wish w = {.store = folder};
    char path[1024] = "";
    uint64_t bytes, before;
    segue_engine *e = engine(HYBRID, w), *plain;
    segue_session *straight;
    give(e);
    segue_engine_close(e);
    struct wish none = {0};
    plain = engine(HYBRID, none);
    straight = session(plain);
    OK(segue_session_append(straight, head, HEAD, &err));
    read_text(straight, tails[0], TAIL);
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));)
        if (f->d_name[0] != '.') snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
    closedir(d);
    FILE *file = fopen(path, "rb");
    static unsigned char whole[1 << 20];
    size_t n = fread(whole, 1, sizeof whole, file);
    fclose(file);
    for (size_t at = 24; at < n; at += n / 60) {
        tiny_empty(folder);
        assert_int_equal(mkdir(folder, 0700), 0);
        whole[at] ^= 16;
        file = fopen(path, "wb");
        fwrite(whole, 1, n, file);
        fclose(file);
        whole[at] ^= 16;
        assert_int_equal(chmod(path, 0600), 0);
        w.disk = 1; /* nothing new is written */
        e = engine(HYBRID, w);
        segue_session *s = session(e);
        OK(segue_session_append(s, head, HEAD, &err));
        read_text(s, tails[0], TAIL);
        if (stats(s).tokens_reused)
            fail_msg("byte %zu of %zu: %zu tokens of a damaged file", at, n, stats(s).tokens_reused);
        same_logits(s, straight);
        segue_session_close(s);
        segue_engine_close(e);
        before = files(&bytes);
        assert_true(before <= 1); /* unreadable headers stay until room is needed */
    }
    segue_session_close(straight);
    segue_engine_close(plain);
    tiny_empty(folder);
}

static void budgets_hold(void **state)
{
    (void)state;
    if (THREADS_ONLY) skip();
    for (int m = 0; m < TINY_MODELS; m += HYBRID) {
        struct wish w = {.store = folder, .memory = 100 << 10, .disk = 200 << 10};
        segue_engine *e = engine(m, w);
        uint64_t bytes;
        int evicted = 0;
        for (int i = 0; i < 40; i++) {
            segue_session *s = session(e);
            int32_t text[HEAD];
            for (int k = 0; k < HEAD; k++) text[k] = (head[k] + (k > 20) * i * 7) % 93 + 3;
            read_text(s, text, HEAD);
            segue_session_close(s);
            s = session(e);
            for (int k = 0; k < HEAD; k++) text[k] = (head[k] + (k > 20) * (i / 2) * 7) % 93 + 3;
            read_text(s, text, HEAD);
            evicted += !strcmp(stats(s).reuse_reason, "evicted");
            segue_session_close(s);
            files(&bytes);
            assert_true(bytes <= w.disk);
        }
        segue_engine_close(e);
        assert_true(files(&bytes) > 0 && bytes <= w.disk);
        w.store = ""; /* in memory only */
        e = engine(m, w);
        give(e);
        size_t held = files(&bytes);
        take(e, m, w, 1, TAIL);
        segue_engine_close(e);
        assert_int_equal(files(&bytes), held);
        print_message("%s: %d of 40 evicted\n", tiny_models[m].name, evicted);
        tiny_empty(folder);
    }
}

/* --- at once --- */

struct store_worker {
    segue_engine *engine;
    int32_t tokens[4][4]; /* of each tail */
    int seed, bad;
};

static int answer(segue_engine *e, int tail, int32_t out[4])
{
    segue_session *s = NULL;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_sampling p = SEGUE_INIT(segue_sampling);
    segue_error why;
    p.ignore_stops = 1;
    o.sampling = &p;
    o.context = 400;
    int bad = segue_session_open(&s, e, &o, &why) != SEGUE_OK ||
              segue_session_append(s, head, HEAD, &why) != SEGUE_OK ||
              segue_session_append(s, tails[tail], TAIL, &why) != SEGUE_OK;
    for (int i = 0; i < 4 && !bad; i++) bad = segue_session_next(s, &out[i], &why) != SEGUE_OK;
    segue_session_close(s);
    return bad;
}

static void *work(void *p)
{
    struct store_worker *w = p;
    int32_t got[4];
    for (int i = 0; i < 24 && !w->bad; i++) {
        int tail = (i * 7 + w->seed) % 4;
        w->bad = answer(w->engine, tail, got) || memcmp(got, w->tokens[tail], sizeof got) != 0;
    }
    return NULL;
}

/* On the specification, whose rows do not depend on how a text is cut into chunks beyond the last bit. */
static void many_at_once(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__) /* which does not follow a fork of a process with threads */
    enum { THREADS = 3, PROCESSES = 0, CHILDREN = 1 };
#else
    enum { THREADS = 3, PROCESSES = 2, CHILDREN = PROCESSES };
#endif
    for (int m = 0; m < TINY_MODELS; m += HYBRID) {
        struct wish w = {.kv = SEGUE_KV_F32, .store = NULL, .memory = 150 << 10, .disk = 300 << 10};
        struct store_worker workers[THREADS] = {{0}};
        segue_engine *plain = engine(m, w);
        for (int i = 0; i < 4; i++) assert_int_equal(answer(plain, i, workers[0].tokens[i]), 0);
        segue_engine_close(plain);
        w.store = folder;
        pid_t children[CHILDREN];
        for (int c = 0; c < PROCESSES; c++) {
            children[c] = fork();
            assert_true(children[c] >= 0);
            if (children[c]) continue;
            segue_unit *own = NULL; /* a child has none of its parent's threads */
            segue_engine *e = NULL;
            segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
            o.chunk_tokens = CHUNK;
            o.kv = w.kv;
            o.store = folder;
            o.store_disk_bytes = w.disk;
            workers[0].seed = c;
            if (segue_unit_open(&own, "ref", NULL) != SEGUE_OK ||
                segue_engine_open(&e, models[m], &own, 1, &o, NULL) != SEGUE_OK)
                _exit(2);
            workers[0].engine = e;
            work(&workers[0]);
            segue_engine_close(e);
            _exit(workers[0].bad);
        }
        segue_engine *e = engine(m, w);
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) {
            if (i) workers[i] = workers[0];
            workers[i].engine = e;
            workers[i].seed = i;
            assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(workers[i].bad, 0);
        }
        segue_engine_close(e);
        for (int c = 0; c < PROCESSES; c++) {
            int status = 0;
            assert_int_equal(waitpid(children[c], &status, 0), children[c]);
            assert_int_equal(status, 0);
        }
        tiny_empty(folder);
    }
}

/* A folder that others may enter is made private, or the engine is refused; "" and NULL make none. */
static void the_folder_is_private(void **state)
{
    (void)state;
    if (THREADS_ONLY) skip();
    struct stat st;
    assert_int_equal(mkdir(folder, 0755), 0);
    struct wish w = {.store = folder};
    segue_engine_close(engine(0, w));
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    tiny_empty(folder);
    segue_engine *e = NULL;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    o.store = "/proc/nowhere/prefixes";
    assert_int_equal(segue_engine_open(&e, models[0], units, 1, &o, &err), SEGUE_EIO);
    w.store = NULL;
    e = engine(0, w);
    give(e);
    segue_engine_close(e);
    assert_int_equal(access(folder, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_go_on),           cmocka_unit_test(the_same_again),
        cmocka_unit_test(strangers_take_nothing), cmocka_unit_test(damage_is_dropped),
        cmocka_unit_test(budgets_hold),           cmocka_unit_test(many_at_once),
        cmocka_unit_test(the_folder_is_private),  cmocka_unit_test(drafts_write_nothing),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
