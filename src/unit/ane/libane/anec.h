/* anec.h: the head of an ANEC file: a program that was compiled for one chip, as the open Linux driver takes it. Its tasks and
 * constants are not read here. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_ANEC_H
#define SG_UNIT_ANE_ANEC_H

#include <stdint.h>

#include "base/err.h"

enum {
    SG_ANEC_CHANNELS = 32,           /* buffers of a program: tasks and constants, three of its own, outputs, inputs */
    SG_ANEC_FIRST_OUTPUT = 4,        /* the channel of output 0; input 0 follows the last output */
    SG_ANEC_TILE = 16384,            /* bytes; buffers are counted in them */
};
struct sg_anec {
    uint32_t inputs, outputs;
    uint32_t tiles[SG_ANEC_CHANNELS];        /* of each buffer */
    uint64_t shape[SG_ANEC_CHANNELS][6];     /* N, C, H, W, bytes of a plane H W, bytes of a row W; zeros: unknown */
};
/* EIO: no such file. EFORMAT: not an ANEC file, or cut off. */
segue_status sg_anec_read(struct sg_anec *out, const char *path, segue_error *err);
static inline uint32_t sg_anec_input(const struct sg_anec *a, uint32_t i) { return SG_ANEC_FIRST_OUTPUT + a->outputs + i; }
static inline uint32_t sg_anec_output(uint32_t i) { return SG_ANEC_FIRST_OUTPUT + i; }

#endif
