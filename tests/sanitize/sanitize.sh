#!/bin/sh
# Build with sanitizers into BUILD/KIND and run the tests there: `dev` is address and undefined behaviour with the fault hooks in,
# by clang, which checks more than gcc; `tsan` is the thread sanitizer of the default compiler on the tests that use threads
# (label "threads"), the only ones built there. -O1 and line tables: checks the same, and compiles in half the time of -O2 -g.
# One job at a time, or JOBS. Without grammar_mask and ane_shapes, which take minutes here for code that fuzz_grammar and the other
# tests of ane reach as well. SPDX-License-Identifier: MIT
set -eu
build=$1 kind=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
generator=$(command -v ninja >/dev/null 2>&1 && echo "-GNinja" || echo "")
python=$(sed -n 's/^SEGUE_PYTHON:FILEPATH=//p' "$build/CMakeCache.txt")
case $kind in
dev)  command -v clang >/dev/null 2>&1 || { echo "SKIP sanitize_dev: clang is not installed"; exit 77; }
      flags="-DSEGUE_SANITIZE=address,undefined -DSEGUE_FAULTS=ON -DCMAKE_C_COMPILER=clang"; target=all; select="-L quick|fault" ;;
tsan) flags="-DSEGUE_SANITIZE=thread"; target=tests_threads; select="-L threads" ;;
*) echo "sanitize: $kind?" >&2; exit 2 ;;
esac
# shellcheck disable=SC2086
cmake $generator -S "$source" -B "$build/$kind" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG" -DSEGUE_WERROR=ON -DSEGUE_PYTHON="$python" \
    -DSEGUE_CUDA=OFF $flags >"$build/$kind.log" 2>&1 || { cat "$build/$kind.log"; exit 1; }
cmake --build "$build/$kind" --parallel "${JOBS:-1}" --target $target >>"$build/$kind.log" 2>&1 || { tail -n 40 "$build/$kind.log"; exit 1; }
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
# shellcheck disable=SC2086
exec ctest --test-dir "$build/$kind" $select -LE "slow|source" -E "^(grammar_mask|ane_shapes)$" --no-tests=ignore --output-on-failure -j"${JOBS:-1}"
