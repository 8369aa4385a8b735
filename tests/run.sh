#!/bin/sh
# Run every test of BUILD under CTest, less those that another test contains (label "subset") and those that take minutes
# and check with another driver what a test of the same script checks (label "long"); write BUILD/tests.xml (JUnit) and
# close with the line `tests: P passed, F failed, S skipped`. Fails when a test failed or none ran.
# SPDX-License-Identifier: MIT
set -u
build=$1
rm -f "$build/tests.xml"
ctest --test-dir "$build" -LE "^(subset|long)$" -j2 --output-on-failure --output-junit "$(cd "$build" && pwd)/tests.xml" | tee "$build/tests.log" |
    grep -vE '^(    Start| *[0-9]+/[0-9]+ Test .* Passed)' | grep -v '^Label Time\|sec\*proc\|^Test project\|^$'
count() { sed -n "s/.*[[:space:]]$1=\"\([0-9]*\)\".*/\1/p" "$build/tests.xml" | head -n 1; }
total=$(count tests); failed=$(count failures); skipped=$(count skipped); disabled=$(count disabled)
total=${total:-0}; failed=${failed:-0}; skipped=$((${skipped:-0} + ${disabled:-0}))
grep -h '^SKIP ' "$build/tests.log" "$build"/Testing/Temporary/LastTest.log 2>/dev/null | sort -u
echo "tests: $((total - failed - skipped)) passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$total" -gt 0 ]
