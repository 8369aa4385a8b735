/* family.h: what a family is: the names under which files announce it, a table of numbers, a table of
 * tensors, and one function that appends the operations of a layer. Everything else (finding, checking,
 * converting, describing) is generic over these tables: numbers.c, rotary.c, weights.c, model.c. Families are
 * read-only data; none of them opens a file or knows a format. Has no source of its own name; the list of
 * families stands in model.c.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_FAMILY_H
#define SG_MODEL_FAMILY_H

#include "model/layer.h"
#include "model/model.h"
#include "tensor/json.h"

/* --- numbers --- */

enum sg_scaling { SG_SCALING_NONE, SG_SCALING_LINEAR, SG_SCALING_LLAMA3, SG_SCALING_YARN };

/* One rotary table: what the file says of it, and the table itself. */
struct sg_rotary {
    double theta;
    uint32_t pairs; /* rotated columns / 2 */
    enum sg_scaling scaling;
    double factor, low, high, original, beta_fast, beta_slow,
        attention;     /* of the scaling; attention 0: derive it */
    uint32_t truncate; /* yarn: the ramp begins and ends at whole pairs */
    float *inverse;    /* [pairs] */
    float mscale;
};

/* Every number a family may use; a family reads those that its table names. Counts are uint32_t and reals
 * double, so that a table row can say where a number goes. */
struct sg_numbers {
    uint32_t layers, width, ff, vocab, context;
    uint32_t heads, kv_heads, head_width, value_width; /* attention; widths of one head */
    uint32_t act;                                      /* enum sg_act of the MLP */
    uint32_t tied; /* 1: the head is the embedding; 0: it is not; 2: the file does not say */
    uint32_t attention_bias, output_bias, mlp_bias; /* 1: the file says that the biases are there */
    uint32_t use_window;                            /* 0: ignore `window` */
    uint32_t window;         /* rows that a sliding layer sees, its own included; 0 = none slides */
    uint32_t window_from;    /* layers from this one on slide, where no other rule is given */
    uint32_t window_every;   /* every so many-th layer is full, the others slide; 0 = no such rule */
    uint32_t full_every;     /* every so many-th layer attends, the others are linear; 0 = all attend */
    uint32_t predict_layers; /* layers at the end that only guess further tokens: not used */
    uint32_t key_heads, value_heads, key_width, delta_width, delta_inner, taps; /* gated delta rule */
    uint32_t experts, experts_used, expert_ff;
    double eps;
    double embed_scale;                      /* 0 = 1 */
    double attention_scalar;                 /* queries are scaled by its -1/2 power; 0 = head_width */
    double attention_softcap, final_softcap; /* 0 = none */
    double rotated_share; /* of each head's columns, where config.json says it outside rope_parameters */
    double local_theta;   /* rotary base of sliding layers, never scaled; 0 = as the full ones */
    uint32_t only;        /* where rows go that only forbid a value */
    struct sg_rotary rotary[2]; /* 0: full layers; 1: sliding layers */
    uint8_t *kinds;             /* [layers] enum sg_layer_kind */
};

enum sg_number_kind { SG_NUMBER_COUNT, SG_NUMBER_REAL, SG_NUMBER_SWITCH, SG_NUMBER_ACT };

/* A row of a family's table of numbers. A later table's row replaces an earlier one of the same name. */
struct sg_number_row {
    const char *name; /* in `inspect`, in errors, in size expressions; NULL ends a table */
    enum sg_number_kind kind;
    size_t at;         /* offset in struct sg_numbers */
    const char *hf[2]; /* keys of config.json, the first that is there */
    const char *gguf;  /* key behind "<architecture>."; NULL: never there */
    uint32_t need;     /* 1: refused when absent */
    double fallback, least, most;
};
#define SG_NUMBER(name_, kind_, field) .name = name_, .kind = kind_, .at = offsetof(struct sg_numbers, field)
#define SG_COUNT(field) SG_NUMBER(#field, SG_NUMBER_COUNT, field)
#define SG_REAL(field) SG_NUMBER(#field, SG_NUMBER_REAL, field)
#define SG_SWITCH(field) SG_NUMBER(#field, SG_NUMBER_SWITCH, field), .most = 1
#define SG_ACT(field) SG_NUMBER(#field, SG_NUMBER_ACT, field), .most = SG_ACT_TANH
/* A switch whose one value is supported. */
#define SG_ONLY(name_, value) \
    SG_NUMBER(name_, SG_NUMBER_SWITCH, only), .hf = {name_}, .fallback = value, .least = value, .most = value

/* --- tensors --- */

/* How a file's layout differs from the house's. Which of them a file really needs depends on its convention.
 */
enum sg_fix {
    SG_FIX_CONV1D = 1,        /* HF: stored [in, out] */
    SG_FIX_HALVES = 2,        /* GGUF of an `interleaved` family: rows (h, 2j+s) instead of (h, s*D/2+j) */
    SG_FIX_TILED = 4,         /* GGUF: value heads r*Hk+kh instead of kh*R+r, in rows (of vectors: entries) */
    SG_FIX_TILED_COLUMNS = 8, /* the same in columns */
    SG_FIX_QUERY_GATE =
        16,              /* all: per head a query, then a gate; the house has all queries, then all gates */
    SG_FIX_TAPS = 32,    /* a convolution: [C,1,taps], [C,taps,1] or [C,taps] */
    SG_FIX_CENTRED = 64, /* HF: the file holds w - 1 (norms) */
    SG_FIX_STACKED = 128 /* experts: [n, rows/n, cols] as well as [rows, cols] */
};
enum sg_bias { SG_BIAS_NONE, SG_BIAS_MAY, SG_BIAS_MUST };
enum sg_need { SG_NEED_MUST, SG_NEED_MAY };

/* A row of a family's table of tensors. Sizes are expressions over the numbers by name: sums of products. */
struct sg_tensor_row {
    enum sg_role role; /* SG_ROLE_NONE ends a table; a later row of the same role replaces an earlier one */
    unsigned layers;   /* enum sg_layer_kind bits; 0: one for the whole model */
    const char *hf;    /* behind the body's prefix; %u: layer. A leading '/': outside the body */
    const char *gguf;  /* NULL: never there */
    const char *rows, *cols;  /* rows NULL: a vector of `cols` */
    unsigned fix;             /* enum sg_fix bits */
    const char *group, *skip; /* SG_FIX_TILED*: width of a head's group (NULL = 1), rows before the first */
    enum sg_need need;
    enum sg_bias bias;   /* a vector of `rows`, named .bias instead of .weight, permuted like the rows */
    const char *bias_if; /* number that makes an optional bias needed; NULL = none */
};

#define SG_TENSOR(role_, layers_, hf_, gguf_, rows_, cols_) \
    .role = role_, .layers = layers_, .hf = hf_, .gguf = gguf_, .rows = rows_, .cols = cols_

struct sg_family {
    const char *name;
    const char *const *hf;                  /* model_type and architectures of config.json, NULL-terminated */
    const char *const *gguf;                /* general.architecture, NULL-terminated */
    const struct sg_number_row *numbers[4]; /* NULL-terminated */
    const struct sg_tensor_row *tensors[3]; /* NULL-terminated */
    enum sg_norm_kind norm;
    unsigned interleaved; /* 1: GGUF files hold q and k rows for rotation of neighbouring pairs */
    unsigned learnt;      /* 1: positions are a learnt table, nothing is rotated */
    unsigned sections;    /* 1: GGUF files say how rotary pairs are shared between directions of an image */
    double theta;         /* rotary base where the file does not say; 0 = 10000 */
    /* Numbers that follow from others; may be NULL. Runs after the table was read and before it is checked.
     */
    segue_status (*derive)(struct sg_numbers *n, unsigned gguf, segue_error *err);
    /* Appends layer l->i to the builder; takes and returns the residual stream. */
    int32_t (*layer)(struct sg_layer *l, int32_t x);
};

/* --- generic over the tables --- */

/* Where numbers come from: config.json (inner: its text_config, or itself), or GGUF keys. */
struct sg_source {
    const char *path; /* names it in errors */
    const struct sg_archive *archive;
    const json_t *outer, *inner; /* NULL: GGUF */
    const char *arch;            /* GGUF: general.architecture */
};
segue_status sg_numbers_read(struct sg_numbers *n, const struct sg_family *f, const struct sg_source *src,
                             struct sg_arena *arena, segue_error *err);
/* numbers.c calls it last: theta, scaling and table of each kind of layer. */
segue_status sg_rotary_read(struct sg_numbers *n, const struct sg_family *f, const struct sg_source *src,
                            struct sg_arena *arena, segue_error *err);
/* Fills r->inverse and r->mscale from the rest; divisors [pairs] or NULL. */
void sg_rotary_make(struct sg_rotary *r, const float *divisors);
/* "none" "linear" "llama3" "yarn" */
const char *sg_scaling_name(enum sg_scaling s);

/* The row in force for this name or role; NULL: the family has none. */
const struct sg_number_row *sg_number_find(const struct sg_family *f, const char *name);
const struct sg_tensor_row *sg_tensor_find(const struct sg_family *f, enum sg_role role);
/* Next number row in force after `row` (NULL: the first); NULL at the end. For listings. */
const struct sg_number_row *sg_number_next(const struct sg_family *f, const struct sg_number_row *row);
double sg_number_value(const struct sg_numbers *n, const struct sg_number_row *row);
/* "2*key_heads*key_width + 1": EFORMAT when a product leaves 32 bits; NULL = 1. */
segue_status sg_size_of(const struct sg_family *f, const struct sg_numbers *n, const char *expression,
                        uint32_t *out, segue_error *err);

/* The permutations of a row's tensor in a file of this convention; conventions differ between a model and an
 * adapter. */
segue_status sg_fix_perms(const struct sg_family *f, const struct sg_numbers *n,
                          const struct sg_tensor_row *row, unsigned gguf, struct sg_perm *rows,
                          struct sg_perm *cols, segue_error *err);
/* Finds and checks every tensor of the family; fills m->weights, m->convention. */
segue_status sg_weights_bind(struct segue_model *m, const struct sg_numbers *n, segue_error *err);
/* Behind it: matrices as fp8 (narrow.c). */
segue_status sg_weights_fp8(struct segue_model *m, segue_error *err);

/* Tables that go with the phrases of layer.h. */
extern const struct sg_number_row sg_decoder_numbers[];
extern const struct sg_number_row sg_window_numbers[]; /* of families whose window is off unless said */
extern const struct sg_tensor_row sg_decoder_tensors[];

#endif
