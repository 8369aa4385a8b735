/* fuzz_imatrix.c: hostile importance matrices, GGUF and .dat: read, look up, close.
 * SPDX-License-Identifier: MIT */
#include "model/quantize/imatrix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_imatrix *im;
    segue_error err;
    uint64_t n = 0;
    if (sg_imatrix_read(&im, data, size, "x", &err) != SEGUE_OK) return 0;
    const float *v = sg_imatrix_find(im, "blk.0.attn_q.weight", &n);
    if (v && n && !(v[n - 1] >= 0)) __builtin_trap();
    sg_imatrix_close(im);
    return 0;
}
