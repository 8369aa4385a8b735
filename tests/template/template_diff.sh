#!/bin/sh
# Compare PROGRAM with Python's jinja2: template_diff.sh PYTHON PROGRAM. Exit 77 with a reason where Python is missing.
# SPDX-License-Identifier: MIT
set -eu
python=$1 program=$2
[ -n "$python" ] && [ -x "$python" ] || { echo "SKIP template_diff: no Python here"; exit 77; }
exec "$python" -B "$(dirname "$0")/template_diff.py" "$program"
