#!/usr/bin/env python3
"""handoff.py SEGUE: the default model read on one unit and answered on another, every ordered pair of present units: the answer is
that of the second unit alone, token for token, but for near-ties. Until they part, both answers give the chosen token's
log-probability, whose differences are the error; a parting is a near-tie where the second unit's two best are closer than
twice its 99th percentile over all units that read for it. Near-ties are counted, at most 2 % of the positions. SPDX-License-Identifier: MIT"""
import json, os, subprocess, sys

segue = sys.argv[1]
home = os.environ.get("SEGUE_HOME") or os.path.join(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "segue")
name = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
if not os.path.exists(os.path.join(home, name)) and not os.path.exists(os.path.join(home, "data", name)):
    print("SKIP default_handoff: the default model is not in the data folder; make run fetches it")
    sys.exit(77)
PROMPTS = ["Why is the sky blue?", "Write three sentences about a ship in a storm, and end with a question.",
           "List the months of the year with one thing that happens in each of them."]
N = 32


def answer(*units, prompt):
    r = subprocess.run([segue, "run", "-p", prompt, "-n", str(N), "--greedy", "--logprobs", "2", "--json", "-q", "-t", "2", *units],
                       capture_output=True, text=True, timeout=300)
    if r.returncode: sys.exit(f"FAIL {units}: {r.stderr}")
    return json.loads(r.stdout)


units = []
for u in json.loads(subprocess.run([segue, "units", "--json"], capture_output=True, text=True).stdout):
    if not u["present"] or u["unit"].startswith("proc"): continue
    units += [f"cpu:isa={isa}" for isa in u["features"].split()] if u["unit"].startswith("cpu") else [u["unit"]]
SLOW = {"ref", "cpu:isa=generic"}   # they write a few tokens a second; that they read is enough
alone = {(b, p): answer("--unit", b, prompt=p) for b in units if b not in SLOW for p in PROMPTS}
failures = positions = ties = 0
for b in units:
    if b in SLOW: continue
    errors, partings = [], []
    for a in units:
        if a == b: continue
        equal = 0
        for p in PROMPTS[:1] if a in SLOW else PROMPTS:
            got, want = answer("--prefill", a, "--decode", b, prompt=p), alone[(b, p)]
            for g, w in zip(got["logprobs"], want["logprobs"]):
                positions += 1
                if g["id"] != w["id"]:
                    partings.append((a, w["top"][0]["logprob"] - w["top"][1]["logprob"]))
                    break
                errors.append(abs(g["logprob"] - w["logprob"]))
                equal += 1
        print(f"{a} -> {b}: {equal} equal")
    p99 = sorted(errors)[int(len(errors) * 0.99)] if errors else 0
    print(f"{b}: 99 % of errors below {p99:.2e}, {len(partings)} near-ties")
    ties += len(partings)
    for a, gap in partings:
        if gap > 2 * p99:
            failures += 1
            print(f"FAIL {a} -> {b}: parts where the two best are {gap:.4f} apart")
if ties > 0.02 * positions:
    failures += 1
    print(f"FAIL {ties} near-ties in {positions} positions")
print(f"{positions} positions, {ties} near-ties, {failures} failures")
sys.exit(1 if failures else 0)
