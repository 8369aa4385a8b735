/* fuzz_blob.c: hostile weight blobs: walk them, look records up anywhere, read every byte that a record
 * claims. SPDX-License-Identifier: MIT */
#include "unit/ane/blob/blob.h"
#include "unit/ane/rules/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned touch(const struct sg_blob *b)
{
    unsigned sum = 0;
    for (uint64_t i = 0; i < b->bytes; i++) sum += b->data[i];
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_blob b;
    struct sg_ane_profile p;
    uint32_t i = 0;
    uint64_t record = 0;
    volatile unsigned sum = 0;
    for (int n = 0; n < 64 && sg_blob_next(&b, data, size, &i, &record, "fuzz", NULL) == SEGUE_OK; n++)
        sum += touch(&b);
    for (uint64_t at = 0; at <= size && at < 4096; at += 32)
        if (!sg_blob_at(&b, data, size, at, "fuzz", NULL)) sum += touch(&b);
    (void)sum;
    sg_ane_profile_named(&p, "m1", NULL);
    sg_ane_profile_read(&p, (const char *)data, size, "fuzz.chip", NULL); /* chip files are bytes as well */
    return 0;
}
