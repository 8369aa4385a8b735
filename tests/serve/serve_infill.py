#!/usr/bin/env python3
"""POST /infill: the prompt is compared with the template of llama.cpp, written out here from the token ids of the model's metadata:
tokens known by their texts (a folder), named in a GGUF, and named under the older keys. SPDX-License-Identifier: MIT"""
from servetest import *

PRE, SUF, MID, PAD, REP, SEP = range(259, 265)


def gguf_model(name, keys):
    """A GGUF of random weights whose tokens have texts that say nothing; keys: names of metadata and ids."""
    import gguf, numpy as np
    path, width, vocab = os.path.join(top.name, name + ".gguf"), 32, 265
    w, rng = gguf.GGUFWriter(path, "llama"), np.random.default_rng(3)
    w.add_block_count(1); w.add_context_length(2048); w.add_embedding_length(width); w.add_feed_forward_length(64); w.add_head_count(2)
    w.add_layer_norm_rms_eps(1e-5); w.add_vocab_size(vocab); w.add_rope_dimension_count(16)
    spelled = byte_unicode()
    w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("gpt-2")
    w.add_token_list([spelled[b] for b in range(256)] + ["<e>", "<b>", "qq"] + [f"<t{i}>" for i in range(6)])
    w.add_token_types([1] * 256 + [3, 3, 1] + [3] * 6)
    w.add_token_merges(["q q"])
    w.add_eos_token_id(256); w.add_bos_token_id(257); w.add_add_bos_token(True)
    for key, value in keys.items(): w.add_uint32("tokenizer.ggml." + key, value)
    shapes = {"token_embd": (vocab, width), "output_norm": (width,), "blk.0.attn_norm": (width,), "blk.0.ffn_norm": (width,), "blk.0.ffn_gate": (64, width),
              "blk.0.ffn_up": (64, width), "blk.0.ffn_down": (width, 64), **{f"blk.0.attn_{n}": (width, width) for n in ("q", "k", "v", "output")}}
    for tensor, shape in shapes.items(): w.add_tensor(tensor + ".weight", (rng.standard_normal(shape) * 0.3).astype(np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    return path


def template(prefix, suffix, prompt=b"", extra=(), bos=None, rep=REP, sep=SEP, suffix_first=False):
    out = [rep, *b"myproject\n"] if rep else []
    for name, text in extra: out += [*([sep, *name, 10] if sep else b"\n\n--- snippet ---\n\n"), *text]
    if sep: out += [sep, *b"filename\n"]
    parts = [[PRE, *prefix, *prompt], [SUF, *suffix]]
    if suffix_first: parts.reverse()
    return out + ([bos] if bos else []) + parts[0] + parts[1] + [MID]


def check(s, what, body, ids):
    same = {"n_predict": 6, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    status, got = s.post("/infill", {**same, **body})
    expect(f"{what}: answered", status == 200, got)
    if status != 200: return
    want = s.post("/completion", {**same, "prompt": ids})[1]
    expect(f"{what}: the prompt", (got["tokens_evaluated"], got["prompt"]) == (len(ids), want["prompt"]), (got["prompt"], want["prompt"]))
    expect(f"{what}: its continuation", got["tokens"] == want["tokens"] and len(want["tokens"]) == 6, (got["tokens"], want["tokens"]))


body = {"input_prefix": "int f() {\n", "input_suffix": "}\n", "prompt": "  int n ="}
whole = (b"int f() {\n", b"}\n", b"  int n =")
files = {"input_extra": [{"filename": "a.h", "text": "int g();\n"}, {"text": "x"}]}
s = Server("-m", fim_model(), "-m", tiny_model(), "--unit", "cpu", "-t", "1", "--ctx", "1024")
check(s, "tokens by their texts", body, template(*whole))
check(s, "no prompt, empty parts", {"input_prefix": "", "input_suffix": ""}, template(b"", b""))
check(s, "files", {**body, **files}, template(*whole, extra=[(b"a.h", b"int g();\n"), (b"tmp", b"x")]))
check(s, "a text that looks like a token", {**body, "input_suffix": "<|fim_middle|>"}, template(whole[0], b"<|fim_middle|>", whole[2]))
check(s, "texts and ids", {**body, "input_prefix": ["ab", PAD, "c"]}, template([97, 98, PAD, 99], *whole[1:]))
long = {"input_prefix": "p" * 2000 + "q" * 384, "input_suffix": "s" * 126 + "t" * 900, "input_extra": [{"filename": "n", "text": "e" * 3000}]}
# 512 tokens for both, three quarters of them for the prefix; of the files what the context has left beside them and two answers.
rest = 1024 - 512 - 2 * 6
check(s, "long parts", long, [*(b"e" * (rest - 10)), SEP, *b"filename\n"] + [PRE, *(b"q" * 384), SUF, *(b"s" * 126), MID])
parts = s.stream("/infill", {**body, "n_predict": 6, "temperature": 0, "ignore_eos": True})
expect("a stream", "".join(e["content"] for _, e in parts if e != "[DONE]") == s.post("/infill", {**body, "n_predict": 6, "temperature": 0, "ignore_eos": True})[1]["content"], parts)
is_error("a model without the tokens", s.post("/infill", {**body, "model": "tiny"}), 501, "tiny", "prefix")
is_error("no prefix", s.post("/infill", {"input_suffix": "x"}), 400, param="input_prefix")
is_error("no suffix", s.post("/infill", {"input_prefix": "x"}), 400, param="input_suffix")
is_error("a prompt that is no text", s.post("/infill", {**body, "prompt": [1]}), 400, param="prompt")
is_error("an id beyond the vocabulary", s.post("/infill", {**body, "input_prefix": [265]}), 400, param="input_prefix")
for bad in ({}, "x", [{}], [{"filename": "ok"}], [{"filename": 123, "text": "abc"}], [{"filename": "x", "text": 4}], [5], [None]):
    is_error(f"input_extra {bad}", s.post("/infill", {**body, "input_extra": bad}), 400, param="input_extra")
s.stop()
s = Server("-m", fim_model(), "--unit", "cpu", "-t", "1", "--spm-infill")
check(s, "suffix first", body, template(*whole, suffix_first=True))
s.stop()

try: import gguf
except ImportError: print("SKIP named tokens: the Python package gguf is not installed")
else:
    named = gguf_model("named", {f"fim_{n}_token_id": i for n, i in zip(("pre", "suf", "mid", "pad", "rep", "sep"), range(PRE, 265))})
    older = gguf_model("older", {"prefix_token_id": PRE, "suffix_token_id": SUF, "middle_token_id": MID})
    s = Server("-m", named, "-m", older, "--unit", "cpu", "-t", "1")
    check(s, "named tokens", {**body, **files}, template(*whole, extra=[(b"a.h", b"int g();\n"), (b"tmp", b"x")], bos=257))
    old = {"model": "older"}
    status, got = s.post("/infill", {**body, **files, **old, "n_predict": 6, "temperature": 0, "ignore_eos": True})
    want = s.post("/completion", {**old, "prompt": template(*whole, extra=[(b"", b"int g();\n"), (b"", b"x")], bos=257, rep=None, sep=None),
                                  "n_predict": 6, "temperature": 0, "ignore_eos": True})[1]
    expect("older names, files without a token", status == 200 and (got["prompt"], got["content"]) == (want["prompt"], want["content"]), (got, want))
    s.stop()
done()
