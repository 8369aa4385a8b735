#!/bin/sh
# Greedy tokens of the default model are those of cpu: prefill and decode on mlx:cpu, and decode there after prefill on cpu.
# tokens.sh SEGUE
# SPDX-License-Identifier: MIT
set -u
prompt='Why is the sky blue?'
want=$("$1" run --unit cpu -p "$prompt" --greedy -n 12 2>/dev/null) || { echo "SKIP mlx_tokens: no default model"; exit 77; }
for where in "--unit mlx:cpu" "--prefill cpu --decode mlx:cpu" "--prefill mlx:cpu --decode cpu"; do
    # shellcheck disable=SC2086
    got=$("$1" run $where -p "$prompt" --greedy -n 12 2>/dev/null) || { echo "run $where exits $?"; exit 1; }
    [ "$got" = "$want" ] || { printf '%s says:\n%s\ncpu says:\n%s\n' "$where" "$got" "$want"; exit 1; }
done
[ -n "$want" ]
