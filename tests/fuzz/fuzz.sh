#!/bin/sh
# Run each fuzzer of BUILD/dev, which tests/sanitize/build.sh compiles, for SECONDS over its committed seeds
# (tests/fuzz/seeds/NAME/). One at a time, or two (JOBS=2). fuzz.sh BUILD SECONDS. SPDX-License-Identifier: MIT
set -eu
programs=$1/dev/fuzzers build=$1/fuzz seconds=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
[ -e "$1/dev.log" ] || { echo "SKIP fuzz_all: nothing is built: no clang with libFuzzer"; exit 77; }
mkdir -p "$build"
one() {
    name=$1
    mkdir -p "$build/corpus/$name"
    seeds=$source/tests/fuzz/seeds/$name
    [ -d "$seeds" ] || seeds=''
    # shellcheck disable=SC2086
    if "$programs/$name" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=20 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="$build/$name-" "$build/corpus/$name" $seeds >"$build/$name.log" 2>&1; then
        echo "fuzz: $name: $(sed -n 's/stat::number_of_executed_units: *//p' "$build/$name.log") runs, no finding"
    else
        echo "fuzz: $name: FAILED"; tail -n 30 "$build/$name.log"; return 1
    fi
}
bad=0
names=''
for f in "$source"/tests/fuzz/fuzz_*.c; do
    name=$(basename "$f" .c)
    [ -x "$programs/$name" ] || { echo "fuzz: $programs/$name is not built"; exit 1; }
    names="$names $name"
done
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
