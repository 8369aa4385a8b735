#!/usr/bin/env python3
"""Models with modules of AutoGPTQ, AutoAWQ, compressed-tensors and block-scaled FP8 beside the same numbers as F32: equal answers
on `ref`, also in another process, nearly equal ones on `cpu`, and as a GGUF file. SPDX-License-Identifier: MIT"""
import random
from clitest import *

AWQ = [0, 2, 4, 6, 1, 3, 5, 7]
plain = tiny_model("plain", width=64)
with open(os.path.join(plain, "model.safetensors"), "rb") as f: data = f.read()
n = struct.unpack("<Q", data[:8])[0]
head, body = json.loads(data[8:8 + n]), data[8 + n:]
rnd = random.Random(3)


def words(rows, bits, order=None):
    """Rows of codes as rows of int32, the first code into the lowest bits."""
    per, out = 32 // bits, b""
    for row in rows:
        for i in range(0, len(row), per):
            part = [row[i + k] for k in (order or range(per))]
            out += struct.pack("<I", sum(c << bits * k for k, c in enumerate(part)))
    return out


def turned(rows): return [list(c) for c in zip(*rows)]
def halves(values): return struct.pack(f"<{len(values)}e", *values)
def half(v): return struct.unpack("<e", struct.pack("<e", v))[0]


def e4m3(c):
    e, m = c >> 3 & 15, c & 7
    return (-1.0 if c & 128 else 1.0) * (m / 8 * 2.0 ** -6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))


def bf16(v):
    u = struct.unpack("<I", struct.pack("<f", v))[0]
    return struct.unpack("<f", struct.pack("<I", (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000))[0]


def fp8(name, rows, cols):
    q = [[rnd.choice((0, 128)) + rnd.randrange(8, 0x50) for _ in range(cols)] for _ in range(rows)]
    s = [[rnd.uniform(0.01, 0.03) for _ in range(-(-cols // 16))] for _ in range(-(-rows // 16))]
    s = [list(struct.unpack(f"<{len(r)}f", struct.pack(f"<{len(r)}f", *r))) for r in s]
    want = [[bf16(e4m3(q[r][c]) * s[r // 16][c // 16]) for c in range(cols)] for r in range(rows)]
    flat = [x for r in s for x in r]
    return {name + ".weight": ("F8_E4M3", [rows, cols], bytes(c for r in q for c in r)),
            name + ".weight_scale_inv": ("F32", [len(s), len(s[0])], struct.pack(f"<{len(flat)}f", *flat))}, want


def four_bits(kind, name, rows, cols, group=32):
    q = [[rnd.randrange(16) for _ in range(cols)] for _ in range(rows)]
    z = [[rnd.randrange(6, 11) if kind != "int4" else 8 for _ in range(cols // group)] for _ in range(rows)]
    s = [[half(rnd.uniform(0.02, 0.05)) for _ in range(cols // group)] for _ in range(rows)]
    g = [c // group for c in range(cols)]
    if kind == "act_order": rnd.shuffle(g)
    want = [[(q[r][c] - z[r][g[c]]) * s[r][g[c]] for c in range(cols)] for r in range(rows)]
    if kind == "act_order": want = [[half(v) for v in r] for r in want]
    if kind == "int4":
        return {name + ".weight_packed": ("I32", [rows, cols // 8], words(q, 4)), name + ".weight_shape": ("I64", [2], struct.pack("<2q", rows, cols)),
                name + ".weight_scale": ("F16", [rows, cols // group], halves([x for r in s for x in r]))}, want
    scales = ("F16", [cols // group, rows], halves([x for r in turned(s) for x in r]))
    if kind == "awq":
        return {name + ".qweight": ("I32", [cols, rows // 8], words(turned(q), 4, AWQ)), name + ".scales": scales,
                name + ".qzeros": ("I32", [cols // group, rows // 8], words(turned(z), 4, AWQ))}, want
    packed = [words([r], 4) for r in q]                       # of each row; the file has them transposed
    turned_words = b"".join(packed[r][4 * i:4 * i + 4] for i in range(cols // 8) for r in range(rows))
    return {name + ".qweight": ("I32", [cols // 8, rows], turned_words), name + ".scales": scales, name + ".g_idx": ("I32", [cols], struct.pack(f"<{cols}i", *g)),
            name + ".qzeros": ("I32", [cols // group, rows // 8], words(turned([[v - 1 for v in r] for r in z]), 4))}, want


def folder_of(name, tensors, quantization=None):
    folder = os.path.join(top.name, name)
    os.makedirs(folder, exist_ok=True)
    for f in os.listdir(plain):
        if f != "model.safetensors": os.path.exists(os.path.join(folder, f)) or os.link(os.path.join(plain, f), os.path.join(folder, f))
    if quantization:
        with open(os.path.join(plain, "config.json")) as f: config = json.load(f)
        os.remove(os.path.join(folder, "config.json"))
        write(folder, "config.json", json.dumps({**config, "quantization_config": quantization}))
    header, out = {}, b""
    for key, (dtype, shape, raw) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(out), len(out) + len(raw)]}
        out += raw
    text = json.dumps(header).encode()
    write(folder, "model.safetensors", struct.pack("<Q", len(text)) + text + out)
    return folder


def answer(folder, unit):
    code, out, err = run("run", "-m", folder, "--unit", unit, "--ids", "5,6,7,8,9", "-n", 8, "--greedy", "--json", "--ignore-eos")
    return json.loads(out)["ids"] if code == 0 else (code, err)


def loss(folder, unit):
    code, out, err = run("eval", "-m", folder, "--unit", unit, "--ids", ",".join(str(i * 7 % 256) for i in range(64)), "--json")
    return json.loads(out)["nll"] if code == 0 else (code, err)


for kind, method, stored in (("awq", {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}, "awq4"),
                             ("gptq", {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}, "gptq4"),
                             ("act_order", {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}, "gptq4"),
                             ("int4", {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {
                                 "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}}}}, "int4"),
                             ("fp8", {"quant_method": "fp8", "weight_block_size": [16, 16]}, "f8_e4m3")):
    coded, same = {}, {}
    for key, t in head.items():
        raw = body[t["data_offsets"][0]:t["data_offsets"][1]]
        if "_proj" not in key:
            coded[key] = same[key] = ("F32", t["shape"], raw)
            continue
        rows, cols = t["shape"]
        made, want = fp8(key[:-7], rows, cols) if kind == "fp8" else four_bits(kind, key[:-7], rows, cols)
        coded |= made
        same[key] = ("F32", t["shape"], struct.pack(f"<{rows * cols}f", *(v for r in want for v in r)))
    a, b = folder_of(kind, coded, method), folder_of(kind + "-f32", same)
    info = json.loads(run("inspect", "--json", "-m", a)[1])
    expect(f"{kind}: inspect", info["storage"] == stored and sum(t["storage"] == stored for t in info["tensors"]) == 14, info["storage"])
    expect(f"{kind}: answers", answer(a, "ref") == answer(b, "ref") == answer(a, "proc:ref"), (answer(a, "ref"), answer(b, "ref"), answer(a, "proc:ref")))
    right = loss(b, "ref")
    for unit, bound in (("ref", 1e-6), ("cpu", 0.05), ("cpu:isa=generic", 0.05), ("ref:ranks=2", 1e-5)):
        got = loss(a, unit)
        expect(f"{kind}: loss on {unit}", isinstance(got, float) and abs(got - right) < bound, (got, right))
    code, out, err = run("quantize", "-m", a, "-o", os.path.join(top.name, "x.gguf"), "--type", "f32")
    expect(f"{kind}: as GGUF", code == 0 and abs(loss(os.path.join(top.name, "x.gguf"), "ref") - right) < 1e-6, err)
done()
