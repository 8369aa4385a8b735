#!/bin/sh
# Matrices that cannot stay quantised are reported; those that are repacked are not. converted.sh SEGUE MODEL (GGUF, Q8_0)
# SPDX-License-Identifier: MIT
set -u
report() { "$1" run --json -m "$2" --unit "$3" --ids 1,2 -n 1 --greedy | tr -d '\n'; }
report "$1" "$2" mlx:cpu | grep -q 'matrices were converted' && exit 1
report "$1" "$2" mlx:cpu,type=bf16 | grep -q '15 of 15 quantised matrices were converted to bf16'
