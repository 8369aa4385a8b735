#!/usr/bin/env python3
"""sizes.py SOURCE [--figures]: limits that keep the tree readable (CONTRIBUTING.md).

src/, cli/: a function has at most 60 lines from its name to its closing brace, a file at most 600, a folder at most 25
files. EXCEPT lists what may be larger, with the reason, and how large. --figures also prints counts for the whole tree: files
per folder, comment share. Prints each excess; exits with 1 on any. SPDX-License-Identifier: MIT
"""
import os
import re
import sys

FUNCTION_LINES, FILE_LINES, FOLDER_FILES = 60, 600, 25
EXCEPT = {
    # Kernel bodies: splitting them may change the machine code, so it needs a measurement on a GPU.
    "src/unit/cuda/kernels/k_mlp.cu:mlp": 71,
    "src/unit/cuda/kernels/k_linear.cu:linear": 69,
    "src/unit/cuda/kernels/k_heads.cu:heads": 68,
    "src/unit/cuda/kernels/packed/k_packed_rows.cu:packed_rows": 66,
    "src/unit/cuda/kernels/k_gemv.cu:gemv": 62,
    "src/unit/cuda/kernels/k_batch.cu:batch": 61,
    # Generated tables.
    "src/text/unicode/unicode_tables.h": 1161,
    "src/text/unicode/unicode_case.h": 783,
}
CODE = (".c", ".h", ".cu", ".cuh", ".cpp", ".m")
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(text, keep_strings=False):
    """The text with comments, and strings unless they are kept, replaced by spaces; lines keep their numbers."""
    return TOKEN.sub(lambda m: m.group() if keep_strings and m.group()[0] in "\"'" else re.sub(r"[^\n]", " ", m.group()), text)


def functions(text):
    """(name, first line, number of lines) of definitions at file scope: a line with a name and '(' whose body ends at '}' in
    the first column."""
    lines = blank(text).split("\n")
    start = name = None
    for number, line in enumerate(lines, 1):
        if re.match(r"[A-Za-z_]", line) and not line.rstrip().endswith(";"):
            called = re.findall(r"\b([A-Za-z_]\w*)\s*\((?!\s*\()", re.sub(r"__\w+__\s*\([^()]*\)|__launch_bounds__", "", line))
            if called and not line.startswith(("#", "typedef")):
                start, name = number, called[0]
        if line.startswith("}") and start:
            yield name, start, number - start + 1
            start = None


def main():
    source, figures = sys.argv[1], "--figures" in sys.argv
    bad, counts, comment_lines, all_lines, longest = [], {}, 0, 0, []
    for top in ("src", "cli"):
        for folder, _, names in os.walk(os.path.join(source, top)):
            inside = os.path.relpath(folder, source)
            counts[inside] = len(names)
            if len(names) > EXCEPT.get(inside, FOLDER_FILES):
                bad.append(f"{inside}: {len(names)} files, at most {FOLDER_FILES}")
            for name in sorted(n for n in names if n.endswith(CODE)):
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                    text = file.read()
                path, lines = f"{inside}/{name}", text.count("\n")
                if lines > EXCEPT.get(path, FILE_LINES):
                    bad.append(f"{path}: {lines} lines, at most {FILE_LINES}")
                for function, first, length in functions(text):
                    longest.append((length, path, function))
                    if length > EXCEPT.get(f"{path}:{function}", FUNCTION_LINES):
                        bad.append(f"{path}:{first}: {function} has {length} lines, at most {FUNCTION_LINES}")
                if top == "src" and not name.endswith(("_tables.h", "_case.h")):
                    bare = blank(text, keep_strings=True).split("\n")
                    full = text.split("\n")
                    all_lines += lines
                    comment_lines += sum(1 for a, b in zip(full, bare) if a.strip() != b.strip())
    if figures:
        print("files per folder:", ", ".join(f"{n} {f}" for n, f in sorted(((n, f) for f, n in counts.items()), reverse=True)[:12]))
        print(f"functions: {len(longest)}, longest:", ", ".join(f"{n} {f}" for n, _, f in sorted(longest, reverse=True)[:8]))
        print(f"lines of src/ with a comment: {100 * comment_lines / all_lines:.1f} % of {all_lines}")
    print("\n".join(bad) if bad else "sizes: nothing is over its limit")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
