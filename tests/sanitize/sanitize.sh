#!/bin/sh
# Run the tests of a build with sanitizers (build.sh): `dev` is address and undefined behaviour, with the fault hooks in; `tsan` is
# the thread sanitizer on the tests that use threads (label "threads"). One at a time, or JOBS. Left out: grammar_mask and
# ane_shapes, which take minutes here; ane_rescale, ane_mil_emit, plan_published and cli_pages, which compare numbers and
# texts: fuzz_grammar, fuzz_mil and the other tests of ane, of the planner and of the command reach the same code; and
# meter_phases, which measures time.
# sanitize.sh BUILD KIND. SPDX-License-Identifier: MIT
set -eu
build=$1 kind=$2
[ -e "$build/$kind.log" ] || { echo "SKIP sanitize_$kind: nothing is built: no clang with libFuzzer"; exit 77; }
select="-L ^(quick|fault)\$"
[ "$kind" != tsan ] || select="-L threads"
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
out="grammar_mask|ane_shapes|ane_rescale|ane_mil_emit|plan_published|cli_pages|meter_phases"
# shellcheck disable=SC2086
ctest --test-dir "$build/$kind" $select -LE "slow|source" -E "^($out)$" --no-tests=ignore --output-on-failure -j"${JOBS:-1}"
# A child process that a test starts may report a race without an effect on the test.
log=$build/$kind/Testing/Temporary/LastTest.log
[ "$kind" = tsan ] && [ -e "$log" ] || exit 0
if grep -A12 "WARNING: ThreadSanitizer" "$log"; then echo "FAIL sanitize_$kind: a race in a child process; see above"; exit 1; fi
