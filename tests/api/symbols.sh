#!/bin/sh
# symbols.sh SOURCE SHARED ARCHIVE: the library exports the functions of the two headers and nothing else, at most 64 of
# segue.h; it never
# ends the process or prints; it has no writable data of its own.
# SPDX-License-Identifier: MIT
set -eu
source=$1 shared=$2 archive=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

# a declaration starts with SEGUE_API; names in comments do not count
functions() { cat "$@" | tr '\n' ' ' | grep -oE 'SEGUE_API [^;]*\(' | grep -oE 'segue_[a-z_]+\(' | tr -d '(' | sort -u; }
functions "$source/include/segue.h" "$source/include/segue_train.h" > "$work/header"
nm -D --defined-only "$shared" | awk '{print $3}' | sort -u > "$work/library"
if ! diff "$work/header" "$work/library" > "$work/diff"; then
    echo "header (<) and libsegue.so (>) differ:"
    cat "$work/diff"
    bad=1
fi
count=$(functions "$source/include/segue.h" | wc -l)
[ "$count" -le 64 ] || { echo "the header has $count functions, more than 64"; bad=1; }

# Ends or prints: no object of the library may even refer to these. snprintf and the like are fine.
nm -A --undefined-only "$archive" | awk '{print $1, $NF}' | sed 's/@.*//' > "$work/wants"
if grep -E ' (exit|_exit|_Exit|quick_exit|abort|printf|puts|putchar|fprintf|fputs|fputc|putc|vprintf|vfprintf|perror|__printf_chk|__fprintf_chk|__vfprintf_chk|stdout|stderr|system|popen|signal|sigaction|setlocale)$' "$work/wants" > "$work/found"; then
    echo "the library ends the process, prints or changes it:"
    cat "$work/found"
    bad=1
fi

# Writable data: only the allocator that segue_allocator_set writes once. Tables of pointers are in .data.rel.ro, which is
# read-only once the library is loaded.
nm -A -f sysv "$archive" 2> "$work/errors" | grep -vE 'mem\.c\.o:(hook|hook_state) ' | awk -F'|' '$NF ~ /\.(data|bss)[[:space:]]*$/ && $4 !~ /SECTION/ || $3 ~ /C/' > "$work/data"
if [ -s "$work/data" ]; then
    echo "writable data in the library:"
    cat "$work/data"
    bad=1
fi
exit $bad
