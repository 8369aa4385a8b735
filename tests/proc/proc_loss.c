/* proc_loss.c: a process is killed at a random moment of a session, many times (argument: how often). The session continues
 * as if nothing had happened when the survivor is of the same kind: tokens and logits to the last bit. With a survivor of
 * another kind it continues as if the switch had been planned. Without one the call says ELOST and the session stays usable.
 * Nothing is left behind: no process, no descriptor. SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "../api/plans.h"
#include "../api/tiny.h"
#include "base/clock.h"
#include "segue.h"

enum { PROMPT = 45, TOKENS = 70, CHUNK = 8, HYBRID = 2 };

static unsigned kills = 2;
static segue_model *model;
static int32_t prompt[PROMPT];
static char folder[512];
static uint64_t dice = 88172645463325252u;

static uint64_t roll(void)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    return dice ^= dice << 17;
}

static void check(segue_status s, const segue_error *err, const char *what)
{
    if (s != SEGUE_OK && s != SEGUE_END) fail_msg("%s: %d: %s", what, s, err->text);
}

static size_t descriptors(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static int begin(void **state)
{
    (void)state;
    segue_error err;
    for (int i = 0; i < PROMPT; i++) prompt[i] = (i * 29 + 5) % 93 + 3;
    tiny_folder(folder, sizeof folder, "loss", tiny_models[HYBRID].name);
    if (!tiny_write(&tiny_models[HYBRID], folder, 11)) return -1;
    return segue_model_open(&model, folder, NULL, &err) == SEGUE_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    segue_model_close(model);
    tiny_remove("loss");
    return 0;
}

/* --- a session, and one who kills --- */

struct world {
    segue_unit *units[2];
    size_t units_n;
    segue_engine *engine;
    segue_session *session;
    int32_t ids[TOKENS];
    float logits[TINY_VOCAB];
    segue_stats stats;
    uint64_t ns;
};

static void world_open(struct world *w, const char *first, const char *second)
{
    segue_error err;
    *w = (struct world){.units_n = second ? 2 : 1};
    check(segue_unit_open(&w->units[0], first, &err), &err, first);
    if (second) check(segue_unit_open(&w->units[1], second, &err), &err, second);
    segue_engine_opts eo = SEGUE_INIT(segue_engine_opts);
    eo.chunk_tokens = CHUNK;
    check(segue_engine_open(&w->engine, model, w->units, w->units_n, &eo, &err), &err, "engine");
}

static void world_close(struct world *w)
{
    segue_session_close(w->session);
    segue_engine_close(w->engine);
    for (size_t i = 0; i < w->units_n; i++) segue_unit_close(w->units[i]);
}

static uint32_t pid_of(segue_unit *u)
{
    segue_unit_info info = SEGUE_INIT(segue_unit_info);
    segue_error err;
    check(segue_unit_info_get(u, &info, &err), &err, "info");
    return info.pid;
}

/* one: all on the first unit; else the plan is the engine's own. */
static void session_open(struct world *w, int one)
{
    segue_error err;
    segue_sampling p = SEGUE_INIT(segue_sampling);
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_model_info info = SEGUE_INIT(segue_model_info);
    check(segue_model_info_get(model, &info, &err), &err, "model");
    segue_plan *plan = two_phase_plan(0, 0, info.layers);
    p.temperature = 1;
    p.seed = 5;
    p.ignore_stops = 1;
    o.sampling = &p;
    o.context = 256;
    o.plan = one ? plan : NULL;
    check(segue_session_open(&w->session, w->engine, &o, &err), &err, "session");
    segue_plan_close(plan);
}

static segue_status answer(struct world *w, segue_error *err)
{
    size_t n;
    uint64_t start_ns = sg_now_ns();
    segue_status s = segue_session_append(w->session, prompt, PROMPT, err);
    for (int i = 0; s == SEGUE_OK && i < TOKENS; i++) s = segue_session_next(w->session, &w->ids[i], err);
    if (s == SEGUE_OK) s = segue_session_prefill(w->session, 0, NULL, err);
    if (s == SEGUE_OK) s = segue_session_logits(w->session, w->logits, TINY_VOCAB, &n, err);
    w->stats = SEGUE_INIT(segue_stats);
    w->ns = sg_now_ns() - start_ns;
    segue_error ignored;
    check(segue_session_stats_get(w->session, &w->stats, &ignored), &ignored, "stats");
    return s;
}

struct killer {
    pthread_t thread;
    uint32_t pid;
    uint64_t at_ns;
};

static void *kill_main(void *arg)
{
    struct killer *k = arg;
    while (sg_now_ns() < k->at_ns) {}
    kill((pid_t)k->pid, SIGKILL);
    return NULL;
}

/* Loss i of the world's session, or zero. */
static segue_loss loss_at(const struct world *w, size_t i)
{
    segue_loss loss = SEGUE_INIT(segue_loss);
    if (!w->session || segue_session_loss_get(w->session, i, &loss, NULL) != SEGUE_OK) return (segue_loss){0};
    return loss;
}

static void same(const struct world *a, const struct world *b, const char *what)
{
    for (int i = 0; i < TOKENS; i++)
        if (a->ids[i] != b->ids[i])
            fail_msg("%s: token %d is %d, not %d (%zu losses, at row %llu, %llu again, %s)", what, i, a->ids[i], b->ids[i],
                     a->stats.losses_n, (unsigned long long)loss_at(a, 0).tokens,
                     (unsigned long long)loss_at(a, 0).replayed, loss_at(a, 0).why);
    assert_memory_equal(a->logits, b->logits, sizeof a->logits);
}

/* Kill `which` at a random moment of each of many answers; each must be `want`. A kill that comes too late shows how long an
 * answer takes now: other programs may have slowed down the one before. */
static unsigned kill_often(const char *first, const char *second, size_t which, int one, const struct world *want)
{
    unsigned struck = 0;
    struct world w;
    uint64_t ns = want->ns;
    world_open(&w, first, second);
    for (unsigned i = 0; i < kills; i++) {
        struct killer k = {.pid = pid_of(w.units[which])};
        segue_error err;
        session_open(&w, one);
        assert_true(k.pid > 0);
        k.at_ns = sg_now_ns() + roll() % (ns ? ns : 1);
        assert_int_equal(pthread_create(&k.thread, NULL, kill_main, &k), 0);
        segue_status s = answer(&w, &err);
        pthread_join(k.thread, NULL);
        check(s, &err, first);
        same(&w, want, first);
        struck += w.stats.losses_n != 0;
        if (!w.stats.losses_n) ns = w.ns;
        for (size_t l = 0; l < w.stats.losses_n; l++) /* a chunk read, its rows, and the short runs between two copies */
            assert_true(loss_at(&w, l).replayed <= CHUNK + 40);
        segue_session_close(w.session);
        w.session = NULL;
    }
    world_close(&w);
    return struck;
}

/* --- the tests --- */

static void undisturbed(struct world *w, const char *first, const char *second, int one)
{
    segue_error err;
    world_open(w, first, second);
    session_open(w, one);
    check(answer(w, &err), &err, first);
    assert_int_equal(w->stats.losses_n, 0);
    world_close(w);
}

static void restarted(void **state)
{
    (void)state;
    struct world want;
    size_t before = descriptors();
    static const char *const units[] = {"cpu:threads=1", "ref"};
    for (int i = 0; i < 2; i++) {
        char apart[64];
        snprintf(apart, sizeof apart, "proc:%s", units[i]);
        undisturbed(&want, apart, NULL, 1);
        unsigned struck = kill_often(apart, NULL, 0, 1, &want);
        print_message("%s: %u of %u kills struck an answer\n", apart, struck, kills);
        assert_true(kills < 30 || struck * 4 >= kills);
        undisturbed(&want, units[i], apart, 0);
        struck = kill_often(units[i], apart, 1, 0, &want);
        print_message("%s to %s: %u of %u struck\n", units[i], apart, struck, kills);
        undisturbed(&want, apart, units[i], 0);
        struck = kill_often(apart, units[i], 0, 0, &want);
        print_message("%s to %s: %u of %u struck\n", apart, units[i], struck, kills);
    }
    assert_int_equal(descriptors(), before);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

/* The program that a restart needs is taken away once the units stand. */
static char *take_program(void)
{
    const char *now = getenv("SEGUE_COMMAND");
    char *kept = now ? strdup(now) : NULL;
    setenv("SEGUE_COMMAND", "/nowhere/segue", 1);
    return kept;
}

static void give_program(char *kept)
{
    if (kept) setenv("SEGUE_COMMAND", kept, 1);
    else unsetenv("SEGUE_COMMAND");
    free(kept);
}

/* Kill the first unit's process behind `at` tokens of the answer; at < 0: so many rows of the prompt. */
static segue_status cut_short(struct world *w, const char *first, const char *second, int at, segue_error *err)
{
    size_t n;
    world_open(w, first, second);
    session_open(w, 1);
    char *kept = take_program();
    segue_status s = segue_session_append(w->session, prompt, PROMPT, err);
    if (at < 0) check(segue_session_prefill(w->session, (size_t)-at, NULL, err), err, "prefill");
    for (int i = 0; i < TOKENS && s == SEGUE_OK; i++) {
        if (i == at || (at < 0 && i == 0)) kill((pid_t)pid_of(w->units[0]), SIGKILL);
        s = segue_session_next(w->session, &w->ids[i], err);
    }
    give_program(kept);
    if (s == SEGUE_OK) s = segue_session_prefill(w->session, 0, NULL, err);
    if (s == SEGUE_OK) s = segue_session_logits(w->session, w->logits, TINY_VOCAB, &n, err);
    w->stats = SEGUE_INIT(segue_stats);
    segue_error ignored;
    check(segue_session_stats_get(w->session, &w->stats, &ignored), &ignored, "stats");
    return s;
}

static void taken_over(void **state)
{
    (void)state;
    struct world want, w;
    segue_error err;
    undisturbed(&want, "cpu:threads=1", NULL, 1);
    static const int moments[] = {-8, -24, -40, 0, 1, 5, 33, 60};
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        check(cut_short(&w, "proc:cpu:threads=1", "cpu:threads=1", moments[i], &err), &err, "taken over");
        assert_int_equal(w.stats.losses_n, 1);
        assert_string_equal(loss_at(&w, 0).unit, "proc:cpu:threads=1");
        assert_non_null(strstr(loss_at(&w, 0).to, "cpu"));
        assert_non_null(strstr(loss_at(&w, 0).why, "process"));
        same(&w, &want, "taken over by the same kind");
        world_close(&w);
    }
}

/* What another kind of unit gives is what it gives when the switch is planned at the row of the copy. */
static void switched(void **state)
{
    (void)state;
    segue_error err;
    static const int moments[] = {-8, -24, 3, 50};
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        struct world w, plan;
        size_t n;
        check(cut_short(&w, "proc:ref", "cpu:threads=1", moments[i], &err), &err, "switched");
        assert_int_equal(w.stats.losses_n, 1);
        size_t kept = (size_t)(loss_at(&w, 0).tokens - loss_at(&w, 0).replayed);
        world_open(&plan, "ref", "cpu:threads=1");
        session_open(&plan, 1);
        check(segue_session_append(plan.session, prompt, PROMPT, &err), &err, "append");
        size_t read = kept < PROMPT ? kept : PROMPT;
        int at = 0;
        if (read) check(segue_session_prefill(plan.session, read, NULL, &err), &err, "prefill");
        for (; read == PROMPT && PROMPT + (size_t)at <= kept; at++)
            check(segue_session_next(plan.session, &plan.ids[at], &err), &err, "next");
        if (kept) check(segue_session_move(plan.session, plan.units[1], &err), &err, "move");
        else { /* nothing was kept: all on the other */
            world_close(&plan);
            world_open(&plan, "cpu:threads=1", NULL);
            session_open(&plan, 1);
            check(segue_session_append(plan.session, prompt, PROMPT, &err), &err, "append");
        }
        for (; at < TOKENS; at++) check(segue_session_next(plan.session, &plan.ids[at], &err), &err, "next");
        check(segue_session_prefill(plan.session, 0, NULL, &err), &err, "prefill");
        check(segue_session_logits(plan.session, plan.logits, TINY_VOCAB, &n, &err), &err, "logits");
        plan.stats = w.stats;
        same(&w, &plan, "switched as planned");
        world_close(&w);
        world_close(&plan);
    }
}

static void nothing_left(void **state)
{
    (void)state;
    struct world w;
    segue_error err = {0};
    assert_int_equal(cut_short(&w, "proc:ref", NULL, 7, &err), SEGUE_ELOST);
    assert_non_null(strstr(err.text, "proc:ref"));
    int32_t token;
    check(segue_session_next(w.session, &token, &err), &err, "next, with the program back"); /* all tokens are still here */
    world_close(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restarted),
        cmocka_unit_test(taken_over),
        cmocka_unit_test(switched),
        cmocka_unit_test(nothing_left),
    };
    if (argc > 1) kills = (unsigned)atoi(argv[1]);
    return cmocka_run_group_tests(tests, begin, end);
}
