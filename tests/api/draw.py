#!/usr/bin/env python3
"""draw.py SEED [SOURCE]: draw text of the project at random, to be read by somebody who has not seen the code.

Prints 60 comments of src/ and cli/, 20 messages (formats of errors and warnings) and 20 paragraphs of README.md,
CONTRIBUTING.md and docs/ (docs/log apart), each with its file and line. The same seed and tree give the same draw. The
reader counts the texts that need a rewrite; at most 5 of the 100 may. SPDX-License-Identifier: MIT
"""
import os
import random
import re
import sys

COMMENTS, MESSAGES, PARAGRAPHS = 60, 20, 20
CODE = (".c", ".h", ".cu", ".cuh", ".cpp", ".m")
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
CALL = re.compile(r'\b\w*(?:fail|error|warn|refuse|reject|lose|complain|usage|usage_error)\w*\s*\(')
STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def code_files(source):
    for top in ("src", "cli"):
        for folder, folders, names in os.walk(os.path.join(source, top)):
            folders.sort()
            for name in sorted(names):
                if name.endswith(CODE):
                    yield os.path.relpath(os.path.join(folder, name), source)


def comments_of(name, text):
    """(file, line, comment with the line of code that it explains). Left out: licenses, headings and "see X.h"."""
    for match in TOKEN.finditer(text):
        comment = match.group()
        if not comment.startswith("/"):
            continue
        words = re.sub(r"SPDX-License-Identifier: MIT|[/*\s]+", " ", comment).split()
        if len(words) < 3 or words[0].startswith("---") or re.search(r"\.[ch]\w*: see [\w.]+$", " ".join(words).rstrip(".")):
            continue
        start = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        rest = text[match.end():end].strip()
        following = text[end + 1:text.find("\n", end + 1)].strip() if not rest else ""
        before = text[start:match.start()].strip()
        yield name, line_of(text, match.start()), " | ".join(t for t in (before, comment, rest, following) if t)


def messages_of(name, text):
    """(file, line, format) of the calls that report errors and warnings."""
    blank = TOKEN.sub(lambda m: m.group() if m.group().startswith('"') else re.sub(r"[^\n]", " ", m.group()), text)
    for match in CALL.finditer(blank):
        depth, at, quoted = 1, match.end(), False
        while at < len(blank) and depth:
            character = blank[at]
            if quoted:
                at += character == "\\"
                quoted = character != '"'
            else:
                quoted = character == '"'
                depth += (character == "(") - (character == ")")
            at += 1
        if blank[at:].lstrip().startswith("{"):
            continue  # a definition
        joined = re.sub(r'"\s*(?:PRI\w+\s*)?"', "", blank[match.end():at])  # adjacent literals are one string
        text_of = " ... ".join(STRING.findall(joined))
        if len(text_of.split()) >= 3:
            yield name, line_of(blank, match.start()), text_of


def paragraphs_of(name, text):
    """(file, line, paragraph): blocks between blank lines; a row of a table and an item of a list count by themselves."""
    text = re.sub(r"^```.*?^```", lambda m: re.sub(r"[^\n]", "", m.group()), text, flags=re.S | re.M)
    for block in re.finditer(r"[^\n]+(?:\n[^\n]+)*", text):
        for part in re.finditer(r"(?:^|(?<=\n))(?:(?![|\-*#]|\d+\. )[^\n]*|[^\n]*)(?:\n(?![|*#]|- |\d+\. )[^\n]+)*", block.group()):
            if len(part.group().split()) >= 6 and not part.group().startswith("#") and "---" not in part.group() \
                    and "\n|--" not in text[block.start() + part.end():][:4]:
                yield name, line_of(text, block.start() + part.start()), part.group()


def read(source, name):
    with open(os.path.join(source, name), encoding="utf-8", errors="replace") as file:
        return file.read()


def draw(kind, texts, count, chosen):
    print(f"== {count} of {len(texts)} {kind}")
    for number, (name, line, text) in enumerate(chosen.sample(texts, count), 1):
        print(f"{kind[0]}{number} {name}:{line}\n    " + text.replace("\n", "\n    "))


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.split("\n")[0])
    chosen, source = random.Random(int(sys.argv[1])), sys.argv[2] if len(sys.argv) > 2 else "."
    code = [(name, read(source, name)) for name in code_files(source)]
    documents = ["README.md", "CONTRIBUTING.md"]
    documents += sorted("docs/" + n for n in os.listdir(os.path.join(source, "docs")) if n.endswith(".md"))
    draw("comments", [c for name, text in code for c in comments_of(name, text)], COMMENTS, chosen)
    draw("messages", [m for name, text in code for m in messages_of(name, text)], MESSAGES, chosen)
    draw("paragraphs", [p for name in documents for p in paragraphs_of(name, read(source, name))], PARAGRAPHS, chosen)


if __name__ == "__main__":
    main()
