/* dispatch.h: instruction sets that this processor supports, and the kernel table for a choice among
 * them.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_DISPATCH_H
#define SG_UNIT_CPU_DISPATCH_H

#include "base/err.h"
#include "unit/cpu/kernels/kernels.h"

enum sg_isa { SG_ISA_GENERIC, SG_ISA_AVX2, SG_ISA_AVX512, SG_ISA_AMX, SG_ISA_NEON, SG_ISA_N };

const char *sg_isa_name(enum sg_isa isa);
/* 1: built in and supported here. For AMX this requests permission from Linux, which lasts as long as
 * the process. */
int sg_isa_present(enum sg_isa isa);
/* Fills the table for the named instruction set; NULL: the best one present. EARG: unknown name; EUNIT:
 * not on this machine. */
segue_status sg_isa_choose(const char *name, struct sg_kernels *out, segue_error *err);

#endif
