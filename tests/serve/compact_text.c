/* compact_text.c: compact texts expand to the same bytes, and are small where they repeat.
 * SPDX-License-Identifier: MIT */
#include "../../cli/serve/compact_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Bytes of the compact form, after a check. */
static size_t there_and_back(const char *text, size_t n)
{
    struct out_text c = {0};
    compact_text(&c, text, (uint32_t)n);
    char *exact = malloc(c.len + 1), *back; /* of its size, so that a sanitizer sees reads beyond it */
    assert_non_null(exact);
    memcpy(exact, c.data ? c.data : "", c.len);
    back = expand_text(exact, c.len, (uint32_t)n);
    assert_memory_equal(back, text, n);
    assert_int_equal(back[n], 0);
    assert_true(c.len <= n + n / 1000 + 16); /* deflate stores what does not get shorter */
    size_t len = c.len;
    free(back), free(exact), free(c.data);
    return len;
}

static void edges(void **state)
{
    char same[1000];
    (void)state;
    there_and_back("", 0);
    for (size_t n = 1; n < 9; n++) there_and_back("abababab", n);
    memset(same, 'x', sizeof same);
    for (size_t n = 120; n < 140; n++) there_and_back(same, n);
    assert_true(there_and_back(same, sizeof same) < 40);
    memset(same, 0, sizeof same);
    there_and_back(same, sizeof same);
}

static void answers(void **state)
{
    static const char text[] =
        "[{\"role\":\"user\",\"content\":\"Name a river.\"},{\"role\":\"assistant\",\"content\":\"The Rhine.\"}]{\"id\":\"res"
        "p_Ab3dEf6hIj9lMn2pQr5tUv8x\",\"object\":\"response\",\"created_at\":1795759911,\"status\":\"completed\",\"model\":\""
        "m\",\"error\":null,\"output\":[{\"type\":\"message\",\"id\":\"msg_Ab3dEf6hIj9lMn2pQr5tUv8x\",\"role\":\"assistant\","
        "\"status\":\"completed\",\"content\":[{\"type\":\"output_text\",\"text\":\"The Rhine.\",\"annotations\":[]}]}]}";
    (void)state;
    assert_true(there_and_back(text, sizeof text - 1) < sizeof text / 2);
}

/* Words from a small set, and bytes without any order, of lengths beyond the window of deflate. */
static void made_up(void **state)
{
    enum { TEXT_MAX = 200000 };
    char *text = malloc(TEXT_MAX);
    uint64_t r = 1;
    (void)state;
    assert_non_null(text);
    for (size_t n = 1; n < TEXT_MAX; n = n * 3 + 1) {
        for (unsigned bits = 1; bits <= 8; bits += 7) {
            for (size_t i = 0; i < n; i++) {
                r = r * 6364136223846793005u + 1442695040888963407u;
                text[i] = (char)(r >> 40 & ((1u << bits) - 1));
            }
            there_and_back(text, n);
        }
    }
    memmove(text + 70000, text, 60000); /* further back than the window of deflate, which is 32 KB */
    memmove(text + 150000, text + 110000, 40000);
    there_and_back(text, TEXT_MAX);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(edges), cmocka_unit_test(answers), cmocka_unit_test(made_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
