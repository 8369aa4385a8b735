#!/bin/sh
# The bound of the cpu unit on the default model: mean KL divergence from `ref` at most 2e-3 and the same best token at 98 %
# or more of at least 2,048 positions of text (this project's own documents), for each instruction set that is here.
# SPDX-License-Identifier: MIT
set -eu
segue=${SEGUE_COMMAND:?} source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
cat "$source/docs/ARCHITECTURE.md" "$source/docs/STATE.md" "$source/docs/FAMILIES.md" | head -c 14500 >"$work/text"
if ! "$segue" inspect --json >/dev/null 2>&1; then
    echo "SKIP accuracy_default: the default model is not in the data folder"
    exit 77
fi
number() { sed -n "s/.*\"$2\": *\([0-9.eE+-]*\).*/\1/p" "$1" | head -n 1; }
"$segue" eval -f "$work/text" -c 512 --unit ref --kl-out "$work/base" --json >"$work/ref.json"
tokens=$(number "$work/ref.json" tokens)
[ "${tokens%.*}" -ge 2048 ] || { echo "accuracy: only $tokens tokens of text" >&2; exit 1; }
bad=0 tried=0
for isa in generic avx2 avx512 neon; do
    unit=cpu:isa=$isa
    if [ $isa = generic ] && [ -z "${SEGUE_SLOW:-}" ]; then continue; fi
    "$segue" units --json | grep -q "$isa" || continue
    code=0
    "$segue" eval -f "$work/text" -c 512 --unit "$unit" --kl-base "$work/base" --json >"$work/cpu.json" 2>"$work/err" || code=$?
    [ $code = 3 ] && continue   # not on this machine
    tried=1
    [ $code = 0 ] || { cat "$work/err" >&2; exit 1; }
    kl=$(number "$work/cpu.json" kl_mean) top=$(number "$work/cpu.json" same_top)
    verdict=$(awk -v kl="$kl" -v top="$top" 'BEGIN { print (kl <= 0.002 && (top > 1 ? top / 100 : top) >= 0.98) ? "ok" : "FAILED" }')
    echo "accuracy: $unit: kl_mean $kl, same_top $top: $verdict"
    [ "$verdict" = ok ] || bad=1
done
if [ $tried = 0 ]; then echo "SKIP accuracy_default: plain C only; SEGUE_SLOW=1 takes the time"; exit 77; fi
exit $bad
