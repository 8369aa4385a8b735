#!/usr/bin/env python3
"""`run --requests --verify` where each hand-off changes one bit: every answer is recomputed on the decode unit, counted, and has
the tokens of that unit alone. Needs a build with SEGUE_FAULTS. SPDX-License-Identifier: MIT"""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

m = tiny_model(context=256)
A, B = "cpu:isa=generic,threads=1", "cpu:isa=generic,threads=2"   # bitwise equal results, but two units
path = write(top.name, "five.jsonl", "\n".join(json.dumps({"id": i, "ids": ",".join(str((i * 7 + k) % 256) for k in range(9)), "n": 3,
                                                           "greedy": True, "ignore_eos": True}) for i in range(5)))
alone = [json.loads(l)["ids"] for l in run("run", "-m", m, "--requests", path, "--unit", B)[1].strip().split("\n")]
for fault, recomputed in (("", 0), ("ulp:layer=0", 5)):
    code, out, err = run("run", "-m", m, "--requests", path, "--prefill", A, "--decode", B, "--verify", 3, SEGUE_FAULT=fault)
    seen = [json.loads(l) for l in out.strip().split("\n")]
    expect(f"{fault}: counted", code == 0 and f"5 hand-offs verified, {recomputed} recomputed" in err, (code, err))
    expect(f"{fault}: each answer says so", {r["verify"]["action"] for r in seen} == {"recomputed" if recomputed else "none"}, seen)
    expect(f"{fault}: tokens of the decode unit", [r["ids"] for r in seen] == alone, (seen, alone))
done()
