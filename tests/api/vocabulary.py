#!/usr/bin/env python3
"""vocabulary.py SOURCE: retired words do not come back (docs/GLOSSARY.md has the terms to use instead).

Checked: the parts of identifiers and file names of src/, cli/, include/ and tests/, and the comments there and the
documents (docs/log apart) for phrases that are images or literal translations. Also: every struct tag of C files is defined
once in the tree, apart from opaque handles. Prints each hit with its replacement; exits with 1 on any.
"""
import collections
import functools
import os
import re
import sys

# Part of an identifier (between underscores, singular or plural) -> what to use.
PARTS = {
    "room": "buffer, scratch, workspace, capacity", "porch": "peer_probe", "journey": "slot_copy",
    "meeting": "rank_sync", "patience": "timed_call", "unite": "link_ranks", "losable": "may_disconnect",
    "carrier": "staging", "sought": "queried", "shelf": "weight_cache", "firm": "exact", "begun": "start_ns",
    "said": "reported", "says": "report", "told": "informed", "weigh": "pv, weight", "soften": "softmax",
    "tidy": "free_stale", "adopt": "restore", "bring": "load, to_layout", "lend": "share", "heading": "pass_args",
    "cutrip": "exec_pass", "cupass": "issue, launch", "curank": "cluster", "cudapass": "state_transfer",
    "cpupass": "state_transfer", "cpuslab": "kv_pool", "cpukv": "kv_layout", "sharedeal": "tp_split",
    "most": "max", "stretch": "layer_range",
}
# The same for src/, cli/ and include/ only.
SOURCE_PARTS = {
    "ask": "run_request, query", "carry": "to_layout_retry, staging", "give": "store_put", "way": "peer_link",
}
ALL_PARTS = {**PARTS, **SOURCE_PARTS}
# Whole identifiers -> what to use.
WHOLE = {
    "way_wake": "peer_prewarm", "point_due": "checkpoint_pending", "went_on": "after_run", "seal": "verified_stamp",
    "late_rows": "select_late", "sg_apple_world": "apple_api", "own_run_go": "run_start", "own_run_over": "run_wait",
    "cu_heading": "pass_args", "cu_later": "pending_copy", "k_own": "x_split", "k_held": "weight_prefetch",
    "k_word": "fixed_point_sum", "k_end": "epilogue", "rows_unseen": "tokens_truncated", "chunk_rows": "chunk_tokens",
    "sg_mark": "sg_undo_mark", "sg_place": "sg_placement", "sg_point": "sg_checkpoint",
}
# Names that others have given: system constants, other libraries, other programs' formats.
GIVEN = {"F_SEAL_SHRINK", "F_SEAL_SEAL"}
# Opaque handles that each unit, or each implementation of the ANE's interface, defines for itself.
OPAQUE = {"sg_unit", "sg_program", "sg_state", "sg_run", "sg_ane_device", "sg_ane_program", "sg_ane_surface"}
# Phrases in comments and documents.
PHRASES = [
    r"\bnobody\b", r"\bwhoever\b", r"\bporch\b", r"\bjourneys?\b", r"\bgoes on\b", r"\bgo on\b", r"\blies\b(?! (?:within|beyond|between|in)\b)",
    r"\bstands? (?:behind|beside|before|for itself|there|here)\b", r"\bcomes? (?:back|along|home)\b",
    r"\bis told\b", r"\bare told\b", r"\bas (?:it|they) (?:lie|lies|stands?|is told)\b", r"\bit is not what it was\b",
    r"\bat home\b", r"\blets? (?:it|them|the next one) go\b", r"\bways? between\b", r"\bstays? behind\b",
    r"\btakes? (?:it|them) along\b", r"\bthe whole (?:house|world)\b",
]
# One expression says whether a text has any; the single ones then say which.
ANY_PHRASE = re.compile("|".join(phrase.replace(" ", r"\s+") for phrase in PHRASES), re.I)
TERMS_MAX = 80                          # of docs/GLOSSARY.md
FOLDERS = ("src", "cli", "include", "tests")
CODE = (".c", ".h", ".cu", ".cuh")
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def split_code(text):
    """(code with comments and strings blanked, comments only); both keep the line numbers."""
    keep_lines = lambda s: "\n".join(" " * len(line) for line in s.split("\n"))
    comments, last, code = [], 0, []
    for match in TOKEN.finditer(text):
        code.append(text[last:match.start()])
        code.append(keep_lines(match.group()))
        comment = match.group().startswith("/")
        comments.append(keep_lines(text[last:match.start()]))
        comments.append(match.group() if comment else keep_lines(match.group()))
        last = match.end()
    return "".join(code) + text[last:], "".join(comments) + keep_lines(text[last:])


def line_of(text, at):
    return text.count("\n", 0, at) + 1


@functools.lru_cache(maxsize=None)
def retired_part(identifier, tests=True):
    parts = PARTS if tests else ALL_PARTS
    if identifier in GIVEN:
        return None
    for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", identifier):
        part = part.lower()
        for word in (part, part[:-1] if part.endswith("s") else part):
            if word in parts:
                return word
    return None


def check_code(name, text, hits, tags):
    code, comments = split_code(text)
    for identifier in sorted(set(re.findall(r"[A-Za-z_]\w*", code))):
        word = identifier if identifier in WHOLE else retired_part(identifier, name.startswith("tests/"))
        if word:
            at = re.search(rf"\b{identifier}\b", code).start()
            hits.append(f"{name}:{line_of(code, at)}: `{identifier}`: {word} -> {WHOLE.get(word) or ALL_PARTS[word]}")
    if not name.endswith((".cu", ".cuh")):
        for match in re.finditer(r"\bstruct (\w+)\s*\{", code):
            if match.group(1) not in tags[name]:
                tags[name].append(match.group(1))
    check_text(name, comments, hits)


def check_text(name, text, hits):
    flat = re.sub(r"\n[ \t]*(?:\*|//)?", lambda m: "\n" + " " * (len(m.group()) - 1), text)
    for phrase in PHRASES if ANY_PHRASE.search(flat) else ():
        for match in re.finditer(phrase.replace(" ", r"\s+"), flat, re.I):
            hits.append(f"{name}:{line_of(flat, match.start())}: '{' '.join(match.group().split())}': rephrase")


def source_files(source):
    for top in FOLDERS + ("docs",):
        for folder, _, names in os.walk(os.path.join(source, top)):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(folder, name), source)
                if path.endswith(CODE) or (path.endswith(".md") and not path.startswith("docs/log/")):
                    yield path
    for name in ("README.md", "CONTRIBUTING.md"):
        yield name


def main():
    source = sys.argv[1]
    hits, tags = [], collections.defaultdict(list)
    for name in source_files(source):
        with open(os.path.join(source, name), encoding="utf-8", errors="replace") as file:
            text = file.read()
        word = retired_part(os.path.splitext(os.path.basename(name))[0])
        if word:
            hits.append(f"{name}: file name: {word} -> {PARTS[word]}")
        if name.endswith(CODE):
            check_code(name, text, hits, tags)
        else:
            check_text(name, text, hits)
    defined = collections.defaultdict(list)
    for name, found in tags.items():
        for tag in found:
            defined[tag].append(name)
    hits += [f"struct {tag} is defined in {', '.join(names)}: give each its own tag"
             for tag, names in sorted(defined.items()) if len(names) > 1 and tag not in OPAQUE]
    with open(os.path.join(source, "docs", "GLOSSARY.md"), encoding="utf-8") as file:
        terms = [line for line in file if line.startswith("| ") and not line.startswith(("| term |", "|--"))]
    if len(terms) > TERMS_MAX:
        hits.append(f"docs/GLOSSARY.md: {len(terms)} terms, at most {TERMS_MAX}: merge or remove some")
    print("\n".join(hits) if hits else "vocabulary: no retired word")
    sys.exit(1 if hits else 0)


if __name__ == "__main__":
    main()
