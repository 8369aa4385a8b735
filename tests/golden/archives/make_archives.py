#!/usr/bin/env python3
"""Small weight files of every format, written by other programs, and what they hold.

Each case has a file or folder and CASE.expect.safetensors (v1: legacy's) with every tensor as F32, rows in order:
kinds.gguf (every kind of key, ten storages, alignment 64), split-0000N-of-00003.gguf, sharded/ (safetensors with an
index), mlx/ (affine groups with per-module overrides), legacy.bin, v1.bin, v2.bin (llama2.c). The .bin files are laid
out here as llama2.c's export.py describes; there is no package that writes them. Needs numpy, gguf, safetensors, mlx.
Deterministic.

SPDX-License-Identifier: MIT
"""
import glob
import json
import os
import shutil
import struct

import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Q, GGUFWriter, quants
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))


def at(name):
    return os.path.join(HERE, name)


def expect(case, tensors):
    save_file({k: np.ascontiguousarray(v, dtype=np.float32) for k, v in tensors.items()},
              at(case + ".expect.safetensors"))


def close(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def add(w, want, name, x, kind):
    raw = quants.quantize(x, kind)
    if kind in (Q.F32, Q.F16):
        w.add_tensor(name, raw)
    else:
        w.add_tensor(name, raw, raw_dtype=kind)
    want[name] = quants.dequantize(raw, kind).reshape(x.shape)


def make_kinds(rng):
    w, want = GGUFWriter(at("kinds.gguf"), "llama"), {}
    w.add_custom_alignment(64)
    w.add_uint8("t.u8", 200), w.add_int8("t.i8", -100), w.add_uint16("t.u16", 60000), w.add_int16("t.i16", -30000)
    w.add_uint32("t.u32", 4000000000), w.add_int32("t.i32", -2000000000), w.add_float32("t.f32", 0.1)
    w.add_uint64("t.u64", 2**63 + 5), w.add_uint64("t.u64_small", 2**40), w.add_int64("t.i64", -2**60)
    w.add_float64("t.f64", 0.1), w.add_bool("t.yes", True), w.add_bool("t.no", False)
    w.add_string("t.text", "Straße \0 東京"), w.add_string("t.empty", "")
    w.add_array("t.ints", [3, -1, 70000]), w.add_array("t.reals", [0.5, -2.25]), w.add_array("t.truths", [True, False, True])
    w.add_array("t.words", ["a", "", "çé", "last one"])
    for kind in (Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0):
        add(w, want, f"w.{kind.name}", rng.standard_normal((3, 64)).astype(np.float32), kind)
    add(w, want, "one", rng.standard_normal(5).astype(np.float32), Q.F32)
    add(w, want, "three", rng.standard_normal((2, 3, 5)).astype(np.float32), Q.F32)
    w.add_tensor("ids", np.arange(6, dtype=np.int32))
    unread = rng.integers(0, 256, (2, 36), dtype=np.uint8)
    w.add_tensor("unread", unread, raw_dtype=Q.Q1_0)
    close(w)
    expect("kinds", want)


def make_split(rng):
    for old in glob.glob(at("split-*.gguf")):
        os.remove(old)
    w, want = GGUFWriter(at("split.gguf"), "llama", split_max_tensors=2), {}
    w.add_uint32("llama.block_count", 7)
    for i in range(5):
        add(w, want, f"blk.{i}.w", rng.standard_normal((2, 32)).astype(np.float32), Q.Q8_0 if i % 2 else Q.F32)
    close(w)
    expect("split", want)


def make_sharded(rng):
    shutil.rmtree(at("sharded"), ignore_errors=True)
    os.makedirs(at("sharded"))
    want, where = {}, {}
    for shard in range(3):
        name = f"model-{shard + 1:05d}-of-00003.safetensors"
        part = {f"layers.{shard}.{k}": rng.standard_normal((2, 4)).astype(np.float16 if k else np.float32) for k in range(2)}
        part[f"odd.{shard}"] = np.arange(3, dtype=np.uint8)
        save_file(part, os.path.join(at("sharded"), name), metadata={"format": "pt"})
        want.update({k: v for k, v in part.items() if not k.startswith("odd")})
        where.update({k: name for k in part})
    with open(os.path.join(at("sharded"), "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 81}, "weight_map": where}, f)
    expect("sharded", want)


def make_mlx(rng):
    shutil.rmtree(at("mlx"), ignore_errors=True)
    os.makedirs(at("mlx"))
    tensors, want = {}, {}
    rule = {"group_size": 64, "bits": 4, "mode": "affine", "model.plain": False}
    for name, bits, group, kind in (("model.a", 4, 64, mx.bfloat16), ("model.b", 8, 32, mx.float16), ("model.c", 3, 128, mx.float32),
                                    ("model.d", 6, 64, mx.bfloat16), ("model.e", 2, 32, mx.float32), ("model.f", 5, 128, mx.float16)):
        w = mx.array(rng.standard_normal((4, 128)).astype(np.float32)).astype(kind)
        q, s, b = mx.quantize(w, group_size=group, bits=bits)
        tensors.update({name + ".weight": q, name + ".scales": s, name + ".biases": b})
        # the same codes with fp32 scales: what the numbers are before mlx rounds them to the model's type
        want[name + ".weight"] = np.array(mx.dequantize(q, s.astype(mx.float32), b.astype(mx.float32), group_size=group, bits=bits))
        if (bits, group) != (4, 64):
            rule[name] = {"group_size": group, "bits": bits}
    tensors["model.norm.weight"] = mx.array(rng.standard_normal(128).astype(np.float32)).astype(mx.bfloat16)
    want["model.norm.weight"] = np.array(tensors["model.norm.weight"].astype(mx.float32))
    mx.save_safetensors(os.path.join(at("mlx"), "model.safetensors"), tensors, metadata={"format": "mlx"})
    with open(os.path.join(at("mlx"), "config.json"), "w") as f:
        json.dump({"model_type": "llama", "quantization": rule, "quantization_config": rule}, f)
    expect("mlx", want)


def interleave(w, heads):
    """Rotary halves become neighbouring pairs, as llama2.c stores q and k."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, w.shape[1]).transpose(0, 2, 1, 3).reshape(w.shape)


def make_llama2c(rng):
    dim, hidden, layers, heads, kv_heads, vocab, length, group = 16, 24, 2, 2, 1, 12, 8, 8
    kv = dim // heads * kv_heads
    r = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    hf = {"model.embed_tokens.weight": r(vocab, dim), "model.norm.weight": r(dim), "lm_head.weight": r(vocab, dim)}
    shapes = [("input_layernorm", (dim,)), ("self_attn.q_proj", (dim, dim)), ("self_attn.k_proj", (kv, dim)),
              ("self_attn.v_proj", (kv, dim)), ("self_attn.o_proj", (dim, dim)), ("post_attention_layernorm", (dim,)),
              ("mlp.gate_proj", (hidden, dim)), ("mlp.down_proj", (dim, hidden)), ("mlp.up_proj", (hidden, dim))]
    for i in range(layers):
        hf.update({f"model.layers.{i}.{n}.weight": r(*s) for n, s in shapes})
    own = dict(hf)
    for i in range(layers):
        for n, h in (("q", heads), ("k", kv_heads)):
            key = f"model.layers.{i}.self_attn.{n}_proj.weight"
            own[key] = interleave(hf[key], h)
    of = lambda n: [own[f"model.layers.{i}.{n}.weight"] for i in range(layers)]
    matrices = [n for n, s in shapes if len(s) == 2]
    ints = [dim, hidden, layers, heads, kv_heads, vocab, length]

    with open(at("legacy.bin"), "wb") as f:  # untied: the vocabulary is negative
        f.write(struct.pack("7i", *ints[:5], -vocab, length))
        for x in ([own["model.embed_tokens.weight"]] + sum((of(n) for n, _ in shapes), []) + [own["model.norm.weight"]] +
                  [r(length, dim // heads // 2), r(length, dim // heads // 2), own["lm_head.weight"]]):
            f.write(x.tobytes())
    expect("legacy", hf)

    norms = of("input_layernorm") + of("post_attention_layernorm") + [own["model.norm.weight"]]
    rest = [own["model.embed_tokens.weight"]] + sum((of(n) for n in matrices), [])
    with open(at("v1.bin"), "wb") as f:  # tied
        f.write(struct.pack("Ii7iB", 0x616b3432, 1, *ints, 1).ljust(256, b"\0"))
        for x in norms + rest:
            f.write(x.tobytes())
    tied = {k: v for k, v in hf.items() if k != "lm_head.weight"}

    rounded = {}
    with open(at("v2.bin"), "wb") as f:
        f.write((struct.pack("Ii7iB", 0x616b3432, 2, *ints, 1) + struct.pack("i", group)).ljust(256, b"\0"))
        for x in norms:
            f.write(x.tobytes())
        for x in rest:
            g = x.reshape(-1, group)
            scale = np.abs(g).max(axis=1, keepdims=True) / np.float32(127)
            q = np.round(g / scale).astype(np.int8)
            f.write(q.tobytes()), f.write(scale.tobytes())
            rounded[id(x)] = (scale * q.astype(np.float32)).reshape(x.shape)
    for key, x in list(tied.items()):
        if id(own[key]) not in rounded:
            continue
        x = rounded[id(own[key])]
        if ".q_proj" in key or ".k_proj" in key:  # back to halves
            h = heads if ".q_proj" in key else kv_heads
            x = x.reshape(h, x.shape[0] // h // 2, 2, x.shape[1]).transpose(0, 2, 1, 3).reshape(x.shape)
        tied[key] = x
    expect("v2", tied)


def main():
    rng = np.random.default_rng(11)
    for make in (make_kinds, make_split, make_sharded, make_mlx, make_llama2c):
        make(rng)
    print(sum(os.path.getsize(f) for f in glob.glob(at("**"), recursive=True) if os.path.isfile(f)), "bytes")


if __name__ == "__main__":
    main()
