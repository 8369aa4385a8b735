/* statedamage.c: 100,000 random corruptions of a hybrid model's state file: each is refused, or, where it hit
 * bytes that say nothing, continues exactly as the file did; none crashes. And a process killed at any moment
 * of saving leaves the old file or the new one. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/statefile/statefile.h"
#include "segue.h"
#include "tiny.h"

enum { PROMPT = 41, HYBRID = 2, DAMAGES = 100000, KILLS = 150, SAMPLES = 400 };
#define OK(expr)                                          \
    do {                                                  \
        if ((expr) != SEGUE_OK) fail_msg("%s", err.text); \
    } while (0)

static segue_error err;
static segue_unit *unit;
static segue_model *model;
static segue_engine *engine;
static char path[1024];
static uint64_t seed = 0x9e3779b97f4a7c15u;

static uint64_t draw(uint64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}

static int begin(void **state)
{
    (void)state;
    char folder[512];
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    o.chunk_tokens = 8;
    tiny_folder(folder, sizeof folder, "statedamage", tiny_models[HYBRID].name);
    tiny_folder(path, sizeof path, "statedamage", "file.state");
    return !tiny_write(&tiny_models[HYBRID], folder, 5) || segue_model_open(&model, folder, NULL, &err) ||
           segue_unit_open(&unit, "ref", &err) || segue_engine_open(&engine, model, &unit, 1, &o, &err);
}

static int end(void **state)
{
    (void)state;
    segue_engine_close(engine);
    segue_model_close(model);
    segue_unit_close(unit);
    unlink(path);
    tiny_remove("statedamage");
    return 0;
}

static segue_session *fresh(int32_t first)
{
    segue_session *s = NULL;
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = i ? (i * 31 + 7) % 93 + 3 : first;
    OK(segue_session_open(&s, engine, NULL, &err));
    OK(segue_session_append(s, prompt, PROMPT, &err));
    OK(segue_session_prefill(s, 0, NULL, &err));
    return s;
}

static size_t read_file(unsigned char **out)
{
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size_t n = (size_t)ftell(f);
    rewind(f);
    *out = malloc(n + 1);
    assert_non_null(*out);
    assert_int_equal(fread(*out, 1, n, f), n);
    fclose(f);
    return n;
}

static void write_file(const unsigned char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* One of the ways in which files go wrong; the bytes differ afterwards or are fewer. */
static size_t damage(unsigned char *b, const unsigned char *whole, size_t n)
{
    size_t at = draw(n), other = draw(n), len = 1 + draw(64);
    memcpy(b, whole, n);
    switch (draw(7)) {
    case 0: /* a bit */
        b[at] ^= (unsigned char)(1u << draw(8));
        return n;
    case 1: /* a byte */
        b[at] = (unsigned char)draw(256);
        return n;
    case 2: /* cut off */
        return at;
    case 3: /* a piece is lost to zeroes, as after a crash */
        for (size_t i = at; i < n && i < at + 512; i++) b[i] = 0;
        return n;
    case 4: /* two blocks change places */
        for (size_t i = 0; i < 64 && at / 64 * 64 + i < n && other / 64 * 64 + i < n; i++) {
            b[at / 64 * 64 + i] = whole[other / 64 * 64 + i];
            b[other / 64 * 64 + i] = whole[at / 64 * 64 + i];
        }
        return n;
    case 5: /* noise */
        for (size_t i = at; i < n && i < at + len; i++) b[i] = (unsigned char)draw(256);
        return n;
    default: /* the header, where most of the meaning is */
        b[draw(n < 2048 ? n : 2048)] ^= (unsigned char)(1u << draw(8));
        return n;
    }
}

static void damage_never_goes_on(void **state)
{
    (void)state;
    segue_session *s = fresh(5);
    unsigned char *whole, *b;
    size_t untouched = 0, refused = 0;
    OK(segue_session_save(s, path, &err));
    segue_session_close(s);
    size_t n = read_file(&whole);
    b = malloc(n);
    assert_non_null(b);
    for (int i = 0; i < DAMAGES; i++) {
        struct sg_statefile f;
        size_t left = damage(b, whole, n);
        if (left == n && !memcmp(b, whole, n)) { /* drawn the same byte again */
            untouched++;
            continue;
        }
        segue_error why = {0};
        segue_status status = sg_statefile_open_memory(&f, b, left, 0, &why); /* what a load does first */
        if (status == SEGUE_OK) fail_msg("corruption %d was taken", i);
        if (status != SEGUE_EFORMAT && status != SEGUE_EUNSUPPORTED) fail_msg("corruption %d: %d", i, status);
        assert_true(why.text[0]);
        refused++;
        if (i % (DAMAGES / SAMPLES)) continue; /* and the way by a file */
        write_file(b, left);
        assert_int_equal(segue_session_load(&s, engine, NULL, path, &why), status);
        assert_non_null(strstr(why.text, "file.state"));
    }
    print_message("%zu bytes: %zu corruptions refused, %zu drew the bytes that were there\n", n, refused,
                  untouched);
    assert_int_equal(refused + untouched, DAMAGES);
    free(b);
    free(whole);
}

/* Without a model's checks: every number of the header a lie, with the checksums made right, must still be
 * within bounds when it is read, converted and repaired. */
static void repair_gives_the_text_or_nothing(void **state)
{
    (void)state;
    segue_session *s = fresh(5), *again = NULL;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    unsigned char *whole, *b;
    const int32_t *tokens, *want;
    size_t taken = 0, size = segue_session_tokens(s, &want);
    o.repair = 1;
    OK(segue_session_save(s, path, &err));
    size_t n = read_file(&whole);
    b = malloc(n);
    assert_non_null(b);
    for (int i = 0; i < 300; i++) {
        size_t left = damage(b, whole, n);
        write_file(b, left);
        if (segue_session_load(&again, engine, &o, path, &err) != SEGUE_OK) continue;
        taken++;
        assert_int_equal(segue_session_tokens(again, &tokens), size);
        assert_memory_equal(tokens, want, size * sizeof *tokens);
        segue_session_close(again);
    }
    assert_true(taken > 50);
    segue_session_close(s);
    free(b);
    free(whole);
}

/* Two states take turns in one file; a killed writer leaves one of them, whole. */
static void killed_writers_leave_a_whole_file(void **state)
{
    (void)state;
    int seen[2] = {0, 0};
    for (int i = 0; i < KILLS; i++) {
        segue_session *a = fresh(5), *b = fresh(6), *s = NULL;
        const int32_t *tokens;
        int saved[2];
        char byte;
        if (!i) OK(segue_session_save(a, path, &err));
        assert_int_equal(pipe(saved), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child)
            for (int k = i;; k++)
                if (segue_session_save(k % 2 ? a : b, path, NULL) != SEGUE_OK || (k == i && write(saved[1], "", 1) != 1))
                    _exit(1);
        /* After one save, so that both states are seen however busy the machine is. */
        close(saved[1]);
        assert_int_equal(read(saved[0], &byte, 1), 1);
        close(saved[0]);
        struct timespec wait = {0, (long)draw(4000000)};
        nanosleep(&wait, NULL); /* the moment is the point */
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        if (segue_session_load(&s, engine, NULL, path, &err) != SEGUE_OK)
            fail_msg("kill %d: %s", i, err.text);
        assert_int_equal(segue_session_tokens(s, &tokens), PROMPT);
        assert_true(tokens[0] == 5 || tokens[0] == 6);
        seen[tokens[0] == 6]++;
        segue_session_close(s);
        segue_session_close(a);
        segue_session_close(b);
    }
    print_message("after %d kills: %d old, %d new\n", KILLS, seen[0], seen[1]);
    assert_true(seen[0] && seen[1]);
    char **names, folder[512];
    size_t n = 0;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    OK(sg_folder_list(folder, "", 100000, &names, &n, &err));
    for (size_t i = 0; i < n; i++) { /* what the killed left aside is known as theirs */
        char aside[1600];
        if (strstr(names[i], ".tmp-")) assert_true(sg_file_abandoned(names[i]));
        snprintf(aside, sizeof aside, "%s/%s", folder, names[i]);
        if (strstr(names[i], ".tmp-")) unlink(aside);
        free(names[i]);
    }
    free(names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_never_goes_on),
        cmocka_unit_test(repair_gives_the_text_or_nothing),
        cmocka_unit_test(killed_writers_leave_a_whole_file),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
