#!/usr/bin/env python3
"""Modules as the quantisers of PyTorch and MLX save them, and what they mean (X.want, F32): written to coded.safetensors beside
this file. The layouts of AutoGPTQ, AutoAWQ, compressed-tensors and FP8 are packed here from random codes, scales and zeros as
the formats define them, so that the wanted numbers never pass through an unpacker; those of MLX come from mlx.core.quantize and
dequantize. Needs numpy, safetensors, mlx. Deterministic. SPDX-License-Identifier: MIT"""
import os

import mlx.core as mx
import numpy as np
from safetensors.numpy import save_file

ROWS, COLS, GROUP = 16, 128, 32
rng, out = np.random.default_rng(7), {}
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]                    # code AWQ[i] is in nibble i of its word
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def words(codes, bits, order=None):
    """Packs the last axis, the first code into the lowest bits, as int32."""
    per = 32 // bits
    c = codes.astype(np.uint64).reshape(*codes.shape[:-1], -1, per)
    if order: c = c[..., order]
    return np.bitwise_or.reduce(c << (np.arange(per, dtype=np.uint64) * np.uint64(bits)), axis=-1).astype(np.uint32).view(np.int32)


def bf16(x):
    u = np.asarray(x, np.float32).view(np.uint32)
    return ((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000).astype(np.uint32).view(np.float32)


def e4m3(c):
    c = c.astype(np.int32)
    e, m, sign = c >> 3 & 15, c & 7, np.where(c & 128, -1.0, 1.0)
    return (sign * np.where(e == 0, m / 8 * 2.0 ** -6, (1 + m / 8) * 2.0 ** (e - 7.0))).astype(np.float32)


def parts(bits, scale_type=np.float16):
    q = rng.integers(0, 2 ** bits, (ROWS, COLS))
    z = rng.integers(1, 2 ** bits, (ROWS, COLS // GROUP))
    s = rng.uniform(0.001, 0.02, (ROWS, COLS // GROUP)).astype(scale_type)
    return q, z, s


def value(q, z, s, group=None):
    g = np.arange(COLS) // GROUP if group is None else group
    return (q - z[:, g]).astype(np.float32) * s.astype(np.float32)[:, g]


def gptq(name, bits, shuffled=False):
    q, z, s = parts(bits)
    g = np.arange(COLS, dtype=np.int32) // GROUP
    if shuffled: g = rng.permutation(g).astype(np.int32)
    want = value(q, z, s, g)
    out[name + ".qweight"] = np.ascontiguousarray(words(q, bits).T)          # [cols * bits / 32, rows]
    out[name + ".qzeros"] = words((z - 1).T, bits)                           # version 1 stores the zero minus 1
    out[name + ".scales"] = np.ascontiguousarray(s.T)
    out[name + ".g_idx"] = g
    out[name + ".want"] = want.astype(np.float16).astype(np.float32) if shuffled else want


def awq(name):
    q, z, s = parts(4)
    out[name + ".qweight"] = words(q.T, 4, AWQ)                              # [cols, rows / 8]
    out[name + ".qzeros"] = words(z.T, 4, AWQ)
    out[name + ".scales"] = np.ascontiguousarray(s.T)
    out[name + ".want"] = value(q, z, s)


def packed(name, bits, zeros=False, channel=False):
    q, z, s = parts(bits)
    if channel: s, z = s[:, :1], z[:, :1]
    if not zeros: z = np.full_like(z, 2 ** (bits - 1))
    g = np.zeros(COLS, int) if channel else None
    out[name + ".weight_packed"] = words(q, bits)
    out[name + ".weight_scale"] = s
    out[name + ".weight_shape"] = np.array([ROWS, COLS], np.int64)
    if zeros: out[name + ".weight_zero_point"] = np.ascontiguousarray(words(z.T, bits).T)   # packed along the rows
    out[name + ".want"] = value(q, z, s, g)


def int8(name):
    q = rng.integers(-128, 128, (ROWS, COLS)).astype(np.int8)
    s = rng.uniform(0.001, 0.02, (ROWS, 1)).astype(np.float32)
    out[name + ".weight"], out[name + ".weight_scale"] = q, s
    out[name + ".want"] = q.astype(np.float32) * s


def nvfp4(name):
    q, s = rng.integers(0, 16, (ROWS, COLS)), rng.integers(0x30, 0x58, (ROWS, COLS // 16)).astype(np.uint8)
    divisor = np.array([384.5], np.float32)
    out[name + ".weight_packed"] = (q[:, ::2] | q[:, 1::2] << 4).astype(np.uint8)
    out[name + ".weight_scale"], out[name + ".weight_global_scale"] = ("F8", s), divisor
    out[name + ".want"] = E2M1[q] * np.repeat(e4m3(s) / divisor, 16, axis=1)


def fp8(name, kind):
    """The test gives blocks of 32 by 32 in the configuration; published files have 128 by 128."""
    rows, cols = (40, 80) if kind == "block" else (ROWS, COLS)
    c = rng.integers(0, 256, (rows, cols)).astype(np.uint8)
    c[(c & 0x7f) == 0x7f] = 1                                                # no NaN
    shape = {"block": (2, 3), "row": (rows, 1), "one": (1,)}[kind]
    s = rng.uniform(0.0001, 0.001, shape).astype(np.float32)
    wide = np.repeat(np.repeat(s, 32, 0), 32, 1)[:rows, :cols] if kind == "block" else s
    out[name + ".weight"], out[name + (".weight_scale_inv" if kind == "block" else ".weight_scale")] = ("F8", c), s
    if kind == "one": out[name + ".input_scale"] = np.ones(1, np.float32)
    out[name + ".want"] = bf16(e4m3(c) * wide)


def mlx(mode):
    w = mx.array(rng.standard_normal((8, COLS)).astype(np.float32))
    codes, scales = mx.quantize(w, mode=mode)
    out[mode + ".weight"], out[mode + ".scales"] = np.array(codes), np.array(scales)
    out[mode + ".want"] = np.array(mx.dequantize(codes, scales, mode=mode).astype(mx.float32))


def save(path):
    """numpy has no 8-bit floats: their bytes are written as U8, and the header is changed to the type of equal size."""
    save_file({k: np.ascontiguousarray(v[1] if isinstance(v, tuple) else v) for k, v in out.items()}, path)
    import json, struct
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    for k, v in out.items():
        if isinstance(v, tuple): header[k]["dtype"] = "F8_E4M3"
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f: f.write(struct.pack("<Q", len(text)) + text + data[8 + n:])


def main():
    gptq("gptq4", 4); gptq("gptq8", 8); gptq("gptq2", 2); gptq("act_order", 4, True)
    awq("awq4")
    packed("int4", 4); packed("int4_zeros", 4, zeros=True); packed("int8", 8, channel=True); int8("int8_rows"); nvfp4("nv")
    fp8("fp8_block", "block"); fp8("fp8_row", "row"); fp8("fp8_one", "one")
    for mode in ("mxfp4", "mxfp8", "nvfp4"): mlx(mode)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "coded.safetensors")
    save(path)
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    main()
