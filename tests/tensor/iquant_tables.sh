#!/bin/sh
# The committed code books are what make_iquant_tables.py makes: iquant_tables.sh PYTHON. Exit 77 without the Python package gguf.
# SPDX-License-Identifier: MIT
set -eu
python=$1
here=$(cd "$(dirname "$0")" && pwd)
[ -n "$python" ] && [ -x "$python" ] && "$python" -c 'import gguf' 2>/dev/null ||
    { echo "SKIP tensor_iquant_tables: the Python package gguf is not installed"; exit 77; }
"$python" "$here/make_iquant_tables.py" | cmp - "$here/../../src/tensor/iquant_tables.h"
echo "code books agree"
