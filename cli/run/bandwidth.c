/* bandwidth.c: see bandwidth.h. SPDX-License-Identifier: MIT */
#include "run/bandwidth.h"

enum { MEGABYTE = 1 << 20 }; /* MiB */

/* The size is limited to 1 GiB: beyond that the rate no longer depends on it, and the model may already use most of the
 * memory. */
segue_status bandwidth_measure(segue_unit *unit, uint64_t bytes, double *gb_s, segue_error *err)
{
    if (!bytes) bytes = (uint64_t)256 * MEGABYTE;
    if (bytes > (uint64_t)1024 * MEGABYTE) bytes = (uint64_t)1024 * MEGABYTE;
    return segue_unit_stream(unit, (size_t)bytes, gb_s, err);
}
