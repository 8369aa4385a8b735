/* libane_api.c: lookup of libane. See libane.h. SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "unit/ane/libane/libane.h"

#define AT(member) offsetof(struct sg_libane_api, member)
static const struct {
    const char *name;
    size_t offset;
} symbols[] = {{"__ane_init", AT(init)},         {"__ane_free", AT(free)},         {"ane_exec", AT(exec)},
               {"__ane_src_size", AT(src_size)}, {"__ane_dst_size", AT(dst_size)}, {"__ane_send", AT(send)},
               {"__ane_read", AT(read)}};

/* The library stays loaded. memcpy, since ISO C has no cast from an object pointer to a function pointer. */
segue_status sg_libane_find(struct sg_libane_api *out, segue_error *err)
{
    void *library = dlopen("libane.so", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return sg_fail(err, SEGUE_EUNIT,
                       "neural engine: libane.so: not on this machine; install the Linux driver with its library as a shared "
                       "object, or use ane:soft");
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found)
            return sg_fail(err, SEGUE_EUNIT, "neural engine: libane.so: no function %s; use another version of it",
                           symbols[i].name);
        memcpy((char *)out + symbols[i].offset, &found, sizeof found);
    }
    return SEGUE_OK;
}
