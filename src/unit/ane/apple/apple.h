/* apple.h: the private interface of the neural engine, called from plain C. Nothing of Apple's is needed to
 * build: frameworks, classes, selectors, surfaces are looked up when a device is opened, and a struct holds
 * what was found, so that a test can put a double in its place. This path has never run on a device;
 * docs/ANE.md says what that means. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_APPLE_H
#define SG_UNIT_ANE_APPLE_H

#include "unit/ane/device.h"

/* All external functions that this path calls, so that a test can replace them. Objective-C
 * objects, classes and selectors are void pointers. */
struct sg_apple_api {
    void *(*class_named)(const char *name); /* objc_getClass; NULL: absent */
    void *(*selector)(const char *name);    /* sel_registerName */
    void (*send)(void);                     /* objc_msgSend, called as the method's exact C type */
    void (*(*method)(void *receiver, void *selector))(void); /* a test's way instead of send; NULL on a Mac */
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
    char temporary[512];  /* folder */
    void (*pause_ns)(uint64_t ns); /* between tries */
    char build[64];       /* version of the system, with which its compiler changes */
};

/* What this machine has. EUNIT says what is missing: every machine but a Mac with an engine. */
segue_status sg_apple_api_here(struct sg_apple_api *out, segue_error *err);

struct sg_apple_opts {
    uint64_t compile_ns, load_ns, evaluate_ns; /* limits; 0: 120 s, 10 s, 2 s */
    uint32_t tries;                            /* compiles of one program; 0: 5 */
};
/* The world must outlive the device. EUNIT: a class is missing, or a method has another encoding than is
 * known. After a call that did not return in time the device is lost (ELOST): its objects stay, nothing more
 * is asked of it. */
segue_status sg_apple_open(struct sg_ane_device **out, const struct sg_apple_api *world,
                           const struct sg_apple_opts *o, segue_error *err);
/* "h13g" and the like, engines, cores; "" and 0: the system does not say. */
void sg_apple_describe(const struct sg_apple_api *world, char architecture[32], uint32_t *engines,
                       uint32_t *cores);
/* The methods that are held against the system: i from 0; 0: no more. *found is the encoding there, or NULL;
 * *equal: it is the known one. */
struct sg_apple_method {
    const char *class, *selector, *expected, *found;
    int equal;
};
int sg_apple_method_at(const struct sg_apple_api *world, size_t i, struct sg_apple_method *out);

#endif
