#!/bin/sh
# Build every tests/fuzz/fuzz_*.c with clang's libFuzzer and the address and undefined-behaviour sanitizers, and run each
# for SECONDS over its committed seeds (tests/fuzz/seeds/NAME/). One at a time, or two (JOBS=2). Exit 77 where clang cannot.
# SPDX-License-Identifier: MIT
set -eu
build=$1 seconds=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
if ! printf '#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char*d,size_t n){(void)d;(void)n;return 0;}\n' |
    clang -fsanitize=fuzzer,address -x c -o /dev/null - 2>/dev/null; then
    echo "SKIP fuzz_all: no clang with libFuzzer"
    exit 77
fi
generator=$(command -v ninja >/dev/null 2>&1 && echo "-GNinja" || echo "")
mkdir -p "$build"
cmake $generator -S "$source" -B "$build" -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -gline-tables-only -DNDEBUG" -DBUILD_TESTING=OFF -DSEGUE_FUZZ=ON >"$build.log" 2>&1 || { tail -n 30 "$build.log"; exit 1; }
cmake --build "$build" --parallel "${JOBS:-1}" >>"$build.log" 2>&1 || { tail -n 40 "$build.log"; exit 1; }
one() {
    name=$1
    mkdir -p "$build/corpus/$name"
    seeds=$source/tests/fuzz/seeds/$name
    [ -d "$seeds" ] || seeds=''
    # shellcheck disable=SC2086
    if "$build/$name" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=5 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="$build/$name-" "$build/corpus/$name" $seeds >"$build/$name.log" 2>&1; then
        echo "fuzz: $name: $(sed -n 's/stat::number_of_executed_units: *//p' "$build/$name.log") runs, no finding"
    else
        echo "fuzz: $name: FAILED"; tail -n 30 "$build/$name.log"; return 1
    fi
}
bad=0
set -- "$build"/fuzz_*
names=''
for f; do [ -x "$f" ] && [ ! -d "$f" ] && case $f in *.log|*-*) ;; *) names="$names $(basename "$f")" ;; esac; done
[ -n "$names" ] || { echo "fuzz: no targets built"; exit 1; }
# shellcheck disable=SC2086
set -- $names
while [ $# -gt 0 ]; do
    one "$1" & first=$!
    second=''
    if [ $# -gt 1 ] && [ "${JOBS:-1}" -gt 1 ]; then one "$2" & second=$!; shift; fi
    shift
    wait "$first" || bad=1
    [ -z "$second" ] || wait "$second" || bad=1
done
exit $bad
