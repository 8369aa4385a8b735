/* generation.h: the answers to one request: submits n choices, turns their tokens into text, and passes the text on as it comes.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_GENERATION_H
#define SEGUE_CLI_GENERATION_H

#include "serve/params.h"

/* Where the text of the choices goes. */
struct generate_sink {
    void *context;
    /* More text of a choice (complete characters; may be empty when logprobs are not), and the entries of logprobs that belong
     * to it: an array that the sink owns, or NULL. False: the client disconnected. */
    bool (*text)(void *context, size_t choice, const char *text, size_t len, json_t *logprobs);
    /* A choice has ended: "stop" or "length". stop: the stop string that was found, or NULL. */
    bool (*finish)(void *context, size_t choice, const char *reason, const char *stop);
    /* NULL, or: the choice is in its reasoning now, so that the budget applies. */
    bool (*reasoning)(void *context, size_t choice);
    /* NULL, or, if the request asks for it: `done` of the prompt's tokens are computed, `cached` of them were. */
    bool (*progress)(void *context, size_t cached, size_t done, double ms);
};

/* The version of segue.h as a text. */
#define SERVE_TEXT_OF(x) #x
#define SERVE_TEXT(x) SERVE_TEXT_OF(x)
#define SERVE_VERSION SERVE_TEXT(SEGUE_VERSION_MAJOR) "." SERVE_TEXT(SEGUE_VERSION_MINOR) "." SERVE_TEXT(SEGUE_VERSION_PATCH)
/* system_fingerprint of answers. Clients of llama.cpp expect a 'b' at its start. */
#define SERVE_FINGERPRINT "b-segue-" SERVE_VERSION

struct generate_job {
    struct exchange *x;
    struct pooled_model *model;
    const struct params *params;
    const int32_t *tokens; /* [tokens_n] the prompt */
    size_t tokens_n;
    bool special;        /* control tokens are part of the text; the token that ends the answer never is */
    bool merged;         /* messages were merged for the template */
    const char *changed; /* the part of the prompt that differs from an earlier one; NULL or empty: none is known */
    struct generate_sink sink;
    /* During sink.text: the tokens that it stands for. */
    const int32_t *piece; /* [piece_n] */
    size_t piece_n;
    /* Results. */
    size_t slot; /* SIZE_MAX: none was free */
    int32_t *all; /* [all_n] the prompt and the tokens of the first choice without a stop token at the end; freed by the caller */
    size_t all_n;
    size_t tokens_out;       /* of all choices */
    size_t tokens_thought;   /* of them reasoning */
    segue_request_info info; /* of the first choice */
    double joules;           /* its share of the energy (model_pool_energy); negative: not measured */
};

/* False, and e says so: the prompt leaves no place for an answer in a context of the model. The type is llama.cpp's, the code
 * OpenAI's. */
bool generate_fits(const struct pooled_model *m, size_t tokens_n, struct serve_error *e);
/* False: e has the reason; its status is 499 if the client disconnected. */
bool generate_run(struct generate_job *g, struct serve_error *e);
/* Tokens of a text; flags are SEGUE_TEXT_*. NULL: e has the reason. *n may be 0. The caller frees them. */
int32_t *generate_tokenize(const struct pooled_model *m, const char *text, size_t len, unsigned flags, size_t *n,
                           struct serve_error *e);
/* usage of OpenAI, and the extension "segue": units, times, reuse. New references. */
json_t *generate_usage(const struct generate_job *g);
json_t *generate_report(const struct generate_job *g);
/* timings of llama.cpp's server: tokens, ms and rates of prompt and answer. A new reference. */
json_t *generate_timings(const struct generate_job *g);
/* return_progress of llama.cpp: {"total", "cache", "processed", "time_ms"}. A new reference. */
json_t *generate_progress(const struct generate_job *g, size_t cached, size_t done, double ms);
json_t *generate_progress_timings(size_t cached, size_t done, double ms);
/* "__verbose" of llama.cpp: the prompt's text, and the settings. A new reference. */
json_t *generate_verbose(const struct generate_job *g);
/* Settings of the request under the names of llama.cpp. A new reference. */
json_t *generate_settings(const struct generate_job *g);
/* The text of tokens with control tokens; free it. */
struct out_text generate_text_of(const struct pooled_model *m, const int32_t *tokens, size_t n);

#endif
