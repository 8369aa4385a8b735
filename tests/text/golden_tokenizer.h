/* golden_tokenizer.h: helpers that open the tokenizers under tests/golden/tok. They fail the running test on an error.
 * SPDX-License-Identifier: MIT */
#ifndef GOLDEN_TOKENIZER_H
#define GOLDEN_TOKENIZER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "tensor/json.h"
#include "text/tokenizer/tokenizer.h"

/* out: path of a file in the folder of a tokenizer. */
static inline void golden_path(char *out, size_t cap, const char *kind, const char *file)
{
    snprintf(out, cap, "%s/tests/golden/tok/%s/%s", SEGUE_SOURCE_DIR, kind, file);
}

/* The caller frees the buffer. */
static inline struct sg_buf golden_json(const char *kind)
{
    char path[512];
    struct sg_buf json = {0};
    golden_path(path, sizeof path, kind, "tokenizer.json");
    assert_int_equal(sg_file_read(&json, path, 1 << 24, NULL), SEGUE_OK);
    return json;
}

/* The caller closes the tokenizer. */
static inline struct sg_tokenizer *golden_tokenizer(const char *kind)
{
    struct sg_buf json = golden_json(kind);
    struct sg_tokenizer *t = NULL;
    segue_error err;
    if (sg_tokenizer_of_json(&t, json.data, json.len, NULL, 0, kind, &err) != SEGUE_OK)
        fail_msg("%s", err.text);
    sg_buf_free(&json);
    return t;
}

#endif
