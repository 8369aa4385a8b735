#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compare our tokenizers with the `tokenizers` library, id by id and byte by byte of the decoded text.

  tok_diff.py --program build/tests/tok_diff --folder build/tok [--count N] [--seed S] [--kinds a,b]

The strings are made from a seed: every Unicode category, emoji sequences, digits, runs of spaces, control characters,
marks in any order, words and code, with added tokens between. Exit 77 with a reason when the library is missing."""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

try:
    import tokenizers
except ImportError:
    print("SKIP text_tok_diff: the Python package tokenizers is not installed")
    sys.exit(77)
import unicodedata

WORDS = ("the of and to in is was he for it with as his on be at by had not are but from or have an they which one you "
         "were her all she there would their we him been has when who will more no if out so said what up its about into "
         "Hello World Straße naïve façade İstanbul Łódź coöperate don't I'll WE'VE y'all it'S he'D they'Re 'tis "
         "return static const void main printf import lambda __init__ foo_bar camelCase SNAKE_CASE x86_64 utf-8 "
         "東京 日本 首都 我们 在北京 안녕하세요 세계 Привет мир שלום नमस्ते दुनिया สวัสดี مرحبا ١٢٣ ⅷ ½ ² ﬁ Ⅷ").split(" ")
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🇩🇪", "❤️", "👍🏽", "🏳️‍🌈", "1️⃣", "🫠", "⌚", "☃️", "👨🏿‍🚀", "🧑‍🤝‍🧑", "\u200d", "\ufe0f", "\u20e3"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\n ", "\r", "\x0b", "\x0c", "\x85", "\xa0", "\u1680", "\u2003",
          "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\x1c", "\x1f", " " * 7, " " * 40, "\t\t\t"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D", "'ſ", "'", "''s", "’s"]
CODE = ["{", "}", "();", "->", "==", "//", "/*", "\\n", "\\u00e9", "<|", "|>", "<", ">", "&amp;", "#!", "@@", "...", "!!!", "``",
        "__", "--", "0x1F", "1e-9", "3.14", "1,234,567.89", "%s", "${x}", "[0]", "a=b", "<0x41>", "<0xE4>", "▁", "▁▁", "Ġ"]


def tables():
    groups = {}
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000:
            continue
        groups.setdefault(unicodedata.category(chr(c)), []).append(c)
    marks = [c for g in ("Mn", "Mc", "Me") for c in groups[g]]
    stable = [c for c in range(0x300, 0x30000) if unicodedata.decomposition(chr(c)) and
              not unicodedata.decomposition(chr(c)).startswith("<")]
    return list(groups.values()), marks, stable


def maker(seed, specials):
    groups, marks, decomposed = tables()
    r = random.Random(seed)
    pick, number = r.choice, r.randrange

    def category():
        g = pick(groups)
        return "".join(chr(pick(g)) for _ in range(number(1, 6)))

    def anything():
        return chr(pick((number(0x80), number(0x250), number(0x3000), number(0xD800), number(0xE000, 0x110000))))

    def composed():
        base = pick(("a", "e", "A", "s", "ा", "가", "ᄀ", "ק", "\u0340", chr(pick(decomposed)), anything()))
        return base + "".join(chr(pick(marks)) if number(4) else pick(("\u0301", "\u0323", "\u0308", "\u0327", "\u1161", "\u11a8", "\u3099"))
                              for _ in range(number(1, 5)))

    def jamo():
        return "".join(chr(number(0x1100, 0x1200)) if number(3) else chr(number(0xAC00, 0xD7A4)) for _ in range(number(1, 5)))

    def hexes():
        return "".join(pick("0123456789") for _ in range(number(1, 12)))

    def random_word():
        return "".join(pick("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ'") for _ in range(number(1, 14)))

    def control():
        return chr(pick((number(0x20), number(0x7F, 0xA0), 0x7F, 0xAD, 0x200E, 0xFFFD, 0xFFFF, 0x10FFFF)))

    parts = [lambda: " " + pick(WORDS)] * 6 + [lambda: pick(WORDS)] * 3 + [lambda: pick(EMOJI)] * 2 + \
            [lambda: pick(SPACES)] * 4 + [lambda: pick(CONTRACTIONS)] * 2 + [lambda: pick(CODE)] * 3 + \
            [category] * 5 + [anything] * 3 + [composed] * 3 + [jamo, hexes, hexes, random_word, random_word, control] + \
            [lambda: pick(specials)]

    def long_piece():
        letters = pick(("abcdefghijklmnopqrstuvwxyz", "ab", "the ", "a", " \t", "0123456789", "e\u0301", "日本語"))
        return "".join(pick(letters) for _ in range(number(3000, 12000)))

    def one():
        if not number(1000):
            return long_piece()
        kind = number(40)
        if kind == 0:
            return pick((" ", "a", "\n", "1", "é", "あ", "'", "e\u0301", "\u0301", "😀")) * number(1, 400)
        if kind == 1:
            return "".join(pick(parts)() for _ in range(number(30, 120)))
        return "".join(pick(parts)() for _ in range(number(0, 14)))
    return one


GGUF_PRE = {"gpt-2": "gpt2", "smollm": "smollm", "refact": "smollm", "starcoder": "smollm", "llama-bpe": "llama3",
            "qwen2": "qwen2", "qwen35": "qwen35"}


def library_of_gguf(path, folder):
    """The library's tokenizer with the vocabulary and merges of a GGUF file and the pre-tokenizer of a small kind."""
    import gguf
    fields = gguf.GGUFReader(path).fields

    def get(name):
        field = fields["tokenizer.ggml." + name]
        if field.types[-1] != gguf.GGUFValueType.STRING or len(field.types) == 1:
            return field.contents()
        return [bytes(field.parts[i]).decode() for i in field.data]
    kind = GGUF_PRE.get(get("pre"), "spm_llama2" if get("model") == "llama" else None)
    with open(os.path.join(folder, kind, "tokenizer.json"), encoding="utf-8") as f:
        d = json.load(f)
    tokens, types = get("tokens"), get("token_type")
    d["model"]["vocab"] = {t: i for i, t in enumerate(tokens)}
    if get("model") == "llama":
        d["model"]["merges"] = merges_of_scores(tokens, get("scores"))
    else:
        d["model"]["merges"] = [[m[:m.index(" ", 1)], m[m.index(" ", 1) + 1:]] for m in get("merges")]
        d["normalizer"] = None                                     # a GGUF names none
    d["added_tokens"] = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": k == 3} for i, (t, k) in enumerate(zip(tokens, types)) if k in (2, 3, 4)]
    d["post_processor"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(d))


def merges_of_scores(tokens, scores):
    """Every way to make a token of two, by its score, as the converters of SentencePiece files do it."""
    score = {t: s for t, s in zip(tokens, scores)}
    found = []
    for t in tokens:
        local = [(t[:i], t[i:]) for i in range(1, len(t)) if t[:i] in score and t[i:] in score]
        found += [(-score[t], n, a, b) for n, (a, b) in enumerate(local)]
    return [[a, b] for _, _, a, b in sorted(found, key=lambda x: x[0])]


def compare(kind, library, path, program, strings, limit=5, plain_specials=False):
    library.encode_special_tokens = plain_specials
    start = time.time()
    wanted = [e.ids for e in library.encode_batch(strings, add_special_tokens=False)]
    # Any ids at all, too. Runs of byte tokens that are no UTF-8 are counted differently there; they are left out.
    r, size = random.Random(len(strings)), library.get_vocab_size()
    plain = [i for i in range(size) if not (library.id_to_token(i) or "").startswith("<0x")]
    wanted += [[r.choice(plain) for _ in range(r.randrange(12))] for _ in range(len(strings) // 4)]
    strings = strings + wanted[len(strings):]
    texts = [library.decode(ids, skip_special_tokens=False) for ids in wanted]
    theirs = time.time() - start
    with tempfile.TemporaryFile("w+", encoding="utf-8") as f:
        for s in strings:
            f.write(json.dumps(s) + "\n")
        f.flush()
        f.seek(0)
        start = time.time()
        out = subprocess.run([program, path] + (["-s"] if plain_specials else []), stdin=f, stdout=subprocess.PIPE, check=False)
        ours = time.time() - start
    lines = out.stdout.decode().split("\n")[:-1]
    bad = 0
    if out.returncode or len(lines) != len(strings):
        print(f"{kind}: the program ended with {out.returncode} after {len(lines)} of {len(strings)} strings")
        return 1
    for s, ids, text, line in zip(strings, wanted, texts, lines):
        got, _, decoded = line.partition("\t")
        same = got == " ".join(map(str, ids))
        # Typed byte tokens may spell what is no UTF-8: there U+FFFD is counted differently.
        if same and (json.loads(decoded) == text or "<0x" in str(s)):
            continue
        bad += 1
        if bad <= limit:
            print(f"{kind}: {ascii(s)[:300]}\n  wanted {ids}\n  got    {got}\n  wanted {ascii(text)}\n  got    {decoded}")
    print(f"{kind:12s} {len(strings)} strings, {sum(map(len, wanted))} tokens, {bad} differ; "
          f"ours {ours:.1f} s with reading and decoding, theirs {theirs:.1f} s")
    return bad


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--program", required=True)
    a.add_argument("--folder", required=True, help="holds KIND/tokenizer.json")
    a.add_argument("--count", type=int, default=int(os.environ.get("SEGUE_TOK_DIFF_COUNT", "20000")))
    a.add_argument("--seed", type=int, default=4)
    a.add_argument("--kinds")
    a.add_argument("--gguf", nargs="*", help="compare on the vocabularies of these files instead")
    a = a.parse_args()
    kinds = a.kinds.split(",") if a.kinds else sorted(
        k for k in os.listdir(a.folder) if os.path.exists(os.path.join(a.folder, k, "tokenizer.json")))
    if not kinds:
        print(f"SKIP text_tok_diff: no tokenizers in {a.folder}")
        return 77
    bad = 0
    one = maker(a.seed, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<s>", "</s>", "<unk>", "<|im_end",
                            "<l>", "  <l> ", " <r>  ", "\n<lr> ", "<lr><r> <l>", "the", " the ", "lily", "  lily", "\u1100\u1161", "a b", "\n\n \n"])
    strings = [one() for _ in range(a.count)]
    for path in a.gguf or []:
        bad += compare(os.path.basename(path), library_of_gguf(path, a.folder), path, a.program, strings)
    for kind in kinds if not a.gguf else []:
        path = os.path.join(a.folder, kind, "tokenizer.json")
        some = strings if not kind.startswith("x_") else strings[:len(strings) // 5]
        library = tokenizers.Tokenizer.from_file(path)
        bad += compare(kind, library, path, a.program, some)
        if kind in ("qwen2", "spm_llama2", "x_flags", "x_flags_spm"):
            bad += compare(kind + " -s", library, path, a.program, some[:len(some) // 4], plain_specials=True)
    return 1 if bad else 0


sys.exit(main())
