#!/bin/sh
# Build with sanitizers into BUILD/KIND and run the tests there: `dev` is the address sanitizer of the default compiler with the
# fault hooks in; `ubsan` is undefined behaviour as clang defines it, which is more than gcc checks; `tsan` is the thread sanitizer
# on the tests that use threads (label "threads").
# SPDX-License-Identifier: MIT
set -eu
build=$1 kind=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
generator=$(command -v ninja >/dev/null 2>&1 && echo "-GNinja" || echo "")
python=$(sed -n 's/^SEGUE_PYTHON:FILEPATH=//p' "$build/CMakeCache.txt")
case $kind in
dev)  flags="-DSEGUE_SANITIZE=address -DSEGUE_FAULTS=ON"; select="-L quick|fault" ;;
ubsan)
    command -v clang >/dev/null 2>&1 || { echo "SKIP sanitize_ubsan: clang is not installed"; exit 77; }
    flags="-DSEGUE_SANITIZE=undefined -DCMAKE_C_COMPILER=clang"; select="-L quick" ;;
tsan) flags="-DSEGUE_SANITIZE=thread"; select="-L threads" ;;
*) echo "sanitize: $kind?" >&2; exit 2 ;;
esac
# shellcheck disable=SC2086
cmake $generator -S "$source" -B "$build/$kind" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSEGUE_WERROR=ON \
    -DSEGUE_PYTHON="$python" -DSEGUE_CUDA=OFF $flags >"$build/$kind.log" 2>&1 || { cat "$build/$kind.log"; exit 1; }
cmake --build "$build/$kind" --parallel 2 >>"$build/$kind.log" 2>&1 || { tail -n 40 "$build/$kind.log"; exit 1; }
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
# shellcheck disable=SC2086
exec ctest --test-dir "$build/$kind" $select -LE slow --no-tests=ignore --output-on-failure -j2
