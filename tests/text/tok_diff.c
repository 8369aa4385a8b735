/* tok_diff.c: the library's side of the comparison with the `tokenizers` library. Reads texts as JSON
 * strings, one a line, and writes a line for each: the ids, a tab, and the decoded text as a JSON string.
 * With "-s" special tokens in the texts are plain text. A line with a list of ids is decoded only. Driven by
 * tok_diff.py.
 * SPDX-License-Identifier: MIT */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tensor/archive.h"
#include "text/tokenizer/tokenizer.h"

/* Print the error; returns the exit status. */
static int failed(const segue_error *err)
{
    fprintf(stderr, "tok_diff: %s\n", err->text);
    return 1;
}

/* Open a GGUF file or a tokenizer.json by its extension. 0: error. */
static int open_tokenizer(struct sg_tokenizer **t, const char *path, segue_error *err)
{
    struct sg_buf json = {0};
    size_t n = strlen(path);
    if (n > 5 && strcmp(path + n - 5, ".gguf") == 0) {
        struct sg_archive *a = NULL;
        segue_status s = sg_archive_open(&a, path, err);
        if (s == SEGUE_OK) s = sg_tokenizer_of_gguf(t, a, err);
        sg_archive_close(a);
        return s == SEGUE_OK;
    }
    segue_status s = sg_file_read(&json, path, 1 << 28, err);
    if (s == SEGUE_OK) s = sg_tokenizer_of_json(t, json.data, json.len, NULL, 0, path, err);
    sg_buf_free(&json);
    return s == SEGUE_OK;
}

static int32_t ids[1 << 20];
static char text[1 << 22];

/* Print a tab and the decoded text as a JSON string. 0: error. */
static int print_decoded(const struct sg_tokenizer *t, size_t n, segue_error *err)
{
    size_t len;
    if (sg_detokenize(t, ids, n, 0, text, sizeof text, &len, err) != SEGUE_OK) return 0;
    json_t *out = json_stringn(text, len);
    char *dumped = json_dumps(out, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    printf("\t%s", dumped ? dumped : "?");
    free(dumped);
    json_decref(out);
    return 1;
}

/* Process one input line. 0: error. */
static int one_line(const struct sg_tokenizer *t, const char *line, size_t len, unsigned flags,
                    segue_error *err)
{
    const size_t cap = sizeof ids / sizeof *ids;
    size_t n = 0;
    json_t *v = json_loadb(line, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!v) return 0;
    segue_status s = SEGUE_OK;
    if (json_is_array(v)) {
        for (; n < json_array_size(v) && n < cap; n++)
            ids[n] = (int32_t)json_integer_value(json_array_get(v, n));
    } else {
        s = sg_tokenize(t, json_string_value(v), json_string_length(v), SEGUE_TEXT_NO_BOS | flags, ids, cap,
                        &n, err);
    }
    json_decref(v);
    if (s != SEGUE_OK) return 0;
    for (size_t i = 0; i < n; i++) printf(i ? " %d" : "%d", (int)ids[i]);
    if (!print_decoded(t, n, err)) return 0;
    putchar('\n');
    return 1;
}

int main(int argc, char **argv)
{
    segue_error err = {SEGUE_OK, "bad line"};
    struct sg_tokenizer *t = NULL;
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    unsigned flags = argc > 2 && strcmp(argv[2], "-s") == 0 ? SEGUE_TEXT_NO_SPECIAL : 0;
    int ok = 1;
    if (argc < 2) return 2;
    if (!open_tokenizer(&t, argv[1], &err)) return failed(&err);
    while (ok && (len = getline(&line, &cap, stdin)) > 0) ok = one_line(t, line, (size_t)len, flags, &err);
    free(line);
    sg_tokenizer_close(t);
    return ok ? 0 : failed(&err);
}
