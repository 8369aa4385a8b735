#!/bin/sh
# Without a driver: `units` lists the unit, says why it is absent and exits 0; `run --unit cuda` exits 3.
# absent.sh SEGUE MODEL
# SPDX-License-Identifier: MIT
set -u
text=$("$1" units) || { echo "units exits $?"; exit 1; }
line=$(echo "$text" | grep '^cuda')
case $line in
*"not available:"*) ;;
*) echo "SKIP cuda_absent: a GPU is here"; exit 77 ;;
esac
"$1" run --unit cuda -m "$2" --ids 1,2 -n 1 >/dev/null 2>&1
status=$?
[ $status = 3 ] || { echo "run --unit cuda exits $status"; exit 1; }
