/* mlx_golden.c: runs checkpoints on the unit mlx and compares logits of prompt and steps with golden files.
 *     mlx_golden SPEC KV {MODEL GOLDEN BOUND}...
 * BOUND: of the largest difference; the mean is to be below a tenth of it. KV: f32 or bf16, of K and V.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tiny.h"
#include "unit/mlx/mlxunit.h"

int main(int argc, char **argv)
{
    int failed = 0, half = argc > 2 && !strcmp(argv[2], "bf16");
    for (int i = 3; i + 2 < argc; i += 3) {
        const struct tiny_wish wish = {.unit = &sg_unit_mlx, .spec = argv[1], .kv = half ? SG_BF16 : SG_F32};
        struct tiny_error e;
        segue_error err = {0};
        double bound = atof(argv[i + 2]);
        segue_status s = tiny_compare(argv[i], argv[i + 1], &wish, &e, &err);
        int bad = s != SEGUE_OK || !(e.max <= bound) || !(e.mean <= bound / 10) || !e.greedy_equal;
        printf("%s %s: max %.1e mean %.1e%s %s\n", argv[1], argv[i], e.max, e.mean, bad ? " FAILED" : "",
               s == SEGUE_OK ? e.where : err.text);
        failed += bad;
    }
    return failed || argc < 6;
}
