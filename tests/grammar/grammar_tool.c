/* grammar_tool.c: the automaton for a test in Python. Reads one JSON object per line from standard input: {"kind": 0 GBNF, 1 JSON
 * schema, 2 expression, "source", "texts": [...], "samples": N, "seed"}; writes {"error", "status"} or {"accepts": [...],
 * "samples": [...]}. Samples are random walks of the automaton to an accepting state, by bytes.
 * SPDX-License-Identifier: MIT */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/parts.h"

enum { SAMPLE_MAX = 3000 };

static uint64_t random_state;
static uint32_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 16);
}

/* Bytes that bring a text to its end; preferred when it has become long. */
static int ends(int c) { return strchr("\"}],:0nultrefas", c) != NULL; }

/* A random text; 0: it did not end. */
static int sample(struct sg_grammar *g, char *text, size_t *len)
{
    uint32_t state = SG_STATE_BEGIN;
    if (sg_automaton_begin(g, NULL)) return 0;
    for (*len = 0; *len < SAMPLE_MAX;) {
        uint32_t to[256], n = 0;
        int bytes[256], best = -1;
        for (int c = 0; c < 256; c++) {
            if (sg_automaton_step(g, state, (uint8_t)c, &to[c], NULL)) return 0;
            if (to[c] == SG_STATE_DEAD) continue;
            /* Most text is printable; other bytes are taken seldom. */
            if ((c < 32 || c > 126) && next_random() % 8) {
                if (best < 0) best = c;
                continue;
            }
            bytes[n++] = c;
        }
        if (!n && best >= 0) bytes[n++] = best;
        if (g->states[state].accepts && (!n || next_random() % 3 == 0)) return 1;
        if (!n) return 0;
        int c = bytes[next_random() % n];
        if (*len > 60 + next_random() % 200) {
            for (uint32_t i = 0; i < n; i++)
                if (ends(bytes[i]) && next_random() % 2) c = bytes[i];
            for (uint32_t i = 0; i < n; i++)
                if (bytes[i] == '"' || bytes[i] == '}' || bytes[i] == ']') c = bytes[i];
        }
        text[(*len)++] = (char)c;
        state = to[c];
    }
    return 0;
}

static json_t *run(json_t *request)
{
    segue_error err = {0};
    struct sg_grammar *g = NULL;
    json_t *source = json_object_get(request, "source"), *accepts = json_array(), *samples = json_array(), *v;
    char *dumped = json_is_string(source) ? NULL : json_dumps(source, JSON_ENCODE_ANY);
    const char *text = dumped ? dumped : json_string_value(source);
    size_t i, valid;
    segue_status status = sg_grammar_new(&g, (int)json_integer_value(json_object_get(request, "kind")), text, strlen(text), NULL,
                                         NULL, 0, &err);
    free(dumped);
    if (status) {
        json_decref(accepts), json_decref(samples);
        return json_pack("{s:s, s:i}", "error", err.text, "status", (int)status);
    }
    json_array_foreach(json_object_get(request, "texts"), i, v)
    {
        status = sg_grammar_check(g, json_string_value(v), json_string_length(v), &valid, &err);
        json_array_append_new(accepts, json_integer(status == SEGUE_OK ? -1 : (json_int_t)valid));
    }
    random_state = (uint64_t)json_integer_value(json_object_get(request, "seed")) * 0x9E3779B97F4A7C15u + 1;
    for (json_int_t k = 0; k < json_integer_value(json_object_get(request, "samples")); k++) {
        char out[SAMPLE_MAX + 1];
        size_t len;
        if (!sample(g, out, &len)) continue;
        json_t *s = json_stringn(out, len);
        json_array_append_new(samples, s ? s : json_null()); /* null: not UTF-8 */
    }
    sg_grammar_free(g);
    return json_pack("{s:o, s:o}", "accepts", accepts, "samples", samples);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, stdin) > 0) {
        json_t *request = json_loads(line, 0, NULL), *reply = request ? run(request) : json_pack("{s:s}", "error", "not JSON");
        json_dumpf(reply, stdout, JSON_COMPACT);
        puts("");
        fflush(stdout);
        json_decref(reply);
        json_decref(request);
    }
    free(line);
    return 0;
}
