#!/usr/bin/env python3
"""train_bench.py SEGUE: rows and figures of `segue bench --train`.

Figures follow from the shapes: dispatches, bytes of weights, the ratio of simulated times of layers to the products that they
have. Times of this machine are only positive.
"""
import json
import os
import subprocess
import sys

failed = 0


def check(name, good, detail=""):
    global failed
    print(("PASS " if good else "FAIL ") + name, "" if good else detail)
    failed += not good


r = subprocess.run([os.path.abspath(sys.argv[1]), "bench", "--train", "-r", "1", "--json"], capture_output=True, text=True)
check("it ends well", r.returncode == 0, r.stderr)
rows = json.loads(r.stdout or "[]")
cases = [(x["case"], x["unit"].split(":")[0]) for x in rows]
LAYER, QWEN = "one update of a layer", "one update of the 28 layers of Qwen3-0.6B"
check("seven rows", cases == [(LAYER, "cpu"), (LAYER, "ane"), (QWEN, "cpu"), (QWEN, "ane"), ("weights compiled again", "ane"),
                              ("weights reloaded", "ane"), ("weights as inputs", "ane")], str(cases))
check("every null has a reason", all(v is not None or x.get(k + "_reason") for x in rows for k, v in x.items()), r.stdout)
check("times are measured", all(x["step_ms"] > 0 for x in rows))
cpu, layer, _, qwen, again, reload_, inputs = rows
check("cpu simulates nothing", cpu["simulated_ms"] is None and cpu["dispatches"] == 0)
for x in (layer, qwen):
    check(x["case"] + ": all compiles are in the first update", x["compiles"] > 0 and x["compiles_after_first_step"] == 0, str(x))
    check(x["case"] + ": products forward and back of four groups", x["dispatches"] == 8 * x["layers"], str(x["dispatches"]))
    check(x["case"] + ": the share of dispatches beside host work", 0 <= x["overlap_ratio"] <= 1, str(x["overlap_ratio"]))
numbers = 4 * 768 * 768 + 3 * 768 * 2048
check("weights as inputs: fp16, forward and back", inputs["weight_bytes"] == 2 * 2 * numbers, str(inputs["weight_bytes"]))
check("... neither compiles nor loads, but its bytes take time", inputs["compiles"] == inputs["loads"] == 0 < inputs["simulated_ms"],
      str(inputs))
check("compiling again: 8 programs", again["compiles"] == 8 and again["simulated_ms"] > reload_["simulated_ms"], str(again))
check("reloading: none is compiled", reload_["compiles"] == 0 < reload_["loads"], str(reload_))
check("inputs are the fastest way on the chip", inputs["simulated_ms"] < reload_["simulated_ms"], str(inputs))
check("published figures", [x["published_ms"] for x in rows] == [9.3, 9.3, 412, 412, 4200, 494, None])
# 2 x (forward and back) multiply-adds per token, at no more than an M4's fp16 peak of 19 TFLOPS
for x, n in ((layer, numbers), (qwen, 28 * (1024 * (2 * 2048 + 2 * 1024) + 3 * 1024 * 3072))):
    check(x["case"] + ": not faster than the chip", x["simulated_ms"] > 4 * n * x["n_tokens"] / 19e12 * 1e3, str(x["simulated_ms"]))
sys.exit(failed != 0)
