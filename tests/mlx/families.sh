#!/bin/sh
# Greedy tokens of every tiny checkpoint, safetensors and GGUF, are those of ref. families.sh SEGUE FOLDER
# SPDX-License-Identifier: MIT
set -u
ids=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20
n=0
for model in "$2"/*/model.safetensors "$2"/*/model.gguf; do
    [ -e "$model" ] || continue
    want=$("$1" run --unit ref -m "$model" --ids $ids --greedy -n 24 --ignore-eos 2>/dev/null) || { echo "ref: $model: exit $?"; exit 1; }
    got=$("$1" run --unit mlx:cpu -m "$model" --ids $ids --greedy -n 24 --ignore-eos 2>/dev/null) || { echo "$model: exit $?"; exit 1; }
    [ -n "$got" ] && [ "$got" = "$want" ] || { printf '%s:\n%s\nref:\n%s\n' "$model" "$got" "$want"; exit 1; }
    n=$((n + 1))
done
[ $n -ge 20 ] || { echo "only $n checkpoints"; exit 1; }
