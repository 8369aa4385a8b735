/* cores.h: how much of the processor this process may use: fewer cores than are online where an affinity mask (taskset) or a
 * control group (containers) says so. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CORES_H
#define SEGUE_CLI_CORES_H

#include <stddef.h>

/* Processors in the affinity mask of the process, at least 1. */
size_t cores_allowed(void);
/* Processors whose time control groups allow; 0: no limit, or not known. list: /proc/self/cgroup, root: /sys/fs/cgroup. */
double cores_quota(const char *list, const char *root);

/* Processor time in s since the start of the machine: of all programs, and of this process and its ended children. Negative: not
 * known. */
double cores_busy_s(void);
double cores_own_s(void);
/* The part of the allowed processors that other programs used in `seconds`, given the increase of both times. */
double cores_taken(double seconds, double busy_s, double own_s);

#endif
