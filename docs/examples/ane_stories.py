#!/usr/bin/env python3
"""ane_stories.py SEGUE FOLDER [STEPS [RATE]]: train two layers of the 110M Stories shape (width 768, 12 heads, 2,048, 32,000 tokens)
with the products on the software NPU, on the CPU, and as a control on the CPU with sums in another order; compare the losses of every
hundredth update.

The data are the stories of train_demo.py with a token per word; an update has two sequences of 32 tokens, the control computes them one
by one. All runs continue from their last checkpoint when the command is repeated. Ends with 1 if a loss is not finite, that of a
hundredth update on the software NPU differs by more than 2 % from the CPU's, or a program was compiled after the first update.

RATE is 1e-4. At 3e-4, which is published for updates of 2,560 tokens, the difference of rounding grows a thousandfold in 270 updates of
64 tokens; docs/log/ANE.md has the figures. THREADS in the environment: of each run; by default a third of the cores. Needs no packages.
SPDX-License-Identifier: MIT
"""
import csv
import json
import math
import os
import random
import subprocess
import sys

import train_demo

TOKENS = 32
RUNS = {"ane": ["--unit", "ane:soft"], "cpu": ["--unit", "cpu"], "control": ["--unit", "cpu", "--no-pack"]}


def write_data(path):
    """Sequences of TOKENS words; the number of a word is that of its first use, spread over the vocabulary."""
    rng, ids, words = random.Random(1), {}, []
    for _ in range(4000):
        words += train_demo.story(rng).replace("\n", " <end>").split(" ")
    numbers = [ids.setdefault(w, 997 * len(ids) % 32000) for w in words]
    with open(path, "w", encoding="utf-8") as f:
        for at in range(0, len(numbers) - TOKENS, TOKENS):
            f.write(json.dumps({"tokens": numbers[at : at + TOKENS]}) + "\n")


def start(segue, folder, name, steps, rate):
    out = os.path.join(folder, name)
    threads = os.environ.get("THREADS") or str(max(1, (os.cpu_count() or 1) // 3))
    return subprocess.Popen([segue, "train", "--full", "--random", "-m", os.path.join(folder, "shape"), "--data",
                             os.path.join(folder, "stories.jsonl"), "-o", out, "--steps", steps, "--batch", "2", "-c", str(TOKENS),
                             "--micro-batch", str(2 * TOKENS), "--lr", rate, "--held-out", "0", "--checkpoint", "100", "-t", threads,
                             "--metrics", out + ".csv", *RUNS[name]], stdout=sys.stderr)


def updates(folder, name):
    with open(os.path.join(folder, name + ".csv"), encoding="utf-8") as f:
        return [(float(row["loss"]), int(row["compiles"])) for row in csv.DictReader(f)]


def main():
    segue, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    steps, rate = sys.argv[3] if len(sys.argv) > 3 else "1000", sys.argv[4] if len(sys.argv) > 4 else "1e-4"
    train_demo.write_shape(os.path.join(folder, "shape"), width=768, layers=2, heads=12, ff=2048, vocab=32000)
    write_data(os.path.join(folder, "stories.jsonl"))
    running = [start(segue, folder, name, steps, rate) for name in RUNS]
    if any([p.wait() for p in running]):
        return 1
    ane, cpu, control = (updates(folder, name) for name in RUNS)
    bad = not len(ane) == len(cpu) == int(steps) or not all(math.isfinite(loss) for loss, _ in ane)
    worst = [0, 0]
    for i in range(99, len(ane), 100):
        change = [run[i][0] / cpu[i][0] - 1 for run in (ane, control)]
        worst = [max(w, abs(c)) for w, c in zip(worst, change)]
        print(f"update {i + 1}: loss {ane[i][0]:.4f} on ane:soft ({100 * change[0]:+.3f} %), {cpu[i][0]:.4f} on cpu, "
              f"{control[i][0]:.4f} of the control ({100 * change[1]:+.4f} %)")
    late = sum(compiles for _, compiles in ane[1:])
    print(f"{len(ane)} updates, compiles in the first {ane[0][1]}, later {late}; worst difference of a hundredth update: ane:soft "
          f"{100 * worst[0]:.3f} %, control {100 * worst[1]:.4f} %")
    return bad or worst[0] > 0.02 or late > 0


if __name__ == "__main__":
    sys.exit(main())
