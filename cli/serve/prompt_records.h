/* prompt_records.h: what earlier requests consisted of, as hashes of their parts: tells which part of a prompt changed, so
 * that its states could not be reused. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PROMPT_RECORDS_H
#define SEGUE_CLI_PROMPT_RECORDS_H

#include <pthread.h>
#include "term/out.h"

enum { PROMPT_SYSTEM_MAX = 64, PROMPT_PARTS_MAX = 1024 };

/* The parts of one request, in the order of the API. */
struct prompt_parts {
    uint64_t model, tools, rest; /* rest: what else the template sees */
    uint32_t system_n, parts_n;
    uint64_t parts[PROMPT_PARTS_MAX]; /* [parts_n] system_n blocks of "system", then messages or items of "input" */
};

/* The difference between a request and an earlier one. */
struct prompt_change {
    char what[48];    /* "model", "tools", "system", "system[1]", "messages[3]"; empty: only appended, or nothing to compare */
    const char *type; /* of Anthropic's diagnostics: "system_changed", ..., or NULL */
    size_t tokens;    /* of the earlier prompt */
};

struct prompt_record;
struct prompt_records {
    pthread_mutex_t lock;
    struct prompt_record *first; /* the newest */
};

void prompt_records_open(struct prompt_records *r);
void prompt_records_close(struct prompt_records *r);
/* The parts of a body of any of the chat APIs; model: the one that answers. */
void prompt_parts_of(struct prompt_parts *p, const json_t *body, const char *model);
/* Compare with the record `id` of a realm; NULL: the one that has most in common with p. */
struct prompt_change prompt_records_compare(struct prompt_records *r, const struct prompt_parts *p, const char *realm,
                                            const char *id);
void prompt_records_add(struct prompt_records *r, const struct prompt_parts *p, const char *realm, const char *id, size_t tokens);

#endif
