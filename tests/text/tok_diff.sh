#!/bin/sh
# Make the small tokenizers in FOLDER and compare PROGRAM with the `tokenizers` library on them: tok_diff.sh PYTHON
# PROGRAM FOLDER. Exit 77 with a reason where Python or the library is missing.
# SPDX-License-Identifier: MIT
set -eu
python=$1 program=$2 folder=$3
here=$(dirname "$0")
[ -n "$python" ] && [ -x "$python" ] || { echo "SKIP text_tok_diff: no Python here"; exit 77; }
"$python" "$here/make_tokenizers.py" "$folder"
exec "$python" "$here/tok_diff.py" --program "$program" --folder "$folder"
