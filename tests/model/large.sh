#!/bin/sh
# The families test on larger models that are made now: large.sh PROGRAM SOURCE FOLDER. Python is $SEGUE_PYTHON.
# SPDX-License-Identifier: MIT
set -eu
program=$1 source=$2 folder=$3
python=${SEGUE_PYTHON:-python3}
if ! "$python" -c 'import torch, transformers, safetensors, gguf, mlx.core' 2>/dev/null; then
    echo "SKIP model_families_large: $python lacks torch, transformers, safetensors, gguf or mlx"
    exit 77
fi
rm -rf "$folder"
"$python" "$source/tests/golden/make_tiny.py" --large "$folder" >"$folder.log" 2>&1 || { tail -n 20 "$folder.log"; exit 1; }
SEGUE_TINY=$folder "$program"
