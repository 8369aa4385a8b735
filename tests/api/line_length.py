#!/usr/bin/env python3
"""line_length.py SOURCE: lines of C have at most 130 columns. Left out: tests/ane, which contains MIL text, and the kernels of cuda,
whose objects would all change with one header.
SPDX-License-Identifier: MIT"""
import os, sys

COLUMNS = 130
source, found = sys.argv[1], 0
for top in ("src", "cli", "include", "tests"):
    for folder, _, names in os.walk(os.path.join(source, top)):
        inside = os.path.relpath(folder, source)
        if inside.startswith(("tests/ane", "src/unit/cuda/kernels")): continue
        for name in sorted(n for n in names if n.endswith((".c", ".h"))):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    if len(line.rstrip("\n")) <= COLUMNS: continue
                    print(f"{inside}/{name}:{number}: {len(line) - 1} columns, at most {COLUMNS}")
                    found = 1
print("line_length: a line is too long" if found else f"line_length: no line has more than {COLUMNS} columns")
sys.exit(found)
