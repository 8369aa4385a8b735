/* version.c: the library's version. In base because units and state files, below the public API,
 * also store it.
 * SPDX-License-Identifier: MIT */
#include "segue.h"

uint32_t segue_version(void)
{
    return SEGUE_VERSION_MAJOR << 16 | SEGUE_VERSION_MINOR << 8 | SEGUE_VERSION_PATCH;
}
