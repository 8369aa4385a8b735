/* faults.c: arms the fault hooks of the library from the environment. Looks behind the public header, in development builds
 * only: other builds have no hooks to arm.
 * SPDX-License-Identifier: MIT */
#include "task/faults.h"

#ifdef SEGUE_FAULTS
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "engine/transfer/bridge.h"
#include "engine/recover.h"
#include "term/out.h"

/* lost:U@TOKEN. The unit's spec may hold any other character. */
static bool lost(const char *text)
{
    char spec[64], *end = NULL;
    const char *at = strrchr(text, '@');
    size_t n = at ? (size_t)(at - text) : 0;
    unsigned long long row = at ? strtoull(at + 1, &end, 10) : 0;
    if (!n || n >= sizeof spec || at[1] < '0' || at[1] > '9' || *end) return false;
    memcpy(spec, text, n);
    spec[n] = 0;
    sg_fault_lost(spec, row);
    return true;
}

/* layer=L */
static bool ulp(const char *text)
{
    char *end = NULL;
    unsigned long layer = strncmp(text, "layer=", 6) ? 0 : strtoul(text + 6, &end, 10);
    if (!end || end == text + 6 || *end || layer > 65535) return false;
    sg_fault_ulp((uint32_t)layer);
    return true;
}

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
    else if ((strncmp(text, "ulp:", 4) || !ulp(text + 4)) && (strncmp(text, "lost:", 5) || !lost(text + 5))) {
        segue_error err;
        out_fail(&err, SEGUE_EARG, "SEGUE_FAULT: %.40s: not understood; give alloc:N, write:N, ulp:layer=L or lost:U@TOKEN",
                 text);
        out_error(&err, EXIT_NOT_HERE);
        return false;
    }
    return true;
}
#else
bool faults_begin(void) { return true; }
#endif
