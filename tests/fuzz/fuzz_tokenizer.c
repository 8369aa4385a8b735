/* fuzz_tokenizer.c: hostile tokenizer.json (or, behind a first byte 'B', llama2.c's tokenizer.bin), then the
 * rest of the input as a text: tokenize, decode whole and by token. The input is JSON, a NUL byte, text.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CAP = 1 << 16 };

static void check(int good)
{
    if (!good) abort();
}

static void use(const struct sg_tokenizer *t, const char *text, size_t len)
{
    static int32_t ids[CAP];
    static char out[1 << 20];
    const char *stops[] = {"ab", "\n\n"};
    segue_text state = SEGUE_INIT(segue_text);
    struct sg_tokenizer_info info;
    size_t n, whole, some, streamed = 0;
    sg_tokenizer_info_get(t, &info);
    if (sg_tokenize(t, text, len, len & 3, ids, CAP, &n, NULL) != SEGUE_OK) return;
    for (size_t i = 0; i < n; i++) check(ids[i] >= 0 && (uint32_t)ids[i] < info.vocab);
    segue_status s = sg_detokenize(t, ids, n, 0, out, sizeof out, &whole, NULL);
    check(s == SEGUE_OK || s == SEGUE_ELIMIT);
    state.stops = stops;
    state.stops_n = len & 2;
    for (size_t i = 0; i <= n && s == SEGUE_OK; i++) {
        s = sg_text_next(t, &state, i < n ? ids[i] : -1, out, sizeof out, &some, NULL);
        streamed += some;
    }
    if (s == SEGUE_OK) check(streamed == whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t json_len = end ? (size_t)(end - data) : size, text_at = end ? json_len + 1 : size;
    struct sg_tokenizer *t = NULL;
    segue_error err;
    if (size && data[0] == 'B') {
        if (sg_tokenizer_of_bin(&t, data + 1, size - 1, 259 + (data[size - 1] & 7), "fuzz", &err) != SEGUE_OK)
            return 0;
        text_at = size / 2;
    } else if (sg_tokenizer_of_json(&t, (const char *)data, json_len, NULL, 0, "fuzz", &err) != SEGUE_OK) {
        return 0;
    }
    use(t, (const char *)data + text_at, size - text_at);
    sg_tokenizer_close(t);
    return 0;
}
