/* stub.h: what tests over the stub driver share. cmocka's own headers come before it. SPDX-License-Identifier: MIT */
#ifndef SG_TESTS_CUDA_STUB_H
#define SG_TESTS_CUDA_STUB_H

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "unit/cuda/cu.h"
#include "unit/spec.h"
#include "unit/unit.h"

extern const struct sg_unit_ops sg_unit_cuda;

/* One of the stub's own functions. The stub stays open from the first call on, or its counts would go with it. */
static inline void *stub_function(const char *name)
{
    static void *library;
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
    assert_non_null(library);
    void *found = dlsym(library, name);
    assert_non_null(found);
    return found;
}

static inline int ask(const char *name)
{
    int (*function)(void);
    void *found = stub_function(name);
    memcpy(&function, &found, sizeof function);
    return function();
}

/* Launches of one kernel since the mode was set. */
static inline int launches_of_kernel(const char *name)
{
    int (*function)(const char *);
    void *found = stub_function("stub_launches_of");
    memcpy(&function, &found, sizeof function);
    return function(name);
}

static inline int alive(void) { return ask("stub_alive"); }

static inline void stub(const char *mode)
{
    ask("stub_reset");
    assert_int_equal(setenv("SEGUE_STUB", mode, 1), 0);
}

static inline segue_status open_unit(struct sg_unit **u, const char *text, segue_error *err)
{
    struct sg_unit_spec spec;
    assert_int_equal(sg_spec_parse(&spec, text, err), SEGUE_OK);
    return sg_unit_cuda.open(u, &spec, err);
}

#endif
