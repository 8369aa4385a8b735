/* apple_double.h: a test double of the system functions that the private interface calls: classes, objects with retain counts,
 * autorelease pools, surfaces, the in-memory model. It checks the order of calls, the classes of arguments, the files in the
 * folder when a program is compiled, and that nothing is left at the end. Wrong uses are counted and described; every call can be
 * made to fail.
 * SPDX-License-Identifier: MIT */
#ifndef TESTS_ANE_APPLE_DOUBLE_H
#define TESTS_ANE_APPLE_DOUBLE_H

#include "unit/ane/apple/apple.h"

struct double_opts {
    const char *missing_class;  /* class for which objc_getClass returns NULL */
    const char *wrong_encoding; /* selector whose encoding differs */
    const char *nil_from;       /* selector that returns nil */
    const char *refuses;        /* selector that returns NO ... */
    int refuses_times;          /* ... this many times (0 = always) ... */
    const char *error_text;           /* ... with this error; NULL: no error object */
    const char *hangs;          /* selector that does not return until double_release_hang */
    int no_attributes;          /* modelAttributes is nil */
    int reversed;               /* symbol indices in reversed order of declaration */
    uint64_t row_stride;        /* reported for the first input; 0: none */
    int cached;                 /* compiledModelExists returns YES */
    int retain, wired, real_time; /* the options that calls are to have, see sg_apple_opts */
};

/* Resets the double. The api is valid until double_end, which removes the temporary folder. */
const struct sg_apple_api *double_begin(const struct double_opts *o);
struct double_counts {
    int live_objects, live_surfaces, live_cf, open_pools, compiles, loads, unloads, evaluates, real_time, purges, wrongs;
    char wrong[300];
};
struct double_counts double_counts(void);
void double_release_hang(void);
void double_end(void);
/* The temporary folder, and its number of entries. */
int double_folder_entries(void);

#endif
