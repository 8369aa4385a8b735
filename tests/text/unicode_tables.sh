#!/bin/sh
# The committed character tables are what make_unicode_tables.py makes: unicode_tables.sh PYTHON. Exit 77 with a reason
# where the `tokenizers` library is missing or of another version than the one that the tables name.
# SPDX-License-Identifier: MIT
set -eu
python=$1
here=$(cd "$(dirname "$0")" && pwd)
table=$here/../../src/text/unicode/unicode_tables.h
[ -n "$python" ] && [ -x "$python" ] || { echo "SKIP text_unicode: no Python here"; exit 77; }
have=$("$python" -c 'import tokenizers; print(tokenizers.__version__)' 2>/dev/null) ||
    { echo "SKIP text_unicode: the Python package tokenizers is not installed"; exit 77; }
grep -q "from tokenizers $have;" "$table" || { echo "SKIP text_unicode: tokenizers is $have, the tables are of another version"; exit 77; }
"$python" "$here/make_unicode_tables.py" | cmp - "$table"
echo "tables agree"
