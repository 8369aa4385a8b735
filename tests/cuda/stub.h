/* stub.h: helpers of tests over the stub driver (stub_driver.c). Include it after cmocka's headers.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TESTS_CUDA_STUB_H
#define SG_TESTS_CUDA_STUB_H

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "graph/graph.h"
#include "unit/cuda/cu.h"
#include "unit/spec.h"
#include "unit/unit.h"

extern const struct sg_unit_ops sg_unit_cuda;

/* A function of the stub itself. The library stays open, so that its counters survive units that are closed. */
static inline void *stub_function(const char *name)
{
    static void *library;
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
    assert_non_null(library);
    void *found = dlsym(library, name);
    assert_non_null(found);
    return found;
}

static inline int stub_count(const char *name)
{
    int (*function)(void);
    void *found = stub_function(name);
    memcpy(&function, &found, sizeof function);
    return function();
}

/* Launches of one kernel since stub() was called. */
static inline int launches_of_kernel(const char *name)
{
    int (*function)(const char *);
    void *found = stub_function("stub_launches_of");
    memcpy(&function, &found, sizeof function);
    return function(name);
}

/* Blocks (x) of the kernel's last launch. */
static inline int blocks_of_kernel(const char *name)
{
    int (*function)(const char *);
    void *found = stub_function("stub_blocks_of");
    memcpy(&function, &found, sizeof function);
    return function(name);
}

/* Sets a function that is called for every launch, with the address of the kernel's arguments; NULL: none. */
static inline void watch(void (*see)(const char *name, const void *args))
{
    void (*function)(void (*)(const char *, const void *));
    void *found = stub_function("stub_watch");
    memcpy(&function, &found, sizeof function);
    function(see);
}

/* Objects of the driver that were not freed. */
static inline int alive(void) { return stub_count("stub_alive"); }

/* Resets the counters and sets the mode (SEGUE_STUB). */
static inline void stub(const char *mode)
{
    stub_count("stub_reset");
    assert_int_equal(setenv("SEGUE_STUB", mode, 1), 0);
}

static inline segue_status open_unit(struct sg_unit **u, const char *text, segue_error *err)
{
    struct sg_unit_spec spec;
    assert_int_equal(sg_spec_parse(&spec, text, err), SEGUE_OK);
    return sg_unit_cuda.open(u, &spec, err);
}

/* A scenario: open a unit, compile one graph, create a state, execute runs of one span each, one after the other, and free
 * all. */
struct life {
    const char *spec, *early, *late; /* spec NULL: cuda:0; stub modes set before the unit is opened, and after that */
    const struct sg_state_opts *state;
    struct sg_span span;
    struct sg_result result;
    const int32_t *outputs;
    uint32_t outputs_n, runs; /* 0: one */
};

/* Executes the scenario; returns the status of the first failure. Frees the graph too. Afterwards nothing is allocated; launches
 * can still be queried. */
static inline segue_status live(struct life *l, struct sg_graph *g, segue_error *err)
{
    const struct sg_graph *graphs[] = {g};
    struct sg_unit *u = NULL;
    struct sg_program *p = NULL;
    struct sg_state *s = NULL;
    stub(l->early ? l->early : "");
    segue_status status = open_unit(&u, l->spec ? l->spec : "cuda:0", err);
    const struct sg_unit_ops *ops = u ? sg_ops_of(u) : &sg_unit_cuda;
    if (l->late) stub(l->late);
    if (status == SEGUE_OK) status = ops->compile(u, graphs, 1, NULL, &p, err);
    if (status == SEGUE_OK) status = ops->state_new(u, g->slots, g->slots_n, l->state, &s, err);
    for (uint32_t i = 0; (!i || i < l->runs) && status == SEGUE_OK; i++) {
        struct sg_run *run;
        struct sg_span span = l->span;
        span.state = s;
        span.first = (uint64_t)i * span.rows;
        struct sg_batch batch = {.spans = &span,
                                 .spans_n = 1,
                                 .inline_hint = 1,
                                 .outputs = l->outputs,
                                 .outputs_n = l->outputs_n};
        status = ops->start(p, &batch, &l->result, &run, err);
        if (status == SEGUE_OK) status = ops->wait(run, UINT64_MAX, err);
    }
    assert_int_equal(setenv("SEGUE_STUB", "", 1), 0);
    ops->state_free(s);
    ops->discard(p);
    ops->close(u);
    sg_graph_free(g);
    assert_int_equal(alive(), 0);
    return status;
}

#endif
