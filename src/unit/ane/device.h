/* device.h: the interface of an engine that runs MIL programs: a table of functions with three implementations, the private
 * interface of a Mac (apple/apple.h), the library of the open Linux driver (libane/libane.h) and the software NPU (npu/npu.h).
 * Callers use only this table.
 *
 * Threads: one call at a time for each device, including its programs and surfaces. Errors: EUNSUPPORTED: the program breaks a
 * rule, which is named. ELIMIT: a budget of the process is used up. EUNIT: the engine or its service failed. ELOST: a call did
 * not return in time; the device is not usable any more. EMEMORY.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_DEVICE_H
#define SG_UNIT_ANE_DEVICE_H

#include "base/hash.h"
#include "unit/ane/mil/mil.h"

struct sg_ane_cache;

/* For tests: the software NPU adds one unit in the last place to the first element of the value with this name. */
#define SG_ANE_FAULT "fault_one_ulp"

/* A blob file with weights. */
struct sg_ane_file {
    const char *path;                /* below @model_path/, for example "weights/w.bin" */
    const uint8_t *data;
    size_t bytes;
};
/* A program to load. All pointers belong to the caller. */
struct sg_ane_source {
    const char *name;                /* for error messages */
    const char *text;                /* MIL */
    size_t text_bytes;
    const struct sg_ane_file *files; /* [files_n] */
    uint32_t files_n;
    uint32_t cached;                 /* 1: this text was compiled before; load the stored form if the system still has it */
    struct sg_ane_cache *cache;      /* NULL, or the cache for what the device derives from the weights (anecache.h) */
    struct sg_hash weights;          /* of all files; programs with the same hash may share memory. 0: unknown, no sharing */
};

/* An input or output of a program. */
struct sg_ane_port {
    const char *name;
    struct sg_mil_type type;
    uint64_t row_bytes;              /* distance between rows of the last dimension in the surface */
    uint64_t surface_bytes;          /* minimum size of a surface for this port */
};

/* Totals since the device was opened, except where noted. */
struct sg_ane_counters {
    uint64_t compiles, loads, unloads, dispatches;
    uint64_t loaded;                 /* programs that are loaded now */
    uint64_t weight_bytes, input_bytes, output_bytes, flops;     /* over all dispatches; weights, flops: 0 on a real engine */
    uint64_t simulated_ns;           /* estimated time of the chip; 0 on a real engine */
    uint64_t packed_bytes;           /* packed weights of the software NPU in memory now */
};

/* What rounding to fp16 lost in evaluates since the last call of `losses`. The relative error of an operation is the sum of the
 * magnitudes of its rounding errors over that of its results; numbers in the normal range of fp16 have at most 2^-11. Only
 * operations are compared that are products or whose results enter products. Where products with weights read subnormal
 * numbers as 0, the share of an operand that this loses counts as such an error. */
struct sg_ane_losses {
    uint64_t overflows;              /* finite numbers that became infinite */
    uint64_t underflows;             /* numbers that became zero or subnormal and lost bits */
    char overflow_op[64];            /* the first operation with overflows; "": none */
    char worst_op[64];               /* the operation with the largest relative error ... */
    double worst_error;              /* ... and that error */
};

struct sg_ane_device; /* the structs of an implementation begin with their base, see below */
struct sg_ane_program;
struct sg_ane_surface;

struct sg_ane_device_ops {
    void (*close)(struct sg_ane_device *d); /* all programs and surfaces must have been freed before */
    /* Compiles unless `cached`, and loads. The source need not outlive the call. */
    segue_status (*load)(struct sg_ane_device *d, const struct sg_ane_source *s, struct sg_ane_program **out,
                         segue_error *err);
    void (*unload)(struct sg_ane_program *p);
    /* Rewrites blob files with the same sizes and loads again without a compile. Whether an engine then uses the new weights is
     * not known in general; the probe "reload" finds out. */
    segue_status (*reload)(struct sg_ane_program *p, const struct sg_ane_file *files, uint32_t files_n,
                           segue_error *err);
    /* Ports of a procedure (a function of the text, by index), in the order of the surfaces of evaluate. They belong to the
     * program. */
    segue_status (*ports)(struct sg_ane_program *p, uint32_t procedure, const struct sg_ane_port **inputs,
                          uint32_t *inputs_n, const struct sg_ane_port **outputs, uint32_t *outputs_n,
                          segue_error *err);
    /* A zeroed surface; its size is rounded up to the unit of the profile (16 KiB on current chips). */
    segue_status (*surface_new)(struct sg_ane_device *d, uint64_t bytes, struct sg_ane_surface **out,
                                segue_error *err);
    void (*surface_free)(struct sg_ane_surface *s);
    /* Access to the bytes until unlock; n may be NULL. evaluate refuses surfaces that are locked. */
    segue_status (*lock)(struct sg_ane_surface *s, int to_write, void **bytes, uint64_t *n, segue_error *err);
    void (*unlock)(struct sg_ane_surface *s);
    /* Runs a procedure to its end. Surfaces are in the order of `ports`. The output surface of one program may be the input
     * surface of the next. */
    segue_status (*evaluate)(struct sg_ane_program *p, uint32_t procedure,
                             struct sg_ane_surface *const *inputs, struct sg_ane_surface *const *outputs,
                             segue_error *err);
    void (*count)(const struct sg_ane_device *d, struct sg_ane_counters *out);
    /* Identity and version of the compiler, for cache keys. */
    void (*compiler)(const struct sg_ane_device *d, char out[64]);
    /* NULL: the engine does not tell. Resets what it returns. */
    void (*losses)(struct sg_ane_device *d, struct sg_ane_losses *out);
    int software; /* 1: the software NPU; sg_npu_ functions may be used on the device */
};
/* First member of struct sg_ane_device, sg_ane_program and sg_ane_surface of each implementation. */
struct sg_ane_device_base {
    const struct sg_ane_device_ops *ops;
};
struct sg_ane_program_base {
    const struct sg_ane_device_ops *ops;
    struct sg_ane_device *device;
};
struct sg_ane_surface_base {
    const struct sg_ane_device_ops *ops;
    struct sg_ane_device *device;
};

/* The table of a device, program or surface: it is the first member of every base. */
static inline const struct sg_ane_device_ops *sg_ane_ops_of(const void *device_program_or_surface)
{
    return *(const struct sg_ane_device_ops *const *)device_program_or_surface;
}

#endif
