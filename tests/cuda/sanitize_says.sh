#!/bin/sh
# sanitize.sh over a compute-sanitizer that finds what it is told to: clean, not clean, cut off, no tool. sanitize_says.sh CHECK
# SPDX-License-Identifier: MIT
set -u
here=$(dirname "$0") work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cat > "$work/tool" << 'TOOL'
#!/bin/sh
[ "$1" != --help ] || { echo "  --num-cuda-barriers arg"; exit; }
echo "$*" >> "$CALLS"
while case $1 in --*) true ;; *) false ;; esac; do shift 2; done
case "$*" in
*=norm.1*) exec sleep 60 ;;
*=norm.2*) echo "========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)"; exit 0 ;;
esac
"$@"
code=$?
echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
exit $code
TOOL
chmod +x "$work/tool"
export SANITIZER="$work/tool" LIMIT=100 AT_ONCE=2 CALLS="$work/calls"
fail() { echo "$*"; cat "$work/said"; exit 1; }
"$here/sanitize.sh" "$1" racecheck ref norm.0 "act.0 act.1" > "$work/said" || fail "clean cases are refused"
grep -q '^3 cases clean, 0 not clean, 0 cut off, 0 not begun$' "$work/said" || fail "not three cases"
LIMIT=1 "$here/sanitize.sh" "$1" racecheck ref norm.1 > "$work/said" || fail "what is cut off is no fault"
grep -q '^cut off: 1 cases from norm.1' "$work/said" || fail "nothing is cut off"
"$here/sanitize.sh" "$1" racecheck ref norm.0 norm.2 > "$work/said" && fail "hazards pass"
grep -q '^not clean: 1 cases from norm.2, .*3 hazards' "$work/said" || fail "hazards are not named"
"$here/sanitize.sh" "$1" racecheck ref no.such.case > "$work/said" && fail "a case that is not there passes"
SANITIZER=$work/none "$here/sanitize.sh" "$1" racecheck ref norm.0 > "$work/said" 2>&1
[ $? = 3 ] || fail "a tool that is not there is not named"
"$here/sanitize.sh" "$1" nocheck > "$work/said" 2>&1
[ $? = 2 ] || fail "another tool passes"
# With a folder only what was not clean is repeated; after the end nothing begins; synccheck tracks more barriers.
export OUT="$work/out"
"$here/sanitize.sh" "$1" synccheck ref norm.0 norm.2 > "$work/said" && fail "hazards pass"
: > "$CALLS"
"$here/sanitize.sh" "$1" synccheck ref norm.0 norm.2 > "$work/said" && fail "hazards pass"
grep -q '^clean: 1 cases from norm.0, before$' "$work/said" || fail "a clean case is repeated"
[ "$(wc -l < "$CALLS")" = 1 ] || fail "not one case is repeated"
grep -q -e '--num-cuda-barriers 1024 .*=norm.2' "$CALLS" || fail "synccheck tracks too few barriers"
UNTIL=1 "$here/sanitize.sh" "$1" synccheck ref norm.0 act.0 > "$work/said" || fail "what did not begin is a fault"
grep -q '^1 cases clean, 0 not clean, 0 cut off, 1 not begun$' "$work/said" || fail "a case begins after the end"
