/* answer.h: generation of one answer: sampling parameters from the flags, and the loop from a session to text, token
 * by token. Used by run, chat and run --requests.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ANSWER_H
#define SEGUE_CLI_ANSWER_H

#include "meter/meter.h"
#include "run/placement.h"
#include "run/read_ahead.h"
#include "run/work.h"
#include "term/colour.h"

/* Sampling parameters. The library copies them when a session is opened or its sampling is set. */
struct sampler {
    segue_sampling sampling;
    struct segue_bias *bias; /* owner of sampling.bias */
    segue_grammar *grammar;  /* owner of sampling.grammar */
};
/* Each parameter comes from its flag, else from generation_config.json of the model, else from llama.cpp's default. */
segue_status sampler_read(struct sampler *c, const struct args *args, const segue_model_info *info,
                          segue_error *err);
/* Add the constraint of --json-schema, --grammar or --regex, if one is given. EFORMAT, EUNSUPPORTED: segue_grammar_open. */
segue_status sampler_constrain(struct sampler *c, const struct args *args, const segue_model *model, segue_error *err);
/* Free the bias list. The library copied the parameters, so sessions stay valid. */
void sampler_free(struct sampler *c);

/* An answer while it is generated, and its figures afterwards. Set up by answer_begin, freed by answer_free. */
struct answer {
    const segue_model *model;
    segue_session *session;        /* of the caller */
    struct read_ahead *read_ahead; /* receives the tokens; NULL: none */
    bool to_stdout, quiet; /* print text; no progress */
    size_t prompt_pending;         /* prompt tokens to compute before the first token; for the progress line */
    size_t chunk;                  /* prompt tokens per prefill pass */
    segue_text pieces;             /* state of incremental detokenization */
    const char **stops;            /* --stop strings */
    char *piece;                   /* buffer for the text of one token; NULL: the model has no tokenizer */
    size_t piece_cap;
    struct colour_stream colour;  /* of the text on a terminal */
    struct out_text text; /* all text so far; data NULL: the model has no tokenizer */
    int32_t *ids;         /* [ids_n] all tokens so far, the stop token included */
    size_t ids_n, ids_cap, limit; /* limit: maximum of ids_n */
    bool ends_when_full;          /* a full context ends the answer ("length"), instead of failing */
    bool full;                    /* it did */
    bool shifts;                  /* a full context drops tokens instead */
    size_t keep, dropped;         /* the first tokens, which stay; number of tokens dropped so far */
    uint32_t logprobs;            /* 0: none; else 1 + number of alternatives */
    json_t *logprob_list;
    const char *finish;  /* "stop" | "length" | "cancel"; NULL while generating or after a failure */
    segue_status status; /* of the failure; SEGUE_OK otherwise */
    segue_error err;
    /* Times of the request, of the first token (0: none yet) and of the end; then the session's counters at the same three
     * moments. */
    uint64_t start_ns, first_ns, end_ns;
    segue_stats at_begin, at_first, at_end;
    struct session_work work_begin, work_end; /* what the session had run before and after this answer */
    struct meter *meter;                     /* NULL: no energy measurement */
};

/* Start an answer. start_ns: time of the request. The session stays with the caller. */
void answer_begin(struct answer *a, const struct placement *p, const struct args *args, segue_session *session,
                  uint64_t start_ns, bool to_stdout);
/* The meter whose energy the report shows. */
void answer_set_meter(struct answer *a, struct meter *m);
/* A full context does not end the answer: half of the tokens after the first `keep` ones are dropped (answer_run). */
void answer_set_keep(struct answer *a, size_t keep);
/* Add the token that segue_session_next or _step returned, with its status and error. Returns true when the answer has
 * ended; then finish or status has the reason. */
bool answer_push(struct answer *a, segue_status status, int32_t token, const segue_error *err);
/* Prefill the prompt and generate until the end. */
void answer_run(struct answer *a);
/* Free everything but the session and the meter. Safe on a zeroed answer. */
void answer_free(struct answer *a);

#endif
