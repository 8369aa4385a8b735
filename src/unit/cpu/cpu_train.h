/* cpu_train.h: member of struct sg_unit_ops: what the unit offers for training.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_TRAIN_H
#define SG_UNIT_CPU_TRAIN_H

#include "unit/cpu/cpu_types.h"

void sg_cpu_train_math(struct sg_unit *unit, struct sg_train_math *out);

#endif
