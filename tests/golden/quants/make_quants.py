#!/usr/bin/env python3
"""Blocks of every quantised type, and what other programs make of them: written to blocks.safetensors beside this file.

NAME.raw are random blocks and NAME.f32 the numbers that the Python package gguf reads from them; quantize_input.f32
and quantize.NAME are numbers and the blocks that gguf makes of them; affine.B.G.* are what mlx makes of numbers at B
bits in groups of G (w, scales, biases) and reads back (f32). Needs numpy, gguf, safetensors, mlx. Deterministic.

SPDX-License-Identifier: MIT
"""
import os

import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Q, quants
from safetensors.numpy import save_file

BLOCKS = 4
# Byte offsets of the halves inside a block: random bits would give infinities there.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "MXFP4": [], "F16": [0], "BF16": []}


def random_blocks(rng, name, size):
    raw = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for o in HALVES[name]:
        raw[:, o:o + 2] = rng.uniform(-2, 2, BLOCKS).astype(np.float16).view(np.uint8).reshape(BLOCKS, 2)
    if name == "MXFP4":
        raw[:, 0] = rng.integers(118, 134, BLOCKS)
        raw[0, 0], raw[1, 0] = 0, 1  # the two exponents that give denormal numbers
    return raw


def main():
    rng, out = np.random.default_rng(7), {}
    for name in HALVES:
        n, size = gguf.GGML_QUANT_SIZES[getattr(Q, name)]
        if name in ("F16", "BF16"):  # all finite bit patterns
            raw = np.arange(0x10000, dtype=np.uint16)
            mask = 0x7c00 if name == "F16" else 0x7f80
            raw = raw[(raw & mask) != mask][::97]
            raw = np.ascontiguousarray(raw.reshape(1, -1)).view(np.uint8)
        else:
            raw = random_blocks(rng, name, size)
        f32 = quants.dequantize(raw.reshape(1, -1), getattr(Q, name)).astype(np.float32)
        out[f"{name}.raw"], out[f"{name}.f32"] = raw, np.ascontiguousarray(f32.reshape(-1))
    x = rng.standard_normal((4, 256)).astype(np.float32)
    x[0, :32] = 0                                            # a block of zeros
    x[0, 32:64] = 0.25                                       # equal numbers
    x[0, 64:96] = np.where(np.arange(32) % 2, -1.5, 1.5)     # a tie of the largest magnitude
    x[0, 96:128] = np.arange(32) / 2 - 8                     # ties when rounding
    x[1] *= 1e-6                                             # halves below the normal range
    x[2] *= 1e3
    out["quantize_input.f32"] = x
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"):
        out[f"quantize.{name}"] = np.ascontiguousarray(quants.quantize(x, getattr(Q, name))).view(np.uint8).reshape(-1)
    w = mx.array(rng.standard_normal((3, 128)).astype(np.float32))
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            q, scales, biases = mx.quantize(w, group_size=group, bits=bits)
            f32 = mx.dequantize(q, scales, biases, group_size=group, bits=bits)
            for key, value in (("weight", q), ("scales", scales), ("biases", biases), ("f32", f32)):
                out[f"affine.{bits}.{group}.{key}"] = np.array(value)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "blocks.safetensors")
    save_file(out, path)
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    main()
