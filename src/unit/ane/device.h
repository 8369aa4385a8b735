/* device.h: the door behind which an engine runs programs: the private interface on a Mac (apple.h), the
 * software engine everywhere (npu.h). One table of functions; who uses it does not know which. Threads: one
 * call at a time for each device. Errors: EUNSUPPORTED names the rule of a refused program; ELIMIT: a budget
 * is spent (the text says what to do); EUNIT: the engine failed; EMEMORY. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_DEVICE_H
#define SG_UNIT_ANE_DEVICE_H

#include "base/hash.h"
#include "unit/ane/mil/mil.h"

struct sg_ane_cache;

/* One blob file, by its path below @model_path/, such as "weights/w.bin". */
struct sg_ane_file {
    const char *path;
    const uint8_t *data;
    size_t bytes;
};
struct sg_ane_source {
    const char *name; /* for messages */
    const char *text; /* MIL */
    size_t text_bytes;
    const struct sg_ane_file *files; /* [files_n] */
    uint32_t files_n;
    uint32_t cached; /* 1: its compiled form is kept somewhere: load without compiling where that works */
    struct sg_ane_cache *keep; /* NULL, or where the device may keep what it makes of the weights (anecache.h) */
    /* of all files' bytes: programs of equal weights may share them; 0: not known, keep is not used then */
    struct sg_hash weights;
};

/* An input or output as the engine wants it bound. */
struct sg_ane_port {
    const char *name;
    struct sg_mil_type type;
    uint64_t row_bytes;     /* of one row of the last dimension */
    uint64_t surface_bytes; /* a surface for it has at least this many */
};

struct sg_ane_counters {
    uint64_t compiles, loads, unloads, dispatches;
    uint64_t loaded;                                         /* now */
    uint64_t weight_bytes, input_bytes, output_bytes, flops; /* over all dispatches */
    uint64_t simulated_ns;                                   /* 0 on a real engine */
    uint64_t packed_bytes;                                   /* now, of weights as the software engine reads them */
};

struct sg_ane_device; /* each begins with its base */
struct sg_ane_program;
struct sg_ane_surface;

struct sg_ane_device_ops {
    void (*close)(struct sg_ane_device *d); /* programs and surfaces first */
    /* Compile unless cached, and load. The source need not outlive the call. */
    segue_status (*load)(struct sg_ane_device *d, const struct sg_ane_source *s, struct sg_ane_program **out,
                         segue_error *err);
    void (*unload)(struct sg_ane_program *p);
    /* Rewrite blob files (same sizes) and load again without compiling. Whether the weights then differ is
     * the engine's secret. */
    segue_status (*reload)(struct sg_ane_program *p, const struct sg_ane_file *files, uint32_t files_n,
                           segue_error *err);
    /* Ports of a procedure (a function of the text, by number), in the order in which evaluate wants their
     * surfaces. */
    segue_status (*ports)(struct sg_ane_program *p, uint32_t procedure, const struct sg_ane_port **inputs,
                          uint32_t *inputs_n, const struct sg_ane_port **outputs, uint32_t *outputs_n,
                          segue_error *err);
    /* Zeroed. bytes is rounded up to what the engine wants. */
    segue_status (*surface_new)(struct sg_ane_device *d, uint64_t bytes, struct sg_ane_surface **out,
                                segue_error *err);
    void (*surface_free)(struct sg_ane_surface *s);
    /* The bytes, until unlock; evaluate refuses surfaces that are locked. */
    segue_status (*lock)(struct sg_ane_surface *s, int to_write, void **bytes, uint64_t *n, segue_error *err);
    void (*unlock)(struct sg_ane_surface *s);
    /* Surfaces in port order. A surface may be bound as an output here and as an input of another program
     * next. */
    segue_status (*evaluate)(struct sg_ane_program *p, uint32_t procedure,
                             struct sg_ane_surface *const *inputs, struct sg_ane_surface *const *outputs,
                             segue_error *err);
    void (*count)(const struct sg_ane_device *d, struct sg_ane_counters *out);
    /* What compiles, and its version: programs that another one compiled are not loaded from a cache. */
    void (*compiler)(const struct sg_ane_device *d, char out[64]);
    int software; /* 1: no engine; costs are simulated */
};
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

/* The table of a device, program or surface. */
static inline const struct sg_ane_device_ops *sg_ane_ops_of(const void *device_program_or_surface)
{
    return *(const struct sg_ane_device_ops *const *)device_program_or_surface;
}

#endif
