#!/bin/sh
# Between two units of MLX a state is handed over without a copy; of one of cpu or ane, the recurrent slots are not copied; K and V
# are, because their layout differs. The report says so, and the tokens are those of one unit alone (ane computes in
# fp16).
# copied.sh CHECK SEGUE MODEL
# SPDX-License-Identifier: MIT
set -u
"$1" --level handoff --quick --unit mlx:cpu --unit mlx:cpu,type=f32 --case pass || exit 1
ids() { tr -d ' \n' | sed 's/.*"ids":\[\([0-9,]*\)\].*/\1/'; }
number() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p"; }
segue=$2 model=$3
alone=$("$segue" run --json -m "$model" --unit mlx:cpu --kv f32 --ids 1,2,3,4,5 --greedy -n 8 --ignore-eos) || exit 1
# hand over PREFILL DECODE BYTES: so many are not copied, "all" none of them
hand_over()
{
    report=$("$segue" run --json -m "$model" --prefill "$1" --decode "$2" --kv f32 --ids 1,2,3,4,5 --greedy -n 8 --ignore-eos) || exit 1
    handed=$(echo "$report" | number handoff_bytes)
    copied=$(echo "$report" | number copied_bytes)
    kept=$3
    [ "$3" != all ] || kept=$handed
    echo "$1 to $2: $handed bytes, $copied copied"
    [ "$handed" -gt 0 ] && [ "$copied" = "$((handed - kept))" ] || exit 1
    [ "$1" = ane:soft ] || [ "$(echo "$report" | ids)" = "$(echo "$alone" | ids)" ] || exit 1
}
hand_over mlx:cpu mlx:cpu,type=f32 all
# 3 layers with a convolution (3 x 128) and a memory (4 x 16 x 16), fp32
recurrent=$((3 * (3 * 128 + 4 * 16 * 16) * 4))
hand_over cpu mlx:cpu $recurrent
hand_over ane:soft mlx:cpu $recurrent
hand_over mlx:cpu cpu 0
