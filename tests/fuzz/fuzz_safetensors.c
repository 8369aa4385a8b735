/* fuzz_safetensors.c: hostile safetensors bytes: open, walk every tensor and key, close.
 * SPDX-License-Identifier: MIT */
#include "../tensor/walk_archive.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    segue_error err;
    open_and_walk(data, size, "x.safetensors", &err, NULL);
    return 0;
}
