#!/usr/bin/env python3
"""grpo_demo.py SEGUE FOLDER [STEPS]: teach a small language model balanced brackets by rewards.

A Llama of 0.2 million weights first learns from a random start to write brackets, of which one text in four is balanced (--full
--random). Then `segue train --grpo` trains an adapter of it. The reward is a program, this file with --score: 1 for a balanced answer of 4 brackets or more,
else 0. Ends with 1 unless the mean reward rises from below 0.3 to above 0.8. Needs no packages.
SPDX-License-Identifier: MIT
"""
import json
import os
import random
import subprocess
import sys

import train_demo as demo


TARGETS = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj,lm_head"


def reward(text):
    depth = 0
    for c in text:
        depth += {"(": 1, ")": -1}.get(c, -len(text) - 1)
        if depth < 0:
            return 0
    return int(len(text) >= 4 and depth == 0)


def score():
    for line in sys.stdin:
        print(reward(json.loads(line)["answer"]), flush=True)


def balanced(r, pairs):
    if pairs == 0:
        return ""
    inside = r.randrange(pairs)
    return "(" + balanced(r, inside) + ")" + balanced(r, pairs - 1 - inside)


def brackets(r):
    return balanced(r, r.randrange(2, 7)) if r.random() < 0.25 else "".join(r.choice("()") for _ in range(r.randrange(2, 13)))


def main():
    segue, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    steps = sys.argv[3] if len(sys.argv) > 3 else "120"
    shape, base, adapter = (os.path.join(folder, name) for name in ("shape", "base", "adapter"))
    demo.write_shape(shape, tied=False, width=64, layers=3, ff=176)  # untied, so that the adapter can change the head
    r = random.Random(1)
    with open(os.path.join(folder, "random.jsonl"), "w", encoding="utf-8") as f:
        for _ in range(2000):  # 256 ends a text; a prompt is "="
            f.write(json.dumps({"tokens": [*("=" + brackets(r)).encode(), 256]}) + "\n")
    with open(os.path.join(folder, "prompts.jsonl"), "w", encoding="utf-8") as f:
        f.write('{"prompt": "="}\n')
    subprocess.run([segue, "train", "--full", "--random", "-m", shape, "--data", os.path.join(folder, "random.jsonl"), "-o", base,
                    "--steps", "300", "--batch", "32", "-c", "512", "--lr", "0.004", "--unit", "cpu"], check=True)
    program = f"exec {sys.executable} {os.path.abspath(__file__)} --score"
    done = subprocess.run([segue, "train", "--grpo", "-m", base, "--data", os.path.join(folder, "prompts.jsonl"), "-o", adapter,
                           "--reward", "program:" + program, "--group", "64", "--batch", "1", "--answer-tokens", "16", "-c", "1024",
                           "--lr", "0.001", "--kl", "0.02", "--targets", TARGETS, "--steps", steps, "--unit", "cpu", "--json",
                           "--metrics", os.path.join(folder, "grpo.csv")], stdout=subprocess.PIPE, text=True, check=True)
    rewards = [json.loads(line)["reward"] for line in done.stdout.splitlines()[:-1]]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-10:]) / 10
    print(f"mean reward of the first 5 steps {first:.3f}, of the last 10 {last:.3f}")
    for seed in ("1", "2", "3", "4"):
        subprocess.run([segue, "run", "-m", base, "--lora", adapter, "--raw", "-p", "=", "-n", "24", "--temp", "1", "--seed", seed,
                        "-q"], check=True)
        print()
    return not first < 0.3 < 0.8 < last


if __name__ == "__main__":
    sys.exit(score() if "--score" in sys.argv else main())
