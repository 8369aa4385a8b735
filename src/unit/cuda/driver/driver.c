/* driver.c: looks up libcuda.so.1 and its functions at run time and converts driver errors to segue_status. After a failed
 * open no library stays open. SPDX-License-Identifier: MIT */
#include "unit/cuda/driver/driver.h"

#include <dlfcn.h>
#include <string.h>

/* Closes the library and passes the status through. */
static segue_status close_after(struct cu_driver *d, segue_status status)
{
    cu_driver_close(d);
    return status;
}

/* A missing required function is an error. Optional groups are complete or not used at all: `resource` NULL stands for the first
 * group, tensor_map for the second. */
static segue_status load_symbols(struct cu_driver *d, segue_error *err)
{
    void *found;
#define X(member, symbol, args)                                                                                          \
    found = dlsym(d->library, symbol);                                                                                   \
    if (!found) return sg_fail(err, SEGUE_EUNIT, "unit cuda: libcuda.so.1 has no %s; update the NVIDIA driver", symbol); \
    memcpy(&d->member, &found, sizeof found);
    CU_FUNCTIONS(X)
#undef X
    int complete = 1;
#define X(member, symbol, args)        \
    found = dlsym(d->library, symbol); \
    complete &= found != NULL;         \
    memcpy(&d->member, &found, sizeof found);
    CU_GREEN_FUNCTIONS(X)
#undef X
    if (!complete) d->resource = NULL;
#define X(member, symbol, args)        \
    found = dlsym(d->library, symbol); \
    memcpy(&d->member, &found, sizeof found);
    CU_TENSOR_FUNCTIONS(X)
#undef X
    return SEGUE_OK;
}

/* cuInit reports CU_OLD_DRIVER when the kernel module is older than the library; an old library passes and is recognised by its
 * version. */
segue_status cu_driver_open(struct cu_driver *d, segue_error *err)
{
    int version = 0;
    memset(d, 0, sizeof *d);
    d->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!d->library)
        return sg_fail(err, SEGUE_EUNIT,
                       "unit cuda: libcuda.so.1 cannot be opened: no NVIDIA driver is installed; install it, or "
                       "use another unit");
    segue_status status = load_symbols(d, err);
    if (status != SEGUE_OK) return close_after(d, status);
    cu_result r = d->init(0);
    if (r == CU_OLD_DRIVER || (!r && (d->version(&version) || version < CU_MIN_VERSION)))
        return close_after(d, sg_fail(err, SEGUE_EUNIT,
                                      "unit cuda: the NVIDIA driver is too old (API %d.%d, needed is 12.0); update it",
                                      version / 1000, version % 1000 / 10));
    if (r)
        return close_after(d, sg_fail(err, SEGUE_EUNIT,
                                      "unit cuda: the NVIDIA driver does not start (error %d); check that there is "
                                      "a GPU and that this user may access it",
                                      r));
    return SEGUE_OK;
}

/* Also for a struct that is all zero. */
void cu_driver_close(struct cu_driver *d)
{
    if (d->library) dlclose(d->library);
    memset(d, 0, sizeof *d);
}

/* EMEMORY is the only error after which the context still works. */
segue_status cu_check(const struct cu_driver *d, cu_result r, const char *what, segue_error *err)
{
    const char *name = NULL;
    if (!r) return SEGUE_OK;
    if (r == CU_OUT_OF_MEMORY)
        return sg_fail(err, SEGUE_EMEMORY,
                       "%s: unit cuda: GPU memory is full; use a smaller storage or context, or end other "
                       "programs on the GPU",
                       what);
    if (d->error_name(r, &name) || !name) name = "an unknown error";
    return sg_fail(err, SEGUE_ELOST, "%s: unit cuda: the GPU reported %s (%d); reopen the unit, or use another one", what, name,
                   r);
}
