#!/bin/sh
# The kernels for 64-bit Arm on another processor: cross-compiled into BUILD/neon, then `check --level kernel` under
# qemu-user, on a processor with every extension and on one with the dot product but without i8mm.
# SPDX-License-Identifier: MIT
set -eu
build=$1/neon
source=$(cd "$(dirname "$0")/../.." && pwd)
cross=${SEGUE_CROSS:-aarch64-linux-gnu-gcc}
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if [ -z "$qemu" ] || ! command -v "$cross" >/dev/null; then
    echo "SKIP check_neon: no $cross or no qemu-aarch64; cmake/setup.sh test installs both"
    exit 77
fi
generator=$(command -v ninja >/dev/null 2>&1 && echo "-GNinja" || echo "")
# shellcheck disable=SC2086
cmake $generator -S "$source" -B "$build" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_C_COMPILER="$cross" -DSEGUE_WERROR=ON -DSEGUE_KERNELS_ONLY=ON >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
cmake --build "$build" --parallel 2 >>"$build.log" 2>&1 || { tail -n 40 "$build.log"; exit 1; }
for cpu in max neoverse-n1; do
    "$qemu" -cpu $cpu "$build/check" --level kernel --quick >"$build.$cpu" || { grep FAIL "$build.$cpu"; exit 1; }
    grep -q '^kernel *neon' "$build.$cpu" || { echo "neon.sh: no case of neon on $cpu"; exit 1; }
    echo "$cpu: $(grep -c '^kernel *neon' "$build.$cpu") cases of neon"
done
