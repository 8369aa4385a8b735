/* chip.h: what the planner knows about a chip: lines `key value unit # source`. Sources: `spec` (a data sheet), `fitted` (by
 * `segue calibrate --fit` to published runs), `measured` (by `segue calibrate` on the machine), `prior` (assumed). A key is a
 * specification, one of the constants below, or KIND.KEY, a cost of a unit of that kind (unitcost.h). Keys that start with
 * ane_ belong to the profile of the Neural Engine and are not read here.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_CHIP_H
#define SG_ENGINE_CHIP_H

#include "base/buf.h"

/* Specifications. TFLOPS: fp32 of the GPU's shader cores. */
enum { SG_SPEC_GPU_CORES, SG_SPEC_GPU_TFLOPS, SG_SPEC_GB_S, SG_SPEC_MEMORY_GB, SG_SPEC_NPU_TOPS, SG_SPEC_N };

/* Constants of one chip, at most 12. The model in published.c says what each one does. */
enum {
    SG_CHIP_STREAM,      /* share of the memory bandwidth that the GPU streams weights at */
    SG_CHIP_MATMUL,      /* share of the GPU's TFLOPS that MLX reaches in fp16 products of 100 to 500 rows */
    SG_CHIP_GPU_W,       /* GPU power while it waits for memory */
    SG_CHIP_GPU_J,       /* and joules per 10^9 weights multiplied */
    SG_CHIP_CPU_W,       /* CPU power beside a busy GPU */
    SG_CHIP_ALLOC,       /* GB/s of first use of GPU memory */
    SG_CHIP_NPU_STREAM,  /* GB/s at which the NPU reads weights */
    SG_CHIP_NPU_TOKEN,   /* ms per layer and token on the host in batched NPU prefill */
    SG_CHIP_NPU_STEP,    /* ms per layer of an NPU step, beside the weights */
    SG_CHIP_NPU_PROGRAM, /* ms per NPU program of a batch */
    SG_CHIP_NPU_LOAD,    /* s per GB to compile and load NPU programs */
    SG_CHIP_NPU_TOUCH,   /* GB/s of the first read of NPU weights */
    SG_CHIP_N
};

/* Constants of the frameworks, at most 24, shared by all chips. */
enum {
    SG_MLX_LAYER,       /* ms per layer of a decode step */
    SG_MLX_STEP,        /* ms per token of the benchmark's loop */
    SG_MLX_CAST,        /* bytes moved per weight when fp32 activations meet 16-bit weights */
    SG_MLX_ROW,         /* cost of one more row of a quantised product below 12 rows, as a share of the first */
    SG_MLX_TILE,        /* rows by which a 16-bit product is padded */
    SG_MLX_F32,         /* speed of fp32 products relative to fp16 */
    SG_MLX_QUANT,       /* speed of quantised products relative to fp16 */
    SG_MLX_FIRST,       /* ms, once, of the first decode step of a process */
    SG_MLX_COLD_FIRST,  /* the same when nothing ran on the GPU before */
    SG_MLX_COLD,        /* ms, once, of the first prefill of a process */
    SG_MLX_START,       /* s from the start of the process to a usable framework */
    SG_MLX_LOAD,        /* s per GB of weights */
    SG_LLAMA_LAYER,     /* ms per layer of a decode step */
    SG_LLAMA_STATE,     /* ms per million recurrent state elements of a step, at 800 GB/s */
    SG_LLAMA_MATMUL,    /* speed of products relative to MLX */
    SG_LLAMA_LAYER_PRE, /* ms per layer of a 512-token prefill at 27.2 TFLOPS */
    SG_LLAMA_STATE_PRE, /* ms per million recurrent state elements of the same */
    SG_LLAMA_UNPACK,    /* ms per GB of k-quant weights unpacked in the same */
    SG_NPU_FORK,        /* step time of the batched NPU program relative to the sequential one */
    SG_NPU_START,       /* s from the start of the process to the first compile */
    SG_COREML_FIXED,    /* ms per call */
    SG_COREML_SQUARE,   /* us per square of the fixed length */
    SG_COREML_TFLOPS,
    SG_FILE_HANDOFF, /* ms to write, read and rebuild the state through a file */
    SG_SHARED_N
};

/* One constant or specification: its key, unit and the assumption before any fit, value and factor (log sigma). */
struct sg_chip_key {
    const char *name, *unit;
    double prior, sigma, low, high;
};
extern const struct sg_chip_key sg_spec_keys[SG_SPEC_N], sg_chip_keys[SG_CHIP_N], sg_shared_keys[SG_SHARED_N];

/* Where a value comes from. */
enum sg_chip_source { SG_SOURCE_NONE, SG_SOURCE_PRIOR, SG_SOURCE_SPEC, SG_SOURCE_FITTED, SG_SOURCE_MEASURED };

struct sg_chip {
    char name[32];                   /* lower case with dashes: m2-ultra */
    double spec[SG_SPEC_N];          /* 0: not stated */
    double constant[SG_CHIP_N];      /* the prior where no file says otherwise */
    unsigned char source[SG_CHIP_N]; /* enum sg_chip_source */
};

/* The chips and the frameworks, as read from files. */
enum { SG_CHIPS_MAX = 32 };
struct sg_chips {
    double shared[SG_SHARED_N];
    unsigned char shared_source[SG_SHARED_N];
    struct sg_chip list[SG_CHIPS_MAX];
    size_t n;
};

/* The files that are compiled in. */
segue_status sg_chips_builtin(struct sg_chips *out, segue_error *err);
/* Merges the text of one file: keys of the frameworks, of the chip that its line `name` names, and NAME.KEY of other chips.
 * EFORMAT names file and line; then nothing was changed. ELIMIT: more than SG_CHIPS_MAX chips. */
segue_status sg_chips_read(struct sg_chips *c, const char *text, size_t n, const char *file, segue_error *err);
/* The chip of a name such as "M2 Ultra" or "m2-ultra"; NULL: not known. */
const struct sg_chip *sg_chip_find(const struct sg_chips *c, const char *name);
/* A name in the form of sg_chip.name. Returns 0 if it has another character than letters, digits, space, dash, dot or _. */
int sg_chip_name(char out[32], const char *name);
/* 1: the key of a specification or of a constant of one chip. */
int sg_chip_has_key(const char *name);
/* 1: no constant of the chip was fitted or measured, so its predictions are scaled from its specification. */
int sg_chip_unverified(const struct sg_chip *chip);
/* Appends all constants as text that sg_chips_read reads. */
void sg_chips_write(const struct sg_chips *c, struct sg_buf *out);

#endif
