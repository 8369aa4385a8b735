#!/bin/sh
# Remove what `cmake --install` of this build would install under DESTDIR/PREFIX: the list is made by installing aside.
# SPDX-License-Identifier: MIT
set -eu
build=$1 destdir=$2 prefix=$3
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT INT TERM
DESTDIR=$stage cmake --install "$build" --prefix "$prefix" >/dev/null
(cd "$stage" && find . ! -type d) | sed 's/^\.//' | while IFS= read -r file; do rm -f "$destdir$file"; done
(cd "$stage" && find . -depth -type d -name '*segue*') | sed 's/^\.//' | while IFS= read -r folder; do
    rmdir "$destdir$folder" 2>/dev/null || true
done
echo "removed from $destdir$prefix"
