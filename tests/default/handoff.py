#!/usr/bin/env python3
"""handoff.py SEGUE [UNIT...]: the default model read on one unit and answered on another, every ordered pair of present units (or of
those named): the answer is that of the second unit alone, token for token, but for near-ties. Until they part, both answers give the
log-probabilities of the 20 best tokens; their differences are the pair's error. A parting is a near-tie where the second unit's two
best are closer than twice the 99th percentile of that. Near-ties are counted, at most 2 % of the positions (4 % with a unit that rounds
to fp16). SPDX-License-Identifier: MIT"""
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
    r = subprocess.run([segue, "run", "-p", prompt, "-n", str(N), "--greedy", "--logprobs", "20", "--json", "-q", "-t", "2", *units],
                       capture_output=True, text=True, timeout=500)
    if r.returncode: sys.exit(f"FAIL {units}: {r.stderr}")
    return json.loads(r.stdout)


units = []
fp16 = set()
for u in json.loads(subprocess.run([segue, "units", "--json"], capture_output=True, text=True).stdout):
    if not u["available"] or u["unit"].startswith("proc"): continue
    if u["simulated"]: fp16.add(u["unit"])
    units += [f"cpu:isa={isa}" for isa in u["features"].split()] if u["unit"].startswith("cpu") else [u["unit"]]
if sys.argv[2:]: units = sys.argv[2:]
SLOW = {"ref", "cpu:isa=generic"} | fp16   # they write a few tokens a second; that they read is enough
alone = {(b, p): answer("--unit", b, prompt=p) for b in units if b not in SLOW for p in PROMPTS}
failures, positions, ties = 0, {False: 0, True: 0}, {False: 0, True: 0}
for b in units:
    for a in units:
        if a == b or b in SLOW: continue
        equal, errors, partings = 0, [], []
        for p in PROMPTS[:1] if a in SLOW else PROMPTS:
            got, want = answer("--prefill", a, "--decode", b, prompt=p), alone[(b, p)]
            for g, w in zip(got["logprobs"], want["logprobs"]):
                positions[a in fp16] += 1
                ours = {t["id"]: t["logprob"] for t in g["top"]}
                errors += [abs(t["logprob"] - ours[t["id"]]) for t in w["top"] if t["id"] in ours]
                if g["id"] != w["id"]:
                    partings.append(w["top"][0]["logprob"] - w["top"][1]["logprob"])
                    break
                equal += 1
        limit = 2 * sorted(errors)[int(len(errors) * 0.99)]
        print(f"{a} -> {b}: {equal} equal, {len(partings)} near-ties, two best within {limit:.2e} are one")
        ties[a in fp16] += len(partings)
        for gap in partings:
            if gap <= limit: continue
            failures += 1
            print(f"FAIL {a} -> {b}: parts where the two best are {gap:.4f} apart")
for half, most in ((False, 0.02), (True, 0.04)):
    if ties[half] > most * positions[half]:
        failures += 1
        print(f"FAIL {ties[half]} near-ties in {positions[half]} positions")
print(f"{sum(positions.values())} positions, {sum(ties.values())} near-ties, {failures} failures")
sys.exit(1 if failures else 0)
