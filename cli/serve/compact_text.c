/* compact_text.c: see compact_text.h. The form is a list of runs and copies. A byte c below 128 begins a run of c + 1 bytes; else
 * c - 124 bytes are copied, from as far back as the next two bytes say (lowest first), in the text with the dictionary before it.
 * SPDX-License-Identifier: MIT */
#include "serve/compact_text.h"

#include <stdlib.h>
#include <string.h>

enum { RUN_MAX = 128, COPY_MIN = 4, COPY_MAX = 131, BACK_MAX = 65535, SLOTS = 4096 };

/* What messages and answers of /v1/responses consist of. */
static const char dictionary[] =
    "[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call_\","
    "\"type\":\"function\",\"function\":{\"name\":\"\",\"arguments\":\"{\\\"\"}}]},{\"role\":\"tool\","
    "\"tool_call_id\":\"call_\",\"content\":\"\"}][{\"type\":\"text\",\"text\":\"\"}]{\"id\":\"resp_\","
    "\"object\":\"response\",\"created_at\":17,\"status\":\"incomplete\",\"status\":\"completed\",\"model\":\"\","
    "\"error\":null,\"previous_response_id\":\"resp_\",\"previous_response_id\":null,\"parallel_tool_calls\":true,"
    "\"incomplete_details\":{\"reason\":\"max_output_tokens\"},\"incomplete_details\":null,\"output\":[{"
    "\"type\":\"reasoning\",\"id\":\"rs_\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"\"}]},{"
    "\"type\":\"function_call\",\"id\":\"fc_\",\"call_id\":\"call_\",\"name\":\"\",\"arguments\":\"{}\","
    "\"status\":\"completed\"},{\"type\":\"message\",\"id\":\"msg_\",\"role\":\"assistant\",\"status\":\"completed\","
    "\"content\":[{\"type\":\"output_text\",\"text\":\"\",\"annotations\":[]}]}],\"tools\":[],\"tool_choice\":\"auto\","
    "\"metadata\":{},\"usage\":{\"input_tokens\":1,\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":1,"
    "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":1},\"segue\":{\"units\":{"
    "\"prefill\":\"cpu:isa=avx512,threads=\",\"decode\":\"cpu:isa=avx512,threads=\"},\"ms\":{\"queue\":0.0,"
    "\"first_token\":0.0,\"prefill\":0.0,\"decode\":0.0,\"handoff\":0.0},\"tokens_reused\":0,"
    "\"reuse_reason\":\"first-use\",\"reuse_diverged\":0,\"joules\":null,"
    "\"joules_reason\":\"not requested; start the server with --meter\"}}";

enum { DICTIONARY = sizeof dictionary - 1 };

static void add_run(struct out_text *out, const char *text, size_t n)
{
    for (size_t at = 0; at < n; at += RUN_MAX) {
        size_t part = n - at < RUN_MAX ? n - at : RUN_MAX;
        out_add(out, (char[]){(char)(part - 1)}, 1);
        out_add(out, text + at, part);
    }
}

static size_t slot_of(const char *text)
{
    uint32_t v;
    memcpy(&v, text, sizeof v);
    return (v * 2654435761u) >> 20; /* Knuth's multiplier; SLOTS is 2^12 */
}

/* Bytes from `at` that are those from `from`, which is before it. */
static size_t common(const char *all, size_t from, size_t at, size_t end)
{
    size_t n = 0, max = end - at < COPY_MAX ? end - at : COPY_MAX;
    while (n < max && all[from + n] == all[at + n]) n++;
    return n;
}

/* latest[s]: one more than the last place in all[] whose four bytes belong to slot s; 0: none. */
void compact_text(struct out_text *out, const char *text, size_t n)
{
    size_t end = DICTIONARY + n, run = DICTIONARY;
    size_t *latest = out_alloc(SLOTS * sizeof *latest);
    char *all = out_alloc(end + 1);
    memcpy(all, dictionary, DICTIONARY);
    if (n) memcpy(all + DICTIONARY, text, n);
    for (size_t at = 0; at + COPY_MIN <= end;) {
        size_t *place = &latest[slot_of(all + at)], from = *place - 1;
        size_t length = at >= DICTIONARY && *place && at - from <= BACK_MAX ? common(all, from, at, end) : 0;
        *place = at + 1;
        if (length < COPY_MIN) {
            at++;
            continue;
        }
        size_t back = at - from;
        add_run(out, all + run, at - run);
        out_add(out, (char[]){(char)(length + 128 - COPY_MIN), (char)(back & 255), (char)(back >> 8)}, 3);
        for (size_t i = 1; i < length && at + i + COPY_MIN <= end; i++) latest[slot_of(all + at + i)] = at + i + 1;
        at += length;
        run = at;
    }
    add_run(out, all + run, end - run);
    free(latest);
    free(all);
}

char *expand_text(const char *compact, size_t n)
{
    const unsigned char *c = (const unsigned char *)compact;
    char *all = out_alloc(DICTIONARY + n + 1);
    memcpy(all, dictionary, DICTIONARY);
    for (size_t at = DICTIONARY, end = DICTIONARY + n; at < end;) {
        if (*c < 128) {
            size_t length = *c++ + (size_t)1;
            memcpy(all + at, c, length);
            at += length;
            c += length;
            continue;
        }
        /* The copy may overlap its source, so that it repeats. */
        size_t length = *c + (size_t)COPY_MIN - 128, back = c[1] + ((size_t)c[2] << 8);
        for (; length; length--, at++) all[at] = all[at - back];
        c += 3;
    }
    memmove(all, all + DICTIONARY, n);
    all[n] = 0;
    return all;
}
