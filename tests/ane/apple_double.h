/* apple_double.h: a double of everything apple.c asks of a Mac: classes, objects with retain counts and
 * autorelease pools, surfaces, the in-memory model. It checks the order of calls, the kinds of arguments,
 * what lies in the folder when a program is compiled, and what is left at the end. Every wrong use is counted
 * with a text; every call can be made to fail. SPDX-License-Identifier: MIT */
#ifndef TESTS_ANE_APPLE_DOUBLE_H
#define TESTS_ANE_APPLE_DOUBLE_H

#include "unit/ane/apple/apple.h"

struct double_opts {
    const char *missing_class;  /* objc_getClass gives NULL for it */
    const char *wrong_encoding; /* selector whose encoding differs */
    const char *nil_from;       /* selector that gives nil */
    const char *refuses;        /* selector that gives NO ... */
    int refuses_times;          /* ... so often (0 = always) ... */
    const char *says;           /* ... with this error; NULL: no error object */
    const char *hangs;          /* selector that does not return until double_release_hang */
    int no_attributes;          /* modelAttributes is nil */
    int reversed;               /* symbol indices in reversed order of declaration */
    uint64_t row_stride;        /* reported for the first input; 0: none */
    int cached;                 /* compiledModelExists says YES */
};

/* Begins anew. The world is valid until double_end, which takes the temporary folder away. */
const struct sg_apple_api *double_begin(const struct double_opts *o);
struct double_counts {
    int live_objects, live_surfaces, live_cf, open_pools, compiles, loads, unloads, evaluates, purges, wrongs;
    char wrong[300];
};
struct double_counts double_counts(void);
void double_release_hang(void);
void double_end(void);
/* The temporary folder, and how many entries it holds. */
int double_folder_entries(void);

#endif
