/* record_file.h: reading the file of --record. Everything in it is checked: counts against each other and against limits.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_RECORD_FILE_H
#define SEGUE_CLI_RECORD_FILE_H

#include "term/out.h"

enum {
    RECORD_VERSION = 2, /* 1: without bias and constraint */
    RECORD_BYTES = 1 << 30,
    RECORD_LINE = 64 << 20,
    RECORD_TOKENS = 1 << 24,
    RECORD_SLOTS = 8192,
    RECORD_HIDDEN = 4097,
    RECORD_RUNS = 1 << 20,
    RECORD_ANSWERS = 1 << 20,
    RECORD_BIASES = 4096
};

struct record_tokens {
    int32_t *ids;
    size_t n;
};

/* What an answer was constrained by. kind: of segue_grammar_open. */
struct record_constraint {
    segue_grammar_kind kind;
    char *text;
    size_t len;
};

/* One run, see engine/replay/state_hashes.h. */
struct record_run {
    uint64_t first;
    uint32_t tokens, unit;
    bool decode;
    uint64_t *slots, *hidden; /* one allocation, at slots */
    uint32_t *rows;           /* [tokens]; NULL: not recorded */
};
struct record {
    json_t *head; /* flags, sampling, model, ... */
    struct record_tokens prompt, answer;
    size_t slots_n, hidden_n;
    struct record_run *runs;
    size_t runs_n, runs_cap;
    size_t runs_stated; /* by the head; SIZE_MAX: not stated */
};
/* The records of a file, in the order of the answers. */
struct record_list {
    struct record *items;
    size_t n;
    bool cut; /* the last record is incomplete and left out: its writer was killed */
};

/* Read all records of a file, at least one. name: of the file, for messages. EFORMAT: "record: FILE: line N: why". */
segue_status record_parse(struct record_list *out, const char *text, size_t len, const char *name, segue_error *err);
/* The same of a file. EIO, ELIMIT. */
segue_status record_read(struct record_list *out, const char *path, segue_error *err);
void record_free(struct record *r);
void record_list_free(struct record_list *list);
/* Text of the head; NULL: it is not there. */
const char *record_text(const struct record *r, const char *key);

#endif
