#!/bin/sh
# Make the small tokenizers in FOLDER and compare PROGRAM with the `tokenizers` library on them: tok_diff.sh PYTHON
# PROGRAM FOLDER. With a fourth word "gguf" the vocabularies are those of llama.cpp's source (SEGUE_LLAMA_SOURCE).
# Exit 77 with a reason where Python, the library or the source is missing.
# SPDX-License-Identifier: MIT
set -eu
python=$1 program=$2 folder=$3 which=${4:-}
here=$(dirname "$0")
[ -n "$python" ] && [ -x "$python" ] || { echo "SKIP text_tok_diff: no Python here"; exit 77; }
if [ "$which" = gguf ]; then
    "$python" -c 'import gguf' 2>/dev/null || { echo "SKIP text_tok_gguf: the Python package gguf is not installed"; exit 77; }
    models=${SEGUE_LLAMA_SOURCE:-}/models/ggml-vocab
    [ -f "$models-gpt-2.gguf" ] || { echo "SKIP text_tok_gguf: SEGUE_LLAMA_SOURCE does not name llama.cpp's source"; exit 77; }
fi
"$python" "$here/make_tokenizers.py" "$folder"
if [ "$which" = gguf ]; then
    set -- --count 3000 --gguf
    for name in gpt-2 llama-bpe llama-spm; do set -- "$@" "$models-$name.gguf"; done
else
    set --
fi
exec "$python" "$here/tok_diff.py" --program "$program" --folder "$folder" "$@"
