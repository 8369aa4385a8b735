#!/usr/bin/env python3
"""Decode speed of segue's unit mlx beside mlx-lm's generate_step, alternating, on one folder of MLX safetensors
(docs/bench/mlx_models.py makes one).

    mlx_pairs.py MLX_DECODE FOLDER [--pairs 20] [-n 64] [--unit mlx:gpu] [--kv bf16]

MLX_DECODE is the program tests/mlx/mlx_decode.c. Both load the model once and stay; in each pair both generate N tokens, one after
the other, in alternating order, after a prompt of 8 tokens and 8 tokens that are not timed: so both see the same machine, whose
processors may be faster or slower for seconds. Two rounds before the first pair are a warm-up. Printed: every pair, and the median
of their ratios (above 1: segue is faster). SPDX-License-Identifier: MIT
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import time


def theirs(folder):
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model
    model, _ = load_model(pathlib.Path(folder))
    for line in sys.stdin:
        n, begun = int(line), None
        for i, _ in enumerate(generate_step(mx.arange(1, 9), model, max_tokens=n + 8)):
            if i == 7:
                begun = time.perf_counter()
        print(f"{n / (time.perf_counter() - begun):.2f}", flush=True)


class Program:
    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def speed(self, n):
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("decode")
    a.add_argument("folder")
    a.add_argument("--pairs", type=int, default=20)
    a.add_argument("-n", type=int, default=64)
    a.add_argument("--unit", default="mlx:gpu")
    a.add_argument("--kv", default="bf16")
    o = a.parse_args()
    segue = Program(o.decode, o.folder, o.unit, o.kv)
    other = Program(sys.executable, __file__, "--theirs", o.folder)
    for _ in range(2):
        segue.speed(o.n)
        other.speed(o.n)
    mine, his = [], []
    for i in range(o.pairs):
        for p, speeds in ((segue, mine), (other, his)) if i % 2 == 0 else ((other, his), (segue, mine)):
            speeds.append(p.speed(o.n))
    ratios = [x / y for x, y in zip(mine, his)]
    print("segue/mlx-lm: " + ", ".join(f"{x:.0f}/{y:.0f}" for x, y in zip(mine, his)))
    print(f"segue {statistics.median(mine):.1f} tok/s, mlx-lm {statistics.median(his):.1f} tok/s, ratio "
          f"{statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f}, {o.pairs} pairs)", flush=True)


if sys.argv[1:2] == ["--theirs"]:
    theirs(sys.argv[2])
else:
    main()
