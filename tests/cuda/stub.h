/* stub.h: what tests over the stub driver share. cmocka's own headers come before it. SPDX-License-Identifier: MIT */
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

/* Told of every launch, with what the kernel is told; NULL: nobody. */
static inline void watch(void (*see)(const char *name, const void *args))
{
    void (*function)(void (*)(const char *, const void *));
    void *found = stub_function("stub_watch");
    memcpy(&function, &found, sizeof function);
    function(see);
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

/* A unit, a graph of one program, a state, runs of one span each of which follows the one before. */
struct life {
    const char *spec, *early, *late; /* NULL: cuda:0; modes: set before opening, and behind it */
    const struct sg_state_opts *state;
    struct sg_span span;
    struct sg_result result;
    const int32_t *outputs;
    uint32_t outputs_n, runs; /* 0: one */
};

/* The first failure's status. The graph is let go, like all else; what was launched can still be asked for. */
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
