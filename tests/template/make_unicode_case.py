#!/usr/bin/env python3
"""Write src/text/unicode/unicode_case.h: what Python's str knows about characters (case, classes), as runs of code points.

Usage: make_unicode_case.py > src/text/unicode/unicode_case.h. The Unicode version is that of the Python that runs it; template
renderings are compared with Python, so its tables are the ones that count.
SPDX-License-Identifier: MIT
"""
import unicodedata

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def runs(points):
    """Points as (first, last, step): step 1, or 2 for the alternating letters of Latin and Cyrillic."""
    points, out, i = sorted(points), [], 0
    while i < len(points):
        best = (i, 1)
        for step in (1, 2):
            j = i
            while j + 1 < len(points) and points[j + 1] - points[j] == step:
                j += 1
            if j > best[0]:
                best = (j, step)
        out.append((points[i], points[best[0]], best[1]))
        i = best[0] + 1
    return out


def emit_runs(name, points):
    rows = ["{0x%x, 0x%x, %d}" % r for r in runs(points)]
    print("static const struct case_run %s[] = {" % name)
    emit_rows(rows)


def emit_rows(rows):
    line = "   "
    for row in rows:
        if len(line) + len(row) + 2 > 108:
            print(line)
            line = "   "
        line += " " + row + ","
    print(line)
    print("};\n")


def emit_map(name, fn):
    """Simple mappings: (first, last, step, delta). Mappings to several characters go to the table of specials."""
    deltas = {}
    for c in ALL:
        to = fn(chr(c))
        if len(to) == 1 and ord(to) != c:
            deltas.setdefault(ord(to) - c, []).append(c)
    rows = sorted((r + (d,) for d, points in deltas.items() for r in runs(points)))
    # runs of step 2 may interleave with others: the search needs runs in order that do not overlap
    flat = []
    for first, last, step, d in rows:
        flat.append((first, last, step, d))
    changed = True
    while changed:
        changed = False
        flat.sort()
        for a, b in zip(flat, flat[1:]):
            if b[0] <= a[1]:
                flat.remove(a)
                cut = [p for p in range(a[0], a[1] + 1, a[2])]
                low = [p for p in cut if p < b[0]]
                high = [p for p in cut if p > b[0]]
                for part in (low, high):
                    if part:
                        flat.append((part[0], part[-1], a[2], a[3]))
                changed = True
                break
    print("static const struct case_map %s[] = {" % name)
    emit_rows(["{0x%x, 0x%x, %d, %d}" % r for r in flat])


def main():
    print("/* unicode_case.h: case mappings and classes of characters as Python's str has them, Unicode %s. Written by"
          % unicodedata.unidata_version)
    print(" * tests/template/make_unicode_case.py; edit that, not this. Only jinja_char.c includes it.")
    print(" * SPDX-License-Identifier: MIT */")
    print("#ifndef SG_TEXT_UNICODE_CASE_H\n#define SG_TEXT_UNICODE_CASE_H\n\n#include <stdint.h>\n")
    print("struct case_run {\n    uint32_t first, last, step;\n};\nstruct case_map {\n    uint32_t first, last, step;\n"
          "    int32_t delta;\n};\nstruct case_special {\n    uint32_t c;\n    uint32_t upper[3], lower[3], title[3];"
          " /* 0 = no more; upper[0] 0: simple */\n};\n")
    emit_map("to_upper", str.upper)
    emit_map("to_lower", str.lower)
    emit_map("to_title", str.title)
    rows = []
    for c in ALL:
        forms = [f(chr(c)) for f in (str.upper, str.lower, str.title)]
        if any(len(f) > 1 for f in forms):
            cells = []
            for f in forms:
                cells.append("{%s}" % ", ".join("0x%x" % ord(x) for x in f) if len(f) > 1 else "{0}")
            rows.append("{0x%x, %s}" % (c, ", ".join(cells)))
    print("static const struct case_special specials[] = {")
    emit_rows(rows)
    emit_runs("is_lower", [c for c in ALL if chr(c).islower()])
    emit_runs("is_upper", [c for c in ALL if chr(c).isupper()])
    emit_runs("is_title", [c for c in ALL if unicodedata.category(chr(c)) == "Lt"])
    emit_runs("is_alpha", [c for c in ALL if chr(c).isalpha()])
    emit_runs("is_decimal", [c for c in ALL if chr(c).isdecimal()])
    emit_runs("is_digit", [c for c in ALL if chr(c).isdigit() and not chr(c).isdecimal()])
    emit_runs("is_numeric", [c for c in ALL if chr(c).isnumeric() and not chr(c).isdigit()])
    emit_runs("not_printable", [c for c in ALL if not chr(c).isprintable()] + list(range(0xD800, 0xE000)))
    ignorable = [c for c in ALL if ("A" + chr(c) + "\u03a3").lower()[-1] == "\u03c2"
                 and ("1" + chr(c) + "\u03a3").lower()[-1] == "\u03c3"]
    emit_runs("is_ignorable", ignorable)
    print("#endif")


main()
