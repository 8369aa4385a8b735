/* apple.h: the private interface of the Apple Neural Engine, called from C. No header or library of
 * Apple is needed to build: frameworks, classes and functions are looked up when a device is opened.
 * All of them are members of one struct, so that tests can use a double. This code has never run on a
 * device; see docs/ANE.md.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_APPLE_H
#define SG_UNIT_ANE_APPLE_H

#include "unit/ane/device.h"

/* All functions of the system that the interface calls. Objective-C objects, classes and selectors are
 * void pointers. */
struct sg_apple_api {
    void *(*class_named)(const char *name); /* objc_getClass; NULL: absent */
    void *(*selector)(const char *name);    /* sel_registerName */
    void (*send)(void);                     /* objc_msgSend, called as the method's exact C type */
    void (*(*method)(void *receiver, void *selector))(void);     /* of a test double, instead of send; NULL on a Mac */
    void *(*class_method)(void *class, void *selector);
    void *(*instance_method)(void *class, void *selector);
    const char *(*type_encoding)(void *method);
    void *(*pool_push)(void);
    void (*pool_pop)(void *pool);
    void *(*surface_create)(const void *properties);
    int (*surface_lock)(void *surface, uint32_t options, uint32_t *seed);
    int (*surface_unlock)(void *surface, uint32_t options, uint32_t *seed);
    void *(*surface_base)(void *surface);
    void (*release)(const void *object); /* CFRelease */
    const void *(*dictionary)(const void *allocator, const void **keys, const void **values, long n,
                              const void *key_calls, const void *value_calls);  /* CFDictionaryCreate */
    const void *(*number)(const void *allocator, long type, const void *value); /* CFNumberCreate */
    const void *key_calls, *value_calls;
    const void
        *surface_keys[6]; /* width, height, bytes per element, bytes per row, allocation, pixel format */
    char temporary[512];           /* folder in which the service looks for the files of programs */
    void (*pause_ns)(uint64_t ns); /* sleeps between two tries to compile */
    char build[64];                /* kernel release: the compiler changes with the system */
};

/* Looks up everything on this machine. EUNIT names what is missing: on every machine but a Mac with an
 * engine. */
segue_status sg_apple_api_here(struct sg_apple_api *out, segue_error *err);

struct sg_apple_opts {
    uint64_t compile_ns, load_ns, evaluate_ns; /* time limits; 0: 120 s, 10 s, 2 s */
    uint32_t tries;                            /* attempts to compile one program; 0: 5 */
    uint32_t retain;    /* 1: the service keeps compiled programs although their files are removed */
    uint32_t wired;     /* 1: memory of loaded programs stays wired */
    uint32_t real_time; /* 1: programs are evaluated by the real-time call of _ANEClient */
};
/* api must outlive the device. o may be NULL. EUNIT: a class or method is missing, or a method has
 * another type encoding than the casts assume. After a call that exceeded its limit the device is lost:
 * every later call fails with ELOST. */
segue_status sg_apple_open(struct sg_ane_device **out, const struct sg_apple_api *api,
                           const struct sg_apple_opts *o, segue_error *err);
/* Architecture, such as "h13g", number of engines and of cores; "" and 0: unknown. */
void sg_apple_describe(const struct sg_apple_api *api, char architecture[32], uint32_t *engines,
                       uint32_t *cores);
/* One method that the unit calls. `found` is the type encoding that this system reports, NULL: the
 * method is missing; equal 1: it is the expected one, without regard to frame offsets. */
struct sg_apple_method {
    const char *class, *selector, *expected, *found;
    int equal, real_time; /* real_time 1: needed with sg_apple_opts.real_time only */
};
/* The methods by index, from 0. Returns 0 after the last one. */
int sg_apple_method_at(const struct sg_apple_api *api, size_t i, struct sg_apple_method *out);

#endif
