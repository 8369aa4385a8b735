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
code 2 --without
[ "$("$check" --list --level op --without proc --case act.0 | grep -c '^op *proc')" = 0 ] || fail "--without proc"
[ "$("$check" --list --level op --without cpu --case act.0 | grep -c '^op *proc')" -gt 0 ] || fail "--without cpu leaves out proc"
code 2 --level op --unit ref --case =nothing
code 0 --level op --unit ref --case =act.0
code 3 --level gradient --unit ane:soft --quick
[ "$("$check" --list --level gradient --unit ref | grep -c "^gradient ref .* deltalayer")" = 8 ] || fail "--list of gradients"
few() { "$check" --level op --quick --unit ref --case norm --case rope --case conv --case linear.f --case sample.few "$@" 2> /dev/null; }
one=$(few --seed 5) || fail "seed 5 fails"
two=$(few --seed 5)
other=$(few --seed 6)
[ "$one" = "$two" ] || fail "equal seeds differ"
[ "$one" != "$other" ] || fail "different seeds are equal"
ran=$(echo "$one" | awk '{print $4}')
listed=$(few --list | awk '{print $4}')
[ "$ran" = "$listed" ] || fail "--list names other cases than those that run"
[ -n "$SEGUE_PYTHON" ] || exit 0
few --json | "$SEGUE_PYTHON" -c '
import json, sys
cases = json.load(sys.stdin)["cases"]
assert cases and all(c["ok"] and c["max_abs"] <= c["bound"] and c["skipped"] is None for c in cases)
' || fail "--json"
