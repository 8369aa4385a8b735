#!/bin/sh
# Between two units of MLX a state is handed over without a copy; from cpu it is copied. The report says which.
# copied.sh CHECK SEGUE MODEL
# SPDX-License-Identifier: MIT
set -u
"$1" --level handoff --quick --unit mlx:cpu --unit mlx:cpu,type=f32 --case pass || exit 1
number() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p"; }
segue=$2 model=$3
# hand over PREFILL DECODE WANTED: none or all of the bytes are copied
hand_over()
{
    report=$("$segue" run --json -m "$model" --prefill "$1" --decode "$2" --kv f32 --ids 1,2,3,4,5 --greedy -n 8 --ignore-eos) || exit 1
    handed=$(echo "$report" | number handoff_bytes)
    copied=$(echo "$report" | number copied_bytes)
    want=$handed
    [ "$3" = all ] || want=0
    echo "$1 to $2: $handed bytes, $copied copied"
    [ "$handed" -gt 0 ] && [ "$copied" = "$want" ] || exit 1
}
hand_over mlx:cpu mlx:cpu,type=f32 none
hand_over cpu mlx:cpu all
hand_over mlx:cpu cpu all
