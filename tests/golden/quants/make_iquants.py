#!/usr/bin/env python3
"""Random blocks of the IQ, TQ and NVFP4 types (NAME.raw) and what the Python package gguf reads from them (NAME.f32): written to
iquants.safetensors beside this file. Needs numpy, gguf, safetensors. Deterministic. SPDX-License-Identifier: MIT"""
import os

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q, quants
from safetensors.numpy import save_file

BLOCKS = 4
# Byte offset of the fp16 scale; None: it has another form.
HALVES = {"IQ2_XXS": 0, "IQ2_XS": 0, "IQ2_S": 0, "IQ3_XXS": 0, "IQ3_S": 0, "IQ1_S": 0, "IQ1_M": None, "IQ4_XS": 0, "TQ1_0": 52,
          "TQ2_0": 64, "NVFP4": None}


def main():
    rng, out = np.random.default_rng(11), {}
    for name, at in HALVES.items():
        blocks = 16 if name == "NVFP4" else BLOCKS
        size = gguf.GGML_QUANT_SIZES[getattr(Q, name)][1]
        raw = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
        scale = rng.uniform(-2, 2, blocks).astype(np.float16)
        if at is not None: raw[:, at:at + 2] = scale.view(np.uint8).reshape(blocks, 2)
        if name == "IQ1_M":   # the scale is spread over the upper bits of four words
            words = raw[:, 48:56].copy().view(np.uint16)
            for i in range(4): words[:, i] = (words[:, i] & 0x0fff) | ((scale.view(np.uint16) >> (4 * i) & 15) << 12)
            raw[:, 48:56] = words.view(np.uint8)
        if name == "NVFP4": raw[:, :4] = np.array([0, 1, 7, 8, 0x7e, 0x7f, 0x38, 0x40, *rng.integers(0, 128, 56)]).reshape(16, 4)
        f32 = quants.dequantize(raw.reshape(1, -1), getattr(Q, name)).astype(np.float32)
        assert np.isfinite(f32).all()
        out[f"{name}.raw"], out[f"{name}.f32"] = raw, np.ascontiguousarray(f32.reshape(-1))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "iquants.safetensors")
    save_file(out, path)
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    main()
