#!/usr/bin/env python3
"""ane_stories.py SEGUE FOLDER [STEPS]: train two layers of the 110M Stories shape (width 768, 12 heads, 2,048, 32,000 tokens) with
the products on the software NPU, and the same on the CPU; compare the losses after every hundred updates.

The data are the stories of train_demo.py with a token per word, 64 tokens a sequence, one sequence per update. Both runs continue
from their last checkpoint when the command is repeated. Ends with 1 if a loss is not finite, that of a hundredth
update differs by more than 2 %, or a program was compiled after the first update. The mean of each hundred updates is printed
too: two runs whose numbers are rounded otherwise drift apart in single updates of 64 tokens. Needs no packages.
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

TOKENS = 64


def write_data(path):
    """Sequences of TOKENS words; the number of a word is that of its first use, spread over the vocabulary."""
    rng, ids, words = random.Random(1), {}, []
    for _ in range(4000):
        words += train_demo.story(rng).replace("\n", " <end>").split(" ")
    numbers = [ids.setdefault(w, 997 * len(ids) % 32000) for w in words]
    with open(path, "w", encoding="utf-8") as f:
        for at in range(0, len(numbers) - TOKENS, TOKENS):
            f.write(json.dumps({"tokens": numbers[at : at + TOKENS]}) + "\n")


def start(segue, folder, unit, steps):
    out = os.path.join(folder, unit.replace(":", "-"))
    return subprocess.Popen([segue, "train", "--full", "--random", "-m", os.path.join(folder, "shape"), "--data",
                             os.path.join(folder, "stories.jsonl"), "-o", out, "--steps", steps, "--batch", "1", "-c", str(TOKENS),
                             "--lr", "3e-4", "--held-out", "0", "--checkpoint", "100", "--unit", unit, "--metrics",
                             out + ".csv"], stdout=sys.stderr)


def updates(folder, unit):
    with open(os.path.join(folder, unit.replace(":", "-") + ".csv"), encoding="utf-8") as f:
        return [(float(row["loss"]), int(row["compiles"])) for row in csv.DictReader(f)]


def main():
    segue, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    steps = sys.argv[3] if len(sys.argv) > 3 else "1000"
    train_demo.write_shape(os.path.join(folder, "shape"), width=768, layers=2, heads=12, ff=2048, vocab=32000)
    write_data(os.path.join(folder, "stories.jsonl"))
    running = [start(segue, folder, unit, steps) for unit in ("ane:soft", "cpu")]
    if any([p.wait() for p in running]):
        return 1
    ane, cpu = updates(folder, "ane:soft"), updates(folder, "cpu")
    bad = len(ane) != len(cpu) or not all(math.isfinite(loss) for loss, _ in ane)
    for i in range(99, len(ane), 100):
        means = [sum(loss for loss, _ in run[i - 99 : i + 1]) / 100 for run in (ane, cpu)]
        change = means[0] / means[1] - 1
        bad = bad or abs(ane[i][0] / cpu[i][0] - 1) > 0.02
        print(f"update {i + 1}: loss {ane[i][0]:.4f} on ane:soft, {cpu[i][0]:.4f} on cpu; mean of a hundred {means[0]:.4f}, "
              f"{means[1]:.4f}, {100 * change:+.3f} %")
    late = sum(compiles for _, compiles in ane[1:])
    print(f"{len(ane)} updates, compiles in the first {ane[0][1]}, later {late}")
    return bad or late > 0


if __name__ == "__main__":
    sys.exit(main())
