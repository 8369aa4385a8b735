#!/bin/sh
# options.sh CHECK: the flags of build/check, its exit codes, and that equal seeds give equal lines.
# SPDX-License-Identifier: MIT
check=$1
fail() { echo "options.sh: $*" >&2; exit 1; }
code() { # code WANTED FLAGS...
    wanted=$1; shift
    "$check" "$@" > /dev/null 2>&1; got=$?
    [ $got = "$wanted" ] || fail "$* exits with $got, not $wanted"
}
code 0 --help
code 0 --list --level gradient
code 2 --nonsense
code 2 --level
code 2 --level roof
code 2 --seed x
code 2 --unit ref:speed=1
code 3 --unit nothing
code 2 --level op --unit ref --case =nothing
code 0 --level op --unit ref --case =act.0
[ "$("$check" --list --level gradient)" = "gradient none" ] || fail "--list of a level without cases"
one=$("$check" --level op --quick --unit ref --seed 5 2> /dev/null) || fail "seed 5 fails"
two=$("$check" --level op --quick --unit ref --seed 5 2> /dev/null)
other=$("$check" --level op --quick --unit ref --seed 6 2> /dev/null)
[ "$one" = "$two" ] || fail "equal seeds differ"
[ "$one" != "$other" ] || fail "different seeds are equal"
ran=$(echo "$one" | awk '{print $4}')
listed=$("$check" --level op --quick --unit ref --list | awk '{print $4}')
[ "$ran" = "$listed" ] || fail "--list names other cases than those that run"
[ -n "$SEGUE_PYTHON" ] || exit 0
"$check" --level op --quick --unit ref --json 2> /dev/null | "$SEGUE_PYTHON" -c '
import json, sys
cases = json.load(sys.stdin)["cases"]
assert cases and all(c["ok"] and c["max_abs"] <= c["bound"] and c["skipped"] is None for c in cases)
' || fail "--json"
