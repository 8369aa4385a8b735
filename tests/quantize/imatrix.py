#!/usr/bin/env python3
"""Importance matrices. `segue imatrix` against a llama in NumPy; the weighted error of quantised files, read by the Python package
gguf, is lower with the matrix than without; the GGUF and .dat forms give the same file; damaged and foreign matrices are refused.

    imatrix.py SEGUE        exit 77: the packages are missing
SPDX-License-Identifier: MIT"""
import json, os, struct, sys

try:
    import gguf, numpy as np
except ImportError as e:
    print(f"SKIP imatrix: {e}")
    sys.exit(77)
os.environ["SEGUE_COMMAND"] = sys.argv[1]
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cli"))
from clitest import *

TYPES = gguf.GGMLQuantizationType
path = lambda name: os.path.join(top.name, name)


def read(file): return {t.name: t for t in gguf.GGUFReader(file).tensors}


# --- the numbers, against NumPy ---

def weights_of(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as f: data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    return {k: np.frombuffer(data, np.float32, int(np.prod(t["shape"])), 8 + n + t["data_offsets"][0]).reshape(t["shape"]).astype(np.float64)
            for k, t in json.loads(data[8:8 + n]).items()}


def squares(w, ids, heads=4, kv_heads=2):
    """The sum of squares of the input of each matrix of a llama: names of GGUF."""
    out, x, T = {}, w["model.embed_tokens.weight"][ids], len(ids)
    norm = lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    d = x.shape[1] // heads
    angle = np.arange(T)[:, None] * 10000.0 ** (-np.arange(d // 2) * 2 / d)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    turn = lambda v: np.concatenate([v[..., :d // 2] * cos - v[..., d // 2:] * sin, v[..., d // 2:] * cos + v[..., :d // 2] * sin], -1)
    for i in range(2):
        p, m = f"blk.{i}.", lambda name: w[f"model.layers.{i}.{name}.weight"].T
        h = norm(x)
        for k in ("attn_q", "attn_k", "attn_v"): out[p + k + ".weight"] = (h * h).sum(0)
        q, k, v = turn((h @ m("self_attn.q_proj")).reshape(T, heads, d)), turn((h @ m("self_attn.k_proj")).reshape(T, kv_heads, d)), (h @ m("self_attn.v_proj")).reshape(T, kv_heads, d)
        k, v = np.repeat(k, heads // kv_heads, 1), np.repeat(v, heads // kv_heads, 1)
        s = np.einsum("thd,shd->hts", q, k) / np.sqrt(d) + np.triu(np.full((T, T), -1e30), 1)
        s = np.exp(s - s.max(-1, keepdims=True))
        a = np.einsum("hts,shd->thd", s / s.sum(-1, keepdims=True), v).reshape(T, -1)
        out[p + "attn_output.weight"] = (a * a).sum(0)
        x = x + a @ m("self_attn.o_proj")
        h = norm(x)
        for k in ("ffn_gate", "ffn_up"): out[p + k + ".weight"] = (h * h).sum(0)
        g = h @ m("mlp.gate_proj")
        a = g / (1 + np.exp(-g)) * (h @ m("mlp.up_proj"))
        out[p + "ffn_down.weight"] = (a * a).sum(0)
        x = x + a @ m("mlp.down_proj")
    return out


folder = tiny_model("tiny")
text = "The quick brown fox jumps over the lazy dog. " * 4
ids = list(text.encode())
write(top.name, "text", text)
for unit, bound in (("ref", 1e-4), ("cpu", 1e-2)):
    code, out, err = run("imatrix", "-m", folder, "-f", path("text"), "-o", path("im.gguf"), "-c", 32, "--unit", unit, "--json")
    expect(f"imatrix on {unit}", code == 0 and json.loads(out)["chunks"] == len(ids) // 32 and json.loads(out)["tokens"] == len(ids) // 32 * 32, (out, err))
    got, want = read(path("im.gguf")), {}
    for i in range(len(ids) // 32):
        for name, v in squares(weights_of(folder), np.array(ids[32 * i:32 * i + 32])).items(): want[name] = want.get(name, 0) + v
    expect("names", sorted(got) == sorted(n + e for n in want for e in (".counts", ".in_sum2")), sorted(got))
    for name, v in want.items():
        expect(f"{unit}: {name}", np.allclose(got[name + ".in_sum2"].data.ravel(), v, rtol=bound, atol=bound * v.mean())
               and got[name + ".counts"].data.ravel()[0] == len(ids) // 32 * 32, (got[name + ".in_sum2"].data.ravel()[:4], v[:4]))
fields = gguf.GGUFReader(path("im.gguf")).fields
expect("keys", {"general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"} <= set(fields), list(fields))
code, out, err = run("imatrix", "-m", folder, "-p", text, "-o", path("some.gguf"), "-c", 32, "--chunks", 2, "--json")
expect("--chunks and -p", code == 0 and json.loads(out)["chunks"] == 2, err)
code, out, err = run("quantize", folder, path("q.gguf"), "q4_0", "--imatrix", path("im.gguf"), "--json")
expect("quantize a folder", code == 0 and json.loads(out)["imatrix_tensors"] == 14, (out, err))
refused(2, ["imatrix", "-m", folder, "-p", "x", "-f", path("text"), "-o", path("y")], "two texts")
refused(2, ["imatrix", "-m", folder, "-o", path("y")], "no text")
refused(2, ["imatrix", "-m", folder, "-p", "x", "-o", path("y")], "fewer than two")
refused(2, ["imatrix", "-m", folder, "-p", "xyz"], "-o")
expect("nothing left", not os.path.exists(path("y")))

# --- quantised files ---

rng = np.random.default_rng(4)
names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def model(file, width):
    w = gguf.GGUFWriter(file, "llama")
    w.add_block_count(1); w.add_context_length(64); w.add_embedding_length(width); w.add_feed_forward_length(width)
    w.add_head_count(4); w.add_layer_norm_rms_eps(1e-5); w.add_rope_dimension_count(width // 4)
    for name in ["token_embd", "output"] + [f"blk.0.{n}" for n in names]:
        w.add_tensor(name + ".weight", (rng.standard_normal((64 if name[0] in "to" else width, width)) * 0.1).astype(np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"): w.add_tensor(name + ".weight", np.ones(width, np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


def dat(file, entries, calls=3):
    out = struct.pack("<i", len(entries))
    for name, v in entries.items():
        out += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, len(v)) + (v * np.float32(calls)).astype("<f4").tobytes()
    write(top.name, file, out + struct.pack("<ii", calls, 4) + b"text")


def in_gguf(file, entries, count=2):
    w = gguf.GGUFWriter(file, "")
    w.add_type("imatrix")
    for name, v in entries.items():
        w.add_tensor(name + ".in_sum2", (v * np.float32(count)).reshape(1, -1).astype(np.float32))
        w.add_tensor(name + ".counts", np.array([[count]], np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


model(path("in.gguf"), 256)
plain = {n: np.array(t.data) for n, t in read(path("in.gguf")).items()}
importance = {f"blk.0.{n}.weight": np.exp2(rng.integers(-6, 7, 256)).astype(np.float32) for n in names}
importance["blk.0.attn_k.weight"][:64] = 0
dat("im.dat", importance)
in_gguf(path("im2.gguf"), importance)
few = ("attn_q", "attn_k", "ffn_down")
for kind in ("q4_k", "q2_k_s", "q3_k_s", "q6_k", "q4_0", "q5_1"):
    errors, files = {}, {}
    for how, flags in (("without", ()), ("dat", ("--imatrix", path("im.dat"))), ("gguf", ("--imatrix", path("im2.gguf")))):
        code, out, err = run("quantize", "-m", path("in.gguf"), "-o", path("out.gguf"), "--type", kind, "--json", *flags)
        expect(f"{kind} {how}", code == 0 and json.loads(out)["imatrix_tensors"] == (7 if flags else 0), (out, err))
        t = read(path("out.gguf"))
        for n in few:
            x = t[f"blk.0.{n}.weight"]
            back = gguf.quants.dequantize(x.data, x.tensor_type)
            w = importance[f"blk.0.{n}.weight"]
            errors[how, n] = float((w * (back - plain[x.name]) ** 2).sum())
        with open(path("out.gguf"), "rb") as f: files[how] = f.read()
    expect(f"{kind}: both forms", files["dat"] == files["gguf"] != files["without"])
    ratio = {n: errors["dat", n] / errors["without", n] for n in few}
    expect(f"{kind}: weighted errors", all(r < 0.95 for r in ratio.values()), ratio)
for kind in ("q8_0",):
    same = []
    for flags in ((), ("--imatrix", path("im.dat"))):
        run("quantize", "-m", path("in.gguf"), "-o", path("out.gguf"), "--type", kind, *flags)
        same.append({n: np.array(x.data).tobytes() for n, x in read(path("out.gguf")).items()})
    expect(f"{kind} ignores it", same[0] == same[1])

# --- refusals ---

def bad(what, content, *words):
    file = write(top.name, "bad", content)
    refused(4, ["quantize", "-m", path("in.gguf"), "-o", path("none.gguf"), "--type", "q4_k", "--imatrix", file], *words)


with open(path("im.dat"), "rb") as f: good = f.read()
for n in (0, 3, 4, 7, 20, 40, 2000, len(good) - 300): bad(f"{n} bytes", good[:n], "importance matrix")
bad("a count", struct.pack("<i", -1) + good[4:], "importance matrix")
bad("a name", good[:4] + struct.pack("<i", 1 << 30) + good[8:], "importance matrix")
at = 8 + struct.unpack("<i", good[4:8])[0] + 8
for v in (float("nan"), float("inf"), -1.0): bad(str(v), good[:at] + struct.pack("<f", v) + good[at + 4:], "negative or not finite")
dat("other.dat", {n.replace("blk.0", "blk.9"): v for n, v in importance.items()})
dat("short.dat", {n: v[:128] for n, v in importance.items()})
for file, word in (("other.dat", "no tensor of this model"), ("short.dat", "another model"), ("in.gguf", "no matrix")):
    refused(4, ["quantize", "-m", path("in.gguf"), "-o", path("none.gguf"), "--type", "q4_k", "--imatrix", path(file)], word)
refused(1, ["quantize", "-m", path("in.gguf"), "-o", path("none.gguf"), "--type", "q4_k", "--imatrix", path("nowhere")], "nowhere")
expect("no file", not os.path.exists(path("none.gguf")))
done()
