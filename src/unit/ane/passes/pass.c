/* pass.c: order of the passes; see pass.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/passes/pass.h"

enum { ROUNDS = 20 }; /* safety bound; programs reach a fixed point after a few rounds */

/* legal first, because its replacements contain literals and repeated parts; dead last, because the others
 * leave unused operations behind. The rounds repeat because a folded constant can enable another fusion. */
segue_status sg_passes(struct sg_mil_program *p, uint32_t channels, uint32_t columns, segue_error *err)
{
    segue_status (*const list[])(struct sg_mil_program *, uint64_t *, segue_error *) = {sg_pass_legal, sg_pass_const,
                                                                                        sg_pass_fuse, sg_pass_dead};
    uint64_t changes = 1;
    SG_TRY(sg_pass_layout(p, channels, columns, &changes, err));
    for (int round = 0; changes && round < ROUNDS; round++) {
        changes = 0;
        for (size_t i = 0; i < sizeof list / sizeof *list; i++) SG_TRY(list[i](p, &changes, err));
    }
    return SEGUE_OK;
}
