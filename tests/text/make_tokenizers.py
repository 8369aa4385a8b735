#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Make small tokenizers with the `tokenizers` library.

  make_tokenizers.py OUT            KIND/tokenizer.json for every kind, for tok_diff.py
  make_tokenizers.py OUT --golden   the seven kinds of the model families only, with golden_tok.json: what the library
                                    gives for some probes; tests/golden/tok was made so

Kinds whose name begins with x_ are no family's; each turns on parts of the pipeline that families mix: added tokens
with every flag, Metaspace, Split behaviours, patterns for PCRE2. Exit 77 with a reason without the library."""
import json
import os
import sys

try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    print("SKIP text_tokenizers: the Python package tokenizers is not installed")
    sys.exit(77)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it?",
    "def main(argc, argv):\n    for i in range(10):\n\t\tprint(i, '\\n')\n\n\nreturn 0;\r\n",
    "L'été à Paris coûte 1 234,56 € — naïve façade, Straße, Łódź, İstanbul.",
    "東京は日本の首都です。我们在北京。안녕하세요 세계! Привет, мир. שלום עולם. नमस्ते दुनिया",
    "once upon a time there was a little girl named lily. she loved to play outside in the sun. " * 4,
    "emoji: 😀 👩‍👩‍👧‍👦 🇩🇪 ❤️ e\u0301 = é; tabs\t\t and   spaces    end  ",
]
PROBES = CORPUS + [
    "", " ", "  ", "   a", "a   ", "\n", "\n\n \n", " \t \n x", "I'M HERE, YOU'LL SEE; WE'd 'tis", "1", "12", "1234567",
    "3.14e-10", "x\u00a0y\u2003z\u3000w\u200b.", "e\u0301 vs \u00e9", "\u0928\u093f", "a\u0000b", "\u1E9E\u017F",
    "<|im_start|>user\nhi<|im_end|>\n", "hello<|im_end|>world <|endoftext|>", "\ud7ff\ue000\ufffd", "٣٤٥ ⅷ ½ ²", "ﬁ ﬂ Ⅷ",
    "foo_bar-baz/qux\\quux", "!!!???...", "\r\n\r\n", "  \r\n  ", "it'\u017f x'S y'Re", "\u0130'd \u0131'LL", "a \n b\n\n  c \t\n",
]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARK = "\u2581"


def byte_level(use_regex, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)


def cut(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(pattern, behavior=behavior, invert=invert)


def sequence(*steps):
    return pre_tokenizers.Sequence(list(steps))


def byte_kind(pre, normalizer=None, added=None, vocab=500, **model):
    t = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=vocab, show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    t.add_tokens(added or [AddedToken(s, normalized=False) for s in ("<think>", "</think>")])
    return t


def spm_kind(normalizer, strip, pre=None, fallback=True, fuse=True, added=None):
    t = Tokenizer(models.BPE(byte_fallback=fallback, fuse_unk=fuse, unk_token="<unk>"))
    if normalizer is not None:
        t.normalizer = normalizer
    if pre is not None:
        t.pre_tokenizer = pre
    specials = ["<unk>", "<s>", "</s>"] + ([f"<0x{i:02X}>" for i in range(256)] if fallback else [])
    t.train_from_iterator(CORPUS[:2] + CORPUS[4:5], trainers.BpeTrainer(vocab_size=500, show_progress=False, special_tokens=specials))
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    t.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    t.add_tokens(added or [])
    return t


def families():
    prepend = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    return {
        "gpt2": lambda: byte_kind(byte_level(True)),
        "smollm": lambda: byte_kind(sequence(pre_tokenizers.Digits(individual_digits=True), byte_level(True))),
        "llama3": lambda: byte_kind(sequence(cut(Regex(LLAMA3)), byte_level(False)), ignore_merges=True),
        "qwen2": lambda: byte_kind(sequence(cut(Regex(QWEN2)), byte_level(False)), normalizers.NFC()),
        "qwen35": lambda: byte_kind(sequence(cut(Regex(QWEN35)), byte_level(False)), normalizers.NFC()),
        "spm_llama2": lambda: spm_kind(prepend, True),
        "spm_gemma": lambda: spm_kind(normalizers.Replace(" ", MARK), False),
    }


def mixtures():
    flags = [AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False),
             AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("the", single_word=True, normalized=False),
             AddedToken("lily", single_word=True, lstrip=True), AddedToken("\u1100\u1161", normalized=True),
             AddedToken("<|im", normalized=False), AddedToken("a b", normalized=True), AddedToken("\n\n", normalized=False, rstrip=True)]
    gemma = normalizers.Replace(" ", MARK)
    meta = pre_tokenizers.Metaspace
    return {
        "x_flags": lambda: byte_kind(byte_level(True), normalizers.NFC(), flags),
        "x_flags_spm": lambda: spm_kind(normalizers.Sequence([normalizers.Prepend(MARK), gemma]), True, added=flags),
        "x_prefix": lambda: byte_kind(byte_level(True, True)),
        "x_prefix_pieces": lambda: byte_kind(sequence(cut(Regex(QWEN2)), byte_level(False, True))),
        "x_digits": lambda: byte_kind(sequence(pre_tokenizers.Digits(individual_digits=False), byte_level(False))),
        "x_meta_always": lambda: spm_kind(None, True, meta(prepend_scheme="always")),
        "x_meta_first": lambda: spm_kind(None, True, meta(prepend_scheme="first"), added=flags),
        "x_meta_whole": lambda: spm_kind(None, False, meta(prepend_scheme="never", split=False)),
        "x_previous": lambda: spm_kind(gemma, False, cut(MARK, "merged_with_previous")),
        "x_next": lambda: spm_kind(gemma, False, cut(MARK, "merged_with_next")),
        "x_contiguous": lambda: spm_kind(gemma, False, cut(MARK, "contiguous")),
        "x_removed": lambda: spm_kind(gemma, False, cut(MARK, "removed")),
        "x_kept": lambda: byte_kind(sequence(cut(Regex(QWEN2), "removed", True), byte_level(False))),
        "x_unknown": lambda: spm_kind(gemma, False, fallback=False),
        "x_unknown_each": lambda: spm_kind(gemma, False, fallback=False, fuse=False),
        "x_strip": lambda: byte_kind(byte_level(True), normalizers.Sequence([normalizers.Strip(), normalizers.NFC()])),
        "x_whole": lambda: byte_kind(sequence(cut(Regex(LLAMA3)), byte_level(False)), ignore_merges=True, vocab=2000),
        "x_regex": lambda: byte_kind(sequence(cut(Regex(r"[A-Za-z]+|\d{2}|[^A-Za-z\d]")), byte_level(False))),
    }


def write(out, kind, t, golden):
    folder = os.path.join(out, kind)
    os.makedirs(folder, exist_ok=True)
    if kind == "gpt2":
        t.post_processor = processors.ByteLevel(trim_offsets=False)
    if kind.startswith("spm_"):
        t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    t.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    if not golden:
        return
    rows = []
    for s in PROBES:
        e = t.encode(s, add_special_tokens=False)
        rows.append({"text": s, "ids": e.ids, "decoded": t.decode(e.ids, skip_special_tokens=False),
                     "ends": t.encode(s, add_special_tokens=True).ids, "plain": t.decode(e.ids, skip_special_tokens=True)})
    with open(os.path.join(folder, "golden_tok.json"), "w", encoding="utf-8") as f:
        json.dump(rows, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


def main():
    out, golden = sys.argv[1], "--golden" in sys.argv
    kinds = families()
    if not golden:
        kinds.update(mixtures())
    for kind, make in kinds.items():
        write(out, kind, make(), golden)
    print(f"{len(kinds)} tokenizers in {out}")


main()
