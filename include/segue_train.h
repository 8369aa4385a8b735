/* segue_train.h: train the weights of a model, or a LoRA adapter of it, on one unit, or on one beside a host unit.
 *
 *   trainer     a model on one unit, with fp32 parameters, their gradients and the moments of AdamW.
 *   parameter   a matrix that is trained: a tensor of the model, or matrix A or B of a LoRA pair.
 *   micro-batch some sequences of tokens whose gradients are added to those of earlier micro-batches.
 *   step        one update of all parameters from the gradients that were added up since the last step.
 *
 * One step: segue_trainer_run once per micro-batch, then segue_trainer_update. The operations are those of the graph that
 * inference runs; the backward pass walks them in reverse. All values are fp32. Equal calls on a trainer of equal contents
 * give equal bits on one machine, for every number of threads. A unit with memory of its own (cuda) keeps all of them there.
 *
 * The conventions of segue.h hold: status, error text, size of structs, ownership. A trainer is used by one thread at a time;
 * it holds references to its model and unit. It does not change the model: sessions of the same model are not affected.
 * Beside the errors that a function lists, every call that computes may return EUNIT and ELOST: the unit failed or vanished.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_TRAIN_H
#define SEGUE_TRAIN_H

#include "segue.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct segue_trainer segue_trainer;

typedef enum segue_train_kind {
    SEGUE_TRAIN_FULL = 0,    /* all weights: the parameters are copies of the model's tensors, as fp32 */
    SEGUE_TRAIN_LORA = 1     /* W + scale * B A: only A and B are trained, W stays as the file stores it, in any storage */
} segue_train_kind;

typedef struct segue_trainer_opts {
    uint32_t size;
    segue_train_kind kind;
    uint32_t lora_rank;          /* 0 = 8 */
    float lora_alpha;            /* scale = alpha / rank; 0 = 2 * rank */
    const char *lora_targets;    /* linear layers with a pair: endings of module names, of the model file or of Hugging Face,
                                  * separated by commas: "q_proj,v_proj", "attn_q", "mlp.down_proj". NULL = all linear layers
                                  * inside the transformer's layers. The output head only if named */
    uint64_t seed;               /* of matrix A, which begins uniform in +-1/sqrt(columns); B begins as 0 */
    size_t sequence_tokens;      /* longest sequence; 0 = the lesser of the model's context and 1024 */
    size_t batch_tokens;         /* tokens of a micro-batch at most, all sequences together; 0 = sequence_tokens */
    uint32_t recompute;          /* 1: keep only the inputs of the layers and compute each layer a second time in the backward
                                  * pass: less memory, about a third more time. The same bits */
    segue_unit *host;            /* computes what the unit cannot: with a unit that only multiplies with weights, everything else.
                                  * NULL: none. Ignored by units that train alone */
} segue_trainer_opts;

typedef struct segue_trainer_info {
    uint32_t size;
    segue_train_kind kind;
    size_t params_n;             /* parameters; index i < params_n in the calls below, in the order of the graph */
    uint64_t numbers;            /* numbers that are trained */
    uint64_t steps;              /* updates so far */
    uint32_t layers, width, vocab;
    uint32_t lora_rank;          /* 0: not LoRA */
    float lora_scale;            /* alpha / rank */
    size_t sequence_tokens, batch_tokens;
    uint32_t recompute;
    uint64_t param_bytes;        /* parameters, gradients and both moments: 16 bytes per number */
    uint64_t activation_bytes;   /* largest sum of values and gradients of values in a micro-batch of batch_tokens, all of
                                  * them labelled (docs/TRAINING.md has the formula); an upper bound */
    double flops_per_token;      /* of forward and backward pass for a sequence of sequence_tokens, 2 per multiply-add, without
                                  * recomputation */
    uint64_t activation_used;    /* largest sum of values and gradients of values of a micro-batch so far */
} segue_trainer_info;

/* Train `model` on `unit`. FULL copies all tensors as fp32. LoRA needs the file's weights only as they are.
 * EARG: an option out of range. EUNSUPPORTED: the unit cannot train, an operation has no gradient (the text names it), no linear
 * layer has a name in lora_targets. ELIMIT: sequence_tokens exceeds the table of positions. EMEMORY. */
SEGUE_API segue_status segue_trainer_open(segue_trainer **out, segue_model *model, segue_unit *unit,
                                          const segue_trainer_opts *opts, segue_error *err);
/* Sizes and counts. EARG. */
SEGUE_API segue_status segue_trainer_info_get(const segue_trainer *trainer, segue_trainer_info *out, segue_error *err);
SEGUE_API void segue_trainer_close(segue_trainer *trainer);

/* Measure the operations per second, 2 per multiply-add, that the products of the trainer's unit reach now: the roof of
 * flops_per_token times tokens per second (less than 0.1 s on cpu). Beside a host the rates of both units are added, and a
 * program is compiled that the first micro-batch would need. EUNSUPPORTED: the unit trains in its own memory. EARG, EMEMORY,
 * EUNIT. */
SEGUE_API segue_status segue_trainer_roof(segue_trainer *trainer, double *flops_per_s, segue_error *err);

/* --- parameters -------------------------------------------------------------------------------------------------- */

typedef enum segue_param_part {
    SEGUE_PARAM_TENSOR = 0,      /* a tensor of the model */
    SEGUE_PARAM_LORA_A = 1,      /* [rank, columns of the tensor] */
    SEGUE_PARAM_LORA_B = 2       /* [rows of the tensor, rank], without the scale */
} segue_param_part;

/* Strings live as long as the trainer. */
typedef struct segue_param_info {
    uint32_t size;
    const char *name;            /* unique: the tensor's name in the model file, for LoRA followed by ".lora_a" or ".lora_b" */
    const char *tensor;          /* the tensor's name in the model file */
    const char *hf_name;         /* its name in Hugging Face form, such as "model.layers.0.self_attn.q_proj.weight" */
    segue_param_part part;
    int32_t layer;               /* -1: in no layer */
    size_t rows, cols;           /* of the matrix: rows are outputs. A vector has one row */
    uint32_t dims;               /* dimensions in SEGUE_ORDER_FILE, at most 4; the last one is contiguous */
    size_t shape[4];
    uint32_t matrix;             /* 1: more than one row and column, and no convolution: weight decay applies */
} segue_param_info;

/* EARG: no parameter i. */
SEGUE_API segue_status segue_trainer_param_info(const segue_trainer *trainer, size_t i, segue_param_info *out,
                                                segue_error *err);

typedef enum segue_param_field {
    SEGUE_PARAM_VALUE = 0,
    SEGUE_PARAM_GRADIENT = 1,    /* of the summed loss of all micro-batches since the last update */
    SEGUE_PARAM_MOMENT1 = 2,     /* AdamW: running mean of gradients */
    SEGUE_PARAM_MOMENT2 = 3      /* ... of their squares */
} segue_param_field;

typedef enum segue_param_order {
    SEGUE_ORDER_MATRIX = 0,      /* [rows, cols] as the graph multiplies: y = x W^T. For checkpoints */
    SEGUE_ORDER_FILE = 1,        /* as the model file orders this tensor (transposed, permuted): shape[dims]. For export in the
                                  * form of the model file. LoRA: A in the file's order of columns, B in that of rows */
    SEGUE_ORDER_HF = 2           /* as a Hugging Face file orders it: for safetensors and PEFT from any model file. Norms that
                                  * Hugging Face stores as w - 1 and decays that it stores as a logarithm are converted in
                                  * SEGUE_PARAM_VALUE. Convolutions of GPT-2 ("Conv1D") are [cols, rows], all else [rows, cols] */
} segue_param_order;

/* Copy a field of parameter i out of or into the trainer: n = rows * cols numbers. All bits are kept.
 * EARG: no parameter i, another n. EUNSUPPORTED: put in SEGUE_ORDER_HF. */
SEGUE_API segue_status segue_trainer_param_get(const segue_trainer *trainer, size_t i, segue_param_field field,
                                               segue_param_order order, float *out, size_t n, segue_error *err);
SEGUE_API segue_status segue_trainer_param_put(segue_trainer *trainer, size_t i, segue_param_field field,
                                               segue_param_order order, const float *in, size_t n, segue_error *err);
/* The state of a trainer: values and moments of all parameters, and the number of updates. save writes it as a state file
 * (docs/STATE.md), which replaces an older one only when it is complete. A trainer of the same model and options, on any unit,
 * that loads it continues as the one that saved it: with the same bits on the same unit. run: any text that names data and
 * settings, or NULL; load wants an equal one. load changes nothing unless all of the file is valid, and drops gradients.
 * EARG: gradients wait for an update. ELIMIT: more than 21,845 parameters. EIO. EFORMAT: damaged, or of another model, trainer or
 * run. */
SEGUE_API segue_status segue_trainer_save(const segue_trainer *trainer, const char *path, const char *run, segue_error *err);
SEGUE_API segue_status segue_trainer_load(segue_trainer *trainer, const char *path, const char *run, segue_error *err);
/* Random start: matrices normal with this standard deviation (0 = 0.02), divided by sqrt(2 * layers) where a layer adds to the
 * residual stream; norms 1; biases 0; other vectors as in the file. Moments, gradients and steps become 0.
 * EUNSUPPORTED: LoRA. */
SEGUE_API segue_status segue_trainer_randomize(segue_trainer *trainer, uint64_t seed, float deviation, segue_error *err);

/* --- steps ------------------------------------------------------------------------------------------------------- */

/* Instead of cross entropy: the clipped policy gradient with a KL term of GRPO and PPO. At a labelled position with p = the
 * probability of its label, r = p / exp(old), q = reference - log p:
 *     loss = weight * (-min(r A, min(max(r, 1 - clip), 1 + clip) A) + kl (exp(q) - q - 1))
 * Arrays are [sum of lengths] and read at labelled positions only. */
typedef struct segue_train_policy {
    uint32_t size;
    const float *advantages;     /* A */
    const float *weights;        /* such as 1 / (tokens of the answer * answers) */
    const float *old_logprobs;   /* log-probabilities when the label was sampled */
    const float *ref_logprobs;   /* of the reference; NULL: no KL term */
    float clip;                  /* 0 = 0.2 */
    float kl;                    /* 0: no KL term */
} segue_train_policy;

/* A micro-batch: the sequences one after the other, without padding. Every sequence begins at position 0 and sees only itself. */
typedef struct segue_train_batch {
    uint32_t size;
    const int32_t *tokens;       /* [sum of lengths] */
    const int32_t *labels;       /* [sum of lengths] the token that position i is to predict, already shifted by one; -1 = no
                                  * loss there. NULL: the next token of the same sequence; none for its last */
    const size_t *lengths;       /* [sequences_n] tokens of each sequence, at least 1 */
    size_t sequences_n;
    uint32_t loss_only;          /* 1: evaluate: no gradients are computed or changed */
    const segue_train_policy *policy;    /* NULL: cross entropy */
    float *logprobs;             /* NULL, or [sum of lengths]: receives log p(label); 0 where there is no label */
    uint32_t base;               /* 1, with loss_only and LoRA: the model without the adapter, such as for a reference */
} segue_train_batch;

typedef struct segue_train_result {
    uint32_t size;
    double loss;                 /* sum of -log p(label) over the labelled positions, in nats */
    uint64_t labelled;           /* labelled positions */
    uint64_t tokens;
    uint64_t ns;
    /* Beside a host unit; else 0. */
    uint64_t dispatches;         /* programs of the unit that ran */
    uint64_t compiles;
    uint64_t simulated_ns;       /* time of the dispatches on the chip that the unit stands for; 0: measured only */
    uint64_t device_ns;          /* measured time of the dispatches ... */
    uint64_t overlap_ns;         /* ... in which the host computed */
    uint64_t weight_bytes;       /* weights that were written to the unit's inputs ... */
    uint64_t weight_ns;          /* ... and the time that took */
    uint64_t overflows;          /* results and weights that were clamped to the unit's range */
    uint64_t underflows;         /* numbers that lost bits below its smallest normal number */
    /* With a policy; else 0. */
    uint64_t clipped;            /* positions without a gradient, because their ratio was clipped */
    double kl;                   /* sum of exp(q) - q - 1 */
} segue_train_result;

/* Compute the loss of a micro-batch and, unless loss_only, add the gradients of the summed loss to those that wait for the next
 * update. k micro-batches give the gradients of one batch of all their sequences, up to rounding.
 * EARG: no tokens, a token or label outside the vocabulary, an empty sequence, a policy that lacks an array. ELIMIT: a sequence
 * exceeds sequence_tokens, or all together batch_tokens. EUNSUPPORTED: policy, logprobs or base on a unit with memory of its own.
 * EFORMAT: the loss is not finite; the text names the layer and operation where the first NaN or infinity appeared. Gradients
 * that wait are then dropped; parameters are unchanged. */
SEGUE_API segue_status segue_trainer_run(segue_trainer *trainer, const segue_train_batch *batch, segue_train_result *out,
                                         segue_error *err);

typedef enum segue_train_work {
    SEGUE_TRAIN_FORWARD = 0,         /* a product with weights, on the unit */
    SEGUE_TRAIN_INPUT_GRADIENT = 1,  /* the gradient of its operand, on the unit */
    SEGUE_TRAIN_WEIGHT_GRADIENT = 2  /* the gradients of its weights, on the host */
} segue_train_work;

/* When something was computed, of the system's monotonic clock. */
typedef struct segue_train_interval {
    uint32_t size;
    segue_train_work work;
    int32_t layer;               /* -1: in no layer */
    uint64_t begin_ns, end_ns;
} segue_train_interval;

/* Interval i of the last segue_trainer_run of a trainer with a host unit. SEGUE_END: there are no more, or no host unit. */
SEGUE_API segue_status segue_trainer_interval_get(const segue_trainer *trainer, size_t i, segue_train_interval *out,
                                                  segue_error *err);

typedef struct segue_adamw {
    uint32_t size;
    double learning_rate;        /* 0: parameters stay, moments are updated */
    double beta1, beta2, eps;    /* 0 = 0.9, 0.999, 1e-8 */
    double weight_decay;         /* decoupled: w -= learning_rate * weight_decay * w, matrices only; 0 = none */
    double clip_norm;            /* gradients are scaled so that their norm is at most this; 0 = no bound */
    double divisor;              /* gradients are divided by it first; 0 = the labelled positions since the last update */
} segue_adamw;

typedef struct segue_update_result {
    uint32_t size;
    uint64_t step;               /* updates so far, this one included */
    double gradient_norm;        /* of all gradients, divided, before clipping */
    uint32_t clipped;            /* 1: it exceeded clip_norm */
} segue_update_result;

/* One step of AdamW, as torch.optim.AdamW; gradients become 0.
 * EARG: no labelled position since the last update, an option out of range. EFORMAT: a gradient is not finite; the text names the
 * parameter. Then no parameter and no moment changes, and the gradients are dropped. */
SEGUE_API segue_status segue_trainer_update(segue_trainer *trainer, const segue_adamw *opts, segue_update_result *out,
                                            segue_error *err);
/* Drop the gradients that wait for the next update. */
SEGUE_API void segue_trainer_drop_gradients(segue_trainer *trainer);

/* --- use --------------------------------------------------------------------------------------------------------- */

/* A copy of the adapter as it is now, for sessions and requests of the trained model: nothing is written to a file, and no
 * engine is opened again. scale multiplies the adapter's own. The caller closes it with segue_adapter_close.
 * EUNSUPPORTED: all weights are trained. EARG, EMEMORY. */
SEGUE_API segue_status segue_trainer_adapter(segue_adapter **out, const segue_trainer *trainer, float scale, segue_error *err);

#ifdef __cplusplus
}
#endif
#endif
