/* family.h: a model family (architecture): the names by which files identify it, a table of
 * hyperparameters, a table of tensors, and a function that appends the ops of a layer. Reading,
 * checking, converting and describing models is generic over these tables (numbers.c, rotary.c,
 * weights.c, model.c). Families are constant data; none opens files or depends on a format. The
 * list of families is in model.c.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_FAMILY_H
#define SG_MODEL_FAMILY_H

#include "model/layer.h"
#include "model/model.h"
#include "tensor/json.h"

/* --- numbers --- */

/* Scaling of rotary frequencies for contexts longer than in training. */
enum sg_scaling { SG_SCALING_NONE, SG_SCALING_LINEAR, SG_SCALING_LLAMA3, SG_SCALING_YARN };

/* Parameters of a rotary table, and the table. */
struct sg_rotary {
    double theta;            /* the base */
    uint32_t pairs;          /* rotated columns of a head / 2 */
    enum sg_scaling scaling;
    double factor;           /* how much longer the context becomes */
    double low, high;        /* llama3: low_freq_factor, high_freq_factor */
    double original;         /* llama3, yarn: context length in training */
    double beta_fast, beta_slow; /* yarn: ends of the ramp, in turns within the original context */
    double attention;        /* yarn: factor on cosine and sine */
    uint32_t truncate;       /* yarn: 1: round the ends of the ramp to whole pairs */
    float *inverse;          /* [pairs] radians per position; in the model's arena */
    float mscale;            /* cosine and sine are multiplied by it */
};

/* The hyperparameters of all families; a family uses those that its table names. Counts and flags
 * are uint32_t and reals double, so that a table row can refer to a field by its offset. Widths are
 * in columns. */
struct sg_numbers {
    uint32_t layers, width, ff, vocab, context;
    uint32_t heads, kv_heads, head_width, value_width; /* attention; widths of one head */
    uint32_t act;                                      /* enum sg_act of the MLP */
    uint32_t tied;           /* 1: the output head is the embedding; 0: separate; 2: not specified */
    uint32_t attention_bias, output_bias, mlp_bias; /* 1: the biases must exist */
    uint32_t use_window;     /* 0: ignore `window` */
    uint32_t window;         /* positions that a sliding layer attends to, including its own; 0: no sliding layers */
    uint32_t window_from;    /* layers from this one on slide, unless another rule applies */
    uint32_t window_every;   /* every n-th layer is full, the others slide; 0: no such rule */
    uint32_t full_every;     /* every n-th layer has attention, the others are linear; 0: all have attention */
    uint32_t predict_layers; /* layers at the end for multi-token prediction; not used */
    /* Gated delta rule: numbers of key and value heads, widths of a key and of a value head, width
     * of all value heads, and length of the convolution. */
    uint32_t key_heads, value_heads, key_width, delta_width, delta_inner, taps;
    uint32_t experts, experts_used, expert_ff; /* mixture of experts: total, per token, inner width */
    double eps;                              /* of the norms */
    double embed_scale;                      /* factor on embeddings; 0: 1 */
    double attention_scalar;                 /* scores are multiplied by attention_scalar^-1/2; 0: head_width */
    double attention_softcap, final_softcap; /* of scores and logits; 0: none */
    double rotated_share; /* part of a head's columns that is rotated */
    double local_theta;   /* rotary base of sliding layers, never scaled; 0: as in full layers */
    uint32_t only;        /* unused; the target of rows that only restrict a value */
    struct sg_rotary rotary[2]; /* 0: full layers; 1: sliding layers */
    uint8_t *kinds;             /* [layers] enum sg_layer_kind; in the model's arena */
};

/* COUNT: uint32_t. REAL: double. FLAG: uint32_t 0 or 1. ACT: enum sg_act. */
enum sg_number_kind { SG_NUMBER_COUNT, SG_NUMBER_REAL, SG_NUMBER_FLAG, SG_NUMBER_ACT };

/* A row of a family's table of hyperparameters. A row in a later table replaces an earlier one of
 * the same name. */
struct sg_number_row {
    const char *name;      /* in `inspect`, messages and size expressions; NULL ends a table */
    enum sg_number_kind kind;
    size_t at;             /* offset in struct sg_numbers */
    const char *hf[2];     /* keys of config.json; the first that exists is used */
    const char *gguf;      /* GGUF key after "<architecture>."; NULL: GGUF has none */
    uint32_t required;     /* 1: a file without it is refused */
    double fallback;       /* the value when absent; not checked against the bounds */
    double min, max;       /* valid range, inclusive */
};
/* Initialisers for rows: SG_COUNT(field) etc. use the field's name as the row's name. */
#define SG_NUMBER(name_, kind_, field) .name = name_, .kind = kind_, .at = offsetof(struct sg_numbers, field)
#define SG_COUNT(field) SG_NUMBER(#field, SG_NUMBER_COUNT, field)
#define SG_REAL(field) SG_NUMBER(#field, SG_NUMBER_REAL, field)
#define SG_FLAG(field) SG_NUMBER(#field, SG_NUMBER_FLAG, field), .max = 1
#define SG_ACT(field) SG_NUMBER(#field, SG_NUMBER_ACT, field), .max = SG_ACT_TANH
/* A flag of which only one value is supported. */
#define SG_ONLY(name_, value) \
    SG_NUMBER(name_, SG_NUMBER_FLAG, only), .hf = {name_}, .fallback = value, .min = value, .max = value

/* --- tensors --- */

/* How the layout of a tensor in a file differs from the logical one. Each applies to some
 * conventions only, named first. */
enum sg_fix {
    SG_FIX_CONV1D = 1,        /* Hugging Face: stored as [in, out] */
    SG_FIX_INTERLEAVED = 2,   /* GGUF of an `interleaved` family: rows (h, 2j+s) instead of (h, s*D/2+j) */
    SG_FIX_TILED = 4,         /* GGUF: value heads r*Hk+kh instead of kh*R+r, in rows (vectors: elements) */
    SG_FIX_TILED_COLUMNS = 8, /* the same in columns */
    SG_FIX_QUERY_GATE = 16,   /* all: stored as query and gate of each head; logical: all queries, then all gates */
    SG_FIX_TAPS = 32,         /* all: a convolution, stored as [C,1,taps], [C,taps,1] or [C,taps] */
    SG_FIX_MINUS_ONE = 64,    /* Hugging Face: norms stored as w - 1 */
    SG_FIX_STACKED = 128      /* all: experts, stored as [n, rows/n, cols] or [rows, cols] */
};
/* Whether a tensor has a bias, and whether it must exist. */
enum sg_bias { SG_BIAS_NONE, SG_BIAS_MAY, SG_BIAS_MUST };
enum sg_need { SG_NEED_MUST, SG_NEED_MAY };

/* A row of a family's table of tensors. Sizes are expressions over hyperparameters by name: sums of
 * products and quotients. */
struct sg_tensor_row {
    enum sg_role role; /* SG_ROLE_NONE ends a table; a later row of the same role replaces an earlier one */
    unsigned layers;          /* kinds of layers that have it, enum sg_layer_kind bits; 0: one for the whole model */
    const char *hf;           /* Hugging Face name after the body's prefix; %u: layer; a leading '/': without the prefix */
    const char *gguf;         /* GGUF name; NULL: GGUF has none */
    const char *rows, *cols;  /* sizes; rows NULL: a vector of `cols` numbers */
    unsigned fix;             /* enum sg_fix bits */
    const char *group, *skip; /* SG_FIX_TILED*: width of a head (NULL = 1), rows before the first head */
    enum sg_need need;
    enum sg_bias bias;        /* of `rows` numbers, named .bias instead of .weight, permuted like the rows */
    const char *bias_if;      /* name of a flag that makes an optional bias required; NULL = none */
};

#define SG_TENSOR(role_, layers_, hf_, gguf_, rows_, cols_) \
    .role = role_, .layers = layers_, .hf = hf_, .gguf = gguf_, .rows = rows_, .cols = cols_

/* A family. All pointers are to constant data. */
struct sg_family {
    const char *name;
    const char *const *hf;                  /* model_type and architectures of config.json, NULL-terminated */
    const char *const *gguf;                /* general.architecture, NULL-terminated */
    const struct sg_number_row *numbers[4]; /* NULL-terminated */
    const struct sg_tensor_row *tensors[3]; /* NULL-terminated */
    enum sg_norm_kind norm;
    unsigned interleaved;       /* 1: GGUF files store q and k rows for rotation of adjacent pairs */
    unsigned learned_positions; /* 1: a table of position embeddings instead of rotary embeddings */
    unsigned sections;          /* 1: GGUF files need rope.dimension_sections (multimodal rotary embedding) */
    double theta;               /* rotary base if the file has none; 0 = 10000 */
    /* Compute hyperparameters from others; may be NULL. Called after the table was read, before the
     * general rules. */
    segue_status (*derive)(struct sg_numbers *n, unsigned gguf, segue_error *err);
    /* Append layer l->i to the builder. x: the residual stream; returns the new one. */
    int32_t (*layer)(struct sg_layer *l, int32_t x);
};

/* --- generic over the tables --- */

/* Where hyperparameters are read from: config.json or GGUF keys. */
struct sg_source {
    const char *path;            /* file name for messages */
    const struct sg_archive *archive;
    const json_t *outer, *inner; /* config.json; inner: its text_config if it has one; both NULL: GGUF */
    const char *arch;            /* GGUF: general.architecture */
};
/* Read, complete and check all hyperparameters, including layer kinds and rotary tables. EFORMAT,
 * EUNSUPPORTED, EMEMORY. */
segue_status sg_numbers_read(struct sg_numbers *n, const struct sg_family *f, const struct sg_source *src,
                             struct sg_arena *arena, segue_error *err);
/* The last step of sg_numbers_read: parameters and table for each kind of layer. */
segue_status sg_rotary_read(struct sg_numbers *n, const struct sg_family *f, const struct sg_source *src,
                            struct sg_arena *arena, segue_error *err);
/* Compute r->inverse and r->mscale from the parameters. divisors: [pairs] applied to the
 * frequencies, or NULL. */
void sg_rotary_make(struct sg_rotary *r, const float *divisors);
/* "none", "linear", "llama3" or "yarn". */
const char *sg_scaling_name(enum sg_scaling s);

/* The valid row for a name or role: the last one in the family's tables; NULL: none. */
const struct sg_number_row *sg_number_find(const struct sg_family *f, const char *name);
const struct sg_tensor_row *sg_tensor_find(const struct sg_family *f, enum sg_role role);
/* Iterate over the valid rows: the one after `row` (NULL: the first); NULL at the end. */
const struct sg_number_row *sg_number_next(const struct sg_family *f, const struct sg_number_row *row);
double sg_number_value(const struct sg_numbers *n, const struct sg_number_row *row);
/* Evaluate a size expression such as "2*key_heads*key_width+1"; NULL = 1. EFORMAT when a value
 * exceeds 32 bits. */
segue_status sg_size_of(const struct sg_family *f, const struct sg_numbers *n, const char *expression,
                        uint32_t *out, segue_error *err);

/* The row and column permutation of a tensor. gguf: 1 for GGUF files. Used for models, adapters and export. */
segue_status sg_fix_perms(const struct sg_family *f, const struct sg_numbers *n,
                          const struct sg_tensor_row *row, unsigned gguf, struct sg_perm *rows,
                          struct sg_perm *cols, segue_error *err);
/* Find and check every tensor of the family; sets m->weights and m->convention. */
segue_status sg_weights_bind(struct segue_model *m, const struct sg_numbers *n, segue_error *err);
/* Replace the matrices by fp8 views (narrow.c); after sg_weights_bind. */
segue_status sg_weights_fp8(struct segue_model *m, segue_error *err);

/* Tables for families with llama-like layers. sg_window_numbers: for families whose window is off
 * by default. */
extern const struct sg_number_row sg_decoder_numbers[];
extern const struct sg_number_row sg_window_numbers[];
extern const struct sg_tensor_row sg_decoder_tensors[];

#endif
