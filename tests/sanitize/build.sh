#!/bin/sh
# Build with sanitizers into a folder of BUILD; build.sh BUILD KIND.
#   dev   BUILD/dev: address and undefined behaviour with the fault hooks in, by clang, which checks more than gcc; everything,
#         and the fuzzers
#   fuzz  the same folder: the fuzzers only
#   tsan  BUILD/tsan: the thread sanitizer of the default compiler; what the tests with the label "threads" need
# Line tables and -O1, but -O0 for the command. One job at a time, or JOBS. Exit 77 where clang cannot.
# SPDX-License-Identifier: MIT
set -eu
build=$1 kind=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
generator=$(command -v ninja >/dev/null 2>&1 && echo "-GNinja" || echo "")
python=$(sed -n 's/^SEGUE_PYTHON:FILEPATH=//p' "$build/CMakeCache.txt")
into=dev target=all flags="-DSEGUE_SANITIZE=address,undefined -DSEGUE_FAULTS=ON -DSEGUE_FUZZ=ON -DCMAKE_C_COMPILER=clang"
case $kind in
dev) ;;
fuzz) target=fuzzers ;;
tsan) into=tsan target=tests_threads flags="-DSEGUE_SANITIZE=thread" ;;
*) echo "build: $kind?" >&2; exit 2 ;;
esac
if [ $into = dev ] && ! printf '#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char*d,size_t n){(void)d;(void)n;return 0;}\n' |
    clang -fsanitize=fuzzer,address -x c -o /dev/null - 2>/dev/null; then
    echo "SKIP sanitize_$kind: no clang with libFuzzer"
    exit 77
fi
# shellcheck disable=SC2086
cmake $generator -S "$source" -B "$build/$into" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG" -DSEGUE_WERROR=ON -DSEGUE_PYTHON="$python" \
    -DSEGUE_CUDA=OFF $flags >"$build/$into.log" 2>&1 || { cat "$build/$into.log"; exit 1; }
cmake --build "$build/$into" --parallel "${JOBS:-1}" --target $target >>"$build/$into.log" 2>&1 || { tail -n 40 "$build/$into.log"; exit 1; }
