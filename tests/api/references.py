#!/usr/bin/env python3
"""references.py SOURCE: every file that documents and comments name exists.

Checked: paths in README.md, CONTRIBUTING.md and docs/*.md (docs/log apart) that begin with a folder of the project, and
names of C, CUDA and Python files in the same documents and in comments of src/, cli/, include/ and tests/. Wildcards
are expanded; NAME in a path is a placeholder. Documents over 2,500 words fail, API.md and CLI.md apart. Prints each miss; exits with 1 on any.
"""
import glob
import os
import re
import subprocess
import sys

FOLDERS = r"(?:src|cli|docs|tests|cmake|include)/[\w./*-]*"
NAMES = r"(?<![\w/.*<{-])[a-z]\w*\.(?:c|h|cu|cuh|py|sh)\b(?!\()"
ELSEWHERE = {"convert.py", "llama2.c", "llm.c", "run.c", "cuda.h", "unit_list.h"}  # of other programs, or generated
LONG = {"API.md", "CLI.md", "CHANGELOG.md"}


def files_of(source):
    listed = subprocess.run(["git", "-C", source, "ls-files"], capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return listed.stdout.split("\n")
    return [os.path.relpath(os.path.join(d, f), source) for d, _, fs in os.walk(source) for f in fs]


def comments(text):
    return "\n".join(re.findall(r"/\*.*?\*/|//[^\n]*", text, re.S))


def main():
    source = sys.argv[1]
    names = files_of(source)
    base = {os.path.basename(n) for n in names}
    bad = []
    for name in names:
        document = name in ("README.md", "CONTRIBUTING.md") or re.fullmatch(r"docs/[^/]+\.md", name)
        code = re.match(r"(src|cli|include|tests)/.*\.(c|h|cu|cuh)$", name) and "/golden/" not in name
        path = os.path.join(source, name)
        if not (document or code) or not os.path.exists(path):
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if document and os.path.basename(name) not in LONG and len(text.split()) > 2500:
            bad.append(f"{name}: {len(text.split())} words, at most 2,500: move details to docs/log/")
        text = text if document else comments(text)
        for path in set(re.findall(r"(?<![\w/.-])" + FOLDERS, text)):
            path = path.rstrip(".-/")
            if "NAME" in path:
                continue
            if not glob.glob(os.path.join(source, path)) and not glob.glob(os.path.join(source, "src", path)):
                bad.append(f"{name}: {path} does not exist")
        for file in set(re.findall(NAMES, text)):
            if file not in base and file not in ELSEWHERE:
                bad.append(f"{name}: no file is named {file}")
    print("\n".join(sorted(bad)))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
