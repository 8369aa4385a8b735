#!/bin/sh
# Between two units of MLX a state is handed over without a copy; of one of ref or ane with K and V in the storage of mlx, neither
# are K and V; of cpu, the recurrent slots are not copied, but K and V are, because their layout differs. The report says so, and
# the tokens are those of one unit alone (ane computes in fp16).
# copied.sh CHECK SEGUE MODEL
# SPDX-License-Identifier: MIT
set -u
"$1" --level handoff --quick --unit mlx:cpu --unit mlx:cpu,type=f32 --case pass || exit 1
ids() { tr -d ' \n' | sed 's/.*"ids":\[\([0-9,]*\)\].*/\1/'; }
number() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p"; }
segue=$2 model=$3
prompt=$(seq -s , 1 40)   # two blocks of ane
answer() { "$segue" run --json -m "$model" --ids "$prompt" --greedy -n 8 --ignore-eos "$@"; }
alone=$(answer --unit mlx:cpu --kv f32) || exit 1
# hand_over PREFILL DECODE KV BYTES: so many are not copied, "all" none of them
hand_over()
{
    report=$(answer --prefill "$1" --decode "$2" --kv "$3") || exit 1
    handed=$(echo "$report" | number handoff_bytes)
    copied=$(echo "$report" | number copied_bytes)
    kept=$4
    [ "$4" != all ] || kept=$handed
    echo "$1 to $2, $3: $handed bytes, $copied copied"
    [ "$handed" -gt 0 ] && [ "$copied" = "$((handed - kept))" ] || exit 1
    [ "$3" = f16 ] || [ "$1" = ane:soft ] || [ "$(echo "$report" | ids)" = "$(echo "$alone" | ids)" ] || exit 1
}
hand_over mlx:cpu mlx:cpu,type=f32 f32 all
# 3 layers with a convolution (3 x 128) and a memory (4 x 16 x 16), fp32; one with K and V (40 x 2 x 16 each)
recurrent=$((3 * (3 * 128 + 4 * 16 * 16) * 4)) rows=$((2 * 40 * 2 * 16))
hand_over cpu mlx:cpu f32 $recurrent
hand_over ref mlx:cpu f32 $((4 * rows))
hand_over ref mlx:cpu f16 $((2 * rows))
hand_over ref mlx:cpu q8 0
hand_over ane:soft mlx:cpu f32 $recurrent   # ane has K and V in fp16
hand_over ane:soft mlx:cpu f16 all
hand_over mlx:cpu cpu f32 0
