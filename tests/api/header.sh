#!/bin/sh
# header.sh CC CXX SOURCE: the public headers, each first of its kind and twice, as C11 and as C++17, without a warning.
# SPDX-License-Identifier: MIT
set -eu
cc=$1 cxx=$2 header=$3/include/segue.h # segue_train.h includes it
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
    echo '#include "segue.h"'
    echo '#include "segue.h"'
    echo '#include "segue_train.h"'
    echo '#include "segue_train.h"'
    echo 'uint32_t use(void);'
    echo 'uint32_t use(void) { segue_task t = SEGUE_INIT(segue_task); segue_text x = SEGUE_INIT(segue_text);'
    echo 'segue_adamw a = SEGUE_INIT(segue_adamw); return t.size + x.size + a.size + segue_version(); }'
} > "$work/use.c"
flags='-Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers -fsyntax-only'
"$cc" -std=c11 $flags -I"$(dirname "$header")" "$work/use.c"
if ! command -v "$cxx" > /dev/null; then
    echo "SKIP api_header: no C++ compiler"
    exit 77
fi
cp "$work/use.c" "$work/use.cpp"
"$cxx" -std=c++17 $flags -I"$(dirname "$header")" "$work/use.cpp"
