/* version.c: the library's version. Low in the tree, because units and state files store it.
 * SPDX-License-Identifier: MIT */
#include "segue.h"

uint32_t segue_version(void)
{
    return SEGUE_VERSION_MAJOR << 16 | SEGUE_VERSION_MINOR << 8 | SEGUE_VERSION_PATCH;
}
