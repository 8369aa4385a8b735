/* generate.h: the loop that turns a session into an answer, one token at a time; used by run, chat and
 * --requests. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_GENERATE_H
#define SEGUE_CLI_GENERATE_H

#include "task/read_ahead.h"
#include "bench/meter.h"
#include "task/placement.h"

/* How tokens are chosen, from flags, the model's own defaults, or llama.cpp's. */
struct choice {
    segue_sampling sampling;
    struct segue_bias *bias;
};
segue_status choice_read(struct choice *c, const struct args *args, const segue_model_info *info,
                         segue_error *err);
void choice_free(struct choice *c);

struct answer {
    const segue_model *model;
    segue_session *session;
    struct ahead *ahead; /* is told the tokens; NULL */
    bool to_stdout, terminal, quiet;
    size_t waiting, chunk; /* prompt tokens to compute before the first one; how many at a time */
    segue_text pieces;
    const char **stops;
    char *piece;
    size_t piece_cap;
    struct out_text text; /* data NULL: the model gives ids only */
    int32_t *ids;
    size_t ids_n, ids_cap, limit;
    uint32_t logprobs; /* 0 = none, else 1 + how many of the best */
    json_t *logprob_list;
    const char *finish;  /* "stop" | "length" | "cancel"; NULL while it goes on or after a failure */
    segue_status status; /* of the failure */
    segue_error err;
    uint64_t begun_ns, first_ns, end_ns;
    segue_stats at_begin, at_first, at_end;
    struct meter *meter; /* NULL: none */
    double joules[3];    /* when it began, at the first token, at the end; negative: not measured */
};

/* begun_ns: when the request came in. The session is the caller's. `waiting` may be set after it, for the
 * progress of a long prompt. */
void answer_begin(struct answer *a, const struct place *p, const struct args *args, segue_session *session,
                  uint64_t begun_ns, bool to_stdout);
/* From now on energy is read at the turns of the answer. */
void answer_meter(struct answer *a, struct meter *m);
/* Take one token with the status that came with it; true when the answer has ended (finish or status says
 * how). */
bool answer_take(struct answer *a, segue_status status, int32_t token, const segue_error *err);
/* Run to the end. */
void answer_run(struct answer *a);
void answer_free(struct answer *a);

#endif
