/* faults.c: arms the fault hooks of the library, see faults.h. Includes internal headers of the library, which
 * tests/api/layers.sh lists as an exception; builds without SEGUE_FAULTS have no hooks.
 * SPDX-License-Identifier: MIT */
#include "host/faults.h"

#ifdef SEGUE_FAULTS
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "engine/transfer/bridge.h"
#include "engine/session/recovery.h"
#include "term/out.h"

/* Arm lost:UNIT@TOKEN; text is the part after the colon. The unit spec may contain any character but the last @. */
static bool set_lost_unit(const char *text)
{
    char spec[64], *end = NULL;
    const char *at = strrchr(text, '@');
    size_t n = at ? (size_t)(at - text) : 0;
    unsigned long long pos = at ? strtoull(at + 1, &end, 10) : 0;
    if (!n || n >= sizeof spec || at[1] < '0' || at[1] > '9' || *end) return false;
    memcpy(spec, text, n);
    spec[n] = 0;
    sg_fault_lost(spec, pos);
    return true;
}

/* Arm ulp:layer=L; text is "layer=L". */
static bool set_ulp_error(const char *text)
{
    char *end = NULL;
    unsigned long layer = strncmp(text, "layer=", 6) ? 0 : strtoul(text + 6, &end, 10);
    if (!end || end == text + 6 || *end || layer > 65535) return false;
    sg_fault_ulp((uint32_t)layer);
    return true;
}

/* The number of alloc: and write: starts at 1. */
bool faults_init(void)
{
    const char *text = getenv("SEGUE_FAULT");
    if (!text || !*text) return true;
    const char *colon = strchr(text, ':');
    char *end = NULL;
    unsigned long long n = colon ? strtoull(colon + 1, &end, 10) : 0;
    bool is_number = n && end && !*end;
    if (is_number && !strncmp(text, "alloc:", 6)) sg_fault_alloc(n);
    else if (is_number && !strncmp(text, "write:", 6)) sg_fault_write(n);
    else if ((strncmp(text, "ulp:", 4) || !set_ulp_error(text + 4)) && (strncmp(text, "lost:", 5) || !set_lost_unit(text + 5))) {
        segue_error err;
        out_fail(&err, SEGUE_EARG, "SEGUE_FAULT: %.40s: invalid value; expected alloc:N, write:N, ulp:layer=L or lost:U@TOKEN",
                 text);
        out_error(&err, EXIT_UNAVAILABLE);
        return false;
    }
    return true;
}
#else
bool faults_init(void) { return true; }
#endif
