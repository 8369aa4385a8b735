#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write src/text/unicode/unicode_tables.h: character classes and NFC data as the `tokenizers` library has them.

Every table is asked from the library itself over all code points (its regular expressions, its Digits and
Whitespace splitters, its NFC and NFD normalizers), so the result holds whatever Unicode versions its parts
were built with. Run:  python3 tests/text/make_unicode_tables.py > src/text/unicode/unicode_tables.h
Needs only the `tokenizers` package; made with the version that the head of the table names."""
import sys

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
LETTER, MARK, NUMBER, SPACE, WORD, DIGIT, UNSURE = 1, 2, 4, 8, 16, 32, 64
HANGUL = range(0xAC00, 0xD7A4)


def matched(splitter, sep):
    """Code points that `splitter` removes; each stands between two separators that it keeps."""
    found = set()
    for at in range(0, len(ALL), 4096):
        part = [c for c in ALL[at:at + 4096] if chr(c) != sep]
        text = sep + sep.join(map(chr, part)) + sep
        kept = set()
        for _, (a, b) in splitter.pre_tokenize_str(text):
            kept.update(text[a:b])
        found.update(c for c in part if chr(c) not in kept)
    return found


def by_pattern(pattern, sep):
    return matched(pre_tokenizers.Split(Regex(pattern), behavior="removed"), sep)


def digits():
    found = set()
    splitter = pre_tokenizers.Digits(individual_digits=True)
    for c in ALL:
        if len(splitter.pre_tokenize_str("a" + chr(c) + "a")) == 3:
            found.add(c)
    return found


def words():
    splitter = pre_tokenizers.Whitespace()
    return {c for c in ALL if splitter.pre_tokenize_str("a" + chr(c)) == [("a" + chr(c), (0, 2))]}


def combining_classes(nfd):
    """ccc of every code point, from the order in which the library puts two marks."""
    x = chr(0x334)                                     # a mark of class 1
    top = chr(0x345)                                   # the mark of class 240
    assert nfd(top + x) == x + top
    marks = [c for c in ALL if c not in (0x334, 0x345) and nfd(chr(c)) == chr(c) and
             (nfd("a" + top + chr(c)) == "a" + chr(c) + top or nfd("a" + chr(c) + x) == "a" + x + chr(c))]
    marks += [0x334, 0x345]
    import unicodedata                                 # names the classes of marks that are old enough
    known = {}
    for c in marks:
        n = unicodedata.combining(chr(c))
        if n:
            known.setdefault(n, c)
    out = {}
    for c in marks:
        before = [n for n, r in known.items() if nfd("a" + chr(c) + chr(r)) != "a" + chr(c) + chr(r)]   # n < ccc(c)
        after = [n for n, r in known.items() if nfd("a" + chr(r) + chr(c)) != "a" + chr(r) + chr(c)]    # n > ccc(c)
        same = [n for n in known if n not in before and n not in after]
        assert len(same) == 1, (hex(c), same)
        out[c] = same[0]
    return out


def wrap(items, indent="    ", width=108):
    line = indent
    for item in items:
        if len(line) + len(item) + 2 > width:
            yield line.rstrip()
            line = indent
        line += item + ", "
    yield line.rstrip()


def main():
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    ccc = combining_classes(nfd)
    letters, marks, numbers, spaces = (by_pattern(p, s) for p, s in
                                       ((r"\p{L}", "."), (r"\p{M}", "."), (r"\p{N}", "."), (r"\s", ".")))
    word, digit = words(), digits()
    decomposed = {c: nfd(chr(c)) for c in ALL if c not in HANGUL and nfd(chr(c)) != chr(c)}
    pairs = {}
    for c, d in decomposed.items():
        if nfc(d) != chr(c):
            continue
        first = nfc(d[:-1])
        assert len(first) == 1 and nfc(first + d[-1]) == chr(c), hex(c)
        pairs[(ord(first), ord(d[-1]))] = c
    second = {b for _, b in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    unsure = set(ccc) | second | {c for c in decomposed if nfc(chr(c)) != chr(c)}
    # A composite that starts with a flagged character (such as U+0344) is flagged itself.
    unsure |= {c for c, d in decomposed.items() if ord(d[0]) in unsure}

    groups = ((LETTER, letters), (MARK, marks), (NUMBER, numbers), (SPACE, spaces), (WORD, word), (DIGIT, digit),
              (UNSURE, unsure))

    def bits_of(c):
        return sum(bit for bit, group in groups if c in group)

    classes = []
    for c in range(0x110000):
        bits = bits_of(c)
        if not classes or classes[-1][1] != bits:
            classes.append((c, bits))
    cccs = []
    for c in range(0x110000):
        n = ccc.get(c, 0)
        if not cccs or cccs[-1][1] != n:
            cccs.append((c, n))
    flat, index = [], []
    for c, d in sorted(decomposed.items()):
        index.append((c, len(flat), len(d)))
        flat += [ord(x) for x in d]

    out = sys.stdout.write
    out(f"""/* unicode_tables.h: generated by tests/text/make_unicode_tables.py from tokenizers {tokenizers.__version__}; never edited by hand.
 * Classes of {len(letters)} letters, {len(marks)} marks, {len(numbers)} numbers, {len(spaces)} spaces, {len(word)} word characters and {len(digit)} digits;
 * canonical decompositions, combining classes and compositions.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_UNICODE_TABLES_H
#define SG_TEXT_UNICODE_TABLES_H

#include <stdint.h>

/* Ranges: first code point << 8 | SG_CHAR_ bits; each runs up to the next one. */
static const uint32_t unicode_class[] = {{
""")
    out("\n".join(wrap(f"0x{c << 8 | b:x}" for c, b in classes)))
    out("\n};\n\n/* The same for the first 256 code points, one each. */\nstatic const uint8_t unicode_first[256] = {\n")
    out("\n".join(wrap(str(bits_of(c)) for c in range(256))))
    out("\n};\n\n/* Ranges: first code point << 8 | canonical combining class. */\nstatic const uint32_t unicode_ccc[] = {\n")
    out("\n".join(wrap(f"0x{c << 8 | n:x}" for c, n in cccs)))
    out("\n};\n\n/* Full canonical decompositions, one after the other. */\nstatic const uint32_t unicode_parts[] = {\n")
    out("\n".join(wrap(f"0x{c:x}" for c in flat)))
    out("\n};\n\n/* code point, start in unicode_parts << 3 | length; sorted. */\nstatic const uint32_t unicode_decomposed[][2] = {\n")
    out("\n".join(wrap(f"{{0x{c:x}, {at << 3 | n}}}" for c, at, n in index)))
    out("\n};\n\n/* first, second, composite; sorted. */\nstatic const uint32_t unicode_composed[][3] = {\n")
    out("\n".join(wrap(f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}" for (a, b), c in sorted(pairs.items()))))
    out("\n};\n\n#endif\n")


main()
