/* faults.c: arms the fault hooks of the library from the environment. Looks behind the public header, in development builds
 * only: other builds have no hooks to arm.
 * SPDX-License-Identifier: MIT */
#include "faults.h"

#ifdef SEGUE_FAULTS
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "out.h"

bool faults_begin(void)
{
    const char *text = getenv("SEGUE_FAULT");
    if (!text || !*text) return true;
    const char *colon = strchr(text, ':');
    char *end = NULL;
    unsigned long long n = colon ? strtoull(colon + 1, &end, 10) : 0;
    bool whole = n && end && !*end;
    if (whole && !strncmp(text, "alloc:", 6)) sg_fault_alloc(n);
    else if (whole && !strncmp(text, "write:", 6)) sg_fault_write(n);
    else {
        segue_error err;
        out_fail(&err, SEGUE_EARG, "SEGUE_FAULT: %.40s: not understood; give alloc:N or write:N", text);
        out_error(&err, EXIT_NOT_HERE);
        return false;
    }
    return true;
}
#else
bool faults_begin(void) { return true; }
#endif
