/* anetrain.h: products of training on the engine, with weights as inputs (train_device.h). One kind of program computes all
 * of them: its input [1, inner, 1, tokens + outer] has the operand in the first columns and the weights after it, its output
 * [1, outer, 1, tokens] is their product, summed over `inner`. A wide product is cut into tiles of `outer`.
 *
 * Files: anetrain.c: the device; trainslab.c: surfaces with weights, conversion to and from fp16; trainmil.c: programs.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_ANETRAIN_H
#define SG_UNIT_ANE_ANETRAIN_H

#include <pthread.h>

#include "unit/ane/aneunit.h"

enum {
    ANE_TRAIN_WIDTH = 16384,         /* columns of an input that every chip accepts */
    ANE_TRAIN_SUM = 16384,           /* bound of the magnitude of results: some chips end at 32768 */
    ANE_TRAIN_WEIGHT = 4094          /* bound of weights, which are a slice of the last axis (rule 29) */
};

/* A loaded program. */
struct ane_train_program {
    struct ane_train_program *next;
    uint32_t inner, outer;           /* multiples of sg_unit.columns */
    struct sg_ane_program *program;
    uint64_t in_row, in_bytes, out_row, out_bytes;   /* of its surfaces */
};

/* Tile [at, at + n) of the outer dimension of a product. */
struct ane_train_slab {
    struct ane_train_slab *next;
    uint32_t id, at, n;
    int back;
    uint64_t version;                /* of the weights in the surface, plus one; 0: none */
    float sum;                       /* largest sum of magnitudes of the weights of one result */
    struct ane_train_program *program;
    struct sg_ane_surface *in, *out;
};

struct sg_train_device {
    struct sg_train_device_base base;
    struct sg_unit *unit;
    uint32_t tokens;                 /* columns of operands in every program, a multiple of sg_unit.columns */
    struct ane_train_program *programs;
    struct ane_train_slab *slabs;    /* newest first */
    struct sg_train_counts counts;
    /* The product in progress. */
    const struct sg_train_product *p;
    pthread_t thread;
    int threaded;                    /* 1: `thread` evaluates */
    uint64_t started_ns;             /* the caller went on */
    int finite;                      /* 0: an operand is not finite: no dispatch, the result is NaN */
    float scale;                     /* power of two by which the operand was multiplied */
    segue_status status;             /* of the dispatches */
    segue_error err;
};

segue_status ane_train_device(struct sg_unit *u, uint32_t tokens_max, struct sg_train_device **out, segue_error *err);

/* trainmil.c: the program of a size, compiled at first use; frees all of them. */
segue_status ane_train_program_of(struct sg_train_device *d, uint32_t inner, uint32_t outer, struct ane_train_program **out,
                                  segue_error *err);
void ane_train_programs_free(struct sg_train_device *d);

/* trainslab.c */

/* Sums over columns and results of a product. */
uint32_t ane_train_inner(const struct sg_train_product *p);
uint32_t ane_train_outer(const struct sg_train_product *p);
/* The surfaces of the tile that begins at `at`, with the weights of the product in them. */
segue_status ane_train_slab_of(struct sg_train_device *d, const struct sg_train_product *p, uint32_t at,
                               struct ane_train_slab **out, segue_error *err);
/* Largest magnitude of the operands; NaN or infinity when one of them is not finite. */
float ane_train_largest(const struct sg_train_device *d, const struct sg_train_product *p);
/* Writes the operands, multiplied by d->scale, to the input of a tile. */
segue_status ane_train_put(struct sg_train_device *d, const struct sg_train_product *p, struct ane_train_slab *s,
                           segue_error *err);
/* Reads the results of a tile: stores them (forward), or adds them (back). */
segue_status ane_train_get(struct sg_train_device *d, const struct sg_train_product *p, struct ane_train_slab *s,
                           segue_error *err);
void ane_train_slabs_free(struct sg_train_device *d);

#endif
