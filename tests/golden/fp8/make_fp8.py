#!/usr/bin/env python3
"""What torch makes of float8_e4m3fn: written to e4m3.safetensors beside this file.

codes.f32: the number of each code (0x7f and 0xff are NaN); x.f32 and x.codes: numbers up to 448 and their codes, ties and
the edges of every binade among them; rows.f32, rows.scale and rows.codes: rows, the least power of two with which none of
their numbers passes 448, and their codes under it. Needs torch, safetensors. Deterministic.

SPDX-License-Identifier: MIT
"""
import math
import os

import torch
from safetensors.torch import save_file

E4M3 = torch.float8_e4m3fn


def codes_of(x):
    return x.to(E4M3).view(torch.uint8)


def main():
    g = torch.Generator().manual_seed(7)
    every = torch.arange(256, dtype=torch.uint8)
    values = every.view(E4M3).float()
    finite = values[:127].tolist()
    edges = []
    for a, b in zip(finite, finite[1:]):
        tie = torch.tensor((a + b) / 2)
        edges += [a, tie.item(), torch.nextafter(tie, torch.tensor(-1e9)).item(), torch.nextafter(tie, torch.tensor(1e9)).item()]
    x = torch.tensor(edges + [448.0, 1e-30, 2.0**-10, 2.0**-11, 1.5 * 2.0**-10, 1e-45, 0.0])
    x = torch.cat([x, torch.randn(1024, generator=g) * torch.exp2(torch.randint(-12, 7, (1024,), generator=g))]).clamp(-448, 448)
    x = torch.cat([x, -x])
    rows = torch.randn(12, 160, generator=g) * torch.exp2(torch.arange(-60, 60, 10)).unsqueeze(1)
    rows[0], rows[1], rows[2] = 0, 448, 448.00003
    rows[3, 17], rows[4, 5], rows[5] = 1e30, -7e4, rows[5] * 1e-22
    exponents = [max(-117, math.ceil(math.log2(m / 448))) if m else -117 for m in rows.abs().amax(1).double().tolist()]
    scale = torch.exp2(torch.tensor(exponents, dtype=torch.float32))
    save_file({"codes.f32": values, "x.f32": x, "x.codes": codes_of(x), "rows.f32": rows, "rows.scale": scale,
               "rows.codes": codes_of(rows / scale.unsqueeze(1))},
              os.path.join(os.path.dirname(os.path.abspath(__file__)), "e4m3.safetensors"))


main()
