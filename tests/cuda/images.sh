#!/bin/sh
# The embedded fat binaries hold machine code for sm_80 and sm_90a, and PTX. images.sh CUOBJDUMP FOLDER TARGETS
# SPDX-License-Identifier: MIT
set -u
[ -x "$1" ] || { echo "SKIP cuda_images: no cuobjdump"; exit 77; }
case $3 in
*sm_80*sm_90a*compute_80*) ;;
*) echo "SKIP cuda_images: this build asked for other targets: $3"; exit 77 ;;
esac
found=0
for image in "$2"/*.fatbin; do
    elf=$("$1" --list-elf "$image") && ptx=$("$1" --list-ptx "$image") || exit 1
    for target in sm_80 sm_90a; do
        echo "$elf" | grep -q "$target" || { echo "$image: no code for $target"; exit 1; }
    done
    [ -n "$ptx" ] || { echo "$image: no PTX"; exit 1; }
    found=1
done
[ $found = 1 ]
