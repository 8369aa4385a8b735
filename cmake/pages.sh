#!/bin/sh
# Print man pages and completions from the command's own table: pages.sh SEGUE FOLDER.
# SPDX-License-Identifier: MIT
set -eu
segue=$1 out=$2
mkdir -p "$out/man1" "$out/completions"
"$segue" --man segue >"$out/man1/segue.1"
for name in $("$segue" --list); do "$segue" --man "$name" >"$out/man1/segue-$name.1"; done
"$segue" --completion bash >"$out/completions/segue.bash"
"$segue" --completion zsh >"$out/completions/_segue"
"$segue" --completion fish >"$out/completions/segue.fish"
: >"$out/done"
