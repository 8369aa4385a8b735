#!/bin/sh
# token_allocs.sh SEGUE COUNTER: generating 32 and 96 tokens takes the same number of allocations and mappings, greedy and
# sampled, and so do 150 and 220: a token allocates nothing, except the next block of K and V every 128 tokens. Uses the default model with cached packed weights.
# SPDX-License-Identifier: MIT
set -eu
segue=$1 counter=$2
if [ -n "${SEGUE_HOME:-}" ]; then data=$SEGUE_HOME/data; else data=${XDG_DATA_HOME:-$HOME/.local/share}/segue; fi
model=$data/models/SmolLM2-135M-Instruct.Q4_1.gguf
[ -f "$model" ] || { echo "SKIP token_allocs: the default model is not in the data folder"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME="$work/cache"
count() { # tokens flags...
    n=$1
    shift
    COUNT_ALLOC_OUT="$work/counts" LD_PRELOAD="$counter" "$segue" run -m "$model" --unit cpu:threads=2 --raw -p "The sky is" \
        -q --ignore-eos -n "$n" "$@" > /dev/null
    cat "$work/counts"
}
count 1 --greedy > /dev/null # fills the weight cache
bad=0
for how in "--greedy" "--temp 0.8 --seed 3" "--temp 0.8 --top-k 40 --top-p 0.9 --repeat-penalty 1.1 --seed 4"; do
    # shellcheck disable=SC2086
    short=$(count 32 $how) middle=$(count 96 $how) long=$(count 150 $how) longest=$(count 220 $how)
    echo "$how: $short"
    case $short in *"malloc 0 "* | "") echo "nothing was counted"; bad=1 ;; esac
    [ "$short" = "$middle" ] || { echo "  32: $short; 96: $middle"; bad=1; }
    [ "$long" = "$longest" ] || { echo "  150: $long; 220: $longest"; bad=1; }
done
exit $bad
