#!/bin/sh
# NVIDIA's compute-sanitizer over the cases of build/check: a layer's case in a process of its own, single ops some at a time, several
# processes beside each other, each with a limit: racecheck takes seconds over most cases and minutes over clusters of long rows.
#   sanitize.sh CHECK TOOL [UNIT] [CASE...]        TOOL: memcheck racecheck synccheck initcheck; UNIT: cuda:0; no CASE: all of --level op
# Environment: SANITIZER (compute-sanitizer), AT_ONCE (half of the processors), LIMIT (600 seconds a process), CARDS (1: processes take
# turns on so many), OUT (a folder for what each prints; none: it is not kept; processes that were clean there are not repeated),
# UNTIL (seconds of the clock, date +%s, after which no process begins; those at work are cut off), BARRIERS (1,024 tracked mbarriers
# of synccheck, which a ring per warp exceeds by default).
# Prints a line for each process, then how many cases are clean, not clean, were cut off, and did not begin. Exits 1 when one is not
# clean, else 0.
# SPDX-License-Identifier: MIT
set -u
[ $# -ge 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
CHECK=$1 TOOL=$2 UNIT=${3:-cuda:0}
shift 2
[ $# = 0 ] || shift
case $TOOL in memcheck | racecheck | synccheck | initcheck) ;; *) echo "sanitize.sh: $TOOL: no such tool; memcheck, racecheck, synccheck or initcheck" >&2; exit 2 ;; esac
SANITIZER=${SANITIZER:-compute-sanitizer} LIMIT=${LIMIT:-600} CARDS=${CARDS:-1}
command -v "$SANITIZER" > /dev/null || { echo "sanitize.sh: $SANITIZER is not here; it comes with CUDA" >&2; exit 3; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
OUT=${OUT:-$work}
mkdir -p "$OUT" || exit 1
UNTIL=${UNTIL:-0} EXTRA=
[ "$TOOL" != synccheck ] || ! "$SANITIZER" --help 2> /dev/null | grep -q -e --num-cuda-barriers || EXTRA="--num-cuda-barriers ${BARRIERS:-1024}"
export CHECK TOOL UNIT SANITIZER LIMIT CARDS OUT UNTIL EXTRA

if [ $# = 0 ]; then
    "$CHECK" --level op --unit "$UNIT" --list | awk '$1 == "op" { print $4 }' | sort -u > "$work/all"
    [ -s "$work/all" ] || { echo "sanitize.sh: $CHECK lists no cases of $UNIT" >&2; exit 1; }
    grep -E '^(tail|rank)\.' "$work/all" > "$work/each"
    grep -vE '^(tail|rank)\.' "$work/all" | xargs -n 16 >> "$work/each"
else
    printf '%s\n' "$@" > "$work/each"
fi

# One process: its number, its cases.
cat > "$work/one" << 'ONE'
number=$1
shift
file=$OUT/$TOOL-$1.txt begin=$(date +%s) count=$# first=$1
if grep -q -s "^clean: $*\$" "$file.verdict"; then
    echo "clean: $# cases from $1, before"
    exit
fi
left=$((UNTIL - begin))
[ "$UNTIL" != 0 ] && [ "$left" -lt "$LIMIT" ] && LIMIT=$left
if [ "$LIMIT" -le 0 ]; then
    echo "not begun: $# cases from $1"
    exit
fi
cases="$*"
for name; do set -- "$@" --case "=$name"; shift; done
# shellcheck disable=SC2086 # EXTRA is several words
CUDA_VISIBLE_DEVICES=$((number % CARDS)) timeout -k 5 "$LIMIT" "$SANITIZER" --tool "$TOOL" $EXTRA --print-limit 20 "$CHECK" --level op --unit "$UNIT" "$@" > "$file" 2>&1
code=$? said=$(sed -n 's/^=* *\([A-Z]* SUMMARY: \)/\1/p' "$file" | tail -1)
case $code:$said in
124:* | 137:*) what="cut off" ;;
0:*"SUMMARY: 0 "*) what=clean ;;
*) what="not clean" ;;
esac
echo "$what: $cases" > "$file.verdict"
echo "$what: $count cases from $first, $(($(date +%s) - begin)) s${said:+, $said}"
ONE
awk '{ print NR, $0 }' "$work/each" | xargs -P "${AT_ONCE:-$(($(getconf _NPROCESSORS_ONLN) / 2))}" -L 1 sh "$work/one" | tee "$work/rows"
awk -F': ' '{ split($2, n, " "); cases[$1] += n[1] }
    END { printf "%d cases clean, %d not clean, %d cut off, %d not begun\n", cases["clean"], cases["not clean"], cases["cut off"], cases["not begun"] }' "$work/rows"
! grep -q '^not clean' "$work/rows"
