/* serve_table.c: helpers of the serving side: the error of a bad message, tables indexed by numbers that the peer chooses.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/proc/server.h"

segue_status sg_server_reject(segue_error *err, const char *what)
{
    return sg_fail(err, SEGUE_EFORMAT, "message refused: %s; the peer is damaged or hostile", what);
}

/* Grows by half, so that ascending numbers do not copy the table each time. */
segue_status sg_server_table_grow(void *table, uint32_t *n, uint32_t id, uint32_t max, size_t size, segue_error *err)
{
    void *old, *wider;
    if (id >= max) return sg_server_reject(err, "a number: too large");
    if (id < *n) return SEGUE_OK;
    uint32_t want = id + 1 + *n / 2;
    if (want > max) want = max;
    memcpy(&old, table, sizeof old);
    wider = sg_realloc(old, want * size);
    if (!wider) return sg_no_memory("table", want * size, err);
    memset((char *)wider + *n * size, 0, (want - *n) * size);
    memcpy(table, &wider, sizeof wider);
    *n = want;
    return SEGUE_OK;
}
