#!/bin/sh
# Ops in fp16. Norms with weights of 3e3 and 4e4 make results beyond fp16: the run is refused and names the op, it does not answer.
# op_f16.sh CHECK
# SPDX-License-Identifier: MIT
set -u
out=$("$1" --level op --unit mlx:cpu,type=f16 --quick --case route --case tail --case delta --case conv --case experts --case norm \
    --case rank.bf16.8 --case =rank.f16.20 --case =rank.f16.21) || { echo "$out"; exit 1; }
for want in "rank.f16.20 .*v5 (glu, layer 0): [0-9]* results exceed fp16" "rank.f16.21 .*v2 (norm, layer 0): [0-9]* results exceed fp16"; do
    echo "$out" | grep -q "$want" || { echo "$out"; echo "missing: $want"; exit 1; }
done
