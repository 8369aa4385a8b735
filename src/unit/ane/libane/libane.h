/* libane.h: the Neural Engine under Linux, through libane, the library of the open driver (MIT licence). The library loads
 * programs that were compiled before, and has no compiler. A folder has them: HASH.anec, where HASH is of text and weights. When
 * one is missing, its text and weights are written to HASH/ in the folder, and the error names both. Has not run on a device,
 * see docs/ANE.md.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LIBANE_H
#define SG_UNIT_ANE_LIBANE_H

#include "unit/ane/device.h"

/* The functions of the library by their names there. Networks are void pointers: the struct differs between versions. */
struct sg_libane_api {
    void *(*init)(const char *path, int engine);         /* __ane_init; NULL: failed, the reason is on stderr */
    void (*free)(void *network);                         /* __ane_free */
    int (*exec)(void *network);                          /* ane_exec: negative on failure; returns when the engine has finished */
    uint64_t (*src_size)(void *network, uint32_t i);     /* __ane_src_size: bytes of the buffer of input i */
    uint64_t (*dst_size)(void *network, uint32_t i);     /* __ane_dst_size */
    void (*send)(void *network, void *from, uint32_t i);     /* __ane_send: copies all bytes of the buffer */
    void (*read)(void *network, void *to, uint32_t i);       /* __ane_read */
};
/* Looks the library up. EUNIT: it is not installed, or lacks a function; the text has the reason. */
segue_status sg_libane_find(struct sg_libane_api *out, segue_error *err);
/* folder: compiled programs; it is created. Nothing of the engine is used before the first load. */
segue_status sg_libane_open(struct sg_ane_device **out, const struct sg_libane_api *api, const char *folder, segue_error *err);

#endif
