/* ksample.h: arguments of k_sample.cu and the memory that it shares with the host, as kparams.h has them for the other kernels.
 * Included after kparams.h.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KSAMPLE_H
#define SG_UNIT_CUDA_KSAMPLE_H

/* k_sample.cu: sampling of unit/sample.h. Settings of one row, in GPU memory; written by the host when they change. Pointers are
 * GPU memory. */
struct ck_sampler {
    float temperature, top_p, min_p, typical_p, repeat, frequency, presence, dry_multiplier;
    double dry_base;
    uint64_t seed;
    uint32_t top_k, last_n;               /* 0: off; tokens of the penalty window, UINT32_MAX: all */
    uint32_t dry_allowed, limit, logprobs, row; /* row: which wanted row of the pass */
    uint32_t changed, history_n;          /* changed: 1: a step changes logits; history_n: tokens in `history`, advanced by the
                                           * kernel */
    uint32_t history_cap, bias_n, stops_n, allowed_n, breakers_n;
    uint32_t pad;
    int32_t *history;                     /* [history_cap] the last tokens of the sequence */
    const int32_t *bias_tokens;           /* [bias_n] equal tokens are adjacent, in the order of their biases */
    const float *biases;                  /* [bias_n] */
    const int32_t *stops;                 /* [stops_n] tokens to mask */
    const uint32_t *allowed;              /* bit per token; NULL: all */
    const uint8_t *breakers;              /* [breakers_n] */
};
enum { CK_SAMPLE_BLOCKS = 2, /* per multiprocessor, at most */ CK_SAMPLE_LOGPROBS = 20, CK_SAMPLE_BINS = 2048, CK_SAMPLE_LIST = 2048, CK_SAMPLE_THREADS = 512 };
/* Outcome of a row, in pinned memory. status: 0: a token; 1: a logit was NaN or infinite; 2: all tokens are masked. The rest with
 * log-probabilities: logit of the token, the highest logit, the sum of weights, the best tokens with their logits. */
struct ck_sampled {
    int32_t token;
    uint32_t status;
    float logit, top;
    uint64_t sum;
    uint32_t best_n, pad;
    int32_t best[CK_SAMPLE_LOGPROBS];
    float best_logits[CK_SAMPLE_LOGPROBS];
};
/* Memory that the blocks of one job exchange. Zero before and after each launch, but for `list`. */
struct ck_sample_job {
    uint64_t mass[3][CK_SAMPLE_BINS];
    uint32_t count[3][CK_SAMPLE_BINS];
    uint64_t sums[8]; /* see k_sample.cu */
    uint32_t arrived, left, bad, listed;
    uint64_t list[CK_SAMPLE_LIST];
};
/* Work of a launch, in GPU memory behind the samplers. A job is the choice of a row or its log-probabilities; it gets one block, and
 * a share of the others in proportion to its weight: weights[j] is the sum of the weights of the jobs before j. */
struct ck_sample_plan {
    uint32_t jobs, weights[2 * CK_SPANS + 1];
    uint8_t row[2 * CK_SPANS], logprobs[2 * CK_SPANS];
};
struct ck_sample {
    struct ck_pass pass;
    const float *logits; /* [wanted rows][vocab] */
    struct ck_sampler *samplers; /* [rows] */
    float *work;                 /* [rows][vocab] logits after the steps that change them */
    uint32_t *counts;            /* [rows][vocab] zero between launches */
    const struct ck_sample_plan *plan;
    struct ck_sample_job *jobs;  /* [2 * rows] */
    struct ck_sampled *out;      /* [rows] */
    float *best_value;           /* [rows] for choose_best, as a row of one block */
    uint32_t *best_index;
    uint32_t vocab, id_bits;
    uint32_t series, pad;        /* series 1: the pass may be one after the last token (ck_head.stopped) */
};

#endif
