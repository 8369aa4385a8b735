#!/usr/bin/env python3
"""The published pipelines with decode on mlx: software Neural Engine token by token, in batches of 32 and with fixed shapes, and
fixed shapes on cpu. Tokens are those of mlx alone; where they part, the best two tokens there are nearly tied.

    mlx_pipelines.py SEGUE MODEL... [-- FLAGS of bench --pipelines, instead of a short run]

Prints the rows of bench --pipelines. SPDX-License-Identifier: MIT
"""
import json
import subprocess
import sys

UNIT, ENGINE = "mlx:cpu", "ane:soft"
PIPELINES = [f"ane-seq:{ENGINE}+{UNIT}", f"ane-batch:{ENGINE}+{UNIT}", f"fixed:{ENGINE}+{UNIT}", f"fixed:cpu+{UNIT}"]
SEED = 1
# fp16 prefill changes log-probabilities in the third digit: where two tokens are closer than this, either may win.
NEARLY = 0.02


def call(*args):
    done = subprocess.run([segue, *args], capture_output=True, text=True)
    assert done.returncode == 0, (args, done.stderr)
    return done.stdout


def prompt(model, n):
    """The ids that bench draws: SplitMix64."""
    vocab, state, ids, mask = json.loads(call("inspect", "-m", model, "--json"))["numbers"]["vocab"], SEED, [], (1 << 64) - 1
    for _ in range(n):
        state = (state + 0x9e3779b97f4a7c15) & mask
        z = (state ^ state >> 30) * 0xbf58476d1ce4e5b9 & mask
        z = (z ^ z >> 27) * 0x94d049bb133111eb & mask
        ids.append((z ^ z >> 31) % vocab)
    return ids


def answer(model, ids, n, *where):
    return json.loads(call("run", "-m", model, "--ids", ",".join(map(str, ids)), "-n", str(n), "--greedy", "--ignore-eos", "--json",
                           *where))


def explain(model, row):
    """Both tokens where the answers part, with their logits on the decode unit: near-ties, or a failure."""
    ids, n = prompt(model, row["n_prompt"]), row["n_gen"]
    alone = answer(model, ids, n, "--unit", UNIT)["ids"]
    mixed = answer(model, ids, n, "--pipeline", row["pipeline"])["ids"]
    if alone == mixed:
        print(f"    {row['pipeline']}, {row['n_prompt']} tokens: `run` has equal tokens, `bench` has others")
        return False
    at = next(i for i in range(n) if alone[i] != mixed[i])
    out = answer(model, ids + alone[:at], 1, "--unit", UNIT, "--logprobs", "8")
    top = {t["id"]: t["logprob"] for t in out["logprobs"][0]["top"]}
    pair = [top.get(alone[at]), top.get(mixed[at])]
    print(f"    {row['pipeline']}, {row['n_prompt']} tokens: part at token {at}: {alone[at]} and {mixed[at]}, log-probabilities {pair}")
    return None not in pair and abs(pair[0] - pair[1]) < NEARLY


def measure(model, flags):
    names = [f"single:{UNIT}", *PIPELINES]
    out = call("bench", "--pipelines", "-m", model, "--seed", str(SEED), *sum((["--pipeline", p] for p in names), []), "-o", "jsonl", *flags)
    rows, bad = [json.loads(line) for line in out.splitlines()], 0
    for r in rows:
        print(f"{r['pipeline']:>28} {r['n_prompt']:>5} tokens: first after {r['ttft_ms']:9.1f} ms, prefill {r['prefill_tok_s']:8.2f} tok/s, "
              f"decode {r['decode_tok_s']:7.2f} tok/s, {r['peak_bytes'] / 1e6:6.0f} MB, tokens equal: {r['ids_equal']}")
        runs = {u["phase"]: u["runs"] for u in r["units"] if u["unit"] == r["prefill"]}
        shape = 1 if r["pipeline"].startswith("ane-seq") else 32 if r["pipeline"].startswith("ane-batch") else 512
        assert r["available"] and r["decode"] == UNIT and runs["prefill"] == -(-r["n_prompt"] // shape), (r, runs)
        if not r["ids_equal"] and not explain(model, r):
            bad += 1
    assert len(rows) == len(names) * len({r["n_prompt"] for r in rows})
    return bad


segue, rest = sys.argv[1], sys.argv[2:]
cut = rest.index("--") if "--" in rest else len(rest)
flags = rest[cut + 1:] or ["-p", "6,70", "-n", "16", "-r", "2"]
failed = 0
for path in rest[:cut]:
    print(path)
    failed += measure(path, flags)
sys.exit(1 if failed else 0)
