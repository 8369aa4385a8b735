/* dispatch.h: which instruction sets this processor has, and the kernel table for a choice among them.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_DISPATCH_H
#define SG_UNIT_CPU_DISPATCH_H

#include "base/err.h"
#include "unit/cpu/kernels.h"

enum sg_isa { SG_ISA_GENERIC, SG_ISA_AVX2, SG_ISA_AVX512, SG_ISA_NEON, SG_ISA_N };

const char *sg_isa_name(enum sg_isa isa);
int sg_isa_present(enum sg_isa isa);         /* built in and supported here */
/* name: NULL = the best present. EARG: unknown name; EUNIT: not on this machine. */
segue_status sg_isa_choose(const char *name, struct sg_kernels *out, segue_error *err);

#endif
