/* params.h: the fields of a request that say how to generate: sampling, limits, stops, constraints. The names are those of
 * OpenAI, llama.cpp and vLLM. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PARAMS_H
#define SEGUE_CLI_PARAMS_H

#include "serve/fields.h"
#include "replay/record_file.h"
#include "serve/model_pool.h"

enum { PARAMS_CHOICES = 16, PARAMS_STOPS = 16, PARAMS_STOP_BYTES = 256, PARAMS_LOGPROBS = 20 };

struct params {
    segue_sampling sampling; /* bias belongs to `bias` */
    struct segue_bias *bias;
    segue_grammar *grammar;          /* NULL: the text is free. Taken from `grammars` */
    struct grammars *grammars;       /* of the model */
    struct record_constraint constraint; /* its source, for --record; text NULL: none */
    size_t max_tokens;               /* 0: until the context is full */
    size_t choices;                  /* n */
    const char *stops[PARAMS_STOPS]; /* [stops_n] borrowed from the request */
    size_t stops_n;
    bool stream, include_usage, no_store;
    bool verbose, return_tokens, return_progress, timings_per_token; /* llama.cpp's: what an answer or its stream also has */
    bool logprobs; /* report them, with top_logprobs alternatives */
    uint32_t top_logprobs;
    size_t slot;            /* id_slot; SIZE_MAX: any */
    struct adapter_choice *lora; /* [lora_n] scales of adapters, in a block; NULL: those of the server */
    size_t lora_n;
    size_t thinking_budget; /* tokens of reasoning at most; SIZE_MAX: no bound */
    bool thinking_in_content; /* reasoning_format none: it is not returned apart */
    uint64_t predict_ns; /* t_max_predict_ms: after that, the answer ends at the next line break; 0: no bound */
    uint64_t ping_ns;    /* a stream that is silent for so long gets a comment; 0: none */
};

/* Of a request that gives none. */
double params_temperature(const struct pooled_model *m);
/* Read a request for a model; false: f.e has the reason. Call params_free in any case, before the model is released. */
bool params_read(struct params *p, struct fields f, struct pooled_model *m);
/* Constrain the text. kind: as for segue_grammar_open. where: the field, for errors. */
bool params_constrain(struct params *p, struct pooled_model *m, segue_grammar_kind kind, const char *text, size_t len,
                      const char *where, struct serve_error *e);
void params_free(struct params *p);
/* Read llama.cpp's list of {"id", "scale"}. NULL: e has the reason; else free it. */
struct adapter_choice *params_adapters(json_t *list, const struct pooled_model *m, size_t *n, struct serve_error *e);

#endif
