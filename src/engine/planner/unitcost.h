/* unitcost.h: what runs of segue's own units cost, as `segue calibrate` measured it: lines UNIT.KEY of a chip file (lines.h).
 * UNIT is a spec such as cpu:isa=avx512,threads=2. A pure function of these numbers and the sizes of a model.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_UNITCOST_H
#define SG_ENGINE_UNITCOST_H

#include "engine/planner/real.h"
#include "engine/planner/chips/shape.h"

/* Classes of weights by what their kernels do: 16 or more bits, 8 bits, 4 to 5 bits, superblocks, fp8 made when loading. */
enum { SG_CLASS_WIDE, SG_CLASS_BYTE, SG_CLASS_NIBBLE, SG_CLASS_SUPER, SG_CLASS_FP8, SG_CLASS_N };
/* Numbers of tokens of a prefill run at which products were measured; between them the speed is interpolated. Files of earlier
 * versions have none of 1 and 4 rows. */
enum { SG_ROWS_1, SG_ROWS_4, SG_ROWS_16, SG_ROWS_64, SG_ROWS_256, SG_ROWS_512, SG_ROWS_N };
extern const double sg_rows_of[SG_ROWS_N];

/* All times in ms. Watts: negative if not known. */
struct sg_unit_cost {
    char spec[64];
    double step_ms, step_layer_ms;             /* a step, and each of its layers, beside the bytes */
    double run_ms, run_layer_ms;               /* a prefill run, and each of its layers, beside the products */
    double row_layer_ms;                       /* each row of it in each layer, beside the products */
    double gb_s[SG_CLASS_N];                   /* weights of a step */
    double layer_ms[SG_CLASS_N];               /* each layer of a step with such weights; 0: step_layer_ms */
    double tflops[SG_CLASS_N][SG_ROWS_N];      /* products of a prefill run */
    double kv_gb_s, attend_tflops, state_gb_s; /* K and V of a step; attention of prefill; delta matrices of prefill */
    double attend_few_tflops;                  /* attention of prefill runs of 16 rows; attend_tflops: of 512. 0: the same */
    double kv_q8_gb_s;                         /* of the bytes of q8; 0: kv_gb_s */
    /* What attention of a step takes in each layer at depth 256, and from 1,024 on, beside the bytes of K and V: blocks of
     * positions that run one after the other until there are enough to fill the unit. */
    double attend_ms[2];
    double kv_forms; /* bits 1 << SG_KV_*: how its states may have K and V; 0: not stated, all */
    double stream_gb_s;                        /* the stream test beside the measurements */
    double load_gb_s;                          /* preparing weights that are cached */
    double memory_bytes;                       /* 0: not known */
    double step_w, prefill_w;
    double step_j_gweight, prefill_j_gweight; /* on top of these watts: joules per 10^9 weights and row */
    double idle_w; /* waiting with a model in memory; negative if not known */
    /* Learned from real runs of all models; 0: nothing yet. drift: measured time divided by the time that the figures above give.
     * errors: 9 of 10 runs deviate by less than this share; new_error: of models that did not run before. */
    double prefill_drift, step_drift;
    double prefill_error, step_error, new_error;
    double error_share; /* of both phases, where those are 0 */
    double simulated;   /* 1: never chosen unless named */
    int assumed;        /* 1: a figure has the source `prior` */
};
/* A hand-off, beside the prefill: a time and bytes at a rate. */
struct sg_link_cost {
    char from[64], to[64];
    double ms, gb_s;
};
struct sg_real_factor {
    char unit[64], model[40];
    double factor[SG_REAL_N]; /* measured / predicted at the nodes of real.h; 0: no run yet */
    double watts[2];          /* by SG_PHASE_*; 0: no run with a meter yet */
};

enum { SG_UNITS_MAX = 16, SG_LINKS_MAX = 256, SG_REALS_MAX = 128 };
struct sg_unit_costs {
    char machine[40]; /* a hash of the machine that was measured; empty: not stated */
    struct sg_unit_cost units[SG_UNITS_MAX];
    struct sg_link_cost links[SG_LINKS_MAX];
    struct sg_real_factor reals[SG_REALS_MAX];
    size_t units_n, links_n, reals_n;
};

/* Reads the lines UNIT.KEY, FROM>TO.KEY and UNIT~MODEL.KEY of a chip file; others are skipped. EFORMAT names file and line. */
segue_status sg_unit_costs_read(struct sg_unit_costs *out, const char *text, size_t n, const char *file, segue_error *err);
struct sg_buf;
void sg_unit_costs_write(const struct sg_unit_costs *c, struct sg_buf *out);
/* The entry of a spec, added if `add`; NULL: none, or no space. */
struct sg_unit_cost *sg_unit_cost_of(struct sg_unit_costs *c, const char *spec, int add);
struct sg_link_cost *sg_link_cost_of(struct sg_unit_costs *c, const char *from, const char *to, int add);
struct sg_real_factor *sg_real_factor_of(struct sg_unit_costs *c, const char *unit, const char *model, int add);

/* How states have K and V, least first by what it changes; f16 is the default of an engine. */
enum sg_kv_form { SG_KV_FORM_F16, SG_KV_FORM_F32, SG_KV_FORM_BF16, SG_KV_FORM_Q8, SG_KV_FORM_N };
struct sg_kv_form_info {
    const char *name;  /* as --kv has it */
    double bytes;      /* per number, scales included */
    const char *class; /* of accuracy, for reports */
    int below;         /* 1: less accurate than the default */
};
/* NULL: there is no such form. */
const struct sg_kv_form_info *sg_kv_form_at(int form);
/* -1: no such name. */
int sg_kv_form_of(const char *name);
/* 1: states of the unit may have that form. */
int sg_unit_has_kv(const struct sg_unit_cost *u, int form);

/* The sizes of a model that these costs need. */
struct sg_model_cost {
    struct sg_shape shape;
    char key[40];                  /* names the model among the factors of real runs */
    double body_bytes, head_bytes; /* weights that a step reads */
    double kv_bytes;               /* per position */
    int kv;                        /* SG_KV_FORM_* */
    double attend;                 /* operations per token and position of attention */
    double state_bytes, file_bytes;
    double disk_bytes; /* of the file, where its weights are converted when loading; 0: file_bytes */
    int class;         /* SG_CLASS_* */
    char storage[16];  /* of the weights */
    const struct sg_model_cost *also; /* the same model with its weights in another storage; NULL: no more */
};
/* Of a published shape in a storage. EARG: the storage is not known. */
segue_status sg_model_cost_shape(struct sg_model_cost *out, const struct sg_shape *shape, const char *storage, segue_error *err);
/* The same model with K and V in another form. */
void sg_model_cost_kv(struct sg_model_cost *out, const struct sg_model_cost *m, int form);
/* The same model with the matrices of its layers and its head in another storage: fp8, which is made when loading, or one that
 * segue quantize writes. EARG: the storage is not known. */
segue_status sg_model_cost_as(struct sg_model_cost *out, const struct sg_model_cost *m, const char *storage, segue_error *err);
int sg_class_of(double bytes, int unpacked, const char *storage);

/* More rows are never slower per row than fewer, and a run of one row multiplies as a step does: what other work on the machine
 * slowed while one of them was measured is mended from the others. class: one with weights per second. */
void sg_mend_speeds(struct sg_unit_cost *u, int class, double bytes_per_weight);

/* 1: the speeds of weights and of products are stated, for a class of weights or one that stands for it. */
int sg_unit_complete(const struct sg_unit_cost *u, int class);

/* Parts of a time, for --explain. */
struct sg_cost_terms {
    double overhead, weights, kv, state, products, attention;
};
/* One step of `sequences` sequences at a depth; prefill of n tokens from a depth in runs of `chunk`, with the choice of the first
 * token; hand-off at n positions. costs: adds the corrections learned from real runs; NULL: none. terms may be NULL. */
double sg_step_ms(const struct sg_unit_costs *costs, const struct sg_unit_cost *u, const struct sg_model_cost *m, double depth,
                  double sequences, struct sg_cost_terms *terms);
double sg_prefill_ms(const struct sg_unit_costs *costs, const struct sg_unit_cost *u, const struct sg_model_cost *m, double n,
                     double depth, double chunk, struct sg_cost_terms *terms);
/* NULL: the hand-off was not measured. */
const struct sg_link_cost *sg_link_find(const struct sg_unit_costs *costs, const char *from, const char *to);
/* link NULL: assumed. */
double sg_link_ms(const struct sg_link_cost *link, const struct sg_model_cost *m, double n);
/* What real runs taught of a model on a unit; NULL: nothing. */
const struct sg_real_factor *sg_real_find(const struct sg_unit_costs *costs, const char *unit, const char *model);
/* The factor of a prediction from the measured figures: the drift of the unit times the factor of the model. real may be NULL. */
double sg_taught(const struct sg_unit_cost *u, const struct sg_real_factor *real, int phase, double x);
/* Half the width of an interval of 90 %, as a logarithm, of prefill or steps of a model. */
double sg_spread(const struct sg_unit_cost *u, const struct sg_real_factor *real, int phase);

#endif
